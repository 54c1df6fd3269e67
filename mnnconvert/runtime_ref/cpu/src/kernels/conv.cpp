// Convolution: y[n,o,q] = activate(bias[o] + residual[n,o,q] + sum over i,ky,kx of w[o,i,ky,kx] * x[n,i,pixel(q,ky,kx)]).
//
// One micro-kernel serves all: 1x1, kxk with any stride and dilation, images of few channels, odd groups. It keeps B
// blocks of `lanes` output channels x P output pixels in registers. A step of the sum takes one input channel at one
// tap of the kernel: B vectors of weights, P broadcast inputs, B*P FMAs. Pixel p reads x[pixels[p] + run]: `pixels`
// says where the window of an output pixel starts, `runs` where the inputs of the steps lie within a window, so
// strides, dilations and layouts are only numbers in two small tables. In the blocked layout a run is `lanes` channels
// in a row (unrolled); the last channels of a map, and plain NCHW input, are single steps.
//
//   for every image, group, chunk of output pixels (its windows fit half the second-level cache)   <- threads
//     for every pass over some input channels (weights of a tile fit half the first-level cache)
//       copy the windows' pixels with zeros around them, where there is padding (then no tile meets a border)
//       for every tile of B blocks: for every tile of P pixels: micro-kernel
//
// Each pass sums from zero and adds to what y holds: short chains of additions, small errors. Passes follow from the
// kernel and the channels alone, so an element is summed in the same order whatever the tiles, chunks and threads.
#include "conv.h"
#include "transpose.h"

using namespace mnnk;

namespace {

#if MNNK_LANES == 16 || defined(__aarch64__)
constexpr bool many_registers = true;  // 32 of them
#else
constexpr bool many_registers = false;  // 16
#endif

#if MNNK_LANES == 16 && !defined(__AVX512F__)
constexpr int UNROLLED = 1;  // "wide" is for tests: it should compile soon
#else
constexpr int UNROLLED = 8;
#endif

constexpr int MOST_PIXELS = 8;
constexpr int tile_pixels(int blocks) { return blocks == 1 || many_registers ? 8 : blocks == 2 ? 6 : 4; }

constexpr int64_t CHUNK_FLOATS = 48 << 10;     // input of a chunk: 192 KiB
constexpr int64_t CHUNK_PIXELS = 1024;

template <int B, int P> MNNK_INLINE void step(vf (&sum)[B][P], const float* const (&x)[P], int64_t at, const float* w) {
  vf weight[B];
#pragma GCC unroll 16
  for (int b = 0; b < B; ++b) weight[b] = load(w + b * lanes);
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) {
    const vf input = splat(x[p][at]);
#pragma GCC unroll 16
    for (int b = 0; b < B; ++b) add_product(sum[b][p], input, weight[b]);
  }
}

// `tiles` neighbouring tiles. GCC's second scheduling pass would make the sums compete for registers.
template <int B, int P>
__attribute__((noinline, optimize("no-schedule-insns2"))) void run_tiles(const Tile& t, int64_t tiles) {
  const int32_t* pixels = t.pixels;
  const float* residual = t.residual;
  for (float *y = t.y, *last = y + tiles * P * lanes; y < last; y += P * lanes, pixels += P) {
    vf sum[B][P];
    const float* x[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) x[p] = t.x + pixels[p];
#pragma GCC unroll 16
    for (int b = 0; b < B; ++b)
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) sum[b][p] = t.bias ? load(t.bias + b * lanes) : vf{};
    const float* w = t.w;
    const int32_t* run = t.runs;
    for (const int32_t* end = run + t.full; run < end; ++run) {
      const int64_t at = *run;
#pragma GCC unroll UNROLLED
      for (int i = 0; i < lanes; ++i) step<B, P>(sum, x, at + i, w + i * B * lanes);
      w += lanes * B * lanes;
    }
    for (const int32_t* end = run + t.single; run < end; ++run, w += B * lanes) step<B, P>(sum, x, *run, w);
    if (!t.bias) {
#pragma GCC unroll 16
      for (int b = 0; b < B; ++b)
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) sum[b][p] += load(y + b * t.plane + p * lanes);
    }
    if (residual) {
#pragma GCC unroll 16
      for (int b = 0; b < B; ++b)
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) sum[b][p] += load(residual + b * t.plane + p * lanes);
      residual += P * lanes;
    }
