// Convolution of each channel by itself, of maps with channels last.
//
// A tile is P pixels of a row for V channels: per tap one vector of weights, and P of x. An item computes `tiles` tiles
// along the row, and at each place those of `span` channels, because these lie side by side.
// Rows outside of the map are left out; so are columns, pixel by pixel, where a tile reaches into the padding.
// With K, the width of the kernel, and S, its stride, known (and no dilation), each vector of x is loaded once per row and
// meets all its taps, which stay in registers.
// With TRANSPOSED, pixels of y meet pixels of x as in conv.cl: those of one rest with respect to the stride are a tile.

#ifndef TRANSPOSED
#define TRANSPOSED 0
#endif

typedef global const real *Reals;

// sum += the products of P pixels at, at + move ... of a row with the weights of one tap; those outside are left out.
INLINE void multiply(floatV *sum, Reals row, floatV taps, int at, int move, int width, int pitch)
{
    int step = move * pitch;
    row += at * pitch;
    if (at >= 0 && at + (P - 1) * move < width) {
        EACH(p, P) sum[p] += LOADV(row, p * step) * taps;
        return;
    }
    EACH(p, P)
    {
        if (at + p * move >= 0 && at + p * move < width) sum[p] += LOADV(row, p * step) * taps;
    }
}

#ifdef K
// A row of K taps for P pixels at strides of S, from the column `at` on.
INLINE void slide(floatV *sum, Reals row, Reals w, int at, int width, int pitch, bool inside)
{
    floatV taps[K];
    EACH(k, K) taps[k] = LOADV(w, k * pitch);
    row += at * pitch;
    EACH(j, (P - 1) * S + K)
    {
        floatV x = inside || (at + j >= 0 && at + j < width) ? LOADV(row, 0) : (floatV)0.0f;
        row += pitch;
        EACH(k, K)
        {
            if (j >= k && (j - k) % S == 0 && (j - k) / S < P) sum[(j - k) / S] += x * taps[k];
        }
    }
}
#endif

kernel void depthwise(global const real *x, global const real *w, global const real *bias, global const real *residual,
                      global real *y, int x_at, int bias_at, int residual_at, int images, int channels, int pitch,
                      int span, int tiles, int h, int width, int out_h, int out_w, int kernel_h, int kernel_w,
                      int stride_h, int stride_w, int dilation_h, int dilation_w, int top, int left, float low,
                      float high)
{
    int first = get_global_id(0) * span, item = get_global_id(1), oy = get_global_id(2);
#if TRANSPOSED
    int next = stride_w, begin = item / next * tiles * P * next + item % next;
#else
    int next = 1, begin = item * tiles * P;
#endif
    if (first >= pitch || begin >= out_w || oy >= images * out_h) return;
    int image = oy / out_h, end = min(begin + tiles * P * next, out_w), last = min(first + span, pitch);
    y += (size_t)oy * out_w * pitch;
    if (residual) residual += residual_at + (size_t)oy * out_w * pitch;
    if (bias) bias += bias_at;
    oy -= image * out_h;
    x += x_at + (size_t)image * h * width * pitch;

    for (int ox = begin; ox < end; ox += P * next) {
        for (int c = first; c < last; c += V) {
            floatV sum[P];
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
                Reals row = x + iy * width * pitch + c, taps = w + ky * kernel_w * pitch + c;
#ifdef K
                int ix = ox * S - left;
                if (ix >= 0 && ix + (P - 1) * S + K <= width)
                    slide(sum, row, taps, ix, width, pitch, true);
                else
                    slide(sum, row, taps, ix, width, pitch, false);
#else
                for (int kx = 0; kx < kernel_w; ++kx, taps += pitch) {
#if TRANSPOSED
                    int ix = ox + left - kx * dilation_w;
                    if (ix % stride_w == 0) multiply(sum, row, LOADV(taps, 0), ix / stride_w, 1, width, pitch);
#else
                    multiply(sum, row, LOADV(taps, 0), ox * stride_w - left + kx * dilation_w, stride_w, width, pitch);
#endif
                }
#endif
            }
            floatV start = bias ? load_real(bias + c, channels - c) : (floatV)0.0f;
            EACH(p, P)
            {
                int at = (ox + p * next) * pitch + c;
                if (ox + p * next < out_w) {
                    floatV value = sum[p] + start;
                    if (residual) value += LOADV(residual, at);
                    STOREV(activate(value, low, high), y, at);
                }
            }
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
