#include "forks/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "base/concat.h"

namespace unisono {
namespace {

// One bit for each descriptor. Linux allows 2^20 descriptors per process, unless an administrator raises fs.nr_open; a
// descriptor beyond that is not replaced. The memory is touched only where descriptors are.
constexpr size_t descriptors_max = size_t{1} << 20;
std::array<std::atomic<uint64_t>, descriptors_max / 64> owned{};
std::atomic<size_t> words_used{0};
std::atomic<uint32_t> forks{0};
Mutex mutex;  // fork_mutex()

// These two run in the thread that forks, before the fork and after it.
void lock_before_fork() UNISONO_ACQUIRE(mutex) { mutex.lock(); }
void unlock_after_fork() UNISONO_RELEASE(mutex) { mutex.unlock(); }

// Only functions that are safe in a signal handler may be called here, because other threads may have held locks.
void in_child() UNISONO_RELEASE(mutex) {
  unlock_after_fork();
  forks.fetch_add(1, std::memory_order_relaxed);
  const auto words = words_used.load(std::memory_order_relaxed);
  int nowhere = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (size_t word = 0; word < words; ++word) {
    for (auto bits = owned[word].exchange(0, std::memory_order_relaxed); bits != 0; bits &= bits - 1) {
      const auto descriptor = static_cast<int>(64 * word) + std::countr_zero(bits);
      // At the limit of descriptors, the first one that is given up makes room.
      if (nowhere < 0) ::close(descriptor), nowhere = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      if (nowhere >= 0 && nowhere != descriptor) ::dup3(nowhere, descriptor, O_CLOEXEC);
    }
  }
  if (nowhere >= 0) ::close(nowhere);
}

// It is made before main() or by dlopen(), and not at the first use: a child that is forked meanwhile would find the lock of a
// local static variable held for ever. If memory runs out here, children are not told. They then behave as without this module.
[[maybe_unused]] const int watched = ::pthread_atfork(lock_before_fork, unlock_after_fork, in_child);

}  // namespace

OwnerProcess::OwnerProcess() : forks_(forks.load(std::memory_order_relaxed)), pid_(::getpid()) {}

bool OwnerProcess::forked() const { return forks.load(std::memory_order_relaxed) != forks_; }

Status OwnerProcess::refusal() const {
  return {
      Code::invalid,
      concat(
          "this process was forked from a member (pid ", pid_,
          "), and is none itself: make the call in that process, or let this process join a group of its own; in Python, the "
          "start method spawn starts processes without fork")};
}

Mutex& fork_mutex() { return mutex; }

int own_descriptor(int descriptor) {
  if (descriptor < 0 || static_cast<size_t>(descriptor) >= descriptors_max) return descriptor;
  const auto word = static_cast<size_t>(descriptor) / 64;
  owned[word].fetch_or(uint64_t{1} << (descriptor % 64), std::memory_order_relaxed);
  for (auto used = words_used.load(std::memory_order_relaxed);
       used <= word && !words_used.compare_exchange_weak(used, word + 1, std::memory_order_relaxed);) {}
  return descriptor;
}

void disown_descriptor(int descriptor) {
  if (descriptor < 0 || static_cast<size_t>(descriptor) >= descriptors_max) return;
  owned[static_cast<size_t>(descriptor) / 64].fetch_and(~(uint64_t{1} << (descriptor % 64)), std::memory_order_relaxed);
}

}  // namespace unisono
