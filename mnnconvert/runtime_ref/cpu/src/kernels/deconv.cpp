// Transposed convolution on blocked maps: y[o][i*s + k*d - pad] += x[c][i] w[c][o][k], per axis.
//
// Seen from the result it is a convolution of stride 1 per phase: the pixels p, p + s, p + 2s ... of a row of y meet the
// same taps (those k with k*d = p + pad modulo s), and neighbouring pixels of a phase meet neighbouring pixels of x.
// So a panel (panel.h) is neighbouring pixels of a phase x PANEL output channels, whatever the stride, and is summed over
// its taps and all input channels without leaving the registers; no product is scattered.
//
// Where taps reach over the left or right border of x, the rows of x that a block of rows of y needs are copied with
// zeros around them: [row][block of inputs][columns][lanes]. Rows beyond the top or bottom are left out of the sum.
//
// Packed weights: [ceil(outputs / PANEL)][kernel_y][kernel_x][ceil(inputs / lanes) * lanes][PANEL] floats; groups are
// filled up with zeros. Depthwise: [ceil(channels / lanes)][kernel_y][kernel_x][lanes].
#include <algorithm>

#include "epilogue.h"
#include "kernel.h"
#include "panel.h"
#include "simd.h"

using namespace mnnk;

namespace {

constexpr int64_t COPY_FLOATS = 64 << 10;  // aim of the size of a block of copied rows: half of a 512 KiB cache

struct Axis {
  int64_t in, out, kernel, stride, dilation, pad;

  int64_t phases() const { return smaller(stride, out); }
  int64_t pixels(int64_t phase) const { return ceil_div(out - phase, stride); }
};

// A tap of the kernel, and where it meets x: the index for the first pixel of a phase (may be outside of x).
struct Tap {
  int64_t k, at;
};

// The taps of a pixel of y, in order of k.
int64_t find_taps(const Axis& axis, int64_t pixel, Tap* taps) {
  int64_t count = 0;
  for (int64_t k = 0; k < axis.kernel; ++k) {
    const int64_t from = pixel + axis.pad - k * axis.dilation;
    if (from % axis.stride == 0) taps[count++] = {k, from / axis.stride};
  }
  return count;
}

// The taps of a pixel of y that lie in x.
int64_t find_inner_taps(const Axis& axis, int64_t pixel, Tap* taps) {
  const int64_t all = find_taps(axis, pixel, taps);
  int64_t count = 0;
  for (int64_t i = 0; i < all; ++i)
    if (taps[i].at >= 0 && taps[i].at < axis.in) taps[count++] = taps[i];
  return count;
}

// How many columns taps reach over the borders of x.
struct Margin {
  int64_t left, right;
};

Margin find_margin(const Axis& axis, Tap* taps) {
  Margin margin{0, 0};
  for (int64_t phase = 0; phase < axis.phases(); ++phase) {
    const int64_t count = find_taps(axis, phase, taps), last = axis.pixels(phase) - 1;
    for (int64_t i = 0; i < count; ++i) {
      margin.left = larger(margin.left, -taps[i].at);
      margin.right = larger(margin.right, taps[i].at + last - (axis.in - 1));
    }
  }
  return margin;
}

// Out of line: with all its functions, an activation is long.
__attribute__((noinline)) vf activate_any(int64_t activation, vf x, float low, float high) {
  return activate(activation, x, low, high);
}

// Bias, residual, activation. PLAIN: the activation is a clip, which is none when its bounds are infinite.
struct Finish {
  const float* residual;
  int64_t activation;
  float low, high;

