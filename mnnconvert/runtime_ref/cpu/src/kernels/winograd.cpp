// Convolution 3x3 of stride 1 by Winograd's minimal filtering, F(2x2, 3x3) and F(4x4, 3x3), on blocked maps.
//
// An m x m tile of the result needs an alpha x alpha patch of the image, alpha = m + 2. With the matrices A, B, G of
// Toom and Cook for alpha - 1 points and infinity, the tile is A^T ((G w G^T) . (B^T patch B)) A: alpha^2 products
// instead of 9 m^2, per pair of channels. Points {0, 1, -1} for m = 2 (2.25 times fewer products; error 5e-7 of the
// largest result) and {0, 1, -1, 1/2, -2} for m = 4 (4 times fewer; 4e-6, against 1e-5 with the point 2 for 1/2).
// B and A stand below as code, G comes from Python (lowering/winograd.py makes it exactly from the points).
//
// Blocking: a group of tiles is transformed at a time, for all input channels: `v` [alpha^2][panel of tiles]
// [block of inputs][tile][lanes] stays in the second-level cache. Then for a chunk of output channels alpha^2 matrix
// products (tiles x inputs) x (inputs x outputs) fill `m` [alpha^2][tile][chunk], which the output transform reads.
// The alpha^2 parts of both start at odd multiples of a cache line from each other, so they do not share cache sets.
//
// Packed weights: [alpha^2][ceil(outputs / PANEL)][ceil(inputs / lanes) * lanes][PANEL] floats.
#include "epilogue.h"
#include "kernel.h"
#include "panel.h"
#include "simd.h"

using namespace mnnk;

namespace {

constexpr int64_t V_FLOATS = 64 << 10;  // aims of the sizes of `v` and `m`: half of a 512 KiB cache each
constexpr int64_t M_FLOATS = 48 << 10;

// One-dimensional transforms: v = B^T d, y = A^T m.
template <int TILE> struct Points;

template <> struct Points<2> {
  static constexpr int alpha = 4;
  static MNNK_INLINE void input(const vf (&d)[4], vf (&v)[4]) {
    v[0] = d[2] - d[0];
    v[1] = d[1] + d[2];
    v[2] = d[2] - d[1];
    v[3] = d[3] - d[1];
  }
  static MNNK_INLINE void output(const vf (&m)[4], vf (&y)[2]) {
    y[0] = m[0] + (m[1] + m[2]);
    y[1] = (m[1] - m[2]) + m[3];
  }
};

template <> struct Points<4> {
  static constexpr int alpha = 6;
  static MNNK_INLINE void input(const vf (&d)[6], vf (&v)[6]) {
    const vf even = d[4] - d[2], odd = d[3] - d[1];
    const vf s = fma(splat(1.5f), d[3], even), t = fma(splat(1.5f), d[2], odd);
    v[0] = fma(splat(1.5f), odd, (d[0] - d[2]) + even);
    v[1] = s + t;
    v[2] = s - t;
    v[3] = fma(splat(2.0f), odd, even);
    v[4] = fma(splat(-0.5f), odd, even);
    v[5] = fma(splat(1.5f), even, (d[5] - d[3]) - odd);
  }
  static MNNK_INLINE void output(const vf (&m)[6], vf (&y)[4]) {
    const vf even = m[1] + m[2], odd = m[1] - m[2];
    y[0] = (m[0] + even) + (m[3] + m[4]);
    y[1] = fma(splat(-2.0f), m[4], fma(splat(0.5f), m[3], odd));
    y[2] = fma(splat(4.0f), m[4], fma(splat(0.25f), m[3], even));
    y[3] = fma(splat(-8.0f), m[4], fma(splat(0.125f), m[3], odd)) + m[5];
  }
};

struct Shape {
  int64_t in_blocks, height, width, out_blocks, out_height, out_width, top, left, tiles_y, tiles_x;
};

struct Finish {
  const float* bias;  // [out_blocks][lanes]
  const float* residual;
  int64_t activation;
  float low, high;
};

// Floats between the alpha^2 parts of a buffer whose parts hold `count`.
int64_t part_step(int64_t count) { return (ceil_div(count, 16) | 1) * 16; }

template <int TILE> MNNK_INLINE void transform_input(const float* x, int64_t row_step, float* v, int64_t v_step) {
  constexpr int alpha = Points<TILE>::alpha;
  vf middle[alpha][alpha];
#pragma GCC unroll 6
  for (int j = 0; j < alpha; ++j) {
    vf d[alpha], column[alpha];
#pragma GCC unroll 6
    for (int i = 0; i < alpha; ++i) d[i] = load(x + i * row_step + j * lanes);
    Points<TILE>::input(d, column);
#pragma GCC unroll 6
    for (int i = 0; i < alpha; ++i) middle[i][j] = column[i];
  }
  for (int i = 0; i < alpha; ++i) {
    vf row[alpha];
    Points<TILE>::input(middle[i], row);
#pragma GCC unroll 6
    for (int j = 0; j < alpha; ++j, v += v_step) store(v, row[j]);
  }
}

// A part of the image that reaches over its border, with zeros there.
template <int TILE> void copy_patch(const float* image, const Shape& s, int64_t y0, int64_t x0, float* patch) {
  constexpr int alpha = Points<TILE>::alpha;
  const int64_t from = larger<int64_t>(0, -x0), to = smaller<int64_t>(alpha, s.width - x0);
  std::memset(patch, 0, alpha * alpha * sizeof(vf));
  for (int64_t i = larger<int64_t>(0, -y0); i < smaller<int64_t>(alpha, s.height - y0); ++i)
    for (int64_t j = from; j < to; ++j)
      store(patch + (i * alpha + j) * lanes, load(image + ((y0 + i) * s.width + x0 + j) * lanes));
}

// Where a tile lies. Tiles are numbered along rows, rows, images.
struct Place {
  int64_t image, row, column;

