// Reductions over one axis of x [outer, n, inner] -> y [outer, parts, inner]: an item folds `chunk` elements of the axis,
// and a further launch joins the parts. Blocks of 64 vectors are folded one after the other, then their results, so that
// sums stay exact. reduce_rows (inner = 1): vectors lie along the axis, rows lie `pitch` elements apart. reduce_columns:
// along `inner`.
//
// OPERATION, and INTEGERS for int32 that wrap: see opencl/lowering/reduction.py. The result is divided by `divisor`.

#ifndef OPERATION
#define OPERATION 0
#endif
#define BLOCK 64

#ifdef INTEGERS
typedef int element;
typedef int number;
typedef intV vector;
#define GET(p, i) ((p)[i])
#define SET(v, p, i) ((p)[i] = (v))
#define GETV(p, i) JOIN(vload, V)(0, (p) + (i))
#define SETV(v, p, i) JOIN(vstore, V)((v), 0, (p) + (i))
#define IS_NAN(x) ((x) ^ (x))
#define LOWEST INT_MIN
#define HIGHEST INT_MAX
#define BITSV(x) JOIN(as_uint, V)(x)
#define SUM(a, b) JOIN(as_int, V)(BITSV(a) + BITSV(b))
#define PRODUCT(a, b) JOIN(as_int, V)(BITSV(a) * BITSV(b))
#define SIZE(x) ((x) < 0 ? JOIN(as_int, V)(0 - BITSV(x)) : (x))
#else
typedef real element;
typedef float number;
typedef floatV vector;
#define GET(p, i) LOAD(p, i)
#define SET(v, p, i) STORE(v, p, i)
#define GETV(p, i) LOADV(p, i)
#define SETV(v, p, i) STOREV(v, p, i)
#define IS_NAN(x) ((x) != (x))
#define LOWEST (-INFINITY)
#define HIGHEST INFINITY
#define SUM(a, b) ((a) + (b))
#define PRODUCT(a, b) ((a) * (b))
#define SIZE(x) fabs(x)
#endif

// `FIRST` is neutral, `take` adds an element, `joined` two results. NaN stays.
static vector largest(vector a, vector b) { return b > a || IS_NAN(b) ? b : a; }
static vector smallest(vector a, vector b) { return b < a || IS_NAN(b) ? b : a; }
#define ONE(x) ((x) != (vector)0 ? (vector)1 : (vector)0)

#if OPERATION <= 2
#define FIRST 0
static vector joined(vector a, vector b) { return SUM(a, b); }
#elif OPERATION == 3
#define FIRST 1
static vector joined(vector a, vector b) { return PRODUCT(a, b); }
#elif OPERATION == 4
#define FIRST LOWEST
static vector joined(vector a, vector b) { return largest(a, b); }
#elif OPERATION == 5
#define FIRST HIGHEST
static vector joined(vector a, vector b) { return smallest(a, b); }
#elif OPERATION == 6
#define FIRST 0
static vector joined(vector a, vector b) { return largest(a, b); }
#else
#define FIRST 1
static vector joined(vector a, vector b) { return smallest(a, b); }
#endif

static vector take(vector all, vector x)
{
#if OPERATION == 1
    x = SIZE(x);
#elif OPERATION == 2
    x = PRODUCT(x, x);
#elif OPERATION >= 6
    x = ONE(x);
#endif
    return joined(all, x);
}

// A vector of which `left` elements are there: the others are `rest`.
static vector get_part(global const element *p, int left, number rest)
{
    if (left >= V) return GETV(p, 0);
    number x[V];
    for (int i = 0; i < V; ++i) x[i] = i < left ? GET(p, i) : rest;
    return JOIN(vload, V)(0, x);
}

static void set_part(vector v, global element *p, int left)
{
    number y[V];
    JOIN(vstore, V)(v, 0, y);
    for (int i = 0; i < min(left, V); ++i) SET(y[i], p, i);
}

static vector divided(vector x, int divisor)
{
#ifdef INTEGERS
    return divisor == 1 ? x : x / divisor;
#else
    return divisor == 1 ? x : x / (float)divisor;
#endif
}

