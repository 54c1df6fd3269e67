// Matrix products with weights that are integer codes: y[m, o] = activation(sum over c of x[m, c] w[o, c] + bias[o] +
// residual[m, o]), with w = scale code + offset, a scale and (maybe) an offset for each output and block of columns.
//
// Codes lie in panels of 2 V outputs: [panel][column][2 V] signed bytes, or, with BITS 4, [panel][column][V] bytes, the low
// half of each for output j, less 8, and the high one for output V + j. Scales and offsets lie as [panel][block][2 V].
// coded_few is for few rows, where reading codes is what takes time: products with codes are summed up for a block, and
// then scaled. coded_many decodes DEPTH columns of a panel at a time, for up to TILES tiles of P rows.

#ifndef P
#define P 1
#endif
#ifndef BITS
#define BITS 8
#endif
#define B 2
#define TILES 8
#define DEPTH 64

// The codes of column c of a panel.
static void decoded(floatV *w, global const char *codes, int c)
{
#if BITS == 4
    JOIN(uchar, V) pairs = JOIN(vload, V)(c, (global const uchar *)codes);
    w[0] = FLOATV(pairs & (uchar)15) - 8.0f;
    w[1] = FLOATV(pairs >> (uchar)4) - 8.0f;
#else
    EACH(b, B) w[b] = FLOATV(JOIN(vload, V)(c * B + b, codes));
#endif
}

// P rows from `row` on, of which those beyond m are not stored, of the outputs from `column` on.
static void finish(floatV (*sum)[B], global const real *bias, global const real *residual, global real *y, int row,
                   int column, int m, int n, int y_row, float low, float high)
{
    EACH(b, B)
    {
        int at = column + b * V, left = n - at;
        if (left <= 0) return;
        floatV start = bias ? load_real(bias + at, left) : (floatV)0.0f;
        for (int p = 0; p < min(P, m - row); ++p) {
            size_t to = (size_t)(row + p) * y_row + at;
            floatV value = sum[p][b] + start;
            if (residual) value += load_real(residual + to, left);
            store_real(activate(value, low, high), y + to, left);
        }
    }
}

kernel void coded_few(global const real *x, global const char *codes, global const float *scales,
                      global const float *offsets, global const real *bias, global const real *residual,
                      global real *y, int x_at, int bias_at, int residual_at, int m, int n, int k, int block, int x_row,
                      int y_row, float low, float high)
{
    int panel = get_global_id(0), row = get_global_id(1) * P, column = panel * B * V;
    if (column >= n || row >= m) return;
    codes += (size_t)panel * k * (B * V * BITS / 8);
    global const real *from[P];
    EACH(p, P) from[p] = x + x_at + (size_t)min(row + p, m - 1) * x_row;
    floatV sum[P][B];
    EACH(p, P) EACH(b, B) sum[p][b] = 0.0f;
    for (int first = 0, i = panel * (k / block); first < k; first += block, ++i) {
        floatV inner[P][B];
        float total[P];
        EACH(p, P)
        {
            total[p] = 0.0f;
            EACH(b, B) inner[p][b] = 0.0f;
        }
        for (int c = first; c < first + block; ++c) {
            floatV w[B];
            decoded(w, codes, c);
            EACH(p, P)
            {
                float number = LOAD(from[p], c);
                total[p] += number;
                EACH(b, B) inner[p][b] += number * w[b];
            }
        }
        EACH(b, B)
        {
            floatV scale = JOIN(vload, V)(i * B + b, scales), offset = 0.0f;
            EACH(p, P) sum[p][b] += scale * inner[p][b];
            if (offsets) {
                offset = JOIN(vload, V)(i * B + b, offsets);
                EACH(p, P) sum[p][b] += offset * total[p];
            }
        }
    }
    finish(sum, bias ? bias + bias_at : bias, residual ? residual + residual_at : residual, y, row, column, m, n, y_row,
           low, high);
}

kernel void coded_many(global const real *x, global const char *codes, global const float *scales,
                       global const float *offsets, global const real *bias, global const real *residual,
                       global real *y, int x_at, int bias_at, int residual_at, int m, int n, int k, int block, int x_row,
                       int y_row, int tiles, float low, float high)
{
    int row = get_global_id(0) * P * tiles, panel = get_global_id(1), column = panel * B * V;
    if (column >= n || row >= m) return;
    codes += (size_t)panel * k * (B * V * BITS / 8);
    x += x_at;
    tiles = min(tiles, up(m - row, P));
    floatV sums[TILES][P][B];
    for (int tile = 0; tile < tiles; ++tile) EACH(p, P) EACH(b, B) sums[tile][p][b] = 0.0f;
    floatV w[DEPTH][B];
    for (int first = 0, count; first < k; first += count) {
        int i = first / block;
        count = min(DEPTH, (i + 1) * block - first);
        i += panel * (k / block);
        floatV scale[B], offset[B];
        EACH(b, B)
        {
            scale[b] = JOIN(vload, V)(i * B + b, scales);
            offset[b] = offsets ? JOIN(vload, V)(i * B + b, offsets) : (floatV)0.0f;
        }
        for (int c = 0; c < count; ++c) {
            floatV code[B];
            decoded(code, codes, first + c);
            EACH(b, B) w[c][b] = code[b] * scale[b] + offset[b];
        }
        for (int tile = 0; tile < tiles; ++tile) {
            global const real *from[P];
            floatV sum[P][B];
            EACH(p, P)
            {
                from[p] = x + (size_t)min(row + tile * P + p, m - 1) * x_row + first;
                EACH(b, B) sum[p][b] = sums[tile][p][b];
            }
            for (int c = 0; c < count; ++c) {
                EACH(p, P)
                {
                    float number = LOAD(from[p], c);
                    EACH(b, B) sum[p][b] += number * w[c][b];
                }
            }
            EACH(p, P) EACH(b, B) sums[tile][p][b] = sum[p][b];
        }
    }
    for (int tile = 0; tile < tiles; ++tile)
        finish(sums[tile], bias ? bias + bias_at : bias, residual ? residual + residual_at : residual, y, row + tile * P,
               column, m, n, y_row, low, high);
}
