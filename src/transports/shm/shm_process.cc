#include "transports/shm/shm_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <map>

#include "base/mutex.h"
#include "forks/fork.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace unisono::shm {
namespace {

using Handle = std::shared_ptr<const UniqueFd>;

struct Handles {
  const OwnerProcess process;
  Mutex mutex;
  std::map<int, std::weak_ptr<const UniqueFd>> by_number UNISONO_GUARDED_BY(mutex);
};

// Returns the handles of this process. A child made by fork() begins with none: at the fork, another thread may have held the
// mutex, and the child has given up the descriptors. The parent's object stays in its memory.
Handles& handles() {
  static std::atomic<Handles*> current{nullptr};
  Handles* known = current.load(std::memory_order_acquire);
  if (known != nullptr && !known->process.forked()) return *known;
  auto fresh = std::make_unique<Handles>();
  // If another thread was faster, `known` becomes its object.
  if (!current.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel)) return *known;
  return *fresh.release();
}

bool is_dead(int handle) {
  pollfd entry{.fd = handle, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

Handle open_handle(int socket, int number) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) != 0) {
    if (number <= 0) return nullptr;
    fd = static_cast<int>(::syscall(SYS_pidfd_open, number, 0));
  }
  return fd >= 0 ? std::make_shared<const UniqueFd>(fd) : nullptr;
}

}  // namespace

int process_number(int socket) {
  ucred who{};
  socklen_t size = sizeof(who);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 ? who.pid : 0;
}

Handle process_handle(int socket) {
  const int number = process_number(socket);
  if (number <= 0) return open_handle(socket, number);
  Handles& all = handles();
  const MutexLock lock(all.mutex);
  // The number of a process that has died may belong to another process now.
  if (const auto known = all.by_number.find(number); known != all.by_number.end()) {
    if (auto handle = known->second.lock(); handle && !is_dead(handle->get())) return handle;
  }
  auto handle = open_handle(socket, number);
  if (!handle) return nullptr;
  std::erase_if(all.by_number, [](const auto& entry) { return entry.second.expired(); });
  all.by_number[number] = handle;
  return handle;
}

}  // namespace unisono::shm