  Finish(const void* residual, int64_t activation, float low, float high)
      : residual(in(residual)), activation(activation), low(activation == IDENTITY ? -INFINITY : low),
        high(activation == IDENTITY ? INFINITY : high) {}
  bool plain() const { return activation <= CLIP; }
  template <bool PLAIN> MNNK_INLINE vf apply(vf v, int64_t at) const {
    if (residual) v += load(residual + at);
    return PLAIN ? min(splat(high), max(splat(low), v)) : activate_any(activation, v, low, high);
  }
};

// The bias of one block of channels, zero where there is none.
vf load_bias(const float* bias, int64_t block, int64_t channels) {
  if (!bias || block * lanes >= channels) return vf{};
  return load_part(bias + block * lanes, smaller<int64_t>(lanes, channels - block * lanes));
}

// The taps of a row and of each phase of its pixels, and where x lies: row 0, column 0.
struct Taps {
  const Tap *ys, *xs;
  int64_t y_count, x_count;
};

struct Source {
  const float* x;
  int64_t row_step, block_step, blocks;
  const float* weights;
  int64_t kernel_x, weight_step;
};

struct Target {
  float* y;
  int64_t at, pixel_step, second;  // of the first pixel; floats to the next pixel of the phase, to the second block or 0
  vf bias[2];
};

// The pixels first .. first + ROWS of a phase x one panel of outputs: sums[pixel][PANEL].
template <int ROWS> struct Phase {
  static void run(const Taps& taps, const Source& s, int64_t first, float* sums) {
    constexpr int64_t distance = 1024;  // floats from the weights in use to those being fetched
    vf acc[ROWS][2] = {};
    for (int64_t i = 0; i < taps.y_count; ++i)
      for (int64_t j = 0; j < taps.x_count; ++j) {
        const Tap &ty = taps.ys[i], &tx = taps.xs[j];
        const float* w = s.weights + (ty.k * s.kernel_x + tx.k) * s.weight_step;
        accumulate(acc, s.x + ty.at * s.row_step + (tx.at + first) * lanes, s.block_step, w, s.blocks,
                   Ahead{w + distance, PANEL});
      }
    for (int r = 0; r < ROWS; ++r) {
      store(sums + r * PANEL, acc[r][0]);
      store(sums + r * PANEL + lanes, acc[r][1]);
    }
  }
};
constexpr auto PHASES = by_rows<Phase>();

template <bool PLAIN>
void finish_pixels(const float* sums, int64_t count, int64_t first, const Target& t, const Finish& f) {
  for (int64_t r = 0; r < count; ++r, sums += PANEL) {
    const int64_t at = t.at + (first + r) * t.pixel_step;
    store(t.y + at, f.apply<PLAIN>(load(sums) + t.bias[0], at));
    if (t.second) store(t.y + at + t.second, f.apply<PLAIN>(load(sums + lanes) + t.bias[1], at + t.second));
  }
}

// The taps of all phases of a row, found once: those of phase p are list[start[p]] .. list[start[p + 1]].
struct PhaseTaps {
  Tap* list;
  int64_t* start;

  PhaseTaps(const Axis& axis, void* memory)
      : list(static_cast<Tap*>(memory)), start(reinterpret_cast<int64_t*>(list + axis.kernel)) {
    start[0] = 0;
    for (int64_t p = 0; p < axis.phases(); ++p) start[p + 1] = start[p] + find_taps(axis, p, list + start[p]);
  }
  static int64_t bytes(const Axis& axis) {
    return axis.kernel * static_cast<int64_t>(sizeof(Tap)) + (axis.phases() + 1) * static_cast<int64_t>(sizeof(int64_t));
  }
};

struct Job {
  Axis y, x;
  int64_t images, inputs, outputs;
  Margin margin;
  int64_t block_rows, blocks_of_rows;  // rows of y per block, blocks per image

