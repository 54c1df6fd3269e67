// Running sums and products along one axis of x [outer, n, inner].
//
// Every step is taken for some neighbouring columns at once; where inner is 1, that is one number after the other, as
// the order of the definition wants it.
#include "kernel.h"

using namespace mnnk;

namespace {

constexpr int64_t COLUMNS = 64;  // of a task
constexpr int64_t GRAIN = 1 << 14;

struct Scan {
  int64_t outer, n, inner;
  bool exclusive, reverse;
};

// An exclusive scan begins with `none`, and is the inclusive one a step later.
template <class T, class F> void scan(const T* x, T* y, const Scan& s, T none, Pool& pool, const F& join) {
  const int64_t parts = ceil_div(s.inner, COLUMNS), step = s.reverse ? -s.inner : s.inner;
  pool.split(s.outer * parts, ceil_div(GRAIN, s.n * smaller(s.inner, COLUMNS) + 1), [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % parts * COLUMNS, count = smaller(COLUMNS, s.inner - first);
      const int64_t start = task / parts * s.n * s.inner + first + (s.reverse ? (s.n - 1) * s.inner : 0);
      const T* from = x + start;
      T* to = y + start;
      int64_t left = s.n;
      if (s.exclusive && left > 0) {
        for (int64_t c = 0; c < count; ++c) to[c] = none;
        to += step, --left;
      }
      for (int64_t i = 0; i < left; ++i, from += step, to += step)
        for (int64_t c = 0; c < count; ++c) to[c] = i == 0 ? from[c] : join(to[c - step], from[c]);
    }
  });
}

}  // namespace

// y = the sums (or products) of x up to each element; without the element itself if `exclusive`, where sums begin with 0
// and products with 1; from the end of the axis if `reverse`.
KERNEL(scan_f32, ARGS(x, y), PARAMS(outer, n, inner, exclusive, reverse, product)) {
  const Scan scanned{p.outer, p.n, p.inner, p.exclusive != 0, p.reverse != 0};
  if (p.product)
    scan(in(a.x), out(a.y), scanned, 1.0f, pool, [](float before, float x) { return before * x; });
  else
    scan(in(a.x), out(a.y), scanned, 0.0f, pool, [](float before, float x) { return before + x; });
}

// On integers, which wrap.
KERNEL(scan_i32, ARGS(x, y), PARAMS(outer, n, inner, exclusive, reverse, product)) {
  const Scan scanned{p.outer, p.n, p.inner, p.exclusive != 0, p.reverse != 0};
  const uint32_t* x = in<uint32_t>(a.x);
  uint32_t* y = out<uint32_t>(a.y);
  if (p.product)
    scan(x, y, scanned, uint32_t{1}, pool, [](uint32_t before, uint32_t x) { return before * x; });
  else
    scan(x, y, scanned, uint32_t{0}, pool, [](uint32_t before, uint32_t x) { return before + x; });
}
