// What every kernel file may use. Values lie as `real`: float, or half where the session stores halves; arithmetic is in
// float. V is the number of channels that lie side by side, and of lanes that a vector has: 4, 8 or 16.

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

typedef JOIN(float, V) floatV;
typedef JOIN(int, V) intV;

#define INTV(x) JOIN(convert_int, V)(x)
#define FLOATV(x) JOIN(convert_float, V)(x)

#ifdef HALF
typedef half real;
#define LOAD(p, i) vload_half((i), (p))
#define STORE(x, p, i) vstore_half((x), (i), (p))
#define LOADV(p, i) load_halves((p) + (i))
#define STOREV(x, p, i) store_halves((x), (p) + (i))

// By way of a register: PoCL 3.1 takes vectors of halves in memory to be aligned, and crashes where they are not.
static floatV load_halves(global const half *p)
{
    JOIN(ushort, V) bits = JOIN(vload, V)(0, (global const ushort *)p);
    return JOIN(vload_half, V)(0, (private const half *)&bits);
}
static void store_halves(floatV x, global half *p)
{
    JOIN(ushort, V) bits;
    JOIN(vstore_half, V)(x, 0, (private half *)&bits);
    JOIN(vstore, V)(bits, 0, (global ushort *)p);
}
#else
typedef float real;
#define LOAD(p, i) ((p)[i])
#define STORE(x, p, i) ((p)[i] = (x))
#define LOADV(p, i) JOIN(vload, V)(0, (p) + (i))
#define STOREV(x, p, i) JOIN(vstore, V)((x), 0, (p) + (i))
#endif

// Functions that are given arrays are compiled into their callers: so the arrays are registers.
#define INLINE __attribute__((always_inline)) static
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)

// Up to V elements: no more than `left`, and zeros behind.
static floatV load_real(global const real *p, int left)
{
    if (left >= V) return LOADV(p, 0);
    float x[V];
    for (int i = 0; i < V; ++i) x[i] = i < left ? LOAD(p, i) : 0.0f;
    return JOIN(vload, V)(0, x);
}
static void store_real(floatV x, global real *p, int left)
{
    if (left >= V) {
        STOREV(x, p, 0);
        return;
    }
    float y[V];
    JOIN(vstore, V)(x, 0, y);
    for (int i = 0; i < left; ++i) STORE(y[i], p, i);
}

static int up(int n, int unit) { return (n + unit - 1) / unit; }

// The sum of all lanes, pairwise.
static float lanes_sum(floatV x)
{
    float each[V];
    JOIN(vstore, V)(x, 0, each);
    for (int n = V / 2; n; n /= 2)
        for (int i = 0; i < n; ++i) each[i] += each[i + n];
    return each[0];
}

// What is done to a result before it is stored: one of the functions of `Epilogue` (runtime_ref/lower.py: ACTIVATIONS).
// Comparisons are written so that NaN stays NaN.
static floatV sigmoid(floatV x) { return 1.0f / (1.0f + exp(-x)); }
static floatV gelu(floatV x) { return 0.5f * x * (1.0f + erf(x * M_SQRT1_2_F)); }
static floatV gelu_tanh(floatV x) { return 0.5f * x * (1.0f + tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }
static floatV clip(floatV x, float low, float high)
{
    x = x < low ? (floatV)low : x;
    return x > high ? (floatV)high : x;
}

#ifndef ACTIVATION
#define ACTIVATION 0
#endif

static floatV activate(floatV x, float low, float high)
{
#if ACTIVATION == 1
    return clip(x, low, high);
#elif ACTIVATION == 2
    return sigmoid(x);
#elif ACTIVATION == 3
    return x * sigmoid(x);
#elif ACTIVATION == 4
    return x * clip(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f);
#elif ACTIVATION == 5
    return gelu(x);
#elif ACTIVATION == 6
    return gelu_tanh(x);
#elif ACTIVATION == 7
    return tanh(x);
#elif ACTIVATION == 8
    return x < 0.0f ? x * low : x;
#else
    return x;
#endif
}
