// Reductions over one axis of x [outer, n, inner] -> y [outer, inner], and positions of extremes on it.
//
// The axis is cut into chunks of fixed length, and chunks into blocks. A block is folded by a few running vectors; blocks,
// and then chunks, are joined pairwise. So sums stay exact, and the order of additions depends on the shape alone, not on
// threads. With inner = 1 vectors lie along the axis and their lanes are joined last; else they lie along `inner`.
#include "kernel.h"
#include "simd.h"

namespace mnnk {
namespace {

constexpr int64_t BLOCK = 64;          // vectors folded one after another
constexpr int64_t CHUNK = 64 * BLOCK;  // vectors that one task folds

template <class V> struct Element;
template <> struct Element<vf> { using type = float; };
template <> struct Element<vi> { using type = int32_t; };
template <> struct Element<vu> { using type = uint32_t; };  // int32 arithmetic that wraps
template <class V> using element = typename Element<V>::type;

template <class V> MNNK_INLINE V get(const element<V>* x) {
  V v;
  std::memcpy(&v, x, sizeof v);
  return v;
}
// A vector that may reach beyond the end of the array: there its lanes are `rest`.
template <class V> MNNK_INLINE V get(const element<V>* x, const element<V>* end, V rest) {
  if (end - x >= lanes) return get<V>(x);
  std::memcpy(&rest, x, static_cast<size_t>(end - x) * sizeof(element<V>));
  return rest;
}
template <class V> MNNK_INLINE V all(element<V> x) { return V{} + x; }

// What reductions do: `start` is neutral, `take` adds an element, `join` two results. All but `start` work on vectors and
// on numbers alike.
struct Sum {
  template <class T> static constexpr T start() { return T{0}; }
  template <class V> static V take(V total, V x) { return total + x; }
  template <class V> static V join(V a, V b) { return a + b; }
};
struct SumOfSizes : Sum {
  template <class V> static V take(V total, V x);
};
template <> MNNK_INLINE vf SumOfSizes::take(vf total, vf x) { return total + abs(x); }
template <> MNNK_INLINE vu SumOfSizes::take(vu total, vu x) {
  return total + (reinterpret_cast<vi>(x) < vi{} ? -x : x);
}
struct SumOfSquares : Sum {
  template <class V> static V take(V total, V x) { return total + x * x; }
};
struct Product {
  template <class T> static constexpr T start() { return T{1}; }
  template <class V> static V take(V total, V x) { return total * x; }
  template <class V> static V join(V a, V b) { return a * b; }
};
template <class T> constexpr T highest() { return INT32_MAX; }
template <> constexpr float highest() { return INFINITY; }
template <class T> constexpr T lowest() { return INT32_MIN; }
template <> constexpr float lowest() { return -INFINITY; }
struct Maximum {  // NaN stays
  template <class T> static constexpr T start() { return lowest<T>(); }
  template <class V> static V take(V best, V x) { return (x > best) | (x != x) ? x : best; }
  template <class V> static V join(V a, V b) { return take(a, b); }
};
struct Minimum {
  template <class T> static constexpr T start() { return highest<T>(); }
  template <class V> static V take(V best, V x) { return (x < best) | (x != x) ? x : best; }
  template <class V> static V join(V a, V b) { return take(a, b); }
};
struct Any : Maximum {
  template <class T> static constexpr T start() { return T{0}; }
  template <class V> static V take(V found, V x) { return x != V{} ? V{} + 1 : found; }
};
struct All : Minimum {
  template <class T> static constexpr T start() { return T{1}; }
  template <class V> static V take(V found, V x) { return x != V{} ? found : V{}; }
};

// Joins results pairwise, as they come: level i holds the result of 2^i of them.
template <class R, class V> class Pairs {
 public:
  void add(V v) {
    int i = 0;
    for (uint64_t c = count_; c & 1; c >>= 1) v = R::template join<V>(level_[i++], v);
    level_[i] = v;
    ++count_;
  }
  V total() const {
    V v = all<V>(R::template start<element<V>>());
    int i = 0;
    for (uint64_t c = count_; c; c >>= 1, ++i)
      if (c & 1) v = R::template join<V>(level_[i], v);
    return v;
  }

 private:
  V level_[48];
  uint64_t count_ = 0;
};

// Folds `rows` vectors that lie `stride` elements apart.
template <class R, class V>
V fold(const element<V>* x, int64_t rows, int64_t stride, const element<V>* end) {
  constexpr int ways = 4;
  const V start = all<V>(R::template start<element<V>>());
  Pairs<R, V> blocks;
  for (int64_t first = 0; first < rows; first += BLOCK) {
    const int64_t last = smaller(first + BLOCK, rows);
    V running[ways] = {start, start, start, start};
    int64_t i = first;
    for (; i + ways <= last && x + (i + ways - 1) * stride + lanes <= end; i += ways)
#pragma GCC unroll 4
      for (int k = 0; k < ways; ++k) running[k] = R::template take<V>(running[k], get<V>(x + (i + k) * stride));
    for (; i < last; ++i) running[0] = R::template take<V>(running[0], get<V>(x + i * stride, end, start));
    const V block = R::template join<V>(R::template join<V>(running[0], running[1]),
                                        R::template join<V>(running[2], running[3]));
    if (rows <= BLOCK) return block;
    blocks.add(block);
  }
  return blocks.total();
}

template <class R, class V> element<V> join_lanes(V v) {
  element<V> x[lanes];
  std::memcpy(x, &v, sizeof v);
  for (int half = lanes / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) x[i] = R::template join<element<V>>(x[i], x[i + half]);
  return x[0];
}

// The last division truncates on integers, which are signed there.
inline float divide(float total, int64_t divisor) { return total / static_cast<float>(divisor); }
inline int32_t divide(int32_t total, int64_t divisor) { return static_cast<int32_t>(total / divisor); }
inline uint32_t divide(uint32_t total, int64_t divisor) {
  return static_cast<uint32_t>(divide(static_cast<int32_t>(total), divisor));
}

struct Shape {
  int64_t outer, n, inner, divisor;
};

// One task folds one chunk of the axis for one vector of results (along `inner`) or for one result.
template <class R, class V> void reduce(const Shape& s, const void* px, void* py, Pool& pool) {
  using T = element<V>;
  const T* x = in<T>(px);
  T* y = out<T>(py);
  const bool along = s.inner == 1;
  const int64_t rows = along ? ceil_div(s.n, lanes) : s.n, stride = along ? lanes : s.inner;
  const int64_t columns = along ? 1 : ceil_div(s.inner, lanes);
  const int64_t chunks = larger(int64_t{1}, ceil_div(rows, CHUNK)), tasks = s.outer * columns * chunks;
  const auto finish = [&](int64_t result, V v) {
    const int64_t row = columns == 1 ? result : result / columns, column = (result - row * columns) * lanes;
    T numbers[lanes];
    std::memcpy(numbers, &v, sizeof v);
    if (along) numbers[0] = join_lanes<R, V>(v);
    const int64_t count = along ? 1 : smaller(int64_t{lanes}, s.inner - column);
    for (int64_t i = 0; i < count; ++i) y[row * s.inner + column + i] = divide(numbers[i], s.divisor);
  };
  V* partial = chunks > 1 ? static_cast<V*>(pool.scratch(0, static_cast<size_t>(tasks) * sizeof(V))) : nullptr;
  const int64_t grain = larger(int64_t{1}, 4096 / larger(smaller(rows, CHUNK), int64_t{1}));
  pool.split(tasks, grain, [&](int64_t first, int64_t last, int) {
    for (int64_t task = first; task < last; ++task) {
      // divisions take longer than short rows
      const int64_t result = chunks == 1 ? task : task / chunks, begin = (task - result * chunks) * CHUNK;
      const int64_t row = columns == 1 ? result : result / columns, column = (result - row * columns) * lanes;
      const T* origin = x + row * s.n * s.inner;
      const V v = fold<R, V>(origin + column + begin * stride, smaller(CHUNK, rows - begin), stride,
                             origin + s.n * s.inner);
      if (partial) partial[task] = v; else finish(result, v);
    }
  });
  for (int64_t result = 0; partial && result < s.outer * columns; ++result) {
    Pairs<R, V> joined;
    for (int64_t i = 0; i < chunks; ++i) joined.add(partial[result * chunks + i]);
    finish(result, joined.total());
  }
}

template <class V> MNNK_INLINE void fold_lane(V& best, vi& at, V other, vi other_at) {
  const vi better = (other > best) | ((other != other) & (best == best));
  const vi equal = ((other == best) | ((other != other) & (best != best))) & (other_at < at);
  best = better | equal ? other : best;
  at = better | equal ? other_at : at;
}

// The first position of the largest element; the first NaN is the largest of all. `sign` -1 finds the smallest.
template <class V> void position(const Shape& s, bool largest, const void* px, int32_t* y, Pool& pool) {
  using T = element<V>;
  const T* x = in<T>(px);
  const auto at = [&](const T* p, const T* end, T rest) {
    const V v = get<V>(p, end, all<V>(rest));
    return largest ? v : (std::is_same_v<T, float> ? -v : reinterpret_cast<V>(~reinterpret_cast<vi>(v)));
  };
  const T least = largest ? lowest<T>() : highest<T>();
  vi lane;
  for (int i = 0; i < lanes; ++i) lane[i] = i;
  const bool along = s.inner == 1;
  const int64_t columns = along ? 1 : ceil_div(s.inner, lanes);
  const int64_t grain = larger(int64_t{1}, 8192 / larger(s.n, int64_t{1}));
  pool.split(s.outer * columns, grain, [&](int64_t first, int64_t last, int) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t row = task / columns, column = task % columns * lanes;
      const T* origin = x + row * s.n * s.inner;
      const T* end = origin + s.n * s.inner;
      const int64_t rows = along ? ceil_div(s.n, lanes) : s.n, stride = along ? lanes : s.inner;
      V best = at(origin + column, end, least);
      vi where = along ? lane : vi{};
      for (int64_t i = 1; i < rows; ++i) {
        const V other = at(origin + column + i * stride, end, least);
        const vi better = (other > best) | ((other != other) & (best == best));
        best = better ? other : best;
        where = better ? splat_int(static_cast<int32_t>(along ? i * lanes : i)) + (along ? lane : vi{}) : where;
      }
      int64_t count = smaller(int64_t{lanes}, s.inner - column);
      if (along) {
        count = 1;
        for (int i = 1; i < lanes; ++i) fold_lane(best, where, all<V>(best[i]), splat_int(where[i]));
      }
      std::memcpy(y + row * s.inner + column, &where, static_cast<size_t>(count) * sizeof(int32_t));
    }
  });
}

