#include "rendezvous/rendezvous_messages.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "testing/peer_ids.h"

namespace unisono::rendezvous {
namespace {

using test::make_roster;

Hello sample_hello() {
  Hello hello;
  hello.host = "h1";
  hello.pid = 101;
  hello.job = "job";
  hello.world_size = 4;
  hello.remaining_ms = 1000;
  hello.transport = "auto";
  hello.member = test::member(1);
  return hello;
}

Bytes payload_of(const Bytes& message) { return Bytes(message.begin() + envelope_bytes, message.end()); }

std::optional<Message> read_one(MessageStream& stream, const Bytes& bytes, size_t limit = message_bytes_max) {
  stream.append(bytes);
  return stream.next(limit);
}

TEST(RendezvousMessages, hello_survives_encoding) {
  MessageStream stream;
  const auto message = read_one(stream, encode(sample_hello()));
  ASSERT_TRUE(message);
  EXPECT_EQ(message->kind, Kind::hello);
  const auto hello = decode_hello(message->payload, message->protocol);
  ASSERT_TRUE(hello.ok()) << hello.status().to_string();
  EXPECT_EQ(hello->job, "job");
  EXPECT_EQ(hello->member, test::member(1));
  EXPECT_EQ(hello->world_size, 4u);
  EXPECT_EQ(hello->version, library_version);
}

TEST(RendezvousMessages, the_longest_hello_is_within_the_limit_for_unauthenticated_peers) {
  Hello hello = sample_hello();
  hello.version = std::string(version_bytes_max, 'v');
  hello.host = hello.member.host = std::string(host_bytes_max, 'h');
  hello.job = std::string(job_bytes_max, 'j');
  hello.member.endpoints.assign(endpoints_max, std::string(endpoint_bytes_max, 'e'));
  MessageStream stream;
  EXPECT_TRUE(read_one(stream, encode(hello), hello_bytes_max));
}

TEST(RendezvousMessages, hello_of_another_protocol_version_still_names_its_sender) {
  Bytes payload = payload_of(encode(sample_hello()));
  payload.resize(4 + std::string(library_version).size() + 4 + 2 + 4 + 4 + 3 +
                 1);  // 1: an unknown byte; the fields after the job may differ in another version
  const auto hello = decode_hello(payload, protocol_version + 1);
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ(hello->host, "h1");
  EXPECT_EQ(hello->pid, 101);
  EXPECT_EQ(hello->job, "job");
}

TEST(RendezvousMessages, truncated_hello_is_refused) {
  const Bytes payload = payload_of(encode(sample_hello()));
  for (size_t size = 0; size < payload.size(); ++size) {
    EXPECT_EQ(decode_hello(ByteView(payload).first(size), protocol_version).status().code(), Code::corrupt) << size;
  }
}

TEST(RendezvousMessages, hello_with_extra_bytes_is_refused) {
  Bytes payload = payload_of(encode(sample_hello()));
  payload.push_back(std::byte{1});
  EXPECT_FALSE(decode_hello(payload, protocol_version).ok());
}

TEST(RendezvousMessages, hello_with_an_unknown_role_is_refused) {
  Hello hello = sample_hello();
  hello.role = static_cast<Role>(3);
  EXPECT_FALSE(decode_hello(payload_of(encode(hello)), protocol_version).ok());
}

TEST(RendezvousMessages, hello_with_a_rank_outside_the_world_is_refused) {
  Hello hello = sample_hello();
  hello.member.rank = 4;
  EXPECT_FALSE(decode_hello(payload_of(encode(hello)), protocol_version).ok());
}

TEST(RendezvousMessages, hello_with_a_world_of_none_or_too_many_is_refused) {
  Hello hello = sample_hello();
  hello.member.rank = 0;
  hello.world_size = 0;
  EXPECT_FALSE(decode_hello(payload_of(encode(hello)), protocol_version).ok());
  hello.world_size = world_size_max + 1;
  EXPECT_FALSE(decode_hello(payload_of(encode(hello)), protocol_version).ok());
}

TEST(RendezvousMessages, hello_with_a_job_name_too_long_is_refused) {
  Hello hello = sample_hello();
  hello.job = std::string(job_bytes_max + 1, 'j');
  EXPECT_FALSE(decode_hello(payload_of(encode(hello)), protocol_version).ok());
}

TEST(RendezvousMessages, refused_keeps_code_and_text_and_is_never_ok) {
  const Status why(Code::late, "rank 3 is missing");
  EXPECT_EQ(decode_refused(payload_of(encode_refused(why))), why);
  EXPECT_EQ(decode_refused(payload_of(encode_refused(Status()))).code(), Code::corrupt);
  EXPECT_EQ(decode_refused({}).code(), Code::corrupt);
  ByteWriter bad_code;
  bad_code.write(uint8_t{200}).write_string("x");
  EXPECT_EQ(decode_refused(bad_code.view()).code(), Code::corrupt);
}

TEST(RendezvousMessages, refused_truncates_a_text_that_is_too_long) {
  const auto back = decode_refused(payload_of(encode_refused({Code::late, std::string(text_bytes_max + 100, 't')})));
  EXPECT_EQ(back.code(), Code::late);
  EXPECT_EQ(back.message().size(), text_bytes_max);
}

TEST(RendezvousMessages, welcome_joiner_and_joiner_gone_survive_encoding_and_truncated_ones_are_refused) {
  const auto welcome = payload_of(encode(Welcome{{1, 2}, library_version}));
  EXPECT_EQ(decode_welcome(welcome)->server, (PeerId{1, 2}));
  EXPECT_FALSE(decode_welcome(ByteView(welcome).first(welcome.size() - 1)).ok());
  const auto joiner = payload_of(encode_joiner(test::member(2)));
  EXPECT_EQ(*decode_joiner(joiner), test::member(2));
  EXPECT_FALSE(decode_joiner(ByteView(joiner).first(joiner.size() - 1)).ok());
  const auto gone = payload_of(encode_joiner_gone({3, 4}));
  EXPECT_EQ(*decode_joiner_gone(gone), (PeerId{3, 4}));
  EXPECT_FALSE(decode_joiner_gone(ByteView(gone).first(15)).ok());
}

TEST(RendezvousMessages, answer_carries_a_roster_with_the_joiner_or_a_reason) {
  const Roster roster = make_roster(3, 2);
  const auto yes = decode_answer(payload_of(encode(Answer{roster.members[2].id, {}, roster})));
  ASSERT_TRUE(yes.ok());
  EXPECT_EQ(yes->roster, roster);
  const auto no = decode_answer(payload_of(encode(Answer{{1, 1}, {Code::invalid, "no"}, {}})));
  ASSERT_TRUE(no.ok());
  EXPECT_EQ(no->status.message(), "no");
}

TEST(RendezvousMessages, answer_whose_roster_lacks_the_joiner_is_refused) {
  EXPECT_FALSE(decode_answer(payload_of(encode(Answer{{77, 77}, {}, make_roster(3, 2)}))).ok());
}

TEST(MessageStream, assembles_messages_byte_by_byte) {
  MessageStream stream;
  Bytes bytes = encode(sample_hello());
  const Bytes second = encode_joiner_gone({1, 2});
  bytes.insert(bytes.end(), second.begin(), second.end());
  std::vector<Kind> kinds;
  for (const auto byte : bytes) {
    stream.append(ByteView(&byte, 1));
    while (const auto message = stream.next(message_bytes_max)) kinds.push_back(message->kind);
  }
  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::hello, Kind::joiner_gone}));
  EXPECT_EQ(stream.fault(), StreamFault::none);
}

