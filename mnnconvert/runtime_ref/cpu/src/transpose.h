// A square of lanes x lanes floats in registers, transposed.
#pragma once
#include <utility>

#include "simd.h"

namespace mnnk {

// Of two rows, every second group of `Step` elements: the even ones of both, or the odd ones of both.
template <int Step, int Odd, int... I> MNNK_INLINE vf pick(vf a, vf b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, ((I / Step % 2 ? lanes : 0) + (I & ~Step) + Odd * Step)...);
#else
  return __builtin_shuffle(a, b, vi{((I / Step % 2 ? lanes : 0) + (I & ~Step) + Odd * Step)...});
#endif
}

// Exchanges the off-diagonal quarters of every square of 2 Step rows, Step = 1, 2, 4 ...
template <int Step = 1> MNNK_INLINE void transpose(vf (&rows)[lanes]) {
  constexpr auto all = std::make_integer_sequence<int, lanes>();
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) {
    if (i & Step) continue;
    const vf upper = rows[i], lower = rows[i + Step];
    rows[i] = pick<Step, 0>(upper, lower, all);
    rows[i + Step] = pick<Step, 1>(upper, lower, all);
  }
  if constexpr (2 * Step < lanes) transpose<2 * Step>(rows);
}

}  // namespace mnnk
