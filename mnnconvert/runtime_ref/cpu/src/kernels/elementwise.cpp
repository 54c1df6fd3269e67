// Element by element: one kernel runs any small program of arithmetic over its operands.
//
// The result is computed in tiles that stay in the L1 cache. A register of the program is a pointer to one tile of
// numbers: in place where an operand or a result lies in memory as it is needed, else to scratch memory. Operands that
// are broadcast or strided are expanded into scratch tile by tile; constants fill their tiles once. Each instruction is a
// loop over one tile, and the instructions themselves know nothing of shapes. All numbers are 4 bytes wide in registers;
// operands of 1 byte are widened to int32, results of 1 byte are the low bytes.
#include <array>
#include <utility>

#include "kernel.h"
#include "simd.h"
#include "vmath.h"

namespace mnnk {
namespace {

// Functions of one lane, for what is rare. The calls stand outside of the vector code, which GCC 12 cannot compile with
// some of them (an internal error at 16 lanes).
template <auto F, class T, class... X> __attribute__((noinline)) void call_lanes(T* y, const X*... x) {
  for (int i = 0; i < lanes; ++i) y[i] = F(x[i]...);
}
template <auto F, class T, class V, class... X> MNNK_INLINE V by_lanes(V first, X... rest) {
  T y[lanes];
  const auto spilled = [](V v) {
    std::array<T, lanes> x;
    store(x.data(), v);
    return x;
  };
  call_lanes<F>(y, spilled(first).data(), spilled(rest).data()...);
  return load(y);
}
template <float (*F)(float)> MNNK_INLINE vf by_lane(vf x) { return by_lanes<F, float>(x); }
template <float (*F)(float, float)> MNNK_INLINE vf by_lane(vf a, vf b) { return by_lanes<F, float>(a, b); }
template <int32_t (*F)(int32_t, int32_t)> MNNK_INLINE vi by_lane(vi a, vi b) { return by_lanes<F, int32_t>(a, b); }

// Floats.
MNNK_INLINE vf negative(vf x) { return -x; }
MNNK_INLINE vf square(vf x) { return x * x; }
MNNK_INLINE vf inverse_root(vf x) { return splat(1.0f) / sqrt(x); }
MNNK_INLINE vf reciprocal(vf x) { return splat(1.0f) / x; }
MNNK_INLINE vf sign(vf x) { return x > vf{} ? splat(1.0f) : (x < vf{} ? splat(-1.0f) : x); }
MNNK_INLINE vf relu(vf x) { return max(vf{}, x); }
MNNK_INLINE vf hard_swish(vf x) {
  return x * min(splat(6.0f), max(vf{}, x + splat(3.0f))) / splat(6.0f);
}
MNNK_INLINE vf round_away(vf x) {
  const vf whole = trunc(x);
  return abs(x - whole) >= splat(0.5f) ? whole + copy_sign(splat(1.0f), x) : whole;
}
// Winitzki's closed form as a start, then Newton steps in double precision.
inline float inverse_erf(float x) {
  if (x == 1.0f || x == -1.0f) return std::copysign(INFINITY, x);
  const double target = x, log = std::log((1 - target) * (1 + target));
  const double t = 2 / (M_PI * 0.147) + log / 2;
  double y = std::copysign(std::sqrt(std::sqrt(t * t - log / 0.147) - t), target);
  for (int i = 0; i < 3; ++i) y -= (std::erf(y) - target) * std::sqrt(M_PI) / 2 * std::exp(y * y);
  return static_cast<float>(y);
}

MNNK_INLINE vf add(vf a, vf b) { return a + b; }
MNNK_INLINE vf subtract(vf a, vf b) { return a - b; }
MNNK_INLINE vf multiply(vf a, vf b) { return a * b; }
MNNK_INLINE vf divide(vf a, vf b) { return a / b; }
MNNK_INLINE vf minimum(vf a, vf b) { return (a < b) | (a != a) ? a : b; }  // NaN wins
MNNK_INLINE vf maximum(vf a, vf b) { return (a > b) | (a != a) ? a : b; }
MNNK_INLINE vf squared_difference(vf a, vf b) { return (a - b) * (a - b); }
MNNK_INLINE vf times_silu(vf a, vf b) { return a * silu(b); }
MNNK_INLINE vf leaky(vf x, vf slope) { return x < vf{} ? x * slope : x; }
MNNK_INLINE vf elu(vf x, vf alpha) { return x < vf{} ? alpha * expm1(x) : x; }
MNNK_INLINE vf threshold(vf x, vf limit) { return x > limit ? splat(1.0f) : vf{}; }
MNNK_INLINE vf clip(vf x, vf low, vf high) { return min(high, max(low, x)); }
MNNK_INLINE vf multiply_add(vf a, vf b, vf c) { return a * b + c; }
// Remainder with the sign of the divisor, and the floor of the quotient that belongs to it.
inline float floor_mod(float a, float b) {
  const float rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0f, b);
  return (b < 0) != (rest < 0) ? rest + b : rest;
}
inline float floor_divide(float a, float b) {
  if (b == 0) return a / b;
  float rest = std::fmod(a, b), quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0f, a / b);
  const float whole = std::floor(quotient);
  return quotient - whole > 0.5f ? whole + 1 : whole;
}
inline float power(float a, float b) { return std::pow(a, b); }
inline float arc_tangent(float a, float b) { return std::atan2(a, b); }
inline float remainder(float a, float b) { return std::fmod(a, b); }

