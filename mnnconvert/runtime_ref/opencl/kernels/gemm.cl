// Matrix products y = activation(a b + bias + residual), [m, k] by [k, n], for a batch of outer * inner places.
//
// An item computes P rows of y for B vectors of columns in P * B registers. In every step along k it loads B vectors of b,
// and multiplies the number of each row of a with them. Constant b lies in panels: [place][panel][k][B * V], so that an
// item reads one stretch of memory, which stays in the cache while items of other rows read it. Otherwise (PANELS 0) the
// columns of b are contiguous, b_row elements from row to row. a has any strides. Rows beyond m are computed as the last
// one, and not stored.
//
// gemm_local is for devices with fast local memory: a group computes R * P rows by C * B vectors of columns, and its items
// bring the next K numbers of each row and column into local memory together. gemm_image reads b from an image: a texel
// holds 4 columns, a line of texels one step along k.

#ifndef P
#define P 1
#endif
#ifndef B
#define B 1
#endif
#ifndef PANELS
#define PANELS 1
#endif
#ifndef ROWS
#define ROWS 0
#endif

// What a place of the batch adds to where a tensor begins.
static size_t place(int batch, int inner, int outer_step, int inner_step)
{
    return (size_t)(batch / inner) * outer_step + (size_t)(batch % inner) * inner_step;
}

// Bias, residual and activation, for P rows from `row` and B vectors of columns from `column`.
static void finish_rows(floatV (*sum)[B], global const real *bias, global const real *residual, global real *y, int row,
                        int column, int m, int n, int y_row, float low, float high)
{
    EACH(b, B)
    {
        int at = column + b * V, left = n - at;
        if (left <= 0) return;
        floatV start = bias ? load_real(bias + at, left) : (floatV)0.0f;
        EACH(p, P)
        {
            if (row + p < m) {
                size_t to = (size_t)(row + p) * y_row + at;
                floatV value = sum[p][b] + start;
                if (residual) value += load_real(residual + to, left);
                store_real(activate(value, low, high), y + to, left);
            }
        }
    }
}

#ifdef IMAGE
#define RIGHT read_only image2d_t
constant sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
#define TEXEL(i) read_imagef(b, nearest, (int2)(column / 4 + i, line))
static floatV texels(read_only image2d_t b, int column, int line)
{
#if V == 16
    return (float16)(TEXEL(0), TEXEL(1), TEXEL(2), TEXEL(3));
#elif V == 8
    return (float8)(TEXEL(0), TEXEL(1));
#else
    return TEXEL(0);
#endif
}
#else
#define RIGHT global const real *
#endif

// One step along k: `next` gives vector i of b, and x of each row is `at` elements on.
#define STEP(next, at)                                                                                                 \
    {                                                                                                                  \
        floatV taps[B];                                                                                                \
        EACH(i, B) taps[i] = next;                                                                                     \
        EACH(p, P)                                                                                                     \
        {                                                                                                              \
            float x = LOAD(from[p], at);                                                                               \
            EACH(i, B) sum[p][i] += x * taps[i];                                                                       \
        }                                                                                                              \
    }

// Rows of tiles go along dimension ROWS of the items, panels of columns along 1 - ROWS.
kernel void gemm(global const real *a, RIGHT b, global const real *bias, global const real *residual, global real *y,
                 int a_at, int b_at, int bias_at, int residual_at, int y_at, int m, int n, int k, int outer, int inner,
                 int a_row, int a_column, int b_row, int y_row, int a_outer, int a_inner, int b_outer, int b_inner,
                 int y_outer, int y_inner, float low, float high)
{
    int row = get_global_id(ROWS) * P, column = get_global_id(1 - ROWS) * B * V, batch = get_global_id(2);
    if (row >= m || column >= n || batch >= outer * inner) return;
    a += a_at + place(batch, inner, a_outer, a_inner);
    global const real *from[P];
    EACH(p, P) from[p] = a + (size_t)min(row + p, m - 1) * a_row;
    floatV sum[P][B];
    EACH(p, P) EACH(i, B) sum[p][i] = 0.0f;

#ifdef IMAGE
    int line = place(batch, inner, b_outer, b_inner);
    for (int c = 0; c < k; ++c) STEP(texels(b, column + i * V, line + c), c * a_column);
#else
    b += b_at + place(batch, inner, b_outer, b_inner);
#if PANELS
    b += (size_t)column * k;
    for (int c = 0; c < k; ++c, b += B * V) STEP(LOADV(b, i * V), c * a_column);
#else
    b += column;
    if (column + B * V <= n) {
        for (int c = 0; c < k; ++c, b += b_row) STEP(LOADV(b, i * V), c * a_column);
    } else {
        for (int c = 0; c < k; ++c, b += b_row) STEP(load_real(b + i * V, n - column - i * V), c * a_column);
    }
#endif
#endif
    size_t to = place(batch, inner, y_outer, y_inner);
    finish_rows(sum, bias ? bias + bias_at : bias, residual ? residual + residual_at + to : residual, y + y_at + to, row,
                column, m, n, y_row, low, high);
}

