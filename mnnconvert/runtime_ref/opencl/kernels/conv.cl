// Convolution, and its transpose, directly: y[o, p] = activation(sum over c, taps of w[o, c, tap] * x[c, p at tap]
// + bias[o] + residual[o, p]).
//
// An item computes P pixels of a row for B vectors of output channels in P * B registers. For every tap it finds the P
// pixels of x that meet it; for every input channel it then loads B vectors of weights, and multiplies each pixel's value
// with them. Pixels in the padding are read from `zeros`, so that the innermost loop has no branches.
// Weights lie as [group, panel][tap][channel][B * V] (w_panel elements from panel to panel, w_step from channel to
// channel; on GPUs panels are innermost, so that neighbouring items read neighbouring weights).
// x has channels last, or, with PLAIN_X, first: then `zeros` is one element.
// PANEL is the dimension of the items along which images, groups and panels go; 2 - PANEL that of pixels along a row.

#ifndef PLAIN_X
#define PLAIN_X 0
#endif
#ifndef RAGGED
#define RAGGED 0  // whether vectors may reach into the next group
#endif

typedef global const real *Reals;

#define LOAD_TAPS                                                                                                      \
    floatV taps[B];                                                                                                    \
    EACH(b, B) taps[b] = LOADV(w, b * V);

// sum += the products of a run of `count` numbers of each pixel, x_step elements from one to the next, and as many rows of
// weights; pixels lie `pitch` elements from each other.
INLINE void multiply(floatV (*sum)[B], Reals x, Reals w, int count, int x_step, int w_step, int pitch)
{
    for (int i = 0; i < count; ++i) {
        LOAD_TAPS
        EACH(p, P)
        {
            float pixel = LOAD(x, p * pitch);
            EACH(b, B) sum[p][b] += pixel * taps[b];
        }
        x += x_step;
        w += w_step;
    }
}

// The same of all channels at one tap, where pixels at, at + stride ... of a row may lie outside of it.
INLINE void multiply_edge(floatV (*sum)[B], Reals row, Reals w, Reals zeros, int at, int stride, int width, int inputs,
                          int x_pixel, int x_channel, int w_step)
{
    Reals from[P];
    int step[P];
    EACH(p, P)
    {
        int column = at + p * stride;
        bool inside = column >= 0 && column < width;
        from[p] = inside ? row + column * x_pixel : zeros;
        step[p] = inside ? x_channel : 0;
    }
    for (int c = 0; c < inputs; ++c) {
        LOAD_TAPS
        EACH(p, P)
        {
#if PLAIN_X
            float pixel = LOAD(from[p], 0);
            from[p] += step[p];
#else
            float pixel = LOAD(from[p], c);
#endif
            EACH(b, B) sum[p][b] += pixel * taps[b];
        }
        w += w_step;
    }
}

// Bias, residual and activation, to y and residual at the first of the P pixels, of which `pixels` are within the row;
// `left` channels are left from here on.
INLINE void finish(floatV (*sum)[B], Reals bias, Reals residual, global real *y, int pixels, int y_pixel, int left,
                   float low, float high)
{
    EACH(b, B)
    {
        int rest = left - b * V;
        if (rest <= 0) return;
        floatV start = bias ? load_real(bias + b * V, rest) : (floatV)0.0f;
        EACH(p, P)
        {
            if (p < pixels) {
                int at = p * y_pixel + b * V;
                floatV value = sum[p][b] + start;
#if RAGGED
                if (residual) value += load_real(residual + at, rest);
                store_real(activate(value, low, high), y + at, rest);
#else
                if (residual) value += LOADV(residual, at);
                STOREV(activate(value, low, high), y, at);
#endif
            }
        }
    }
}