// Comparisons give 1 or 0.
MNNK_INLINE vi truth(vi mask) { return mask & splat_int(1); }
template <class V> MNNK_INLINE vi greater(V a, V b) { return truth(a > b); }
template <class V> MNNK_INLINE vi greater_equal(V a, V b) { return truth(a >= b); }
template <class V> MNNK_INLINE vi equal(V a, V b) { return truth(a == b); }
template <class V> MNNK_INLINE vi not_equal(V a, V b) { return truth(a != b); }
template <class V> MNNK_INLINE vi less(V a, V b) { return truth(a < b); }
template <class V> MNNK_INLINE vi less_equal(V a, V b) { return truth(a <= b); }
template <class V> MNNK_INLINE vi is_not_zero(V x) { return truth(x != V{}); }
MNNK_INLINE vi same(vi x) { return x; }
MNNK_INLINE vi choose(vi condition, vi a, vi b) { return condition != vi{} ? a : b; }

// Integers: arithmetic wraps (unsigned in the machine), division by zero gives 0.
MNNK_INLINE vi int_multiply(vi a, vi b) { return as_signed(as_unsigned(a) * as_unsigned(b)); }
MNNK_INLINE vi int_negative(vi x) { return as_signed(-as_unsigned(x)); }
MNNK_INLINE vi int_abs(vi x) { return x < vi{} ? int_negative(x) : x; }
MNNK_INLINE vi int_square(vi x) { return int_multiply(x, x); }
MNNK_INLINE vi int_sign(vi x) { return truth(x > vi{}) - truth(x < vi{}); }
MNNK_INLINE vi int_relu(vi x) { return x > vi{} ? x : vi{}; }
MNNK_INLINE vi int_minimum(vi a, vi b) { return a < b ? a : b; }
MNNK_INLINE vi int_maximum(vi a, vi b) { return a > b ? a : b; }
MNNK_INLINE vi int_squared_difference(vi a, vi b) { return int_square(minus(a, b)); }
MNNK_INLINE vi bit_and(vi a, vi b) { return a & b; }
MNNK_INLINE vi bit_or(vi a, vi b) { return a | b; }
MNNK_INLINE vi bit_xor(vi a, vi b) { return a ^ b; }
MNNK_INLINE vi logical_or(vi a, vi b) { return truth((a | b) != vi{}); }
MNNK_INLINE vi logical_xor(vi a, vi b) { return truth((a != vi{}) ^ (b != vi{})); }
MNNK_INLINE vi shift_range(vi b) { return (b >= vi{}) & (b < splat_int(32)); }  // others give 0
MNNK_INLINE vi shift_left(vi a, vi b) {
  return as_signed(as_unsigned(a) << as_unsigned(b & splat_int(31))) & shift_range(b);
}
MNNK_INLINE vi shift_right(vi a, vi b) { return (a >> (b & splat_int(31))) & shift_range(b); }
inline int32_t low_bits(int64_t x) { return static_cast<int32_t>(static_cast<uint32_t>(x)); }
inline int32_t int_divide(int32_t a, int32_t b) { return b == 0 ? 0 : low_bits(int64_t{a} / b); }
inline int32_t int_remainder(int32_t a, int32_t b) { return b == 0 ? 0 : low_bits(int64_t{a} % b); }
inline int32_t int_floor_divide(int32_t a, int32_t b) {
  const int32_t rest = int_remainder(a, b);
  return int_divide(a, b) - (rest != 0 && (rest < 0) != (b < 0));
}
inline int32_t int_floor_mod(int32_t a, int32_t b) {
  const int32_t rest = int_remainder(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
inline int32_t int_power(int32_t a, int32_t b) {
  const double y = std::pow(static_cast<double>(a), static_cast<double>(b));
  return y > -2147483649.0 && y < 2147483648.0 ? static_cast<int32_t>(y) : INT32_MIN;
}

// Casts. Floats are truncated to 64 bits, of which the low 32 stay; NaN is the lowest int32.
inline int32_t whole(float x) {
  if (x != x) return INT32_MIN;
  const double limited = smaller(larger(static_cast<double>(x), -9223372036854775808.0), 9223372036854774784.0);
  return low_bits(static_cast<int64_t>(limited));
}
MNNK_INLINE vi to_int(vf x) {
  if (!any(!(abs(x) < splat(2147483648.0f)))) return truncate_to_int(x);
  vi y;
  for (int i = 0; i < lanes; ++i) y[i] = whole(x[i]);
  return y;
}

// A loop over one tile. Every register is addressed as floats, whatever it holds.
using Loop = void (*)(const float* const* x, float* y, int64_t count);

template <class V> MNNK_INLINE V as(vf v) { return reinterpret_cast<V>(v); }

template <auto F, class Y, class... X, size_t... I>
MNNK_INLINE void loop(Y (*)(X...), std::index_sequence<I...>, const float* const* x, float* y, int64_t count) {
  const std::array<const float*, sizeof...(X)> at{x[I]...};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(y + i, reinterpret_cast<vf>(F(as<X>(load(at[I] + i))...)));
  if (const int64_t rest = count - i; rest > 0)
    store_part(y + i, reinterpret_cast<vf>(F(as<X>(load_part(at[I] + i, rest))...)), rest);
}
template <class Y, class... X> constexpr std::index_sequence_for<X...> operands(Y (*)(X...)) { return {}; }
template <auto F> void run(const float* const* x, float* y, int64_t count) {
  loop<F>(F, operands(F), x, y, count);
}

struct Op {
  const char* name;
  Loop run;
};

// Names are those of mnnconvert/ops/elementwise.py; functions on int32 end in ".i".
constexpr Op OPS[] = {
    {"ABS", run<abs>}, {"NEG", run<negative>}, {"FLOOR", run<floor>}, {"CEIL", run<ceil>}, {"SQUARE", run<square>},
    {"SQRT", run<sqrt>}, {"RSQRT", run<inverse_root>}, {"EXP", run<exp>}, {"LOG", run<log>}, {"SIN", run<sin>},
    {"COS", run<cos>}, {"RECIPROCAL", run<reciprocal>}, {"LOG1P", run<log1p>}, {"BNLL", run<softplus>},
    {"SIGN", run<sign>}, {"ROUND", run<round_away>}, {"ERF", run<erf>}, {"EXPM1", run<expm1>},
    {"SIGMOID", run<sigmoid>}, {"TANH", run<tanh>}, {"HARDSWISH", run<hard_swish>}, {"GELU", run<gelu_tanh>},
    {"GELU_STANDARD", run<gelu>}, {"SILU", run<silu>}, {"RELU", run<relu>},
    {"TAN", run<by_lane<std::tan>>}, {"ASIN", run<by_lane<std::asin>>}, {"ACOS", run<by_lane<std::acos>>},
    {"ATAN", run<by_lane<std::atan>>}, {"ACOSH", run<by_lane<std::acosh>>}, {"SINH", run<by_lane<std::sinh>>},
    {"ASINH", run<by_lane<std::asinh>>}, {"ATANH", run<by_lane<std::atanh>>}, {"COSH", run<by_lane<std::cosh>>},
    {"ERFC", run<by_lane<std::erfc>>}, {"ERFINV", run<by_lane<inverse_erf>>},

    {"ADD", run<add>}, {"SUB", run<subtract>}, {"MUL", run<multiply>}, {"REALDIV", run<divide>},
    {"MINIMUM", run<minimum>}, {"MAXIMUM", run<maximum>}, {"SquaredDifference", run<squared_difference>},
    {"MUL_SILU", run<times_silu>}, {"LEAKY", run<leaky>}, {"ELU", run<elu>}, {"THRESHOLD", run<threshold>},
    {"CLIP", run<clip>}, {"MULADD", run<multiply_add>},
    {"POW", run<by_lane<power>>}, {"FLOORDIV", run<by_lane<floor_divide>>}, {"FLOORMOD", run<by_lane<floor_mod>>},
    {"MOD", run<by_lane<remainder>>}, {"ATAN2", run<by_lane<arc_tangent>>},
    {"GREATER", run<greater<vf>>}, {"GREATER_EQUAL", run<greater_equal<vf>>}, {"LESS", run<less<vf>>},
    {"LESS_EQUAL", run<less_equal<vf>>}, {"EQUAL", run<equal<vf>>}, {"NOTEQUAL", run<not_equal<vf>>},
    {"TO_BOOL", run<is_not_zero<vf>>}, {"TO_INT", run<to_int>}, {"TO_FLOAT.i", run<to_float>},
    {"TO_BOOL.i", run<is_not_zero<vi>>}, {"SELECT", run<choose>}, {"COPY", run<same>},

    {"ABS.i", run<int_abs>}, {"NEG.i", run<int_negative>}, {"SQUARE.i", run<int_square>}, {"SIGN.i", run<int_sign>},
    {"RELU.i", run<int_relu>}, {"ADD.i", run<plus>}, {"SUB.i", run<minus>}, {"MUL.i", run<int_multiply>},
    {"MINIMUM.i", run<int_minimum>}, {"MAXIMUM.i", run<int_maximum>},
    {"SquaredDifference.i", run<int_squared_difference>}, {"GREATER.i", run<greater<vi>>},
    {"GREATER_EQUAL.i", run<greater_equal<vi>>}, {"LESS.i", run<less<vi>>}, {"LESS_EQUAL.i", run<less_equal<vi>>},
    {"EQUAL.i", run<equal<vi>>}, {"NOTEQUAL.i", run<not_equal<vi>>}, {"BITWISE_AND.i", run<bit_and>},
    {"BITWISE_OR.i", run<bit_or>}, {"BITWISE_XOR.i", run<bit_xor>}, {"LEFTSHIFT.i", run<shift_left>},
    {"RIGHTSHIFT.i", run<shift_right>}, {"LOGICALOR.i", run<logical_or>}, {"LOGICALXOR.i", run<logical_xor>},
    {"REALDIV.i", run<by_lane<int_divide>>}, {"FLOORDIV.i", run<by_lane<int_floor_divide>>},
    {"MOD.i", run<by_lane<int_floor_mod>>}, {"FLOORMOD.i", run<by_lane<int_remainder>>},
    {"POW.i", run<by_lane<int_power>>},
};

// What `code` holds: this header, an Operand per operand, the kinds of the results, the instructions.
constexpr int MOST_OPERANDS = 12, MOST_RESULTS = 4, MOST_AXES = 6, MOST_REGISTERS = 64;

struct Header {
  int64_t operands, constants, temporaries, results, instructions;
};

enum Kind : int64_t { WORD = 0, UNSIGNED_BYTE = 1, SIGNED_BYTE = 2 };

// An operand as a view with the elements of the result in order; the last axes are those that count.
struct Operand {
  int64_t kind, size[MOST_AXES], stride[MOST_AXES];

  bool runs() const { return kind == WORD && stride[MOST_AXES - 1] == 1; }
};

// Registers are numbered: operands, constants, temporaries, results.
struct Instruction {
  int64_t op, y, x[3];
};

struct Code {
  Header head;
  const int64_t count;  // elements of each result
  const Operand* operands;
  const int64_t* kinds;
  const Instruction* instructions;

  Code(const void* p, int64_t elements) : count(elements) {
    std::memcpy(&head, p, sizeof head);
    operands = reinterpret_cast<const Operand*>(in<char>(p) + sizeof head);
    kinds = reinterpret_cast<const int64_t*>(operands + head.operands);
    instructions = reinterpret_cast<const Instruction*>(kinds + head.results);
  }
  int64_t registers() const { return head.operands + head.constants + head.temporaries + head.results; }
  int64_t first_result() const { return registers() - head.results; }
};

// Where a walk over an operand stands.
struct Walk {
  const Operand& o;
  int64_t index[MOST_AXES], offset = 0;

  Walk(const Operand& operand, int64_t position) : o(operand) {
    for (int axis = MOST_AXES - 1; axis >= 0; --axis) {
      index[axis] = position % o.size[axis];
      position /= o.size[axis];
      offset += index[axis] * o.stride[axis];
    }
  }
  int64_t left(int axis) const { return o.size[axis] - index[axis]; }
  void advance(int axis, int64_t steps) {
    index[axis] += steps;
    offset += steps * o.stride[axis];
    for (; axis > 0 && index[axis] == o.size[axis]; --axis) {
      offset += o.stride[axis - 1] - index[axis] * o.stride[axis];
      index[axis] = 0;
      ++index[axis - 1];
    }
  }
};

constexpr int LAST = MOST_AXES - 1;

// Runs of floats; what is written beyond `count` (less than a vector) is overwritten or ignored.
MNNK_INLINE void copy_run(const float* x, int64_t stride, int64_t count, float* y) {
  if (stride == 1) {
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) store(y + i, load(x + i));
    for (; i < count; ++i) y[i] = x[i];
  } else if (stride == 0) {
    const vf v = splat(*x);
    for (int64_t i = 0; i < count; i += lanes) store(y + i, v);
  } else {
    for (int64_t i = 0; i < count; ++i) y[i] = x[i * stride];
  }
}
template <class T> MNNK_INLINE void copy_run(const T* x, int64_t stride, int64_t count, float* y) {
  int32_t* words = reinterpret_cast<int32_t*>(y);
  if (stride == 1)
    for (int64_t i = 0; i < count; ++i) words[i] = x[i];
  else
    for (int64_t i = 0; i < count; ++i) words[i] = x[i * stride];
}

// Rows of one vector each, as per-channel operands of blocked maps are: all the rows on the next axis at once.
MNNK_INLINE int64_t vector_rows(const float* x, const Walk& at, int64_t count, float* y) {
  const Operand& o = at.o;
  if (o.size[LAST] != lanes || o.stride[LAST] > 1 || at.index[LAST] != 0) return 0;
  const int64_t rows = smaller(count / lanes, at.left(LAST - 1)), stride = o.stride[LAST - 1];
  x += at.offset;
  if (o.stride[LAST] == 1)
    for (int64_t i = 0; i < rows; ++i) store(y + i * lanes, load(x + i * stride));
  else
    for (int64_t i = 0; i < rows; ++i) store(y + i * lanes, splat(x[i * stride]));
  return rows;
}
template <class T> MNNK_INLINE int64_t vector_rows(const T*, const Walk&, int64_t, float*) { return 0; }

template <class T> void expand(const void* p, const Operand& operand, int64_t begin, int64_t count, float* y) {
  const T* x = in<T>(p);
  Walk at(operand, begin);
  while (count > 0) {
    const int64_t rows = vector_rows(x, at, count, y);
    const int64_t run = rows ? rows * lanes : smaller(count, at.left(LAST));
    if (rows) {
      at.advance(LAST - 1, rows);
    } else {
      copy_run(x + at.offset, operand.stride[LAST], run, y);
      at.advance(LAST, run);
    }
    y += run;
    count -= run;
  }
}

void narrow(const float* x, int64_t count, uint8_t* y) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(x);
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<uint8_t>(words[i]);
}

