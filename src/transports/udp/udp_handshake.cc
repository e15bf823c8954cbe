#include "transports/udp/udp_handshake.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace unisono {
namespace {

SipKey as_key(const JobKey& job) {
  SipKey key;
  std::memcpy(&key.k0, job.data(), 8);
  std::memcpy(&key.k1, job.data() + 8, 8);
  return key;
}

// Derives a 64-bit number from the job's key. `purpose` has 4 letters. A value that needs more bits is derived in several
// parts, and `part` is the number of the part. `rest` is further input.
uint64_t derived(const JobKey& job, std::string_view purpose, uint32_t part, std::span<const std::byte> rest = {}) {
  std::array<std::byte, 8> head{};
  std::memcpy(head.data(), purpose.data(), 4);
  std::memcpy(head.data() + 4, &part, 4);
  return siphash_2_4(as_key(job), head, rest);
}

DatagramSeal hello_seal(const JobKey& job) {
  return {.key = {derived(job, "UHEL", 0), derived(job, "UHEL", 1)}, .auth = DatagramAuth::mac};
}
uint64_t hello_run(const JobKey& job) { return derived(job, "URUN", 0); }

UdpNonce nonce_of(const JobKey& job, const PeerId& self, uint64_t attempt) {
  const uint64_t words[3] = {self.low, self.high, attempt};
  const uint64_t nonce[2] = {derived(job, "UNON", 0, std::as_bytes(std::span(words))),
                             derived(job, "UNON", 1, std::as_bytes(std::span(words)))};
  UdpNonce result;
  std::memcpy(result.data(), nonce, sizeof nonce);
  return result;
}

// UdpHello::auth of a process that wishes for this cipher. The values of DatagramAuth come before these.
uint16_t auth_of(SealCipher cipher) { return static_cast<uint16_t>(2 + static_cast<uint16_t>(cipher)); }

// What both processes must agree on beside TLS.
struct Transcript {
  UdpHello confirm;
  uint32_t waiter_window_bytes = 0;
  uint32_t cipher = 0;
};
static_assert(sizeof(Transcript) == sizeof(UdpHello) + 8);

}  // namespace

std::vector<JobKey> hello_keys(const JobKey& job, const TlsContext* tls) {
  if (tls == nullptr) return {job};
  std::vector<JobKey> keys(tls->key_count());
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto bytes = tls->key(i).derive("unisono udp hello", job);
    std::copy_n(bytes.begin(), keys[i].size(), keys[i].begin());
  }
  return keys;
}

UdpHelloDatagram sealed_hello(const JobKey& job, const UdpHello& hello, const UdpHelloTls* tls) {
  UdpHelloDatagram datagram{.header = {}, .hello = hello};
  std::vector<std::byte> payload(sizeof hello);
  std::memcpy(payload.data(), &hello, sizeof hello);
  if (tls != nullptr) {
    const auto attempt = std::as_bytes(std::span(&tls->attempt, 1));
    datagram.rest.assign(attempt.begin(), attempt.end());
    datagram.rest.insert(datagram.rest.end(), tls->flight.begin(), tls->flight.end());
    payload.insert(payload.end(), datagram.rest.begin(), datagram.rest.end());
  }
  datagram.header.kind = DatagramKind::hello;
  datagram.header.run_id = hello_run(job);
  datagram.header.sender = hello.step == UdpHelloStep::answer ? 1 : 0;
  datagram.header.receiver = hello.step == UdpHelloStep::answer ? 0 : 1;
  datagram.header.payload_bytes = static_cast<uint16_t>(payload.size());
  seal_datagram(datagram.header, payload, hello_seal(job));
  return datagram;
}

