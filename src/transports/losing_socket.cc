#include "transports/losing_socket.h"

namespace unisono {

struct LosingSocket::Sieve final : DatagramInbox {
  Sieve(LosingSocket& socket, DatagramInbox& behind) : owner(socket), inbox(behind) {}
  void arrived(std::span<const std::byte> datagram, const TcpAddress& from, Nanos came) override {
    if (owner.random_.below(1000) < owner.per_mille_) {
      ++owner.lost_;
      return;
    }
    inbox.arrived(datagram, from, came);
  }
  void refused(const TcpAddress& to) override { inbox.refused(to); }
  LosingSocket& owner;
  DatagramInbox& inbox;
};

ReceiveOutcome LosingSocket::receive(DatagramInbox& inbox, size_t datagrams_max) {
  Sieve sieve(*this, inbox);
  return inner_->receive(sieve, datagrams_max);
}

}  // namespace unisono
