// The SIMD layer: vectors of `lanes` floats or 32-bit integers, as wide as the level that is being compiled.
//
// Vectors are those of the compiler (GCC and Clang vector extensions): + - * / and comparisons work on them, a
// comparison gives a mask of vi (-1 or 0 per lane), and `mask ? a : b` chooses lane by lane. What these lack stands here.
//
//   level      lanes  compiled for
//   portable     4    the baseline of the platform: SSE2 on x86-64, NEON on ARM
//   avx2         8    AVX2 + FMA + F16C
//   avx512      16    AVX-512 F, BW, DQ, VL;  avx512vnni: with the int8 dot product
//   wide        16    the 16-lane code on AVX2 registers: slow, for tests on machines without AVX-512
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef MNNK_LANES
#error "the build defines MNNK_LANES"
#endif

#define MNNK_INLINE inline __attribute__((always_inline))

namespace mnnk {

constexpr int lanes = MNNK_LANES;

typedef float vf __attribute__((vector_size(MNNK_LANES * 4)));
typedef int32_t vi __attribute__((vector_size(MNNK_LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(MNNK_LANES * 4)));

MNNK_INLINE vf load(const float* p) { vf v; std::memcpy(&v, p, sizeof v); return v; }
MNNK_INLINE vi load(const int32_t* p) { vi v; std::memcpy(&v, p, sizeof v); return v; }
MNNK_INLINE void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
MNNK_INLINE void store(int32_t* p, vi v) { std::memcpy(p, &v, sizeof v); }
MNNK_INLINE vi as_int(vf v) { return reinterpret_cast<vi>(v); }
MNNK_INLINE vf as_float(vi v) { return reinterpret_cast<vf>(v); }

// Bits are counted and moved without a sign, because only that may wrap.
MNNK_INLINE vu as_unsigned(vi v) { return reinterpret_cast<vu>(v); }
MNNK_INLINE vi as_signed(vu v) { return reinterpret_cast<vi>(v); }
MNNK_INLINE vi plus(vi a, vi b) { return as_signed(as_unsigned(a) + as_unsigned(b)); }
MNNK_INLINE vi minus(vi a, vi b) { return as_signed(as_unsigned(a) - as_unsigned(b)); }
MNNK_INLINE vi shift_up(vi v, int bits) { return as_signed(as_unsigned(v) << bits); }

// The first `count` (0..lanes) floats; the other lanes are `rest`.
MNNK_INLINE vf load_part(const float* p, int64_t count, float rest = 0.0f) {
  alignas(64) float buffer[lanes];
  for (int i = 0; i < lanes; ++i) buffer[i] = rest;
  std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(float));
  return load(buffer);
}
MNNK_INLINE void store_part(float* p, vf v, int64_t count) {
  alignas(64) float buffer[lanes];
  store(buffer, v);
  std::memcpy(p, buffer, static_cast<size_t>(count) * sizeof(float));
}

#if MNNK_LANES == 16 && defined(__AVX512F__)
// The forms with a mask, because GCC 12 warns of its own headers in those without.
MNNK_INLINE vf splat(float x) { return (vf)_mm512_set1_ps(x); }
MNNK_INLINE vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
MNNK_INLINE vi round_to_int(vf v) { return (vi)_mm512_maskz_cvtps_epi32(0xffff, (__m512)v); }  // half to even
MNNK_INLINE vf sqrt(vf v) { return (vf)_mm512_maskz_sqrt_ps(0xffff, (__m512)v); }
MNNK_INLINE vf round_even(vf v) { return (vf)_mm512_maskz_roundscale_ps(0xffff, (__m512)v, 8); }
MNNK_INLINE vf floor(vf v) { return (vf)_mm512_maskz_roundscale_ps(0xffff, (__m512)v, 9); }
MNNK_INLINE vf ceil(vf v) { return (vf)_mm512_maskz_roundscale_ps(0xffff, (__m512)v, 10); }
MNNK_INLINE vf trunc(vf v) { return (vf)_mm512_maskz_roundscale_ps(0xffff, (__m512)v, 11); }
MNNK_INLINE vf gather(const float* p, vi at) {
  return (vf)_mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xffff, (__m512i)at, p, 4);  // a source: GCC 12 would warn
}
#elif MNNK_LANES == 8 && defined(__AVX2__)
MNNK_INLINE vf splat(float x) { return (vf)_mm256_set1_ps(x); }
MNNK_INLINE vf fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
MNNK_INLINE vi round_to_int(vf v) { return (vi)_mm256_cvtps_epi32((__m256)v); }
MNNK_INLINE vf sqrt(vf v) { return (vf)_mm256_sqrt_ps((__m256)v); }
MNNK_INLINE vf round_even(vf v) { return (vf)_mm256_round_ps((__m256)v, 8); }
MNNK_INLINE vf floor(vf v) { return (vf)_mm256_round_ps((__m256)v, 9); }
MNNK_INLINE vf ceil(vf v) { return (vf)_mm256_round_ps((__m256)v, 10); }
MNNK_INLINE vf trunc(vf v) { return (vf)_mm256_round_ps((__m256)v, 11); }
MNNK_INLINE vf gather(const float* p, vi at) { return (vf)_mm256_i32gather_ps(p, (__m256i)at, 4); }
#elif MNNK_LANES == 4 && defined(__aarch64__)
MNNK_INLINE vf splat(float x) { return (vf)vdupq_n_f32(x); }
MNNK_INLINE vf fma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
MNNK_INLINE vi round_to_int(vf v) { return (vi)vcvtnq_s32_f32((float32x4_t)v); }
MNNK_INLINE vf sqrt(vf v) { return (vf)vsqrtq_f32((float32x4_t)v); }
MNNK_INLINE vf round_even(vf v) { return (vf)vrndnq_f32((float32x4_t)v); }
MNNK_INLINE vf floor(vf v) { return (vf)vrndmq_f32((float32x4_t)v); }
MNNK_INLINE vf ceil(vf v) { return (vf)vrndpq_f32((float32x4_t)v); }
MNNK_INLINE vf trunc(vf v) { return (vf)vrndq_f32((float32x4_t)v); }
#define MNNK_PLAIN_GATHER
#else
// Lane by lane: what the compiler makes of it is good enough for the portable level, and beside the point for "wide".
template <class F> MNNK_INLINE vf each_lane(vf v, F f) {
  for (int i = 0; i < lanes; ++i) v[i] = f(v[i]);
  return v;
}
MNNK_INLINE vf splat(float x) {
  vf v;
  for (int i = 0; i < lanes; ++i) v[i] = x;
  return v;
}
#if defined(__FMA__)
MNNK_INLINE vf fma(vf a, vf b, vf c) {
  for (int i = 0; i < lanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}
#else
MNNK_INLINE vf fma(vf a, vf b, vf c) { return a * b + c; }  // rounds twice: there is no fused instruction
#endif
MNNK_INLINE vi round_to_int(vf v) {
  vi r;
  for (int i = 0; i < lanes; ++i) r[i] = static_cast<int32_t>(std::nearbyintf(v[i]));
  return r;
}
MNNK_INLINE vf sqrt(vf v) { return each_lane(v, [](float x) { return std::sqrt(x); }); }
MNNK_INLINE vf round_even(vf v) { return each_lane(v, [](float x) { return std::nearbyint(x); }); }
MNNK_INLINE vf floor(vf v) { return each_lane(v, [](float x) { return std::floor(x); }); }
MNNK_INLINE vf ceil(vf v) { return each_lane(v, [](float x) { return std::ceil(x); }); }
MNNK_INLINE vf trunc(vf v) { return each_lane(v, [](float x) { return std::trunc(x); }); }
#define MNNK_PLAIN_GATHER
#endif

#ifdef MNNK_PLAIN_GATHER
#undef MNNK_PLAIN_GATHER
MNNK_INLINE vf gather(const float* p, vi at) {
  vf v;
  for (int i = 0; i < lanes; ++i) v[i] = p[at[i]];
  return v;
}
#endif

MNNK_INLINE vi splat_int(int32_t x) { return vi{} + x; }  // a loop over lanes would become a chain of inserts
MNNK_INLINE vf to_float(vi v) { return __builtin_convertvector(v, vf); }
MNNK_INLINE vi truncate_to_int(vf v) { return __builtin_convertvector(v, vi); }  // undefined out of range

// NaN in `b` stays (as numpy's maximum(0, NaN) does): the order of operands matters.
#if MNNK_LANES == 16 && defined(__AVX512F__)
MNNK_INLINE vf max(vf a, vf b) { return (vf)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b); }
MNNK_INLINE vf min(vf a, vf b) { return (vf)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b); }
#elif MNNK_LANES == 8 && defined(__AVX2__)
MNNK_INLINE vf max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
MNNK_INLINE vf min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#elif MNNK_LANES == 4 && defined(__SSE2__)
MNNK_INLINE vf max(vf a, vf b) { return (vf)_mm_max_ps((__m128)a, (__m128)b); }
MNNK_INLINE vf min(vf a, vf b) { return (vf)_mm_min_ps((__m128)a, (__m128)b); }
#else
MNNK_INLINE vf max(vf a, vf b) { return a > b ? a : b; }
MNNK_INLINE vf min(vf a, vf b) { return a < b ? a : b; }
#endif
MNNK_INLINE vf abs(vf v) { return as_float(as_int(v) & splat_int(0x7fffffff)); }

// Sums and extremes over lanes, always in the same order: pairs at distance lanes/2, lanes/4 ... 1.
template <class F> MNNK_INLINE float fold_lanes(vf v, F f) {
  alignas(64) float x[lanes];
  store(x, v);
  for (int half = lanes / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) x[i] = f(x[i], x[i + half]);
  return x[0];
}
MNNK_INLINE float sum(vf v) { return fold_lanes(v, [](float a, float b) { return a + b; }); }
MNNK_INLINE float max_lane(vf v) { return fold_lanes(v, [](float a, float b) { return a > b ? a : b; }); }
MNNK_INLINE float min_lane(vf v) { return fold_lanes(v, [](float a, float b) { return a < b ? a : b; }); }

}  // namespace mnnk