bool read_hello(const JobKey& job, const DatagramHeader& header, std::span<const std::byte> datagram, UdpHello& hello,
                UdpHelloTls* tls) {
  if (header.kind != DatagramKind::hello || header.run_id != hello_run(job) || header.epoch != 0) return false;
  constexpr size_t tls_at = hello_datagram_bytes + sizeof tls->attempt;
  if (tls == nullptr ? datagram.size() != hello_datagram_bytes
                     : datagram.size() <= tls_at || datagram.size() > tls_at + TlsFlights::flight_bytes_max)
    return false;
  if (check_tag(header, datagram, hello_seal(job)) != DatagramFault::none) return false;
  std::memcpy(&hello, datagram.data() + datagram_header_bytes, sizeof hello);
  if (tls != nullptr) {
    std::memcpy(&tls->attempt, datagram.data() + hello_datagram_bytes, sizeof tls->attempt);
    tls->flight = datagram.subspan(tls_at);
    tls->key = job;
  }
  const auto step = static_cast<uint8_t>(hello.step);
  return hello.version == (tls == nullptr ? 1 : 2) && step >= 1 && step <= 3 &&
         header.sender == (hello.step == UdpHelloStep::answer ? 1 : 0);
}

DatagramGroup link_group(const JobKey& job, const UdpHello& confirm, Rank self, DatagramAuth auth) {
  // The group's secrets are derived from the ids and nonces (random numbers used once) of both processes, those of the dialling
  // process first. In a confirmation, these are in one piece.
  const auto what = std::as_bytes(std::span(&confirm, 1)).subspan(offsetof(UdpHello, from));
  DatagramGroup group{.run_id = derived(job, "ULRN", 0, what), .epoch = 0, .self = self, .world = 2, .auth = auth, .key = {}};
  group.epoch = static_cast<uint32_t>(derived(job, "ULEP", 0, what)) | 1;  // never 0, because epoch 0 is used by hellos
  const uint64_t key[2] = {derived(job, "ULKY", 0, what), derived(job, "ULKY", 1, what)};
  std::memcpy(group.key.data(), key, sizeof key);
  return group;
}

UdpHandshake::UdpHandshake(const JobKey& job, const UdpHandshakeOptions& options)
    : job_(job), options_(options), nonce_(nonce_of(job, options.self, options.attempt)), interval_(options.retry_first) {
  if (!options_.dial) next_ = never;
  else if (options_.tls) flights_ = std::make_unique<TlsFlights>(options_.tls, TlsConnection::Role::client);
}

UdpHello UdpHandshake::hello(UdpHelloStep step) const {
  return {.step = step,
          .version = static_cast<uint8_t>(options_.tls ? 2 : 1),
          .auth = options_.tls ? auth_of(options_.cipher) : static_cast<uint16_t>(options_.auth),
          .window_bytes = options_.window_bytes,
          .from = options_.self,
          .to = options_.peer,
          .nonce = nonce_,
          .other_nonce = step == UdpHelloStep::ask ? UdpNonce{} : other_nonce_};
}

std::optional<UdpHelloDatagram> UdpHandshake::message() const {
  if (!options_.dial && !answered_) return std::nullopt;
  const auto step = !options_.dial ? UdpHelloStep::answer : answered_ ? UdpHelloStep::confirm : UdpHelloStep::ask;
  if (!options_.tls) return sealed_hello(job_, hello(step));
  const UdpHelloTls tls{.attempt = options_.attempt, .flight = flights_->flight()};
  return sealed_hello(job_, hello(step), &tls);
}

