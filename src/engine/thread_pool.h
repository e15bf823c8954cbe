// A small thread pool for data-parallel loops. The calling thread takes part and takes the pieces that are left, so that a
// helper that comes late costs nothing. Between calls helpers poll for work for a moment and then sleep.
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
  static constexpr const char* thread_name = "unisono-compute";  // as top -H and debuggers show it

  ThreadPool() = default;
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Starts or ends helpers; not while work is shared. There are fewer than asked for if the system gives no more threads.
  void hire(uint32_t helpers);
  uint32_t helpers() const { return static_cast<uint32_t>(threads_.size()); }

  // work(piece) for each of [0, pieces), in any order, several at a time; all are done at return. One caller at a time; work
  // does not throw.
  template <typename Work>
  void share(uint32_t pieces, Work&& work) {
    share({&work, [](void* w, uint32_t piece) { (*static_cast<std::remove_reference_t<Work>*>(w))(piece); }, pieces});
  }

 private:
  struct Job {
    void* work = nullptr;
    void (*call)(void* work, uint32_t piece) = nullptr;
    uint32_t pieces = 0;
  };
  void share(const Job& job);
  bool do_a_piece();
  void help();

  Job job_;                          // does not change while a piece is taken and not done
  std::atomic<uint32_t> left_{0};    // pieces that nobody has taken
  std::atomic<uint32_t> undone_{0};  // pieces that are not done
  std::atomic<uint32_t> calls_{0};   // share() so far; helpers sleep on it
  std::atomic<uint32_t> asleep_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace unisono
