// The maximum, or the mean, over windows of maps with channels last.
//
// An item computes a pixel for `span` channels, V at a time. Windows are clipped to the map; the mean divides by the number of elements
// that a window has in the map widened by `margin` on either side, at least 1 along each axis. NaN stays.
// MEAN: the mean, rather than the maximum.

#if MEAN
#define FIRST 0.0f
static floatV fold(floatV all, floatV x) { return all + x; }
#else
#define FIRST -FLT_MAX
static floatV fold(floatV all, floatV x) { return x > all || x != x ? x : all; }
#endif

static int covered(int start, int kernel_size, int size, int margin)
{
    return max(min(start + kernel_size, size + margin) - max(start, -margin), 1);
}

kernel void pool(global const real *x, global real *y, int x_at, int images, int pitch, int span, int h, int width,
                 int out_h, int out_w, int kernel_h, int kernel_w, int stride_h, int stride_w, int top, int left,
                 int margin_h, int margin_w)
{
    int first = get_global_id(0) * span, ox = get_global_id(1), oy = get_global_id(2);
    if (first >= pitch || ox >= out_w || oy >= images * out_h) return;
    int image = oy / out_h;
    y += ((size_t)oy * out_w + ox) * pitch;
    oy -= image * out_h;
    x += x_at + (size_t)image * h * width * pitch;
    int iy = oy * stride_h - top, ix = ox * stride_w - left;
    for (int c = first; c < min(first + span, pitch); c += V) {
        floatV all = FIRST;
        for (int row = max(iy, 0); row < min(iy + kernel_h, h); ++row)
            for (int column = max(ix, 0); column < min(ix + kernel_w, width); ++column)
                all = fold(all, LOADV(x, (row * width + column) * pitch + c));
#if MEAN
        all /= (float)(covered(iy, kernel_h, h, margin_h) * covered(ix, kernel_w, width, margin_w));
#endif
        STOREV(all, y, c);
    }
}

// All pixels of a map, in PARTS interleaved sums of stretches of at most LONG, so that rounding does not add up.
#define PARTS 4
#define LONG 128
kernel void pool_all(global const real *x, global real *y, int x_at, int images, int pitch, int pixels)
{
    int c = get_global_id(0) * V, image = get_global_id(1);
    if (c >= pitch || image >= images) return;
    x += x_at + (size_t)image * pixels * pitch + c;
    floatV all = FIRST;
    for (int begin = 0; begin < pixels; begin += LONG) {
        int end = min(begin + LONG, pixels), p = begin;
        floatV part[PARTS];
        EACH(i, PARTS) part[i] = FIRST;
        for (; p + PARTS <= end; p += PARTS) EACH(i, PARTS) part[i] = fold(part[i], LOADV(x, (p + i) * pitch));
        for (; p < end; ++p) part[0] = fold(part[0], LOADV(x, p * pitch));
        all = fold(all, fold(fold(part[0], part[1]), fold(part[2], part[3])));
    }
#if MEAN
    all /= (float)pixels;
#endif
    STOREV(all, y, image * pitch + c);
}
