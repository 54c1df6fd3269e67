// Resizing feature maps by weighted sums of neighbours: linear, cubic. Nearest neighbours are `pick` in movement.cpp.
//
// Where the taps lie and what they weigh comes in tables, so that all coordinate rules are one kernel. Where the height
// shrinks, rows are mixed first, and the result is stretched to the new width. Otherwise each source row is stretched
// once and kept while the next results need it: their rows are neighbours, so row r lives in slot r % taps.
#include "kernel.h"
#include "simd.h"

using namespace mnnk;

namespace {

constexpr int64_t GRAIN = 1 << 15;  // bytes that are worth a thread

struct Table {
  const int32_t* at;
  const float* weights;
};

// y[j] = sum of x[at[k][j]] * weights[k][j] over the taps k; tables [TAPS, width].
template <int TAPS> void stretch_plain(const Table& columns, int64_t width, const float* x, float* y) {
  int64_t j = 0;
  for (; j + lanes <= width; j += lanes) {
    vf sum = gather(x, load(columns.at + j)) * load(columns.weights + j);
#pragma GCC unroll 4
    for (int k = 1; k < TAPS; ++k)
      sum = fma(gather(x, load(columns.at + k * width + j)), load(columns.weights + k * width + j), sum);
    store(y + j, sum);
  }
  for (; j < width; ++j) {
    float sum = x[columns.at[j]] * columns.weights[j];
    for (int k = 1; k < TAPS; ++k) sum += x[columns.at[k * width + j]] * columns.weights[k * width + j];
    y[j] = sum;
  }
}

// The same where every column is a vector.
template <int TAPS> void stretch_blocked(const Table& columns, int64_t width, const float* x, float* y) {
  for (int64_t j = 0; j < width; ++j) {
    vf sum = load(x + columns.at[j] * lanes) * splat(columns.weights[j]);
#pragma GCC unroll 4
    for (int k = 1; k < TAPS; ++k)
      sum = fma(load(x + columns.at[k * width + j] * lanes), splat(columns.weights[k * width + j]), sum);
    store(y + j * lanes, sum);
  }
}

// y = sum of weights[k] * rows[k].
template <int TAPS> void mix_rows(const float* const* rows, const float* weights, int64_t count, float* y) {
  int64_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    vf sum = load(rows[0] + j) * splat(weights[0]);
#pragma GCC unroll 4
    for (int k = 1; k < TAPS; ++k) sum = fma(load(rows[k] + j), splat(weights[k]), sum);
    store(y + j, sum);
  }
  for (; j < count; ++j) {
    float sum = rows[0][j] * weights[0];
    for (int k = 1; k < TAPS; ++k) sum += rows[k][j] * weights[k];
    y[j] = sum;
  }
}

}  // namespace

// x [planes, height, width, unit] to y [planes, out_height, out_width, unit], unit 1 or `lanes`.
// rows int32 and row_weights float [out_height, row_taps], columns and column_weights [column_taps, out_width]; 2 or 4
// taps, neighbours in ascending order (the border may come several times), or 0 for an axis that stays (not both).
KERNEL(resize, ARGS(x, rows, row_weights, columns, column_weights, y),
       PARAMS(planes, height, width, out_height, out_width, row_taps, column_taps, unit)) {
  const Table rows{in<int32_t>(a.rows), in(a.row_weights)}, columns{in<int32_t>(a.columns), in(a.column_weights)};
  const int64_t taps = p.row_taps, source_length = p.width * p.unit, length = p.out_width * p.unit;
  const bool both = taps && p.column_taps, mix_first = p.out_height < p.height;
  const auto stretch_row = p.unit == 1 ? (p.column_taps == 2 ? stretch_plain<2> : stretch_plain<4>)
                                       : (p.column_taps == 2 ? stretch_blocked<2> : stretch_blocked<4>);
  const auto mix = taps == 2 ? mix_rows<2> : mix_rows<4>;
  const auto stretch = [&](const float* from, float* to) { stretch_row(columns, p.out_width, from, to); };

  pool.split(p.planes * p.out_height, ceil_div(GRAIN, 4 * length), [&](int64_t begin, int64_t end, int thread) {
    float* kept = both ? pool.scratch_f32(thread, mix_first ? source_length : taps * length) : nullptr;
    const float* held[4] = {};  // the source row that lies stretched in each slot
    for (int64_t i = begin; i < end; ++i) {
      const float* plane = in(a.x) + i / p.out_height * p.height * source_length;
      const int64_t row = i % p.out_height;
      float* y = out(a.y) + i * length;
      if (!taps) {
        stretch(plane + row * source_length, y);
        continue;
      }
      const float* parts[4];
      for (int64_t k = 0; k < taps; ++k) parts[k] = plane + rows.at[row * taps + k] * source_length;
      const float* weights = rows.weights + row * taps;
      if (!p.column_taps) {
        mix(parts, weights, length, y);
      } else if (mix_first) {
        mix(parts, weights, source_length, kept);
        stretch(kept, y);
      } else {
        for (int64_t k = 0; k < taps; ++k) {
          const int64_t slot = rows.at[row * taps + k] % taps;
          if (held[slot] != parts[k]) stretch(parts[k], kept + slot * length);
          held[slot] = parts[k];
          parts[k] = kept + slot * length;
        }
        mix(parts, weights, length, y);
      }
    }
  });
}
