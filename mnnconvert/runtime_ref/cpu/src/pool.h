// Threads of one session. Work is split in contiguous parts, of which each thread takes its own first and then those
// whose threads are late: nobody waits for a thread that has not begun, because it sleeps or others have its processor.
// Who waits for work spins briefly, then sleeps.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace mnnk {

// Multiply-adds of a part that is worth a thread: some microseconds, as handing it over takes.
constexpr int64_t WORTH_A_THREAD = 1 << 18;

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // f(begin, end, thread) on contiguous parts of 0..count, each at least `grain` long (but for the last). A thread may
  // be given several parts, one after the other.
  template <class F> void split(int64_t count, int64_t grain, const F& f) {
    const int64_t most = threads_ < MOST_PARTS ? threads_ : MOST_PARTS;
    const int64_t parts = count < 2 * grain ? 1 : (count / grain < most ? count / grain : most);
    if (count <= 0) return;
    if (parts <= 1) return f(int64_t{0}, count, 0);
    std::atomic<uint64_t> taken{0};  // a bit per part
    const auto part = [&](int thread) {
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t at = (thread + i) % parts;
        const uint64_t bit = uint64_t{1} << at;
        if (taken.fetch_or(bit, std::memory_order_relaxed) & bit) continue;
        f(count * at / parts, count * (at + 1) / parts, thread);
      }
    };
    run([](const void* context, int thread) { (*static_cast<const decltype(part)*>(context))(thread); }, &part);
  }

  // f(i, thread) for every i of 0..count, handed out one by one: for tasks of unequal length. `work` is how many
  // multiply-adds they are in all.
  template <class F> void each(int64_t count, int64_t work, const F& f) {
    if (threads_ == 1 || count < 2 || work < 2 * WORTH_A_THREAD) {
      for (int64_t i = 0; i < count; ++i) f(i, 0);
      return;
    }
    std::atomic<int64_t> next{0};
    const auto part = [&](int thread) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(i, thread);
    };
    run([](const void* context, int thread) { (*static_cast<const decltype(part)*>(context))(thread); }, &part);
  }

  // Memory of one thread, aligned to 64 bytes, kept for the next call. Its content is undefined. A second request of
  // the same thread gives the same memory: ask once per kernel for all that it needs.
  // Throws std::bad_alloc; `run` hands that on from other threads.
  void* scratch(int thread, size_t bytes);
  float* scratch_f32(int thread, int64_t count) {
    return static_cast<float*>(scratch(thread, static_cast<size_t>(count) * sizeof(float)));
  }

 private:
  static constexpr int64_t MOST_PARTS = 64;
  using Part = void (*)(const void*, int);
  void run(Part part, const void* context);
  void work(int thread);
  bool spin(uint64_t seen) const;

  struct Scratch {
    void* data = nullptr;
    size_t size = 0;
  };

  const int threads_;
  std::vector<Scratch> scratch_;
  std::vector<std::thread> workers_;
  Part part_ = nullptr;
  const void* context_ = nullptr;
  // The number of the job, whether it still takes threads, and how many it took (pool.cpp).
  alignas(64) std::atomic<uint64_t> door_{0};
  alignas(64) std::atomic<uint64_t> left_{0};  // threads that are done with it
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace mnnk
