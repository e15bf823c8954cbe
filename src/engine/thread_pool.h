// A small thread pool for data-parallel loops. The calling thread also takes pieces of the work, so no time is lost if a helper
// is late. Between calls, helpers spin for a short time and then sleep.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace unisono {

class ThreadPool {
 public:
  static constexpr const char* thread_name = "unisono-compute";  // the name that `top -H` and debuggers show

  ThreadPool() = default;
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Sets the number of helpers. It must not run at the same time as parallel_for(). The system may allow fewer threads.
  void set_helpers(uint32_t helpers);
  uint32_t helpers() const { return static_cast<uint32_t>(threads_.size()); }

  // Calls work(piece) for each piece in [0, pieces), in any order and concurrently. All calls have returned when this returns.
  // Only one thread may call parallel_for() at a time. `work` must not throw.
  template <typename Work>
  void parallel_for(uint32_t pieces, Work&& work) {
    parallel_for({&work, [](void* w, uint32_t piece) { (*static_cast<std::remove_reference_t<Work>*>(w))(piece); }, pieces});
  }

 private:
  struct Job {
    void* work = nullptr;
    void (*call)(void* work, uint32_t piece) = nullptr;
    uint32_t pieces = 0;
  };
  void parallel_for(const Job& job);
  bool run_one_piece();
  void helper_loop();

  Job job_;                              // does not change while any piece is being processed
  std::atomic<uint32_t> untaken_{0};     // number of pieces that no thread has taken
  std::atomic<uint32_t> unfinished_{0};  // number of pieces that are not done
  std::atomic<uint32_t> calls_{0};       // number of calls of parallel_for(); helpers wait on it
  std::atomic<uint32_t> asleep_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace unisono
