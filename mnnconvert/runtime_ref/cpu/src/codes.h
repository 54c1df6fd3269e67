// What the kernels on 8-bit codes share: the layout of maps of codes, and how numbers become codes.
//
// Maps of codes are stored with their channels last: [N, H, W, round_up(C, lanes)], so that the channels of a pixel are
// whole vectors. What stands in the places beyond C is of no consequence.
//
// A number x becomes clamp(round(x)), halves away from zero: x +- 0.5 in float32, truncated.
#pragma once
#include "kernel.h"
#include "simd.h"

namespace mnnk {

typedef int8_t vb __attribute__((vector_size(MNNK_LANES)));  // as many bytes as there are lanes

inline int64_t whole_lanes(int64_t channels) { return round_up(channels, lanes); }

MNNK_INLINE vf load_codes(const int8_t* p) {
  vb bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return to_float(__builtin_convertvector(bytes, vi));
}
MNNK_INLINE vb narrow(vi x) { return __builtin_convertvector(x, vb); }
MNNK_INLINE void store_codes(int8_t* p, vi x) {
  const vb bytes = narrow(x);
  std::memcpy(p, &bytes, sizeof bytes);
}

struct Rounding {
  vf low, high;
  Rounding(int64_t low_, int64_t high_) : low(splat(static_cast<float>(low_))), high(splat(static_cast<float>(high_))) {}
  MNNK_INLINE vi operator()(vf x) const {
    const vi sign = as_int(x) & splat_int(INT32_MIN);
    const vf moved = x + as_float(sign | as_int(splat(0.5f)));
    return truncate_to_int(min(high, max(low, moved)));
  }
};

}  // namespace mnnk
