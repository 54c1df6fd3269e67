// Elementary functions on vectors of floats.
//
// The argument is reduced to a small interval, where a polynomial stands for the function (vmath_fits.h). Errors are in
// units in the last place (ulp), measured against float64 over the whole range by tests/runtime_ref/cpu/test_vmath.py.
// NaN stays NaN; infinities and zeros give the limits of the functions.
#pragma once
#include "simd.h"
#include "vmath_fits.h"

namespace mnnk {

// c[0] + c[1] x + c[2] x^2 ...: the even and the odd powers apart, which halves the time until the result is there.
template <int N> MNNK_INLINE vf polynomial(vf x, vf square, const float (&c)[N], float factor = 1.0f) {
  constexpr int even = (N - 1) / 2 * 2, odd = (N - 2) / 2 * 2 + 1;
  vf p = splat(c[even] * factor), q = splat(c[odd] * factor);
#pragma GCC unroll 16
  for (int i = even - 2; i >= 0; i -= 2) p = fma(p, square, splat(c[i] * factor));
#pragma GCC unroll 16
  for (int i = odd - 2; i > 0; i -= 2) q = fma(q, square, splat(c[i] * factor));
  return fma(q, x, p);
}
template <int N> MNNK_INLINE vf polynomial(vf x, const float (&c)[N], float factor = 1.0f) {
  return polynomial(x, x * x, c, factor);
}

MNNK_INLINE bool any(vi mask) {
  uint64_t words[lanes / 2], sum = 0;
  std::memcpy(words, &mask, sizeof words);
  for (uint64_t word : words) sum |= word;
  return sum != 0;
}

MNNK_INLINE vf copy_sign(vf size, vf sign) {
  return as_float((as_int(size) & splat_int(0x7fffffff)) | (as_int(sign) & splat_int(INT32_MIN)));
}

// A number this large has its ones in the last place: adding it rounds a small float to an integer (half to even), which
// then stands in the low bits of the sum.
constexpr float ROUNDER = 12582912.0f;  // 1.5 * 2^23

// x = n ln 2 + r, |r| <= ln 2 / 2, for |x| < 2^20; `shifted` is n + ROUNDER.
struct ExpParts {
  vf r, shifted;
};
constexpr float LN2_HIGH = 355.0f / 512.0f;  // few bits, so that its products with n are exact
constexpr float LN2_LOW = -2.12194440054690583e-4f;
MNNK_INLINE ExpParts exp_parts(vf x) {
  const vf shifted = fma(x, splat(1.44269504f), splat(ROUNDER));
  const vf n = shifted - splat(ROUNDER);
  return {fma(n, splat(-LN2_LOW), fma(n, splat(-LN2_HIGH), x)), shifted};
}
// 2^(n + by)
MNNK_INLINE vf power_of_2(vf shifted, int by) {
  return as_float(plus(shift_up(as_int(shifted), 23), splat_int((127 + by) << 23)));
}
// factor e^r
MNNK_INLINE vf exp_of_rest(vf r, float factor = 1.0f) {
  const vf square = r * r;
  return fma(square, polynomial(r, square, EXP_FIT, factor), fma(r, splat(factor), splat(factor)));
}

// e^x. At most 2 ulp, also where the result is below the normal range: there it is rounded once.
MNNK_INLINE vf exp(vf x) {
  const ExpParts e = exp_parts(min(splat(89.0f), max(splat(-104.0f), x)));
  const vi n = minus(as_int(e.shifted), as_int(splat(ROUNDER))), half = n >> 1, rest = minus(n, half);
  const auto power = [](vi exponent) { return as_float(shift_up(plus(exponent, splat_int(127)), 23)); };
  return exp_of_rest(e.r) * power(half) * power(rest);
}

// e^x, but 0 where that is less than 2^-125: cheaper. At most 2 ulp elsewhere.
MNNK_INLINE vf exp_flushed(vf x) {
  const ExpParts e = exp_parts(min(splat(89.0f), max(splat(-87.3f), x)));
  return exp_of_rest(e.r, 2.0f) * power_of_2(e.shifted, -1);  // 2^n itself overflows before e^x does
}

// e^x for x <= 0, but 0 below -87.7. At most 2 ulp of normal numbers.
MNNK_INLINE vf exp_negative(vf x) {
  const ExpParts e = exp_parts(max(splat(-88.0f), x));
  return exp_of_rest(e.r) * power_of_2(e.shifted, 0);
}

// As exp_flushed, with a relative error up to 1.3e-7 + 1.3e-8 |x| (without fused arithmetic 1e-7 |x|): cheaper still,
// for sums with 1.
MNNK_INLINE vf exp_loose(vf v) {
  const vf x = min(splat(89.0f), max(splat(-87.3f), v));
  const vf shifted = fma(x, splat(1.44269504f), splat(ROUNDER));
  const vf n = shifted - splat(ROUNDER);
  return polynomial(fma(x, splat(1.44269504f), -n), EXP2_FIT, 2.0f) * power_of_2(shifted, -1);
}

// e^x - 1. At most 2 ulp.
MNNK_INLINE vf expm1(vf x) {
  const ExpParts e = exp_parts(min(splat(89.0f), max(splat(-80.0f), x)));
  const vf square = e.r * e.r, rest = fma(square, polynomial(e.r, square, EXP_FIT), e.r);
  const vf half = power_of_2(e.shifted, -1);
  const vf y = fma(rest, half, half - splat(0.5f));
  return y + y;
}

// The error is at most 1e-7, and relative to the result that of exp_loose.
MNNK_INLINE vf sigmoid(vf x) { return splat(1.0f) / (splat(1.0f) + exp_loose(-x)); }

// x sigmoid(x)
MNNK_INLINE vf silu(vf x) { return x / (splat(1.0f) + exp_loose(-x)); }

// At most 2 ulp: an odd polynomial for small x, else 1 - 2 / (e^2|x| + 1) with the sign of x.
MNNK_INLINE vf tanh(vf x) {
  const vf size = abs(x), s = x * x;
  const vf near = fma(x * s, polynomial(s, TANH_FIT), x);
  const ExpParts e = exp_parts(min(splat(20.0f), size + size));
  const vf far = splat(1.0f) - splat(2.0f) / fma(exp_of_rest(e.r), power_of_2(e.shifted, 0), splat(1.0f));
  return copy_sign(size < splat(0.6f) ? near : far, x);
}

// 2^x for -126 < x < 127.
MNNK_INLINE vf exp2_small(vf x) {
  const vf shifted = x + splat(ROUNDER);
  const vf p = polynomial(x - (shifted - splat(ROUNDER)), EXP2_FIT);
  return as_float(plus(as_int(p), shift_up(as_int(shifted), 23)));
}

// At most 2 ulp: an odd polynomial for small x, else 1 - 2^p(|x|) with the sign of x.
MNNK_INLINE vf erf(vf x) {
  const vf size = abs(x);
  const vf near = fma(x, polynomial(x * x, ERF_FIT), x);
  const vf far = splat(1.0f) - exp2_small(polynomial(min(splat(4.0f), size), ERFC_FIT));
  return size >= splat(0.8f) ? copy_sign(far, x) : near;  // NaN: near
}

// 0.5 x (1 + erf(x / sqrt 2)). The complement 1 - erf(|z|) is computed as a whole, so nothing cancels for negative x.
MNNK_INLINE vf gelu(vf x) {
  const vf z = abs(x) * splat(0.70710678f);
  const vf power = exp2_small(polynomial(z, GELU_FIT));
  const vf complement = as_float(as_int(power) & (z < splat(5.0f)));
  return splat(0.5f) * x * (x < vf{} ? complement : splat(2.0f) - complement);
}

// 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
MNNK_INLINE vf gelu_tanh(vf x) {
  const vf twice = x * fma(x * x, splat(2 * 0.79788456f * 0.044715f), splat(2 * 0.79788456f));
  return x / (splat(1.0f) + exp_loose(-twice));
}

// log(1 + f) + k ln 2 for f between sqrt(1/2) - 1 and sqrt(2) - 1.
MNNK_INLINE vf log_near(vf f, vf k) {
  const vf square = f * f;
  const vf y = fma(square * f, polynomial(f, square, LOG_FIT), k * splat(LN2_LOW));
  return fma(k, splat(LN2_HIGH), f + fma(splat(-0.5f), square, y));
}

// The natural logarithm: x = 2^k m with m between sqrt 1/2 and sqrt 2. At most 2 ulp.
MNNK_INLINE vf log(vf x) {
  const vi tiny = x < splat(1.17549435e-38f);
  const vf scaled = tiny ? x * splat(8388608.0f) : x;
  const vi k = minus(as_int(scaled), as_int(splat(0.70710678f))) >> 23;
  const vf f = as_float(minus(as_int(scaled), shift_up(k, 23))) - splat(1.0f);
  vf y = log_near(f, to_float(k - (tiny & splat_int(23))));
  y = x < splat(INFINITY) ? y : x;  // infinity and NaN
  return x > vf{} ? y : (x == vf{} ? splat(-INFINITY) : (x < vf{} ? splat(NAN) : x));
}

// log(1 + x): what 1 + x loses of x is added again. At most 3 ulp.
MNNK_INLINE vf log1p(vf x) {
  const vf sum = splat(1.0f) + x;
  const vf lost = (x - (sum - splat(1.0f))) / sum;
  const vi ordinary = (sum > vf{}) & (sum < splat(INFINITY));
  const vf y = log(sum) + as_float(as_int(lost) & ordinary);
  return sum == splat(1.0f) ? x : y;
}

// log(1 + e^x) = max(x, 0) + log(1 + e), e = e^-|x| <= 1; for larger e 1 + e = 2 (1 + (e - 1) / 2).
MNNK_INLINE vf softplus(vf x) {
  const vf e = exp_negative(-abs(x));
  const vi large = e > splat(0.41421356f);
  const vf f = large ? fma(e, splat(0.5f), splat(-0.5f)) : e;
  return max(vf{}, x) + log_near(f, large ? splat(1.0f) : vf{});
}

// Sine and cosine: x = n pi/2 + r; three parts of pi/2, the first two with few bits, so that products with n are exact.
// 2 ulp of the larger of the two functions; large arguments go to the C library.
constexpr float TRIGONOMETRIC_MOST = 8192.0f;
template <bool COSINE> MNNK_INLINE vf sine_or_cosine(vf x) {
  const vf shifted = fma(x, splat(0.636619772f), splat(ROUNDER));
  const vf n = shifted - splat(ROUNDER);
  const vf r = fma(n, splat(-7.54979013e-8f), fma(n, splat(-4.83751297e-4f), fma(n, splat(-1.5703125f), x)));
  const vf s = r * r;
  const vf sine = fma(r * s, polynomial(s, SIN_FIT), r);
  const vf cosine = fma(s * s, polynomial(s, COS_FIT), fma(s, splat(-0.5f), splat(1.0f)));
  const vi quarter = plus(as_int(shifted), splat_int(COSINE ? 1 : 0));
  const vf y = (quarter & splat_int(1)) != vi{} ? cosine : sine;
  return as_float(as_int(y) ^ shift_up(quarter & splat_int(2), 30));
}
MNNK_INLINE vf sin(vf x) {
  vf y = sine_or_cosine<false>(x);
  if (any(abs(x) > splat(TRIGONOMETRIC_MOST)))
    for (int i = 0; i < lanes; ++i) y[i] = std::sin(x[i]);
  return y;
}
MNNK_INLINE vf cos(vf x) {
  vf y = sine_or_cosine<true>(x);
  if (any(abs(x) > splat(TRIGONOMETRIC_MOST)))
    for (int i = 0; i < lanes; ++i) y[i] = std::cos(x[i]);
  return y;
}

}  // namespace mnnk
