// Feature maps from plain [batch, channels, pixels] to blocked [batch, ceil(channels/lanes), pixels, lanes] and back.
//
// Squares of lanes x lanes are transposed in registers. Lanes beyond the channels become 0.
#include "conv.h"
#include "transpose.h"

using namespace mnnk;

namespace {

constexpr int64_t GRAIN = 1024;  // pixels of a block for which a thread is worth waking

// f(image, block, begin, end): parts of blocks, whole squares long, in an order that threads share out.
template <class F> void each_part(Pool& pool, int64_t batch, int64_t channels, int64_t pixels, const F& f) {
  const int64_t blocks = ceil_div(channels, lanes), squares = ceil_div(pixels, lanes);
  pool.split(batch * blocks * squares, ceil_div(GRAIN, lanes), [&](int64_t begin, int64_t end, int) {
    while (begin < end) {
      const int64_t block = begin / squares, first = begin % squares;
      const int64_t last = smaller(squares, first + end - begin);
      f(block / blocks, block % blocks, first * lanes, smaller(last * lanes, pixels));
      begin += last - first;
    }
  });
}

}  // namespace

KERNEL(nchw_to_blocked, ARGS(x, y), PARAMS(batch, channels, pixels)) {
  const int64_t blocks = ceil_div(p.channels, lanes);
  each_part(pool, p.batch, p.channels, p.pixels, [&](int64_t image, int64_t block, int64_t begin, int64_t end) {
    const float* x = in(a.x) + (image * p.channels + block * lanes) * p.pixels;
    float* y = out(a.y) + (image * blocks + block) * p.pixels * lanes;
    const int64_t rows = smaller<int64_t>(lanes, p.channels - block * lanes);
    vf square[lanes];
    for (int64_t q = begin; q < end; q += lanes) {
      const int64_t count = smaller<int64_t>(lanes, end - q);
      if (count == lanes && rows == lanes) {
        transpose_block(x + q, p.pixels, y + q * lanes, lanes);
      } else {
        for (int64_t i = 0; i < lanes; ++i) square[i] = i < rows ? load_part(x + i * p.pixels + q, count) : vf{};
        transpose(square);
        for (int64_t i = 0; i < count; ++i) store(y + (q + i) * lanes, square[i]);
      }
    }
  });
}

KERNEL(blocked_to_nchw, ARGS(x, y), PARAMS(batch, channels, pixels)) {
  const int64_t blocks = ceil_div(p.channels, lanes);
  each_part(pool, p.batch, p.channels, p.pixels, [&](int64_t image, int64_t block, int64_t begin, int64_t end) {
    const float* x = in(a.x) + (image * blocks + block) * p.pixels * lanes;
    float* y = out(a.y) + (image * p.channels + block * lanes) * p.pixels;
    const int64_t rows = smaller<int64_t>(lanes, p.channels - block * lanes);
    vf square[lanes];
    for (int64_t q = begin; q < end; q += lanes) {
      const int64_t count = smaller<int64_t>(lanes, end - q);
      if (count == lanes && rows == lanes) {
        transpose_block(x + q * lanes, lanes, y + q, p.pixels);
      } else {
        for (int64_t i = 0; i < lanes; ++i) square[i] = i < count ? load(x + (q + i) * lanes) : vf{};
        transpose(square);
        for (int64_t i = 0; i < rows; ++i) store_part(y + i * p.pixels + q, square[i], count);
      }
    }
  });
}
