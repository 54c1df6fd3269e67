// What a kernel is, and how it is declared.
//
//     KERNEL(scale_f32, ARGS(x, y), PARAMS(count), SCALARS(factor)) {
//       const float* x = in(a.x);
//       float* y = out(a.y);
//       pool.split(p.count, 4096, [&](int64_t begin, int64_t end, int) {
//         for (int64_t i = begin; i < end; ++i) y[i] = x[i] * s.factor;
//       });
//     }
//
// declares a kernel with two tensors, one integer and one float parameter, and registers it under its name. The names
// of arguments and parameters are known to Python (`mnnk_signature`), which passes them by keyword: the declaration
// is the only place where their order is written. A tensor that may be absent is a null pointer.
//
// Rules for all kernels: read and write only what the parameters say; results do not depend on the number of threads
// (every element is computed by the same operations in the same order whatever the split); no memory but
// `pool.scratch`; NaN and infinities go where IEEE arithmetic sends them.
#pragma once
#include <cstdint>
#include <cstring>

#include "pool.h"

namespace mnnk {

using Pointer = void*;  // so that `Pointer x, y` declares two

struct Call {
  void* const* args;
  const int64_t* params;
  const float* scalars;
  Pool& pool;
};

// Thrown by a kernel, on the thread that called it, where an index of its data is beyond its axis.
struct BadIndex {};

struct Entry {
  const char* name;
  void (*function)(const Call&);
  const char* args;     // names, separated by ", "
  const char* params;
  const char* scalars;
  Entry* next;
};

Entry*& registry();

struct Registrar {
  explicit Registrar(Entry& entry) {
    entry.next = registry();
    registry() = &entry;
  }
};

inline const float* in(const void* p) { return static_cast<const float*>(p); }
inline float* out(void* p) { return static_cast<float*>(p); }
template <class T> const T* in(const void* p) { return static_cast<const T*>(p); }
template <class T> T* out(void* p) { return static_cast<T*>(p); }

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
template <class T> constexpr T smaller(T a, T b) { return b < a ? b : a; }
template <class T> constexpr T larger(T a, T b) { return a < b ? b : a; }

}  // namespace mnnk

#define ARGS(...) MNNK_FIELDS(__VA_ARGS__)
#define PARAMS(...) MNNK_FIELDS(__VA_ARGS__)
#define SCALARS(...) MNNK_FIELDS(__VA_ARGS__)
#define MNNK_FIELDS(...) (__VA_ARGS__)
#define MNNK_UNWRAP(...) __VA_ARGS__
#define MNNK_TEXT(...) #__VA_ARGS__
#define MNNK_NAMES(wrapped) MNNK_TEXT wrapped

#define KERNEL(name, args_, params_, ...) MNNK_KERNEL(name, args_, params_, MNNK_SCALARS_OR_NONE(__VA_ARGS__))
#define MNNK_SCALARS_OR_NONE(...) MNNK_FIRST(__VA_ARGS__ __VA_OPT__(, ) (none))
#define MNNK_FIRST(first, ...) first
#define MNNK_KERNEL(name, args_, params_, scalars_)                                                                    \
  namespace {                                                                                                          \
  struct name##_args { ::mnnk::Pointer MNNK_UNWRAP args_; };                                                           \
  struct name##_params { int64_t MNNK_UNWRAP params_; };                                                               \
  struct name##_scalars { float MNNK_UNWRAP scalars_; };                                                               \
  }                                                                                                                    \
  static void name##_run(const name##_args& a, const name##_params& p, const name##_scalars& s, ::mnnk::Pool& pool);   \
  namespace {                                                                                                          \
  ::mnnk::Entry name##_entry{#name,                                                                                    \
                             [](const ::mnnk::Call& c) {                                                               \
                               name##_args a;                                                                          \
                               name##_params p;                                                                        \
                               name##_scalars s{};                                                                     \
                               std::memcpy(&a, c.args, sizeof a);                                                      \
                               std::memcpy(&p, c.params, sizeof p);                                                    \
                               if (c.scalars) std::memcpy(&s, c.scalars, sizeof s);                                    \
                               name##_run(a, p, s, c.pool);                                                            \
                             },                                                                                        \
                             MNNK_NAMES(args_), MNNK_NAMES(params_), MNNK_NAMES(scalars_), nullptr};                   \
  ::mnnk::Registrar name##_registrar{name##_entry};                                                                    \
  }                                                                                                                    \
  static void name##_run([[maybe_unused]] const name##_args& a, [[maybe_unused]] const name##_params& p,               \
                  [[maybe_unused]] const name##_scalars& s, [[maybe_unused]] ::mnnk::Pool& pool)