  int64_t in_blocks() const { return ceil_div(inputs, lanes); }
  int64_t out_blocks() const { return ceil_div(outputs, lanes); }
  int64_t panels() const { return ceil_div(outputs, PANEL); }
  int64_t tap_step() const { return in_blocks() * lanes * PANEL; }
  bool copies() const { return margin.left || margin.right; }
  int64_t copied_width() const { return x.in + margin.left + margin.right; }
  int64_t copied_rows() const { return smaller(y.in, (block_rows + (y.kernel - 1) * y.dilation) / y.stride + 1); }
  int64_t copy_floats() const { return copies() ? copied_rows() * in_blocks() * copied_width() * lanes : 0; }
};

// Blocks of rows such that their copy stays in cache, yet each weight is used by a few panels of pixels.
void plan_rows(Job& job, int64_t threads) {
  const int64_t row = job.in_blocks() * lanes * job.copied_width();
  const int64_t fits = COPY_FLOATS / row, enough = ceil_div(4 * MOST_ROWS, job.x.in);
  job.block_rows = larger<int64_t>(1, larger(fits, enough)) * job.y.stride;
  job.blocks_of_rows = ceil_div(job.y.out, job.block_rows);
  if (job.images * job.blocks_of_rows >= threads && job.images % threads) {
    job.blocks_of_rows = smaller(job.y.out, round_up(job.blocks_of_rows, threads));
    job.block_rows = round_up(ceil_div(job.y.out, job.blocks_of_rows), job.y.stride);
    job.blocks_of_rows = ceil_div(job.y.out, job.block_rows);
  }
}

// Rows first .. last of an image x [block of inputs][row][column][lanes], with the margins, to `copy` [row][block]...
void copy_rows(const Job& job, const float* x, int64_t first, int64_t last, float* copy) {
  const int64_t width = job.copied_width();
  const auto zero = [](float* from, int64_t columns) {
    std::memset(from, 0, static_cast<size_t>(columns) * lanes * sizeof(float));
  };
  for (int64_t row = first; row < last; ++row)
    for (int64_t block = 0; block < job.in_blocks(); ++block, copy += width * lanes) {
      zero(copy, job.margin.left);
      std::memcpy(copy + job.margin.left * lanes, x + (block * job.y.in + row) * job.x.in * lanes,
                  static_cast<size_t>(job.x.in) * lanes * sizeof(float));
      zero(copy + (job.margin.left + job.x.in) * lanes, job.margin.right);
    }
}

// The rows of x that meet rows begin .. end of y.
int64_t first_row(const Axis& axis, int64_t begin) {
  return larger<int64_t>(0, ceil_div(larger<int64_t>(0, begin + axis.pad - (axis.kernel - 1) * axis.dilation), axis.stride));
}
int64_t last_row(const Axis& axis, int64_t end) {
  return smaller(axis.in, end + axis.pad > 0 ? (end - 1 + axis.pad) / axis.stride + 1 : 0);
}

// A block of rows of y, the panels first_panel .. last_panel of its channels.
void run_block(const Job& job, const float* x, const float* weights, const float* bias, float* y, const Finish& f,
               int64_t unit, int64_t first_panel, int64_t last_panel, void* memory) {
  const PhaseTaps phases(job.x, memory);
  Tap* const ys = reinterpret_cast<Tap*>(static_cast<char*>(memory) + PhaseTaps::bytes(job.x));
  float* const copy = reinterpret_cast<float*>(ys + job.y.kernel);
  const int64_t image = unit / job.blocks_of_rows, begin = unit % job.blocks_of_rows * job.block_rows;
  const int64_t end = smaller(job.y.out, begin + job.block_rows), first = first_row(job.y, begin);
  const int64_t blocks = job.in_blocks();
  x += image * blocks * job.y.in * job.x.in * lanes;
  Source source{x, job.x.in * lanes, job.y.in * job.x.in * lanes, blocks, nullptr, job.x.kernel, job.tap_step()};
  if (job.copies()) {
    const int64_t width = job.copied_width() * lanes;
    copy_rows(job, x, first, last_row(job.y, end), copy);
    source.x = copy - first * blocks * width + job.margin.left * lanes;
    source.row_step = blocks * width;
    source.block_step = width;
  }
  alignas(64) float sums[MOST_ROWS * PANEL];
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    source.weights = weights + panel * job.y.kernel * job.x.kernel * job.tap_step();
    const int64_t block = 2 * panel, area = job.y.out * job.x.out * lanes;
    Target target{y, 0, job.x.stride * lanes, block + 1 < job.out_blocks() ? area : 0,
                  {load_bias(bias, block, job.outputs), load_bias(bias, block + 1, job.outputs)}};
    const auto run_row = [&](int64_t row) {
      const int64_t y_count = find_inner_taps(job.y, row, ys);
      for (int64_t phase = 0; phase < job.x.phases(); ++phase) {
        const Taps taps{ys, phases.list + phases.start[phase], y_count, phases.start[phase + 1] - phases.start[phase]};
        target.at = (image * job.out_blocks() + block) * area + (row * job.x.out + phase) * lanes;
        const int64_t pixels = job.x.pixels(phase), strips = ceil_div(pixels, MOST_ROWS);
        for (int64_t strip = 0; strip < strips; ++strip) {
          const int64_t from = pixels * strip / strips, to = pixels * (strip + 1) / strips;
          PHASES[to - from - 1](taps, source, from, sums);
          (f.plain() ? finish_pixels<true> : finish_pixels<false>)(sums, to - from, from, target, f);
        }
      }
    };
    for (int64_t phase = 0; phase < job.y.stride; ++phase)  // rows of a phase share weights
      for (int64_t row = begin + phase; row < end; row += job.y.stride) run_row(row);
  }
}

