// Winograd's algorithm for convolutions of 3x3 and stride 1, around a product of matrices (`conv`):
// y = A^T [(G w G^T) (B^T d B)] A for tiles of T x T pixels of the result (runtime_ref/winograd.py).
//
// The two transforms work on V channels of one tile per item. INTO(y, x) makes S = T + 2 numbers y[0] ... of S numbers x,
// by the rows of B^T; BACK(y, x) makes T numbers of S, by those of A^T. A launch has `count` tiles from the tile `begin`
// of all images on; transformed tiles lie as [S * S][count][channels].

#define S (T + 2)

// Tiles of x, with zeros around it.
kernel void winograd_into(global const real *x, global real *y, int x_at, int images, int pitch, int h, int width,
                          int top, int left, int rows, int columns, int begin, int count)
{
    int c = get_global_id(0) * V, at = get_global_id(1), tile = begin + at;
    if (c >= pitch || at >= count || tile >= images * rows * columns) return;
    int image = tile / (rows * columns), place = tile % (rows * columns);
    int iy = place / columns * T - top, ix = place % columns * T - left;
    x += x_at + (size_t)image * h * width * pitch + c;
    y += (size_t)at * pitch + c;

    floatV half_way[S][S];
    EACH(j, S)
    {
        floatV from[S], to[S];
        EACH(i, S)
        {
            bool inside = iy + i >= 0 && iy + i < h && ix + j >= 0 && ix + j < width;
            from[i] = inside ? LOADV(x, ((iy + i) * width + ix + j) * pitch) : (floatV)0.0f;
        }
        INTO(to, from)
        EACH(i, S) half_way[i][j] = to[i];
    }
    EACH(i, S)
    {
        floatV to[S];
        INTO(to, half_way[i])
        EACH(j, S) STOREV(to[j], y, (size_t)(i * S + j) * count * pitch);
    }
}

// The result, with bias, residual and activation, of products x.
kernel void winograd_back(global const real *x, global const real *bias, global const real *residual, global real *y,
                          int bias_at, int residual_at, int images, int outputs, int pitch, int out_h, int out_w,
                          int rows, int columns, int begin, int count, float low, float high)
{
    int c = get_global_id(0) * V, at = get_global_id(1), tile = begin + at;
    if (c >= pitch || at >= count || tile >= images * rows * columns) return;
    int image = tile / (rows * columns), place = tile % (rows * columns);
    int oy = place / columns * T, ox = place % columns * T;
    x += (size_t)at * pitch + c;
    size_t first = (((size_t)image * out_h + oy) * out_w + ox) * pitch + c;
    y += first;
    if (residual) residual += residual_at + first;
    floatV start = bias ? load_real(bias + bias_at + c, outputs - c) : (floatV)0.0f;

    floatV half_way[T][S];
    EACH(j, S)
    {
        floatV from[S], to[T];
        EACH(i, S) from[i] = LOADV(x, (size_t)(i * S + j) * count * pitch);
        BACK(to, from)
        EACH(i, T) half_way[i][j] = to[i];
    }
    EACH(i, T)
    {
        floatV to[T];
        BACK(to, half_way[i])
        EACH(j, T)
        {
            if (oy + i < out_h && ox + j < out_w) {
                int next = (i * out_w + j) * pitch;
                floatV value = to[j] + start;
                if (residual) value += LOADV(residual, next);
                STOREV(activate(value, low, high), y, next);
            }
        }
    }
}
