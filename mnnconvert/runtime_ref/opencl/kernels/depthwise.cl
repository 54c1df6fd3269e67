// Convolution of each channel by itself, of maps with channels last.
//
// An item computes P pixels of a row, at strides of the kernel, for V channels: per tap one vector of weights, and P of x.
// Rows outside of the map are left out; so are columns, pixel by pixel, where a tile reaches into the padding.
// With TRANSPOSED, pixels of y meet pixels of x as in conv.cl: those of one rest with respect to the stride are a tile.

#ifndef TRANSPOSED
#define TRANSPOSED 0
#endif

kernel void depthwise(global const real *x, global const real *w, global const real *bias, global const real *residual,
                      global real *y, int x_at, int bias_at, int residual_at, int images, int channels, int pitch,
                      int h, int width, int out_h, int out_w, int kernel_h, int kernel_w, int stride_h, int stride_w,
                      int dilation_h, int dilation_w, int top, int left, float low, float high)
{
    int c = get_global_id(0) * V, tile = get_global_id(1), oy = get_global_id(2);
    if (c >= pitch || oy >= images * out_h) return;
#if TRANSPOSED
    int ox = tile / stride_w * P * stride_w + tile % stride_w, next = stride_w, move = 1;
#else
    int ox = tile * P, next = 1, move = stride_w;
#endif
    if (ox >= out_w) return;
    int image = oy / out_h, pixels = min(up(out_w - ox, next), P);
    oy -= image * out_h;
    x += x_at + (size_t)image * h * width * pitch + c;
    w += c;

    floatV sum[P];
    floatV start = bias ? load_real(bias + bias_at + c, channels - c) : (floatV)0.0f;
    EACH(p, P) sum[p] = 0.0f;
    for (int ky = 0; ky < kernel_h; ++ky) {
#if TRANSPOSED
        int iy = oy + top - ky * dilation_h;
        if (iy % stride_h) continue;
        iy /= stride_h;
#else
        int iy = oy * stride_h - top + ky * dilation_h;
#endif
        if (iy < 0 || iy >= h) continue;
        global const real *row = x + iy * width * pitch;
        for (int kx = 0; kx < kernel_w; ++kx) {
#if TRANSPOSED
            int ix = ox + left - kx * dilation_w;
            if (ix % stride_w) continue;
            ix /= stride_w;
#else
            int ix = ox * stride_w - left + kx * dilation_w;
#endif
            floatV taps = LOADV(w, (ky * kernel_w + kx) * pitch);
            if (ix >= 0 && ix + (P - 1) * move < width) {
                EACH(p, P) sum[p] += LOADV(row, (ix + p * move) * pitch) * taps;
            } else {
                EACH(p, P)
                {
                    int at = ix + p * move;
                    if (at >= 0 && at < width) sum[p] += LOADV(row, at * pitch) * taps;
                }
            }
        }
    }
    size_t at = (((size_t)image * out_h + oy) * out_w + ox) * pitch + c;
    y += at;
    if (residual) residual += residual_at + at;
    EACH(p, P)
    {
        if (p < pixels) {
            floatV value = sum[p] + start;
            if (residual) value += LOADV(residual, p * next * pitch);
            STOREV(activate(value, low, high), y, p * next * pitch);
        }
    }
}

// Weights w[channel][tap] as [tap][pitch].
kernel void depthwise_pack(global const real *w, global real *y, int w_at, int channels, int pitch, int taps)
{
    int c = get_global_id(0), tap = get_global_id(1);
    if (c >= pitch || tap >= taps) return;
    STORE(c < channels ? LOAD(w + w_at, c * taps + tap) : 0.0f, y, tap * pitch + c);
}
