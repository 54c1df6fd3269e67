// Picking elements by index, and putting them where indices say.
//
// Indices are int32; a negative one counts from the end of its axis. One beyond its axis ends the program (BadIndex):
// nothing is read or written outside. Of several updates of one element the last in row order stays, or all of them are
// combined in that order; that is why scatters use one thread.
#include <type_traits>

#include "kernel.h"
#include "simd.h"

using namespace mnnk;

namespace {

constexpr int64_t GRAIN = 1 << 15;  // bytes that are worth a thread
constexpr int MOST_AXES = 8;

MNNK_INLINE int64_t wrapped(int64_t index, int64_t size) { return index < 0 ? index + size : index; }

// Whether -size <= index < size, in 32 bits.
MNNK_INLINE bool inside(int32_t index, uint32_t size) { return static_cast<uint32_t>(index) + size < 2 * size; }

void check(const int32_t* indices, int64_t count, int64_t size) {
  const uint32_t bound = static_cast<uint32_t>(size);
  bool good = true;
  for (int64_t i = 0; i < count; ++i) good &= inside(indices[i], bound);
  if (!good) throw BadIndex();
}

// f(bytes) with a constant for the usual sizes of elements, so that copies of one need no call.
template <class F> void with_bytes(int64_t bytes, const F& f) {
  switch (bytes) {
    case 1: return f(std::integral_constant<size_t, 1>());
    case 4: return f(std::integral_constant<size_t, 4>());
    case 8: return f(std::integral_constant<size_t, 8>());
    case 16: return f(std::integral_constant<size_t, 16>());
    default: return f(static_cast<size_t>(bytes));
  }
}

}  // namespace

// y [outer, count] = x [outer, size] at indices [count], in units of `bytes`.
KERNEL(gather, ARGS(x, indices, y), PARAMS(bytes, outer, size, count)) {
  const int32_t* indices = in<int32_t>(a.indices);
  check(indices, p.count, p.size);
  with_bytes(p.bytes, [&](auto bytes) {
    pool.split(p.outer * p.count, ceil_div(GRAIN, p.bytes), [&](int64_t begin, int64_t end, int) {
      for (int64_t at = begin; at < end;) {
        const int64_t block = at / p.count, first = at % p.count, last = smaller(p.count, first + end - at);
        const char* x = in<char>(a.x) + block * p.size * p.bytes;
        char* y = out<char>(a.y) + block * p.count * p.bytes;
        const int64_t step = static_cast<int64_t>(bytes), size = p.size;
        for (int64_t i = first; i < last; ++i) std::memcpy(y + i * step, x + wrapped(indices[i], size) * step, bytes);
        at += last - first;
      }
    });
  });
}

namespace {

// Where index vectors of `depth` numbers point to, in an array of these sizes.
struct Places {
  int64_t depth, sizes[MOST_AXES], strides[MOST_AXES], count = 1;

  Places(int64_t depth_, const int64_t* sizes_) : depth(depth_) {
    for (int64_t i = depth - 1; i >= 0; --i) {
      sizes[i] = sizes_[i];
      strides[i] = count;
      count *= sizes[i];
    }
  }
  void check(const int32_t* vectors, int64_t rows) const {
    bool good = true;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < depth; ++i) good &= inside(vectors[r * depth + i], static_cast<uint32_t>(sizes[i]));
    if (!good) throw BadIndex();
  }
  int64_t operator()(const int32_t* vector) const {
    int64_t at = 0;
    for (int64_t i = 0; i < depth; ++i) at += wrapped(vector[i], sizes[i]) * strides[i];
    return at;
  }
};

}  // namespace

// y [batch, rows] = x [batch, d0, d1, ...] at the vectors indices [batch, rows, depth], in units of `bytes`.
KERNEL(gather_nd, ARGS(x, indices, y), PARAMS(bytes, batch, rows, depth, d0, d1, d2, d3, d4, d5, d6, d7)) {
  const Places places(p.depth, reinterpret_cast<const int64_t*>(&p) + 4);
  const int32_t* indices = in<int32_t>(a.indices);
  places.check(indices, p.batch * p.rows);
  with_bytes(p.bytes, [&](auto bytes) {
    pool.split(p.batch * p.rows, ceil_div(GRAIN, p.bytes), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t at = r / p.rows * places.count + places(indices + r * p.depth);
        std::memcpy(out<char>(a.y) + r * p.bytes, in<char>(a.x) + at * p.bytes, bytes);
      }
    });
  });
}

namespace {

// The indices of a gather or scatter of elements: their shape `n`; `s` is how far the array on the other side moves
// along these axes, 0 for the axis that is indexed, which has `size` elements at distance `stride`.
struct Elements {
  const int32_t* indices;
  const int64_t *n, *s;
  int64_t size, stride;

  int64_t count(int axis = 0) const { return axis == MOST_AXES ? 1 : n[axis] * count(axis + 1); }

  // f(number of the index, place in the array) for the indices begin..end of the axis `first`, in order.
  template <class F> void each(int axis, int64_t number, int64_t place, const F& f) const {
    if (axis < MOST_AXES - 1) {
      const int64_t step = count(axis + 1);
      for (int64_t i = 0; i < n[axis]; ++i) each(axis + 1, number + i * step, place + i * s[axis], f);
      return;
    }
    const int64_t count = n[axis], own = s[axis], length = size, step = stride;
    const int32_t* at = indices + number;
    for (int64_t i = 0; i < count; ++i) f(number + i, place + i * own + wrapped(at[i], length) * step);
  }
};

}  // namespace