#pragma GCC unroll 16
    for (int b = 0; b < B; ++b)
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) store(y + b * t.plane + p * lanes, t.clip(sum[b][p]));
  }
}

template <int B, int P> void choose_pixels(const Tile& t, int64_t pixels, int64_t tiles) {
  if (pixels == P) return run_tiles<B, P>(t, tiles);
  if constexpr (P > 1) choose_pixels<B, P - 1>(t, pixels, tiles);
}

// All pixels of a chunk for one tile of blocks, in tiles of `least` pixels, the first few of one more.
template <int B> void run_pixels(Tile t, int64_t count) {
  const int64_t tiles = ceil_div(count, tile_pixels(B)), least = count / tiles, wider = count % tiles;
  if (wider) choose_pixels<B, tile_pixels(B)>(t, least + 1, wider);
  const int64_t done = wider * (least + 1);
  t.pixels += done;
  t.y += done * lanes;
  if (t.residual) t.residual += done * lanes;
  choose_pixels<B, tile_pixels(B)>(t, least, tiles - wider);
}

}  // namespace

void mnnk::run_tile(const Tile& t, int64_t blocks, int64_t pixels) {
  if (blocks == 1) return run_pixels<1>(t, pixels);
  if (blocks == 2) return run_pixels<2>(t, pixels);
  run_pixels<3>(t, pixels);
}

namespace {

struct Axis {
  int64_t size, out, kernel, stride, dilation, begin;
  int64_t span() const { return (kernel - 1) * dilation + 1; }
  bool padded() const { return begin > 0 || (out - 1) * stride + span() > begin + size; }
};

// Everything about a convolution that does not depend on the chunk.
struct Conv {
  Axis rows, columns;
  int64_t images, group, inputs, outputs;  // channels per group
  bool plain_x, plain_y;

  int64_t unit() const { return plain_x ? 1 : lanes; }  // channels that lie side by side
  int64_t units() const { return ceil_div(inputs, unit()); }
  int64_t taps() const { return rows.kernel * columns.kernel; }
  int64_t blocks() const { return ceil_div(outputs, lanes); }
  int64_t out_pixels() const { return rows.out * columns.out; }
  int64_t in_plane() const { return rows.size * columns.size * unit(); }
  bool copied() const { return rows.padded() || columns.padded(); }
};

// How it is cut.
struct Plan {
  int64_t pass_units, passes, chunk, chunks, parts;

  Plan(const Conv& c, int threads) {
    pass_units = larger<int64_t>(1, PASS_STEPS / (c.unit() * c.taps()));
    passes = larger<int64_t>(1, ceil_div(c.units(), pass_units));
    pass_units = larger<int64_t>(1, ceil_div(c.units(), passes));
    chunk = chunk_pixels(c, pass_units * c.unit());
    chunks = ceil_div(c.out_pixels(), chunk);
    const int64_t tasks = c.images * c.group * chunks;
    parts = tasks % threads && tasks < 4 * threads ? smaller<int64_t>(threads, tile_count(c.blocks())) : 1;
  }

