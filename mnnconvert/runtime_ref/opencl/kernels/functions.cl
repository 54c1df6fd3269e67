// The functions of element-wise chains, on vectors: names are those of mnnconvert/ops/elementwise.py behind "f_", and on
// int32 behind "i_". Generated kernels (opencl/chain.py) call them.

typedef JOIN(uint, V) uintV;

static floatV spread_real(global const real *p, int stride, int left)
{
    float x[V];
    for (int i = 0; i < V; ++i) x[i] = i < left ? LOAD(p, i * stride) : 0.0f;
    return JOIN(vload, V)(0, x);
}

#define INTEGERS(TYPE)                                                                                                 \
    static intV load_##TYPE(global const TYPE *p, int left)                                                            \
    {                                                                                                                  \
        if (left >= V) return INTV(JOIN(vload, V)(0, p));                                                              \
        int x[V];                                                                                                      \
        for (int i = 0; i < V; ++i) x[i] = i < left ? p[i] : 0;                                                        \
        return JOIN(vload, V)(0, x);                                                                                   \
    }                                                                                                                  \
    static intV spread_##TYPE(global const TYPE *p, int stride, int left)                                              \
    {                                                                                                                  \
        int x[V];                                                                                                      \
        for (int i = 0; i < V; ++i) x[i] = i < left ? p[i * stride] : 0;                                               \
        return JOIN(vload, V)(0, x);                                                                                   \
    }                                                                                                                  \
    static void store_##TYPE(intV x, global TYPE *p, int left)                                                         \
    {                                                                                                                  \
        int y[V];                                                                                                      \
        JOIN(vstore, V)(x, 0, y);                                                                                      \
        for (int i = 0; i < min(left, V); ++i) p[i] = (TYPE)(uchar)y[i];                                               \
    }
INTEGERS(char)
INTEGERS(uchar)
#undef INTEGERS

static intV load_int(global const int *p, int left)
{
    if (left >= V) return JOIN(vload, V)(0, p);
    int x[V];
    for (int i = 0; i < V; ++i) x[i] = i < left ? p[i] : 0;
    return JOIN(vload, V)(0, x);
}
static intV spread_int(global const int *p, int stride, int left)
{
    int x[V];
    for (int i = 0; i < V; ++i) x[i] = i < left ? p[i * stride] : 0;
    return JOIN(vload, V)(0, x);
}
static void store_int(intV x, global int *p, int left)
{
    if (left >= V) {
        JOIN(vstore, V)(x, 0, p);
        return;
    }
    int y[V];
    JOIN(vstore, V)(x, 0, y);
    for (int i = 0; i < left; ++i) p[i] = y[i];
}

// Functions that are written for one number, applied to each of a vector.
#define EACH1(TYPE, NAME, ONE)                                                                                         \
    static JOIN(TYPE, V) NAME(JOIN(TYPE, V) a)                                                                         \
    {                                                                                                                  \
        TYPE x[V];                                                                                                     \
        JOIN(vstore, V)(a, 0, x);                                                                                      \
        for (int i = 0; i < V; ++i) x[i] = ONE(x[i]);                                                                  \
        return JOIN(vload, V)(0, x);                                                                                   \
    }
#define EACH2(TYPE, NAME, ONE)                                                                                         \
    static JOIN(TYPE, V) NAME(JOIN(TYPE, V) a, JOIN(TYPE, V) b)                                                        \
    {                                                                                                                  \
        TYPE x[V], y[V];                                                                                               \
        JOIN(vstore, V)(a, 0, x);                                                                                      \
        JOIN(vstore, V)(b, 0, y);                                                                                      \
        for (int i = 0; i < V; ++i) x[i] = ONE(x[i], y[i]);                                                            \
        return JOIN(vload, V)(0, x);                                                                                   \
    }

