#include "pool.h"

#include <chrono>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace mnnk {
namespace {

constexpr auto SPIN = std::chrono::microseconds(50);  // a kernel is rarely longer away; a sleep costs about as much
constexpr size_t PAGE = size_t{2} << 20;  // a huge one: in small ones, blocks that fit a cache may compete in it
constexpr std::align_val_t ALIGNMENT{PAGE};

// A door: 32 bits of the job's number, one that is set while threads may enter, and how many have.
constexpr int JOB = 32;
constexpr uint64_t OPEN = uint64_t{1} << 31, ENTERED = OPEN - 1;

constexpr size_t rounded(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int threads) : threads_(threads < 1 ? 1 : threads), scratch_(static_cast<size_t>(threads_)) {
  for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { work(i); });
}

Pool::~Pool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    door_.fetch_add(uint64_t{1} << JOB);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
  for (auto& each : scratch_) ::operator delete(each.data, ALIGNMENT);
}

void* Pool::scratch(int thread, size_t bytes) {
  Scratch& own = scratch_[static_cast<size_t>(thread)];
  if (own.size < bytes) {
    ::operator delete(own.data, ALIGNMENT);
    own.data = nullptr;
    own.size = 0;
    own.data = ::operator new(rounded(bytes), ALIGNMENT);
    own.size = rounded(bytes);
#if defined(__linux__)
    madvise(own.data, own.size, MADV_HUGEPAGE);  // a wish; the kernel may know nothing of it
#endif
  }
  return own.data;
}

void Pool::run(Part part, const void* context) {
  part_ = part;
  context_ = context;
  left_.store(0, std::memory_order_relaxed);
  const uint64_t job = (door_.load(std::memory_order_relaxed) >> JOB) + 1;
  door_.store(job << JOB | OPEN);  // publishes the job
  if (sleeping_.load() > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  bool failed = false;
  try {
    part(context, 0);
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  const uint64_t entered = door_.fetch_and(~OPEN) & ENTERED;
  for (int turns = 0; left_.load(std::memory_order_acquire) < entered; ++turns) {
    if (turns < 2000) relax(); else std::this_thread::yield();
  }
  if (failed_.exchange(false) || failed) throw std::bad_alloc();
}

// Whether a new job came while spinning.
bool Pool::spin(uint64_t seen) const {
  const auto until = std::chrono::steady_clock::now() + SPIN;
  do {
    for (int i = 0; i < 64; ++i) {
      if (door_.load(std::memory_order_acquire) >> JOB != seen) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

void Pool::work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    if (!spin(seen)) {
      std::unique_lock<std::mutex> lock(mutex_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return door_.load() >> JOB != seen; });
      sleeping_.fetch_sub(1);
    }
    uint64_t door = door_.load(std::memory_order_acquire);
    while (door & OPEN && !door_.compare_exchange_weak(door, door + 1, std::memory_order_acquire)) {}
    seen = door >> JOB;
    if (stop_) return;
    if (!(door & OPEN)) continue;
    try {
      part_(context_, thread);
    } catch (const std::bad_alloc&) {
      failed_ = true;
    }
    left_.fetch_add(1, std::memory_order_release);
  }
}

}  // namespace mnnk
