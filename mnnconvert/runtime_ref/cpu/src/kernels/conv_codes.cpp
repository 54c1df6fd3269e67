// Convolution of 8-bit codes, exact in integers, and rounded to codes again: see codes.h for layout and rounding.
//
//   y = clamp(round((sum of w * x + start) * scale + shift))        start, scale and shift per channel of the result
//
// Dense. The outputs of an image are cut in chunks of pixels. What a chunk reads is copied, as dot.h wants activations,
// with the padding: pixels of round_up(C, group) channels. A row of the window is then one run of memory wherever there
// is no dilation. Weights lie in tiles of two blocks of `lanes` outputs (the last tile may be one block):
//
//   packed   [tiles][kernel_h][kernel_w][round_up(C, group) / group][blocks of the tile][lanes][group]
//   numbers  [start, scale, shift][round_up(outputs, lanes)], start as an integer
//
// The sums of a block of pixels and a tile stay in registers until they are codes.
//
// Depthwise. Sums of float products are exact here, because they stay below 2^24: every input becomes floats once for
// all outputs of a row that read it.
//
//   packed   [blocks][kernel_h][kernel_w][lanes] floats
#include <algorithm>

#include "codes.h"
#include "dot.h"

using namespace mnnk;

namespace {

#if MNNK_LANES == 16 && !defined(__AVX512F__)
constexpr int most_pixels = 2;  // "wide": quick to compile
#elif MNNK_LANES == 16
constexpr int most_pixels = 12;
#else
constexpr int most_pixels = 6;
#endif
constexpr int64_t chunk_bytes = 128 << 10;  // of activations: a part of the L2 cache
constexpr int64_t chunk_pixels = 384;

struct Axis {
  int64_t size, out, kernel, stride, dilation, begin;
  int64_t span() const { return (kernel - 1) * dilation + 1; }
  int64_t read(int64_t outputs) const { return (outputs - 1) * stride + span(); }
};

struct Conv {
  Axis rows, columns;
  int64_t images, inputs, outputs;
  int64_t group, activation_bytes;  // of the dot product

  int64_t taps() const { return rows.kernel * columns.kernel; }
  int64_t channels() const { return round_up(inputs, group); }  // of a pixel in a copy
  int64_t in_pixel() const { return whole_lanes(inputs); }
  int64_t out_pixel() const { return whole_lanes(outputs); }
  int64_t blocks() const { return ceil_div(outputs, lanes); }
  int64_t tiles() const { return ceil_div(blocks(), 2); }
  int64_t tile_blocks(int64_t tile) const { return smaller<int64_t>(2, blocks() - 2 * tile); }
  int64_t out_pixels() const { return rows.out * columns.out; }
  bool single() const { return taps() == 1; }

