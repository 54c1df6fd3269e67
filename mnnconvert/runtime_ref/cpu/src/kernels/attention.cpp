// Attention, y = softmax(scale q k^T + mask) v for every head, whose scores never leave the caches.
//
//   for heads, for blocks of queries       what threads share out
//     for tiles of keys                    k and v of a tile are packed into panels (gemm.h) and stay in L2
//       for tiles of queries
//         scores = q k^T                   rows_per_tile x keys_per_tile, in L1 and L2
//         weights = exp(scores - high)     high: the largest score of the row so far
//         sums = sums e^(high before - high) + weights v
//
// and at the end y = sums / total, total being the sum of the weights. A row that sees no key becomes NaN, as the
// softmax of nothing but -inf does, or zero. Keys that a row does not see are -inf to it; tiles that none of its rows
// sees are skipped.
//
// A few rows (a step of a decoder) read k and v once, where they lie. Long rows of keys are then cut into parts, which
// threads share out as well, and the sums of the parts are added at the end. Keys and values that stay for later calls lie
// in panels already: nothing has to be packed, and no products be added across lanes.
//
// Tiles and parts follow from the shapes alone: results do not depend on the number of threads.
#include "gemm.h"

using namespace mnnk;
using gemm::Left;
using gemm::panel;

namespace {

constexpr int64_t keys_per_tile = 256;
constexpr int64_t rows_per_tile = 64;                  // at most; a multiple of `lanes`
constexpr int64_t rows_per_block = 8 * rows_per_tile;  // at most
constexpr int64_t keys_per_part = 4 * keys_per_tile;
constexpr int64_t few_rows = 8;                        // of keys in panels
constexpr int64_t grain = WORTH_A_THREAD;
constexpr int64_t zero_for_nan = 1, zero_unseen = 2;  // values of `blank`

// Rows of queries of one head, with all keys of that head.
struct Head {
  Left q, k;
  const float* v;
  int64_t v_row;
  const float* mask;
  int64_t mask_row, unmasked;  // the mask begins at this key
  bool replaces;               // what is not 0 in the mask takes the place of a score
  const float* sinks;          // of the heads that rows belong to, if any: one more score
  int64_t sink_step;
  float* y;
  int64_t y_row;
  int64_t rows, keys, depth, width;
  int64_t seen, seen_step;  // row i sees the first seen + i seen_step keys
  float scale, cap;
  int64_t blank;
  int64_t capacity;  // of panels k [capacity / panel, depth, panel], v [width / panel, capacity, panel]; 0: rows
  bool few;          // of all rows together, so that blocks do not matter

  int64_t seen_by(int64_t row) const { return smaller(keys, larger<int64_t>(0, seen + row * seen_step)); }
  int64_t in_place() const { return few ? width / panel * panel : 0; }  // columns of v that are not packed
  bool by_dots() const { return few && !capacity; }
  Head from(int64_t row) const {
    Head part = *this;
    part.q.data += row * q.row;
    part.y += row * y_row;
    if (mask) part.mask += row * mask_row;
    if (sinks) part.sinks += row * sink_step;
    part.seen += row * seen_step;
    part.rows -= row;
    return part;
  }
};

// What is known of rows after some of their keys. `high` may be stored in whole vectors.
struct State {
  float* high;   // [rows]
  float* total;  // [rows][lanes], to be added up
  float* sums;   // [rows][row]
  int64_t row;

  State(float* memory, int64_t rows, int64_t width)
      : high(memory), total(high + round_up(rows, lanes)), sums(total + rows * lanes), row(round_up(width, panel)) {}
  static int64_t floats(int64_t rows, int64_t width) {
    return round_up(rows, lanes) + rows * (lanes + round_up(width, panel));
  }
  // Before any key: a sink is a score that has been seen, and has no value.
  void clear(int64_t rows, const float* sinks, int64_t step) const {
    std::memset(total, 0, static_cast<size_t>(rows * (lanes + row)) * sizeof(float));
    for (int64_t i = 0; i < rows; ++i) {
      high[i] = sinks ? sinks[i * step] : -INFINITY;
      if (high[i] != -INFINITY) total[i * lanes] = 1.0f;
    }
  }
  State from(int64_t first) const { return {high + first, total + first * lanes, sums + first * row, row}; }

