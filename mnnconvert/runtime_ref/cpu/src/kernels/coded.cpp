// Products with coded weights: y = x w^T, where w[row, column] = (code - zero) * scale + minimum, with a scale and
// perhaps a minimum per row and block of columns. Codes are read as they are packed; the weights never exist as a
// whole.
//
// Packed form. Codes are unsigned: 0..15 when they have up to 4 bits, else 0..255. Rows lie in tiles of `lanes`,
// columns in groups of 8; a block is filled up to whole groups. A group of a tile is one vector of bytes at 4 bits: in
// lane r, byte j holds the codes of row r for columns j (low half) and 4 + j (high half); at 8 bits it is two vectors,
// for columns 0..3 and 4..7. So a load feeds two steps of dot.h, which sum four columns per row and lane. Four tiles
// (the last ones may be fewer) are a band, whose groups take turns: a product with one row reads memory from begin to
// end.
//
//   packed   [bands][blocks][groups][tiles of the band][lanes * bits] bytes          groups = ceil(block / 8)
//   numbers  [bands][blocks][scale, minimum if there are][tiles of the band][lanes] floats
//
// In all ceil(rows / lanes) * lanes * blocks * groups * bits bytes (bits: 4 or 8), and as many rows times blocks scales
// and minima.
//
// Without minima `zero` is half the range of codes, with them it is 0.
//
// Fast. Activations are rounded per row and block to 8 bits, x = code * (largest |x| / 127), so that a block is a dot
// product of integers, and y = sum over blocks of scale * x scale * dot + minimum * (x scale * sum of x codes). With
// the sum of the rounded activations (not of the originals) this is exactly the product of the decoded weights and the
// rounded activations. R rows of activations times T tiles are summed in registers.
//
// Exact. A step of columns of some tiles is decoded to floats that stay in the L1 cache, in the panels of gemm.h, and
// multiplied there.
#include <algorithm>
#include <array>
#include <numeric>

#include "dot.h"
#include "epilogue.h"
#include "gemm.h"
#include "kernel.h"

using namespace mnnk;

namespace {

constexpr int group = 8;  // columns
constexpr int64_t band = 4;  // tiles
constexpr int most_rows = lanes == 16 ? 8 : 4;  // of activations at once
constexpr int64_t most_rounded = 192 * 1024;  // bytes of rounded activations: half of a small L2 cache
constexpr int64_t ahead = 2048;  // bytes that are fetched before they are needed
constexpr int64_t rows_decoded_for = 64;  // rows of activations that share decoded weights
constexpr int64_t grain = WORTH_A_THREAD;
constexpr float smallest = 0x1p-100f;  // activations below are taken for 0, because 127 / x must be finite

template <int bits> struct DotOf;
template <> struct DotOf<4> : Dot4 {};
template <> struct DotOf<8> : Dot8 {};

struct Weights {
  const uint8_t* codes;
  const float* numbers;
  int64_t rows, columns, block, bits;
  bool minima;

  int64_t tiles() const { return ceil_div(rows, lanes); }
  int64_t blocks() const { return columns / block; }
  int64_t groups() const { return ceil_div(block, group); }
  int64_t stored_columns() const { return blocks() * groups() * group; }
  int packed_bits() const { return bits <= 4 ? 4 : 8; }
  int zero() const { return minima ? 0 : 1 << (bits - 1); }
  int kinds() const { return minima ? 2 : 1; }  // of numbers