// Floats.
static floatV f_COPY(floatV x) { return x; }
static floatV f_ABS(floatV x) { return fabs(x); }
static floatV f_NEG(floatV x) { return -x; }
static floatV f_FLOOR(floatV x) { return floor(x); }
static floatV f_CEIL(floatV x) { return ceil(x); }
static floatV f_SQUARE(floatV x) { return x * x; }
static floatV f_SQRT(floatV x) { return sqrt(x); }
static floatV f_RSQRT(floatV x) { return 1.0f / sqrt(x); }
static floatV f_EXP(floatV x) { return exp(x); }
static floatV f_LOG(floatV x) { return log(x); }
static floatV f_SIN(floatV x) { return sin(x); }
static floatV f_COS(floatV x) { return cos(x); }
static floatV f_TAN(floatV x) { return tan(x); }
static floatV f_ASIN(floatV x) { return asin(x); }
static floatV f_ACOS(floatV x) { return acos(x); }
static floatV f_ATAN(floatV x) { return atan(x); }
static floatV f_SINH(floatV x) { return sinh(x); }
static floatV f_COSH(floatV x) { return cosh(x); }
static floatV f_TANH(floatV x) { return tanh(x); }
static floatV f_ASINH(floatV x) { return asinh(x); }
static floatV f_ACOSH(floatV x) { return acosh(x); }
static floatV f_ATANH(floatV x) { return atanh(x); }
static floatV f_RECIPROCAL(floatV x) { return 1.0f / x; }
static floatV f_LOG1P(floatV x) { return log1p(x); }
static floatV f_EXPM1(floatV x) { return expm1(x); }
static floatV f_ERF(floatV x) { return erf(x); }
static floatV f_ERFC(floatV x) { return erfc(x); }
static floatV f_BNLL(floatV x) { return log1p(exp(-fabs(x))) + (x < 0.0f ? (floatV)0.0f : x); }
static floatV f_SIGN(floatV x) { return x > 0.0f ? (floatV)1.0f : (x < 0.0f ? (floatV)-1.0f : x); }
static floatV f_SIGMOID(floatV x) { return sigmoid(x); }
static floatV f_SILU(floatV x) { return x * sigmoid(x); }
static floatV f_GELU(floatV x) { return gelu_tanh(x); }
static floatV f_GELU_STANDARD(floatV x) { return gelu(x); }
static floatV f_HARDSWISH(floatV x) { return x * clip(x + 3.0f, 0.0f, 6.0f) / 6.0f; }
static floatV f_RELU(floatV x) { return x < 0.0f ? (floatV)0.0f : x; }
static floatV f_ROUND(floatV x)
{
    floatV whole = trunc(x);
    return fabs(x - whole) >= 0.5f ? whole + copysign((floatV)1.0f, x) : whole;
}
// M. Giles, Approximating the erfinv function (2010): two polynomials in -log(1 - x^2), for single precision.
static float erfinv1(float x)
{
    if (fabs(x) == 1.0f) return copysign(INFINITY, x);
    float w = -log1p(-x * x), p;
    if (w < 5.0f) {
        w -= 2.5f;
        p = 2.81022636e-08f;
        p = p * w + 3.43273939e-07f;
        p = p * w - 3.5233877e-06f;
        p = p * w - 4.39150654e-06f;
        p = p * w + 0.00021858087f;
        p = p * w - 0.00125372503f;
        p = p * w - 0.00417768164f;
        p = p * w + 0.246640727f;
        p = p * w + 1.50140941f;
    } else {
        w = sqrt(w) - 3.0f;
        p = -0.000200214257f;
        p = p * w + 0.000100950558f;
        p = p * w + 0.00134934322f;
        p = p * w - 0.00367342844f;
        p = p * w + 0.00573950773f;
        p = p * w - 0.0076224613f;
        p = p * w + 0.00943887047f;
        p = p * w + 1.00167406f;
        p = p * w + 2.83297682f;
    }
    return p * x;
}
EACH1(float, f_ERFINV, erfinv1)

