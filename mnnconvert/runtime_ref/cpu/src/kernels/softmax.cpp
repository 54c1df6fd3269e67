// Softmax over one axis of x [outer, n, inner], after a scale and a mask that is added.
//
// Three passes over numbers that stay in the cache: scale, mask and maximum; exponentials and their sum; the division.
// With inner = 1 vectors lie along the axis, else along `inner`, so many at a time that they fill cache lines.
#include "kernel.h"
#include "simd.h"
#include "vmath.h"

namespace mnnk {
namespace {

// f(i, count, vector) over 0..n by vectors, the last one maybe shorter.
template <class F> MNNK_INLINE void by_vectors(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, int64_t{lanes});
  if (i < n) f(i, n - i);
}
MNNK_INLINE vf get(const float* x, int64_t count, float rest) {
  return count == lanes ? load(x) : load_part(x, count, rest);
}
MNNK_INLINE void put(float* y, vf v, int64_t count) {
  if (count == lanes) store(y, v); else store_part(y, v, count);
}

void softmax_row(const float* x, const float* mask, float* y, int64_t n, float scale) {
  vf most = splat(-INFINITY);
  const vf factor = splat(scale);
  if (mask) {
    by_vectors(n, [&](int64_t i, int64_t count) {
      const vf v = get(x + i, count, -INFINITY) * factor + get(mask + i, count, 0.0f);
      most = max(most, v);
      put(y + i, v, count);
    });
  } else {
    by_vectors(n, [&](int64_t i, int64_t count) {
      const vf v = get(x + i, count, -INFINITY) * factor;
      most = max(most, v);
      put(y + i, v, count);
    });
  }
  const vf top = splat(max_lane(most));
  vf total = {};
  by_vectors(n, [&](int64_t i, int64_t count) {
    const vf e = exp_negative(get(y + i, count, -INFINITY) - top);
    put(y + i, e, count);
    total = total + (count == lanes ? e : load_part(y + i, count));
  });
  const vf share = splat(1.0f / sum(total));
  by_vectors(n, [&](int64_t i, int64_t count) { put(y + i, get(y + i, count, 0.0f) * share, count); });
}

// `count` (up to `most` vectors) neighbouring columns, n rows that lie `inner` apart.
constexpr int MOST = 4;
void softmax_columns(const float* x, float* y, int64_t n, int64_t inner, int64_t count, float scale) {
  const int64_t vectors = ceil_div(count, lanes);
  vf most[MOST], total[MOST] = {};
  const auto each = [&](int64_t i, const auto& f) {
    for (int64_t v = 0; v < vectors; ++v) f(i * inner + v * lanes, smaller(int64_t{lanes}, count - v * lanes), v);
  };
  for (vf& m : most) m = splat(-INFINITY);
  for (int64_t i = 0; i < n; ++i)
    each(i, [&](int64_t at, int64_t c, int64_t v) { most[v] = max(most[v], get(x + at, c, 0.0f) * splat(scale)); });
  for (int64_t i = 0; i < n; ++i)
    each(i, [&](int64_t at, int64_t c, int64_t v) {
      const vf e = exp_negative(get(x + at, c, 0.0f) * splat(scale) - most[v]);
      total[v] = total[v] + e;
      put(y + at, e, c);
    });
  for (vf& t : total) t = splat(1.0f) / t;
  for (int64_t i = 0; i < n; ++i)
    each(i, [&](int64_t at, int64_t c, int64_t v) { put(y + at, get(y + at, c, 0.0f) * total[v], c); });
}

}  // namespace

// y = softmax(x * scale + mask). The mask, which may be null, needs inner = 1: the rows are [outer / (b * c), b, c], and
// its row for row [i, j, k] begins at i * mask_a + j * mask_b + k * mask_c.
KERNEL(softmax, ARGS(x, mask, y), PARAMS(outer, n, inner, b, c, mask_a, mask_b, mask_c), SCALARS(scale)) {
  const float* x = in(a.x);
  const float* mask = in(a.mask);
  float* y = out(a.y);
  if (p.inner == 1) {
    pool.split(p.outer, larger(int64_t{1}, 4096 / larger(p.n, int64_t{1})), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const float* own = nullptr;
        if (mask) own = mask + row / (p.b * p.c) * p.mask_a + row / p.c % p.b * p.mask_b + row % p.c * p.mask_c;
        softmax_row(x + row * p.n, own, y + row * p.n, p.n, s.scale);
      }
    });
    return;
  }
  const int64_t width = MOST * lanes, strips = ceil_div(p.inner, width);
  pool.split(p.outer * strips, larger(int64_t{1}, 128 / larger(p.n, int64_t{1})), [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t column = task % strips * width, at = task / strips * p.n * p.inner + column;
      softmax_columns(x + at, y + at, p.n, p.inner, smaller(width, p.inner - column), s.scale);
    }
  });
}

}  // namespace mnnk