  int64_t band_of(int64_t tile) const { return tile / band * band; }
  // Tiles of the band of a tile.
  int64_t width(int64_t tile) const { return smaller(band, tiles() - band_of(tile)); }
  // Where codes and numbers of a tile begin. The next group is width * lanes * packed_bits() bytes on, the next
  // numbers are width * lanes on.
  int64_t codes_at(int64_t tile) const {
    return (band_of(tile) * blocks() * groups() + tile % band) * lanes * packed_bits();
  }
  int64_t numbers_at(int64_t tile) const { return (band_of(tile) * blocks() * kinds() + tile % band) * lanes; }
};

// Where activations and results lie: `lanes` neighbours each, then a stride. Row i of activations is pixel i % width of
// line i / width % lines of an image; rows of results follow one another within an image.
struct Place {
  const float* x;
  int64_t lines, width, x_image, x_line, x_row, x_piece;
  float* y;
  int64_t y_image, y_row, y_piece;
  const float* bias;
  const float* residual;
  bool padded;  // the last piece of a row of y has room for `lanes` numbers
  int64_t activation;
  float low, high;

  const float* x_at(int64_t i) const {
    const int64_t image = i / (lines * width), pixel = i % (lines * width);
    return x + image * x_image + pixel / width * x_line + pixel % width * x_row;
  }
  int64_t y_at(int64_t i) const {
    const int64_t image = i / (lines * width);
    return image * y_image + i % (lines * width) * y_row;
  }

  bool is_matrix() const { return x_piece == lanes; }  // rows of activations are contiguous

  void copy_row(int64_t i, int64_t columns, float* to) const {
    const float* from = x_at(i);
    for (int64_t k = 0; k < columns; k += lanes, from += x_piece)
      std::memcpy(to + k, from, static_cast<size_t>(smaller<int64_t>(lanes, columns - k)) * sizeof(float));
  }

  // Stores sums [rows][tiles][lanes] of rows of activations from `row` and tiles of weights from `tile` on.
  void put(int64_t row, int64_t rows, int64_t tile, int64_t tiles, int64_t outputs, const float* sums) const;
};

void Place::put(int64_t row, int64_t rows, int64_t tile, int64_t tiles, int64_t outputs, const float* sums) const {
  for (int64_t i = row; i < row + rows; ++i) {
    const int64_t start = y_at(i);
    for (int64_t t = tile; t < tile + tiles; ++t, sums += lanes) {
      vf sum = load(sums);
      const int64_t at = start + t * y_piece, left = outputs - t * lanes;
      if (left >= lanes) {
        if (bias) sum = sum + load(bias + t * lanes);
        if (residual) sum = sum + load(residual + at);
        store(y + at, activate(activation, sum, low, high));
      } else {
        const int64_t stored = padded ? lanes : left;
        if (bias) sum = sum + load_part(bias + t * lanes, left, 0.0f);
        if (residual) sum = sum + load_part(residual + at, stored, 0.0f);
        store_part(y + at, activate(activation, sum, low, high), stored);
      }
    }
  }
}

// The codes of a group, columns 0..3 and 4..7.
template <int bits> MNNK_INLINE void take(const uint8_t* p, vi& first, vi& second) {
  std::memcpy(&first, p, sizeof first);
  if constexpr (bits == 4) {
    const vi low = splat_int(0x0f0f0f0f);
    second = (first >> 4) & low;
    first &= low;
  } else {
    std::memcpy(&second, p + sizeof first, sizeof second);
  }
}

// --- fast

struct Rounded {
  float scale;    // of the codes
  float sum;      // scale * sum of the codes
  int32_t start;  // what the dot product starts from, for weights that are codes less a zero
};

typedef int8_t Bytes __attribute__((vector_size(lanes)));

template <class Dot> MNNK_INLINE void store_codes(typename Dot::Activation* to, vi codes, int64_t count) {
  using Activation = typename Dot::Activation;
  alignas(64) Activation placed[lanes];
  if constexpr (sizeof(Activation) == 1) {
    const Bytes bytes = __builtin_convertvector(codes, Bytes);
    std::memcpy(placed, &bytes, sizeof bytes);
  } else {
    alignas(64) int32_t plain[lanes];
    store(plain, codes);
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) placed[(i & ~3) + Dot::place(i & 3)] = static_cast<Activation>(plain[i]);
  }
  if (count >= lanes)
    std::memcpy(to, placed, sizeof placed);
  else
    std::memcpy(to, placed, static_cast<size_t>(count) * sizeof(Activation));
}

