// Moving data: strided copies, and copies through tables of offsets.
//
// copy_strided writes y[i0][i1]... = x[i0][i1]... where both sides have any strides: transposes, slices, parts of a
// concatenation, repetition (stride 0 in x), reversal (negative). The caller has merged what can be merged
// (mnnconvert/runtime_ref/cpu/strided.py), so that the last axis tells how to copy:
//   run        it is contiguous on both sides: rows are copied in chunks of up to 32 bytes, the last one overlapping
//   transpose  it is contiguous in y, another one in x: tiles of 16 bytes of columns go through registers, by the
//              perfect shuffle (interleaving rows i and i + K/2 log2 K times transposes K rows)
//   otherwise  element by element, unrolled by the compiler for the usual steps
//
// pick writes y[i0][i1]... = x at the sum of table[0][i0], table[1][i1], ...: padding of every kind, nearest
// neighbours, selections on several axes.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernel.h"
#include "simd.h"

using namespace mnnk;

namespace {

constexpr int64_t GRAIN = 1 << 15;  // bytes that are worth a thread
constexpr int MOST_AXES = 8;

struct Axis {
  int64_t n, x, y;  // size, and the distance in bytes between neighbours
};

// Elements of 1 to 64 bytes, at any address.
template <int E> struct Unit {};
template <> struct Unit<1> { typedef uint8_t type __attribute__((may_alias)); };
template <> struct Unit<2> { typedef uint16_t type __attribute__((may_alias, aligned(1))); };
template <> struct Unit<4> { typedef uint32_t type __attribute__((may_alias, aligned(1))); };
template <> struct Unit<8> { typedef uint64_t type __attribute__((may_alias, aligned(1))); };
template <> struct Unit<16> { typedef uint64_t type __attribute__((vector_size(16), may_alias, aligned(1))); };
template <> struct Unit<32> { typedef uint64_t type __attribute__((vector_size(32), may_alias, aligned(1))); };
template <> struct Unit<64> { typedef uint64_t type __attribute__((vector_size(64), may_alias, aligned(1))); };

template <int64_t N> using Constant = std::integral_constant<int64_t, N>;

template <int E> MNNK_INLINE void move(char* y, const char* x) {
  using U = typename Unit<E>::type;
  *reinterpret_cast<U*>(y) = *reinterpret_cast<const U*>(x);
}

// f(x, y) for every combination of the indices of `axes`.
template <class F> void each_place(const Axis* axes, int count, const char* x, char* y, const F& f) {
  if (count == 0) return f(x, y);
  if (count == 1) {
    for (int64_t i = 0; i < axes->n; ++i) f(x + i * axes->x, y + i * axes->y);
    return;
  }
  for (int64_t i = 0; i < axes->n; ++i) each_place(axes + 1, count - 1, x + i * axes->x, y + i * axes->y, f);
}

// ---- runs

// C <= bytes: whole chunks, the last one overlapping.
template <int C> MNNK_INLINE void copy_run(int64_t bytes, const char* x, char* y) {
  for (int64_t i = 0; i + C < bytes; i += C) move<C>(y + i, x + i);
  move<C>(y + bytes - C, x + bytes - C);
}

template <int C> void copy_runs(const Axis* outer, int count, int64_t bytes, const char* x, char* y) {
  each_place(outer, count, x, y, [bytes](const char* from, char* to) { copy_run<C>(bytes, from, to); });
}

constexpr int64_t LONG_RUN = 512;  // bytes from which memcpy is no slower

void copy_runs(const Axis* outer, int count, int64_t bytes, const char* x, char* y) {
  if (bytes >= LONG_RUN) {
    each_place(outer, count, x, y,
               [bytes](const char* from, char* to) { std::memcpy(to, from, static_cast<size_t>(bytes)); });
    return;
  }
  if (bytes >= 32) return copy_runs<32>(outer, count, bytes, x, y);
  if (bytes >= 16) return copy_runs<16>(outer, count, bytes, x, y);
  if (bytes >= 8) return copy_runs<8>(outer, count, bytes, x, y);
  if (bytes >= 4) return copy_runs<4>(outer, count, bytes, x, y);
  if (bytes >= 2) return copy_runs<2>(outer, count, bytes, x, y);
  return copy_runs<1>(outer, count, bytes, x, y);
}

// ---- any steps

template <int E, class X, class Y>
MNNK_INLINE void copy_steps(int64_t n, const char* __restrict x, char* __restrict y, X xs, Y ys) {
  using U = typename Unit<E>::type;
  for (int64_t i = 0; i < n; ++i) *reinterpret_cast<U*>(y + i * ys) = *reinterpret_cast<const U*>(x + i * xs);
}

template <int E> void copy_rows(const Axis* outer, int count, Axis row, const char* x, char* y) {
  const auto rows = [&](auto xs, auto ys) {
    each_place(outer, count, x, y, [&](const char* from, char* to) { copy_steps<E>(row.n, from, to, xs, ys); });
  };
  if (row.y != E) return rows(row.x, row.y);
  if (row.x == 0) return rows(Constant<0>(), Constant<E>());
  if (row.x == -E) return rows(Constant<-E>(), Constant<E>());
  if (row.x == 2 * E) return rows(Constant<2 * E>(), Constant<E>());
  return rows(row.x, Constant<E>());
}

// ---- transposes: x has `rows` rows of contiguous columns, y has a contiguous row for each column

template <int E, int W> struct Vector { typedef typename Unit<E>::type type __attribute__((vector_size(W))); };

// The elements of a and b in turn, from the lower (0) or upper (1) half of every 16 bytes.
template <int E, int UPPER, class V, int... I>
MNNK_INLINE V interleave(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int K = 16 / E;
  return V{(I % 2 ? b : a)[I / K * K + (I % K) / 2 + UPPER * K / 2]...};
}

// 16 bytes of a row, and with W = 32 those of the row that lies `next` further in the upper half.
template <int E, int W>
MNNK_INLINE typename Vector<E, W>::type load_rows(const char* x, [[maybe_unused]] int64_t next) {
#if defined(__AVX2__)
  if constexpr (W == 32) {
    return reinterpret_cast<typename Vector<E, W>::type>(
        _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(x + next), reinterpret_cast<const __m128i*>(x)));
  }
#endif
  typename Vector<E, W>::type v;
  std::memcpy(&v, x, W);
  return v;
}

