// Steps of recurrent layers. What x contributes to the gates of all steps is there: gates [steps, batch, directions, G n]
// for n = `hidden` units. The weights of the state lie as [directions, ceil(n / V), n, R, V]: for V units side by side
// what each of the n old ones contributes to their R gates. y [steps, directions, batch, n] holds the states, so that a
// step reads what the one before it has written; the second direction goes from the last step to the first. h, and c,
// receive the last states [directions, batch, n].
//
// With WHOLE an item goes through all steps of a row of the batch: there is nothing to wait for. Otherwise a launch makes
// one step, `first`, and an item V units of it; where a step has two parts (PART 0 and 1) these are two launches.
// STARTS: there are states to begin with, else they are 0.

#ifndef WHOLE
#define WHOLE 0
#endif
#ifndef PART
#define PART 0
#endif

// Sums over the old states h of their contributions to N of R gates, from the gate `from` on.
#define MULTIPLY(sums, h, weights, N, R, from)                                                                         \
    for (int k = 0; k < hidden; ++k) {                                                                                 \
        float state = LOAD(h, k);                                                                                      \
        for (int g = 0; g < N; ++g) sums[g] += state * LOADV(weights, (k * R + from + g) * V);                         \
    }

// Places of a row of the batch, and of a step of it.
#define ROW ((d * batch + b) * hidden)
#define TIME(i) (d == 1 ? steps - 1 - (i) : (i))
#define STATE(i) (y + (size_t)TIME(i) * directions * batch * hidden + ROW)
#define GATES(N) (gates + (((size_t)TIME(i) * batch + b) * directions + d) * N * hidden)
#define WEIGHTS(R) (r + ((size_t)d * up(hidden, V) + j / V) * hidden * R * V)

#if WHOLE
#define STEPS                                                                                                          \
    int b = get_global_id(0), d = get_global_id(1);                                                                    \
    if (b >= batch || d >= directions) return;                                                                         \
    for (int i = 0; i < steps; ++i)
#define UNITS for (int j = 0; j < hidden; j += V)
#else
#define STEPS                                                                                                          \
    int j = get_global_id(0) * V, b = get_global_id(1), d = get_global_id(2), i = first;                               \
    if (j >= hidden || b >= batch || d >= directions) return;
#define UNITS
#endif

#ifdef STARTS
#define BEFORE(start) (i ? STATE(i - 1) : start + ROW)
#define IS_THERE 1
#else
#define BEFORE(start) (i ? STATE(i - 1) : y)
#define IS_THERE (i > 0)
#endif

// Gates i, o, f, g: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').
kernel void lstm(global const real *gates, global const real *r, global const real *h_start, global const real *c_start,
                 global real *y, global real *h, global real *c, int first, int steps, int batch, int directions,
                 int hidden)
{
    STEPS
    {
        UNITS
        {
            int left = hidden - j;
            global const real *x = GATES(4) + j, *w = WEIGHTS(4);
            floatV sums[4], cell = 0.0f;
            for (int g = 0; g < 4; ++g) sums[g] = load_real(x + g * hidden, left);
            if (IS_THERE) {
                global const real *old = BEFORE(h_start);
                MULTIPLY(sums, old, w, 4, 4, 0)
#ifdef STARTS
                cell = i ? load_real(c + ROW + j, left) : load_real(c_start + ROW + j, left);
#else
                cell = load_real(c + ROW + j, left);
#endif
            }
            cell = sigmoid(sums[2]) * cell + sigmoid(sums[0]) * tanh(sums[3]);
            store_real(cell, c + ROW + j, left);
            floatV state = sigmoid(sums[1]) * tanh(cell);
            store_real(state, STATE(i) + j, left);
            if (i == steps - 1) store_real(state, h + ROW + j, left);
        }
    }
}

// h' = tanh(gates + h r).
kernel void rnn(global const real *gates, global const real *r, global const real *h_start, global real *y,
                global real *h, int first, int steps, int batch, int directions, int hidden)
{
    STEPS
    {
        UNITS
        {
            int left = hidden - j;
            global const real *w = WEIGHTS(1);
            floatV sums[1] = {load_real(GATES(1) + j, left)};
            if (IS_THERE) {
                global const real *old = BEFORE(h_start);
                MULTIPLY(sums, old, w, 1, 1, 0)
            }
            floatV state = tanh(sums[0]);
            store_real(state, STATE(i) + j, left);
            if (i == steps - 1) store_real(state, h + ROW + j, left);
        }
    }
}

// Gates z, r and the candidate n: h' = sigmoid(z) h + (1 - sigmoid(z)) tanh(n + inner), where `inner` is
// (sigmoid(r) h) s + bias or, when LINEAR, sigmoid(r) (h s + bias). The weights of a unit are those of z, r and s.
// Without LINEAR a step has two parts: z, which stays in its gate, and sigmoid(r) h, in `kept`; then the state.
kernel void gru(global real *gates, global const real *r, global const real *bias, global const real *h_start,
                global real *kept, global real *y, global real *h, int first, int steps, int batch, int directions,
                int hidden)
{
    STEPS
    {
#if WHOLE || PART == 0
        UNITS
        {
            int left = hidden - j;
            global real *x = GATES(3) + j;
            global const real *w = WEIGHTS(3);
            floatV sums[3] = {load_real(x, left), load_real(x + hidden, left), load_real(bias + d * hidden + j, left)};
            floatV state = 0.0f;
            if (IS_THERE) {
                global const real *old = BEFORE(h_start);
#ifdef LINEAR
                MULTIPLY(sums, old, w, 3, 3, 0)
#else
                MULTIPLY(sums, old, w, 2, 3, 0)
#endif
                state = load_real(old + j, left);
            }
#ifdef LINEAR
            floatV next = tanh(load_real(x + 2 * hidden, left) + sigmoid(sums[1]) * sums[2]);
            state = next + sigmoid(sums[0]) * (state - next);
            store_real(state, STATE(i) + j, left);
            if (i == steps - 1) store_real(state, h + ROW + j, left);
#else
            store_real(sums[0], x, left);
            store_real(sigmoid(sums[1]) * state, kept + ROW + j, left);
#endif
        }
#endif
#if !defined(LINEAR) && (WHOLE || PART == 1)
        UNITS
        {
            int left = hidden - j;
            global const real *x = GATES(3) + j, *w = WEIGHTS(3), *old = kept + ROW;
            floatV sums[1] = {load_real(x + 2 * hidden, left) + load_real(bias + d * hidden + j, left)}, state = 0.0f;
            if (IS_THERE) {
                MULTIPLY(sums, old, w, 1, 3, 2)
                state = load_real(BEFORE(h_start) + j, left);
            }
            floatV next = tanh(sums[0]);
            state = next + sigmoid(load_real(x, left)) * (state - next);
            store_real(state, STATE(i) + j, left);
            if (i == steps - 1) store_real(state, h + ROW + j, left);
        }
#endif
    }
}