// The largest |x|; NaN if there is one.
MNNK_INLINE float largest_size(const float* x, int64_t count) {
  vi top = {};
  int64_t k = 0;
  const auto add = [&](vf part) {
    const vi bits = as_int(abs(part));  // in the order of their values, NaN above infinity
    top = bits > top ? bits : top;
  };
  for (; k + lanes <= count; k += lanes) add(load(x + k));
  if (k < count) add(load_part(x + k, count - k, 0.0f));
  alignas(64) int32_t each[lanes];
  store(each, top);
  float largest;
  std::memcpy(&largest, std::max_element(each, each + lanes), sizeof largest);
  return largest;
}

// Rounds a block to codes, half to even; `stored` of them, the surplus is 0. If x holds infinities or NaN, the codes
// are 0 and the scale is NaN: so will be all results.
template <class Dot>
Rounded round_block(const float* x, int64_t block, int64_t stored, int zero, typename Dot::Activation* codes) {
  const float largest = largest_size(x, block);
  if (!(largest >= smallest && largest < INFINITY)) {
    std::memset(codes, 0, static_cast<size_t>(stored) * sizeof *codes);
    const float scale = largest < smallest ? 0.0f : NAN;
    return {scale, scale, 0};
  }
  const vf factor = splat(127.0f / largest), magic = splat(12582912.0f);
  vi sums = {};
  const auto round = [&](int64_t k, vf part, int64_t count) {
    // adding 1.5 * 2^23 rounds to integers, which then are the low bits
    const vi rounded = as_int(part * factor + magic) - as_int(magic);
    sums += rounded;
    store_codes<Dot>(codes + k, rounded, count);
  };
  int64_t k = 0;
  for (; k + lanes <= block; k += lanes) round(k, load(x + k), lanes);
  if (k < block) round(k, load_part(x + k, block - k, 0.0f), smaller<int64_t>(lanes, stored - k));
  for (k += k < block ? lanes : 0; k < stored; ++k) codes[k] = 0;
  alignas(64) int32_t each[lanes];
  store(each, sums);
  const int32_t sum = std::accumulate(each, each + lanes, 0);
  const float scale = largest / 127.0f;
  return {scale, scale * static_cast<float>(sum), (Dot::zero - zero) * sum};
}

template <class Dot> struct Activations {
  typename Dot::Activation* codes;  // [rows][stored columns]
  Rounded* blocks;                  // [rows][blocks]
};

// Adds `count` groups, `step` bytes apart, to partial sums.
template <int bits, int R, int T, class Activation>
MNNK_INLINE void add_groups(vi (&sums)[R][T], const uint8_t* codes, int64_t step, const Activation* x, int64_t columns,
                            int count) {
  using Dot = DotOf<bits>;
#pragma GCC unroll 4
  for (int g = 0; g < count; ++g) {
    vi weights[2][T];
    if constexpr (R == 1 && T == band)  // one pass over memory
      for (int line = 0; line < band * lanes * bits; line += 64) __builtin_prefetch(codes + g * step + line + ahead);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) take<bits>(codes + g * step + t * lanes * bits, weights[0][t], weights[1][t]);
#pragma GCC unroll 8
    for (int half = 0; half < 2; ++half)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const auto four = Dot::spread(x + r * columns + g * group + 4 * half);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) sums[r][t] = Dot::step(sums[r][t], weights[half][t], four);
      }
  }
}

// Dot products of a block, on top of `dot`.
template <int bits, int R, int T, class Activation>
MNNK_INLINE void add_block(vi (&dot)[R][T], const uint8_t* codes, int64_t step, const Activation* x, int64_t columns,
                           int64_t groups) {
  using Dot = DotOf<bits>;
  constexpr int most = Dot::steps / 2;  // groups that a partial sum has room for
  if constexpr (most == 0) {
    for (int64_t g = 0; g < groups; ++g)
      add_groups<bits>(dot, codes + g * step, step, x + g * group, columns, 1);
  } else {
    const auto widened = [&](int64_t g, int count) {
      vi part[R][T] = {};
      add_groups<bits>(part, codes + g * step, step, x + g * group, columns, count);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) dot[r][t] += Dot::whole(part[r][t]);
    };
    int64_t g = 0;
    for (; g + most <= groups; g += most) widened(g, most);
    for (; g < groups; ++g) widened(g, 1);
  }
}

