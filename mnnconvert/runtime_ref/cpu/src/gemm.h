// Matrix products, y = a b, and the parts of which they are made.
//
// The innermost part is a tile: R rows of `a` times V vectors of columns of `b`, whose R x V sums stay in registers
// while k runs. Columns of b lie in panels of `panel` columns, so that a tile reads two neighbouring vectors per k and
// panel; R and V are such that the sums fill the registers, and are at least eight, as many as keep two
// multiply-add units of four cycles busy. Rows are dealt out evenly to tiles (13 rows are 5 + 4 + 4, not 6 + 6 + 1).
//
//   for columns in steps of columns_per_block      what is packed of b stays in L3
//     for k in steps of k_step(k)                  k_step x panel of b stay in L1
//       for rows in steps of rows_per_block        rows x k_step of a stay in L2
//         for panels of b, for tiles of rows
//
// Each k step starts its sums from zero and adds them to what y holds: shorter chains of additions, smaller errors.
// The steps follow from k alone, so neither the split of rows and columns nor the number of threads changes a bit.
//
// `b` is read where it lies when its columns are neighbours and it is small or hardly reused; else it is packed into
// panels, ahead of time (gemm_pack_b) or block by block. `a` is read with any strides; a block is copied (not
// rearranged) where its own rows would be in each other's way in the caches.
#pragma once
#include "epilogue.h"
#include "kernel.h"
#include "simd.h"
#include "transpose.h"

namespace mnnk::gemm {

constexpr int panel = 2 * lanes;
#if defined(__aarch64__)
constexpr int most_rows = 8;  // 16 of 32 registers
#else
constexpr int most_rows = lanes == 16 ? 14 : 6;  // 28 of 32, or 12 of 16 registers
#endif
constexpr int64_t rows_per_block = most_rows * (lanes == 16 ? 12 : 28);
constexpr int64_t columns_per_block = 1024;
constexpr int64_t longest_step = 24 * 1024 / (panel * static_cast<int64_t>(sizeof(float)));

// Vectors per tile of so many rows.
constexpr int widest(int64_t rows) { return rows >= 4 ? 2 : rows >= 2 ? 4 : 8; }

// k in equal steps, none longer than `longest_step`.
inline int64_t k_step(int64_t k) {
  return larger<int64_t>(1, round_up(ceil_div(k, larger<int64_t>(1, ceil_div(k, longest_step))), 8));
}

struct Left {
  const float* data;
  int64_t row, column;  // strides, in floats like all strides here
};

struct Right {
  const float* data;
  int64_t row, panel;  // from one k to the next, from panel to panel
};

struct Output {
  float* data;
  int64_t row;
  const float* bias;      // one per column, may be null
  const float* residual;  // laid out like `data`, may be `data` itself or null
  int64_t activation;
  float low, high;

  Output at(int64_t i, int64_t j) const {
    Output part = *this;
    part.data += i * row + j;
    if (bias) part.bias += j;
    if (residual) part.residual += i * row + j;
    return part;
  }
  // What is left to do at a k step: bias and residual go with the first one, the activation with the last one.
  Output during(bool first, bool last) const {
    Output part = *this;
    if (!first) part.bias = nullptr, part.residual = data;
    if (!last) part.activation = IDENTITY;
    if (part.activation != CLIP) part.low = -INFINITY, part.high = INFINITY;
    return part;
  }
};

// acc[r][v] += sum over k of a[r][k] * b[k][v]
template <int R, int V> MNNK_INLINE void accumulate(const Left& a, const Right& b, int64_t k, vf (&acc)[R][V]) {
  const float* x = a.data;
  const float* w = b.data;
  const int64_t row = a.row, column = a.column, b_row = b.row, b_panel = b.panel;
  for (; k > 0; --k) {
    if constexpr (R >= V) {
      vf right[V];
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) right[v] = load(w + (v / 2) * b_panel + (v % 2) * lanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const vf left = splat(x[r * row]);
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) acc[r][v] = fma(left, right[v], acc[r][v]);
      }
    } else {
      vf left[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) left[r] = splat(x[r * row]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        const vf right = load(w + (v / 2) * b_panel + (v % 2) * lanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[r][v] = fma(left[r], right, acc[r][v]);
      }
    }
    x += column;
    w += b_row;
  }
}

