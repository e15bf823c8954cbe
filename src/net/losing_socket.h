// A socket that drops a share of the arriving datagrams at random, on purpose: it shows the effect of losses without a bad
// network and without root.
//
// A dropped datagram is in no counter of the socket, as if the network had lost it. The seed determines which datagrams are
// dropped.
#pragma once

#include <cstdint>
#include <memory>

#include "base/random.h"
#include "net/datagram_socket.h"

namespace unisono {

struct PurposeLoss {
  uint32_t per_mille = 0;  // below 1000
  uint64_t seed = 0;
};

class LosingSocket final : public DatagramSocket {
 public:
  LosingSocket(std::unique_ptr<DatagramSocket> inner, const PurposeLoss& loss)
      : inner_(std::move(inner)), per_mille_(loss.per_mille), random_(loss.seed) {}

  SendOutcome send(std::span<const OutDatagram> batch) override { return inner_->send(batch); }
  ReceiveOutcome receive(DatagramInbox& inbox, size_t datagrams_max) override;
  int wait_handle() const override { return inner_->wait_handle(); }
  uint64_t own_drops() const override { return inner_->own_drops(); }
  const TcpAddress& address() const override { return inner_->address(); }

  uint64_t lost() const { return lost_; }

 private:
  struct Sieve;
  std::unique_ptr<DatagramSocket> inner_;
  uint32_t per_mille_;
  Random random_;
  uint64_t lost_ = 0;
};

}  // namespace unisono
