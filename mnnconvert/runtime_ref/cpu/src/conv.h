// What the kernels on feature maps share: the blocked layout, and the end of their results.
//
// Blocked: a map [N,C,H,W] is stored as [N, ceil(C/lanes), H, W, lanes], so that a pixel of a block is one vector.
#pragma once
#include <limits>

#include "epilogue.h"
#include "kernel.h"
#include "simd.h"

namespace mnnk {

// sum += a * b, always in the same registers: left to itself, GCC 12 computes the sum in place of `a` or `b` now and
// then and moves it back, which costs the inner loops up to 12 %.
MNNK_INLINE void add_product(vf& sum, vf a, vf b) {
#if (MNNK_LANES == 8 && defined(__FMA__)) || (MNNK_LANES == 16 && defined(__AVX512F__))
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#elif MNNK_LANES == 16 && defined(__FMA__)
  __m256 s[2], x[2], y[2];  // "wide": by halves, because sixteen scalars take a minute to compile
  std::memcpy(s, &sum, sizeof s);
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  for (int i = 0; i < 2; ++i) s[i] = _mm256_fmadd_ps(x[i], y[i], s[i]);
  std::memcpy(&sum, s, sizeof s);
#else
  sum = fma(a, b, sum);
#endif
}

constexpr float INFINITE = std::numeric_limits<float>::infinity();

// Every kernel here clips its results while they are in registers; that is the whole epilogue for the identity and
// for CLIP. Other activations follow on the finished results, while these are in the first-level cache.
struct Clip {
  float low = -INFINITE, high = INFINITE;
  Clip() = default;
  Clip(int64_t activation, float low_, float high_) {
    if (activation == CLIP) low = low_, high = high_;
  }
  MNNK_INLINE vf operator()(vf x) const { return min(splat(high), max(splat(low), x)); }
};

inline bool needs_pass(int64_t activation) { return activation != IDENTITY && activation != CLIP; }

// `count` vectors at y, in place.
inline void activate_all(float* y, int64_t count, int64_t activation, float low, float high) {
  activate_rows(activation, y, 0, 1, count * lanes, low, high);
}

}  // namespace mnnk
