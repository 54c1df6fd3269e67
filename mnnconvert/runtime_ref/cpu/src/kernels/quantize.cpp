// Quantizing weights [rows, columns] in blocks of `block` neighbouring columns (mnnconvert/quantizers has the maths).
//
// What is summed over a block is summed with one block per lane, weight after weight, and never by a fused product: the
// bits are those of the numpy definitions on any level. For that, the same block of `lanes` rows is transposed first.
// What is not summed (extremes, codes) runs along the rows.
#include "kernel.h"
#include "simd.h"
#include "transpose.h"

namespace mnnk {
namespace {

// Half the lanes as float and as double: the latter fill a register.
typedef float half_vf __attribute__((vector_size(MNNK_LANES * 2)));
typedef double half_vd __attribute__((vector_size(MNNK_LANES * 4)));

constexpr int64_t GRAIN = 1 << 14;  // weights that are worth a thread
const float BELOW_HALF = 0.49999997f;  // the float before 1/2: truncate(x + this) rounds halves away from zero

// to[j][i] = from[i][j] for `columns` columns; of `rows` rows, the last one is taken for those that lanes has more.
void gather_rows(const float* from, int64_t stride, int64_t rows, int64_t columns, float* to) {
  int64_t j = 0;
  if (rows >= lanes)
    for (; j + lanes <= columns; j += lanes) transpose_block(from + j, stride, to + j * lanes, lanes);
  for (; j < columns; ++j)
    for (int64_t i = 0; i < lanes; ++i) to[j * lanes + i] = from[smaller(i, rows - 1) * stride + j];
}

// f(x, first row, rows, block) for every block of `lanes` rows, x its weights [block, lanes] in scratch memory.
template <class F>
void each_lanes(Pool& pool, const float* w, int64_t rows, int64_t columns, int64_t block, const F& f) {
  const int64_t strips = ceil_div(rows, lanes), blocks = columns / block;
  pool.split(strips, ceil_div(GRAIN, lanes * columns), [&](int64_t begin, int64_t end, int thread) {
    float* x = pool.scratch_f32(thread, block * lanes);
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t row = strip * lanes, count = smaller(int64_t{lanes}, rows - row);
      for (int64_t b = 0; b < blocks; ++b) {
        gather_rows(w + row * columns + b * block, columns, count, block, x);
        f(x, row, count, b);
      }
    }
  });
}

// Numbers [rows, blocks] of one block of `count` rows from `row` on, by lane; lanes beyond repeat the last row's.
struct Numbers {
  int64_t blocks, row, count, b;
  MNNK_INLINE vf get(const float* from) const {
    alignas(64) float lane[lanes];
    for (int64_t i = 0; i < lanes; ++i) lane[i] = from[(row + smaller(i, count - 1)) * blocks + b];
    return load(lane);
  }
  MNNK_INLINE void put(float* to, vf v) const {
    alignas(64) float lane[lanes];
    store(lane, v);
    for (int64_t i = 0; i < count; ++i) to[(row + i) * blocks + b] = lane[i];
  }
};

MNNK_INLINE vf clip(vf x, vf low, vf high) { return min(max(x, low), high); }

// Least squares on one block per lane. `h` are weights, one per column, that sum to `total`.
struct Fit {
  const float* x;
  const float* h;
  int64_t block;
  vf top, centre, total;

  // Codes u of the grid {s u + m}, and from the residuals r = x - s u - m the best {s, m} for these codes: the grid is
  // moved by the solution of the 2x2 system, whose right side is small, so that nothing cancels. Returns the error.
  template <bool offset> MNNK_INLINE vf step(vf& s, vf& m) const {
    const vf inverse = splat(1.0f) / s, start = offset ? centre - m * inverse : centre;
    vf u1 = {}, u2 = {}, r1 = {}, ru = {}, r2 = {};
    for (int64_t i = 0; i < block; ++i) {
      const vf value = load(x + i * lanes), weight = splat(h[i]);
      const vf u = clip(round_even(value * inverse + start), vf{}, top) - centre;
      const vf r = value - (offset ? u * s + m : u * s);
      const vf hu = weight * u, hr = weight * r;
      u2 = u2 + hu * u;
      ru = ru + hr * u;
      r2 = r2 + hr * r;
      if (offset) {
        u1 = u1 + hu;
        r1 = r1 + hr;
      }
    }
    if (!offset) {
      const vf ds = u2 > 0.0f ? ru / u2 : vf{};
      s = s + ds;
      return r2 - ds * ru;
    }
    const vf whole = total * u2, determinant = whole - u1 * u1;
    const vi regular = determinant > whole * splat(1e-5f);
    const vf ds = regular ? (total * ru - u1 * r1) / determinant : vf{};
    const vf dm = regular ? (u2 * r1 - u1 * ru) / determinant : r1 / total;
    s = s + ds;
    m = m + dm;
    return r2 - ds * ru - dm * r1;
  }