// The sums of a tile that only counts `columns` columns, brought to y one vector part at a time.
__attribute__((noinline)) inline void finish_part(const float* sums, int64_t rows, int64_t columns, const Output& y) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < columns; j += lanes) {
      const int64_t count = smaller<int64_t>(lanes, columns - j), at = r * y.row + j;
      vf sum = load(sums + r * panel + j);
      if (y.bias) sum = sum + load_part(y.bias + j, count);
      if (y.residual) sum = sum + load_part(y.residual + at, count);
      store_part(y.data + at, min(splat(y.high), max(splat(y.low), sum)), count);
    }
}

// A column of tiles: `tiles` times R rows of a, V vectors of b, of which `columns` count (all, but in the last panel).
template <int R, int V>
void sweep(Left a, const Right& b, int64_t k, Output y, int64_t tiles, int64_t columns) {
  const vf low = splat(y.low), high = splat(y.high);
  for (; tiles > 0; --tiles) {
    vf acc[R][V] = {};
    accumulate<R, V>(a, b, k, acc);
    if (V > 2 || columns == V * lanes) {
      const float* residual = y.residual;
      float* to = y.data;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
          vf sum = acc[r][v];
          if (y.bias) sum = sum + load(y.bias + v * lanes);
          if (residual) sum = sum + load(residual + v * lanes);
          store(to + v * lanes, min(high, max(low, sum)));
        }
        to += y.row;
        if (residual) residual += y.row;
      }
    } else {
      alignas(64) float sums[R * panel];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < smaller(V, 2); ++v) store(sums + r * panel + v * lanes, acc[r][v]);
      finish_part(sums, R, columns, y);
    }
    a.data += R * a.row;
    y = y.at(R, 0);
  }
}

using Sweep = void (*)(Left, const Right&, int64_t, Output, int64_t, int64_t);

template <int R = most_rows> Sweep sweep_of(int64_t rows, int64_t vectors) {
  if constexpr (R > 1)
    if (rows < R) return sweep_of<R - 1>(rows, vectors);
  if constexpr (widest(R) >= 8)
    if (vectors == 8) return sweep<R, 8>;
  if constexpr (widest(R) >= 4)
    if (vectors == 4) return sweep<R, 4>;
  return vectors == 2 ? sweep<R, 2> : sweep<R, 1>;
}

__attribute__((noinline)) inline void activate_rows(const Output& y, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    float* row = y.data + i * y.row;
    int64_t j = 0;
    for (; j + lanes <= columns; j += lanes) store(row + j, activate(y.activation, load(row + j), y.low, y.high));
    if (j < columns) store_part(row + j, activate(y.activation, load_part(row + j, columns - j), y.low, y.high), columns - j);
  }
}

// A block of rows of `a` times panels of `b` that hold `columns` columns. y = a b + bias + residual, activated.
inline void block(const Left& a, int64_t rows, const Right& b, int64_t columns, int64_t k, const Output& y) {
  if (rows <= 0) return;
  const int64_t tiles = ceil_div(rows, most_rows), few = rows / tiles, with_more = rows % tiles;
  const int64_t widest_tile = widest(few + (with_more > 0));
  for (int64_t j = 0, vectors; j < columns; j += vectors * lanes) {
    vectors = widest_tile;
    while (vectors > 2 && j + vectors * lanes > columns) vectors /= 2;
    if (columns - j <= lanes) vectors = 1;
    const int64_t some = smaller(columns - j, vectors * lanes);
    const Right from{b.data + j / panel * b.panel, b.row, b.panel};
    const Output to = y.at(0, j);
    if (with_more) sweep_of(few + 1, vectors)(a, from, k, to, with_more, some);
    const int64_t done = with_more * (few + 1);
    sweep_of(few, vectors)({a.data + done * a.row, a.row, a.column}, from, k, to.at(done, 0), tiles - with_more, some);
    if (y.activation > CLIP) activate_rows(to, rows, some);
  }
}

