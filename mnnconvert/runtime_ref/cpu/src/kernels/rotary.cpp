// Rotary position embeddings: pairs (u, v) of numbers of a row become (u cos - v sin, v cos + u sin).
//
// A row is read and written once, where a graph has two halves, four products, a difference, a sum and a concatenation.
// Which numbers are a pair is a matter of strides: the halves of a row, or neighbours.
#include "kernel.h"
#include "simd.h"

using namespace mnnk;

namespace {

constexpr int64_t grain = WORTH_A_THREAD;

// `count` pairs. The angles of the second number of a pair are `second` behind those of the first, which are `step`
// apart.
struct Pairs {
  int64_t count, x_pair, x_step, y_pair, y_step, step, second;
};

MNNK_INLINE vf load_some(const float* p, int64_t count) { return count >= lanes ? load(p) : load_part(p, count); }
MNNK_INLINE void store_some(float* p, vf v, int64_t count) {
  if (count >= lanes)
    store(p, v);
  else
    store_part(p, v, count);
}

void turn_neighbours(const float* x, const float* cos, const float* sin, float* y, const Pairs& p) {
  for (int64_t i = 0; i < p.count; i += lanes) {
    const int64_t left = p.count - i;
    const vf u = load_some(x + i, left), v = load_some(x + p.x_pair + i, left);
    const vf c = load_some(cos + i, left), s = load_some(sin + i, left);
    const vf d = p.second ? load_some(cos + p.second + i, left) : c;
    const vf t = p.second ? load_some(sin + p.second + i, left) : s;
    store_some(y + i, fma(u, c, -(v * s)), left);
    store_some(y + p.y_pair + i, fma(v, d, u * t), left);
  }
}

void turn(const float* x, const float* cos, const float* sin, float* y, const Pairs& p) {
  if (p.x_step == 1 && p.y_step == 1 && p.step == 1) return turn_neighbours(x, cos, sin, y, p);
  for (int64_t i = 0; i < p.count; ++i) {
    const float u = x[i * p.x_step], v = x[i * p.x_step + p.x_pair];
    const int64_t at = i * p.step, next = at + p.second;
    y[i * p.y_step] = u * cos[at] - v * sin[at];
    y[i * p.y_step + p.y_pair] = v * cos[next] + u * sin[next];
  }
}

}  // namespace

// y[i, j, k] = x[i, j, k] turned by the angles whose cosines and sines are in rows cos[i, j, k] and sin[i, j, k]. Strides
// are in floats; 0 repeats a row. A row of x has `pairs` pairs (x[l x_step], x[l x_step + x_pair]) and, behind these,
// `rest` numbers that are copied. The first of pair l takes the angle at l step, the second that `second` behind it.
KERNEL(rotary, ARGS(x, cos, sin, y),
       PARAMS(n0, n1, n2, x0, x1, x2, cos0, cos1, cos2, sin0, sin1, sin2, y0, y1, y2, pairs, x_pair, x_step, y_pair,
              y_step, step, second, rest)) {
  const Pairs pairs{p.pairs, p.x_pair, p.x_step, p.y_pair, p.y_step, p.step, p.second};
  const int64_t turned = 2 * p.pairs;
  pool.split(p.n0 * p.n1 * p.n2, ceil_div(grain, turned + p.rest + 1), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t k = row % p.n2, j = row / p.n2 % p.n1, i = row / p.n2 / p.n1;
      const float* x = in(a.x) + i * p.x0 + j * p.x1 + k * p.x2;
      float* y = out(a.y) + i * p.y0 + j * p.y1 + k * p.y2;
      turn(x, in(a.cos) + i * p.cos0 + j * p.cos1 + k * p.cos2, in(a.sin) + i * p.sin0 + j * p.sin1 + k * p.sin2, y,
           pairs);
      std::memcpy(y + turned, x + turned, static_cast<size_t>(p.rest) * sizeof(float));
    }
  });
}