  // The best of all starts {s, m}, then `rounds` more from there as long as any lane gains.
  template <bool offset> void search(const float* starts, int64_t count, int64_t rounds, vf& scale, vf& origin) const {
    vf least = splat(INFINITY);
    scale = splat(1.0f);
    origin = vf{};
    const auto attempt = [&](vf s, vf m) {
      const vf error = step<offset>(s, m);
      const vi better = (error < least) & (offset ? s > 0.0f : s != 0.0f);
      least = better ? error : least;
      scale = better ? s : scale;
      origin = better ? m : origin;
      for (int i = 0; i < lanes; ++i)
        if (better[i]) return true;
      return false;
    };
    for (int64_t i = 0; i < count; ++i) attempt(splat(starts[2 * i]), splat(starts[2 * i + 1]));
    while (rounds-- > 0 && attempt(scale, origin)) {}
  }
};

template <bool minimum>
void nearest_codes(const float* w, int8_t* codes, int64_t count, float scale, float least, float lowest, float highest) {
  const float divisor = scale != 0.0f ? scale : 1.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float t = (minimum ? w[i] - least : w[i]) / divisor;
    if (minimum) {
      const float inside = smaller(larger(t, 0.0f), highest - lowest);
      codes[i] = static_cast<int8_t>(static_cast<int32_t>(inside + BELOW_HALF) + static_cast<int32_t>(lowest));
    } else {
      codes[i] = static_cast<int8_t>(smaller(larger(t + std::copysign(BELOW_HALF, t), lowest), highest));
    }
  }
}

}  // namespace

// low, high [rows, blocks]: the extremes of every block; of one with NaN, low is NaN.
KERNEL(block_extremes, ARGS(w, low, high), PARAMS(rows, columns, block)) {
  const float* w = in(a.w);
  pool.split(p.rows * (p.columns / p.block), ceil_div(GRAIN, p.block), [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b) {
      const float* x = w + b * p.block;
      const int64_t whole = p.block / lanes * lanes;
      vf low = splat(x[0]), high = low;
      vi nan = {};
      const auto take = [&](vf v) {
        nan |= v != v;
        low = min(low, v);
        high = max(high, v);
      };
      for (int64_t i = 0; i < whole; i += lanes) take(load(x + i));
      if (whole < p.block) take(load_part(x + whole, p.block - whole, x[whole]));
      bool any = false;
      for (int i = 0; i < lanes; ++i) any |= nan[i] != 0;
      out(a.low)[b] = any ? NAN : min_lane(low);
      out(a.high)[b] = max_lane(high);
    }
  });
}

// Codes [rows, columns] of the nearest points of the grids: minimum + (code - lowest) * scale, code * scale without
// minima. Halves are rounded away from zero; a scale of 0 gives the code of the minimum, or 0.
KERNEL(block_codes, ARGS(w, scale, minimum, codes), PARAMS(rows, columns, block, lowest, highest)) {
  const float* minimum = in(a.minimum);
  const float lowest = static_cast<float>(p.lowest), highest = static_cast<float>(p.highest);
  pool.split(p.rows * (p.columns / p.block), ceil_div(GRAIN, p.block), [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b) {
      const float* w = in(a.w) + b * p.block;
      int8_t* codes = out<int8_t>(a.codes) + b * p.block;
      const float scale = in(a.scale)[b];
      if (minimum) nearest_codes<true>(w, codes, p.block, scale, minimum[b], lowest, highest);
      else nearest_codes<false>(w, codes, p.block, scale, 0.0f, lowest, highest);
    }
  });
}

