// Samples of blocked maps at given points: a pixel of a block is one vector, so that the neighbours of a point and their
// weights are found once for all channels.
//
// Operations and their order are those of the definition, one rounding each: results are the same.
#include "kernel.h"
#include "simd.h"

using namespace mnnk;

namespace {

constexpr int MOST_AXES = 3, MOST_CORNERS = 1 << MOST_AXES;
constexpr int64_t CHUNK = 128;  // points whose neighbours are kept

struct Image {
  int64_t axes, size[MOST_AXES];
  bool nearest, zeros, align;

  int corners() const { return nearest ? 1 : 1 << axes; }
  int64_t pixels() const { return size[0] * size[1] * (axes == 3 ? size[2] : 1); }
};

// Neighbours of a point: which pixels, or -1 outside of the image where that is zero, and their weights.
struct Corners {
  int64_t pixel[MOST_CORNERS];
  float weight[MOST_CORNERS];
};

Corners find(const Image& image, const float* point) {
  float low[MOST_AXES], rest[MOST_AXES];
  for (int64_t a = 0; a < image.axes; ++a) {
    const float g = point[image.axes - 1 - a], size = static_cast<float>(image.size[a]), last = size - 1.0f;
    float place = image.align ? (g + 1.0f) / 2.0f * last : ((g + 1.0f) * size - 1.0f) / 2.0f;
    if (!image.zeros) place = place < 0.0f ? 0.0f : place > last ? last : place;
    low[a] = std::floor(image.nearest ? place + 0.5f : place);
    rest[a] = place - low[a];
  }
  Corners found;
  for (int k = 0; k < image.corners(); ++k) {
    int64_t pixel = 0;
    float weight = 1.0f;
    bool inside = true;
    for (int64_t a = 0; a < image.axes; ++a) {
      const bool up = k >> (image.axes - 1 - a) & 1;
      const float at = up ? low[a] + 1.0f : low[a], size = static_cast<float>(image.size[a]);
      if (!image.nearest) weight *= up ? rest[a] : 1.0f - rest[a];
      const bool in_axis = at >= 0.0f && at < size;
      inside = inside && in_axis;
      const int64_t border = at >= size ? image.size[a] - 1 : 0;  // NaN: 0
      pixel = pixel * image.size[a] + (in_axis ? static_cast<int64_t>(at) : border);
    }
    found.pixel[k] = inside || !image.zeros ? pixel : -1;
    found.weight[k] = weight;
  }
  return found;
}

}  // namespace

// x blocked [n, channels, (depth,) height, width], grid [n, points, axes] with (x, y[, z]) from -1 to 1, y blocked
// [n, channels, points]. `axes` is 2 (depth is not used) or 3.
KERNEL(grid_sample, ARGS(x, grid, y),
       PARAMS(n, channels, axes, depth, height, width, points, nearest, zeros, align)) {
  const Image image{p.axes, {p.axes == 3 ? p.depth : p.height, p.axes == 3 ? p.height : p.width, p.width},
                    p.nearest != 0, p.zeros != 0, p.align != 0};
  const int64_t blocks = ceil_div(p.channels, lanes), pixels = image.pixels(), chunks = ceil_div(p.points, CHUNK);
  const int64_t work = CHUNK * (blocks + 4) * image.corners() * lanes;
  pool.split(p.n * chunks, ceil_div(WORTH_A_THREAD, work), [&](int64_t begin, int64_t end, int) {
    Corners corners[CHUNK];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t at = task / chunks, first = task % chunks * CHUNK, count = smaller(CHUNK, p.points - first);
      for (int64_t i = 0; i < count; ++i)
        corners[i] = find(image, in(a.grid) + (at * p.points + first + i) * p.axes);
      for (int64_t block = at * blocks; block < (at + 1) * blocks; ++block) {
        const float* x = in(a.x) + block * pixels * lanes;
        float* y = out(a.y) + (block * p.points + first) * lanes;
        vi real;  // lanes with a channel: in others a weight that is NaN would leave NaN
        for (int i = 0; i < lanes; ++i) real[i] = (block - at * blocks) * lanes + i < p.channels ? -1 : 0;
        for (int64_t i = 0; i < count; ++i, y += lanes) {
          vf sum = {};
          for (int k = 0; k < image.corners(); ++k) {
            const int64_t pixel = corners[i].pixel[k];
            sum = sum + (pixel < 0 ? vf{} : load(x + pixel * lanes)) * splat(corners[i].weight[k]);
          }
          store(y, as_float(as_int(sum) & real));
        }
      }
    }
  });
}