// Rows of activations (R from `row` on; their codes are in `x`) times T tiles of weights from `tile` on.
template <int bits, int R, int T>
void multiply_tiles(const Weights& w, const Activations<DotOf<bits>>& x, int64_t tile, const Place& place,
                    int64_t row) {
  const int64_t blocks = w.blocks(), groups = w.groups(), columns = w.stored_columns();
  const int64_t width = T == band ? band : w.width(tile), step = width * lanes * bits;
  const bool minima = w.minima;
  const uint8_t* codes = w.codes + w.codes_at(tile);
  const float* numbers = w.numbers + w.numbers_at(tile);
  const auto* from = x.codes;
  vf acc[R][T] = {};
  for (int64_t b = 0; b < blocks; ++b, codes += groups * step, from += groups * group) {
    vi dot[R][T];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) dot[r][t] = vi{} + x.blocks[r * blocks + b].start;
    add_block<bits>(dot, codes, step, from, columns, groups);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const vf scale = load(numbers + t * lanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        acc[r][t] = fma(scale * splat(x.blocks[r * blocks + b].scale), to_float(dot[r][t]), acc[r][t]);
      if (minima) {
        const vf minimum = load(numbers + (width + t) * lanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[r][t] = fma(minimum, splat(x.blocks[r * blocks + b].sum), acc[r][t]);
      }
    }
    numbers += (minima ? 2 : 1) * width * lanes;
  }
  alignas(64) float sums[R * T * lanes];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) store(sums + (r * T + t) * lanes, acc[r][t]);
  place.put(row, R, tile, T, w.rows, sums);
}

// Rows first..last of activations, which `x` begins with, times T tiles.
template <int bits, int T, int R = most_rows>
void multiply_rows(const Weights& w, Activations<DotOf<bits>> x, int64_t tile, const Place& place, int64_t first,
                   int64_t last) {
  for (; first + R <= last; first += R) {
    multiply_tiles<bits, R, T>(w, x, tile, place, first);
    x.codes += R * w.stored_columns();
    x.blocks += R * w.blocks();
  }
  if constexpr (R > 1)
    if (first < last) multiply_rows<bits, T, R / 2>(w, x, tile, place, first, last);
}

template <int bits>
void multiply(const Weights& w, const Activations<DotOf<bits>>& x, int64_t tile, int64_t last_tile, const Place& place,
              int64_t first, int64_t last) {
  if (last - first == 1)
    for (; tile + band <= last_tile; tile += band) multiply_tiles<bits, 1, band>(w, x, tile, place, first);
  for (; tile + 2 <= last_tile; tile += 2) multiply_rows<bits, 2>(w, x, tile, place, first, last);
  for (; tile < last_tile; ++tile) multiply_rows<bits, 1>(w, x, tile, place, first, last);
}