// Few outputs: the columns of a product pixels x (outputs x taps), C, are added to a plain y.
template <int ROWS, int VECTORS> struct Columns {
  static void run(const float* x, int64_t step, const float* w, int64_t blocks, float* c, int64_t c_row) {
    vf acc[ROWS][VECTORS] = {};
    accumulate(acc, x, step, w, blocks, Ahead{w, 0});
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECTORS; ++v) store(c + r * c_row + v * lanes, acc[r][v]);
  }
};
template <int ROWS> using NarrowColumns = Columns<ROWS, 1>;
template <int ROWS> using WideColumns = Columns<ROWS, 2>;
constexpr auto NARROW_COLUMNS = by_rows<NarrowColumns>();
constexpr auto WIDE_COLUMNS = by_rows<WideColumns>();

int64_t column_panel(int64_t columns) { return columns <= lanes ? lanes : PANEL; }

struct Few {
  Axis y, x;
  int64_t inputs, outputs;

  int64_t columns() const { return outputs * y.kernel * x.kernel; }
  int64_t c_row() const { return round_up(columns(), column_panel(columns())); }
};

// C for a row of x, whose blocks of inputs lie `step` floats apart.
void find_columns(const Few& job, const float* x, int64_t step, const float* packed, float* c) {
  const int64_t panel = column_panel(job.columns()), blocks = ceil_div(job.inputs, lanes);
  const int64_t strips = ceil_div(job.x.in, MOST_ROWS);
  const auto& kernels = panel == lanes ? NARROW_COLUMNS : WIDE_COLUMNS;
  for (int64_t at = 0; at < job.c_row(); at += panel)
    for (int64_t strip = 0; strip < strips; ++strip) {
      const int64_t from = job.x.in * strip / strips, to = job.x.in * (strip + 1) / strips;
      kernels[to - from - 1](x + from * lanes, step, packed + at * blocks * lanes, blocks, c + from * job.c_row() + at,
                             job.c_row());
    }
}

// Row `row` of x, transformed to `c`, to what of its results lies in rows begin .. end of y [outputs][rows][columns].
void add_columns(const Few& job, const float* c, int64_t row, int64_t begin, int64_t end, float* y) {
  for (int64_t ky = 0; ky < job.y.kernel; ++ky) {
    const int64_t to_row = row * job.y.stride + ky * job.y.dilation - job.y.pad;
    if (to_row < begin || to_row >= end) continue;
    for (int64_t o = 0; o < job.outputs; ++o)
      for (int64_t kx = 0; kx < job.x.kernel; ++kx) {
        const int64_t shift = kx * job.x.dilation - job.x.pad, stride = job.x.stride, room = job.x.out - 1 - shift;
        const int64_t first = shift < 0 ? ceil_div(-shift, stride) : 0;
        const int64_t last = room < 0 ? 0 : smaller(job.x.in, room / stride + 1);
        const float* from = c + (o * job.y.kernel + ky) * job.x.kernel + kx;
        float* to = y + (o * job.y.out + to_row) * job.x.out;
        for (int64_t i = first; i < last; ++i) to[i * stride + shift] += from[i * job.c_row()];
      }
  }
}