// y [n0, ..., n7] = x at the sum of i0 s0 + ... + i7 s7 + stride * index; all counted in elements of `bytes`.
KERNEL(gather_elements, ARGS(x, indices, y),
       PARAMS(bytes, size, stride, n0, n1, n2, n3, n4, n5, n6, n7, s0, s1, s2, s3, s4, s5, s6, s7)) {
  const int64_t* numbers = reinterpret_cast<const int64_t*>(&p) + 3;
  const Elements elements{in<int32_t>(a.indices), numbers, numbers + MOST_AXES, p.size, p.stride};
  check(elements.indices, elements.count(), p.size);
  with_bytes(p.bytes, [&](auto bytes) {
    const auto size = static_cast<int64_t>(bytes);
    const char* x = in<char>(a.x);
    char* y = out<char>(a.y);
    elements.each(0, 0, 0, [=](int64_t number, int64_t place) {
      std::memcpy(y + number * size, x + place * size, bytes);
    });
  });
}

namespace {

// The numbers are known to Python (lowering/gather.py).
enum Reduction : int64_t { PUT = 0, ADD = 1, MUL = 2, MAXIMUM = 3, MINIMUM = 4 };

// Integers wrap around; a NaN on either side stays.
template <class T> MNNK_INLINE T combined(int64_t reduction, T old, T update) {
  using Wrapping = std::conditional_t<std::is_integral_v<T>, uint32_t, T>;
  switch (reduction) {
    case ADD: return static_cast<T>(static_cast<Wrapping>(old) + static_cast<Wrapping>(update));
    case MUL: return static_cast<T>(static_cast<Wrapping>(old) * static_cast<Wrapping>(update));
    case MAXIMUM: return old > update || old != old ? old : update;
    case MINIMUM: return old < update || old != old ? old : update;
    default: return update;
  }
}

// f(reduction, zero of the element type) with constants.
template <class F> void with_reduction(int64_t reduction, int64_t is_float, const F& f) {
  const auto typed = [&](auto constant) { is_float ? f(constant, 0.0f) : f(constant, int32_t{0}); };
  switch (reduction) {
    case ADD: return typed(std::integral_constant<int64_t, ADD>());
    case MUL: return typed(std::integral_constant<int64_t, MUL>());
    case MAXIMUM: return typed(std::integral_constant<int64_t, MAXIMUM>());
    case MINIMUM: return typed(std::integral_constant<int64_t, MINIMUM>());
    default: return typed(std::integral_constant<int64_t, PUT>());
  }
}

}  // namespace

// y [d0, d1, ..., width] at the vectors indices [rows, depth] is combined with updates [rows, width]; 4-byte elements.
KERNEL(scatter_nd, ARGS(indices, updates, y),
       PARAMS(reduction, is_float, rows, width, depth, d0, d1, d2, d3, d4, d5, d6, d7)) {
  const Places places(p.depth, reinterpret_cast<const int64_t*>(&p) + 5);
  const int32_t* indices = in<int32_t>(a.indices);
  places.check(indices, p.rows);
  with_reduction(p.reduction, p.is_float, [&](auto reduction, auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < p.rows; ++r) {
      const T* update = in<T>(a.updates) + r * p.width;
      T* y = out<T>(a.y) + places(indices + r * p.depth) * p.width;
      for (int64_t i = 0; i < p.width; ++i) y[i] = combined<T>(reduction, y[i], update[i]);
    }
  });
}

// y at the sum of i0 s0 + ... + i7 s7 + stride * index is combined with updates [n0, ..., n7]; 4-byte elements.
KERNEL(scatter_elements, ARGS(indices, updates, y),
       PARAMS(reduction, is_float, size, stride, n0, n1, n2, n3, n4, n5, n6, n7, s0, s1, s2, s3, s4, s5, s6, s7)) {
  const int64_t* numbers = reinterpret_cast<const int64_t*>(&p) + 4;
  const Elements elements{in<int32_t>(a.indices), numbers, numbers + MOST_AXES, p.size, p.stride};
  check(elements.indices, elements.count(), p.size);
  with_reduction(p.reduction, p.is_float, [&](auto reduction, auto zero) {
    using T = decltype(zero);
    const T* updates = in<T>(a.updates);
    T* y = out<T>(a.y);
    elements.each(0, 0, 0, [=](int64_t number, int64_t place) {
      y[place] = combined<T>(reduction, y[place], updates[number]);
    });
  });
}

// y [outer, depth, inner] is `on` at [o, indices[o, i], i], else `off`; 4-byte elements. Nothing counts from the end.
KERNEL(one_hot, ARGS(indices, on, off, y), PARAMS(outer, depth, inner)) {
  const int32_t on = *in<int32_t>(a.on), off = *in<int32_t>(a.off);
  const int64_t block = p.depth * p.inner;
  pool.split(p.outer, ceil_div(GRAIN, larger<int64_t>(4 * block, 1)), [&](int64_t begin, int64_t end, int) {
    for (int64_t o = begin; o < end; ++o) {
      int32_t* y = out<int32_t>(a.y) + o * block;
      const int32_t* indices = in<int32_t>(a.indices) + o * p.inner;
      for (int64_t i = 0; i < block; ++i) y[i] = off;
      for (int64_t i = 0; i < p.inner; ++i)
        if (indices[i] >= 0 && indices[i] < p.depth) y[indices[i] * p.inner + i] = on;
    }
  });
}
