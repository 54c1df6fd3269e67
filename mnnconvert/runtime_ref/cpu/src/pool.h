// Threads of one session. Work is split in contiguous parts, one per thread; who waits spins briefly, then sleeps.
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

  // f(begin, end, thread) on contiguous parts of 0..count, each at least `grain` long (but for the last).
  template <class F> void split(int64_t count, int64_t grain, const F& f) {
    const int64_t parts = count < 2 * grain ? 1 : (count / grain < threads_ ? count / grain : threads_);
    if (count <= 0) return;
    if (parts <= 1) return f(int64_t{0}, count, 0);
    const auto part = [&](int thread) {
      if (thread >= parts) return;
      const int64_t begin = count * thread / parts, end = count * (thread + 1) / parts;
      f(begin, end, thread);
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
  using Part = void (*)(const void*, int);
  void run(Part part, const void* context);
  void work(int thread);
  bool spin(uint32_t seen) const;

  struct Scratch {
    void* data = nullptr;
    size_t size = 0;
  };

  const int threads_;
  std::vector<Scratch> scratch_;
  std::vector<std::thread> workers_;
  Part part_ = nullptr;
  const void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> turn_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace mnnk