  // Pixels of output that are computed at once: whole rows, or a part of one.
  int64_t chunk() const {
    const int64_t area = larger<int64_t>(1, chunk_bytes / (channels() * activation_bytes));
    if (single()) return even(out_pixels(), smaller(area, chunk_pixels));
    const int64_t width = columns.read(columns.out);
    int64_t fit = smaller((area / width - rows.span()) / rows.stride + 1, chunk_pixels / columns.out);
    if (fit >= 1) return even(rows.out, smaller(fit, rows.out)) * columns.out;
    fit = (area / rows.span() - columns.span()) / columns.stride + 1;
    return smaller(columns.out, larger<int64_t>(fit, 2 * most_pixels));
  }
  static int64_t even(int64_t count, int64_t most) { return ceil_div(count, ceil_div(count, most)); }
};

// The activations that the outputs [begin, end) read: a rectangle, or of a window of one pixel only that pixel each.
struct Window {
  int64_t row, column, height, width;
  Window(const Conv& c, int64_t begin, int64_t end) {
    if (c.single()) {
      row = column = 0;
      height = 1;
      width = end - begin;
      return;
    }
    const int64_t first = begin / c.columns.out, last = (end - 1) / c.columns.out;
    const int64_t left = first == last ? begin % c.columns.out : 0;
    const int64_t right = first == last ? (end - 1) % c.columns.out : c.columns.out - 1;
    row = first * c.rows.stride - c.rows.begin;
    column = left * c.columns.stride - c.columns.begin;
    height = c.rows.read(last - first + 1);
    width = c.columns.read(right - left + 1);
  }
};

// Pixels of codes as activations; `step` codes from one to the next.
template <class Dot, class Activation = typename Dot::Activation>
void copy_pixels(const Conv& c, const int8_t* __restrict x, int64_t step, int64_t count, Activation* __restrict to) {
  const int64_t channels = c.channels();
  if (channels == step) {
    for (int64_t i = 0; i < count * channels; ++i) to[i] = static_cast<Activation>(x[i] + Dot::offset);
    return;
  }
  for (int64_t q = 0; q < count; ++q, x += step, to += channels)
    for (int64_t i = 0; i < channels; ++i) to[i] = static_cast<Activation>(x[i] + Dot::offset);
}

template <class Dot, class Activation = typename Dot::Activation>
void copy_window(const Conv& c, const Window& at, const int8_t* x, Activation zero, Activation* to) {
  const int64_t pixel = c.in_pixel(), channels = c.channels();
  const int64_t left = smaller(at.width, larger<int64_t>(0, -at.column));
  const int64_t inside = larger<int64_t>(0, smaller(at.width, c.columns.size - at.column) - left);
  for (int64_t r = 0; r < at.height; ++r, to += at.width * channels) {
    const int64_t row = at.row + r;
    if (row < 0 || row >= c.rows.size || inside == 0) {
      std::fill_n(to, at.width * channels, zero);
      continue;
    }
    std::fill_n(to, left * channels, zero);
    copy_pixels<Dot>(c, x + (row * c.columns.size + at.column + left) * pixel, pixel, inside, to + left * channels);
    std::fill_n(to + (left + inside) * channels, (at.width - left - inside) * channels, zero);
  }
}

template <class Dot, class Activation = typename Dot::Activation>
void copy_single(const Conv& c, const int8_t* x, Activation zero, int64_t begin, int64_t end, Activation* to) {
  const int64_t pixel = c.in_pixel(), channels = c.channels();
  const bool all = c.rows.stride == 1 && c.columns.stride == 1 && c.rows.begin == 0 && c.columns.begin == 0 &&
                   c.rows.out == c.rows.size && c.columns.out == c.columns.size;
  if (all) return copy_pixels<Dot>(c, x + begin * pixel, pixel, end - begin, to);
  for (int64_t q = begin; q < end; ++q, to += channels) {
    const int64_t row = q / c.columns.out * c.rows.stride - c.rows.begin;
    const int64_t column = q % c.columns.out * c.columns.stride - c.columns.begin;
    if (row < 0 || row >= c.rows.size || column < 0 || column >= c.columns.size)
      std::fill_n(to, channels, zero);
    else
      copy_pixels<Dot>(c, x + (row * c.columns.size + column) * pixel, pixel, 1, to);
  }
}

// A tile of outputs of a chunk.
template <class Dot> struct Tile {
  const typename Dot::Activation* const* pixels;  // where the window of each begins
  const int64_t* runs;                          // where each run of the window begins
  int64_t run_count, run_words;                 // words of `group` activations
  const typename Dot::Weight* w;
  const int32_t* start;
  const float *scale, *shift;
  int8_t* y;
  int64_t y_pixel;
  Rounding round;
};

template <class Dot, int P, int B> __attribute__((noinline)) void run_tile(const Tile<Dot>& t, int64_t first) {
  constexpr int group = Dot::group;
  vi sum[P][B];
  const typename Dot::Activation* x[P];
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) {
    x[p] = t.pixels[first + p];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) sum[p][b] = load(t.start + b * lanes);
  }
  const typename Dot::Weight* w = t.w;
  for (int64_t r = 0; r < t.run_count; ++r) {
    const int64_t begin = t.runs[r], end = begin + t.run_words * group;
    for (int64_t i = begin; i < end; i += group, w += B * lanes * group) {
      vi weight[B];
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) std::memcpy(&weight[b], w + b * lanes * group, sizeof(vi));
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) {
        const vi word = spread_word(x[p] + i);
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b) sum[p][b] = Dot::step(sum[p][b], weight[b], word);
      }
    }
  }
  const Rounding round = t.round;  // copies: what is stored may lie anywhere
  const int64_t y_pixel = t.y_pixel;
  int8_t* y = t.y + first * y_pixel;
  vf scale[B], shift[B];