// 16 / E columns of W / E rows.
template <int E, int W> MNNK_INLINE void transpose_tile(const char* x, int64_t xs, char* y, int64_t ys) {
  using V = typename Vector<E, W>::type;
  constexpr int K = 16 / E;
  constexpr auto each = std::make_integer_sequence<int, W / E>();
  V v[K], w[K];
#pragma GCC unroll 16
  for (int i = 0; i < K; ++i) v[i] = load_rows<E, W>(x + i * xs, K * xs);
#pragma GCC unroll 4
  for (int step = 1; step < K; step *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < K / 2; ++i) {
      w[2 * i] = interleave<E, 0>(v[i], v[i + K / 2], each);
      w[2 * i + 1] = interleave<E, 1>(v[i], v[i + K / 2], each);
    }
#pragma GCC unroll 16
    for (int i = 0; i < K; ++i) v[i] = w[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < K; ++i) std::memcpy(y + i * ys, &v[i], W);
}

// Whole tiles; those at the ends overlap their neighbours. Rows go by 128 bytes, so that lines of y are filled at once.
template <int E, int W>
void transpose_tiles(int64_t rows, int64_t xs, int64_t columns, int64_t ys, const char* x, char* y) {
  constexpr int64_t R = W / E, C = 16 / E, LINE = larger<int64_t>(128 / E, R);
  for (int64_t line = 0; line < rows; line += LINE) {
    const int64_t end = smaller(line + LINE, rows);
    for (int64_t c = 0; c < columns; c += C) {
      const int64_t column = smaller(c, columns - C);
      for (int64_t r = line; r < end; r += R) {
        const int64_t row = smaller(r, rows - R);
        transpose_tile<E, W>(x + row * xs + column * E, xs, y + column * ys + row * E, ys);
      }
    }
  }
}

