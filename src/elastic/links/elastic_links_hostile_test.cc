// Peers with different runs or keys, and connections on which bytes are changed, repeated, swapped or injected.
#include <gtest/gtest.h>

#include "tests/conformance/elastic_crowd.h"

namespace unisono {
namespace {

using conformance::begin_at;
using conformance::hello_from;
using conformance::same;
using conformance::test_seed;
using conformance::Unauthenticated;
using Change = std::function<Proxy::Frames(Bytes)>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class ElasticHostile : public ElasticLinksCluster {
 protected:
  // Makes two members with the key of this name. Member 0 knows the proxy as the address of member 1.
  void add_proxy(const std::string& key) {
    add({.tls = key_of(key)}), add({.tls = key_of(key)});
    proxy = std::make_unique<Proxy>(address(1));
    others.push_back([&] { proxy->turn(); });
    links(0).know(id(1), {proxy->endpoint()}, true);
  }
  void meet_through_proxy(const std::string& key) {
    add_proxy(key);
    send_message(0, 1, message_of(100, 0));
    ASSERT_TRUE(has_received(1, 1));
  }
  // Sends three messages over an encrypted link through a proxy that changes records by `change`. Checks that the connection
  // ends, and that the link heals: all messages arrive once, in order and unchanged.
  void expect_healed(Change change) {
    meet_through_proxy("secret");
    proxy->change = std::move(change);
    for (uint64_t i = 1; i <= 3; ++i) {
      send_message(0, 1, message_of(100 * i, i));
      settle();
    }
    ASSERT_TRUE(has_received(1, 4));
    for (uint64_t i = 1; i <= 3; ++i)
      EXPECT_TRUE(same(handler(1).messages[i].second.view(), message_of(100 * i, i).view())) << "message " << i;
    EXPECT_GE(proxy->ended(), 1u);
    EXPECT_TRUE(no_losses());
    EXPECT_EQ(links(1).counters().refused_messages, 0u);
  }
  std::unique_ptr<Proxy> proxy;
};

TEST_F(ElasticHostile, processes_with_other_keys_or_none_refuse_each_other_by_name) {
  for (const auto* key : {"", "one", "another"}) add({.tls = key_of(key)});
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) {
      if (i == j) continue;
      ASSERT_TRUE(links(i).send_to_address(address(j), message_of(10, 1), now));
    }
  }
  ASSERT_TRUE(within(1 * second, [&] {
    return handler(0).failures.size() == 2 && handler(1).failures.size() == 2 && handler(2).failures.size() == 2;
  }));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GE(links(i).counters().refused_connections, 2u);
    EXPECT_TRUE(contains(links(i).last_refusal(), "authentication failed")) << links(i).last_refusal();
    EXPECT_TRUE(handler(i).messages.empty());
    const auto* const text = i == 0 ? "authentication failed: the other side has a key, and this process has none"
                                    : "authentication failed: its key differs from ours, or it has none";
    for (const auto& [there, why] : handler(i).failures) {
      EXPECT_EQ(why.code(), Code::invalid);
      EXPECT_TRUE(contains(why.message(), text)) << why.message();
    }
  }
  const auto dials = links(1).counters().refused_connections;
  EXPECT_FALSE(within(3 * second, [&] { return links(1).counters().refused_connections > dials; })) << "dialled for ever";
}

TEST_F(ElasticHostile, a_known_peer_with_another_key_is_lost_as_invalid) {
  add({.tls = key_of("one")}), add({.tls = key_of("another")});
  introduce_all();
  send_message(0, 1, message_of(10, 1));
  ASSERT_TRUE(within(1 * second, [&] { return !handler(0).losses.empty(); }));
  EXPECT_EQ(handler(0).losses[0].why.code(), Code::invalid);
  EXPECT_TRUE(contains(handler(0).losses[0].why.message(), "authentication failed")) << handler(0).losses[0].why.message();
  EXPECT_FALSE(handler(0).losses[0].refused) << "it lives";
}

TEST_F(ElasticHostile, runs_with_one_key_refuse_each_other_by_run) {
  add({.tls = key_of("one")}), add({.run_id = "another", .tls = key_of("one")});
  ASSERT_TRUE(links(0).send_to_address(address(1), message_of(10, 1), now));
  ASSERT_TRUE(within(1 * second, [&] { return !handler(0).failures.empty(); }));
  EXPECT_EQ(handler(0).failures[0].second.code(), Code::invalid);
  EXPECT_TRUE(contains(handler(0).failures[0].second.message(), "another job")) << handler(0).failures[0].second.message();
}

