#include "rendezvous/rendezvous_channel.h"

#include <algorithm>
#include <cstring>

namespace unisono {

void RendezvousChannel::encrypt(std::shared_ptr<const TlsContext> context, TlsConnection::Role role) {
  tls_ = std::make_unique<TlsConnection>(std::move(context), role, static_cast<TlsCarrier&>(*this));
}

std::optional<int> RendezvousChannel::handshake() {
  if (!tls_) return 0;
  switch (tls_->handshake()) {
    case TlsConnection::Progress::pending: (void)tls_->flush(); return std::nullopt;
    case TlsConnection::Progress::done: return 0;
    case TlsConnection::Progress::failed: break;
  }
  return tls_->error();
}

ptrdiff_t RendezvousChannel::write(ByteView bytes) {
  if (!tls_) return send_some(socket_.get(), bytes);
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return tls_->write(&part, bytes.empty() ? 0 : 1);
}

ptrdiff_t RendezvousChannel::read(std::span<std::byte> bytes, bool& ended) {
  if (!tls_) return receive_some(socket_.get(), bytes, ended);
  const iovec part{bytes.data(), bytes.size()};
  return tls_->read(&part, 1, ended);
}

ptrdiff_t RendezvousChannel::read_encrypted(std::span<std::byte> bytes, bool& ended) {
  const auto count = receive_some(socket_.get(), bytes, ended);
  if (count > 0 && start_bytes_ < start_.size()) {
    const auto kept = std::min(start_.size() - start_bytes_, static_cast<size_t>(count));
    std::memcpy(start_.data() + start_bytes_, bytes.data(), kept);
    start_bytes_ += kept;
  }
  return count;
}

}  // namespace unisono