 private:
  State(float* high, float* total, float* sums, int64_t row) : high(high), total(total), sums(sums), row(row) {}
};

// Memory of a thread while it works on tiles.
struct Scratch {
  float *k, *v, *scores, *most, *shift, *fade, *mask;
  int64_t row;  // of scores

  Scratch(float* memory, const Head& h)
      : k(memory), v(k + tile(h) * h.depth), scores(v + tile(h) * round_up(h.width, panel)),
        most(scores + rows_per_tile * tile(h)), shift(most + rows_per_tile * lanes), fade(shift + rows_per_tile),
        mask(fade + rows_per_tile), row(tile(h)) {}
  static int64_t tile(const Head& h) { return round_up(smaller(h.keys, keys_per_tile), panel); }
  static int64_t floats(const Head& h) {
    return tile(h) * (h.depth + round_up(h.width, panel) + rows_per_tile) + rows_per_tile * (lanes + 2 + panel);
  }
};

gemm::Output plain(float* data, int64_t row) { return {data, row, nullptr, nullptr, IDENTITY, -INFINITY, INFINITY}; }

// scale product + mask, of which the first `seen` lanes count; with a cap, cap tanh(scale product / cap) + mask.
// A mask that replaces is a score itself where it is not 0.
MNNK_INLINE vf score(vf product, vf scale, float cap, const float* mask, bool replaces, int64_t seen) {
  if (cap > 0.0f) {
    product = tanh(product * (scale / splat(cap)));
    scale = splat(cap);
  }
  const auto masked = [&](vf m) { return replaces ? (m == 0.0f ? product * scale : m) : fma(product, scale, m); };
  if (seen >= lanes) return mask ? masked(load(mask)) : product * scale;
  vi lane;
  for (int i = 0; i < lanes; ++i) lane[i] = i;
  const int64_t count = larger<int64_t>(0, seen);
  const vf x = mask ? masked(load_part(mask, count)) : product * scale;
  return lane < splat_int(static_cast<int32_t>(count)) ? x : splat(-INFINITY);
}

// A panel of keys: `tiles` times R rows of scores, of which row 0 sees `seen`. `most`: the largest by row and lane.
struct Panel {
  Left q;
  const float* k;
  int64_t depth;
  vf scale;
  float cap;
  const float* mask;
  int64_t mask_row;
  bool replaces;
  int64_t seen, seen_step;
  float* scores;
  int64_t row;
  float* most;

  Panel from(int64_t i) const {
    Panel part = *this;
    part.q.data += i * q.row;
    if (mask) part.mask += i * mask_row;
    part.seen += i * seen_step;
    part.scores += i * row;
    part.most += i * lanes;
    return part;
  }
};

template <int R> void score_tiles(Panel p, int64_t tiles) {
  for (; tiles > 0; --tiles, p = p.from(R)) {
    vf acc[R][2] = {};
    gemm::accumulate<R, 2>(p.q, {p.k, panel, 0}, p.depth, acc);
    const auto put = [&](auto get) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const vf first = get(acc[r][0], r, 0), second = get(acc[r][1], r, 1);
        store(p.scores + r * p.row, first);
        store(p.scores + r * p.row + lanes, second);
        store(p.most + r * lanes, max(max(load(p.most + r * lanes), first), second));
      }
    };
    if (p.seen < panel || p.cap > 0.0f || p.replaces)
      put([&](vf x, int r, int v) {
        const float* mask = p.mask ? p.mask + r * p.mask_row + v * lanes : nullptr;
        return score(x, p.scale, p.cap, mask, p.replaces, p.seen + r * p.seen_step - v * lanes);
      });
    else if (p.mask)
      put([&](vf x, int r, int v) { return fma(x, p.scale, load(p.mask + r * p.mask_row + v * lanes)); });
    else
      put([&](vf x, int, int) { return x * p.scale; });
  }
}