  static int64_t chunk_pixels(const Conv& c, int64_t channels) {
    const int64_t most = smaller(CHUNK_PIXELS, c.out_pixels());
    const int64_t area = CHUNK_FLOATS / channels;  // pixels of input
    if (c.taps() == 1 && !c.copied()) return even(c.out_pixels(), larger<int64_t>(MOST_PIXELS, smaller(most, area)));
    const int64_t width = (c.columns.out - 1) * c.columns.stride + c.columns.span();
    int64_t fit = (area / width - c.rows.span()) / c.rows.stride + 1;
    fit = smaller(fit, CHUNK_PIXELS / c.columns.out);
    if (fit >= 1) return even(c.rows.out, smaller(fit, c.rows.out)) * c.columns.out;
    fit = (area / c.rows.span() - c.columns.span()) / c.columns.stride + 1;
    return smaller(c.columns.out, larger<int64_t>(fit, 4 * MOST_PIXELS));
  }
  // The part size of `count` cut in as few, almost equal parts of at most `most`.
  static int64_t even(int64_t count, int64_t most) { return ceil_div(count, ceil_div(count, most)); }
};

// The pixels that the windows of the outputs [begin, end) touch: a rectangle that starts at (row, column).
struct Window {
  int64_t row, column, height, width;
  Window(const Conv& c, int64_t begin, int64_t end) {
    const int64_t first = begin / c.columns.out, last = (end - 1) / c.columns.out;
    const int64_t left = first == last ? begin % c.columns.out : 0;
    const int64_t right = first == last ? (end - 1) % c.columns.out : c.columns.out - 1;
    row = first * c.rows.stride - c.rows.begin;
    column = left * c.columns.stride - c.columns.begin;
    height = (last - first) * c.rows.stride + c.rows.span();
    width = (right - left) * c.columns.stride + c.columns.span();
  }
  // Floats of one unit's copy: an odd number of cache lines, so that units do not compete for the same ones.
  int64_t plane(int64_t unit) const { return (ceil_div(height * width * unit, 16) | 1) * 16; }
};

void copy_rows(const Conv& c, const Window& at, const float* x, int64_t units, float* to) {
  const int64_t unit = c.unit(), plane = at.plane(unit);
  const int64_t left = smaller(at.width, larger<int64_t>(0, -at.column));
  const int64_t inside = larger<int64_t>(0, smaller(at.width, c.columns.size - at.column) - left);
  for (int64_t u = 0; u < units; ++u)
    for (int64_t r = 0; r < at.height; ++r) {
      const int64_t row = at.row + r;
      const bool real = row >= 0 && row < c.rows.size && inside > 0;
      float* y = to + u * plane + r * at.width * unit;
      float* y_end = y + at.width * unit;
      if (!real) {
        std::fill(y, y_end, 0.0f);
        continue;
      }
      float* const y_left = y + left * unit;
      std::fill(y, y_left, 0.0f);
      std::memcpy(y_left, x + u * c.in_plane() + (row * c.columns.size + at.column + left) * unit,
                  static_cast<size_t>(inside * unit) * sizeof(float));
      std::fill(y_left + inside * unit, y_end, 0.0f);
    }
}

// The tables of a chunk and a pass, and the thread's memory for all that is not input or output.
struct Memory {
  float *copy, *bias, *sums;
  int32_t *pixels, *runs;

  Memory(Pool& pool, int thread, const Conv& c, const Plan& plan) {
    const int64_t floats[] = {c.copied() ? plan.pass_units * most_plane(c, plan) : 0,
                              c.blocks() * lanes, c.plain_y ? c.blocks() * plan.chunk * lanes : 0, plan.chunk,
                              plan.pass_units * c.unit() * c.taps()};
    int64_t total = 0, starts[5];
    for (int i = 0; i < 5; ++i) starts[i] = total, total += round_up(floats[i], 16);
    float* memory = pool.scratch_f32(thread, total);
    copy = memory + starts[0];
    bias = memory + starts[1];
    sums = memory + starts[2];
    pixels = reinterpret_cast<int32_t*>(memory + starts[3]);
    runs = reinterpret_cast<int32_t*>(memory + starts[4]);
  }

