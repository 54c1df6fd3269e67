// Dot products of unsigned codes (weights) and signed codes (activations), four at a time.
//
// Every lane of a vector of weights holds four codes of one row, a byte each; four activations are spread to all lanes.
// A level has a way for codes of 4 bits (0..15) and one for 8 bits (0..255). All are exact, so results are equal.
//
//   level           4 bits                            8 bits
//   avx512vnni      vpdpbusd                          vpdpbusd
//   avx512, avx2    vpmaddubsw: 2 products of at      vpmaddwd on bytes widened to 16 bits: 2 products of
//                   most 15 * 127 fit into 16 bits    255 * 127 do not fit into 16
//   SSE2            vpmaddwd                          vpmaddwd
//   ARM dotprod     sdot                              sdot on w - 128
//   others          32-bit products                   32-bit products
//
// What a way consists of:
//
//   Activation       the type that an activation (-127..127) is stored as
//   place(i)         where activation i of four is stored
//   Four, spread(p)  four stored activations, in every lane
//   step(s, w, x)    s + w . x; s is a partial sum, which has room for `steps` of them (0: for any number)
//   whole(s)         a partial sum as one 32-bit number per lane
//   zero             step takes w for w - zero
#pragma once
#include "simd.h"

namespace mnnk {

MNNK_INLINE vi spread_word(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return vi{} + word;
}

// Keeps the compiler from adding products to each other first, which takes more registers than there are.
#if defined(__x86_64__)
MNNK_INLINE vi in_order(vi sum) {
  asm("" : "+v"(sum));
  return sum;
}
#endif

// Pairs of 16-bit products, summed to 32 bits; pairs of products unsigned byte * signed byte, summed to 16 bits.
#if MNNK_LANES == 16 && defined(__AVX512BW__)
#define MNNK_HAS_PAIRS
MNNK_INLINE vi sum_pairs(vi a, vi b) { return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b); }
MNNK_INLINE vi sum_byte_pairs(vi a, vi b) { return (vi)_mm512_maddubs_epi16((__m512i)a, (__m512i)b); }
MNNK_INLINE vi add_words(vi a, vi b) { return (vi)_mm512_add_epi16((__m512i)a, (__m512i)b); }
#elif MNNK_LANES == 8 && defined(__AVX2__)
#define MNNK_HAS_PAIRS
MNNK_INLINE vi sum_pairs(vi a, vi b) { return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
MNNK_INLINE vi sum_byte_pairs(vi a, vi b) { return (vi)_mm256_maddubs_epi16((__m256i)a, (__m256i)b); }
MNNK_INLINE vi add_words(vi a, vi b) { return (vi)_mm256_add_epi16((__m256i)a, (__m256i)b); }
#elif MNNK_LANES == 4 && defined(__SSE2__)
#define MNNK_HAS_PAIRS
MNNK_INLINE vi sum_pairs(vi a, vi b) { return (vi)_mm_madd_epi16((__m128i)a, (__m128i)b); }
#endif

#if MNNK_LANES == 16 && defined(__AVX512VNNI__)
struct ByteDot {
  using Activation = int8_t;
  using Four = vi;
  static constexpr int steps = 0, zero = 0;
  static constexpr int place(int i) { return i; }
  static MNNK_INLINE Four spread(const Activation* p) { return spread_word(p); }
  static MNNK_INLINE vi step(vi s, vi w, Four x) {
    return (vi)_mm512_dpbusd_epi32((__m512i)s, (__m512i)w, (__m512i)x);
  }
  static MNNK_INLINE vi whole(vi s) { return s; }
};
using Dot4 = ByteDot;
using Dot8 = ByteDot;
#elif defined(MNNK_HAS_PAIRS)
struct WordDot {
  using Activation = int16_t;
  struct Four {
    vi even, odd;
  };
  static constexpr int steps = 0, zero = 0;
  static constexpr int place(int i) { return (i >> 1) + 2 * (i & 1); }  // 0 2 1 3, as masks and shifts take codes apart
  static MNNK_INLINE Four spread(const Activation* p) {
    return {spread_word(p), spread_word(p + 2)};
  }
  static MNNK_INLINE vi step(vi s, vi w, Four x) {
    const vi low = splat_int(0x00ff00ff);
    s = in_order(s + sum_pairs(w & low, x.even));
    return in_order(s + sum_pairs((w >> 8) & low, x.odd));
  }
  static MNNK_INLINE vi whole(vi s) { return s; }
};
using Dot8 = WordDot;
#if MNNK_LANES == 4
using Dot4 = WordDot;
#else
struct ByteDot {
  using Activation = int8_t;
  using Four = vi;
  static constexpr int steps = 8, zero = 0;  // 8 * 2 * 15 * 127 < 2^15
  static constexpr int place(int i) { return i; }
  static MNNK_INLINE Four spread(const Activation* p) { return spread_word(p); }
  static MNNK_INLINE vi step(vi s, vi w, Four x) { return in_order(add_words(s, sum_byte_pairs(w, x))); }
  static MNNK_INLINE vi whole(vi s) { return sum_pairs(s, splat_int(0x00010001)); }
};
using Dot4 = ByteDot;
#endif
#elif MNNK_LANES == 4 && defined(__ARM_FEATURE_DOTPROD)
template <int zero_> struct SignedDot {
  using Activation = int8_t;
  using Four = vi;
  static constexpr int steps = 0, zero = zero_;
  static constexpr int place(int i) { return i; }
  static MNNK_INLINE Four spread(const Activation* p) { return spread_word(p); }
  static MNNK_INLINE vi step(vi s, vi w, Four x) {
    if constexpr (zero != 0) w ^= splat_int(static_cast<int32_t>(0x80808080u));
    return (vi)vdotq_s32((int32x4_t)s, vreinterpretq_s8_s32((int32x4_t)w), vreinterpretq_s8_s32((int32x4_t)x));
  }
  static MNNK_INLINE vi whole(vi s) { return s; }
};
using Dot4 = SignedDot<0>;
using Dot8 = SignedDot<128>;
#else
struct PlainDot {
  using Activation = int8_t;
  struct Four {
    int32_t x[4];
  };
  static constexpr int steps = 0, zero = 0;
  static constexpr int place(int i) { return i; }
  static MNNK_INLINE Four spread(const Activation* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static MNNK_INLINE vi step(vi s, vi w, Four x) {
    for (int i = 0; i < 4; ++i) s += ((w >> (8 * i)) & splat_int(255)) * splat_int(x.x[i]);
    return s;
  }
  static MNNK_INLINE vi whole(vi s) { return s; }
};
using Dot4 = PlainDot;
using Dot8 = PlainDot;
#endif

// Dot products of signed codes on both sides, exact for all of them. A lane holds `group` weights of one row.
//
//   Activation       the type that an activation is stored as, with `offset` added to it
//   Weight           the type that a weight is stored as
//   step(s, w, x)    s + w . x, where every lane of x holds the same `group` activations
//
// PositiveDot is for activations of 0..127: then sums of two products fit into 16 bits.
#if MNNK_LANES == 16 && defined(__AVX512VNNI__)
struct CodeDot {
  using Activation = uint8_t;
  using Weight = int8_t;
  static constexpr int group = 4, offset = 128;
  static MNNK_INLINE vi step(vi s, vi w, vi x) { return (vi)_mm512_dpbusd_epi32((__m512i)s, (__m512i)x, (__m512i)w); }
};
#elif MNNK_LANES == 16 && !defined(__AVX512F__)
struct CodeDot {  // "wide" stands in for VNNI
  using Activation = uint8_t;
  using Weight = int8_t;
  static constexpr int group = 4, offset = 128;
  static MNNK_INLINE vi step(vi s, vi w, vi x) {
    for (int i = 0; i < 32; i += 8) s += (shift_up(w, 24 - i) >> 24) * ((x >> i) & splat_int(255));
    return s;
  }
};
#elif MNNK_LANES == 4 && defined(__ARM_FEATURE_DOTPROD)
struct CodeDot {
  using Activation = int8_t;
  using Weight = int8_t;
  static constexpr int group = 4, offset = 0;
  static MNNK_INLINE vi step(vi s, vi w, vi x) {
    return (vi)vdotq_s32((int32x4_t)s, vreinterpretq_s8_s32((int32x4_t)w), vreinterpretq_s8_s32((int32x4_t)x));
  }
};
#elif defined(MNNK_BYTE_DOT)
struct CodeDot {  // stands in for ARM, to record what is replayed there
  using Activation = int8_t;
  using Weight = int8_t;
  static constexpr int group = 4, offset = 0;
  static MNNK_INLINE vi step(vi s, vi w, vi x) {
    for (int i = 0; i < 32; i += 8) s += (shift_up(w, i) >> 24) * (shift_up(x, i) >> 24);
    return s;
  }
};
#else
struct CodeDot {
  using Activation = int16_t;
  using Weight = int16_t;
  static constexpr int group = 2, offset = 0;
  static MNNK_INLINE vi step(vi s, vi w, vi x) {
#if defined(MNNK_HAS_PAIRS)
    return in_order(s + sum_pairs(w, x));
#else
    return s + (shift_up(w, 16) >> 16) * (shift_up(x, 16) >> 16) + (w >> 16) * (x >> 16);
#endif
  }
};
#endif
#if defined(MNNK_HAS_PAIRS) && MNNK_LANES >= 8 && !defined(__AVX512VNNI__)
struct PositiveDot {
  using Activation = uint8_t;
  using Weight = int8_t;
  static constexpr int group = 4, offset = 0;
  static MNNK_INLINE vi step(vi s, vi w, vi x) {
    return in_order(s + sum_pairs(sum_byte_pairs(x, w), splat_int(0x00010001)));
  }
};
#else
using PositiveDot = CodeDot;
#endif
#undef MNNK_HAS_PAIRS

}  // namespace mnnk