// Errors [grids, rows, blocks], float64: sum of h (w - nearest point)^2 over each block, for several grids
// scale, minimum [grids, rows, blocks]; h [columns].
KERNEL(block_errors, ARGS(w, h, scale, minimum, errors), PARAMS(grids, rows, columns, block, lowest, highest)) {
  const int64_t blocks = p.columns / p.block, numbers = p.rows * blocks;
  const vf low = splat(static_cast<float>(p.lowest)), high = splat(static_cast<float>(p.highest));
  const vf half = splat(BELOW_HALF);
  each_lanes(pool, in(a.w), p.rows, p.columns, p.block, [&](const float* x, int64_t row, int64_t count, int64_t b) {
    const float* h = in(a.h) + b * p.block;
    const Numbers at{blocks, row, count, b};
    for (int64_t grid = 0; grid < p.grids; ++grid) {
      const vf scale = at.get(in(a.scale) + grid * numbers);
      const vf divisor = scale != 0.0f ? scale : splat(1.0f);
      const vf minimum = a.minimum ? at.get(in(a.minimum) + grid * numbers) : vf{};
      half_vd error[2] = {};
      for (int64_t i = 0; i < p.block; ++i) {
        const vf value = load(x + i * lanes);
        vf decoded;
        if (a.minimum) {
          const vf t = clip((value - minimum) / divisor, vf{}, high - low);
          decoded = floor(t + half) * scale + minimum;
        } else {
          const vf t = value / divisor;
          const vf away = as_float(as_int(half) | (as_int(t) & splat_int(INT32_MIN)));
          decoded = trunc(clip(t + away, low, high)) * scale;
        }
        const vf difference = value - decoded;
        half_vf halves[2];
        std::memcpy(halves, &difference, sizeof difference);
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) {
          const half_vd r = __builtin_convertvector(halves[side], half_vd);
          error[side] = error[side] + r * r * static_cast<double>(h[i]);
        }
      }
      for (int64_t i = 0; i < count; ++i)
        out<double>(a.errors)[grid * numbers + (row + i) * blocks + b] = error[i / (lanes / 2)][i % (lanes / 2)];
    }
  });
}

// Half-quadratic fits of the offset, as long as no residual is so large that it would shrink: zero [rows, blocks] is
// changed in place, `largest` becomes the largest residual that was met.
KERNEL(hqq_zero, ARGS(w, scale, inverse, zero, largest), PARAMS(rows, columns, block, top, iterations)) {
  const int64_t blocks = p.columns / p.block;
  const vf top = splat(static_cast<float>(p.top)), half = splat(BELOW_HALF), size = splat(static_cast<float>(p.block));
  each_lanes(pool, in(a.w), p.rows, p.columns, p.block, [&](const float* x, int64_t row, int64_t count, int64_t b) {
    const Numbers at{blocks, row, count, b};
    const vf scale = at.get(in(a.scale)), inverse = at.get(in(a.inverse));
    vf zero = at.get(in(a.zero)), largest = {};
    for (int64_t round = 0; round < p.iterations; ++round) {
      vf total = {};
      for (int64_t i = 0; i < p.block; ++i) {
        const vf value = load(x + i * lanes), t = value * inverse;
        const vf code = floor(clip(t + zero, vf{}, top) + half);
        largest = max(largest, abs(value - (code - zero) * scale));
        total = total + (code - t);
      }
      zero = total / size;
    }
    at.put(out(a.zero), zero);
    at.put(out(a.largest), largest);
  });
}

// Least-squares grids of every block in its own units: x = (w - middle) / unit, where middle and unit [rows, blocks]
// are given, lies on {s u + m}, u + centre = 0 .. top. The best of `starts` {s, m}, each improved once, is improved
// `rounds` times more. With symmetric != 0, m stays 0. h [columns] are the weights of the squares.
KERNEL(fit_grids, ARGS(w, h, middle, unit, starts, scale, origin),
       PARAMS(rows, columns, block, top, symmetric, count, rounds), SCALARS(centre)) {
  const int64_t blocks = p.columns / p.block;
  each_lanes(pool, in(a.w), p.rows, p.columns, p.block, [&](float* x, int64_t row, int64_t count, int64_t b) {
    const float* h = in(a.h) + b * p.block;
    const Numbers at{blocks, row, count, b};
    const vf middle = at.get(in(a.middle)), unit = at.get(in(a.unit));
    float total = 0.0f;
    for (int64_t i = 0; i < p.block; ++i) {
      store(x + i * lanes, (load(x + i * lanes) - middle) / unit);
      total += h[i];
    }
    const Fit fit{x, h, p.block, splat(static_cast<float>(p.top)), splat(s.centre), splat(total)};
    vf scale, origin;
    if (p.symmetric) fit.search<false>(in(a.starts), p.count, p.rounds, scale, origin);
    else fit.search<true>(in(a.starts), p.count, p.rounds, scale, origin);
    at.put(out(a.scale), scale);
    at.put(out(a.origin), origin);
  });
}

}  // namespace mnnk
