// Depthwise convolution on blocked maps: a channel is a lane, so that a pixel of a block is one vector everywhere.
//
// A tile is P neighbouring outputs of a row, whose sums stay in registers. For kernels 3 and 5 wide with stride 1 or 2
// the weights of a kernel row do, too, and every input of the row is loaded once for all outputs that it belongs to.
// Other kernels load an input per product. What lies outside the image is left out.
//
// An output is summed over ky, kx in order, whatever the tile.
#include "conv.h"

using namespace mnnk;

namespace {

constexpr int MOST_PIXELS = 8;

// What of a tile lies outside the image: nothing, as many columns as a kernel of odd width reaches over its middle, or
// another number, so that each load is checked.
enum Border { INSIDE, LEFT, RIGHT, BOTH, CHECKED };

template <Border B> MNNK_INLINE vf input(const float* row, int64_t at, int64_t width) {
  if (B == CHECKED && static_cast<uint64_t>(at) >= static_cast<uint64_t>(width)) return vf{};
  return load(row + at * lanes);
}

// Adds a kernel row of K weights at stride S; K = 0: of any width, stride and dilation.
template <int K, int S, int P, Border B>
MNNK_INLINE void add_row(vf (&sum)[P], const Plane& t, const float* row, int64_t at, const float* w) {
  if constexpr (K == 0) {
    for (int64_t kx = 0; kx < t.kernel_w; ++kx) {
      const vf weight = load(w + kx * lanes);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p)
        sum[p] = fma(weight, input<B>(row, at + kx * t.dilation_w + p * t.stride_w, t.width), sum[p]);
    }
  } else {
    vf weight[K];
#pragma GCC unroll 16
    for (int kx = 0; kx < K; ++kx) weight[kx] = load(w + kx * lanes);
    constexpr int end = (P - 1) * S + K - (B == RIGHT || B == BOTH ? K / 2 : 0);
#pragma GCC unroll 32
    for (int j = B == LEFT || B == BOTH ? K / 2 : 0; j < end; ++j) {
      const vf x = input<B>(row, at + j, t.width);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p)
        if (j >= p * S && j < p * S + K) add_product(sum[p], x, weight[j - p * S]);
    }
  }
}

// `tiles` tiles from column `first` on, of the output rows [begin, end).
template <int K, int S, int P, Border B>
__attribute__((noinline)) void run_tiles(const Plane& plane, vf bias, int64_t first, int64_t tiles, int64_t begin,
                                         int64_t end) {
  const Plane t = plane;  // no store can change this one: it stays in registers
  const vf low = splat(t.clip.low), high = splat(t.clip.high);
  const int64_t span = (t.kernel_h - 1) * t.dilation_h;
  for (int64_t oy = begin; oy < end; ++oy) {
    const int64_t from = oy * t.stride_h - t.top;
    const int64_t ky_begin = from < 0 ? ceil_div(-from, t.dilation_h) : 0;
    const int64_t ky_end = from + span < t.h ? t.kernel_h : from < t.h ? ceil_div(t.h - from, t.dilation_h) : 0;
    for (int64_t ox = first; ox < first + tiles * P; ox += P) {
      vf sum[P];
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) sum[p] = bias;
      const int64_t at = ox * t.stride_w - t.left;
      for (int64_t ky = ky_begin; ky < ky_end; ++ky)
        add_row<K, S, P, B>(sum, t, t.x + (from + ky * t.dilation_h) * t.width * lanes, at,
                            t.w + ky * t.kernel_w * lanes);
      const int64_t to = (oy * t.out_w + ox) * lanes;
      if (t.residual) {
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) sum[p] += load(t.residual + to + p * lanes);
      }
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) store(t.y + to + p * lanes, min(high, max(low, sum[p])));
    }
  }
}

// Several tiles at once only where none meets the border.
template <int K, int S, int P = MOST_PIXELS>
void choose(const Plane& t, vf bias, int64_t pixels, int64_t first, int64_t tiles, int64_t begin, int64_t end) {
  if (tiles <= 0) return;
  if (pixels == P) {
    const int64_t at = first * t.stride_w - t.left, reach = (t.kernel_w - 1) * t.dilation_w;
    const int64_t left = larger<int64_t>(0, -at);
    const int64_t right = larger<int64_t>(0, at + (tiles * P - 1) * t.stride_w + reach - (t.width - 1));
    const bool halves = K && (left == 0 || left == K / 2) && (right == 0 || right == K / 2);
    const auto run = left + right == 0 ? run_tiles<K, S, P, INSIDE>
                     : !halves         ? run_tiles<K, S, P, CHECKED>
                     : !right          ? run_tiles<K, S, P, LEFT>
                     : !left           ? run_tiles<K, S, P, RIGHT>
                                       : run_tiles<K, S, P, BOTH>;
    run(t, bias, first, tiles, begin, end);
  } else if constexpr (P > 1) {
    choose<K, S, P - 1>(t, bias, pixels, first, tiles, begin, end);
  }
}

