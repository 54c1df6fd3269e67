// Normalisation over an axis of n elements: (x - mean) / sqrt(variance + epsilon), times gamma, plus beta; with RMS nothing
// is subtracted. The mean is found first and then the variance of what is left, in blocks of 64 vectors. With ADDEND it is
// added to x, and the sum is a result as well. AFFINE: gamma and beta are there.
//
// normalize_rows     an item, or as `normalize_groups` a work-group, takes a row; rows lie `pitch` elements apart
// normalize_columns  an item takes V columns of x [outer, n, inner]

#ifndef GROUP
#define GROUP 64  // items that take a row together
#endif
#define BLOCK 64

static floatV affine(floatV v, global const real *gamma, global const real *beta, int i, int left)
{
#ifdef AFFINE
    return v * load_real(gamma + i, left) + load_real(beta + i, left);
#else
    return v;
#endif
}

static float row_mean(global const real *x, int n)
{
    floatV all = 0.0f;
    for (int first = 0; first < n; first += BLOCK * V) {
        floatV block = 0.0f;
        for (int i = first; i < min(first + BLOCK * V, n); i += V) block += load_real(x + i, n - i);
        all += block;
    }
    return lanes_sum(all) / (float)n;
}

static float row_power(global const real *x, int n, float mean)
{
    floatV all = 0.0f;
    int whole = n / V * V;
    for (int first = 0; first < whole; first += BLOCK * V) {
        floatV block = 0.0f;
        for (int i = first; i < min(first + BLOCK * V, whole); i += V) {
            floatV v = LOADV(x, i) - mean;
            block += v * v;
        }
        all += block;
    }
    float total = lanes_sum(all);
    for (int i = whole; i < n; ++i) total += (LOAD(x, i) - mean) * (LOAD(x, i) - mean);
    return total / (float)n;
}

kernel void normalize_rows(global const real *x, global const real *addend, global const real *gamma,
                           global const real *beta, global real *total, global real *y, int rows, int n, int pitch,
                           float epsilon)
{
    int row = get_global_id(0);
    if (row >= rows) return;
    size_t begin = (size_t)row * pitch;
    x += begin;
    y += begin;
#ifdef ADDEND
    addend += begin;
    total += begin;
    for (int i = 0; i < n; i += V) store_real(load_real(x + i, n - i) + load_real(addend + i, n - i), total + i, n - i);
    x = total;
#endif
#ifdef RMS
    float mean = 0.0f;
#else
    float mean = row_mean(x, n);
#endif
    float factor = 1.0f / sqrt(row_power(x, n, mean) + epsilon);
    for (int i = 0; i < n; i += V)
        store_real(affine((load_real(x + i, n - i) - mean) * factor, gamma, beta, i, n - i), y + i, n - i);
}

kernel void normalize_columns(global const real *x, global const real *gamma, global const real *beta, global real *y,
                              int outer, int n, int inner, float epsilon)
{
    int column = get_global_id(0) * V, o = get_global_id(1), left = inner - column;
    if (left <= 0 || o >= outer) return;
    size_t begin = (size_t)o * n * inner + column;
    x += begin;
    y += begin;
    floatV mean = 0.0f, power = 0.0f;
#ifndef RMS
    for (int first = 0; first < n; first += BLOCK) {
        floatV block = 0.0f;
        for (int i = first; i < min(first + BLOCK, n); ++i) block += load_real(x + i * inner, left);
        mean += block;
    }
    mean /= (float)n;
#endif
    for (int first = 0; first < n; first += BLOCK) {
        floatV block = 0.0f;
        for (int i = first; i < min(first + BLOCK, n); ++i) {
            floatV v = load_real(x + i * inner, left) - mean;
            block += v * v;
        }
        power += block;
    }
    floatV factor = 1.0f / sqrt(power / (float)n + epsilon);
    for (int i = 0; i < n; ++i) {
        floatV v = (load_real(x + i * inner, left) - mean) * factor;
#ifdef AFFINE
        v = v * LOAD(gamma, i) + LOAD(beta, i);
#endif
        store_real(v, y + i * inner, left);
    }
}

static float group_sum(float x, local float *shared)
{
    int me = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    shared[me] = x;
    for (int half_group = GROUP / 2; half_group; half_group /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_group) shared[me] += shared[me + half_group];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return shared[0];
}

kernel void normalize_groups(global const real *x, global const real *addend, global const real *gamma,
                             global const real *beta, global real *total, global real *y, int rows, int n, int pitch,
                             float epsilon)
{
    local float shared[GROUP];
    int me = get_local_id(0), row = get_group_id(0);
    size_t begin = (size_t)row * pitch;
    float mean = 0.0f, power = 0.0f;
#ifdef ADDEND
#define VALUE(i) (LOAD(x, begin + (i)) + LOAD(addend, begin + (i)))
    for (int i = me; i < n; i += GROUP) STORE(VALUE(i), total, begin + i);
#else
#define VALUE(i) LOAD(x, begin + (i))
#endif
#ifndef RMS
    for (int i = me; i < n; i += GROUP) mean += VALUE(i);
    mean = group_sum(mean, shared) / (float)n;
#endif
    for (int i = me; i < n; i += GROUP) power += (VALUE(i) - mean) * (VALUE(i) - mean);
    float factor = 1.0f / sqrt(group_sum(power, shared) / (float)n + epsilon);
    for (int i = me; i < n; i += GROUP) {
        float v = (VALUE(i) - mean) * factor;
#ifdef AFFINE
        v = v * LOAD(gamma, i) + LOAD(beta, i);
#endif
        STORE(v, y, begin + i);
    }
}
