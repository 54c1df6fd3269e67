// Elementary functions on vectors of floats.
//
// Cephes-style range reduction with minimax polynomials; errors are in units in the last place (ulp), measured against
// float64 over the whole range by tests/cpu/test_vmath.py.
#pragma once
#include "simd.h"

namespace mnnk {

// e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2; e^r by its series to r^7 (minimax coefficients). At most 2 ulp;
// inf above 88.72, 0 below -103.97, NaN stays.
MNNK_INLINE vf exp(vf x) {
  const vf clamped = min(splat(89.0f), max(splat(-104.0f), x));
  const vf n = round_even(clamped * splat(1.44269504f));
  vf r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  vf p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  const vf y = fma(p * r, r, r) + splat(1.0f);
  // 2^n in two steps, so that results below the normal range are rounded, not flushed
  const vi whole = truncate_to_int(n == n ? n : vf{});
  const vi half = whole >> 1;
  const vf scale1 = as_float((half + splat_int(127)) << 23);
  const vf scale2 = as_float((whole - half + splat_int(127)) << 23);
  return y * scale1 * scale2;
}

MNNK_INLINE vf sigmoid(vf x) { return splat(1.0f) / (splat(1.0f) + exp(-x)); }

MNNK_INLINE vf tanh(vf x) {
  // small x: an odd polynomial, because 1 - e^-2x loses digits; else 1 - 2 / (e^2|x| + 1) with the sign of x
  const vf size = abs(x);
  const vf square = x * x;
  vf p = splat(-5.70498872745e-3f);
  p = fma(p, square, splat(2.06390887954e-2f));
  p = fma(p, square, splat(-5.37397155531e-2f));
  p = fma(p, square, splat(1.33314422036e-1f));
  p = fma(p, square, splat(-3.33332819422e-1f));
  const vf near = fma(p * square, x, x);
  const vf far = splat(1.0f) - splat(2.0f) / (exp(size + size) + splat(1.0f));
  const vf signed_far = as_float(as_int(far) | (as_int(x) & splat_int(static_cast<int32_t>(0x80000000u))));
  return size < splat(0.625f) ? near : (x == x ? signed_far : x);
}

MNNK_INLINE vf erf(vf x) {
  for (int i = 0; i < lanes; ++i) x[i] = std::erf(x[i]);
  return x;
}

}  // namespace mnnk