template <int R = gemm::most_rows> void score_rows(int64_t rows, const Panel& p, int64_t tiles) {
  if constexpr (R > 1)
    if (rows < R) return score_rows<R - 1>(rows, p, tiles);
  score_tiles<R>(p, tiles);
}

// Rows of the mask for `count` keys from j on: none, or in place, or, of a panel in which the mask begins, in `scratch`.
struct MaskRows {
  const float* data;
  int64_t row;
};
MaskRows mask_of(const Head& h, int64_t rows, int64_t j, int64_t count, float* scratch) {
  if (!h.mask || j + count <= h.unmasked) return {nullptr, 0};
  if (j >= h.unmasked) return {h.mask + j - h.unmasked, h.mask_row};
  const int64_t without = h.unmasked - j;
  for (int64_t i = 0; i < rows; ++i) {
    float* row = scratch + i * panel;
    std::memset(row, 0, static_cast<size_t>(without) * sizeof(float));
    std::memcpy(row + without, h.mask + i * h.mask_row, static_cast<size_t>(count - without) * sizeof(float));
  }
  return {scratch, panel};
}

// Scores of `count` keys from j on and, in `most`, the largest of each row by lane.
void find_scores(const Head& h, int64_t rows, int64_t j, int64_t count, const Scratch& to) {
  for (int64_t i = 0; i < rows; ++i) store(to.most + i * lanes, splat(-INFINITY));
  const auto [mask, mask_row] = mask_of(h, rows, j, count, to.mask);
  const auto seen = [&](int64_t i) { return smaller(count, h.seen_by(i) - j); };
  if (!h.by_dots()) {
    const float* k = h.capacity ? h.k.data + j * h.depth : to.k;
    const int64_t tiles = ceil_div(rows, gemm::most_rows), less = rows / tiles, with_more = rows % tiles;
    const vf scale = splat(h.scale);
    for (int64_t c = 0; c < count; c += panel) {
      const int64_t seen_first = h.seen_step ? smaller(count, h.seen - j) - c : count - c;
      const Panel p{h.q, k + c * h.depth, h.depth, scale, h.cap, mask ? mask + c : nullptr, mask_row, h.replaces,
                    seen_first, h.seen_step, to.scores + c, to.row, to.most};
      if (with_more) score_rows(less + 1, p, with_more);
      score_rows(less, p.from(with_more * (less + 1)), tiles - with_more);
    }
    return;
  }
  gemm::dots_rows(h.q, rows, h.k.data + j * h.k.row, h.k.row, count, h.depth, plain(to.scores, to.row));
  for (int64_t i = 0; i < rows; ++i) {
    float* row = to.scores + i * to.row;
    vf most = splat(-INFINITY);
    for (int64_t c = 0; c < count; c += lanes) {
      const vf x = score(load(row + c), splat(h.scale), h.cap, mask ? mask + i * mask_row + c : nullptr, h.replaces,
                         seen(i) - c);
      store(row + c, x);
      most = max(most, x);
    }
    store(to.most + i * lanes, most);
  }
}

// Scores become weights; the state follows, but for what they add to the sums.
void find_weights(int64_t rows, int64_t count, const Scratch& at, const State& state) {
  for (int64_t i = 0; i < rows; i += lanes) {
    vf most[lanes];
#pragma GCC unroll 16
    for (int r = 0; r < lanes; ++r) most[r] = load(at.most + (i + r) * lanes);
    transpose(most);
#pragma GCC unroll 16
    for (int r = 1; r < lanes; ++r) most[0] = max(most[0], most[r]);
    const vf before = load(state.high + i), high = max(before, most[0]), none = splat(-INFINITY);
    const vf shift = high == none ? vf{} : high;  // -inf - -inf would be NaN
    store(state.high + i, high);
    store(at.shift + i, shift);
    store(at.fade + i, ((before == none) | (before == high)) ? splat(1.0f) : exp_loose(before - shift));
  }
  for (int64_t i = 0; i < rows; ++i) {
    float* row = at.scores + i * at.row;
    const vf shift = splat(at.shift[i]), fade = splat(at.fade[i]);
    vf total = load(state.total + i * lanes) * fade;
    for (int64_t j = 0; j < count; j += lanes) {
      const vf weight = exp_loose(load(row + j) - shift);
      total = total + weight;
      store(row + j, weight);
    }
    store(state.total + i * lanes, total);
    if (at.fade[i] != 1.0f)
      for (float* sums = state.sums + i * state.row; sums < state.sums + (i + 1) * state.row; sums += lanes)
        store(sums, load(sums) * fade);
  }
}