// One thread's registers.
class Tiles {
 public:
  Tiles(const Code& code, const void* const* operands, const float* constants, void* const* results, float* scratch,
        int64_t length)
      : code_(code), operands_(operands), results_(results), length_(length) {
    for (int64_t i = 0; i < code.registers(); ++i) own_[i] = scratch + i * (length + lanes);
    for (int64_t i = 0; i < code.head.constants; ++i) {
      float* tile = own_[code.head.operands + i];
      for (int64_t j = 0; j < length; j += lanes) store(tile + j, splat(constants[i]));
    }
    std::memcpy(now_, own_, sizeof now_);
  }

  void compute(int64_t begin, int64_t count) {
    for (int64_t i = 0; i < code_.head.operands; ++i) now_[i] = operand(i, begin, count);
    for (int64_t i = 0; i < code_.head.results; ++i)
      if (code_.kinds[i] == WORD) now_[code_.first_result() + i] = out(results_[i]) + begin;
    for (int64_t i = 0; i < code_.head.instructions; ++i) {
      const Instruction& each = code_.instructions[i];
      const float* x[] = {now_[each.x[0]], now_[each.x[1]], now_[each.x[2]]};
      OPS[each.op].run(x, now_[each.y], count);
    }
    for (int64_t i = 0; i < code_.head.results; ++i)
      if (code_.kinds[i] != WORD) narrow(now_[code_.first_result() + i], count, out<uint8_t>(results_[i]) + begin);
  }

