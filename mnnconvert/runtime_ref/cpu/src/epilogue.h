// What is done to a result before it leaves the registers of the kernel that made it: bias and residual are added by
// the kernel itself, then one of these functions is applied.
#pragma once
#include "simd.h"
#include "vmath.h"

namespace mnnk {

// The numbers are known to Python (mnnconvert/runtime_ref/cpu/program.py: ACTIVATIONS).
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

}  // namespace mnnk