static floatV f_ADD(floatV a, floatV b) { return a + b; }
static floatV f_SUB(floatV a, floatV b) { return a - b; }
static floatV f_MUL(floatV a, floatV b) { return a * b; }
static floatV f_REALDIV(floatV a, floatV b) { return a / b; }
static floatV f_MINIMUM(floatV a, floatV b) { return a < b || a != a ? a : b; }
static floatV f_MAXIMUM(floatV a, floatV b) { return a > b || a != a ? a : b; }
static floatV f_SquaredDifference(floatV a, floatV b) { return (a - b) * (a - b); }
static floatV f_MUL_SILU(floatV a, floatV b) { return a * b * sigmoid(b); }
static floatV f_LEAKY(floatV x, floatV slope) { return x < 0.0f ? x * slope : x; }
static floatV f_ELU(floatV x, floatV alpha) { return x < 0.0f ? alpha * expm1(x) : x; }
static floatV f_THRESHOLD(floatV x, floatV limit) { return x > limit ? (floatV)1.0f : (floatV)0.0f; }
static floatV f_MULADD(floatV a, floatV b, floatV c) { return a * b + c; }
static floatV f_POW(floatV a, floatV b) { return pow(a, b); }
static floatV f_MOD(floatV a, floatV b) { return fmod(a, b); }
static floatV f_ATAN2(floatV a, floatV b) { return atan2(a, b); }
static floatV f_CLIP(floatV x, floatV low, floatV high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}
// The remainder with the sign of the divisor, and the floor of the quotient that belongs to it.
static float floormod1(float a, float b)
{
    float rest = fmod(a, b);
    if (rest == 0.0f) return copysign(0.0f, b);
    return (b < 0.0f) != (rest < 0.0f) ? rest + b : rest;
}
static float floordiv1(float a, float b)
{
    if (b == 0.0f) return a / b;
    float rest = fmod(a, b), quotient = (a - rest) / b;
    if (rest != 0.0f && (b < 0.0f) != (rest < 0.0f)) quotient -= 1.0f;
    if (quotient == 0.0f) return copysign(0.0f, a / b);
    float whole = floor(quotient);
    return quotient - whole > 0.5f ? whole + 1.0f : whole;
}
EACH2(float, f_FLOORMOD, floormod1)
EACH2(float, f_FLOORDIV, floordiv1)

// Comparisons give 1 or 0.
static intV f_GREATER(floatV a, floatV b) { return (a > b) & 1; }
static intV f_GREATER_EQUAL(floatV a, floatV b) { return (a >= b) & 1; }
static intV f_LESS(floatV a, floatV b) { return (a < b) & 1; }
static intV f_LESS_EQUAL(floatV a, floatV b) { return (a <= b) & 1; }
static intV f_EQUAL(floatV a, floatV b) { return (a == b) & 1; }
static intV f_NOTEQUAL(floatV a, floatV b) { return (a != b) & 1; }
static intV f_TO_BOOL(floatV x) { return (x != 0.0f) & 1; }
static floatV f_SELECT(intV chosen, floatV a, floatV b) { return chosen != 0 ? a : b; }

// Truncated to 64 bits, of which the low 32 stay; NaN is the lowest int32.
static int to_int1(float x)
{
    if (x != x) return INT_MIN;
    if (x >= 9223372036854775808.0f) return -1024;
    return (int)(uint)(ulong)convert_long_sat_rtz(x);
}
static intV f_TO_INT(floatV x)
{
    float from[V];
    int y[V];
    JOIN(vstore, V)(x, 0, from);
    for (int i = 0; i < V; ++i) y[i] = to_int1(from[i]);
    return JOIN(vload, V)(0, y);
}

