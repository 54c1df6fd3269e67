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

// sum += the products of all input channels at one tap; x_channel elements lie from one to the next.
static void multiply(floatV (*sum)[B], Reals *from, const int *step, Reals w, int inputs, int w_step)
{
    for (int c = 0; c < inputs; ++c) {
        floatV taps[B];
        EACH(b, B) taps[b] = LOADV(w, b * V);
        w += w_step;
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
    }
}

// The P pixels at, at + stride ... of a row; those outside lie in `zeros`.
static void meet(Reals *from, int *step, Reals row, Reals zeros, int at, int stride, int width, int x_pixel,
                 int x_channel)
{
    EACH(p, P)
    {
        int column = at + p * stride;
        bool inside = column >= 0 && column < width;
        from[p] = inside ? row + column * x_pixel : zeros;
        step[p] = inside ? x_channel : 0;
    }
}

// Bias, residual and activation, to y and residual at the first of the P pixels, of which `pixels` are within the row;
// `left` channels are left from here on.
static void finish(floatV (*sum)[B], Reals bias, Reals residual, global real *y, int pixels, int y_pixel, int left,
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

// inputs, outputs and panels are those of one group; w_image is from image to image, where each has its own weights.
kernel void conv(global const real *x, global const real *w, global const real *zeros, global const real *bias,
                 global const real *residual, global real *y, int x_at, int bias_at, int residual_at, int images,
                 int groups, int panels, int inputs, int outputs, int x_image, int x_pixel, int x_channel, int w_image,
                 int w_panel, int w_step, int y_pixel, int h, int width, int out_h, int out_w, int kernel_h,
                 int kernel_w, int stride_h, int stride_w, int dilation_h, int dilation_w, int top, int left,
                 float low, float high)
{
    int ox = get_global_id(2 - PANEL) * P, oy = get_global_id(1), panel = get_global_id(PANEL);
    if (ox >= out_w || oy >= out_h || panel >= images * groups * panels) return;
    int image = panel / (groups * panels);
    panel -= image * groups * panels;
    int group = panel / panels, first = (panel - group * panels) * B * V;
    x += x_at + (size_t)image * x_image + group * inputs * x_channel;
    w += (size_t)image * w_image + (size_t)panel * w_panel;

    floatV sum[P][B];
    EACH(p, P) EACH(b, B) sum[p][b] = 0.0f;
    for (int ky = 0; ky < kernel_h; ++ky) {
        int iy = oy * stride_h - top + ky * dilation_h;
        if (iy < 0 || iy >= h) continue;
        for (int kx = 0; kx < kernel_w; ++kx) {
            Reals from[P];
            int step[P];
            meet(from, step, x + iy * width * x_pixel, zeros, ox * stride_w - left + kx * dilation_w, stride_w, width,
                 x_pixel, x_channel);
            multiply(sum, from, step, w + (size_t)(ky * kernel_w + kx) * inputs * w_step, inputs, w_step);
        }
    }
    int channel = group * outputs + first;
    size_t at = (((size_t)image * out_h + oy) * out_w + ox) * y_pixel + channel;
    finish(sum, bias ? bias + bias_at + channel : bias, residual ? residual + residual_at + at : residual, y + at,
           out_w - ox, y_pixel, outputs - first, low, high);
}

// Transposed: y[o, q] is the sum over taps k that meet it, x[c, (q + top - k * dilation) / stride], where that is whole.
// Pixels whose places leave the same rest when divided by the stride meet the same taps, so an item has P of these.
kernel void deconv(global const real *x, global const real *w, global const real *zeros, global const real *bias,
                   global const real *residual, global real *y, int x_at, int bias_at, int residual_at, int images,
                   int groups, int panels, int inputs, int outputs, int x_image, int x_pixel, int x_channel,
                   int w_panel, int w_step, int y_pixel, int h, int width, int out_h, int out_w, int kernel_h,
                   int kernel_w, int stride_h, int stride_w, int dilation_h, int dilation_w, int top, int left,
                   float low, float high)
{
    int tile = get_global_id(2 - PANEL), oy = get_global_id(1), panel = get_global_id(PANEL);
    int rest = tile % stride_w, ox = tile / stride_w * P * stride_w + rest;
    if (ox >= out_w || oy >= out_h || panel >= images * groups * panels) return;
    int image = panel / (groups * panels);
    panel -= image * groups * panels;
    int group = panel / panels, first = (panel - group * panels) * B * V;
    x += x_at + (size_t)image * x_image + group * inputs * x_channel;
    w += (size_t)panel * w_panel;

    floatV sum[P][B];
    EACH(p, P) EACH(b, B) sum[p][b] = 0.0f;
    for (int ky = 0; ky < kernel_h; ++ky) {
        int iy = oy + top - ky * dilation_h;
        if (iy < 0 || iy % stride_h || iy / stride_h >= h) continue;
        for (int kx = 0; kx < kernel_w; ++kx) {
            int ix = ox + left - kx * dilation_w;
            if (ix % stride_w) continue;
            Reals from[P];
            int step[P];
            meet(from, step, x + iy / stride_h * width * x_pixel, zeros, ix / stride_w, 1, width, x_pixel, x_channel);
            multiply(sum, from, step, w + (size_t)(ky * kernel_w + kx) * inputs * w_step, inputs, w_step);
        }
    }
    int channel = group * outputs + first;
    size_t at = (((size_t)image * out_h + oy) * out_w + ox) * y_pixel + channel;
    finish(sum, bias ? bias + bias_at + channel : bias, residual ? residual + residual_at + at : residual, y + at,
           up(out_w - ox, stride_w), y_pixel * stride_w, outputs - first, low, high);
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
