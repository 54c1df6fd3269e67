// A 1x1 convolution and the depthwise convolution of its result, which is never there as a whole: it may be six times
// as large as what comes in and goes out, more than the caches hold.
//
//   for every image, strip of output rows (two blocks of the rows between fit a quarter of the second-level cache)
//     for every tile of blocks: the rows between that the windows of the strip touch, then its output rows
//
// Rows that the windows of two strips touch are computed twice. Elements are those of the two kernels, bit by bit.
#include "conv.h"

using namespace mnnk;

namespace {

constexpr int64_t STRIP_FLOATS = 32 << 10;  // 128 KiB

struct Range {
  int64_t begin, end;
  int64_t size() const { return larger<int64_t>(0, end - begin); }
};

}  // namespace

// x and y blocked; w as conv_pack gives it, taps as depthwise_pack does; biases [channels] or null. `h`, `width` are
// the sizes of x and of what is between; inputs fit one pass of steps. `inner` is the activation between.
KERNEL(expand_depthwise_f32, ARGS(x, w, bias, taps, taps_bias, y),
       PARAMS(n, inputs, channels, h, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, dilation_h,
              dilation_w, top, left, inner, activation),
       SCALARS(inner_low, inner_high, low, high)) {
  const int64_t units = ceil_div(p.inputs, lanes), blocks = ceil_div(p.channels, lanes), tiles = tile_count(blocks);
  const int64_t row = p.width * lanes, in_plane = p.h * row, out_plane = p.out_h * p.out_w * lanes;
  const int64_t span = (p.kernel_h - 1) * p.dilation_h + 1, kernel = p.kernel_h * p.kernel_w;
  if (p.n * blocks * out_plane == 0) return;
  const int64_t fit = larger<int64_t>(1, (STRIP_FLOATS / (2 * row) - span) / p.stride_h + 1);
  const int64_t strip = ceil_div(p.out_h, ceil_div(p.out_h, fit)), strips = ceil_div(p.out_h, strip);
  const int64_t tasks = p.n * strips, threads = pool.threads();
  const int64_t parts = tasks % threads && tasks < 4 * threads ? smaller(threads, tiles) : 1;
  const int64_t most = smaller(p.h, (strip - 1) * p.stride_h + span) * row;  // floats of a block between
  const int64_t work = p.n * p.channels * (p.inputs * p.h * p.width + kernel * p.out_h * p.out_w);

  pool.each(tasks * parts, work, [&](int64_t task, int thread) {
    const int64_t part = task % parts, image = task / parts / strips;
    const Range rows{task / parts % strips * strip, smaller(p.out_h, (task / parts % strips + 1) * strip)};
    const Range between{larger<int64_t>(0, rows.begin * p.stride_h - p.top),
                        smaller(p.h, (rows.end - 1) * p.stride_h - p.top + span)};
    const int64_t pixels = between.size() * p.width;
    const int64_t table = round_up(most / lanes, 16);
    float* memory = pool.scratch_f32(thread, 3 * most + 3 * lanes + table + p.inputs);
    float* const bias = memory + 3 * most;
    auto* const at = reinterpret_cast<int32_t*>(bias + 3 * lanes);
    auto* const runs = at + table;
    for (int64_t q = 0; q < pixels; ++q) at[q] = static_cast<int32_t>(q * lanes);

    Tile t{};
    t.x = in(a.x) + image * units * in_plane + between.begin * row;
    t.pixels = at;
    t.runs = runs;
    for (int64_t u = 0; u < units; ++u) {
      const int64_t count = smaller<int64_t>(lanes, p.inputs - u * lanes), run = u * in_plane;
      if (count == lanes) runs[t.full++] = static_cast<int32_t>(run);
      else
        for (int64_t i = 0; i < count; ++i) runs[t.full + t.single++] = static_cast<int32_t>(run + i);
    }
    t.bias = bias;
    t.y = memory;
    t.plane = pixels * lanes;
    t.clip = Clip(p.inner, s.inner_low, s.inner_high);
    for (int64_t tile = tiles * part / parts; tile < tiles * (part + 1) / parts; ++tile) {
      const int64_t first = 2 * tile, count = tile_blocks(blocks, tile);
      const int64_t channels = smaller(count * lanes, p.channels - first * lanes);
      std::fill(bias, bias + count * lanes, 0.0f);
      if (a.bias) std::memcpy(bias, in(a.bias) + first * lanes, static_cast<size_t>(channels) * sizeof(float));
      t.w = in(a.w) + first * lanes * p.inputs;
      if (pixels) run_tile(t, count, pixels);
      if (needs_pass(p.inner)) activate_all(memory, count * pixels, p.inner, s.inner_low, s.inner_high);
      for (int64_t b = 0; b < count; ++b) {
        const int64_t block = first + b, last = smaller<int64_t>(lanes, p.channels - block * lanes);
        const Plane plane{memory + b * t.plane - between.begin * row, in(a.taps) + block * kernel * lanes, nullptr,
                          out(a.y) + (image * blocks + block) * out_plane,
                          p.h, p.width, p.out_w, p.kernel_h, p.kernel_w, p.stride_h, p.stride_w, p.dilation_h,
                          p.dilation_w, p.top, p.left, Clip(p.activation, s.low, s.high)};
        const vf start = a.taps_bias ? load_part(in(a.taps_bias) + block * lanes, last) : vf{};
        run_depthwise(plane, start, rows.begin, rows.end);
        if (needs_pass(p.activation))
          activate_all(plane.y + rows.begin * p.out_w * lanes, rows.size() * p.out_w, p.activation, s.low, s.high);
      }
    }
  });
}