// A tile of at most rows_per_tile rows and keys_per_tile keys, these from j on; `packed` of them are in the scratch.
void tile(const Head& h, int64_t rows, int64_t j, int64_t count, int64_t packed, const Scratch& scratch,
          const State& state) {
  find_scores(h, rows, j, count, scratch);
  find_weights(rows, count, scratch, state);
  const int64_t in_place = h.in_place();
  const Left weights{scratch.scores, scratch.row, 1};
  gemm::Output y = plain(state.sums, state.row);
  y.residual = state.sums;
  if (h.capacity)
    return gemm::block(weights, rows, {h.v + j * panel, panel, h.capacity * panel}, state.row, count, y);
  gemm::block(weights, rows, {h.v + j * h.v_row, h.v_row, panel}, in_place, count, y);
  gemm::block(weights, rows, {scratch.v, panel, packed * panel}, state.row - in_place, count, y.at(0, in_place));
}

// Keys begin..end of a block of rows.
void attend(const Head& h, int64_t begin, int64_t end, const Scratch& scratch, const State& state) {
  const int64_t last = smaller(end, h.seen_by(h.rows - 1)), in_place = h.in_place();
  const int64_t tiles = ceil_div(h.rows, rows_per_tile), each = round_up(ceil_div(h.rows, tiles), lanes);
  int64_t count;
  for (int64_t j = begin; j < last; j += count) {
    count = smaller(keys_per_tile, last - j);
    if (const int64_t before = h.unmasked - j; before > 0)  // the panel where the mask begins is a tile of its own
      count = smaller(count, before < panel ? panel : before / panel * panel);
    if (!h.by_dots() && !h.capacity)
      gemm::pack(h.k.data + j * h.k.row, h.k.column, h.k.row, h.depth, count, scratch.k, h.depth * panel);
    if (!h.capacity)
      gemm::pack(h.v + j * h.v_row + in_place, h.v_row, 1, count, h.width - in_place, scratch.v, count * panel);
    for (int64_t i = 0; i < h.rows; i += each) {
      const Head part = h.from(i);
      const int64_t rows = smaller(each, part.rows);
      const int64_t seen = smaller(count, part.seen_by(rows - 1) - j);
      if (seen > 0) tile(part, rows, j, seen, count, scratch, state.from(i));
    }
  }
}

// y = sums / total, which is 0 * infinity where no key was seen
void finish(const Head& h, const State& state) {
  for (int64_t i = 0; i < h.rows; ++i) {
    const float total = sum(load(state.total + i * lanes));
    const bool blank = h.blank == zero_for_nan ? !(total > 0.0f) : h.blank == zero_unseen && total == 0.0f;
    const vf factor = splat(1.0f / total);
    const float* sums = state.sums + i * state.row;
    float* y = h.y + i * h.y_row;
    for (int64_t j = 0; j < h.width; j += lanes) {
      const vf value = blank ? vf{} : load(sums + j) * factor;
      if (j + lanes <= h.width)
        store(y + j, value);
      else
        store_part(y + j, value, h.width - j);
    }
  }
}

// Adds what another part of the keys gave.
void merge(const State& into, const State& part, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) {
    const float high = larger(into.high[i], part.high[i]), shift = high == -INFINITY ? 0.0f : high;
    const vf a = exp_loose(splat(into.high[i] - shift)), b = exp_loose(splat(part.high[i] - shift));
    const auto add = [&](float* to, const float* more) { store(to, fma(load(more), b, load(to) * a)); };
    into.high[i] = high;
    add(into.total + i * lanes, part.total + i * lanes);
    for (int64_t j = i * into.row; j < (i + 1) * into.row; j += lanes) add(into.sums + j, part.sums + j);
  }
}

}  // namespace