  // A chunk that is no whole number of rows may touch one row more than it has pixels for.
  static int64_t most_plane(const Conv& c, const Plan& plan) {
    int64_t most = 0;
    for (int64_t i = 0; i < plan.chunks; ++i)
      most = larger(most, Window(c, i * plan.chunk, smaller((i + 1) * plan.chunk, c.out_pixels())).plane(c.unit()));
    return most;
  }
};

struct Operands {
  const float *x, *w, *bias, *residual;  // of one image and group
  float* y;
  int64_t activation;
  float low, high;
};

// The results of one chunk in [blocks][pixels][lanes] go to plain planes.
void write_plain(const Conv& c, const Operands& o, const float* sums, int64_t first, int64_t blocks, int64_t begin,
                 int64_t pixels) {
  for (int64_t b = first; b < first + blocks; ++b)
    for (int64_t q = 0; q < pixels; q += lanes) {
      const int64_t count = smaller<int64_t>(lanes, pixels - q), rows = smaller<int64_t>(lanes, c.outputs - b * lanes);
      vf v[lanes];
      for (int i = 0; i < lanes; ++i) v[i] = i < count ? load(sums + (b * pixels + q + i) * lanes) : vf{};
      transpose(v);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t at = (b * lanes + i) * c.out_pixels() + begin + q;
        const vf r = o.residual ? load_part(o.residual + at, count) : vf{};
        store_part(o.y + at, activate(o.activation, v[i] + r, o.low, o.high), count);
      }
    }
}

void run_chunk(const Conv& c, const Plan& plan, const Operands& o, const Memory& memory, int64_t begin, int64_t end,
               int64_t first_tile, int64_t last_tile) {
  const Window at(c, begin, end);
  const bool copied = c.copied();
  const int64_t unit = c.unit(), blocks = c.blocks(), pixels = end - begin;
  const int64_t row = (copied ? at.width : c.columns.size) * unit;
  const int64_t plane = copied ? at.plane(unit) : c.in_plane();
  for (int64_t q = begin; q < end; ++q) {
    const int64_t y = q / c.columns.out * c.rows.stride - c.rows.begin - at.row;
    const int64_t x = q % c.columns.out * c.columns.stride - c.columns.begin - at.column;
    memory.pixels[q - begin] = static_cast<int32_t>(y * row + x * unit);
  }

  Tile t;
  t.pixels = memory.pixels;
  t.runs = memory.runs;
  t.plane = (c.plain_y ? pixels : c.out_pixels()) * lanes;
  for (int64_t pass = 0; pass < plan.passes; ++pass) {
    const int64_t from = pass * plan.pass_units, units = smaller(plan.pass_units, c.units() - from);
    const float* x = o.x + from * c.in_plane();
    if (copied) copy_rows(c, at, x, units, memory.copy);
    t.x = copied ? memory.copy : x + at.row * row + at.column * unit;

    t.full = t.single = 0;
    for (int64_t u = 0; u < units; ++u) {
      const int64_t channels = smaller(unit, c.inputs - (from + u) * unit);
      for (int64_t ky = 0; ky < c.rows.kernel; ++ky)
        for (int64_t kx = 0; kx < c.columns.kernel; ++kx) {
          const int64_t run = u * plane + ky * c.rows.dilation * row + kx * c.columns.dilation * unit;
          if (channels == lanes) memory.runs[t.full++] = static_cast<int32_t>(run);
          else
            for (int64_t i = 0; i < channels; ++i) memory.runs[t.full + t.single++] = static_cast<int32_t>(run + i);
        }
    }

    const bool first = pass == 0, last = pass + 1 == plan.passes;
    t.clip = last && !c.plain_y ? Clip(o.activation, o.low, o.high) : Clip();
    for (int64_t tile = first_tile; tile < last_tile; ++tile) {
      const int64_t block = 2 * tile, count = tile_blocks(blocks, tile);
      const int64_t place = c.plain_y ? block * t.plane : block * t.plane + begin * lanes;
      t.w = o.w + (block * c.inputs + from * unit * count) * c.taps() * lanes;
      t.bias = first ? memory.bias + block * lanes : nullptr;
      t.residual = first && o.residual && !c.plain_y ? o.residual + place : nullptr;
      t.y = (c.plain_y ? memory.sums : o.y) + place;
      run_tile(t, count, pixels);
      if (!last) continue;
      if (c.plain_y) write_plain(c, o, memory.sums, block, count, begin, pixels);
      else if (needs_pass(o.activation))
        for (int64_t b = 0; b < count; ++b) activate_all(t.y + b * t.plane, pixels, o.activation, o.low, o.high);
    }
  }
}

}  // namespace