 private:
  // Operands are never written: instructions write to temporaries and results alone.
  float* operand(int64_t i, int64_t begin, int64_t count) {
    const Operand& o = code_.operands[i];
    const float* x = in(operands_[i]);
    if (o.runs() && o.size[LAST] == code_.count) return const_cast<float*>(x) + begin;
    if (o.kind == UNSIGNED_BYTE) {
      expand<uint8_t>(x, o, begin, count, own_[i]);
    } else if (o.kind == SIGNED_BYTE) {
      expand<int8_t>(x, o, begin, count, own_[i]);
    } else if (const Walk at(o, begin); at.left(LAST) < count) {
      expand<float>(x, o, begin, count, own_[i]);
      filled_[i] = nullptr;
    } else if (o.stride[LAST] == 1) {
      return const_cast<float*>(x) + at.offset;
    } else if (o.stride[LAST] != 0) {
      copy_run(x + at.offset, o.stride[LAST], count, own_[i]);
    } else if (filled_[i] != x + at.offset) {
      filled_[i] = x + at.offset;
      copy_run(filled_[i], 0, length_, own_[i]);
    }
    return own_[i];
  }

  const Code& code_;
  const void* const* operands_;
  void* const* results_;
  const int64_t length_;
  float* own_[MOST_REGISTERS];
  float* now_[MOST_REGISTERS];
  const float* filled_[MOST_OPERANDS] = {};
};

