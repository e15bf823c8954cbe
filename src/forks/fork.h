// What a process must know after fork(). The child has a copy of the parent's objects, but it is no member of the parent's
// groups and runs: it has none of the library's threads, and it shares sockets and memory with its parent.
//
// Two rules follow. Each object that callers use has an OwnerProcess; in a child it refuses all calls, and its destructor
// leaves everything alone. And the child gives up the descriptors of links and servers at the fork: a socket that a child holds
// would hide its parent's death from the peers.
//
// State of the process that children use, too, is guarded by fork_mutex(): a lock that another thread held at the fork would
// stay locked in the child for ever.
//
// This module owns the handlers of pthread_atfork, the set of descriptors and that mutex. They are global, because the handlers
// have no argument.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/mutex.h"
#include "unisono/status.h"

namespace unisono {

// Identifies the process that made an object.
class OwnerProcess {
 public:
  OwnerProcess();
  // Returns true if this process is a child of the owner, made by fork() (and so on: grandchildren).
  bool forked() const;
  // Returns ok in the owner. In a child, returns the error invalid, which names the owner.
  Status check() const { return forked() ? refusal() : Status(); }

 private:
  Status refusal() const;

  const uint32_t forks_;  // the number of forks between the first process and the owner
  const pid_t pid_;
};

// Call it when a descriptor was made that no child may keep. At a fork, the child replaces the descriptor by one that leads
// nowhere. So the number stays taken, and a destructor that closes it in the child does no harm. Returns the descriptor.
int own_descriptor(int descriptor);
// Call it before the descriptor is closed, or if a child shall inherit it.
void disown_descriptor(int descriptor);

// Returns the mutex of the process that no other thread holds at a fork: fork() waits for it. So a child always finds it free.
// Hold it for a short time only. Meanwhile, do not fork, and take no other lock.
Mutex& fork_mutex();

}  // namespace unisono
