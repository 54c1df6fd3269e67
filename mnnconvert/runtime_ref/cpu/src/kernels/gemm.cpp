// Matrix products over batches (gemm.h has the scheme), and the packing of constant right operands.
#include "gemm.h"

using namespace mnnk;
using namespace mnnk::gemm;

namespace {

constexpr int64_t grain = WORTH_A_THREAD;

// Into how many parts the rows, or else the columns, of each product are split.
struct Split {
  int64_t rows = 1, columns = 1;

  Split(const Product& p, int64_t batch, int64_t threads) {
    if (threads == 1 || batch >= 4 * threads) return;
    const int64_t parts = smaller(threads, larger<int64_t>(1, p.m * p.n * p.k / grain));
    if (p.n >= p.m)
      columns = smaller(parts, p.panels());
    else
      rows = smaller(parts, ceil_div(p.m, most_rows));
  }
};

}  // namespace

// packed[batch][panels][k][panel columns] from b[batch][k][n] with any strides; panels = ceil(n / (2 lanes)) of
// 2 lanes columns each, filled up with zeros.
KERNEL(gemm_pack_b, ARGS(b, packed), PARAMS(batch, k, n, row, column, outer)) {
  const int64_t panels = ceil_div(p.n, panel), size = p.k * panel;
  pool.split(p.batch * panels, ceil_div(1 << 14, size + 1), [&](int64_t begin, int64_t end, int) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t j = at % panels * panel;
      const float* from = in(a.b) + at / panels * p.outer + j * p.column;
      pack(from, p.row, p.column, p.k, smaller<int64_t>(panel, p.n - j), out(a.packed) + at * size, size);
    }
  });
}

// y[o, i] = activate(a[o, i] b[o, i] + bias[n] + residual[o, i]) for o < outer, i < inner: a [m, k] and b [k, n] with
// any strides, in floats; 0 as a batch stride repeats an operand. Columns of y, and of residual, which is laid out like
// y and may be y, are neighbours. `packed`: b is what gemm_pack_b made; b_outer and b_inner are in floats of it, its
// other strides are not used.
KERNEL(gemm_f32, ARGS(a, b, y, bias, residual),
       PARAMS(m, n, k, outer, inner, a_row, a_column, b_row, b_column, y_row, a_outer, a_inner, b_outer, b_inner, y_outer,
              y_inner, packed, activation),
       SCALARS(low, high)) {
  Product whole{p.m, p.n, p.k, {in(a.a), p.a_row, p.a_column}, in(a.b), p.b_row, p.b_column, p.packed != 0,
                {out(a.y), p.y_row, in(a.bias), in(a.residual), p.activation, s.low, s.high}};
  if (p.m <= 0 || p.n <= 0) return;
  const int64_t batch = p.outer * p.inner;
  const Split split(whole, batch, pool.threads());
  const int64_t parts = split.rows * split.columns, tiles = ceil_div(p.m, most_rows), panels = whole.panels();
  const int64_t scratch_size = whole.a_scratch() + whole.b_scratch();
  const int64_t work = larger<int64_t>(1, p.m * p.n * p.k / parts);
  pool.split(batch * parts, ceil_div(grain, work), [&](int64_t begin, int64_t end, int thread) {
    float* scratch = scratch_size ? pool.scratch_f32(thread, scratch_size) : nullptr;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t o = at / parts / p.inner, i = at / parts % p.inner, part = at % parts;
      Product each = whole;
      each.a.data += o * p.a_outer + i * p.a_inner;
      each.b += o * p.b_outer + i * p.b_inner;
      each.y.data += o * p.y_outer + i * p.y_inner;
      if (each.y.residual) each.y.residual += o * p.y_outer + i * p.y_inner;
      const int64_t row = part / split.columns, column = part % split.columns;
      multiply(each, smaller(p.m, tiles * row / split.rows * most_rows),
               smaller(p.m, tiles * (row + 1) / split.rows * most_rows), panels * column / split.columns * panel,
               smaller(p.n, panels * (column + 1) / split.columns * panel), scratch);
    }
  });
}
