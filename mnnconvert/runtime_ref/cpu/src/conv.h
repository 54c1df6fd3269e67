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

// Direct convolution (kernels/conv.cpp).

constexpr int64_t PASS_STEPS = 256;  // steps of the sum in one pass: 16 KiB of weights for two blocks of 8

// Blocks of output channels go in tiles of 2; a last single one makes the tile before it 3.
inline int64_t tile_count(int64_t blocks) { return blocks < 2 ? blocks : blocks / 2; }
inline int64_t tile_blocks(int64_t blocks, int64_t tile) {
  return tile + 1 < tile_count(blocks) ? 2 : blocks - 2 * tile;
}

struct Tile {
  const float* x;
  const int32_t* pixels;
  const int32_t* runs;  // `full` runs of `lanes` steps, then `single` steps
  int64_t full, single;
  const float* w;         // [steps][B][lanes]
  const float* bias;      // [B][lanes]; null: add to the sums in y
  const float* residual;  // as y, or null
  float* y;               // [B], `plane` floats apart, [pixels][lanes]
  int64_t plane;
  Clip clip;
};

// One pass of `pixels` outputs of a tile of 1..3 blocks.
void run_tile(const Tile& t, int64_t blocks, int64_t pixels);

// Depthwise convolution (kernels/depthwise.cpp).

// One block of channels of one image.
struct Plane {
  const float *x, *w;     // w [kernel_h][kernel_w][lanes]
  const float* residual;  // as y, or null
  float* y;
  int64_t h, width, out_w, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, top, left;
  Clip clip;
};

// The output rows [begin, end). Rows of x that no window of these meets may be missing.
void run_depthwise(const Plane& t, vf bias, int64_t begin, int64_t end);

}  // namespace mnnk
