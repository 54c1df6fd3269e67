// Maps of 8-bit codes beside convolution: from floats and back, arithmetic, pooling. See codes.h for their layout.
#include <algorithm>

#include "codes.h"
#include "transpose.h"

using namespace mnnk;

namespace {

constexpr int64_t grain = 16384;  // elements worth a thread

enum Layout : int64_t { SAME = 0, PLAIN = 1, BLOCKED = 2 };  // of the floats; SAME: both sides in the same order

// Bytes may lie anywhere, so that after each one that is stored everything in memory is read again: loops work on
// copies of what they need.

// f(image, block, first, count): squares of lanes channels x up to lanes pixels, in an order that threads share out.
template <class F> void each_square(Pool& pool, int64_t batch, int64_t channels, int64_t pixels, const F& f) {
  const int64_t blocks = ceil_div(channels, lanes), squares = ceil_div(pixels, lanes);
  pool.split(batch * squares, ceil_div(grain, blocks * lanes * lanes), [&](int64_t begin, int64_t end, int) {
    const F own = f;
    for (int64_t i = begin; i < end; ++i)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t first = i % squares * lanes;
        own(i / squares, b, first, smaller<int64_t>(lanes, pixels - first));
      }
  });
}

// f(from, count): parts of a vector.
template <class F> void each_vector(Pool& pool, int64_t count, const F& f) {
  const int64_t vectors = ceil_div(count, lanes);
  pool.split(vectors, grain / lanes, [&](int64_t begin, int64_t end, int) {
    const F own = f;
    for (int64_t i = begin; i < end; ++i) own(i * lanes, smaller<int64_t>(lanes, count - i * lanes));
  });
}

MNNK_INLINE vf load_codes_part(const int8_t* p, int64_t count) {
  if (count == lanes) return load_codes(p);
  int8_t buffer[lanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(count));
  return load_codes(buffer);
}
MNNK_INLINE void store_codes_part(int8_t* p, vi x, int64_t count) {
  if (count == lanes) return store_codes(p, x);
  int8_t buffer[lanes];
  store_codes(buffer, x);
  std::memcpy(p, buffer, static_cast<size_t>(count));
}

void maximum(int8_t* __restrict y, const int8_t* __restrict x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = larger(y[i], x[i]);
}
void add_moved(uint32_t* __restrict sums, const int8_t* __restrict x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<uint32_t>(x[i] + 128);
}
void divide(int8_t* __restrict y, const uint32_t* __restrict sums, uint32_t factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<int8_t>(static_cast<int32_t>(sums[i] * factor >> 24) - 128);
}

// A binary function by number: 0 +, 1 -, 2 *.
template <int F> MNNK_INLINE vf combine(vf x, vf y) { return F == 0 ? x + y : F == 1 ? x - y : x * y; }

}  // namespace

// y = clamp(round(x * factor + offset)). x float32 [batch, channels, pixels], plain or blocked, y a map of codes; or both
// of batch * channels * pixels numbers in the same order.
KERNEL(floats_to_codes, ARGS(x, y), PARAMS(batch, channels, pixels, layout, lowest, highest), SCALARS(factor, offset)) {
  const Rounding round(p.lowest, p.highest);
  const vf factor = splat(s.factor), offset = splat(s.offset);
  const float* x = in(a.x);
  int8_t* y = out<int8_t>(a.y);
  const auto code = [=](vf v) { return round(v * factor + offset); };
  if (p.layout == SAME)
    return each_vector(pool, p.batch * p.channels * p.pixels, [=](int64_t from, int64_t count) {
      store_codes_part(y + from, code(count == lanes ? load(x + from) : load_part(x + from, count)), count);
    });
  const int64_t padded = whole_lanes(p.channels), channels = p.channels, pixels = p.pixels, layout = p.layout;
  each_square(pool, p.batch, p.channels, p.pixels, [=](int64_t image, int64_t block, int64_t first, int64_t count) {
    int8_t* to = y + (image * pixels + first) * padded + block * lanes;
    if (layout == BLOCKED) {
      const float* from = x + (image * padded + block * lanes) * pixels + first * lanes;
      for (int64_t q = 0; q < count; ++q) store_codes(to + q * padded, code(load(from + q * lanes)));
      return;
    }
    const float* from = x + (image * channels + block * lanes) * pixels + first;
    const int64_t rows = smaller<int64_t>(lanes, channels - block * lanes);
    alignas(64) float square[lanes * lanes];
    if (rows == lanes && count == lanes) transpose_block(from, pixels, square, lanes);
    else
      for (int64_t q = 0; q < count; ++q)
        for (int64_t i = 0; i < lanes; ++i) square[q * lanes + i] = i < rows ? from[i * pixels + q] : 0.0f;
    for (int64_t q = 0; q < count; ++q) store_codes(to + q * padded, code(load(square + q * lanes)));
  });
}