// y[b, h] = softmax(scale q[b, h] k[b, h / group]^T + mask[b, h]) v[b, h / group] for h < heads, group = heads /
// key_heads: q [queries, depth], k [keys, depth], mask [queries, keys], v [keys, width]. Strides are in floats; 0
// repeats a mask. The last axes of all but k are contiguous; of k it is one of the two. The mask may be absent. Query i
// sees the first seen + i seen_step keys: all where `seen` is `keys` and `seen_step` 0. The mask has columns for the keys
// from `unmasked` on; if it `replaces`, scores become what is not 0 in it, and it is not added. `sinks` [heads], which
// may be absent, are one more score in the sum of each row's softmax. With a positive `cap`, scale q k^T becomes
// cap tanh(scale q k^T / cap). `blank` is what a row that sees no key becomes: 0 NaN,
// 1 zero, as any NaN of the softmax does, 2 zero. With a `capacity` k is [capacity / panel, depth, panel] and v
// [ceil(width / panel), capacity, panel], whatever the strides of rows; what is beyond keys and width may be anything.
KERNEL(attention, ARGS(q, k, v, mask, sinks, y),
       PARAMS(batch, heads, key_heads, queries, keys, depth, width, q_batch, q_head, q_row, k_batch, k_head, k_row,
              k_column, v_batch, v_head, v_row, mask_batch, mask_head, mask_row, y_batch, y_head, y_row, seen,
              seen_step, unmasked, replaces, blank, capacity),
       SCALARS(scale, cap)) {
  if (p.batch * p.heads * p.queries * p.width <= 0) return;
  int64_t heads = p.heads, group = p.heads / p.key_heads, q_head = p.q_head, y_head = p.y_head, mask_head = p.mask_head;
  Head all{{in(a.q), p.q_row, 1}, {in(a.k), p.k_row, p.k_column}, in(a.v), p.v_row, in(a.mask), p.mask_row,
           p.unmasked, p.replaces != 0, in(a.sinks), 0, out(a.y), p.y_row, p.queries, p.keys, p.depth, p.width, p.seen,
           p.seen_step, s.scale, s.cap, p.blank, p.capacity, false};
  if (p.queries == 1 && group > 1) {  // heads that share keys are rows of one
    all.q.row = q_head, all.y_row = y_head, all.mask_row = mask_head, all.rows = group, all.seen_step = 0;
    all.sink_step = 1;
    q_head *= group, y_head *= group, mask_head *= group, heads = p.key_heads, group = 1;
  }
  all.few = all.capacity ? all.rows <= few_rows : all.rows <= gemm::few_rows && p.k_column == 1;
  const int64_t whole = p.batch * heads, wanted = ceil_div(4 * pool.threads(), whole);
  const int64_t share = larger(rows_per_tile, round_up(ceil_div(all.rows, wanted), gemm::most_rows));
  const int64_t block = smaller(all.rows, smaller(rows_per_block, share)), blocks = ceil_div(all.rows, block);
  const int64_t parts = all.few ? larger<int64_t>(1, ceil_div(p.keys, keys_per_part)) : 1;
  const int64_t tasks = whole * blocks * parts;
  const int64_t working = round_up(Scratch::floats(all), 16), kept = round_up(State::floats(block, p.width), 16);
  const int64_t states = parts > 1 ? tasks : pool.threads();
  float* memory = pool.scratch_f32(0, pool.threads() * working + states * kept);
  const auto head = [&](int64_t index) {
    const int64_t b = index / heads, h = index % heads;
    Head each = all;
    each.q.data += b * p.q_batch + h * q_head;
    each.k.data += b * p.k_batch + h / group * p.k_head;
    each.v += b * p.v_batch + h / group * p.v_head;
    each.y += b * p.y_batch + h * y_head;
    if (each.mask) each.mask += b * p.mask_batch + h * mask_head;
    if (each.sinks) each.sinks += h * (p.heads / heads);
    return each;
  };
  const auto state = [&](int64_t index, int64_t rows) {
    return State(memory + pool.threads() * working + index * kept, rows, p.width);
  };
  const int64_t work = block * ceil_div(p.keys, parts) * (p.depth + p.width);
  pool.split(tasks, ceil_div(grain, work + 1), [&](int64_t begin, int64_t end, int thread) {
    const Scratch scratch(memory + thread * working, all);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task % parts, i = task / parts % blocks * block;
      Head each = head(task / parts / blocks).from(i);
      each.rows = smaller(each.rows, block);
      const State own = state(parts > 1 ? task : thread, each.rows);
      own.clear(each.rows, part ? nullptr : each.sinks, each.sink_step);
      attend(each, part * keys_per_part, parts > 1 ? (part + 1) * keys_per_part : p.keys, scratch, own);
      if (parts == 1) finish(each, own);
    }
  });
  if (parts == 1) return;
  for (int64_t i = 0; i < whole; ++i) {
    const State first = state(i * parts, all.rows);
    for (int64_t part = 1; part < parts; ++part) merge(first, state(i * parts + part, all.rows), all.rows);
    finish(head(i), first);
  }
}