TEST_F(ElasticHostile, the_job_key_of_a_run_depends_on_the_key) {
  const auto one = key_of("one"), another = key_of("another");
  EXPECT_EQ(job_key_of("run", one.get()), job_key_of("run", one.get()));
  EXPECT_NE(job_key_of("run", one.get()), job_key_of("run", another.get()));
  EXPECT_NE(job_key_of("run", one.get()), job_key_of("run", nullptr));
  EXPECT_NE(job_key_of("run", one.get()), job_key_of("other", one.get()));
}

TEST_F(ElasticHostile, an_altered_handshake_does_not_end_the_dial) {
  add_proxy("secret");
  proxy->change = [count = 0](Bytes record) mutable {
    if (++count <= 2) record.back() ^= std::byte{1};
    return Proxy::Frames{std::move(record)};
  };
  send_message(0, 1, message_of(100, 1));
  ASSERT_TRUE(has_received(1, 1));
  EXPECT_TRUE(same(handler(1).messages[0].second.view(), message_of(100, 1).view()));
  EXPECT_EQ(proxy->ended(), 2u);
  EXPECT_TRUE(no_losses());
}

TEST_F(ElasticHostile, handshakes_that_are_altered_without_end_look_like_another_key) {
  add_proxy("secret");
  proxy->change = [](Bytes record) {
    record.back() ^= std::byte{1};
    return Proxy::Frames{std::move(record)};
  };
  send_message(0, 1, message_of(100, 1));
  ASSERT_TRUE(within(2 * second, [&] { return !handler(0).losses.empty(); }));
  EXPECT_EQ(handler(0).losses[0].why.code(), Code::invalid);
  EXPECT_EQ(proxy->ended(), TcpDialer::key_failures_max);
  EXPECT_TRUE(handler(1).messages.empty());
}

TEST_F(ElasticHostile, a_changed_byte_ends_the_connection_and_changes_no_message) {
  expect_healed([count = 0](Bytes record) mutable {
    if (++count == 2) record[record.size() / 2] ^= std::byte{1};
    return Proxy::Frames{std::move(record)};
  });
}

TEST_F(ElasticHostile, a_changed_tag_ends_the_connection_and_changes_no_message) {
  expect_healed([count = 0](Bytes record) mutable {
    if (++count == 1) record.back() ^= std::byte{0x80};
    return Proxy::Frames{std::move(record)};
  });
}

TEST_F(ElasticHostile, a_changed_record_type_ends_the_connection_and_changes_no_message) {
  expect_healed([count = 0](Bytes record) mutable {
    if (++count == 2) record.front() = std::byte{21};  // an alert
    return Proxy::Frames{std::move(record)};
  });
}

TEST_F(ElasticHostile, a_record_that_was_cut_ends_the_connection_and_changes_no_message) {
  expect_healed([count = 0](Bytes record) mutable {
    if (++count != 2) return Proxy::Frames{std::move(record)};
    record.pop_back();
    const auto rest = record.size() - Proxy::record_head_bytes;
    record[3] = static_cast<std::byte>(rest >> 8), record[4] = static_cast<std::byte>(rest);
    return Proxy::Frames{std::move(record)};
  });
}

TEST_F(ElasticHostile, a_repeated_record_ends_the_connection_and_repeats_no_message) {
  expect_healed([count = 0](Bytes record) mutable {
    return ++count == 1 ? Proxy::Frames{record, record} : Proxy::Frames{std::move(record)};
  });
}

TEST_F(ElasticHostile, a_missing_record_is_detected_with_the_next_one) {
  expect_healed(
      [count = 0](Bytes record) mutable { return ++count == 1 ? Proxy::Frames{} : Proxy::Frames{std::move(record)}; });
}

TEST_F(ElasticHostile, records_in_another_order_end_the_connection_and_reorder_no_message) {
  expect_healed([count = 0, held = Bytes()](Bytes record) mutable {
    ++count;
    if (count == 1) return held = std::move(record), Proxy::Frames{};
    return count == 2 ? Proxy::Frames{std::move(record), held} : Proxy::Frames{std::move(record)};
  });
}

