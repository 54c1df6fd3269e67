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
#include <type_traits>

#include "epilogue.h"
#include "kernel.h"
#include "simd.h"
#include "transpose.h"

namespace mnnk::gemm {

constexpr int panel = 2 * lanes;
#if defined(__aarch64__)
constexpr int most_rows = 8;  // 16 of 32 registers
#elif defined(__AVX512F__)
constexpr int most_rows = 14;  // 28 of 32
#else
constexpr int most_rows = 6;  // 12 of 16
#endif
constexpr int64_t columns_per_block = 1024;  // packed on the fly
constexpr int64_t most_columns = 4096;       // packed ahead of time, or in place
constexpr int64_t longest_step = 24 * 1024 / (panel * static_cast<int64_t>(sizeof(float)));

// Vectors per tile of so many rows.
constexpr int widest(int64_t rows) { return rows >= 4 ? 2 : rows >= 2 ? 4 : 8; }

// k in equal steps, none longer than `longest_step`.
inline int64_t k_step(int64_t k) {
  return larger<int64_t>(1, round_up(ceil_div(k, larger<int64_t>(1, ceil_div(k, longest_step))), 8));
}

inline int64_t rows_per_block(int64_t step) {
  return larger<int64_t>(1, 56 * 1024 / (larger<int64_t>(1, step) * most_rows)) * most_rows;
}

constexpr int64_t line = 64 / sizeof(float);  // of the caches

constexpr int few_rows = 4;  // a matrix of so many rows reads b once; b is not worth packing
constexpr int64_t streamed_columns = 1024;

struct Left {
  const float* data;
  int64_t row, column;  // strides, in floats like all strides here
};

struct Right {
  const float* data;
  int64_t row, panel;  // from one k to the next, from panel to panel
  const float* ahead = nullptr;  // what comes next is brought to L2 while this is multiplied,
  int64_t share = 0;             // so many floats per tile

  Right from(int64_t column) const { return {data + column / gemm::panel * panel, row, panel}; }
};

struct Output {
  float* data;
  int64_t row;
  const float* bias;      // one per column, may be null
  const float* residual;  // laid out like `data`, may be `data` itself or null
  int64_t activation;
  float low, high;     // every sum is clipped to these
  float slope = 0.0f;  // and LEAKY takes this

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
    if (part.activation != CLIP) part.slope = low, part.low = -INFINITY, part.high = INFINITY;
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

// Sums [rows, columns], `sums_row` apart and with room for whole vectors, brought to y.
__attribute__((noinline)) inline void finish(const float* sums, int64_t sums_row, int64_t rows, int64_t columns,
                                             const Output& y) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < columns; j += lanes) {
      const int64_t count = smaller<int64_t>(lanes, columns - j), at = r * y.row + j;
      const auto get = [count](const float* p) { return count == lanes ? load(p) : load_part(p, count); };
      vf sum = load(sums + r * sums_row + j);
      if (y.bias) sum = sum + get(y.bias + j);
      if (y.residual) sum = sum + get(y.residual + at);
      sum = min(splat(y.high), max(splat(y.low), sum));
      if (count == lanes)
        store(y.data + at, sum);
      else
        store_part(y.data + at, sum, count);
    }
}

// A column of tiles: `tiles` times R rows of a, V vectors of b, of which `columns` count (all, but in the last panel).
template <int R, int V>
void sweep(Left a, const Right& b, int64_t k, Output y, int64_t tiles, int64_t columns) {
  const vf low = splat(y.low), high = splat(y.high);
  const float* ahead = b.ahead;
  for (; tiles > 0; --tiles) {
    vf acc[R][V] = {};
    if (k >= 64) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {  // where the tile begins and ends
        __builtin_prefetch(y.data + r * y.row, 1, 3);
        __builtin_prefetch(y.data + r * y.row + V * lanes - 1, 1, 3);
      }
    }
    if (b.share) {
      Left left = a;
      Right right = b;
      const int64_t lines = b.share / line, each = ceil_div(k, lines);
      for (int64_t rest = k, some; rest > 0; rest -= some, ahead += line) {
        some = smaller(each, rest);
        __builtin_prefetch(ahead, 0, 2);
        accumulate<R, V>(left, right, some, acc);
        left.data += some * left.column;
        right.data += some * right.row;
      }
    } else {
      accumulate<R, V>(a, b, k, acc);
    }
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
    } else if constexpr (V <= 2) {
      alignas(64) float sums[R * panel];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) store(sums + r * panel + v * lanes, acc[r][v]);
      finish(sums, panel, R, columns, y);
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

