// Feature maps from [N, C, pixels] to [N, pixels, width], width being C rounded up to V, and back.

kernel void plain_to_last(global const real *x, global real *y, int channels, int width, int pixels)
{
    int p = get_global_id(0), c = get_global_id(1) * V, n = get_global_id(2);
    if (p >= pixels || c >= width) return;
    x += (size_t)n * channels * pixels + p;
    y += ((size_t)n * pixels + p) * width;
    for (int i = c; i < c + V; ++i) STORE(i < channels ? LOAD(x, i * pixels) : 0.0f, y, i);
}

kernel void last_to_plain(global const real *x, global real *y, int channels, int width, int pixels)
{
    int p = get_global_id(0), c = get_global_id(1) * V, n = get_global_id(2);
    if (p >= pixels) return;
    x += ((size_t)n * pixels + p) * width;
    y += (size_t)n * channels * pixels + p;
    for (int i = c; i < min(c + V, channels); ++i) STORE(LOAD(x, i), y, i * pixels);
}