TEST_F(ElasticHostile, a_record_of_an_earlier_connection_ends_the_next_one_and_repeats_no_message) {
  expect_healed([count = 0, recorded = Bytes()](Bytes record) mutable {
    ++count;
    if (count == 1) recorded = record;
    if (count == 2) record.back() ^= std::byte{1};  // this ends the connection on which `recorded` was sent
    if (count > 2 && !recorded.empty() && record.size() >= recorded.size() && record.front() == std::byte{23})
      record = std::exchange(recorded, {});
    return Proxy::Frames{std::move(record)};
  });
}

// The accepting side knows from the hello where the dialler listens, and dials back past the proxy.
TEST_F(ElasticHostile, a_path_that_alters_every_record_passes_no_wrong_message) {
  expect_healed([](Bytes record) {
    record.back() ^= std::byte{1};
    return Proxy::Frames{std::move(record)};
  });
}

TEST_F(ElasticHostile, a_path_that_breaks_every_link_is_not_redialled_without_end) {
  meet_through_proxy("");
  const auto before = links(0).counters().dials;
  proxy->change = [](Bytes) { return Proxy::Frames{conformance::pattern(sizeof(FrameHeader), test_seed())}; };
  send_message(0, 1, message_of(10, 1));
  EXPECT_FALSE(within(3 * second, [&] { return links(0).counters().dials - before > 1; }));
  EXPECT_EQ(handler(0).losses.size(), 1u);
}

// A process that sends arbitrary frames. It knows the job key of a run without a key, which it may have seen on the wire.
struct Intruder : ElasticHostile {
  // Sends the frames, with payloads of zeros. Checks that the link ends with an error that contains `what`, and that no message
  // is received.
  void expect_refused(std::vector<FrameHeader> frames, const std::string& what) {
    auto& victim = add();
    Unauthenticated unauthenticated(victim.endpoints()[0]);
    unauthenticated.send_bytes(hello_from(PeerId{7, 7}, id(0), job_key_of("run", nullptr)));
    settle();
    unauthenticated.send_struct(begin_at(0));
    settle();
    for (auto& header : frames) {
      seal_frame(header);
      const auto bytes = std::as_bytes(std::span(&header, 1));
      Bytes whole(bytes.begin(), bytes.end());
      whole.resize(whole.size() + header.payload_bytes);
      unauthenticated.send_bytes(whole);
    }
    ASSERT_TRUE(within(1 * second, [&] { return unauthenticated.closed(); }));
    EXPECT_TRUE(handler(0).messages.empty());
    EXPECT_EQ(victim.counters().refused_messages, 1u);
    ASSERT_EQ(handler(0).losses.size(), 1u);
    EXPECT_EQ(handler(0).losses[0].why.code(), Code::corrupt);
    EXPECT_NE(handler(0).losses[0].why.message().find(what), std::string::npos) << handler(0).losses[0].why.message();
    EXPECT_FALSE(handler(0).losses[0].refused);
    EXPECT_EQ(victim.last_refusal(), handler(0).losses[0].why.message());
  }
  static FrameHeader frame(ElasticFrame kind, uint32_t bytes = 0) {
    return {.kind = FrameKind::elastic, .round = static_cast<uint16_t>(kind), .payload_bytes = bytes};
  }
};

TEST_F(Intruder, a_process_with_only_the_job_key_is_refused_by_a_run_with_a_key) {
  const auto key = key_of("secret");
  auto& victim = add({.tls = key});
  Unauthenticated unauthenticated(victim.endpoints()[0]);
  unauthenticated.send_bytes(hello_from(PeerId{7, 7}, id(0), job_key_of("run", key.get())));
  ASSERT_TRUE(within(1 * second, [&] { return unauthenticated.closed(); }));
  EXPECT_EQ(victim.counters().refused_connections, 1u);
  EXPECT_TRUE(contains(victim.last_refusal(), "authentication failed: it has no key")) << victim.last_refusal();
  EXPECT_FALSE(victim.linked(PeerId{7, 7}));
}

