// Learns whether peers that have dialled this process can be dialled by it, so that a later refusal proves their death.
//
// Each peer is dialled back once after the group has formed or re-formed. The hello has the attempt 0: the peer's process
// refuses it as `stale`, and changes nothing. A peer that does not answer is left alone, because a firewall or a NAT may let
// only its own dials through.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "transports/tcp/tcp_dialer.h"

namespace unisono {

class TcpLink;

class TcpDialBack {
 public:
  // So many descriptors are in use at most. Each is closed at once after the answer.
  static constexpr size_t at_a_time = 4;
  // The peer's process answers while it polls, which it does in the background if nothing else goes on.
  static constexpr Nanos answer_timeout = 3 * second;
  using MakeDialer = std::function<std::unique_ptr<TcpDialer>(const TcpLink& link)>;

  // The peer of this link is to be dialled back. Those that were added last come first: all members of a group add their peers
  // by rank, and they must not all dial rank 0 at the same time.
  void add(TcpLink& link);
  // Call this before the link is deleted, or leaves.
  void drop(const TcpLink& link);
  bool busy() const { return !waiting_.empty() || !dials_.empty(); }
  // Returns true if anything happened.
  bool step(Nanos now, const MakeDialer& make_dialer);
  Nanos next_deadline() const;

 private:
  struct Dial {
    TcpLink* link = nullptr;
    std::unique_ptr<TcpDialer> dialer{};
    Nanos until = 0;
  };
  std::vector<TcpLink*> waiting_;
  std::vector<Dial> dials_;
};

}  // namespace unisono