// Rounded activations in memory for `rows` rows, with space to copy one.
template <int bits> struct Rounding {
  using Activation = typename DotOf<bits>::Activation;
  const Weights& w;
  const Place& place;
  const int64_t row_bytes = w.stored_columns() * static_cast<int64_t>(sizeof(Activation));

  int64_t copy_bytes() const { return place.is_matrix() ? 0 : round_up(w.columns, 16) * 4; }
  int64_t block_bytes(int64_t rows) const { return round_up(rows * w.blocks() * int64_t{sizeof(Rounded)}, 64); }
  size_t bytes(int64_t rows) const { return static_cast<size_t>(copy_bytes() + block_bytes(rows) + rows * row_bytes); }

  Activations<DotOf<bits>> run(void* scratch, int64_t first, int64_t last) const {
    char* memory = static_cast<char*>(scratch);
    float* copied = static_cast<float*>(scratch);
    const Activations<DotOf<bits>> x{
        reinterpret_cast<Activation*>(memory + copy_bytes() + block_bytes(last - first)),
        reinterpret_cast<Rounded*>(memory + copy_bytes())};
    const int64_t blocks = w.blocks(), stored = w.groups() * group;
    for (int64_t i = first, at = 0; i < last; ++i) {
      if (!place.is_matrix()) place.copy_row(i, w.columns, copied);
      const float* row = place.is_matrix() ? place.x_at(i) : copied;
      for (int64_t b = 0; b < blocks; ++b, ++at)
        x.blocks[at] = round_block<DotOf<bits>>(row + b * w.block, w.block, stored, w.zero(), x.codes + at * stored);
    }
    return x;
  }
};

template <int bits> void fast(const Weights& w, const Place& place, int64_t rows, Pool& pool) {
  const Rounding<bits> rounding{w, place};
  if (rows >= 16 * pool.threads()) {  // every thread rounds its own rows, and reads all weights
    const int64_t most = larger<int64_t>(most_rows, most_rounded / rounding.row_bytes / most_rows * most_rows);
    pool.split(rows, ceil_div(grain, w.rows * w.columns), [&](int64_t begin, int64_t end, int thread) {
      const int64_t step = smaller(most, end - begin);
      void* scratch = pool.scratch(thread, rounding.bytes(step));
      for (int64_t i = begin, stop; i < end; i = stop) {
        stop = smaller(end, i + step);
        multiply<bits>(w, rounding.run(scratch, i, stop), 0, w.tiles(), place, i, stop);
      }
    });
  } else {
    const auto x = rounding.run(pool.scratch(0, rounding.bytes(rows)), 0, rows);
    pool.split(ceil_div(w.tiles(), band), ceil_div(grain, rows * w.columns * lanes * band),
               [&](int64_t begin, int64_t end, int) {
                 multiply<bits>(w, x, begin * band, smaller(end * band, w.tiles()), place, 0, rows);
               });
  }
}

// --- exact

// Columns from..to (from: a multiple of `group`) of block b of a tile as floats, gemm::panel apart.
template <int bits> void decode(const Weights& w, int64_t tile, int64_t b, int64_t from, int64_t to, float* out) {
  const int64_t width = w.width(tile), step = width * lanes * bits;
  const float* numbers = w.numbers + w.numbers_at(tile) + b * w.kinds() * width * lanes;
  const vf scale = load(numbers), minimum = w.minima ? load(numbers + width * lanes) : vf{};
  const vi zero = vi{} + w.zero();
  const bool minima = w.minima;
  const uint8_t* codes = w.codes + w.codes_at(tile) + (b * w.groups() + from / group) * step;
  for (int64_t k = from; k < to; k += group, codes += step, out += group * gemm::panel) {
    vi half[2];
    take<bits>(codes, half[0], half[1]);
    const auto put = [&](int i) {
      const vf code = to_float(((half[i / 4] >> (8 * (i % 4))) & (vi{} + 255)) - zero);
      store(out + i * gemm::panel, minima ? code * scale + minimum : code * scale);
    };
    if (k + group <= to) {
#pragma GCC unroll 8
      for (int i = 0; i < group; ++i) put(i);
    } else {
      for (int i = 0; k + i < to; ++i) put(i);
    }
  }
}

// Columns from..to (from: the begin of a block, or a multiple of `group` within one) of a tile.
template <int bits> void decode_columns(const Weights& w, int64_t tile, int64_t from, int64_t to, float* out) {
  for (int64_t stop; from < to; out += (stop - from) * gemm::panel, from = stop) {
    const int64_t b = from / w.block, start = b * w.block;
    stop = smaller(to, start + w.block);
    decode<bits>(w, tile, b, from - start, stop - start, out);
  }
}