inline void activate(const Output& y, int64_t rows, int64_t columns) {
  activate_rows(y.activation, y.data, y.row, rows, columns, y.slope, 0.0f);
}

// A block of rows of `a` times panels of `b` that hold `columns` columns. y = a b + bias + residual, activated.
inline void block(const Left& a, int64_t rows, const Right& b, int64_t columns, int64_t k, const Output& y) {
  if (rows <= 0 || columns <= 0) return;
  const int64_t tiles = ceil_div(rows, most_rows), few = rows / tiles, with_more = rows % tiles;
  const int64_t widest_tile = widest(few + (with_more > 0));
  for (int64_t j = 0, vectors; j < columns; j += vectors * lanes) {
    vectors = widest_tile;
    while (vectors > 2 && j + vectors * lanes > columns) vectors /= 2;
    if (columns - j <= lanes) vectors = 1;
    const int64_t some = smaller(columns - j, vectors * lanes);
    const int64_t done = with_more * (few + 1);
    const Output to = y.at(0, j);
    Right from = b.from(j);
    if (tiles >= 8 && b.row == panel && j + panel < columns) {
      from.share = round_up(ceil_div(k * panel, tiles), 16);
      from.ahead = from.data + b.panel;
    }
    if (with_more) sweep_of(few + 1, vectors)(a, from, k, to, with_more, some);
    from.ahead += with_more * from.share;
    sweep_of(few, vectors)({a.data + done * a.row, a.row, a.column}, from, k, to.at(done, 0), tiles - with_more, some);
    if (y.activation > CLIP) activate(to, rows, some);
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

// A few rows of `a` times `columns` columns of a large `b` that is read once, in the order in which it lies in memory:
// four rows of b at a time are added to sums that stay in L1.
template <int R>
void stream(const Left& a, const float* b, int64_t b_row, int64_t columns, int64_t k, const Output& y) {
  alignas(64) float sums[R * streamed_columns] = {};
  const auto add = [&](int64_t l, auto some) {
    constexpr int K = decltype(some)::value;
    vf left[R][K];
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < K; ++i) left[r][i] = splat(a.data[r * a.row + (l + i) * a.column]);
    for (int64_t j = 0; j < columns; j += lanes) {
      vf right[K];
#pragma GCC unroll 16
      for (int i = 0; i < K; ++i) right[i] = load(b + (l + i) * b_row + j);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        vf sum = load(sums + r * streamed_columns + j);
#pragma GCC unroll 16
        for (int i = 0; i < K; ++i) sum = fma(left[r][i], right[i], sum);
        store(sums + r * streamed_columns + j, sum);
      }
    }
  };
  int64_t l = 0;
  for (; l + 4 <= k; l += 4) add(l, std::integral_constant<int, 4>());
  for (; l < k; ++l) add(l, std::integral_constant<int, 1>());
  finish(sums, streamed_columns, R, columns, y);
}

template <int R = few_rows>
void stream_rows(const Left& a, int64_t rows, const float* b, int64_t b_row, int64_t columns, int64_t k, const Output& y) {
  if constexpr (R > 1)
    if (rows < R) return stream_rows<R - 1>(a, rows, b, b_row, columns, k, y);
  for (int64_t j = 0, some; j < columns; j += some) {
    some = smaller(streamed_columns, columns - j);
    stream<R>(a, b + j, b_row, some, k, y.at(0, j));
    if (y.activation > CLIP) activate(y.at(0, j), rows, some);
  }
}