// inputs, outputs and panels are those of one group; w_image is from image to image, where each has its own weights. An
// item computes `tiles` tiles, one after the other.
kernel void conv(global const real *x, global const real *w, global const real *zeros, global const real *bias,
                 global const real *residual, global real *y, int x_at, int bias_at, int residual_at, int images,
                 int groups, int panels, int inputs, int outputs, int x_image, int x_pixel, int x_channel, int w_image,
                 int w_panel, int w_step, int y_pixel, int tiles, int h, int width, int out_h, int out_w, int kernel_h,
                 int kernel_w, int stride_h, int stride_w, int dilation_h, int dilation_w, int top, int left,
                 float low, float high)
{
    int begin = get_global_id(2 - PANEL) * P * tiles, oy = get_global_id(1), panel = get_global_id(PANEL);
    if (begin >= out_w || oy >= out_h || panel >= images * groups * panels) return;
    int image = panel / (groups * panels);
    panel -= image * groups * panels;
    int group = panel / panels, first = (panel - group * panels) * B * V, channel = group * outputs + first;
    int iy = oy * stride_h - top, tap = inputs * w_step;
    x += x_at + (size_t)image * x_image + group * inputs * x_channel;
    w += (size_t)image * w_image + (size_t)panel * w_panel;
    if (bias) bias += bias_at + channel;
    size_t row_at = ((size_t)image * out_h + oy) * out_w * y_pixel + channel;
    y += row_at;
    if (residual) residual += residual_at + row_at;
#if PLAIN_X
    int runs = inputs, count = kernel_w, x_run = x_channel, w_run = w_step, x_next = dilation_w, w_next = tap;
#else
    bool whole = dilation_w == 1 && inputs == x_pixel;  // the channels of neighbouring taps follow one another
    int runs = whole ? 1 : kernel_w, count = whole ? kernel_w * inputs : inputs, x_run = dilation_w * x_pixel,
        w_run = tap, x_next = 1, w_next = w_step;
#endif

    for (int ox = begin; ox < min(begin + P * tiles, out_w); ox += P) {
        floatV sum[P][B];
        EACH(p, P) EACH(b, B) sum[p][b] = 0.0f;
        int ix = ox * stride_w - left;
        bool inside = ix >= 0 && ix + (P - 1) * stride_w + (kernel_w - 1) * dilation_w < width;
        for (int ky = 0; ky < kernel_h; ++ky) {
            int at = iy + ky * dilation_h;
            if (at < 0 || at >= h) continue;
            Reals row = x + at * width * x_pixel, taps = w + ky * kernel_w * tap;
            if (inside) {
                for (int run = 0; run < runs; ++run)
                    multiply(sum, row + ix * x_pixel + run * x_run, taps + run * w_run, count, x_next, w_next,
                             stride_w * x_pixel);
            } else {
                for (int kx = 0; kx < kernel_w; ++kx)
                    multiply_edge(sum, row, taps + kx * tap, zeros, ix + kx * dilation_w, stride_w, width, inputs,
                                  x_pixel, x_channel, w_step);
            }
        }
        finish(sum, bias, residual ? residual + ox * y_pixel : residual, y + ox * y_pixel, out_w - ox, y_pixel,
               outputs - first, low, high);
    }
}

// Transposed: y[o, q] is the sum over taps k that meet it, x[c, (q + top - k * dilation) / stride], where that is whole.
// Pixels whose places leave the same rest when divided by the stride meet the same taps, so a tile has P of these.
kernel void deconv(global const real *x, global const real *w, global const real *zeros, global const real *bias,
                   global const real *residual, global real *y, int x_at, int bias_at, int residual_at, int images,
                   int groups, int panels, int inputs, int outputs, int x_image, int x_pixel, int x_channel,
                   int w_panel, int w_step, int y_pixel, int tiles, int h, int width, int out_h, int out_w,
                   int kernel_h, int kernel_w, int stride_h, int stride_w, int dilation_h, int dilation_w, int top,
                   int left, float low, float high)
{
    int item = get_global_id(2 - PANEL), oy = get_global_id(1), panel = get_global_id(PANEL);
    int long_tile = P * stride_w, begin = item / stride_w * tiles * long_tile + item % stride_w;
    if (begin >= out_w || oy >= out_h || panel >= images * groups * panels) return;
    int image = panel / (groups * panels);
    panel -= image * groups * panels;
    int group = panel / panels, first = (panel - group * panels) * B * V, channel = group * outputs + first;
    x += x_at + (size_t)image * x_image + group * inputs * x_channel;
    w += (size_t)panel * w_panel;
    if (bias) bias += bias_at + channel;
    size_t row_at = ((size_t)image * out_h + oy) * out_w * y_pixel + channel;
    y += row_at;
    if (residual) residual += residual_at + row_at;

    for (int ox = begin; ox < min(begin + tiles * long_tile, out_w); ox += long_tile) {
        floatV sum[P][B];
        EACH(p, P) EACH(b, B) sum[p][b] = 0.0f;
        for (int ky = 0; ky < kernel_h; ++ky) {
            int iy = oy + top - ky * dilation_h;
            if (iy < 0 || iy % stride_h || iy / stride_h >= h) continue;
            Reals row = x + iy / stride_h * width * x_pixel;
            for (int kx = 0; kx < kernel_w; ++kx) {
                int ix = ox + left - kx * dilation_w;
                if (ix % stride_w) continue;
                ix /= stride_w;
                Reals taps = w + (ky * kernel_w + kx) * inputs * w_step;
                if (ix >= 0 && ix + P <= width)
                    multiply(sum, row + ix * x_pixel, taps, inputs, x_channel, w_step, x_pixel);
                else
                    multiply_edge(sum, row, taps, zeros, ix, 1, width, inputs, x_pixel, x_channel, w_step);
            }
        }
        finish(sum, bias, residual ? residual + ox * y_pixel : residual, y + ox * y_pixel, up(out_w - ox, stride_w),
               y_pixel * stride_w, outputs - first, low, high);
    }
}