// y = (x - zero) * factor, the way back.
KERNEL(codes_to_floats, ARGS(x, y), PARAMS(batch, channels, pixels, layout), SCALARS(factor, zero)) {
  const vf factor = splat(s.factor), zero = splat(s.zero);
  const int8_t* x = in<int8_t>(a.x);
  float* y = out(a.y);
  const auto value = [=](vf code) { return (code - zero) * factor; };
  if (p.layout == SAME)
    return each_vector(pool, p.batch * p.channels * p.pixels, [=](int64_t from, int64_t count) {
      const vf v = value(load_codes_part(x + from, count));
      if (count == lanes) store(y + from, v);
      else store_part(y + from, v, count);
    });
  const int64_t padded = whole_lanes(p.channels), channels = p.channels, pixels = p.pixels, layout = p.layout;
  each_square(pool, p.batch, p.channels, p.pixels, [=](int64_t image, int64_t block, int64_t first, int64_t count) {
    const int8_t* from = x + (image * pixels + first) * padded + block * lanes;
    if (layout == BLOCKED) {
      float* to = y + (image * padded + block * lanes) * pixels + first * lanes;
      for (int64_t q = 0; q < count; ++q) store(to + q * lanes, value(load_codes(from + q * padded)));
      return;
    }
    float* to = y + (image * channels + block * lanes) * pixels + first;
    const int64_t rows = smaller<int64_t>(lanes, channels - block * lanes);
    alignas(64) float square[lanes * lanes];
    for (int64_t q = 0; q < count; ++q) store(square + q * lanes, value(load_codes(from + q * padded)));
    if (rows == lanes && count == lanes) return transpose_block(square, lanes, to, pixels);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t q = 0; q < count; ++q) to[i * pixels + q] = square[q * lanes + i];
  });
}

// y = clamp(round(max(low, f((x0 - zero0) * scale0, (x1 - zero1) * scale1)) * factor + offset)) for `count` codes.
KERNEL(binary_codes, ARGS(x0, x1, y), PARAMS(count, function, lowest, highest),
       SCALARS(scale0, zero0, scale1, zero1, low, factor, offset)) {
  const Rounding round(p.lowest, p.highest);
  const int8_t *x0 = in<int8_t>(a.x0), *x1 = in<int8_t>(a.x1);
  int8_t* y = out<int8_t>(a.y);
  const vf zero0 = splat(s.zero0), scale0 = splat(s.scale0), zero1 = splat(s.zero1), scale1 = splat(s.scale1);
  const vf low = splat(s.low), factor = splat(s.factor), offset = splat(s.offset);
  const auto run = [&](const auto& f) {
    each_vector(pool, p.count, [=](int64_t from, int64_t count) {
      const vf left = (load_codes_part(x0 + from, count) - zero0) * scale0;
      const vf right = (load_codes_part(x1 + from, count) - zero1) * scale1;
      store_codes_part(y + from, round(max(low, f(left, right)) * factor + offset), count);
    });
  };
  if (p.function == 0) run(combine<0>);
  else if (p.function == 1) run(combine<1>);
  else run(combine<2>);
}

// Windows of kernel_h x kernel_w: the maximum, or with `mean` (sum of code + 128) * floor(2^24 / count) >> 24, less 128,
// of what lies in the image. A window beside the image gives the lowest code.
KERNEL(pool_codes, ARGS(x, y),
       PARAMS(n, channels, h, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, top, left, mean)) {
  const int64_t padded = whole_lanes(p.channels);
  const int64_t work = larger<int64_t>(1, p.out_w * p.kernel_h * p.kernel_w * padded);
  pool.split(p.n * p.out_h, ceil_div(4 * grain, work), [&](int64_t begin, int64_t end, int thread) {
    uint32_t* sums = p.mean ? static_cast<uint32_t*>(pool.scratch(thread, padded * sizeof(uint32_t))) : nullptr;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t oy = row % p.out_h * p.stride_h - p.top;
      const int64_t top = larger<int64_t>(0, oy), bottom = smaller(p.h, oy + p.kernel_h);
      const int8_t* x = in<int8_t>(a.x) + row / p.out_h * p.h * p.width * padded;
      int8_t* y = out<int8_t>(a.y) + row * p.out_w * padded;
      for (int64_t ox = 0; ox < p.out_w; ++ox, y += padded) {
        const int64_t first = ox * p.stride_w - p.left;
        const int64_t left = larger<int64_t>(0, first), right = smaller(p.width, first + p.kernel_w);
        if (p.mean) std::fill_n(sums, padded, 0u);
        else std::fill_n(y, padded, static_cast<int8_t>(-128));
        for (int64_t iy = top; iy < bottom; ++iy)
          for (int64_t ix = left; ix < right; ++ix) {
            const int8_t* from = x + (iy * p.width + ix) * padded;
            if (p.mean) add_moved(sums, from, padded);
            else maximum(y, from, padded);
          }
        if (!p.mean) continue;
        const int64_t count = larger<int64_t>(1, bottom - top) * larger<int64_t>(1, right - left);
        divide(y, sums, static_cast<uint32_t>((1 << 24) / count), padded);
      }
    }
  });
}
