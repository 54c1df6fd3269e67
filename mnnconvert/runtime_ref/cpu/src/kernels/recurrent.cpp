// Recurrent layers. What the input contributes to the gates of all steps is one matrix product, made before; here the
// steps follow each other. At each of them the products of the last state and the packed recurrent weights are added to
// the gates, in place, and elementary functions make the next state of them.
//
// gates [steps, batch, directions, size of gates], y [steps, directions, batch, hidden], states [directions, batch,
// hidden]; the second direction goes from the last step to the first. Threads share out directions and rows of the
// batch, which do not know of each other.
#include "gemm.h"

using namespace mnnk;
using gemm::panel;

namespace {

struct Sequence {
  int64_t steps, batch, directions, hidden, width;  // numbers of gates of a row: `width`
  float* gates;
  const float* start;  // of h; null: zeros
  float *y, *h;

  int64_t row() const { return directions * width; }
  int64_t states() const { return directions * batch * hidden; }
};

void begin(const float* start, float* state, int64_t at, int64_t count) {
  if (start)
    std::memcpy(state + at, start + at, static_cast<size_t>(count) * sizeof(float));
  else
    std::memset(state + at, 0, static_cast<size_t>(count) * sizeof(float));
}

// step(direction, rows, gates, at, thread) makes of `h + at` [rows, hidden] the next state.
template <class F> void walk(Pool& pool, const Sequence& s, const F& step) {
  const int64_t wanted = ceil_div(pool.threads(), s.directions);
  const int64_t parts = larger<int64_t>(1, smaller(wanted, s.batch / gemm::most_rows));
  pool.split(s.directions * parts, 1, [&](int64_t first, int64_t last, int thread) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t d = task / parts, b = s.batch * (task % parts) / parts;
      const int64_t rows = s.batch * (task % parts + 1) / parts - b, at = (d * s.batch + b) * s.hidden;
      begin(s.start, s.h, at, rows * s.hidden);
      for (int64_t i = 0; i < s.steps; ++i) {
        const int64_t t = d == 1 ? s.steps - 1 - i : i;
        step(d, rows, s.gates + (t * s.batch + b) * s.row() + d * s.width, at, thread);
        std::memcpy(s.y + t * s.states() + at, s.h + at, static_cast<size_t>(rows * s.hidden) * sizeof(float));
      }
    }
  });
}

// to = h r + bias, or to += h r + bias, for packed r [depth, columns].
void multiply(const float* h, int64_t rows, const float* r, int64_t depth, int64_t columns, float* to, int64_t row,
              bool add, const float* bias = nullptr) {
  gemm::block({h, depth, 1}, rows, {r, panel, depth * panel}, columns, depth,
              {to, row, bias, add ? to : nullptr, IDENTITY, -INFINITY, INFINITY});
}

int64_t packed_size(int64_t depth, int64_t columns) { return depth * round_up(columns, panel); }

MNNK_INLINE vf get(const float* p, int64_t count) { return count == lanes ? load(p) : load_part(p, count); }
MNNK_INLINE void put(float* p, vf v, int64_t count) {
  if (count == lanes)
    store(p, v);
  else
    store_part(p, v, count);
}

// f(j, count) for vectors of 0..n.
template <class F> MNNK_INLINE void vectors(int64_t n, const F& f) {
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) f(j, lanes);
  if (j < n) f(j, n - j);
}

}  // namespace

