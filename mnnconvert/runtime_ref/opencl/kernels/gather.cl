// Picking elements of type T by index, and putting them where indices say.
//
// Indices are int32; a negative one counts from the end of its axis. Beyond the axis it means its first element, and
// `fault`, where it is 0, becomes `number`: the host ends the run. Of several updates of one element the last in row
// order stays, or all are combined in that order: those that may meet are the work of one item.
//
// REDUCTION: what scatters do (opencl/lowering/gather.py). FLOATS: their elements are `real`, else int.

#ifndef T
#define T uint
#endif
#define T8 JOIN(T, 8)

static int place(int index, int size, volatile global int *fault, int number)
{
    int i = index < 0 ? index + size : index;
    if (i >= 0 && i < size) return i;
    atomic_cmpxchg(fault, 0, number);
    return 0;
}

// y [outer, count, run] = x [outer, length, run]; an item takes `part` elements of `chunk` runs.
kernel void gather(global const T *x, global const int *indices, global T *y, volatile global int *fault, int x_at,
                   int number, int outer, int length, int count, int run, int part, int chunk)
{
    int from = get_global_id(0) * part, first = get_global_id(1) * chunk, o = get_global_id(2);
    if (from >= run || first >= count || o >= outer) return;
    int to = min(from + part, run), last = min(first + chunk, count);
    x += x_at + (size_t)o * length * run;
    y += (size_t)o * count * run;
    for (int k = first; k < last; ++k) {
        global const T *p = x + (size_t)place(indices[k], length, fault, number) * run;
        global T *q = y + (size_t)k * run;
        int i = from;
        for (; i + 8 <= to; i += 8) vstore8(vload8(0, p + i), 0, q + i);
        for (; i < to; ++i) q[i] = p[i];
    }
}

// Where an index vector points to in an array [d0, d1, ...].
#define PLACE(I)                                                                                                       \
    if (I < depth) at = at * d##I + place(vector[I], d##I, fault, number);
#define PLACES PLACE(0) PLACE(1) PLACE(2) PLACE(3) PLACE(4) PLACE(5) PLACE(6) PLACE(7)

// y [batch, rows, run] = x [batch, d0, d1, ..., run] at the vectors indices [batch, rows, depth].
kernel void gather_nd(global const T *x, global const int *indices, global T *y, volatile global int *fault, int x_at,
                      int number, int batch, int rows, int run, int depth, int block, int d0, int d1, int d2, int d3,
                      int d4, int d5, int d6, int d7)
{
    int r = get_global_id(0), at = 0;
    if (r >= batch * rows) return;
    global const int *vector = indices + (size_t)r * depth;
    PLACES
    x += x_at + ((size_t)(r / rows) * block + at) * run;
    y += (size_t)r * run;
    int i = 0;
    for (; i + 8 <= run; i += 8) vstore8(vload8(0, x + i), 0, y + i);
    for (; i < run; ++i) y[i] = x[i];
}

// The place that the number of an index on the axes n means, on an array that moves by s along them.
#define STEP(A)                                                                                                        \
    if (rest) {                                                                                                        \
        at += rest % n##A * s##A;                                                                                      \
        rest /= n##A;                                                                                                  \
    }
#define STEPS STEP(7) STEP(6) STEP(5) STEP(4) STEP(3) STEP(2) STEP(1) STEP(0)

// y [n0, ..., n7] = x at the sum of i0 s0 + ... + i7 s7 + stride * index.
kernel void gather_elements(global const T *x, global const int *indices, global T *y, volatile global int *fault,
                            int x_at, int number, int count, int length, int stride, int n0, int n1, int n2, int n3,
                            int n4, int n5, int n6, int n7, int s0, int s1, int s2, int s3, int s4, int s5, int s6,
                            int s7)
{
    int i = get_global_id(0), rest = i, at = x_at;
    if (i >= count) return;
    STEPS
    y[i] = x[at + place(indices[i], length, fault, number) * stride];
}

// y [outer, depth, inner] is `on` at [o, indices[o, i], i], else `off`. Nothing counts from the end.
kernel void one_hot(global const int *indices, global const T *on, global const T *off, global T *y, int outer,
                    int depth, int inner)
{
    int i = get_global_id(0), d = get_global_id(1), o = get_global_id(2);
    if (i >= inner || d >= depth || o >= outer) return;
    y[((size_t)o * depth + d) * inner + i] = indices[(size_t)o * inner + i] == d ? on[0] : off[0];
}

#ifdef FLOATS
typedef real element;
#define GET(p, i) LOAD(p, i)
#define SET(v, p, i) STORE(v, p, i)
#define IS_NAN(x) ((x) != (x))
typedef float number_t;
#else
typedef int element;
#define GET(p, i) ((p)[i])
#define SET(v, p, i) ((p)[i] = (v))
#define IS_NAN(x) 0
typedef int number_t;
#endif

#ifndef REDUCTION
#define REDUCTION 0
#endif

// Integers wrap around; a NaN on either side stays.
static number_t combined(number_t old, number_t update)
{
#if REDUCTION == 1 && defined(FLOATS)
    return old + update;
#elif REDUCTION == 1
    return as_int(as_uint(old) + as_uint(update));
#elif REDUCTION == 2 && defined(FLOATS)
    return old * update;
#elif REDUCTION == 2
    return as_int(as_uint(old) * as_uint(update));
#elif REDUCTION == 3
    return old > update || IS_NAN(old) ? old : update;
#elif REDUCTION == 4
    return old < update || IS_NAN(old) ? old : update;
#else
    return update;
#endif
}

// y [d0, d1, ..., width] at the vectors indices [rows, depth] is combined with updates [rows, width]: an item, a column.
kernel void scatter_nd(global const int *indices, global const element *updates, global element *y,
                       volatile global int *fault, int number, int rows, int width, int depth, int d0, int d1, int d2,
                       int d3, int d4, int d5, int d6, int d7)
{
    int i = get_global_id(0);
    if (i >= width) return;
    for (int r = 0; r < rows; ++r) {
        global const int *vector = indices + (size_t)r * depth;
        int at = 0;
        PLACES
        size_t to = (size_t)at * width + i;
        SET(combined(GET(y, to), GET(updates, (size_t)r * width + i)), y, to);
    }
}

// y at the sum of i0 s0 + ... + i7 s7 + stride * index is combined with updates [outer, along, inner], which lie under the
// axes n; an item goes `along` the axis that is indexed.
kernel void scatter_elements(global const int *indices, global const element *updates, global element *y,
                             volatile global int *fault, int number, int outer, int along, int inner, int length,
                             int stride, int n0, int n1, int n2, int n3, int n4, int n5, int n6, int n7, int s0, int s1,
                             int s2, int s3, int s4, int s5, int s6, int s7)
{
    int column = get_global_id(0), o = get_global_id(1);
    if (column >= inner || o >= outer) return;
    for (int k = 0; k < along; ++k) {
        int i = (o * along + k) * inner + column, rest = i, at = 0;
        STEPS
        at += place(indices[i], length, fault, number) * stride;
        SET(combined(GET(y, at), GET(updates, i)), y, at);
    }
}