  static Place of(int64_t tile, const Shape& s) {
    return {tile / (s.tiles_y * s.tiles_x), tile / s.tiles_x % s.tiles_y, tile % s.tiles_x};
  }
  void next(const Shape& s) {
    if (++column < s.tiles_x) return;
    column = 0;
    if (++row < s.tiles_y) return;
    row = 0;
    ++image;
  }
};

// One block of input channels of a tile.
template <int TILE>
MNNK_INLINE void transform_tile(const float* x, const Shape& s, const Place& place, int64_t block, float* v,
                                int64_t v_step) {
  constexpr int alpha = Points<TILE>::alpha;
  const int64_t y0 = place.row * TILE - s.top, x0 = place.column * TILE - s.left;
  x += (place.image * s.in_blocks + block) * s.height * s.width * lanes;
  alignas(64) float patch[alpha * alpha * lanes];
  const bool inside = y0 >= 0 && x0 >= 0 && y0 + alpha <= s.height && x0 + alpha <= s.width;
  if (!inside) copy_patch<TILE>(x, s, y0, x0, patch);
  transform_input<TILE>(inside ? x + (y0 * s.width + x0) * lanes : patch, (inside ? s.width : alpha) * lanes, v, v_step);
}

template <int TILE> MNNK_INLINE void transform_output(const float* m, int64_t m_step, vf (&y)[TILE][TILE]) {
  constexpr int alpha = Points<TILE>::alpha;
  vf middle[TILE][alpha];
#pragma GCC unroll 6
  for (int j = 0; j < alpha; ++j) {
    vf part[alpha], column[TILE];
#pragma GCC unroll 6
    for (int i = 0; i < alpha; ++i) part[i] = load(m + (i * alpha + j) * m_step);
    Points<TILE>::output(part, column);
#pragma GCC unroll 4
    for (int i = 0; i < TILE; ++i) middle[i][j] = column[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < TILE; ++i) Points<TILE>::output(middle[i], y[i]);
}

// PLAIN: the activation is a clip, which is none when its bounds are infinite.
template <int TILE, bool PLAIN>
void finish_tile(const float* m, int64_t m_step, const Shape& s, const Place& place, int64_t block, const Finish& f,
                 float* y) {
  const int64_t row = place.row * TILE, column = place.column * TILE;
  const int64_t rows = smaller<int64_t>(TILE, s.out_height - row);
  const int64_t columns = smaller<int64_t>(TILE, s.out_width - column);
  const int64_t at = (((place.image * s.out_blocks + block) * s.out_height + row) * s.out_width + column) * lanes;
  const vf bias = load(f.bias + block * lanes), low = splat(f.low), high = splat(f.high);
  vf result[TILE][TILE];
  transform_output<TILE>(m, m_step, result);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t pixel = at + (i * s.out_width + j) * lanes;
      vf v = result[i][j] + bias;
      if (f.residual) v += load(f.residual + pixel);
      store(y + pixel, PLAIN ? min(high, max(low, v)) : activate(f.activation, v, f.low, f.high));
    }
}

template <int ROWS> struct Product {
  static void run(const float* v, const float* w, int64_t blocks, float* m, int64_t m_row, Ahead ahead) {
    vf acc[ROWS][2] = {};
    accumulate(acc, v, ROWS * lanes, w, blocks, ahead);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      store(m + r * m_row, acc[r][0]);
      store(m + r * m_row + lanes, acc[r][1]);
    }
  }
};
constexpr auto PRODUCTS = by_rows<Product>();