#pragma GCC unroll 4
  for (int b = 0; b < B; ++b) scale[b] = load(t.scale + b * lanes), shift[b] = load(t.shift + b * lanes);
#pragma GCC unroll 4
  for (int b = 0; b < B; ++b) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p)
      store_codes(y + p * y_pixel + b * lanes, round(to_float(sum[p][b]) * scale[b] + shift[b]));
  }
}

template <class Dot, int B, int P = most_pixels> void run_pixels(const Tile<Dot>& t, int64_t first, int64_t count) {
  for (; count >= P; first += P, count -= P) run_tile<Dot, P, B>(t, first);
  if constexpr (P > 1)
    if (count) run_pixels<Dot, B, P - 1>(t, first, count);
}

// The thread's memory: the copy, where pixels begin, where runs begin.
template <class Dot> struct Memory {
  using Activation = typename Dot::Activation;
  Activation* copy;
  const Activation** pixels;
  int64_t* runs;
  Memory(Pool& pool, int thread, const Conv& c, int64_t chunk) {
    int64_t most = 0;
    for (int64_t begin = 0; begin < c.out_pixels(); begin += chunk) {
      const Window at(c, begin, smaller(begin + chunk, c.out_pixels()));
      most = larger(most, at.height * at.width);
    }
    const size_t activations = static_cast<size_t>(round_up(most * c.channels() * sizeof(Activation), 64));
    const size_t pointers = static_cast<size_t>(chunk) * sizeof(Activation*);
    char* memory = static_cast<char*>(pool.scratch(thread, activations + pointers + c.taps() * sizeof(int64_t)));
    copy = reinterpret_cast<Activation*>(memory);
    pixels = reinterpret_cast<const Activation**>(memory + activations);
    runs = reinterpret_cast<int64_t*>(memory + activations + pointers);
  }
};

// The outputs [begin, end) of an image, tiles [first, last).
template <class Dot>
void run_chunk(const Conv& c, const Memory<Dot>& memory, const int8_t* x, const typename Dot::Weight* packed,
               const int32_t* numbers, int8_t* y, int64_t zero, const Rounding& round, int64_t begin, int64_t end,
               int64_t first, int64_t last) {
  const Window at(c, begin, end);
  const int64_t channels = c.channels(), row = at.width * channels;
  const auto filling = static_cast<typename Dot::Activation>(zero + Dot::offset);
  if (c.single()) copy_single<Dot>(c, x, filling, begin, end, memory.copy);
  else copy_window<Dot>(c, at, x, filling, memory.copy);
  for (int64_t q = begin; q < end; ++q) {
    const int64_t top = q / c.columns.out * c.rows.stride - c.rows.begin - at.row;
    const int64_t left = q % c.columns.out * c.columns.stride - c.columns.begin - at.column;
    memory.pixels[q - begin] = memory.copy + (c.single() ? (q - begin) * channels : top * row + left * channels);
  }
  const bool joined = c.columns.dilation == 1;  // the columns of a window are one run
  const int64_t columns = joined ? 1 : c.columns.kernel;
  for (int64_t ky = 0; ky < c.rows.kernel; ++ky)
    for (int64_t kx = 0; kx < columns; ++kx)
      memory.runs[ky * columns + kx] = ky * c.rows.dilation * row + kx * c.columns.dilation * channels;

  const int64_t padded = c.out_pixel();
  const float* factors = reinterpret_cast<const float*>(numbers + padded);
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t from = 2 * tile * lanes;
    const Tile<Dot> t{memory.pixels, memory.runs, c.rows.kernel * columns,
                      (joined ? c.columns.kernel : 1) * channels / Dot::group, packed + from * channels * c.taps(),
                      numbers + from, factors + from, factors + padded + from, y + begin * padded + from, padded, round};
    if (c.tile_blocks(tile) == 2) run_pixels<Dot, 2>(t, 0, end - begin);
    else run_pixels<Dot, 1>(t, 0, end - begin);
  }
}