// Tiles of one register: so long that all that are not in place fit half of the L1 cache.
int64_t tile_length(const Code& code) {
  int64_t own = code.head.constants + code.head.temporaries;
  for (int64_t i = 0; i < code.head.operands; ++i) own += !code.operands[i].runs();
  return own == 0 ? 4096 : larger(int64_t{256}, smaller(int64_t{2048}, 4096 / own / 64 * 64));
}

}  // namespace

// Results may take the place of operands of the same size if there is only one.
KERNEL(chain, ARGS(code, constants, x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, y0, y1, y2, y3), PARAMS(count)) {
  const Code code(a.code, p.count);
  const void* operands[] = {a.x0, a.x1, a.x2, a.x3, a.x4, a.x5, a.x6, a.x7, a.x8, a.x9, a.x10, a.x11};
  void* const results[] = {a.y0, a.y1, a.y2, a.y3};
  const int64_t length = tile_length(code);
  constexpr int64_t unit = 64;  // parts begin on cache lines
  pool.split(ceil_div(p.count, unit), 8192 / unit, [&](int64_t first, int64_t last, int thread) {
    float* scratch = pool.scratch_f32(thread, code.registers() * (length + lanes));
    Tiles tiles(code, operands, in(a.constants), results, scratch, length);
    const int64_t end = smaller(last * unit, p.count);
    for (int64_t begin = first * unit; begin < end; begin += length)
      tiles.compute(begin, smaller(length, end - begin));
  });
}

// The names of the ops, separated by spaces: `names` has room for `size` bytes, and is filled up with spaces.
KERNEL(chain_ops, ARGS(names), PARAMS(size)) {
  char* y = out<char>(a.names);
  std::memset(y, ' ', static_cast<size_t>(p.size));
  int64_t at = 0;
  for (const Op& op : OPS) {
    const int64_t length = static_cast<int64_t>(std::strlen(op.name));
    if (at + length + 1 > p.size) return;
    std::memcpy(y + at, op.name, static_cast<size_t>(length));
    at += length + 1;
  }
}

}  // namespace mnnk