struct Plan {
  int64_t group, groups, chunk;  // tiles of a group (at most), groups, panels of a chunk (at most)
  int64_t v_step, m_step;
};

template <int TILE> Plan make_plan(const Shape& s, int64_t tiles, int64_t panels, int64_t threads) {
  constexpr int64_t parts = Points<TILE>::alpha * Points<TILE>::alpha;
  const int64_t inputs = s.in_blocks * lanes;
  const int64_t most = larger<int64_t>(V_FLOATS / (parts * inputs), 4 * MOST_ROWS);
  Plan plan;
  plan.groups = ceil_div(tiles, smaller<int64_t>(most, 8 * MOST_ROWS));
  if (plan.groups >= threads) plan.groups = smaller(tiles, round_up(plan.groups, threads));
  plan.group = ceil_div(tiles, plan.groups);
  plan.chunk = smaller(panels, larger<int64_t>(1, M_FLOATS / (parts * plan.group * PANEL)));
  plan.v_step = part_step(plan.group * inputs);
  plan.m_step = part_step(plan.group * plan.chunk * PANEL);
  return plan;
}

template <int TILE>
void run_group(const float* x, const float* weights, float* y, const Shape& s, const Plan& plan, const Finish& f,
               int64_t first_tile, int64_t tiles, int64_t first_panel, int64_t last_panel, float* v) {
  constexpr int parts = Points<TILE>::alpha * Points<TILE>::alpha;
  const int64_t inputs = s.in_blocks * lanes, all_panels = ceil_div(s.out_blocks, 2);
  const int64_t strips = ceil_div(tiles, MOST_ROWS);  // of tiles that are multiplied at once, of about equal length
  const auto strip_start = [&](int64_t i) { return tiles * i / strips; };
  float* const m = v + parts * plan.v_step;
  for (int64_t block = 0; block < s.in_blocks; ++block) {
    Place place = Place::of(first_tile, s);
    for (int64_t strip = 0; strip < strips; ++strip) {
      const int64_t start = strip_start(strip), rows = strip_start(strip + 1) - start;
      for (int64_t r = 0; r < rows; ++r, place.next(s))
        transform_tile<TILE>(x, s, place, block, v + start * inputs + (block * rows + r) * lanes, plan.v_step);
    }
  }
  const bool plain = f.activation <= CLIP;
  for (int64_t chunk = first_panel; chunk < last_panel; chunk += plan.chunk) {
    const int64_t panels = smaller(plan.chunk, last_panel - chunk), row = panels * PANEL;
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t panel = 0; panel < panels; ++panel) {
        const float* w = weights + (part * all_panels + chunk + panel) * inputs * PANEL;
        const float* next = w + (panel + 1 < panels ? 1 : all_panels - panel) * inputs * PANEL;
        for (int64_t strip = 0; strip < strips; ++strip) {
          const int64_t start = strip_start(strip), rows = strip_start(strip + 1) - start;
          PRODUCTS[rows - 1](v + part * plan.v_step + start * inputs, w, s.in_blocks,
                             m + part * plan.m_step + start * row + panel * PANEL, row,
                             Ahead::share(next, inputs, strip, strips));
        }
      }
    const int64_t last_block = smaller(s.out_blocks, 2 * (chunk + panels));
    Place place = Place::of(first_tile, s);
    for (int64_t tile = 0; tile < tiles; ++tile, place.next(s))
      for (int64_t block = 2 * chunk; block < last_block; ++block)
        (plain ? finish_tile<TILE, true> : finish_tile<TILE, false>)(
            m + tile * row + (block - 2 * chunk) * lanes, plan.m_step, s, place, block, f, y);
  }
}