struct Numbers {
  const void *start, *scale, *shift;  // int32, float32, float32 or null

  // To [start, scale, shift][padded], of each start less `less(o)`; what is beyond the outputs is 0.
  template <class F> void put(int64_t outputs, int64_t padded, int32_t* to, const F& less) const {
    float *scales = reinterpret_cast<float*>(to + padded), *shifts = scales + padded;
    std::fill_n(to, 3 * padded, 0);
    for (int64_t o = 0; o < outputs; ++o) {
      to[o] = static_cast<int32_t>(in<int32_t>(start)[o] - less(o));
      scales[o] = in(scale)[o];
      if (shift) shifts[o] = in(shift)[o];
    }
  }
};

template <class Dot> void pack(const Conv& c, const int8_t* w, const Numbers& from, void* packed, int32_t* numbers) {
  const int64_t taps = c.taps();
  auto* y = out<typename Dot::Weight>(packed);
  for (int64_t tile = 0; tile < c.tiles(); ++tile)
    for (int64_t tap = 0; tap < taps; ++tap)
      for (int64_t first = 0; first < c.channels(); first += Dot::group)
        for (int64_t o = 2 * tile * lanes; o < (2 * tile + c.tile_blocks(tile)) * lanes; ++o)
          for (int64_t i = first; i < first + Dot::group; ++i)
            *y++ = o < c.outputs && i < c.inputs ? w[(o * c.inputs + i) * taps + tap] : 0;
  from.put(c.outputs, c.out_pixel(), numbers, [&](int64_t o) {
    int64_t sum = 0;
    for (int64_t i = 0; i < c.inputs * taps; ++i) sum += w[o * c.inputs * taps + i];
    return Dot::offset * sum;  // what is too much in the activations
  });
}

struct Maps {
  const void *x, *w, *numbers;
  void* y;
};

template <class Dot> void convolve(const Conv& c, const Maps& maps, int64_t zero, const Rounding& round, Pool& pool) {
  const int64_t chunk = c.chunk(), chunks = ceil_div(c.out_pixels(), chunk), threads = pool.threads();
  const int64_t tasks = c.images * chunks;
  const int64_t parts = tasks % threads && tasks < 4 * threads ? smaller<int64_t>(threads, c.tiles()) : 1;
  const int64_t work = tasks * chunk * c.outputs * c.inputs * c.taps() / 2;
  pool.each(tasks * parts, work, [&](int64_t task, int thread) {
    const int64_t part = task % parts, begin = task / parts % chunks * chunk, image = task / parts / chunks;
    run_chunk<Dot>(c, Memory<Dot>(pool, thread, c, chunk),
                   in<int8_t>(maps.x) + image * c.rows.size * c.columns.size * c.in_pixel(),
                   in<typename Dot::Weight>(maps.w), in<int32_t>(maps.numbers),
                   out<int8_t>(maps.y) + image * c.out_pixels() * c.out_pixel(), zero, round, begin,
                   smaller(begin + chunk, c.out_pixels()), c.tiles() * part / parts, c.tiles() * (part + 1) / parts);
  });
}

// f of the dot product that is meant.
template <class F> void with_dot(bool positive, const F& f) {
  if (positive) f(PositiveDot());
  else f(CodeDot());
}
template <class Dot> Conv for_dot(Dot, Conv c) {
  c.group = Dot::group;
  c.activation_bytes = sizeof(typename Dot::Activation);
  return c;
}

}  // namespace