// Transposed with a stride as large as the kernel: every pixel of x becomes a patch of y, which is plain [images, outputs,
// h * kernel_h, width * kernel_w]. Columns of the product are (output, ky, kx), so vectors are full even for one output.
kernel void deconv_patches(global const real *x, global const real *w, global const real *zeros,
                           global const real *bias, global real *y, int x_at, int bias_at, int images, int inputs,
                           int outputs, int x_pixel, int w_panel, int w_step, int h, int width, int kernel_h,
                           int kernel_w, float low, float high)
{
    int ix = get_global_id(2 - PANEL) * P, iy = get_global_id(1), panel = get_global_id(PANEL), first = panel * B * V;
    int taps = kernel_h * kernel_w, columns = outputs * taps, out_w = width * kernel_w;
    if (ix >= width || iy >= images * h || first >= columns) return;
    Reals row = x + x_at + (size_t)iy * width * x_pixel;
    w += (size_t)panel * w_panel;
    floatV sum[P][B];
    EACH(p, P) EACH(b, B) sum[p][b] = 0.0f;
    if (ix + P <= width)
        multiply(sum, row + ix * x_pixel, w, inputs, 1, w_step, x_pixel);
    else
        multiply_edge(sum, row, w, zeros, ix, 1, width, inputs, x_pixel, 1, w_step);

    float start[B * V], found[P][B * V];
    for (int i = 0; i < B * V; ++i) start[i] = bias && first + i < columns ? LOAD(bias, bias_at + (first + i) / taps) : 0;
    EACH(p, P)
    EACH(b, B)
    {
        JOIN(vstore, V)(activate(sum[p][b] + JOIN(vload, V)(b, start), low, high), b, found[p]);
    }
    int image = iy / h;
    for (int i = 0; i < min(B * V, columns - first); ++i) {
        int o = (first + i) / taps, ky = (first + i) % taps / kernel_w, kx = (first + i) % kernel_w;
        size_t line = ((size_t)(image * outputs + o) * h + iy - image * h) * kernel_h + ky;
        for (int p = 0; p < min(P, width - ix); ++p) STORE(found[p][i], y, line * out_w + (ix + p) * kernel_w + kx);
    }
}

// Weights w[group][output][input][tap], at strides, as the kernels above take them; zeros where there is no output.
kernel void conv_pack(global const real *w, global real *y, int w_at, int groups, int panels, int inputs, int outputs,
                      int taps, int w_group, int w_output, int w_input, int y_panel, int y_step)
{
    int lane = get_global_id(0), c = get_global_id(1) % inputs, tap = get_global_id(1) / inputs;
    int panel = get_global_id(2), o = panel % panels * B * V + lane;
    if (lane >= B * V || tap >= taps || panel >= groups * panels) return;
    size_t from = (size_t)w_at + (size_t)(panel / panels) * w_group + (size_t)o * w_output + (size_t)c * w_input + tap;
    size_t to = (size_t)panel * y_panel + (size_t)(tap * inputs + c) * y_step + lane;
    STORE(o < outputs ? LOAD(w, from) : 0.0f, y, to);
}