// Returns true if the link can be used.
bool UdpHandshake::finish(const UdpNonce& dialler, const UdpNonce& waiter) {
  UdpHello confirm;
  confirm.from = options_.dial ? options_.self : options_.peer;
  confirm.to = options_.dial ? options_.peer : options_.self;
  confirm.nonce = dialler;
  confirm.other_nonce = waiter;
  const bool checksum = options_.auth == DatagramAuth::checksum && peer_auth_ == static_cast<uint16_t>(DatagramAuth::checksum);
  group_ = link_group(job_, confirm, options_.dial ? 0 : 1, checksum ? DatagramAuth::checksum : DatagramAuth::mac);
  if (options_.tls) {
    SealSecret shared;
    if (!flights_->export_key("EXPORTER unisono udp", shared.bytes)) return false;
    flights_->end();
    // The keys also depend on what the hellos say beside TLS, so that nobody can change it unnoticed.
    const bool aes = options_.cipher == SealCipher::aes_128_gcm && peer_auth_ == auth_of(SealCipher::aes_128_gcm);
    secret_.emplace();
    secret_->cipher = aes ? SealCipher::aes_128_gcm : SealCipher::chacha20_poly1305;
    confirm.window_bytes = options_.dial ? options_.window_bytes : peer_window_;
    const Transcript transcript{.confirm = confirm,
                                .waiter_window_bytes = options_.dial ? peer_window_ : options_.window_bytes,
                                .cipher = static_cast<uint32_t>(secret_->cipher)};
    secret_->secret = shared.derive("unisono udp link", std::as_bytes(std::span(&transcript, 1)));
  }
  done_ = true;
  return true;
}

void UdpHandshake::remember(const UdpHello& hello) {
  other_nonce_ = hello.nonce;
  peer_window_ = hello.window_bytes;
  peer_auth_ = hello.auth;
}

bool UdpHandshake::on_hello(const UdpHello& hello, Nanos now, const UdpHelloTls& tls) {
  if (hello.from != options_.peer || hello.to != options_.self) return false;
  if (options_.dial) {
    if (hello.step != UdpHelloStep::answer || hello.other_nonce != nonce_) return false;
    // The peer repeats its answer, so our confirmation was lost. Repeat the confirmation.
    if (done_) return hello.nonce == other_nonce_;
    if (!step_tls(tls.flight)) return false;
    remember(hello);
    if (!finish(nonce_, other_nonce_)) return false;
    answered_ = true;
    interval_ = options_.retry_first;
    next_ = now + interval_;
    return true;
  }
  if (done_) return false;
  if (hello.step == UdpHelloStep::ask) return on_ask(hello, now, tls);
  if (hello.step != UdpHelloStep::confirm || hello.other_nonce != nonce_) return false;
  if (options_.tls && (!answered_ || hello.nonce != other_nonce_ || !step_tls(tls.flight))) return false;
  remember(hello);
  (void)finish(other_nonce_, nonce_);
  return false;
}

// Answers the latest ask. Without TLS, an attacker may repeat an old ask, but this has only one effect: the answer goes to
// another address. The confirmation brings the dialler's nonce and address again. With TLS, an ask of an earlier attempt has no
// effect once a later one has come, because the state of TLS belongs to one ask.
bool UdpHandshake::on_ask(const UdpHello& hello, Nanos now, const UdpHelloTls& tls) {
  if (options_.tls && !(answered_ && hello.nonce == other_nonce_)) {
    if (answered_ && tls.attempt <= peer_attempt_) return false;
    auto flights = std::make_unique<TlsFlights>(options_.tls, TlsConnection::Role::server);
    if (!flights->step(tls.flight) || flights->flight().empty()) return false;
    flights_ = std::move(flights);
    peer_attempt_ = tls.attempt;
    job_ = tls.key;
  }
  if (!answered_) interval_ = options_.retry_first;
  other_nonce_ = hello.nonce;
  answered_ = true;
  answered_at_ = now;
  next_ = now + interval_;
  return true;
}

// Takes the last flight that the other process sends. Returns true if TLS is done, or not used.
bool UdpHandshake::step_tls(std::span<const std::byte> flight) {
  return !options_.tls || (flights_ && flights_->step(flight) && flights_->done());
}

bool UdpHandshake::answered_just_now(const UdpHello& ask, Nanos now) const {
  return !options_.dial && answered_ && ask.step == UdpHelloStep::ask && ask.nonce == other_nonce_ &&
         now < answered_at_ + options_.retry_first;
}

bool UdpHandshake::due(Nanos now) {
  if (now < next_) return false;
  if (!answered_) ++asks_;
  interval_ = next_ == 0 ? options_.retry_first : std::min(interval_ + interval_ / 2, options_.retry_max);
  next_ = now + interval_;
  return true;
}

}  // namespace unisono
