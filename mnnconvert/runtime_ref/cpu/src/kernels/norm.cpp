// Normalisation over one axis of x [outer, n, inner]: (x - mean) / sqrt(variance + epsilon), times gamma, plus beta.
//
// The mean is found first and then the variance of what is left, in blocks whose sums are added in double precision
// (inner = 1, vectors along the axis) or in a second running sum (vectors along `inner`). An addend is added to x on the
// first pass, and the sum is a result as well.
#include "kernel.h"
#include "simd.h"

namespace mnnk {
namespace {

constexpr int64_t BLOCK = 1024;  // elements of a row, or rows of a column, whose sum is kept in single precision

MNNK_INLINE vf get(const float* x, int64_t count) { return count == lanes ? load(x) : load_part(x, count); }
MNNK_INLINE void put(float* y, vf v, int64_t count) {
  if (count == lanes) store(y, v); else store_part(y, v, count);
}

// The sum of f(x) over a row; lanes behind its end do not count.
template <class F> MNNK_INLINE double row_sum(const float* x, int64_t n, const F& f) {
  double total = 0;
  for (int64_t first = 0; first < n; first += BLOCK) {
    const int64_t last = smaller(first + BLOCK, n);
    vf running[4] = {};
    int64_t i = first;
    for (; i + 4 * lanes <= last; i += 4 * lanes)
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) running[k] = running[k] + f(load(x + i + k * lanes));
    for (; i + lanes <= last; i += lanes) running[0] = running[0] + f(load(x + i));
    if (i < last) {
      alignas(64) float rest[lanes];
      store(rest, f(load_part(x + i, last - i)));
      running[1] = running[1] + load_part(rest, last - i);
    }
    total += sum((running[0] + running[1]) + (running[2] + running[3]));
  }
  return total;
}

struct Row {
  const float *x, *gamma, *beta;
  float* y;
  int64_t n;
  bool rms;
  double epsilon;
};

void normalize_row(const Row& r) {
  const double n = static_cast<double>(r.n);
  const vf mean = splat(r.rms ? 0.0f : static_cast<float>(row_sum(r.x, r.n, [](vf v) { return v; }) / n));
  const double power = row_sum(r.x, r.n, [&](vf v) { return (v - mean) * (v - mean); }) / n;
  const vf factor = splat(static_cast<float>(1 / std::sqrt(power + r.epsilon)));
  const auto to = [&](int64_t i, int64_t count) {
    vf v = (get(r.x + i, count) - mean) * factor;
    if (r.gamma) v = v * get(r.gamma + i, count) + get(r.beta + i, count);
    put(r.y + i, v, count);
  };
  int64_t i = 0;
  for (; i + lanes <= r.n; i += lanes) to(i, lanes);
  if (i < r.n) to(i, r.n - i);
}

// `count` (up to a vector) neighbouring columns of n rows that lie `inner` apart.
void normalize_columns(const Row& r, int64_t inner, int64_t count) {
  const vf share = splat(static_cast<float>(1 / static_cast<double>(r.n)));
  const auto mean_of = [&](const auto& f) {
    vf total = {};
    for (int64_t first = 0; first < r.n; first += BLOCK / 16) {
      vf block = {};
      for (int64_t i = first; i < smaller(first + BLOCK / 16, r.n); ++i) block = block + f(get(r.x + i * inner, count));
      total = total + block;
    }
    return total * share;
  };
  const vf mean = r.rms ? vf{} : mean_of([](vf v) { return v; });
  const vf power = mean_of([&](vf v) { return (v - mean) * (v - mean); });
  const vf factor = splat(1.0f) / sqrt(power + splat(static_cast<float>(r.epsilon)));
  for (int64_t i = 0; i < r.n; ++i) {
    vf v = (get(r.x + i * inner, count) - mean) * factor;
    if (r.gamma) v = v * splat(r.gamma[i]) + splat(r.beta[i]);
    put(r.y + i * inner, v, count);
  }
}

void add_row(const float* x, const float* addend, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store(y + i, load(x + i) + load(addend + i));
  for (; i < n; ++i) y[i] = x[i] + addend[i];
}

}  // namespace

// gamma and beta [n] are both there or both null. With an addend (null: none) of the shape of x, `total` = x + addend
// is normalised. With `rms` nothing is subtracted.
KERNEL(normalize, ARGS(x, addend, gamma, beta, total, y), PARAMS(outer, n, inner, rms), SCALARS(epsilon)) {
  const float* x = in(a.x);
  const float* addend = in(a.addend);
  const int64_t columns = p.inner == 1 ? 1 : ceil_div(p.inner, lanes);
  const int64_t cost = larger(p.n, int64_t{1}) * (p.inner == 1 ? 1 : lanes);
  pool.split(p.outer * columns, larger(int64_t{1}, 8192 / cost), [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t column = task % columns * lanes, at = task / columns * p.n * p.inner + column;
      const float* source = x + at;
      const int64_t count = p.inner == 1 ? p.n : smaller(int64_t{lanes}, p.inner - column);
      if (addend) {
        float* total = out(a.total) + at;
        for (int64_t i = 0; i < (p.inner == 1 ? 1 : p.n); ++i)
          add_row(x + at + i * p.inner, addend + at + i * p.inner, total + i * p.inner, count);
        source = total;
      }
      const Row row{source, in(a.gamma), in(a.beta), out(a.y) + at, p.n, p.rms != 0, s.epsilon};
      if (p.inner == 1) normalize_row(row); else normalize_columns(row, p.inner, count);
    }
  });
}

}  // namespace mnnk
