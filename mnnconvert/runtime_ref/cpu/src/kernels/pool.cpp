// Pooling on blocked maps: the maximum, or the mean, of windows; a pixel of a block is one vector.
//
// Windows are clipped to the image. The mean divides by the number of elements that the window has in the image widened
// by `margin` on either side (0, or the padding in front where padding counts), at least 1 along each axis.
#include "conv.h"

using namespace mnnk;

namespace {

constexpr float LOWEST = std::numeric_limits<float>::lowest();  // the maximum of a window in the padding

struct Axis {
  int64_t size, kernel, stride, begin, margin;
  int64_t from(int64_t o) const { return larger<int64_t>(0, o * stride - begin); }
  int64_t to(int64_t o) const { return smaller(size, o * stride - begin + kernel); }
  int64_t covered(int64_t o) const {
    const int64_t start = o * stride - begin;
    return larger<int64_t>(1, smaller(start + kernel, size + margin) - larger(start, -margin));
  }
};

// A NaN stays, wherever in the window it lies.
MNNK_INLINE vf maximum(vf most, vf x) { return most == most ? max(most, x) : most; }

template <bool Mean> MNNK_INLINE vf fold(vf so_far, vf x) { return Mean ? so_far + x : maximum(so_far, x); }

// The output row `oy` of one block.
template <bool Mean>
void run_row(const Axis& rows, const Axis& columns, const float* x, float* y, int64_t oy, int64_t out_w) {
  const int64_t top = rows.from(oy), bottom = rows.to(oy);
  for (int64_t ox = 0; ox < out_w; ++ox, y += lanes) {
    const int64_t left = columns.from(ox), right = columns.to(ox);
    vf all = Mean ? vf{} : splat(LOWEST);
    for (int64_t iy = top; iy < bottom; ++iy)
      for (const float *at = x + (iy * columns.size + left) * lanes, *end = at + (right - left) * lanes; at < end;
           at += lanes)
        all = fold<Mean>(all, load(at));
    store(y, Mean ? all / splat(static_cast<float>(rows.covered(oy) * columns.covered(ox))) : all);
  }
}

// A whole plane in four interleaved parts, so that additions need not wait for each other.
template <bool Mean> vf fold_plane(const float* x, int64_t pixels) {
  vf part[4];
  for (vf& each : part) each = Mean ? vf{} : splat(LOWEST);
  int64_t q = 0;
  for (; q + 4 <= pixels; q += 4)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) part[i] = fold<Mean>(part[i], load(x + (q + i) * lanes));
  for (; q < pixels; ++q) part[0] = fold<Mean>(part[0], load(x + q * lanes));
  const vf all = fold<Mean>(fold<Mean>(part[0], part[1]), fold<Mean>(part[2], part[3]));
  return Mean ? all / splat(static_cast<float>(pixels)) : all;
}

}  // namespace

// Windows of kernel_h x kernel_w; `mean` or maximum. x and y blocked.
KERNEL(pool_f32, ARGS(x, y),
       PARAMS(n, channels, h, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, top, left, margin_h, margin_w,
              mean)) {
  const int64_t blocks = ceil_div(p.channels, lanes);
  const Axis rows{p.h, p.kernel_h, p.stride_h, p.top, p.margin_h};
  const Axis columns{p.width, p.kernel_w, p.stride_w, p.left, p.margin_w};
  const int64_t work = p.out_w * p.kernel_h * p.kernel_w;
  pool.split(p.n * blocks * p.out_h, ceil_div(16384, larger<int64_t>(1, work)), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float* x = in(a.x) + i / p.out_h * p.h * p.width * lanes;
      float* y = out(a.y) + i * p.out_w * lanes;
      if (p.mean) run_row<true>(rows, columns, x, y, i % p.out_h, p.out_w);
      else run_row<false>(rows, columns, x, y, i % p.out_h, p.out_w);
    }
  });
}

// All `pixels` of each channel: y is [n, ceil(channels/lanes), lanes].
KERNEL(pool_all_f32, ARGS(x, y), PARAMS(n, channels, pixels, mean)) {
  const int64_t planes = p.n * ceil_div(p.channels, lanes);
  pool.split(planes, ceil_div(16384, larger<int64_t>(1, p.pixels)), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float* x = in(a.x) + i * p.pixels * lanes;
      store(out(a.y) + i * lanes, p.mean ? fold_plane<true>(x, p.pixels) : fold_plane<false>(x, p.pixels));
    }
  });
}
