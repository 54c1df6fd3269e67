// Moving elements of type T, whatever they mean. Sizes n, strides x and y, and places x_at and y_at count in elements.
//
// copy_* write y[i0][i1]... = x[i0][i1]... where both sides have any strides (opencl/copies.py chooses):
//   copy_runs   the innermost axis lies without gaps on both sides: an item copies `chunk` elements of it
//   copy_steps  any strides along it
//   copy_tiles  y lies without gaps along `rows`, x along `columns`: tiles of 8 x 8 are transposed in registers, by the
//               perfect shuffle (interleaving rows i and i + 4 three times); an item makes 8 columns of up to 32 rows
// Work-items are laid out as [inner axis in chunks, next axis, all the others].
//
// pick writes y[i0]...[i5][run] = x at table[0][i0] + ... + table[5][i5], or `value` where one of these is negative.

#ifndef T
#define T uint
#endif
#define T8 JOIN(T, 8)

// The places that the index `rest` on the outer axes means; most of them have the size 1, and are not looked at.
#define STEP(A)                                                                                                        \
    if (rest) {                                                                                                        \
        int k = rest % n##A;                                                                                           \
        rest /= n##A;                                                                                                  \
        x += k * x##A;                                                                                                 \
        y += k * y##A;                                                                                                 \
    }

kernel void copy_runs(global const T *x, global T *y, int x_at, int y_at, int chunk, int rows, int n0, int n1, int n2,
                      int n3, int n4, int n5, int n6, int n7, int x0, int x1, int x2, int x3, int x4, int x5, int x6,
                      int y0, int y1, int y2, int y3, int y4, int y5, int y6)
{
    int first = get_global_id(0) * chunk, row = get_global_id(1), rest = get_global_id(2);
    if (first >= n7 || row >= n6 || rest >= rows) return;
    x += x_at + row * x6;
    y += y_at + row * y6;
    STEP(5) STEP(4) STEP(3) STEP(2) STEP(1) STEP(0)
    int last = min(first + chunk, n7), i = first;
    for (; i + 8 <= last; i += 8) vstore8(vload8(0, x + i), 0, y + i);
    for (; i < last; ++i) y[i] = x[i];
}

kernel void copy_steps(global const T *x, global T *y, int x_at, int y_at, int chunk, int rows, int n0, int n1, int n2,
                       int n3, int n4, int n5, int n6, int n7, int x0, int x1, int x2, int x3, int x4, int x5, int x6,
                       int x7, int y0, int y1, int y2, int y3, int y4, int y5, int y6, int y7)
{
    int first = get_global_id(0) * chunk, row = get_global_id(1), rest = get_global_id(2);
    if (first >= n7 || row >= n6 || rest >= rows) return;
    x += x_at + row * x6;
    y += y_at + row * y6;
    STEP(5) STEP(4) STEP(3) STEP(2) STEP(1) STEP(0)
    int last = min(first + chunk, n7);
    if (x7 == 0 && y7 == 1) {
        T value = x[0];
        int i = first;
        for (; i + 8 <= last; i += 8) vstore8((T8)value, 0, y + i);
        for (; i < last; ++i) y[i] = value;
        return;
    }
    for (int i = first; i < last; ++i) y[i * y7] = x[i * x7];
}

#define INTERLEAVE(A, B)                                                                                               \
    (T8)(A.s0, B.s0, A.s1, B.s1, A.s2, B.s2, A.s3, B.s3), (T8)(A.s4, B.s4, A.s5, B.s5, A.s6, B.s6, A.s7, B.s7)

kernel void copy_tiles(global const T *x, global T *y, int x_at, int y_at, int columns, int ys, int n0, int n1, int n2,
                       int n3, int n4, int n5, int rows, int x0, int x1, int x2, int x3, int x4, int x5, int xs, int y0,
                       int y1, int y2, int y3, int y4, int y5, int count)
{
    int r = get_global_id(0) * 32, c = get_global_id(1) * 8, rest = get_global_id(2);
    if (r >= rows || c >= columns || rest >= count) return;
    STEP(5) STEP(4) STEP(3) STEP(2) STEP(1) STEP(0)
    int last = min(r + 32, rows), width = min(8, columns - c);
    x += x_at + c;
    y += y_at + c * ys;
    for (; width == 8 && r + 8 <= last; r += 8) {
        global const T *p = x + r * xs;
        T8 a[8] = {vload8(0, p),          vload8(0, p + xs),     vload8(0, p + 2 * xs), vload8(0, p + 3 * xs),
                   vload8(0, p + 4 * xs), vload8(0, p + 5 * xs), vload8(0, p + 6 * xs), vload8(0, p + 7 * xs)};
        T8 b[8] = {INTERLEAVE(a[0], a[4]), INTERLEAVE(a[1], a[5]), INTERLEAVE(a[2], a[6]), INTERLEAVE(a[3], a[7])};
        T8 d[8] = {INTERLEAVE(b[0], b[4]), INTERLEAVE(b[1], b[5]), INTERLEAVE(b[2], b[6]), INTERLEAVE(b[3], b[7])};
        T8 e[8] = {INTERLEAVE(d[0], d[4]), INTERLEAVE(d[1], d[5]), INTERLEAVE(d[2], d[6]), INTERLEAVE(d[3], d[7])};
        for (int i = 0; i < 8; ++i) vstore8(e[i], 0, y + i * ys + r);
    }
    for (int i = 0; i < width; ++i)
        for (int k = r; k < last; ++k) y[i * ys + k] = x[k * xs + i];
}

#define PLACE(A)                                                                                                       \
    {                                                                                                                  \
        int place = table[t + (A < 5 ? rest % n##A : i5)];                                                             \
        if (A < 5) rest /= n##A;                                                                                       \
        outside |= place < 0;                                                                                          \
        from += place;                                                                                                 \
    }

// An item makes `chunk` neighbouring runs of `run` elements.
kernel void pick(global const T *x, global T *y, global const int *table, global const T *value, int x_at, int run,
                 int chunk, int rows, int n0, int n1, int n2, int n3, int n4, int n5)
{
    int first = get_global_id(0) * chunk, row = get_global_id(1), rest = row;
    if (first >= n5 || row >= rows) return;
    int last = min(first + chunk, n5), from = x_at, outside = 0, t = n0 + n1 + n2 + n3, i5 = 0;
    PLACE(4) t -= n3;
    PLACE(3) t -= n2;
    PLACE(2) t -= n1;
    PLACE(1) t -= n0;
    PLACE(0) t += n0 + n1 + n2 + n3 + n4;
    T other = value[0];
    y += ((size_t)row * n5 + first) * run;
    if (run == 1) {
        for (i5 = first; i5 < last; ++i5, ++y) {
            int place = table[t + i5];
            *y = outside || place < 0 ? other : x[from + place];
        }
        return;
    }
    for (i5 = first; i5 < last; ++i5, y += run) {
        int place = table[t + i5], i = 0;
        if (outside || place < 0) {
            for (; i + 8 <= run; i += 8) vstore8((T8)other, 0, y + i);
            for (; i < run; ++i) y[i] = other;
        } else {
            global const T *p = x + from + place;
            for (; i + 8 <= run; i += 8) vstore8(vload8(0, p + i), 0, y + i);
            for (; i < run; ++i) y[i] = p[i];
        }
    }
}
