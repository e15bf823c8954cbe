#include "tls/tls_flights.h"

#include <algorithm>
#include <utility>

namespace unisono {

TlsFlights::TlsFlights(std::shared_ptr<const TlsContext> context, TlsConnection::Role role)
    : connection_(std::make_unique<TlsConnection>(std::move(context), role, static_cast<TlsCarrier&>(*this))) {
  if (role == TlsConnection::Role::client) (void)step({});
}

bool TlsFlights::step(std::span<const std::byte> flight) {
  if (!connection_ || done_) return false;
  unread_ = flight;
  auto before = std::exchange(flight_, {});
  const auto progress = connection_->handshake();
  const bool valid = progress != TlsConnection::Progress::failed && unread_.empty() && flight_.size() <= flight_bytes_max;
  unread_ = {};
  done_ = valid && progress == TlsConnection::Progress::done;
  if (!valid) flight_ = std::move(before);  // What was made is an alert, which would help nobody.
  return valid;
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
