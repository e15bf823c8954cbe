#include "net/losing_socket.h"

#include <array>

namespace unisono {

struct LosingSocket::Filter final : DatagramInbox {
  Filter(LosingSocket& socket, DatagramInbox& behind) : owner(socket), inbox(behind) {}
  void arrived(std::span<const InDatagram> batch) override {
    std::array<InDatagram, datagrams_per_batch> kept;
    size_t count = 0;
    for (const auto& datagram : batch) {
      if (owner.random_.below(1000) < owner.per_mille_) ++owner.lost_;
      else kept[count++] = datagram;
    }
    if (count > 0) inbox.arrived(std::span(kept).first(count));
  }
  void refused(const TcpAddress& to) override { inbox.refused(to); }
  LosingSocket& owner;
  DatagramInbox& inbox;
};

ReceiveOutcome LosingSocket::receive(DatagramInbox& inbox, size_t datagrams_max) {
  Filter filter(*this, inbox);
  return inner_->receive(filter, datagrams_max);
}

}  // namespace unisono