template <bool PLAIN> void finish_floats(float* y, int64_t at, int64_t count, const Finish& f) {
  int64_t i = at;
  for (; i + lanes <= at + count; i += lanes) store(y + i, f.apply<PLAIN>(load(y + i), i));
  for (; i < at + count; ++i) {  // one by one, since apply reads a whole vector of the residual
    const float sum = f.residual ? y[i] + f.residual[i] : y[i];
    y[i] = Finish{nullptr, f.activation, f.low, f.high}.template apply<PLAIN>(splat(sum), 0)[0];
  }
}

// The sum over taps for COUNT pixels of a phase, channel by channel; w [kernel_y][kernel_x][lanes].
template <int COUNT>
MNNK_INLINE void sum_taps(vf (&acc)[COUNT], const Taps& taps, const float* x, int64_t row_step, const float* w,
                          int64_t kernel_x) {
  for (int64_t i = 0; i < taps.y_count; ++i)
    for (int64_t j = 0; j < taps.x_count; ++j) {
      const vf weight = load(w + (taps.ys[i].k * kernel_x + taps.xs[j].k) * lanes);
      const float* from = x + taps.ys[i].at * row_step + taps.xs[j].at * lanes;
#pragma GCC unroll 8
      for (int r = 0; r < COUNT; ++r) acc[r] = fma(load(from + r * lanes), weight, acc[r]);
    }
}

}  // namespace

// w [inputs][outputs / group][kernel_y][kernel_x] to packed weights (see above).
KERNEL(deconv_pack, ARGS(w, packed), PARAMS(inputs, outputs, group, kernel_y, kernel_x)) {
  const float* w = in(a.w);
  float* packed = out(a.packed);
  const int64_t rows = round_up(p.inputs, lanes), area = p.kernel_y * p.kernel_x;
  const int64_t group_inputs = p.inputs / p.group, group_outputs = p.outputs / p.group;
  pool.split(ceil_div(p.outputs, PANEL), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = begin; panel < end; ++panel)
      for (int64_t tap = 0; tap < area; ++tap)
        for (int64_t k = 0; k < rows; ++k) {
          float* to = packed + ((panel * area + tap) * rows + k) * PANEL;
          for (int64_t column = 0; column < PANEL; ++column) {
            const int64_t o = panel * PANEL + column;
            const bool meets = o < p.outputs && k < p.inputs && o / group_outputs == k / group_inputs;
            to[column] = meets ? w[(k * group_outputs + o % group_outputs) * area + tap] : 0.0f;
          }
        }
  });
}

// x [images][blocks of inputs][height][width][lanes] to y [images][blocks of outputs][out_height][out_width][lanes];
// `top` and `left` rows and columns of the full result are cut off, y may reach over its end. bias [outputs] or null,
// residual as y or null.
KERNEL(deconv, ARGS(x, packed, bias, residual, y),
       PARAMS(images, inputs, height, width, outputs, out_height, out_width, kernel_y, kernel_x, stride_y, stride_x,
              dilation_y, dilation_x, top, left, activation),
       SCALARS(low, high)) {
  if (!p.images || !p.outputs || !p.out_height || !p.out_width) return;
  Job job{{p.height, p.out_height, p.kernel_y, p.stride_y, p.dilation_y, p.top},
          {p.width, p.out_width, p.kernel_x, p.stride_x, p.dilation_x, p.left}, p.images, p.inputs, p.outputs, {}, 0, 0};
  job.margin = find_margin(job.x, static_cast<Tap*>(pool.scratch(0, static_cast<size_t>(p.kernel_x) * sizeof(Tap))));
  plan_rows(job, pool.threads());
  const Finish finish(a.residual, p.activation, s.low, s.high);
  const int64_t units = p.images * job.blocks_of_rows, panels = job.panels();
  const size_t bytes = static_cast<size_t>(PhaseTaps::bytes(job.x)) + static_cast<size_t>(p.kernel_y) * sizeof(Tap) +
                       static_cast<size_t>(job.copy_floats()) * sizeof(float);
  const auto run = [&](int64_t unit, int64_t first_panel, int64_t last_panel, void* memory) {
    run_block(job, in(a.x), in(a.packed), in(a.bias), out(a.y), finish, unit, first_panel, last_panel, memory);
  };
  const bool by_unit = units >= pool.threads();
  const int64_t count = by_unit ? units : panels;
  const int64_t work = p.images * p.height * p.width * p.inputs * p.outputs * p.kernel_y * p.kernel_x / count;
  pool.split(count, ceil_div(WORTH_A_THREAD, work + 1), [&](int64_t begin, int64_t end, int thread) {
    void* memory = pool.scratch(thread, bytes);
    for (int64_t unit = by_unit ? begin : 0; unit < (by_unit ? end : units); ++unit)
      run(unit, by_unit ? 0 : begin, by_unit ? panels : end, memory);
  });
}