// w [outputs, inputs/group, kernel_h, kernel_w] -> packed, of group * round_up(outputs/group, lanes) * inputs/group *
// kernel_h * kernel_w floats: [group][tiles of 2 blocks, the last of 1..3][blocks of inputs][ky][kx][inputs of the
// block][blocks of the tile][lanes]. `plain_x`: a block of inputs is one channel.
KERNEL(conv_pack, ARGS(w, packed), PARAMS(outputs, inputs, group, kernel_h, kernel_w, plain_x)) {
  const int64_t outputs = p.outputs / p.group, inputs = p.inputs / p.group, taps = p.kernel_h * p.kernel_w;
  const int64_t blocks = ceil_div(outputs, lanes), unit = p.plain_x ? 1 : lanes;
  pool.split(p.group * tile_count(blocks), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t group = at / tile_count(blocks), tile = at % tile_count(blocks);
      const int64_t wide = tile_blocks(blocks, tile) * lanes, first = 2 * tile * lanes;
      const float* w = in(a.w) + group * outputs * inputs * taps;
      float* y = out(a.packed) + (group * blocks * lanes + first) * inputs * taps;
      for (int64_t from = 0, count; from < inputs; from += count, y += count * taps * wide) {
        count = smaller(unit, inputs - from);
        std::fill_n(y, count * taps * wide, 0.0f);
        for (int64_t o = 0; o < smaller(wide, outputs - first); ++o) {
          const float* row = w + ((first + o) * inputs + from) * taps;
          for (int64_t i = 0; i < count; ++i)
            for (int64_t tap = 0; tap < taps; ++tap) y[(tap * count + i) * wide + o] = row[i * taps + tap];
        }
      }
    }
  });
}

// x: blocked, or [n,inputs,h,width] with `plain_x`; y: blocked, or plain with `plain_y`; bias [outputs] or null;
// residual as y or null, may be y itself. With groups, blocked sides need a multiple of `lanes` channels per group.
KERNEL(conv_f32, ARGS(x, w, bias, residual, y),
       PARAMS(n, inputs, outputs, group, h, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, dilation_h,
              dilation_w, top, left, plain_x, plain_y, activation),
       SCALARS(low, high)) {
  const Conv c{{p.h, p.out_h, p.kernel_h, p.stride_h, p.dilation_h, p.top},
               {p.width, p.out_w, p.kernel_w, p.stride_w, p.dilation_w, p.left},
               p.n, p.group, p.inputs / p.group, p.outputs / p.group, p.plain_x != 0, p.plain_y != 0};
  if (c.images * c.blocks() * c.out_pixels() == 0) return;
  const Plan plan(c, pool.threads());
  const int64_t tiles = tile_count(c.blocks());
  const int64_t in_group = (c.plain_x ? c.inputs : c.units()) * c.in_plane();
  const int64_t out_group = (c.plain_y ? c.outputs : c.blocks() * lanes) * c.out_pixels();
  const int64_t work = c.images * c.group * c.outputs * c.inputs * c.taps() * c.out_pixels();
  pool.each(c.images * c.group * plan.chunks * plan.parts, work, [&](int64_t task, int thread) {
    const int64_t part = task % plan.parts, chunk = task / plan.parts % plan.chunks;
    const int64_t at = task / plan.parts / plan.chunks, group = at % c.group;
    const Memory memory(pool, thread, c, plan);
    std::fill(memory.bias, memory.bias + c.blocks() * lanes, 0.0f);
    if (a.bias) std::memcpy(memory.bias, in(a.bias) + group * c.outputs, static_cast<size_t>(c.outputs) * sizeof(float));
    const Operands o{in(a.x) + at * in_group,
                     in(a.w) + group * c.blocks() * lanes * c.inputs * c.taps(),
                     in(a.bias),
                     a.residual ? in(a.residual) + at * out_group : nullptr,
                     out(a.y) + at * out_group,
                     p.activation, s.low, s.high};
    run_chunk(c, plan, o, memory, chunk * plan.chunk, smaller((chunk + 1) * plan.chunk, c.out_pixels()),
              tiles * part / plan.parts, tiles * (part + 1) / plan.parts);
  });
}
