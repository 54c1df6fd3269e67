// The inner loop of the kernels that multiply pixels of blocked maps by packed weights (Winograd, deconvolution).
//
// A panel is `rows` pixels x PANEL output channels in registers: rows x 2 accumulators, per input channel two vectors
// of weights (one, where there are few outputs) and a broadcast of each pixel. Pixels lie `lanes` floats apart, as neighbours of a blocked map do, so that
// every address of a block of input channels is one register plus a constant. Weights of a panel are [inputs][PANEL].
#pragma once
#include "kernel.h"
#include "simd.h"

#include <array>
#include <utility>

namespace mnnk {

constexpr int PANEL = 2 * lanes;  // output channels of a panel

// Most rows of a panel: 2 x rows accumulators, two weights and a broadcast in 16 or 32 registers.
#if defined(__aarch64__)
constexpr int MOST_ROWS = 12;
#else
constexpr int MOST_ROWS = lanes == 16 ? 14 : lanes == 8 ? 6 : 4;  // without FMA, the product needs a register as well
#endif

// Weights to fetch to the second-level cache while others are multiplied: `step` floats per input channel.
struct Ahead {
  const float* next;
  int64_t step;

  // The part `strip` of `strips` of the weights of a panel. Weights are read from the last-level cache or from memory
  // once, then multiplied by several strips of pixels: each fetches its share of those that come then.
  static Ahead share(const float* weights, int64_t inputs, int64_t strip, int64_t strips) {
    const int64_t step = ceil_div(PANEL, strips);
    return {weights + strip * step * inputs, step};
  }

  MNNK_INLINE void fetch() {
    __builtin_prefetch(next, 0, 2);
    next += step;
  }
};

// acc[r][..] += sum over `blocks` blocks of input channels of a[block * step + r * lanes + channel] * b[channel][..]
template <int ROWS, int VECTORS>
MNNK_INLINE void accumulate(vf (&acc)[ROWS][VECTORS], const float* a, int64_t step, const float* b, int64_t blocks,
                            Ahead ahead) {
  for (int64_t block = 0; block < blocks; ++block, a += step) {
#pragma GCC unroll 8
    for (int k = 0; k < lanes; ++k, b += VECTORS * lanes) {
      ahead.fetch();
      vf weights[VECTORS];
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) weights[v] = load(b + v * lanes);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const vf each = splat(a[r * lanes + k]);
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v) acc[r][v] = fma(each, weights[v], acc[r][v]);
      }
    }
  }
}

// F<1>::run .. F<MOST_ROWS>::run, to be called by the number of rows less one.
template <template <int> class F, size_t... N> constexpr auto by_rows(std::index_sequence<N...>) {
  return std::array{&F<static_cast<int>(N) + 1>::run...};
}
template <template <int> class F> constexpr auto by_rows() { return by_rows<F>(std::make_index_sequence<MOST_ROWS>{}); }

}  // namespace mnnk