#ifdef GROUP_ROWS
// Groups of GROUP_COLUMNS x GROUP_ROWS items; b lies in panels. All items take part until the last barrier.
#define TILE_ROWS (GROUP_ROWS * P)
#define TILE_COLUMNS (GROUP_COLUMNS * B * V)
kernel void gemm_local(global const real *a, global const real *b, global const real *bias, global const real *residual,
                       global real *y, int a_at, int b_at, int bias_at, int residual_at, int y_at, int m, int n, int k,
                       int outer, int inner, int a_row, int a_column, int b_row, int y_row, int a_outer, int a_inner,
                       int b_outer, int b_inner, int y_outer, int y_inner, float low, float high)
{
    local float rows[TILE_ROWS][DEPTH];
    local float columns[DEPTH][TILE_COLUMNS];
    int x = get_local_id(0), z = get_local_id(1), item = z * GROUP_COLUMNS + x, batch = get_global_id(2);
    int row = get_group_id(1) * TILE_ROWS, column = get_group_id(0) * TILE_COLUMNS;
    a += a_at + place(batch, inner, a_outer, a_inner);
    b += b_at + place(batch, inner, b_outer, b_inner);
    floatV sum[P][B];
    EACH(p, P) EACH(i, B) sum[p][i] = 0.0f;

    for (int first = 0; first < k; first += DEPTH) {
        for (int i = item; i < TILE_ROWS * DEPTH; i += GROUP_ROWS * GROUP_COLUMNS) {
            int r = row + i / DEPTH, c = first + i % DEPTH;
            rows[i / DEPTH][i % DEPTH] = r < m && c < k ? LOAD(a, (size_t)r * a_row + (size_t)c * a_column) : 0.0f;
        }
        for (int i = item; i < DEPTH * TILE_COLUMNS; i += GROUP_ROWS * GROUP_COLUMNS) {
            int c = first + i / TILE_COLUMNS, q = column + i % TILE_COLUMNS, panel = q / (B * V);
            bool inside = c < k && q < up(n, B * V) * B * V;
            columns[i / TILE_COLUMNS][i % TILE_COLUMNS] =
                inside ? LOAD(b, ((size_t)panel * k + c) * B * V + q % (B * V)) : 0.0f;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int c = 0; c < DEPTH; ++c) {
            floatV taps[B];
            EACH(i, B) taps[i] = JOIN(vload, V)(0, &columns[c][(x * B + i) * V]);
            EACH(p, P) EACH(i, B) sum[p][i] += rows[z * P + p][c] * taps[i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    size_t to = place(batch, inner, y_outer, y_inner);
    finish_rows(sum, bias ? bias + bias_at : bias, residual ? residual + residual_at + to : residual, y + y_at + to,
                row + z * P, column + x * B * V, m, n, y_row, low, high);
}
#endif

// Matrices of any strides to panels of B * V columns, filled up with zeros: an item copies one row of a panel.
kernel void gemm_pack(global const real *b, global real *y, int b_at, int y_at, int n, int k, int places, int inner,
                      int b_row, int b_column, int b_outer, int b_inner)
{
    int c = get_global_id(0), panel = get_global_id(1), batch = get_global_id(2), panels = up(n, B * V);
    if (c >= k || panel >= panels || batch >= places) return;
    b += b_at + place(batch, inner, b_outer, b_inner) + (size_t)c * b_row;
    y += y_at + (((size_t)batch * panels + panel) * k + c) * B * V;
    for (int i = 0; i < B * V; ++i) {
        int column = panel * B * V + i;
        STORE(column < n ? LOAD(b, (size_t)column * b_column) : 0.0f, y, i);
    }
}