// Threads share the groups; when there are too few, the output channels, and each transforms the tiles for itself.
template <int TILE>
void convolve(const float* x, const float* weights, float* y, const Shape& s, int64_t images, int64_t outputs, Finish f,
              const float* plain_bias, Pool& pool) {
  constexpr int parts = Points<TILE>::alpha * Points<TILE>::alpha;
  const int64_t tiles = images * s.tiles_y * s.tiles_x, panels = ceil_div(s.out_blocks, 2);
  if (tiles == 0 || outputs == 0) return;
  const Plan plan = make_plan<TILE>(s, tiles, panels, pool.threads());
  const bool by_group = plan.groups >= pool.threads();
  const int64_t count = by_group ? plan.groups : panels, work = parts * tiles * s.in_blocks * lanes * outputs / count;
  pool.split(count, ceil_div(WORTH_A_THREAD, work + 1), [&](int64_t begin, int64_t end, int thread) {
    float* v = pool.scratch_f32(thread, parts * (plan.v_step + plan.m_step) + panels * PANEL);
    float* bias = v + parts * (plan.v_step + plan.m_step);
    for (int64_t i = 0; i < panels * PANEL; ++i) bias[i] = plain_bias && i < outputs ? plain_bias[i] : 0.0f;
    Finish finish = f;
    finish.bias = bias;
    for (int64_t group = by_group ? begin : 0; group < (by_group ? end : plan.groups); ++group) {
      const int64_t first = tiles * group / plan.groups, last = tiles * (group + 1) / plan.groups;
      run_group<TILE>(x, weights, y, s, plan, finish, first, last - first, by_group ? 0 : begin,
                      by_group ? panels : end, v);
    }
  });
}

}  // namespace

// w [outputs][inputs][3][3] and g, float64 [tile + 2][3], to packed weights (see above). Computed in float64.
KERNEL(winograd_pack, ARGS(w, g, packed), PARAMS(outputs, inputs, tile)) {
  const float* w = in(a.w);
  const double* g = in<double>(a.g);
  float* packed = out(a.packed);
  const int64_t alpha = p.tile + 2, rows = round_up(p.inputs, lanes), panels = ceil_div(p.outputs, PANEL);
  using Row = double[PANEL];  // a number for each output
  const auto mix = [](Row& y, const double* factor, const Row& first, const Row& second, const Row& third) {
    for (int o = 0; o < PANEL; ++o) y[o] = factor[0] * first[o] + factor[1] * second[o] + factor[2] * third[o];
  };
  pool.split(panels, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = begin; panel < end; ++panel)
      for (int64_t k = 0; k < rows; ++k) {
        Row taps[9] = {}, half[3], whole;
        const int64_t outputs = k < p.inputs ? smaller<int64_t>(PANEL, p.outputs - panel * PANEL) : 0;
        for (int64_t o = 0; o < outputs; ++o)
          for (int tap = 0; tap < 9; ++tap) taps[tap][o] = w[((panel * PANEL + o) * p.inputs + k) * 9 + tap];
        for (int64_t i = 0; i < alpha; ++i) {
          for (int c = 0; c < 3; ++c) mix(half[c], g + i * 3, taps[c], taps[3 + c], taps[6 + c]);  // row i of g w
          for (int64_t j = 0; j < alpha; ++j) {
            mix(whole, g + j * 3, half[0], half[1], half[2]);
            float* to = packed + (((i * alpha + j) * panels + panel) * rows + k) * PANEL;
            for (int o = 0; o < PANEL; ++o) to[o] = static_cast<float>(whole[o]);
          }
        }
      }
  });
}

// x [images][blocks of inputs][height][width][lanes] to y [images][blocks of outputs][out_height][out_width][lanes]
// through tiles of 2x2 or 4x4; `top` and `left` are the padding there, what lacks at the other sides is zero, too.
// bias [outputs] or null, residual as y or null.
KERNEL(winograd, ARGS(x, packed, bias, residual, y),
       PARAMS(images, inputs, height, width, outputs, out_height, out_width, top, left, tile, activation),
       SCALARS(low, high)) {
  const Shape shape{ceil_div(p.inputs, lanes),  p.height, p.width, ceil_div(p.outputs, lanes), p.out_height,
                    p.out_width, p.top, p.left, ceil_div(p.out_height, p.tile), ceil_div(p.out_width, p.tile)};
  const bool none = p.activation == IDENTITY;
  const Finish finish{nullptr, in(a.residual), p.activation, none ? -INFINITY : s.low, none ? INFINITY : s.high};
  (p.tile == 2 ? convolve<2> : convolve<4>)(in(a.x), in(a.packed), out(a.y), shape, p.images, p.outputs, finish,
                                            in(a.bias), pool);
}
