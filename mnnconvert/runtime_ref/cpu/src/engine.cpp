// The interface to Python: plain C, so that one library serves every Python version.
//
// A program is a flat list of instructions. Each names a kernel, the slots of its tensors and its parameters; `slots`
// holds a pointer per tensor. Nothing is allocated while a program runs.
#include <chrono>
#include <cstdint>
#include <new>

#include "kernel.h"
#include "simd.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(_WIN32)
#define MNNK_API extern "C" __declspec(dllexport)
#else
#define MNNK_API extern "C" __attribute__((visibility("default")))
#endif

namespace mnnk {

Entry*& registry() {
  static Entry* first = nullptr;
  return first;
}

namespace {

constexpr int MOST_ARGS = 64;

struct Instruction {
  const Entry* kernel;
  int64_t args_at, args_count, params_at, scalars_at;
};

}  // namespace
}  // namespace mnnk

using mnnk::Entry;

MNNK_API int mnnk_abi() { return 1; }
MNNK_API int mnnk_lanes() { return mnnk::lanes; }

// Whether the machine can run libraries built for a level; asked of the portable library.
MNNK_API int mnnk_supports([[maybe_unused]] const char* level) {
  const auto is = [level](const char* name) { return std::strcmp(level, name) == 0; };
  if (is("portable")) return 1;
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (is("avx2") || is("wide")) return avx2;
  if (is("avx512")) return avx512;
  if (is("avx512vnni")) return avx512 && __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__) && defined(__linux__)
  if (is("dotprod")) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
  if (is("dotprod")) return 1;  // every Mac with such a processor
#endif
  return 0;
}

MNNK_API const Entry* mnnk_first() { return mnnk::registry(); }
MNNK_API const Entry* mnnk_next(const Entry* entry) { return entry->next; }
MNNK_API const char* mnnk_name(const Entry* entry) { return entry->name; }
MNNK_API const char* mnnk_signature(const Entry* entry, int part) {
  return part == 0 ? entry->args : part == 1 ? entry->params : entry->scalars;
}

MNNK_API mnnk::Pool* mnnk_pool_new(int threads) {
  try {
    return new mnnk::Pool(threads);
  } catch (...) {
    return nullptr;
  }
}
MNNK_API void mnnk_pool_free(mnnk::Pool* pool) { delete pool; }

// Runs `count` instructions; `seconds`, if given, receives the time of each. Returns 0; or, where instruction i ended it,
// 2 i + 1 when memory ran out and 2 i + 2 when an index was beyond its axis.
MNNK_API int64_t mnnk_run(mnnk::Pool* pool, const mnnk::Instruction* program, int64_t count, const int64_t* arg_slots,
                      const int64_t* params, const float* scalars, void* const* slots, double* seconds) {
  using clock = std::chrono::steady_clock;
  void* args[mnnk::MOST_ARGS];
  auto before = seconds ? clock::now() : clock::time_point{};
  int64_t i = 0;
  try {
    for (; i < count; ++i) {
      const auto& each = program[i];
      for (int64_t j = 0; j < each.args_count; ++j) args[j] = slots[arg_slots[each.args_at + j]];
      each.kernel->function({args, params + each.params_at, scalars + each.scalars_at, *pool});
      if (seconds) {
        const auto now = clock::now();
        seconds[i] = std::chrono::duration<double>(now - before).count();
        before = now;
      }
    }
  } catch (const std::bad_alloc&) {
    return 2 * i + 1;
  } catch (const mnnk::BadIndex&) {
    return 2 * i + 2;
  }
  return 0;
}
