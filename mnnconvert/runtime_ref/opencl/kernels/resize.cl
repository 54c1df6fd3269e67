// Resizing along two axes: y[p, r, c] is the sum over taps of row_weights[i, r] * column_weights[j, c]
// * x[p, rows[i, r], columns[j, c]], with tables that lead from a place of y to those of x that it is made of.
//
// An item computes one place for `span` channels, V at a time, of maps with channels last, or one element (WHOLE 0).
// Sums start from -0, which changes no number that is added to it.

#if WHOLE
#define UNIT V
#define ITEM floatV
#define GET LOADV
#define PUT STOREV
#else
#define UNIT 1
#define ITEM float
#define GET LOAD
#define PUT STORE
#endif

kernel void resize(global const real *x, global const int *rows, global const float *row_weights,
                   global const int *columns, global const float *column_weights, global real *y, int x_at, int planes,
                   int pitch, int span, int height, int width, int out_h, int out_w, int row_taps, int column_taps)
{
    int first = get_global_id(0) * span, ox = get_global_id(1), oy = get_global_id(2);
    if (first >= pitch || ox >= out_w || oy >= planes * out_h) return;
    int plane = oy / out_h;
    y += ((size_t)oy * out_w + ox) * pitch;
    oy -= plane * out_h;
    x += x_at + (size_t)plane * height * width * pitch;
    for (int c = first; c < min(first + span, pitch); c += UNIT) {
        ITEM sum = -0.0f;
        for (int i = 0; i < row_taps; ++i) {
            int row = rows[i * out_h + oy] * width;
            ITEM part = -0.0f;
            for (int j = 0; j < column_taps; ++j)
                part += column_weights[j * out_w + ox] * GET(x, (row + columns[j * out_w + ox]) * pitch + c);
            sum += row_weights[i * out_h + oy] * part;
        }
        PUT(sum, y, c);
    }
}