// The numbers are known to Python (lowering/reduction.py).
enum Operation : int64_t { SUM, SIZES, SQUARES, PRODUCT, MAXIMUM, MINIMUM, ANY, ALL };

template <class V, class Ordered> void reduce_by(int64_t operation, const Shape& s, const void* x, void* y,
                                                        Pool& pool) {
  switch (operation) {
    case SUM: return reduce<Sum, V>(s, x, y, pool);
    case SIZES: return reduce<SumOfSizes, V>(s, x, y, pool);
    case SQUARES: return reduce<SumOfSquares, V>(s, x, y, pool);
    case PRODUCT: return reduce<Product, V>(s, x, y, pool);
    case MAXIMUM: return reduce<Maximum, Ordered>(s, x, y, pool);
    case MINIMUM: return reduce<Minimum, Ordered>(s, x, y, pool);
    case ANY: return reduce<Any, Ordered>(s, x, y, pool);
    case ALL: return reduce<All, Ordered>(s, x, y, pool);
  }
}

}  // namespace

// The result is divided by `divisor`: the number of elements for a mean, else 1.
KERNEL(reduce_f32, ARGS(x, y), PARAMS(operation, outer, n, inner, divisor)) {
  reduce_by<vf, vf>(p.operation, {p.outer, p.n, p.inner, p.divisor}, a.x, a.y, pool);
}
KERNEL(reduce_i32, ARGS(x, y), PARAMS(operation, outer, n, inner, divisor)) {
  reduce_by<vu, vi>(p.operation, {p.outer, p.n, p.inner, p.divisor}, a.x, a.y, pool);
}
KERNEL(position_f32, ARGS(x, y), PARAMS(largest, outer, n, inner)) {
  position<vf>({p.outer, p.n, p.inner, 1}, p.largest, a.x, out<int32_t>(a.y), pool);
}
KERNEL(position_i32, ARGS(x, y), PARAMS(largest, outer, n, inner)) {
  position<vi>({p.outer, p.n, p.inner, 1}, p.largest, a.x, out<int32_t>(a.y), pool);
}

}  // namespace mnnk