// Columns decoded at a time: whole blocks, or equal parts of one. Sums of results do not depend on anything else.
int64_t decode_step(const Weights& w) {
  constexpr int64_t wanted = gemm::longest_step / 2;
  if (w.block <= wanted) return wanted / w.block * w.block;
  return round_up(ceil_div(w.block, ceil_div(w.block, wanted)), group);
}

// The end of the step that begins with column k: steps do not cross blocks that they do not fill.
int64_t end_of_step(const Weights& w, int64_t step, int64_t k) {
  return smaller(k + step, w.block <= step ? w.columns : (k / w.block + 1) * w.block);
}

// Rows of `a` times tiles of weights from `tile` on, into `sums` [rows][tiles * lanes].
template <int bits>
void multiply_decoded(const Weights& w, const gemm::Left& a, int64_t rows, int64_t tile, int64_t tiles, float* decoded,
                      float* sums) {
  const int64_t step = decode_step(w);
  const gemm::Output y{sums, tiles * lanes, nullptr, nullptr, IDENTITY, 0.0f, 0.0f};
  for (int64_t k = 0, stop; k < w.columns; k = stop) {
    stop = end_of_step(w, step, k);
    for (int64_t t = 0; t < tiles; ++t)
      decode_columns<bits>(w, tile + t, k, stop, decoded + t / 2 * step * gemm::panel + t % 2 * lanes);
    gemm::block({a.data + k, a.row, 1}, rows, {decoded, gemm::panel, step * gemm::panel}, tiles * lanes, stop - k,
                y.during(k == 0, false));
  }
}

template <int bits> void exact(const Weights& w, const Place& place, int64_t rows, Pool& pool) {
  const int64_t tiles = w.tiles(), most_tiles = rows == 1 ? band : 2, most = smaller(rows, rows_decoded_for);
  const bool copies = place.x_piece != lanes || place.width < rows;
  const int64_t row = copies ? round_up(w.columns, lanes) : place.x_row;
  const int64_t decoded_size = most_tiles * lanes * decode_step(w), sums_size = most * most_tiles * lanes;
  const auto part = [&](int64_t first, int64_t last, int64_t tile, int64_t last_tile, int thread) {
    float* decoded = pool.scratch_f32(thread, decoded_size + sums_size + (copies ? most * row : 0));
    float* sums = decoded + decoded_size;
    float* copied = sums + sums_size;
    for (int64_t i = first, some; i < last; i += some) {
      some = smaller(last - i, most);
      if (copies)
        for (int64_t r = 0; r < some; ++r) place.copy_row(i + r, w.columns, copied + r * row);
      const gemm::Left a{copies ? copied : place.x_at(i), row, 1};
      for (int64_t t = tile, wide; t < last_tile; t += wide) {
        wide = smaller(most_tiles, last_tile - t);
        multiply_decoded<bits>(w, a, some, t, wide, decoded, sums);
        place.put(i, some, t, wide, w.rows, sums);
      }
    }
  };
  if (rows >= rows_decoded_for * pool.threads())
    pool.split(rows, ceil_div(grain, w.rows * w.columns),
               [&](int64_t begin, int64_t end, int thread) { part(begin, end, 0, tiles, thread); });
  else
    pool.split(ceil_div(tiles, band), ceil_div(grain, rows * w.columns * lanes * band),
               [&](int64_t begin, int64_t end, int thread) {
                 part(0, rows, begin * band, smaller(end * band, tiles), thread);
               });
}

}  // namespace