// Panels of b [k, columns] with any strides: to[panel][k][panel columns], the last panel filled up with zeros.
// `to_panel` floats from panel to panel.
inline void pack(const float* b, int64_t row, int64_t column, int64_t k, int64_t columns, float* to, int64_t to_panel) {
  for (int64_t j = 0; j < columns; j += panel, to += to_panel, b += panel * column) {
    const int64_t some = smaller<int64_t>(panel, columns - j);
    int64_t done = 0;
    if (column == 1 && some == panel) {
      for (; done < k; ++done)
        for (int v = 0; v < 2; ++v) store(to + done * panel + v * lanes, load(b + done * row + v * lanes));
    } else if (row == 1 && some == panel) {
      for (; done + lanes <= k; done += lanes)
        for (int v = 0; v < 2; ++v)
          transpose_block(b + done + v * lanes * column, column, to + done * panel + v * lanes, panel);
    }
    for (; done < k; ++done) {
      for (int64_t c = 0; c < some; ++c) to[done * panel + c] = b[done * row + c * column];
      for (int64_t c = some; c < panel; ++c) to[done * panel + c] = 0.0f;
    }
  }
}

struct Product {
  int64_t m, n, k;
  Left a;
  const float* b;
  int64_t b_row, b_column;
  bool packed;
  Output y;

  int64_t panels() const { return ceil_div(n, panel); }
  bool b_in_place() const {
    return !packed && b_column == 1 && (m <= 3 * most_rows || k * b_row <= longest_step * panel);
  }
  bool copies_a() const { return n > 4 * panel && (a.column != 1 || (a.row % 256 == 0 && m > most_rows)); }
  int64_t a_scratch() const { return copies_a() ? smaller(m, rows_per_block) * (k_step(k) + 16) : 0; }
  int64_t b_scratch() const {
    if (packed) return 0;
    return k_step(k) * (b_in_place() ? panel : round_up(smaller(n, columns_per_block), panel));
  }
};

// Where columns j.. of `b` can be read as panels, for k from k0 on; packs into `scratch` what cannot be read in place.
inline Right panels_of(const Product& p, int64_t j, int64_t columns, int64_t k0, int64_t step, float* scratch) {
  if (p.packed) return {p.b + j * p.k + k0 * panel, panel, p.k * panel};
  const float* b = p.b + k0 * p.b_row + j * p.b_column;
  pack(b, p.b_row, p.b_column, step, columns, scratch, step * panel);
  return {scratch, panel, step * panel};
}

inline Left copy_block(const Left& a, int64_t rows, int64_t step, float* to) {
  if (a.column == 1) {
    const int64_t row = step + 16;  // an odd number of cache lines apart
    for (int64_t i = 0; i < rows; ++i) std::memcpy(to + i * row, a.data + i * a.row, static_cast<size_t>(step) * 4);
    return {to, row, 1};
  }
  for (int64_t l = 0; l < step; ++l)
    for (int64_t i = 0; i < rows; ++i) to[l * rows + i] = a.data[i * a.row + l * a.column];
  return {to, 1, rows};
}

// Rows i0..i1 and columns j0..j1 (j0 a multiple of `panel`) of a product; scratch of a_scratch() + b_scratch() floats.
inline void multiply(const Product& p, int64_t i0, int64_t i1, int64_t j0, int64_t j1, float* scratch) {
  const int64_t longest = k_step(p.k);
  float* b_scratch = scratch + p.a_scratch();
  for (int64_t j = j0, columns; j < j1; j += columns) {
    columns = smaller(columns_per_block, j1 - j);
    for (int64_t k0 = 0, step; k0 == 0 || k0 < p.k; k0 += longest) {
      step = smaller(longest, p.k - k0);
      const bool in_place = p.b_in_place();
      const int64_t whole = in_place ? columns / panel * panel : 0;
      const Right rest = columns > whole ? panels_of(p, j + whole, columns - whole, k0, step, b_scratch) : Right{};
      for (int64_t i = i0; i < i1; i += rows_per_block) {
        const int64_t rows = smaller(rows_per_block, i1 - i);
        Left a{p.a.data + i * p.a.row + k0 * p.a.column, p.a.row, p.a.column};
        if (p.copies_a()) a = copy_block(a, rows, step, scratch);
        const Output y = p.y.at(i, j).during(k0 == 0, k0 + step >= p.k);
        if (whole) block(a, rows, {p.b + k0 * p.b_row + j, p.b_row, panel}, whole, step, y);
        block(a, rows, rest, columns - whole, step, y.at(0, whole));
      }
    }
  }
}

}  // namespace mnnk::gemm
