// What the kernels on 8-bit codes share: the layout of maps of codes, and how numbers become codes.
//
// Maps of codes are stored with their channels last: [N, H, W, round_up(C, lanes)], so that the channels of a pixel are
// whole vectors. What stands in the places beyond C is of no consequence.
//
// A number x becomes clamp(round(x)), halves away from zero: x +- 0.5 in float32, truncated. NaN becomes the highest
// code, as in MNN.
#pragma once
#include "kernel.h"
#include "simd.h"

namespace mnnk {

inline int64_t whole_lanes(int64_t channels) { return round_up(channels, lanes); }

// As many bytes as there are lanes, as numbers; and back, for numbers that are codes.
#if MNNK_LANES == 16 && defined(__AVX512F__)
MNNK_INLINE vi widen_codes(const int8_t* p) {
  return (vi)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
MNNK_INLINE void store_codes(int8_t* p, vi x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)x));
}
#elif MNNK_LANES == 8 && defined(__AVX2__)
MNNK_INLINE vi widen_codes(const int8_t* p) {
  return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
MNNK_INLINE void store_codes(int8_t* p, vi x) {
  const __m256i v = (__m256i)x;
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
#elif MNNK_LANES == 4 && defined(__SSE2__)
MNNK_INLINE vi widen_codes(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  __m128i x = _mm_cvtsi32_si128(four);
  x = _mm_unpacklo_epi8(x, x);
  return (vi)_mm_srai_epi32(_mm_unpacklo_epi16(x, x), 24);
}
MNNK_INLINE void store_codes(int8_t* p, vi x) {
  const __m128i words = _mm_packs_epi32((__m128i)x, (__m128i)x);
  const int32_t four = _mm_cvtsi128_si32(_mm_packs_epi16(words, words));
  std::memcpy(p, &four, sizeof four);
}
#else
typedef int8_t vb __attribute__((vector_size(MNNK_LANES)));
MNNK_INLINE vi widen_codes(const int8_t* p) {
  vb bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, vi);
}
MNNK_INLINE void store_codes(int8_t* p, vi x) {
  const vb bytes = __builtin_convertvector(x, vb);
  std::memcpy(p, &bytes, sizeof bytes);
}
#endif
MNNK_INLINE vf load_codes(const int8_t* p) { return to_float(widen_codes(p)); }

struct Rounding {
  vf low, high;
  Rounding(int64_t low_, int64_t high_) : low(splat(static_cast<float>(low_))), high(splat(static_cast<float>(high_))) {}
  MNNK_INLINE vi operator()(vf x) const {
    const vi sign = as_int(x) & splat_int(INT32_MIN);
    const vf moved = x + as_float(sign | as_int(splat(0.5f)));
    return truncate_to_int(max(low, min(moved, high)));  // the order decides what becomes of NaN
  }
};

}  // namespace mnnk
