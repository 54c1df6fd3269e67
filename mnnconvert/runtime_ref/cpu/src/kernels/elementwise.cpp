// Placeholder family: copies.
#include "kernel.h"
#include "simd.h"

using namespace mnnk;

KERNEL(copy_bytes, ARGS(x, y), PARAMS(bytes)) {
  const char* x = in<char>(a.x);
  char* y = out<char>(a.y);
  pool.split(p.bytes, 1 << 16, [&](int64_t begin, int64_t end, int) {
    std::memcpy(y + begin, x + begin, static_cast<size_t>(end - begin));
  });
}