// Few rows that fill y without gaps: `N` streams become one.
template <int E, int N> void merge_rows(int64_t xs, int64_t columns, const char* __restrict x, char* __restrict y) {
  using U = typename Unit<E>::type;
  for (int64_t c = 0; c < columns; ++c)
    for (int r = 0; r < N; ++r)
      *reinterpret_cast<U*>(y + (c * N + r) * E) = *reinterpret_cast<const U*>(x + r * xs + c * E);
}

// Few columns without gaps in x: one stream becomes `N`.
template <int E, int N> void part_columns(int64_t rows, int64_t ys, const char* __restrict x, char* __restrict y) {
  using U = typename Unit<E>::type;
  for (int64_t r = 0; r < rows; ++r)
    for (int c = 0; c < N; ++c)
      *reinterpret_cast<U*>(y + c * ys + r * E) = *reinterpret_cast<const U*>(x + (r * N + c) * E);
}

template <int E>
void transpose(int64_t rows, int64_t xs, int64_t columns, int64_t ys, const char* x, char* y) {
  const bool dense_y = ys == rows * E, dense_x = xs == columns * E;
  if (dense_y && rows == 2) return merge_rows<E, 2>(xs, columns, x, y);
  if (dense_y && rows == 3) return merge_rows<E, 3>(xs, columns, x, y);
  if (dense_x && columns == 2) return part_columns<E, 2>(rows, ys, x, y);
  if (dense_x && columns == 3) return part_columns<E, 3>(rows, ys, x, y);
  if constexpr (E <= 4) {
    constexpr int64_t K = 16 / E;
#if defined(__AVX2__)
    if (E > 1 && columns >= K && rows >= 2 * K) return transpose_tiles<E, 32>(rows, xs, columns, ys, x, y);
#endif
    if (columns >= K && rows >= K) return transpose_tiles<E, 16>(rows, xs, columns, ys, x, y);
  }
  const Axis row{rows, xs, E}, column{columns, E, ys};
  const Axis& outer = rows < columns ? row : column;
  copy_rows<E>(&outer, 1, rows < columns ? column : row, x, y);
}

// ---- the choice

template <int E> void copy_axes(Axis* axes, int count, const char* x, char* y) {
  if (count == 0) return move<E>(y, x);
  const Axis last = axes[count - 1];
  if (last.x == E && last.y == E) return copy_runs(axes, count - 1, last.n * E, x, y);
  for (int i = 0; i < count - 1 && last.y == E; ++i) {
    if (axes[i].x != E) continue;
    const Axis columns = axes[i];
    for (int j = i; j < count - 2; ++j) axes[j] = axes[j + 1];
    each_place(axes, count - 2, x, y, [&](const char* from, char* to) {
      transpose<E>(last.n, last.x, columns.n, columns.y, from, to);
    });
    return;
  }
  if (count > 1 && last.n < 8 && axes[count - 2].n > last.n) std::swap(axes[count - 1], axes[count - 2]);
  copy_rows<E>(axes, count - 1, axes[count - 1], x, y);
}

void copy_axes(int64_t bytes, Axis* axes, int count, const char* x, char* y) {
  switch (bytes) {
    case 1: return copy_axes<1>(axes, count, x, y);
    case 2: return copy_axes<2>(axes, count, x, y);
    case 4: return copy_axes<4>(axes, count, x, y);
    case 8: return copy_axes<8>(axes, count, x, y);
    default: return copy_axes<16>(axes, count, x, y);
  }
}

}  // namespace