// w [channels][kernel_y][kernel_x] to packed depthwise weights.
KERNEL(deconv_depthwise_pack, ARGS(w, packed), PARAMS(channels, kernel_y, kernel_x)) {
  const int64_t area = p.kernel_y * p.kernel_x;
  for (int64_t c = 0; c < round_up(p.channels, lanes); ++c)
    for (int64_t tap = 0; tap < area; ++tap)
      out(a.packed)[(c / lanes * area + tap) * lanes + c % lanes] = c < p.channels ? in(a.w)[c * area + tap] : 0.0f;
}

// As deconv, each channel by itself.
KERNEL(deconv_depthwise, ARGS(x, packed, bias, residual, y),
       PARAMS(images, channels, height, width, out_height, out_width, kernel_y, kernel_x, stride_y, stride_x, dilation_y,
              dilation_x, top, left, activation),
       SCALARS(low, high)) {
  const Axis ay{p.height, p.out_height, p.kernel_y, p.stride_y, p.dilation_y, p.top};
  const Axis ax{p.width, p.out_width, p.kernel_x, p.stride_x, p.dilation_x, p.left};
  const Finish finish(a.residual, p.activation, s.low, s.high);
  const int64_t blocks = ceil_div(p.channels, lanes), row_step = p.width * lanes;
  const int64_t grain = larger<int64_t>(1, 16384 / larger<int64_t>(1, p.out_width * p.kernel_y * p.kernel_x));
  pool.split(p.images * blocks * p.out_height, grain, [&](int64_t begin, int64_t end, int thread) {
    char* memory = static_cast<char*>(
        pool.scratch(thread, static_cast<size_t>(PhaseTaps::bytes(ax) + (p.kernel_y + p.kernel_x) * sizeof(Tap))));
    const PhaseTaps phases(ax, memory);
    Tap* const ys = reinterpret_cast<Tap*>(memory + PhaseTaps::bytes(ax));
    Tap* const inner = ys + p.kernel_y;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t map = i / p.out_height, row = i % p.out_height, block = map % blocks;
      const float* x = in(a.x) + map * p.height * row_step;
      const float* w = in(a.packed) + block * p.kernel_y * p.kernel_x * lanes;
      const vf bias = load_bias(in(a.bias), block, p.channels);
      const int64_t y_count = find_inner_taps(ay, row, ys);
      for (int64_t phase = 0; phase < ax.phases(); ++phase) {
        const Taps taps{ys, phases.list + phases.start[phase], y_count, phases.start[phase + 1] - phases.start[phase]};
        const int64_t count = ax.pixels(phase), at = (i * p.out_width + phase) * lanes, step = p.stride_x * lanes;
        int64_t from = 0, to = count;  // the pixels whose taps all lie in x
        for (int64_t j = 0; j < taps.x_count; ++j) {
          from = larger(from, -taps.xs[j].at);
          to = smaller(to, p.width - taps.xs[j].at);
        }
        const auto finish_pixel = [&](vf sum, int64_t pixel) {
          const int64_t place = at + pixel * step;
          store(out(a.y) + place, finish.apply<false>(sum + bias, place));
        };
        for (int64_t pixel = 0; pixel < count;) {
          if (pixel >= from && pixel + 4 <= to) {
            vf acc[4] = {};
            sum_taps<4>(acc, taps, x + pixel * lanes, row_step, w, p.kernel_x);
            for (int r = 0; r < 4; ++r) finish_pixel(acc[r], pixel + r);
            pixel += 4;
          } else {
            Taps some{ys, inner, y_count, 0};
            for (int64_t j = 0; j < taps.x_count; ++j)
              if (pixel + taps.xs[j].at >= 0 && pixel + taps.xs[j].at < p.width) inner[some.x_count++] = taps.xs[j];
            vf acc[1] = {};
            sum_taps<1>(acc, some, x + pixel * lanes, row_step, w, p.kernel_x);
            finish_pixel(acc[0], pixel++);
          }
        }
      }
    }
  });
}

