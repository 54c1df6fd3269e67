// Softmax over an axis of n elements: the maximum, exponentials and their sum, the division. NaN makes all of them NaN.
//
// softmax_rows     an item, or as `softmax_groups` a work-group, takes a row; rows lie `pitch` elements apart
// softmax_columns  an item takes V columns of x [outer, n, inner]

#ifndef GROUP
#define GROUP 64  // items that take a row together
#endif
static floatV most(floatV a, floatV b) { return b > a || b != b ? b : a; }

static float lanes_most(floatV x)
{
    float each[V], all = -INFINITY;
    JOIN(vstore, V)(x, 0, each);
    for (int i = 0; i < V; ++i) all = each[i] > all || each[i] != each[i] ? each[i] : all;
    return all;
}

// Behind `left` elements what is neutral for a maximum.
static floatV padded_part(global const real *p, int left)
{
    if (left >= V) return LOADV(p, 0);
    float x[V];
    for (int i = 0; i < V; ++i) x[i] = i < left ? LOAD(p, i) : -INFINITY;
    return JOIN(vload, V)(0, x);
}

// exp(x - largest), but 0 behind `left` elements.
static floatV power(global const real *p, float largest, int left)
{
    if (left >= V) return exp(LOADV(p, 0) - largest);
    float x[V];
    for (int i = 0; i < V; ++i) x[i] = i < left ? exp(LOAD(p, i) - largest) : 0.0f;
    return JOIN(vload, V)(0, x);
}

kernel void softmax_rows(global const real *x, global real *y, int rows, int n, int pitch)
{
    int row = get_global_id(0);
    if (row >= rows) return;
    x += (size_t)row * pitch;
    y += (size_t)row * pitch;
    floatV found = -INFINITY, sums = 0.0f;
    for (int i = 0; i < n; i += V) found = most(found, padded_part(x + i, n - i));
    float largest = lanes_most(found);
    for (int i = 0; i < n; i += V) {
        floatV e = power(x + i, largest, n - i);
        sums += e;
        store_real(e, y + i, n - i);
    }
    float total = lanes_sum(sums);
    for (int i = 0; i < n; i += V) store_real(load_real(y + i, n - i) / total, y + i, n - i);
}

kernel void softmax_columns(global const real *x, global real *y, int outer, int n, int inner)
{
    int column = get_global_id(0) * V, o = get_global_id(1), left = inner - column;
    if (left <= 0 || o >= outer) return;
    size_t begin = (size_t)o * n * inner + column;
    x += begin;
    y += begin;
    floatV largest = -INFINITY, total = 0.0f;
    for (int i = 0; i < n; ++i) largest = most(largest, load_real(x + i * inner, left));
    for (int i = 0; i < n; ++i) {
        floatV e = exp(load_real(x + i * inner, left) - largest);
        total += e;
        store_real(e, y + i * inner, left);
    }
    for (int i = 0; i < n; ++i) store_real(load_real(y + i * inner, left) / total, y + i * inner, left);
}

kernel void softmax_groups(global const real *x, global real *y, int rows, int n, int pitch)
{
    local float shared[GROUP];
    int me = get_local_id(0), row = get_group_id(0);
    x += (size_t)row * pitch;
    y += (size_t)row * pitch;
    float found = -INFINITY, total = 0.0f;
    for (int i = me; row < rows && i < n; i += GROUP) {
        float v = LOAD(x, i);
        found = v > found || v != v ? v : found;
    }
    shared[me] = found;
    for (int half_group = GROUP / 2; half_group; half_group /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_group) {
            float other = shared[me + half_group];
            if (other > shared[me] || other != other) shared[me] = other;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float largest = shared[0];
    for (int i = me; row < rows && i < n; i += GROUP) total += exp(LOAD(x, i) - largest);
    barrier(CLK_LOCAL_MEM_FENCE);
    shared[me] = total;
    for (int half_group = GROUP / 2; half_group; half_group /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_group) shared[me] += shared[me + half_group];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    total = shared[0];
    for (int i = me; row < rows && i < n; i += GROUP) STORE(exp(LOAD(x, i) - largest) / total, y, i);
}