TEST(MessageStream, reports_a_wrong_magic_at_the_first_byte) {
  MessageStream stream;
  const Bytes one(1, std::byte{'G'});
  EXPECT_FALSE(read_one(stream, one));
  EXPECT_EQ(stream.fault(), StreamFault::magic);
}

TEST(MessageStream, refuses_a_size_over_the_limit_before_the_payload_arrives) {
  MessageStream stream;
  Bytes head = encode(sample_hello());
  head.resize(envelope_bytes);
  EXPECT_FALSE(read_one(stream, head, 10));
  EXPECT_EQ(stream.fault(), StreamFault::size);
}

TEST(MessageStream, refuses_any_flipped_bit) {
  const Bytes good = encode(sample_hello());
  for (size_t i = 0; i < good.size() * 8; ++i) {
    Bytes bad = good;
    bad[i / 8] ^= static_cast<std::byte>(1 << (i % 8));
    MessageStream stream;
    EXPECT_FALSE(read_one(stream, bad)) << "bit " << i;
  }
}

TEST(MessageStream, refuses_an_unknown_kind) {
  Bytes bytes = encode_joiner_gone({1, 2});
  // The checksum covers the kind byte, so the fault may be `checksum` instead of `kind`.
  MessageStream good;
  ASSERT_TRUE(read_one(good, bytes));
  for (const uint8_t kind : {0, 8, 255}) {
    bytes[6] = std::byte{kind};
    MessageStream stream;
    EXPECT_FALSE(read_one(stream, bytes));
    EXPECT_NE(stream.fault(), StreamFault::none);
  }
}

TEST(MessageStream, returns_no_message_after_a_fault) {
  MessageStream stream;
  EXPECT_FALSE(read_one(stream, Bytes(4, std::byte{0})));
  EXPECT_FALSE(read_one(stream, encode(sample_hello())));
}

TEST(MessageStream, random_bytes_never_make_a_message) {
  constexpr uint64_t seed = 20;
  Random random(seed);
  for (int i = 0; i < 2000; ++i) {
    Bytes bytes(random.below(100));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
    if (bytes.size() >= 4 && random.chance(0.9)) std::memcpy(bytes.data(), &message_magic, 4);
    MessageStream stream;
    EXPECT_FALSE(read_one(stream, bytes)) << "seed " << seed << " case " << i;
  }
}

TEST(GuessProgram, names_common_programs) {
  const auto guess = [](std::string_view text) {
    return guess_program(ByteView(reinterpret_cast<const std::byte*>(text.data()), text.size()));
  };
  EXPECT_EQ(guess("HTTP/1.1 400 Bad Request\r\n"), "an HTTP server");
  EXPECT_EQ(guess("GET / HTTP/1.1\r\n"), "an HTTP client");
  EXPECT_EQ(guess("SSH-2.0-OpenSSH"), "an SSH server");
  EXPECT_EQ(guess(std::string_view("\x15\x03\x01", 3)), "a TLS program");
  EXPECT_EQ(guess(std::string_view("\x01\x02", 2)), "an unknown program (its first bytes: 01 02)");
  EXPECT_EQ(guess(""), "a program that sent nothing");
}

}  // namespace
}  // namespace unisono::rendezvous
