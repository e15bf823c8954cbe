// Fuzzes membership. The bytes stand for what a member sends, or a peer that does not authenticate. All decoders read them. In
// addition, one state machine receives them; the first byte of the input selects it. Each message is either refused or decoded.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "group/lifecycle/reform.h"
#include "rendezvous/rendezvous_client.h"
#include "rendezvous/rendezvous_messages.h"
#include "rendezvous/rendezvous_server.h"
#include "rendezvous/roster.h"
#include "wire/checksum.h"

namespace unisono {
namespace {

Roster small_roster() {
  Roster roster{.epoch = 1, .key = {}, .members = {}};
  for (uint32_t rank = 0; rank < 3; ++rank)
    roster.members.push_back({.id = {rank, 1}, .rank = rank, .host = "h", .pid = 1, .endpoints = {}});
  return roster;
}

// If a message is decoded, it must be encoded to the same bytes again.
void decode_all(ByteView bytes) {
  if (const auto roster = decode_roster(bytes); roster.ok()) {
    const Bytes again = encode(*roster);
    UNISONO_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  }
  if (const auto message = decode_reform(bytes); message.ok()) {
    const Bytes again = encode(*message);
    UNISONO_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  }
  (void)rendezvous::decode_hello(bytes, rendezvous::protocol_version);
  (void)rendezvous::decode_hello(bytes, rendezvous::protocol_version + 1);
  (void)rendezvous::decode_welcome(bytes);
  UNISONO_CHECK(!rendezvous::decode_refused(bytes).ok());
  (void)rendezvous::decode_joiner(bytes);
  (void)rendezvous::decode_joiner_gone(bytes);
  (void)rendezvous::decode_answer(bytes);
}

// Puts a payload into a valid envelope. Then a mutation is not refused at once because of its envelope, and reaches the decoder
// of the payload.
Bytes sealed(uint8_t kind, ByteView payload) {
  ByteWriter writer;
  writer.write(rendezvous::message_magic)
      .write(rendezvous::protocol_version)
      .write(uint16_t{kind})
      .write(static_cast<uint32_t>(payload.size()));
  const auto head = crc32c(writer.view().data(), writer.view().size());
  writer.write(crc32c(payload.data(), payload.size(), head));
  Bytes bytes = std::move(writer).take();
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

void feed_server(ByteView bytes) {
  rendezvous::ServerSettings settings;
  settings.make_key = [] { return RosterKey{}; };
  rendezvous::Server server(std::move(settings));
  rendezvous::Hello hello;
  hello.job = "job";
  hello.world_size = 1;
  hello.member = small_roster().members[0];
  server.connected(1, "attending", 0);
  server.received(1, rendezvous::Client(hello, second).connected(0), 0);
  for (rendezvous::Connection connection = 1; connection <= 2; ++connection) {
    if (connection == 2) server.connected(2, "unauthenticated", 0);
    server.received(connection, bytes, 0);
  }
  server.woke(10 * second);
  server.disconnected(1, 10 * second);
  (void)server.take_sends();
}

void feed_client(ByteView bytes) {
  rendezvous::Hello hello;
  hello.world_size = 3;
  hello.member = small_roster().members[0];
  rendezvous::Client client(hello, second);
  (void)client.connected(0);
  client.received(rendezvous::encode(rendezvous::Welcome{}), 0);
  client.received(bytes, 0);
  if (client.phase() == rendezvous::Client::Phase::met)
    UNISONO_CHECK(client.take_roster()->rank_of(hello.member.id) == Rank{0});
}

// Inserts the epoch and the digest of the roster. Messages of re-forming must contain them, and mutations would hardly find
// them.
Bytes about(const Roster& roster, ByteView bytes) {
  Bytes named(bytes.begin(), bytes.end());
  const EpochName name = name_of(roster);
  constexpr size_t epoch_at = 2;
  constexpr size_t digest_at = 6;
  if (named.size() < digest_at + sizeof(name.digest)) return named;
  std::memcpy(named.data() + epoch_at, &name.epoch, sizeof(name.epoch));
  std::memcpy(named.data() + digest_at, &name.digest, sizeof(name.digest));
  return named;
}

void feed_reform(ByteView input, bool started) {
  const Roster roster = small_roster();
  const Bytes bytes = about(roster, input);
  Reform reform(roster, roster.members[0].id);
  if (started) (void)reform.start({}, 0);
  (void)reform.message(roster.members[1].id, bytes, 1);
  (void)reform.message(roster.members[2].id, bytes, 2);
  reform.woke(reform.next_deadline() == never ? second : reform.next_deadline());
  if (const auto result = reform.take_result(); result && result->ok())
    UNISONO_CHECK(result->value().roster.rank_of(roster.members[0].id).has_value());
}

}  // namespace
}  // namespace unisono

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono;
  if (size == 0) return 0;
  const ByteView bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  decode_all(bytes);
  switch (data[0] & 7) {
    case 0: feed_server(bytes); break;
    case 1: feed_server(sealed(data[0] >> 3, bytes)); break;
    case 2: feed_client(bytes); break;
    case 3: feed_client(sealed(data[0] >> 3, bytes)); break;
    case 4: feed_reform(bytes, false); break;
    default: feed_reform(bytes, true); break;
  }
  return 0;
}