// n: sizes; x, y: strides in bytes, those of y not growing from axis to axis; elements of 1, 2, 4, 8 or 16 `bytes`.
KERNEL(copy_strided, ARGS(x, y),
       PARAMS(bytes, x_at, y_at, n0, n1, n2, n3, n4, n5, n6, n7, x0, x1, x2, x3, x4, x5, x6, x7, y0, y1, y2, y3, y4, y5,
              y6, y7)) {
  const int64_t* numbers = reinterpret_cast<const int64_t*>(&p) + 3;
  Axis axes[MOST_AXES];
  int count = 0, longest = 0;
  int64_t total = p.bytes;
  for (int i = 0; i < MOST_AXES; ++i) {
    const Axis axis{numbers[i], numbers[MOST_AXES + i], numbers[2 * MOST_AXES + i]};
    total *= axis.n;
    if (axis.n == 1) continue;
    if (count && axis.n > axes[longest].n) longest = count;
    axes[count++] = axis;
  }
  if (total == 0) return;
  const char* x = in<char>(a.x) + p.x_at;
  char* y = out<char>(a.y) + p.y_at;
  if (count == 0) return copy_axes(p.bytes, axes, 0, x, y);
  const int64_t length = axes[longest].n;  // threads share the longest axis
  pool.split(length, ceil_div(GRAIN, larger<int64_t>(total / length, 1)), [&](int64_t begin, int64_t end, int) {
    Axis own[MOST_AXES];
    std::copy(axes, axes + count, own);
    own[longest].n = end - begin;
    copy_axes(p.bytes, own, count, x + begin * own[longest].x, y + begin * own[longest].y);
  });
}

namespace {

constexpr int64_t OUTSIDE = -1;

MNNK_INLINE int64_t sum_of_offsets(int64_t a, int64_t b) { return a == OUTSIDE || b == OUTSIDE ? OUTSIDE : a + b; }

// A row of a picked result: what its table looks like is found once, and used for all rows.
struct Row {
  const int64_t* table;
  int64_t n, bytes;
  int64_t run = 0, run_end = 0;  // where the table runs on without a step
  bool twice = false;            // every element comes twice

  Row(const int64_t* table_, int64_t n_, int64_t bytes_) : table(table_), n(n_), bytes(bytes_) {
    for (int64_t begin = 0, i = 1; i <= n; ++i) {
      if (i < n && table[i] == table[i - 1] + bytes && table[i - 1] != OUTSIDE) continue;
      if (i - begin > run_end - run) run = begin, run_end = i;
      begin = i;
    }
    if (run_end - run < 8) run = run_end = n;
    twice = n % 2 == 0 && table[0] != OUTSIDE;
    for (int64_t i = 0; twice && i < n; ++i) twice = table[i] == table[0] + i / 2 * bytes;
  }
};

// One unit of a row; E is 0 where its size is no constant.
template <int E> MNNK_INLINE void move_unit(int64_t bytes, const char* x, char* y) {
  if constexpr (E > 0) move<E>(y, x);
  else std::memcpy(y, x, static_cast<size_t>(bytes));
}

template <int E>
MNNK_INLINE void pick_part(const Row& row, int64_t begin, int64_t end, const char* x, const char* value, char* y) {
  const int64_t bytes = E ? E : row.bytes;
  const int64_t* table = row.table;
  for (int64_t i = begin; i < end; ++i)
    move_unit<E>(bytes, table[i] == OUTSIDE ? value : x + table[i], y + i * bytes);
}

MNNK_INLINE void copy_row(int64_t bytes, const char* x, char* y) {
  if (bytes >= 32 && bytes < LONG_RUN) return copy_run<32>(bytes, x, y);
  std::memcpy(y, x, static_cast<size_t>(bytes));
}

// The lower (0) or upper (1) half of a vector, every element twice.
template <int UPPER, class V, int... I> MNNK_INLINE V doubled(V v, std::integer_sequence<int, I...>) {
  constexpr int half = UPPER * static_cast<int>(sizeof...(I)) / 2;
  return V{v[half + I / 2]...};
}

template <int E, int W> MNNK_INLINE void double_vector(const char* x, char* y) {
  constexpr auto each = std::make_integer_sequence<int, W / E>();
  typename Vector<E, W>::type v;
  std::memcpy(&v, x, W);
  const auto lower = doubled<0>(v, each), upper = doubled<1>(v, each);
  std::memcpy(y, &lower, W);
  std::memcpy(y + W, &upper, W);
}

// Every element of x twice, by vectors, the last one overlapping.
template <int E> void double_row(const Row& row, const char* x, char* y) {
  const int64_t bytes = row.n / 2 * E;
  int64_t i = 0;
  if constexpr (E <= 4) {
    constexpr int W = E == 4 ? 4 * smaller(lanes, 8) : 16;
    if (bytes >= W) {
      for (; i + W < bytes; i += W) double_vector<E, W>(x + i, y + 2 * i);
      return double_vector<E, W>(x + bytes - W, y + 2 * (bytes - W));
    }
  }
  for (; i < bytes; i += E) {
    move<E>(y + 2 * i, x + i);
    move<E>(y + 2 * i + E, x + i);
  }
}

template <int E> void fill_row(const Row& row, const char* value, char* y) {
  const int64_t bytes = E ? E : row.bytes, n = row.n;
  alignas(64) char unit[E ? E : 1];
  if constexpr (E > 0) move<E>(unit, value);
  for (int64_t i = 0; i < n; ++i) move_unit<E>(bytes, E ? unit : value, y + i * bytes);
}

// A row from x, or of `value` alone where x is null.
template <int E> void pick_row(const Row& row, const char* x, const char* value, char* y) {
  if (!x) return fill_row<E>(row, value, y);
  if constexpr (E > 0) {
    if (row.twice) return double_row<E>(row, x + row.table[0], y);
  }
  pick_part<E>(row, 0, row.run, x, value, y);
  if (row.run == row.run_end) return;
  copy_row((row.run_end - row.run) * row.bytes, x + row.table[row.run], y + row.run * row.bytes);
  pick_part<E>(row, row.run_end, row.n, x, value, y);
}

using PickRow = void (*)(const Row&, const char*, const char*, char*);

PickRow pick_row_of(int64_t bytes) {
  switch (bytes) {
    case 1: return pick_row<1>;
    case 2: return pick_row<2>;
    case 4: return pick_row<4>;
    case 8: return pick_row<8>;
    case 16: return pick_row<16>;
    case 32: return pick_row<32>;
    case 64: return pick_row<64>;
    default: return pick_row<0>;
  }
}

}  // namespace