// Rows [batch, rows, heads, size] are put into memory of `memory` floats per head: element l of row r goes to at(r, l).
template <class At>
static void put(const float* from, float* to, int64_t batch, int64_t heads, int64_t rows, int64_t size, int64_t memory,
                At at, Pool& pool) {
  pool.split(batch * heads, ceil_div(grain, rows * size + 1), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float* source = from + (i / heads * rows * heads + i % heads) * size;
      for (int64_t r = 0; r < rows; ++r, source += heads * size)
        for (int64_t l = 0; l < size; ++l) to[i * memory + at(r, l)] = source[l];
    }
  });
}

// Attention whose keys and values stay: k [batch, queries, key_heads, depth] and v [..., width] are put into the panels
// `keys` and `values` [batch, key_heads, ...] of a capacity, behind those of earlier calls, and q [batch, queries, heads,
// depth] sees all that are then there. `place` holds the length, before, and the capacity. The `mask_columns` of a mask
// are for the last keys. If `causal` a query sees the keys up to its own. y is [batch, queries, heads, width].
KERNEL(attention_cached, ARGS(q, k, v, mask, sinks, keys, values, place, y),
       PARAMS(batch, heads, key_heads, queries, depth, width, mask_batch, mask_head, mask_row, mask_columns, causal),
       SCALARS(scale)) {
  const int64_t length = in<int64_t>(a.place)[0], capacity = in<int64_t>(a.place)[1], total = length + p.queries;
  const int64_t k_head = capacity * p.depth, v_head = capacity * round_up(p.width, panel);
  const auto key_at = [&](int64_t row, int64_t l) {
    const int64_t lane = (length + row) % panel;
    return (length + row - lane) * p.depth + l * panel + lane;
  };
  const auto value_at = [&](int64_t row, int64_t l) { return (l / panel * capacity + length + row) * panel + l % panel; };
  put(in(a.k), out(a.keys), p.batch, p.key_heads, p.queries, p.depth, k_head, key_at, pool);
  put(in(a.v), out(a.values), p.batch, p.key_heads, p.queries, p.width, v_head, value_at, pool);
  const int64_t q_row = p.heads * p.depth, y_row = p.heads * p.width;
  attention_run({a.q, a.keys, a.values, a.mask, a.sinks, a.y},
                {p.batch, p.heads, p.key_heads, p.queries, total, p.depth, p.width,
                 p.queries * q_row, p.depth, q_row, p.key_heads * k_head, k_head, p.depth, 1,
                 p.key_heads * v_head, v_head, p.width, p.mask_batch, p.mask_head, p.mask_row,
                 p.queries * y_row, p.width, y_row, p.causal ? length + 1 : total, p.causal,
                 total - p.mask_columns, 0, 0, capacity},
                {s.scale, 0.0f}, pool);
}
