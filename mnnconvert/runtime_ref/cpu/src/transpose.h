// Transposing blocks of lanes x lanes floats in registers.
#pragma once
#include <utility>

#include "simd.h"

namespace mnnk {

template <int... I> MNNK_INLINE vf shuffle(vf a, vf b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, I...);
#else
  return __builtin_shuffle(a, b, vi{I...});
#endif
}

// One stage of the transposition: of rows i and i + distance the blocks of `distance` lanes off the diagonal are
// exchanged. Stages at distances 1, 2, 4 ... transpose the whole.
template <int distance, int... I>
MNNK_INLINE void exchange(vf& a, vf& b, std::integer_sequence<int, I...>) {
  const vf low = shuffle<(I & distance ? lanes + I - distance : I)...>(a, b);
  b = shuffle<(I & distance ? lanes + I : I + distance)...>(a, b);
  a = low;
}

template <int distance = 1> MNNK_INLINE void transpose(vf (&rows)[lanes]) {
  if constexpr (distance < lanes) {
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i)
      if (!(i & distance)) exchange<distance>(rows[i], rows[i + distance], std::make_integer_sequence<int, lanes>{});
    transpose<distance * 2>(rows);
  }
}

// to[j][i] = from[i][j] for i, j below `lanes`; strides from row to row.
MNNK_INLINE void transpose_block(const float* from, int64_t from_row, float* to, int64_t to_row) {
  vf rows[lanes];
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) rows[i] = load(from + i * from_row);
  transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) store(to + i * to_row, rows[i]);
}

}  // namespace mnnk