// Gates i, o, f, g: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c'). `r`: what gemm_pack_b made of
// [directions, hidden, 4 hidden]. The starts may be absent; h and c receive the last states. `gates` is overwritten.
KERNEL(lstm_f32, ARGS(gates, r, h_start, c_start, y, h, c), PARAMS(steps, batch, directions, hidden)) {
  const int64_t n = p.hidden;
  const Sequence all{p.steps, p.batch, p.directions, n, 4 * n, out(a.gates), in(a.h_start), out(a.y), out(a.h)};
  begin(in(a.c_start), out(a.c), 0, all.states());
  walk(pool, all, [&](int64_t d, int64_t rows, float* gates, int64_t at, int) {
    multiply(all.h + at, rows, in(a.r) + d * packed_size(n, 4 * n), n, 4 * n, gates, all.row(), true);
    for (int64_t i = 0; i < rows; ++i) {
      const float* x = gates + i * all.row();
      float *h = all.h + at + i * n, *c = out(a.c) + at + i * n;
      vectors(n, [&](int64_t j, int64_t count) {
        const vf kept = sigmoid(get(x + 2 * n + j, count)) * get(c + j, count);
        const vf cell = fma(sigmoid(get(x + j, count)), tanh(get(x + 3 * n + j, count)), kept);
        put(c + j, cell, count);
        put(h + j, sigmoid(get(x + n + j, count)) * tanh(cell), count);
      });
    }
  });
}

// h' = tanh(gates + h r).
KERNEL(rnn_f32, ARGS(gates, r, h_start, y, h), PARAMS(steps, batch, directions, hidden)) {
  const int64_t n = p.hidden;
  const Sequence all{p.steps, p.batch, p.directions, n, n, out(a.gates), in(a.h_start), out(a.y), out(a.h)};
  walk(pool, all, [&](int64_t d, int64_t rows, float* gates, int64_t at, int) {
    multiply(all.h + at, rows, in(a.r) + d * packed_size(n, n), n, n, gates, all.row(), true);
    for (int64_t i = 0; i < rows; ++i)
      vectors(n, [&](int64_t j, int64_t count) {
        put(all.h + at + i * n + j, tanh(get(gates + i * all.row() + j, count)), count);
      });
  });
}

// Gates z, r and the candidate n: h' = sigmoid(z) h + (1 - sigmoid(z)) tanh(n + inner), where `inner` is
// (sigmoid(r) h) s + bias or, when `linear`, sigmoid(r) (h s + bias). `r` and `s` are what gemm_pack_b made of
// [directions, hidden, 2 hidden] and [directions, hidden, hidden], bias [directions, hidden].
KERNEL(gru_f32, ARGS(gates, r, s, bias, h_start, y, h), PARAMS(steps, batch, directions, hidden, linear)) {
  const int64_t n = p.hidden;
  const Sequence all{p.steps, p.batch, p.directions, n, 3 * n, out(a.gates), in(a.h_start), out(a.y), out(a.h)};
  float* scratch = pool.scratch_f32(0, pool.threads() * p.batch * n);
  walk(pool, all, [&](int64_t d, int64_t rows, float* gates, int64_t at, int thread) {
    const int64_t row = all.row();
    const float* weights = in(a.s) + d * packed_size(n, n);
    const float* bias = in(a.bias) + d * n;
    float *h = all.h + at, *inner = scratch + thread * p.batch * n;
    multiply(h, rows, in(a.r) + d * packed_size(n, 2 * n), n, 2 * n, gates, row, true);
    if (p.linear) multiply(h, rows, weights, n, n, inner, n, false, bias);
    for (int64_t i = 0; i < rows; ++i)
      vectors(n, [&](int64_t j, int64_t count) {
        const vf reset = sigmoid(get(gates + i * row + n + j, count));
        float* candidate = gates + i * row + 2 * n + j;
        if (p.linear)
          put(candidate, fma(reset, get(inner + i * n + j, count), get(candidate, count)), count);
        else
          put(inner + i * n + j, reset * get(h + i * n + j, count), count);
      });
    if (!p.linear) multiply(inner, rows, weights, n, n, gates + 2 * n, row, true, bias);
    for (int64_t i = 0; i < rows; ++i)
      vectors(n, [&](int64_t j, int64_t count) {
        const vf keep = sigmoid(get(gates + i * row + j, count));
        const vf candidate = tanh(get(gates + i * row + 2 * n + j, count));
        put(h + i * n + j, fma(keep, get(h + i * n + j, count) - candidate, candidate), count);
      });
  });
}