// w [outputs, inputs, kernel_h, kernel_w], start int32, scale and shift float32 [outputs] (shift may be absent) -> packed,
// which has room for 2 * round_up(outputs, lanes) * round_up(inputs, 4) * kernel_h * kernel_w bytes, and numbers.
// `positive`: no code of x is below 0.
KERNEL(conv_codes_pack, ARGS(w, start, scale, shift, packed, numbers),
       PARAMS(outputs, inputs, kernel_h, kernel_w, positive)) {
  const Conv c{{0, 0, p.kernel_h, 1, 1, 0}, {0, 0, p.kernel_w, 1, 1, 0}, 1, p.inputs, p.outputs, 0, 0};
  with_dot(p.positive, [&](auto dot) {
    pack<decltype(dot)>(for_dot(dot, c), in<int8_t>(a.w), {a.start, a.scale, a.shift}, a.packed,
                        out<int32_t>(a.numbers));
  });
}

KERNEL(conv_codes, ARGS(x, w, numbers, y),
       PARAMS(n, inputs, outputs, h, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w,
              top, left, zero, lowest, highest, positive)) {
  const Conv c{{p.h, p.out_h, p.kernel_h, p.stride_h, p.dilation_h, p.top},
               {p.width, p.out_w, p.kernel_w, p.stride_w, p.dilation_w, p.left},
               p.n, p.inputs, p.outputs, 0, 0};
  if (c.images * c.blocks() * c.out_pixels() == 0) return;
  with_dot(p.positive, [&](auto dot) {
    convolve<decltype(dot)>(for_dot(dot, c), {a.x, a.w, a.numbers, a.y}, p.zero, Rounding(p.lowest, p.highest), pool);
  });
}

namespace {

constexpr int row_pixels = most_pixels == 2 ? 2 : 8;

// One block of channels of one image.
struct Plane {
  const int8_t* x;  // the first pixel
  const float* w;
  int64_t pixel, h, width, out_w, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, top, left;
  vf zero, start, scale, shift;
  int8_t* y;
  Rounding round;
};

template <bool Guarded> MNNK_INLINE vf input(const Plane& t, const int8_t* row, int64_t at) {
  if (Guarded && static_cast<uint64_t>(at) >= static_cast<uint64_t>(t.width)) return t.zero;
  return load_codes(row + at * t.pixel);
}

// Adds a kernel row of K weights at stride S; K = 0: of any width, stride and dilation.
template <int K, int S, int P, bool Guarded>
MNNK_INLINE void add_row(vf (&sum)[P], const Plane& t, const int8_t* row, int64_t at, const float* w) {
  if constexpr (K == 0) {
    for (int64_t kx = 0; kx < t.kernel_w; ++kx) {
      const vf weight = load(w + kx * lanes);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p)
        sum[p] = fma(weight, input<Guarded>(t, row, at + kx * t.dilation_w + p * t.stride_w), sum[p]);
    }
  } else {
    vf weight[K];
#pragma GCC unroll 16
    for (int kx = 0; kx < K; ++kx) weight[kx] = load(w + kx * lanes);
#pragma GCC unroll 32
    for (int j = 0; j < (P - 1) * S + K; ++j) {
      const vf x = input<Guarded>(t, row, at + j);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p)
        if (j >= p * S && j < p * S + K) sum[p] = fma(x, weight[j - p * S], sum[p]);
    }
  }
}

// The outputs [from, from + P) of row `oy`.
template <int K, int S, int P, bool Guarded>
__attribute__((noinline)) void run_outputs(const Plane& t, int64_t oy, int64_t from) {
  vf sum[P];
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) sum[p] = t.start;
  const int64_t at = from * t.stride_w - t.left;
  for (int64_t ky = 0; ky < t.kernel_h; ++ky) {
    const int64_t iy = oy * t.stride_h - t.top + ky * t.dilation_h;
    const float* w = t.w + ky * t.kernel_w * lanes;
    if (iy >= 0 && iy < t.h) {
      add_row<K, S, P, Guarded>(sum, t, t.x + iy * t.width * t.pixel, at, w);
      continue;
    }
    vf weights = {};
    for (int64_t kx = 0; kx < t.kernel_w; ++kx) weights += load(w + kx * lanes);
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) sum[p] += weights * t.zero;
  }
  int8_t* y = t.y + (oy * t.out_w + from) * t.pixel;
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p)
    store_codes(y + p * t.pixel, t.round(sum[p] * t.scale + t.shift));
}

