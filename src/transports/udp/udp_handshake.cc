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

}  // namespace

UdpHelloDatagram sealed_hello(const JobKey& job, const UdpHello& hello) {
  UdpHelloDatagram datagram{.header = {}, .hello = hello};
  datagram.header.kind = DatagramKind::hello;
  datagram.header.run_id = hello_run(job);
  datagram.header.sender = hello.step == UdpHelloStep::answer ? 1 : 0;
  datagram.header.receiver = hello.step == UdpHelloStep::answer ? 0 : 1;
  datagram.header.payload_bytes = sizeof(UdpHello);
  seal_datagram(datagram.header, std::as_bytes(std::span(&datagram.hello, 1)), hello_seal(job));
  return datagram;
}

bool read_hello(const JobKey& job, const DatagramHeader& header, std::span<const std::byte> datagram, UdpHello& hello) {
  if (header.kind != DatagramKind::hello || header.run_id != hello_run(job) || header.epoch != 0) return false;
  if (datagram.size() != hello_datagram_bytes) return false;
  if (check_tag(header, datagram, hello_seal(job)) != DatagramFault::none) return false;
  std::memcpy(&hello, datagram.data() + datagram_header_bytes, sizeof hello);
  const auto step = static_cast<uint8_t>(hello.step);
  return hello.version == 1 && step >= 1 && step <= 3 && header.sender == (hello.step == UdpHelloStep::answer ? 1 : 0);
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
}

UdpHello UdpHandshake::hello(UdpHelloStep step) const {
  return {.step = step,
          .version = 1,
          .auth = static_cast<uint16_t>(options_.auth),
          .window_bytes = options_.window_bytes,
          .from = options_.self,
          .to = options_.peer,
          .nonce = nonce_,
          .other_nonce = step == UdpHelloStep::ask ? UdpNonce{} : other_nonce_};
}

std::optional<UdpHelloDatagram> UdpHandshake::message() const {
  if (options_.dial) return sealed_hello(job_, hello(answered_ ? UdpHelloStep::confirm : UdpHelloStep::ask));
  if (!answered_) return std::nullopt;
  return sealed_hello(job_, hello(UdpHelloStep::answer));
}

void UdpHandshake::finish(const UdpNonce& dialler, const UdpNonce& waiter) {
  UdpHello confirm;
  confirm.from = options_.dial ? options_.self : options_.peer;
  confirm.to = options_.dial ? options_.peer : options_.self;
  confirm.nonce = dialler;
  confirm.other_nonce = waiter;
  const bool checksum = options_.auth == DatagramAuth::checksum && peer_auth_ == DatagramAuth::checksum;
  group_ = link_group(job_, confirm, options_.dial ? 0 : 1, checksum ? DatagramAuth::checksum : DatagramAuth::mac);
  done_ = true;
}

void UdpHandshake::remember(const UdpHello& hello) {
  other_nonce_ = hello.nonce;
  peer_window_ = hello.window_bytes;
  peer_auth_ = hello.auth == static_cast<uint16_t>(DatagramAuth::checksum) ? DatagramAuth::checksum : DatagramAuth::mac;
}

bool UdpHandshake::on_hello(const UdpHello& hello, Nanos now) {
  if (hello.from != options_.peer || hello.to != options_.self) return false;
  if (options_.dial) {
    if (hello.step != UdpHelloStep::answer || hello.other_nonce != nonce_) return false;
    // The peer repeats its answer, so our confirmation was lost. Repeat the confirmation.
    if (done_) return hello.nonce == other_nonce_;
    remember(hello);
    answered_ = true;
    interval_ = options_.retry_first;
    next_ = now + interval_;
    finish(nonce_, other_nonce_);
    return true;
  }
  if (done_) return false;
  if (hello.step == UdpHelloStep::ask) {
    // Answer the latest ask. An attacker may repeat an old ask, but this has only one effect: the answer goes to another
    // address. The confirmation brings the dialler's nonce and address again.
    if (!answered_) interval_ = options_.retry_first;
    other_nonce_ = hello.nonce;
    answered_ = true;
    answered_at_ = now;
    next_ = now + interval_;
    return true;
  }
  if (hello.step != UdpHelloStep::confirm || hello.other_nonce != nonce_) return false;
  remember(hello);
  finish(other_nonce_, nonce_);
  return false;
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