// Tiles are equally wide but for the last. Those from `free` to `late` read nothing beside the image.
template <int K, int S> void run_rows(const Plane& t, vf bias, int64_t begin, int64_t end) {
  const int64_t wide = ceil_div(t.out_w, ceil_div(t.out_w, MOST_PIXELS)), count = ceil_div(t.out_w, wide) - 1;
  const int64_t step = wide * t.stride_w;
  // a tile i ends at i * step + reach
  const int64_t reach = (wide - 1) * t.stride_w + (t.kernel_w - 1) * t.dilation_w - t.left;
  const int64_t free = smaller(count, ceil_div(larger<int64_t>(0, t.left), step));
  const int64_t inside = reach < t.width ? (t.width - 1 - reach) / step + 1 : 0;
  const int64_t late = larger(free, smaller(count, inside));
  for (int64_t i = 0; i < free; ++i) choose<K, S>(t, bias, wide, i * wide, 1, begin, end);
  choose<K, S>(t, bias, wide, free * wide, late - free, begin, end);
  for (int64_t i = late; i < count; ++i) choose<K, S>(t, bias, wide, i * wide, 1, begin, end);
  choose<K, S>(t, bias, t.out_w - count * wide, count * wide, 1, begin, end);
}

}  // namespace

void mnnk::run_depthwise(const Plane& t, vf bias, int64_t begin, int64_t end) {
  const int64_t kernel = t.dilation_w == 1 ? t.kernel_w : 0;
  if (kernel == 3 && t.stride_w == 1) return run_rows<3, 1>(t, bias, begin, end);
  if (kernel == 3 && t.stride_w == 2) return run_rows<3, 2>(t, bias, begin, end);
  if (kernel == 5 && t.stride_w == 1) return run_rows<5, 1>(t, bias, begin, end);
  if (kernel == 5 && t.stride_w == 2) return run_rows<5, 2>(t, bias, begin, end);
  run_rows<0, 0>(t, bias, begin, end);
}

// w [channels, 1, kernel_h, kernel_w] -> packed [ceil(channels/lanes), kernel_h, kernel_w, lanes].
KERNEL(depthwise_pack, ARGS(w, packed), PARAMS(channels, kernel_h, kernel_w)) {
  const int64_t taps = p.kernel_h * p.kernel_w, padded = round_up(p.channels, lanes);
  const float* w = in(a.w);
  float* y = out(a.packed);
  for (int64_t c = 0; c < padded; ++c)
    for (int64_t tap = 0; tap < taps; ++tap)
      y[(c / lanes * taps + tap) * lanes + c % lanes] = c < p.channels ? w[c * taps + tap] : 0.0f;
}

// x and y blocked; bias [channels] or null; residual as y or null, may be y itself.
KERNEL(depthwise_f32, ARGS(x, w, bias, residual, y),
       PARAMS(n, channels, h, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, top,
              left, activation),
       SCALARS(low, high)) {
  const int64_t blocks = ceil_div(p.channels, lanes), taps = p.kernel_h * p.kernel_w;
  if (p.out_w == 0) return;
  const int64_t grain = ceil_div(16384, p.out_w * taps);
  pool.split(p.n * blocks * p.out_h, grain, [&](int64_t begin, int64_t end, int) {
    while (begin < end) {
      const int64_t at = begin / p.out_h, block = at % blocks, first = begin % p.out_h;
      const int64_t last = smaller(p.out_h, first + end - begin);
      const int64_t plane = at * p.out_h * p.out_w * lanes;
      const Plane t{in(a.x) + at * p.h * p.width * lanes, in(a.w) + block * taps * lanes,
                    a.residual ? in(a.residual) + plane : nullptr, out(a.y) + plane,
                    p.h, p.width, p.out_w, p.kernel_h, p.kernel_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w,
                    p.top, p.left, Clip(p.activation, s.low, s.high)};
      const int64_t channels = smaller<int64_t>(lanes, p.channels - block * lanes);
      run_depthwise(t, a.bias ? load_part(in(a.bias) + block * lanes, channels) : vf{}, first, last);
      if (needs_pass(p.activation))
        activate_all(t.y + first * p.out_w * lanes, (last - first) * p.out_w, p.activation, s.low, s.high);
      begin += last - first;
    }
  });
}