TEST_F(Intruder, a_process_that_begins_no_handshake_times_out) {
  const auto key = key_of("secret");
  auto& victim = add({.tls = key});
  Unauthenticated unauthenticated(victim.endpoints()[0]);
  auto greeting = hello_from(PeerId{7, 7}, id(0), job_key_of("run", key.get()));
  greeting.preamble.flags |= tcp_flag_encrypted;
  seal(greeting.preamble);
  unauthenticated.send_struct(greeting.preamble);
  EXPECT_FALSE(within(4 * second, [&] { return unauthenticated.closed(); }));
  ASSERT_TRUE(within(2 * second, [&] { return unauthenticated.closed(); }));
  EXPECT_EQ(victim.counters().refused_connections, 1u);
}

TEST_F(Intruder, a_hello_in_clear_behind_an_encrypted_preamble_is_refused) {
  const auto key = key_of("secret");
  auto& victim = add({.tls = key});
  Unauthenticated unauthenticated(victim.endpoints()[0]);
  auto greeting = hello_from(PeerId{7, 7}, id(0), job_key_of("run", key.get()));
  greeting.preamble.flags |= tcp_flag_encrypted;
  seal(greeting.preamble);
  unauthenticated.send_bytes(greeting);
  ASSERT_TRUE(within(1 * second, [&] { return unauthenticated.closed(); }));
  EXPECT_EQ(victim.counters().refused_connections, 1u);
  EXPECT_FALSE(victim.linked(PeerId{7, 7}));
}

TEST_F(Intruder, a_frame_of_kind_1_is_refused) {
  expect_refused({frame(static_cast<ElasticFrame>(1), 32)}, "a frame that no elastic run sends");
}

TEST_F(Intruder, the_fields_of_a_tag_must_be_zero) {
  auto tagged = frame(ElasticFrame::message, 10);
  tagged.slice = 1;
  expect_refused({tagged}, "a frame that no elastic run sends");
}

TEST_F(Intruder, a_message_after_the_parting_is_refused) {
  expect_refused({frame(ElasticFrame::parting), frame(ElasticFrame::message)}, "after the parting");
}

TEST_F(Intruder, a_parting_with_a_payload_is_refused) {
  expect_refused({frame(ElasticFrame::parting, 1)}, "a parting with a payload");
}

TEST_F(Intruder, a_first_piece_followed_by_another_first_piece_is_refused) {
  expect_refused({frame(ElasticFrame::first_piece, 10), frame(ElasticFrame::first_piece, 10)}, "without the second");
}
TEST_F(Intruder, a_first_piece_before_a_parting_is_refused) {
  expect_refused({frame(ElasticFrame::first_piece, 10), frame(ElasticFrame::parting)}, "without the second");
}
TEST_F(Intruder, a_first_piece_before_an_empty_second_piece_is_refused) {
  expect_refused({frame(ElasticFrame::first_piece, 10), frame(ElasticFrame::message)}, "without the second");
}
TEST_F(Intruder, an_empty_first_piece_is_refused) { expect_refused({frame(ElasticFrame::first_piece)}, "too many bytes"); }
TEST_F(Intruder, a_first_piece_that_is_too_long_is_refused) {
  expect_refused({frame(ElasticFrame::first_piece, first_piece_bytes_max + 1)}, "too many bytes");
}

TEST_F(Intruder, a_frame_of_an_unknown_elastic_kind_is_refused) {
  expect_refused({frame(static_cast<ElasticFrame>(4))}, "a frame that no elastic run sends");
}

TEST_F(Intruder, a_frame_of_another_kind_is_refused) {
  auto other = frame(ElasticFrame::message, 1000);
  other.kind = FrameKind::data;
  expect_refused({other}, "a frame that no elastic run sends");
}

TEST_F(Intruder, unused_header_fields_must_be_zero) {
  auto odd = frame(ElasticFrame::message);
  odd.epoch = 1;
  expect_refused({odd}, "a frame that no elastic run sends");
}

TEST_F(ElasticHostile, an_invalid_header_ends_only_its_link) {
  auto& victim = add();
  Unauthenticated unauthenticated(victim.endpoints()[0]);
  unauthenticated.send_bytes(hello_from(PeerId{7, 7}, id(0), job_key_of("run", nullptr)));
  settle();
  unauthenticated.send_bytes(conformance::pattern(64, test_seed()));
  ASSERT_TRUE(within(1 * second, [&] { return unauthenticated.closed(); }));
  ASSERT_EQ(handler(0).losses.size(), 1u);
  EXPECT_EQ(handler(0).losses[0].why.code(), Code::corrupt);
}

}  // namespace
}  // namespace unisono