// y [n0, ..., n5] of units of `bytes`; table int64 has n0 + ... + n5 offsets in bytes, -1 where y is the unit `value`.
KERNEL(pick, ARGS(x, value, table, y), PARAMS(bytes, n0, n1, n2, n3, n4, n5)) {
  constexpr int OUTER = 4;
  const int64_t n[OUTER] = {p.n0, p.n1, p.n2, p.n3};
  const int64_t *tables[OUTER], *next = in<int64_t>(a.table);
  int64_t planes = 1;
  for (int i = 0; i < OUTER; ++i) {
    tables[i] = next;
    next += n[i];
    planes *= n[i];
  }
  if (planes * p.n4 * p.n5 == 0) return;
  const int64_t* rows = next;
  const Row row(rows + p.n4, p.n5, p.bytes);
  const int64_t row_bytes = p.n5 * p.bytes;
  const PickRow copy = pick_row_of(p.bytes);
  const char *x = in<char>(a.x), *value = in<char>(a.value);

  const auto plane_offset = [&](int64_t plane) {
    int64_t at = 0;
    for (int i = OUTER - 1; i >= 0; --i) {
      at = sum_of_offsets(at, tables[i][plane % n[i]]);
      plane /= n[i];
    }
    return at;
  };
  pool.split(planes * p.n4, ceil_div(GRAIN, row_bytes), [&](int64_t begin, int64_t end, int) {
    char* y = out<char>(a.y) + begin * row_bytes;
    int64_t before = OUTSIDE - 1;  // the offset of the row before, which may be the same again
    for (int64_t done = begin; done < end;) {
      const int64_t plane = plane_offset(done / p.n4), first = done % p.n4;
      const int64_t last = smaller(p.n4, first + end - done);
      for (int64_t r = first; r < last; ++r, y += row_bytes) {
        const int64_t at = sum_of_offsets(plane, rows[r]);
        if (at == before) copy_row(row_bytes, y - row_bytes, y);
        else copy(row, at == OUTSIDE ? nullptr : x + at, value, y);
        before = at;
      }
      done += last - first;
    }
  });
}
