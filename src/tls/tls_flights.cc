#include "tls/tls_flights.h"

#include <algorithm>
#include <cerrno>

namespace unisono {

TlsFlights::TlsFlights(std::shared_ptr<const TlsContext> context, TlsConnection::Role role)
    : connection_(std::make_unique<TlsConnection>(std::move(context), role, static_cast<TlsCarrier&>(*this))) {
  if (role == TlsConnection::Role::client) (void)step({});
}

bool TlsFlights::step(std::span<const std::byte> flight) {
  if (!connection_ || done_) return false;
  unread_ = flight;
  flight_.clear();
  const auto progress = connection_->handshake();
  const bool all_read = unread_.empty();
  unread_ = {};
  done_ = progress == TlsConnection::Progress::done;
  return progress != TlsConnection::Progress::failed && all_read && flight_.size() <= flight_bytes_max;
}

bool TlsFlights::export_key(std::string_view label, std::span<std::byte> out) const {
  return connection_ && connection_->export_key(label, out);
}

ptrdiff_t TlsFlights::write_encrypted(std::span<const std::byte> bytes) {
  flight_.insert(flight_.end(), bytes.begin(), bytes.end());
  return static_cast<ptrdiff_t>(bytes.size());
}

ptrdiff_t TlsFlights::read_encrypted(std::span<std::byte> bytes, bool&) {
  const auto count = std::min(bytes.size(), unread_.size());
  std::copy_n(unread_.begin(), count, bytes.begin());
  unread_ = unread_.subspan(count);
  return static_cast<ptrdiff_t>(count);
}

}  // namespace unisono
