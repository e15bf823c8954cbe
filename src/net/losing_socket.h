// A socket that drops a random share of the arriving datagrams on purpose. With it, losses can be studied on a good network and
// without root rights.
//
// The dropped datagrams appear in none of the socket's counters, as if the network had lost them. The seed determines which
// datagrams are dropped.
#pragma once

#include <cstdint>
#include <memory>

#include "base/random.h"
#include "net/datagram_socket.h"

namespace unisono {

struct InjectedLoss {
  uint32_t per_mille = 0;  // This many of 1000 datagrams are dropped; must be below 1000.
  uint64_t seed = 0;
};

class LosingSocket final : public DatagramSocket {
 public:
  LosingSocket(std::unique_ptr<DatagramSocket> inner, const InjectedLoss& loss)
      : inner_(std::move(inner)), per_mille_(loss.per_mille), random_(loss.seed) {}

  SendOutcome send(std::span<const OutDatagram> batch) override { return inner_->send(batch); }
  ReceiveOutcome receive(DatagramInbox& inbox, size_t datagrams_max) override;
  int wait_handle() const override { return inner_->wait_handle(); }
  uint64_t own_drops() const override { return inner_->own_drops(); }
  const TcpAddress& address() const override { return inner_->address(); }

  uint64_t lost() const { return lost_; }

 private:
  struct Filter;
  std::unique_ptr<DatagramSocket> inner_;
  uint32_t per_mille_;
  Random random_;
  uint64_t lost_ = 0;
};

}  // namespace unisono