template <int K, int S> void run_row(const Plane& t, int64_t oy) {
  const int64_t reach = (t.kernel_w - 1) * t.dilation_w - t.left;  // the last column that output 0 reads
  const auto inside = [&](int64_t from, int64_t count) {
    return from * t.stride_w >= t.left && (from + count - 1) * t.stride_w + reach < t.width;
  };
  int64_t ox = 0;
  for (; ox + row_pixels <= t.out_w; ox += row_pixels) {
    if (inside(ox, row_pixels)) run_outputs<K, S, row_pixels, false>(t, oy, ox);
    else run_outputs<K, S, row_pixels, true>(t, oy, ox);
  }
  for (; ox + 2 <= t.out_w; ox += 2) run_outputs<K, S, 2, true>(t, oy, ox);
  for (; ox < t.out_w; ++ox) run_outputs<K, S, 1, true>(t, oy, ox);
}

void run_row(const Plane& t, int64_t oy) {
  const int64_t kernel = t.dilation_w == 1 ? t.kernel_w : 0;
  if (kernel == 3 && t.stride_w == 1) return run_row<3, 1>(t, oy);
  if (kernel == 3 && t.stride_w == 2) return run_row<3, 2>(t, oy);
  if (kernel == 5 && t.stride_w == 1) return run_row<5, 1>(t, oy);
  run_row<0, 0>(t, oy);
}

}  // namespace

// w [channels, 1, kernel_h, kernel_w] and the numbers of conv_codes_pack.
KERNEL(depthwise_codes_pack, ARGS(w, start, scale, shift, packed, numbers), PARAMS(channels, kernel_h, kernel_w)) {
  const int64_t taps = p.kernel_h * p.kernel_w, padded = whole_lanes(p.channels);
  const int8_t* w = in<int8_t>(a.w);
  float* y = out(a.packed);
  for (int64_t c = 0; c < padded; ++c)
    for (int64_t tap = 0; tap < taps; ++tap)
      y[(c / lanes * taps + tap) * lanes + c % lanes] = c < p.channels ? w[c * taps + tap] : 0;
  Numbers{a.start, a.scale, a.shift}.put(p.channels, padded, out<int32_t>(a.numbers), [](int64_t) { return 0; });
}

// A window of at most 256 elements, and starts of at most 2^23.
KERNEL(depthwise_codes, ARGS(x, w, numbers, y),
       PARAMS(n, channels, h, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, top,
              left, zero, lowest, highest)) {
  const int64_t padded = whole_lanes(p.channels), blocks = padded / lanes, taps = p.kernel_h * p.kernel_w;
  if (p.out_w == 0) return;
  const int32_t* start = in<int32_t>(a.numbers);
  const float *scale = reinterpret_cast<const float*>(start + padded), *shift = scale + padded;
  const Rounding round(p.lowest, p.highest);
  const int64_t grain = ceil_div(16384, p.out_w * taps * blocks);
  pool.split(p.n * p.out_h, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t image = row / p.out_h, c = b * lanes;
        const Plane t{in<int8_t>(a.x) + image * p.h * p.width * padded + c, in(a.w) + c * taps, padded, p.h, p.width,
                      p.out_w, p.kernel_h, p.kernel_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w, p.top,
                      p.left, splat(static_cast<float>(p.zero)), to_float(load(start + c)), load(scale + c),
                      load(shift + c), out<int8_t>(a.y) + image * p.out_h * p.out_w * padded + c, round};
        run_row(t, row % p.out_h);
      }
  });
}
