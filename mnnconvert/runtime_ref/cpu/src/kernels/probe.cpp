// What the machine can do at best, as a measure for the other kernels.
#include "kernel.h"
#include "simd.h"

using namespace mnnk;

// Fused products in registers, enough chains to hide their latency: 12 x `rounds` of them on vectors. Every chain goes
// v = v / 2 + y; y becomes the sum of the chains, which begin with 0, 1 .. 11.
KERNEL(peak_fma, ARGS(y), PARAMS(rounds)) {
  constexpr int CHAINS = 12;
  const vf added = load(out(a.y)), factor = splat(0.5f);
  vf chains[CHAINS];
#pragma GCC unroll 12
  for (int i = 0; i < CHAINS; ++i) chains[i] = splat(static_cast<float>(i));
  for (int64_t round = 0; round < p.rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; ++i) chains[i] = fma(chains[i], factor, added);
  }
  vf sum = chains[0];
#pragma GCC unroll 12
  for (int i = 1; i < CHAINS; ++i) sum += chains[i];
  store(out(a.y), sum);
}