// Integers: arithmetic wraps, division by zero gives 0.
static intV wrapped(uintV x) { return JOIN(as_int, V)(x); }
static uintV bits(intV x) { return JOIN(as_uint, V)(x); }
static floatV i_TO_FLOAT(intV x) { return FLOATV(x); }
static intV i_TO_BOOL(intV x) { return (x != 0) & 1; }
static intV i_SELECT(intV chosen, intV a, intV b) { return chosen != 0 ? a : b; }
static intV i_COPY(intV x) { return x; }
static intV i_ADD(intV a, intV b) { return wrapped(bits(a) + bits(b)); }
static intV i_SUB(intV a, intV b) { return wrapped(bits(a) - bits(b)); }
static intV i_MUL(intV a, intV b) { return wrapped(bits(a) * bits(b)); }
static intV i_NEG(intV x) { return wrapped(-bits(x)); }
static intV i_ABS(intV x) { return x < 0 ? i_NEG(x) : x; }
static intV i_SQUARE(intV x) { return i_MUL(x, x); }
static intV i_SIGN(intV x) { return x > 0 ? (intV)1 : (x < 0 ? (intV)-1 : (intV)0); }
static intV i_RELU(intV x) { return x > 0 ? x : (intV)0; }
static intV i_MINIMUM(intV a, intV b) { return min(a, b); }
static intV i_MAXIMUM(intV a, intV b) { return max(a, b); }
static intV i_SquaredDifference(intV a, intV b) { return i_SQUARE(i_SUB(a, b)); }
static intV i_GREATER(intV a, intV b) { return (a > b) & 1; }
static intV i_GREATER_EQUAL(intV a, intV b) { return (a >= b) & 1; }
static intV i_LESS(intV a, intV b) { return (a < b) & 1; }
static intV i_LESS_EQUAL(intV a, intV b) { return (a <= b) & 1; }
static intV i_EQUAL(intV a, intV b) { return (a == b) & 1; }
static intV i_NOTEQUAL(intV a, intV b) { return (a != b) & 1; }
static intV i_BITWISE_AND(intV a, intV b) { return a & b; }
static intV i_BITWISE_OR(intV a, intV b) { return a | b; }
static intV i_BITWISE_XOR(intV a, intV b) { return a ^ b; }
static intV i_LOGICALOR(intV a, intV b) { return ((a | b) != 0) & 1; }
static intV i_LOGICALXOR(intV a, intV b) { return ((a != 0) ^ (b != 0)) & 1; }
static intV i_LEFTSHIFT(intV a, intV b) { return bits(b) < 32u ? wrapped(bits(a) << bits(b & 31)) : (intV)0; }
static intV i_RIGHTSHIFT(intV a, intV b) { return bits(b) < 32u ? a >> (b & 31) : (intV)0; }
static int divide1(int a, int b) { return b == 0 ? 0 : (int)(uint)(ulong)((long)a / b); }
static int rest1(int a, int b) { return b == 0 ? 0 : (int)((long)a % b); }
static int floor_divide1(int a, int b)
{
    int rest = rest1(a, b);
    return divide1(a, b) - (rest != 0 && (rest < 0) != (b < 0));
}
static int floor_rest1(int a, int b)
{
    int rest = rest1(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
// As a power of doubles would be truncated: what int32 cannot hold is the lowest one.
static int power1(int a, int b)
{
    if (b < 0) return a == 0 ? INT_MIN : a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    if (a == 0 || a == 1) return b == 0 ? 1 : a;
    if (a == -1) return b & 1 ? -1 : 1;
    long y = 1;
    for (int i = 0; i < b; ++i) {
        y *= a;
        if (y > INT_MAX || y < INT_MIN) return INT_MIN;
    }
    return (int)y;
}
EACH2(int, i_REALDIV, divide1)
EACH2(int, i_FLOORDIV, floor_divide1)
EACH2(int, i_MOD, floor_rest1)  // on int32 these two names are exchanged
EACH2(int, i_FLOORMOD, rest1)
EACH2(int, i_POW, power1)