// w [inputs][columns], columns being outputs x kernel_y x kernel_x, to panels of `lanes` columns where there are no
// more than that, else of PANEL: [ceil(columns / panel)][ceil(inputs / lanes) * lanes][panel].
KERNEL(deconv_few_pack, ARGS(w, packed), PARAMS(inputs, columns)) {
  const int64_t panel = column_panel(p.columns), rows = round_up(p.inputs, lanes);
  for (int64_t k = 0; k < rows; ++k)
    for (int64_t c = 0; c < round_up(p.columns, panel); ++c)
      out(a.packed)[(c / panel * rows + k) * panel + c % panel] =
          k < p.inputs && c < p.columns ? in(a.w)[k * p.columns + c] : 0.0f;
}

// As deconv, but y (and residual) plain: [images][outputs][out_height][out_width]. For fewer outputs than `lanes`.
KERNEL(deconv_few, ARGS(x, packed, bias, residual, y),
       PARAMS(images, inputs, height, width, outputs, out_height, out_width, kernel_y, kernel_x, stride_y, stride_x,
              dilation_y, dilation_x, top, left, activation),
       SCALARS(low, high)) {
  const Few job{{p.height, p.out_height, p.kernel_y, p.stride_y, p.dilation_y, p.top},
                {p.width, p.out_width, p.kernel_x, p.stride_x, p.dilation_x, p.left}, p.inputs, p.outputs};
  const Finish finish(a.residual, p.activation, s.low, s.high);
  const int64_t in_step = p.height * p.width * lanes, in_image = ceil_div(p.inputs, lanes) * in_step;
  const int64_t block_rows = 16 * p.stride_y, blocks = ceil_div(p.out_height, block_rows);
  const int64_t work = p.height * p.width * p.inputs * p.outputs * p.kernel_y * p.kernel_x / larger<int64_t>(1, blocks);
  pool.split(p.images * blocks, ceil_div(WORTH_A_THREAD, work + 1), [&](int64_t first_block, int64_t last_block, int thread) {
    float* c = pool.scratch_f32(thread, p.width * job.c_row());
    for (int64_t unit = first_block; unit < last_block; ++unit) {
      const int64_t image = unit / blocks, begin = unit % blocks * block_rows;
      const int64_t end = smaller(p.out_height, begin + block_rows), count = (end - begin) * p.out_width;
      const int64_t at = image * p.outputs * p.out_height * p.out_width;
      const auto start = [&](int64_t o) { return at + (o * p.out_height + begin) * p.out_width; };
      float* y = out(a.y);
      for (int64_t o = 0; o < p.outputs; ++o)
        std::fill_n(y + start(o), count, a.bias ? in(a.bias)[o] : 0.0f);
      for (int64_t row = first_row(job.y, begin); row < last_row(job.y, end); ++row) {
        find_columns(job, in(a.x) + image * in_image + row * p.width * lanes, in_step, in(a.packed), c);
        add_columns(job, c, row, begin, end, y + at);
      }
      for (int64_t o = 0; o < p.outputs; ++o)
        (finish.plain() ? finish_floats<true> : finish_floats<false>)(y, start(o), count, finish);
    }
  });
}