// `codes` int8 [rows, columns], -2^(bits-1) .. 2^(bits-1)-1, `scale` and `minimum` (or null) [rows, columns / block],
// to `packed` and `numbers` as described above; either may be null.
KERNEL(coded_pack, ARGS(codes, scale, minimum, packed, numbers), PARAMS(rows, columns, block, bits)) {
  const Weights w{nullptr, nullptr, p.rows, p.columns, p.block, p.bits, a.minimum != nullptr};
  const int64_t blocks = w.blocks(), groups = w.groups(), bits = w.packed_bits();
  const int8_t* codes = in<int8_t>(a.codes);
  // The codes of a row in a group, unsigned; 0 beyond the block.
  const auto codes_of = [&](int64_t row, int64_t g) {
    uint8_t eight[group] = {};
    const int64_t column = g % groups * group;
    if (row < p.rows) {
      const int8_t* from = codes + row * p.columns + g / groups * p.block + column;
      const int64_t count = smaller<int64_t>(group, p.block - column);
      for (int64_t i = 0; i < count; ++i) eight[i] = static_cast<uint8_t>(from[i] + (1 << (p.bits - 1)));
    }
    std::array<uint32_t, 2> halves;
    std::memcpy(halves.data(), eight, sizeof eight);
    return halves;
  };
  const auto pack_codes = [&](int64_t tile) {
    const int64_t step = w.width(tile) * lanes * bits;
    uint8_t* to = out<uint8_t>(a.packed) + w.codes_at(tile);
    for (int64_t g = 0; g < blocks * groups; ++g, to += step)
      for (int r = 0; r < lanes; ++r) {
        auto [first, second] = codes_of(tile * lanes + r, g);
        if (bits == 4) first |= second << 4;
        std::memcpy(to + 4 * r, &first, sizeof first);
        if (bits == 8) std::memcpy(to + 4 * (lanes + r), &second, sizeof second);
      }
  };
  const auto pack_numbers = [&](int64_t tile) {
    float* to = out(a.numbers) + w.numbers_at(tile);
    for (int64_t b = 0; b < blocks; ++b)
      for (const void* from : {a.scale, a.minimum}) {
        if (from == nullptr) continue;
        for (int64_t r = 0; r < lanes; ++r) {
          const int64_t row = tile * lanes + r;
          to[r] = row < p.rows ? in(from)[row * blocks + b] : 0.0f;
        }
        to += w.width(tile) * lanes;
      }
  };
  pool.split(w.tiles(), ceil_div(1 << 14, p.columns * lanes), [&](int64_t begin, int64_t end, int) {
    for (int64_t tile = begin; tile < end; ++tile) {
      if (a.packed) pack_codes(tile);
      if (a.numbers) pack_numbers(tile);
    }
  });
}

// y[i] = activate(x[i] w^T + bias + residual[i]) for w [outputs, columns] as coded_pack made it of codes of `bits`
// bits, with `minima` or without; bias [outputs]. There are images * lines * width rows i of x and y; row i is pixel i
// % width of line i / width % lines of an image, each `x_row`, `x_line`, `x_image` floats from the next, and its
// columns lie in pieces of `lanes` that are `x_piece` floats apart. Rows of y and residual lie `y_row` (in an image)
// and `y_image` apart, with pieces of `lanes` `y_piece` apart, the last one in full if `padded`. A matrix is one line:
// x_piece = lanes. `exact` multiplies floats; otherwise activations are rounded to 8 bits.
KERNEL(coded_product, ARGS(x, packed, numbers, bias, residual, y),
       PARAMS(images, lines, width, columns, outputs, block, bits, minima, x_image, x_line, x_row, x_piece, y_image,
              y_row, y_piece, padded, exact, activation),
       SCALARS(low, high)) {
  const Weights w{in<uint8_t>(a.packed), in(a.numbers), p.outputs, p.columns, p.block, p.bits, p.minima != 0};
  const Place place{in(a.x), p.lines, p.width, p.x_image, p.x_line, p.x_row, p.x_piece, out(a.y), p.y_image, p.y_row,
                    p.y_piece, in(a.bias), in(a.residual), p.padded != 0, p.activation, s.low, s.high};
  const int64_t rows = p.images * p.lines * p.width;
  if (rows <= 0) return;
  const auto run = p.exact ? (w.packed_bits() == 4 ? exact<4> : exact<8>) : (w.packed_bits() == 4 ? fast<4> : fast<8>);
  run(w, place, rows, pool);
}
