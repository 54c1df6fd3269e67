// What is done to a result before it leaves the registers of the kernel that made it: bias and residual are added by
// the kernel itself, then one of these functions is applied.
#pragma once
#include <array>
#include <utility>

#include "simd.h"
#include "vmath.h"

namespace mnnk {

// The numbers are known to Python (mnnconvert/runtime_ref/cpu/lower.py: ACTIVATIONS).
enum Activation : int64_t {
  IDENTITY = 0,
  CLIP = 1,  // between low and high: ReLU is 0..inf, ReLU6 is 0..6
  SIGMOID = 2,
  SILU = 3,
  HARDSWISH = 4,  // x * clip(x + 3, 0, 6) / 6
  GELU = 5,       // 0.5 x (1 + erf(x / sqrt 2))
  GELU_TANH = 6,  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  TANH = 7,
  LEAKY = 8,  // x, or low * x below 0
};

MNNK_INLINE vf activate(int64_t activation, vf x, float low, float high) {
  switch (activation) {
    case CLIP: return min(splat(high), max(splat(low), x));
    case SIGMOID: return sigmoid(x);
    case SILU: return silu(x);
    case HARDSWISH: return x * min(splat(6.0f), max(vf{}, x + splat(3.0f))) * splat(1.0f / 6.0f);
    case GELU: return gelu(x);
    case GELU_TANH: return gelu_tanh(x);
    case TANH: return tanh(x);
    case LEAKY: return x < vf{} ? x * splat(low) : x;
    default: return x;
  }
}

// Rows of results in memory, `row` floats apart, in place.
template <int64_t ACTIVATION>
void activate_rows_by(float* y, int64_t row, int64_t rows, int64_t columns, float low, float high) {
  const auto f = [low, high](vf x) { return activate(ACTIVATION, x, low, high); };
  const int64_t pairs = columns / (2 * lanes), whole = pairs * 2 * lanes;
  float* at = y;
  for (int64_t n = rows * pairs, left = pairs; n > 0; --n, at += 2 * lanes) {  // one loop: constants are loaded once
    if (left-- == 0) at += row - whole, left = pairs - 1;
    const vf first = f(load(at)), second = f(load(at + lanes));
    store(at, first);
    store(at + lanes, second);
  }
  for (int64_t i = 0; i < rows && whole < columns; ++i, y += row) {
    int64_t j = whole;
    for (; j + lanes <= columns; j += lanes) store(y + j, f(load(y + j)));
    if (j < columns) store_part(y + j, f(load_part(y + j, columns - j)), columns - j);
  }
}

template <size_t... N> constexpr auto activations(std::index_sequence<N...>) { return std::array{&activate_rows_by<N>...}; }

__attribute__((noinline)) inline void activate_rows(int64_t activation, float* y, int64_t row, int64_t rows,
                                                    int64_t columns, float low, float high) {
  constexpr auto functions = activations(std::make_index_sequence<LEAKY + 1>());
  functions[static_cast<size_t>(activation)](y, row, rows, columns, low, high);
}

}  // namespace mnnk