// Rows of `a` times columns of b, all of them neighbours along k: C columns at a time, lanes partial sums of each.
template <int R, int C>
void dots(const Left& a, const float* b, int64_t b_column, int64_t columns, int64_t k, const Output& y) {
  for (int64_t j = 0; j + C <= columns; j += C, b += C * b_column) {
    vf acc[R][C] = {};
    const auto add = [&](int64_t l, auto get) {
      vf left[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) left[r] = get(a.data + r * a.row + l);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        const vf right = get(b + c * b_column + l);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[r][c] = fma(left[r], right, acc[r][c]);
      }
    };
    int64_t l = 0;
    for (; l + lanes <= k; l += lanes) add(l, [](const float* p) { return load(p); });
    if (l < k) add(l, [rest = k - l](const float* p) { return load_part(p, rest); });
    constexpr int row = (C + lanes - 1) / lanes * lanes;
    alignas(64) float sums[R * row] = {};
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sums[r * row + c] = sum(acc[r][c]);
    finish(sums, row, R, C, y.at(0, j));
  }
}

template <int R = few_rows>
void dots_rows(const Left& a, int64_t rows, const float* b, int64_t b_column, int64_t columns, int64_t k, const Output& y) {
  if constexpr (R > 1)
    if (rows < R) return dots_rows<R - 1>(a, rows, b, b_column, columns, k, y);
  constexpr int C = R == 1 ? 8 : 12 / R;
  const int64_t whole = columns / C * C;
  dots<R, C>(a, b, b_column, whole, k, y);
  dots<R, 1>(a, b + whole * b_column, b_column, columns - whole, k, y.at(0, whole));
  if (y.activation > CLIP) activate(y, rows, columns);
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
  bool b_streams() const { return !packed && b_column == 1 && m <= few_rows && k * b_row > (1 << 16); }
  bool by_dots() const { return !packed && b_row == 1 && b_column > 1 && a.column == 1 && m <= few_rows; }
  bool copies_a() const { return n > 4 * panel && (a.column != 1 || (m > few_rows && a.row % 256 == 0)); }
  int64_t columns_at_once() const { return packed || b_in_place() ? most_columns : columns_per_block; }
  int64_t a_scratch() const {
    const int64_t step = k_step(k);
    return copies_a() ? smaller(m, rows_per_block(step)) * (step + 16) : 0;
  }
  int64_t b_scratch() const {
    if (packed) return 0;
    return k_step(k) * (b_in_place() ? panel : round_up(smaller(n, columns_at_once()), panel));
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
  if (p.by_dots()) {
    const Left a{p.a.data + i0 * p.a.row, p.a.row, 1};
    return dots_rows(a, i1 - i0, p.b + j0 * p.b_column, p.b_column, j1 - j0, p.k, p.y.at(i0, j0).during(true, true));
  }
  const int64_t longest = k_step(p.k), block_rows = rows_per_block(longest);
  const bool in_place = p.b_in_place(), streams = p.b_streams(), copies_a = p.copies_a();
  float* b_scratch = scratch + p.a_scratch();
  for (int64_t j = j0, columns; j < j1; j += columns) {
    columns = smaller(p.columns_at_once(), j1 - j);
    const int64_t whole = in_place ? columns / panel * panel : 0;
    for (int64_t k0 = 0, step; k0 == 0 || k0 < p.k; k0 += longest) {
      step = smaller(longest, p.k - k0);
      const float* b = p.packed ? nullptr : p.b + k0 * p.b_row + j * p.b_column;
      const Right rest = columns > whole ? panels_of(p, j + whole, columns - whole, k0, step, b_scratch) : Right{};
      for (int64_t i = i0; i < i1; i += block_rows) {
        const int64_t rows = smaller(block_rows, i1 - i);
        Left a{p.a.data + i * p.a.row + k0 * p.a.column, p.a.row, p.a.column};
        if (copies_a) a = copy_block(a, rows, step, scratch);
        const Output y = p.y.at(i, j).during(k0 == 0, k0 + step >= p.k);
        if (streams)
          stream_rows(a, rows, b, p.b_row, whole, step, y);
        else
          block(a, rows, {b, p.b_row, panel}, whole, step, y);
        block(a, rows, rest, columns - whole, step, y.at(0, whole));
      }
    }
  }
}

}  // namespace mnnk::gemm