kernel void reduce_rows(global const element *x, global element *y, int rows, int n, int pitch, int chunk, int parts,
                        int divisor)
{
    int part = get_global_id(0), row = get_global_id(1);
    if (part >= parts || row >= rows) return;
    x += (size_t)row * pitch;
    vector all = FIRST;
    int last = min((part + 1) * chunk, n);
    for (int first = part * chunk; first < last; first += BLOCK * V) {
        vector even = FIRST, odd = FIRST;
        int end = min(first + BLOCK * V, last), i = first;
        for (; i + 2 * V <= end; i += 2 * V) {
            even = take(even, GETV(x, i));
            odd = take(odd, GETV(x, i + V));
        }
        for (; i + V <= end; i += V) even = take(even, GETV(x, i));
        all = joined(all, joined(even, odd));
        if (i < end) {
            vector tail = take(FIRST, get_part(x + i, end - i, FIRST));
            number each[V];
            JOIN(vstore, V)(tail, 0, each);
            for (int k = end - i; k < V; ++k) each[k] = FIRST;
            all = joined(all, JOIN(vload, V)(0, each));
        }
    }
    for (int half_lanes = V / 2; half_lanes; half_lanes /= 2) {
        number each[2 * V];
        JOIN(vstore, V)(all, 0, each);
        for (int k = 0; k < V; ++k) each[V + k] = k < half_lanes ? each[k + half_lanes] : FIRST;
        all = joined(JOIN(vload, V)(0, each), JOIN(vload, V)(1, each));
    }
    set_part(divided(all, divisor), y + (size_t)row * parts + part, 1);
}

kernel void reduce_columns(global const element *x, global element *y, int outer, int n, int inner, int chunk,
                           int parts, int divisor)
{
    int column = get_global_id(0) * V, part = get_global_id(1), o = get_global_id(2);
    if (column >= inner || part >= parts || o >= outer) return;
    x += (size_t)o * n * inner + column;
    vector all = FIRST;
    int last = min((part + 1) * chunk, n), left = inner - column;
    for (int first = part * chunk; first < last; first += BLOCK) {
        vector block = FIRST;
        int end = min(first + BLOCK, last);
        if (left >= V)
            for (int i = first; i < end; ++i) block = take(block, GETV(x, i * inner));
        else
            for (int i = first; i < end; ++i) block = take(block, get_part(x + i * inner, left, 0));
        all = joined(all, block);
    }
    set_part(divided(all, divisor), y + ((size_t)o * parts + part) * inner + column, left);
}

// The place of the first largest (LARGEST) or smallest element along the axis; a NaN counts as the extreme.
kernel void find_extreme(global const element *x, global int *y, int outer, int n, int inner)
{
    int column = get_global_id(0), o = get_global_id(1), at = 0;
    if (column >= inner || o >= outer) return;
    x += (size_t)o * n * inner + column;
    number best = GET(x, 0);
    for (int i = 1; i < n && !IS_NAN(best); ++i) {
        number v = GET(x, i * inner);
#ifdef LARGEST
        if (v > best || IS_NAN(v)) {
#else
        if (v < best || IS_NAN(v)) {
#endif
            best = v;
            at = i;
        }
    }
    y[(size_t)o * inner + column] = at;
}

// Running sums along the axis, or products (PRODUCTS): without the element itself where `exclusive`, from the end where
// `reverse`. Integers wrap.
kernel void scan(global const element *x, global element *y, int outer, int n, int inner, int exclusive, int reverse)
{
    int column = get_global_id(0), o = get_global_id(1);
    if (column >= inner || o >= outer) return;
    size_t begin = (size_t)o * n * inner + column;
#ifdef PRODUCTS
    number total = 1;
#else
    number total = 0;
#endif
    for (int i = 0; i < n; ++i) {
        size_t at = begin + (size_t)(reverse ? n - 1 - i : i) * inner;
        number v = GET(x, at);
        if (exclusive) SET(total, y, at);
#if defined(PRODUCTS) && defined(INTEGERS)
        total = as_int(as_uint(total) * as_uint(v));
#elif defined(PRODUCTS)
        total *= v;
#elif defined(INTEGERS)
        total = as_int(as_uint(total) + as_uint(v));
#else
        total = i == 0 ? v : total + v;
#endif
        if (!exclusive) SET(total, y, at);
    }
}
