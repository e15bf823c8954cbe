// Peers with different runs or run keys, and connections on which messages are changed, repeated, swapped or injected.
#include <gtest/gtest.h>

#include "tests/conformance/elastic_crowd.h"

namespace unisono {
namespace {

using conformance::begin_at;
using conformance::hello_from;
using conformance::same;
using conformance::test_seed;
using conformance::Unauthenticated;

class ElasticHostile : public ElasticLinksCluster {
 protected:
  // Connects member 0 to member 1 through the proxy. Both members have the run key.
  void meet_through_proxy() {
    add({.run_key = "secret"}), add({.run_key = "secret"});
    proxy = std::make_unique<Proxy>(address(1));
    others.push_back([&] { proxy->turn(); });
    links(0).know(id(1), {proxy->endpoint()}, true);
    send_message(0, 1, message_of(100, 0));
    ASSERT_TRUE(has_received(1, 1));
  }
  // Sends three messages through a proxy that changes the frames by `change`. Checks that only the first `passed` messages
  // arrive, that the link ends with the error corrupt, and that a new link works.
  void expect_refusal(size_t passed, std::function<Proxy::Frames(Bytes)> change, bool in_pieces = false) {
    meet_through_proxy();
    // The proxy changes frames only until the first refusal, so the new link is undisturbed.
    proxy->change = [this, change = std::move(change)](Bytes frame) {
      return links(1).counters().refused_messages == 0 ? change(std::move(frame)) : Proxy::Frames{std::move(frame)};
    };
    for (uint64_t i = 1; i <= 3; ++i) {
      const auto whole = message_of(100 * i, i);
      if (in_pieces)
        EXPECT_TRUE(links(0).send(id(1), SharedMessage(whole.slice(0, 64), whole.slice(64, whole.size() - 64)), now));
      else send_message(0, 1, whole);
    }
    ASSERT_TRUE(within(1 * second, [&] { return !handler(1).losses.empty(); }));
    EXPECT_EQ(handler(1).losses[0].peer, id(0));
    EXPECT_EQ(handler(1).losses[0].why.code(), Code::corrupt);
    EXPECT_NE(handler(1).losses[0].why.message().find("run key"), std::string::npos) << handler(1).losses[0].why.message();
    EXPECT_EQ(handler(1).messages.size(), 1 + passed);
    EXPECT_EQ(links(1).counters().refused_messages, 1u);
    ASSERT_TRUE(within(1 * second, [&] { return handler(0).losses.size() == 1; }));
    send_message(0, 1, message_of(77, 7));
    ASSERT_TRUE(within(1 * second, [&] { return handler(1).messages.size() == 2 + passed; }));
    EXPECT_TRUE(same(handler(1).messages.back().second.view(), message_of(77, 7).view()));
  }
  static FrameHeader header_of(const Bytes& frame) {
    FrameHeader header;
    std::memcpy(&header, frame.data(), sizeof header);
    return header;
  }
  static Bytes with(Bytes frame, FrameHeader header) {
    seal_frame(header);
    std::memcpy(frame.data(), &header, sizeof header);
    return frame;
  }
  std::unique_ptr<Proxy> proxy;
};

TEST_F(ElasticHostile, runs_with_other_keys_or_none_refuse_each_other_by_name) {
  const char* keys[] = {"", "secret", "Secret"};
  for (const auto* key : keys) add({.run_key = key});
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
    EXPECT_EQ(links(i).counters().refused_connections, 2u);
    EXPECT_TRUE(handler(i).messages.empty());
    for (const auto& [there, why] : handler(i).failures) {
      EXPECT_EQ(why.code(), Code::invalid);
      EXPECT_NE(why.message().find("another job"), std::string::npos) << why.message();
    }
  }
}

TEST_F(ElasticHostile, a_changed_byte_is_refused) {
  expect_refusal(1, [count = 0](Bytes frame) mutable {
    if (++count == 2) frame[sizeof(FrameHeader) + 150] ^= std::byte{1};
    return Proxy::Frames{std::move(frame)};
  });
}

TEST_F(ElasticHostile, a_changed_tag_is_refused) {
  expect_refusal(0, [](Bytes frame) {
    auto header = header_of(frame);
    header.amount ^= uint64_t{1} << 63;
    return Proxy::Frames{with(std::move(frame), header)};
  });
}

TEST_F(ElasticHostile, a_repeated_message_is_refused) {
  expect_refusal(1, [](Bytes frame) { return Proxy::Frames{frame, frame}; });
}

TEST_F(ElasticHostile, a_missing_message_is_detected_with_the_next_one) {
  expect_refusal(0,
                 [count = 0](Bytes frame) mutable { return ++count == 1 ? Proxy::Frames{} : Proxy::Frames{std::move(frame)}; });
}

TEST_F(ElasticHostile, messages_in_another_order_are_refused) {
  expect_refusal(0, [held = Bytes()](Bytes frame) mutable {
    if (held.empty()) return held = std::move(frame), Proxy::Frames{};
    return Proxy::Frames{std::move(frame), held};
  });
}

TEST_F(ElasticHostile, another_number_on_a_message_is_refused) {
  expect_refusal(0, [](Bytes frame) {
    auto header = header_of(frame);
    ++header.operation;
    return Proxy::Frames{with(std::move(frame), header)};
  });
}

TEST_F(ElasticHostile, a_message_cannot_be_turned_into_a_parting) {
  expect_refusal(0, [](Bytes frame) {
    auto header = header_of(frame);
    header.round = static_cast<uint16_t>(ElasticFrame::parting);
    return Proxy::Frames{with(std::move(frame), header)};
  });
}

// Each message takes two frames: its first 64 bytes, then the rest. The fourth frame is the end of the second message.
TEST_F(ElasticHostile, a_message_whose_second_piece_was_changed_is_refused) {
  expect_refusal(
      1,
      [count = 0](Bytes frame) mutable {
        if (++count == 4) frame.back() ^= std::byte{1};
        return Proxy::Frames{std::move(frame)};
      },
      true);
}

TEST_F(ElasticHostile, a_message_whose_second_piece_was_cut_is_refused) {
  expect_refusal(
      1,
      [count = 0](Bytes frame) mutable {
        if (++count != 4) return Proxy::Frames{std::move(frame)};
        auto header = header_of(frame);
        header.payload_bytes -= 8;
        frame.resize(frame.size() - 8);
        return Proxy::Frames{with(std::move(frame), header)};
      },
      true);
}

TEST_F(ElasticHostile, a_message_whose_first_piece_was_changed_is_refused) {
  expect_refusal(
      1,
      [count = 0](Bytes frame) mutable {
        if (++count == 3) frame.back() ^= std::byte{1};
        return Proxy::Frames{std::move(frame)};
      },
      true);
}

TEST_F(ElasticHostile, a_second_piece_without_its_first_is_refused) {
  expect_refusal(
      1, [count = 0](Bytes frame) mutable { return ++count == 3 ? Proxy::Frames{} : Proxy::Frames{std::move(frame)}; }, true);
}

TEST_F(ElasticHostile, a_first_piece_with_the_second_of_another_message_is_refused) {
  expect_refusal(
      0,
      [count = 0](Bytes frame) mutable {
        return ++count == 2 || count == 3 ? Proxy::Frames{} : Proxy::Frames{std::move(frame)};
      },
      true);
}

TEST_F(ElasticHostile, messages_of_an_earlier_link_are_refused_on_a_new_one) {
  meet_through_proxy();
  Bytes recorded;
  proxy->change = [&](Bytes frame) { return recorded = frame, Proxy::Frames{std::move(frame)}; };
  send_message(0, 1, message_of(100, 1));
  ASSERT_TRUE(has_received(1, 2));
  // A damaged frame ends the link. Both links have a frame with number 1. On the new link, the proxy replaces it by the
  // recorded frame of the earlier link.
  proxy->change = [&](Bytes frame) {
    if (links(1).counters().refused_messages == 0) frame.back() ^= std::byte{1};
    else if (header_of(frame).operation == 1) frame = recorded;
    return Proxy::Frames{std::move(frame)};
  };
  send_message(0, 1, message_of(100, 1));
  ASSERT_TRUE(within(1 * second, [&] { return handler(0).losses.size() == 1 && links(0).linked(id(1)); }));
  EXPECT_EQ(links(1).counters().refused_messages, 1u);
  send_message(0, 1, message_of(100, 2)), send_message(0, 1, message_of(100, 3));
  ASSERT_TRUE(within(1 * second, [&] { return links(1).counters().refused_messages == 2; }));
  EXPECT_EQ(handler(1).messages.size(), 3u);
}

TEST_F(ElasticHostile, a_path_that_breaks_every_link_is_not_redialled_without_end) {
  meet_through_proxy();
  const auto before = links(0).counters().dials;
  proxy->change = [](Bytes) { return Proxy::Frames{conformance::pattern(sizeof(FrameHeader), test_seed())}; };
  send_message(0, 1, message_of(10, 1));
  EXPECT_FALSE(within(3 * second, [&] { return links(0).counters().dials - before > 1; }));
  EXPECT_EQ(handler(0).losses.size(), 2u) << "the link, and the one that was to replace it";
}

// A process that sends arbitrary frames. It knows the job key, which it may have seen on the wire, or even the run key.
struct Intruder : ElasticHostile {
  // Sends the frames, with payloads of zeros. Checks that the link ends with an error that contains `what`, and that no message
  // is received.
  void expect_refused(const std::string& key, std::vector<FrameHeader> frames, const std::string& what) {
    auto& victim = add({.run_key = key});
    Unauthenticated unauthenticated(victim.endpoints()[0]);
    connect(unauthenticated, key);
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
  // Makes a connection of the stream. Only the greeting of the run is missing.
  void connect(Unauthenticated& unauthenticated, const std::string& key) {
    unauthenticated.send_bytes(hello_from(PeerId{7, 7}, id(0), (*RunKey::make("run", key)).job()));
    settle();
    unauthenticated.send_struct(begin_at(0));
    settle();
  }
  static FrameHeader frame(ElasticFrame kind, uint32_t bytes = 0) {
    return {.kind = FrameKind::elastic, .round = static_cast<uint16_t>(kind), .payload_bytes = bytes};
  }
};

TEST_F(Intruder, a_process_with_only_the_job_key_cannot_send_messages) {
  expect_refused("secret", {frame(ElasticFrame::greeting, 32), frame(ElasticFrame::message, 10)}, "run key");
}

TEST_F(Intruder, a_message_before_the_greeting_is_refused) {
  expect_refused("secret", {frame(ElasticFrame::message, 10)}, "before the greeting");
}

TEST_F(Intruder, a_greeting_of_another_length_is_refused) {
  expect_refused("secret", {frame(ElasticFrame::greeting, 31)}, "greeting");
}

TEST_F(Intruder, no_memory_is_allocated_before_the_greeting) {
  auto& victim = add({.run_key = "secret"});
  Unauthenticated unauthenticated(victim.endpoints()[0]);
  connect(unauthenticated, "secret");
  auto header = frame(ElasticFrame::greeting, 16u << 20);
  seal_frame(header);
  unauthenticated.send_bytes(std::as_bytes(std::span(&header, 1)));  // only the header; the payload of 16 MiB never follows
  ASSERT_TRUE(within(1 * second, [&] { return unauthenticated.closed(); }));
  ASSERT_EQ(handler(0).losses.size(), 1u);
  EXPECT_EQ(handler(0).losses[0].why.code(), Code::corrupt);
}

TEST_F(Intruder, a_process_that_never_sends_a_greeting_times_out) {
  auto& victim = add({.run_key = "secret"});
  Unauthenticated unauthenticated(victim.endpoints()[0]);
  connect(unauthenticated, "secret");
  EXPECT_FALSE(within(4 * second, [&] { return unauthenticated.closed(); }));
  ASSERT_TRUE(within(2 * second, [&] { return unauthenticated.closed(); }));
  ASSERT_EQ(handler(0).losses.size(), 1u);
  EXPECT_EQ(handler(0).losses[0].why.code(), Code::peer_lost);
}

TEST_F(Intruder, a_second_greeting_is_refused) {
  expect_refused("secret", {frame(ElasticFrame::greeting, 32), frame(ElasticFrame::greeting, 32)}, "greeting");
}

TEST_F(Intruder, a_parting_without_a_tag_is_refused) {
  expect_refused("secret", {frame(ElasticFrame::greeting, 32), frame(ElasticFrame::parting)}, "run key");
}

TEST_F(Intruder, a_greeting_in_a_run_without_a_key_is_refused) {
  expect_refused("", {frame(ElasticFrame::greeting, 32)}, "greeting");
}

TEST_F(Intruder, a_tag_in_a_run_without_a_key_is_refused) {
  auto tagged = frame(ElasticFrame::message, 10);
  tagged.slice = 1;
  expect_refused("", {tagged}, "without a key");
}

TEST_F(Intruder, a_message_after_the_parting_is_refused) {
  expect_refused("", {frame(ElasticFrame::parting), frame(ElasticFrame::message)}, "after the parting");
}

TEST_F(Intruder, a_parting_with_a_payload_is_refused) {
  expect_refused("", {frame(ElasticFrame::parting, 1)}, "a parting with a payload");
}

TEST_F(Intruder, a_first_piece_followed_by_another_first_piece_is_refused) {
  expect_refused("", {frame(ElasticFrame::first_piece, 10), frame(ElasticFrame::first_piece, 10)}, "without the second");
}
TEST_F(Intruder, a_first_piece_before_a_parting_is_refused) {
  expect_refused("", {frame(ElasticFrame::first_piece, 10), frame(ElasticFrame::parting)}, "without the second");
}
TEST_F(Intruder, a_first_piece_before_an_empty_second_piece_is_refused) {
  expect_refused("", {frame(ElasticFrame::first_piece, 10), frame(ElasticFrame::message)}, "without the second");
}
TEST_F(Intruder, an_empty_first_piece_is_refused) { expect_refused("", {frame(ElasticFrame::first_piece)}, "too many bytes"); }
TEST_F(Intruder, a_first_piece_that_is_too_long_is_refused) {
  expect_refused("", {frame(ElasticFrame::first_piece, first_piece_bytes_max + 1)}, "too many bytes");
}

TEST_F(Intruder, a_frame_of_an_unknown_elastic_kind_is_refused) {
  expect_refused("", {frame(static_cast<ElasticFrame>(4))}, "a frame that no elastic run sends");
}

TEST_F(Intruder, a_frame_of_another_kind_is_refused) {
  auto other = frame(ElasticFrame::message, 1000);
  other.kind = FrameKind::data;
  expect_refused("", {other}, "a frame that no elastic run sends");
}

TEST_F(Intruder, unused_header_fields_must_be_zero) {
  auto odd = frame(ElasticFrame::message);
  odd.epoch = 1;
  expect_refused("", {odd}, "a frame that no elastic run sends");
}

TEST_F(ElasticHostile, an_invalid_header_ends_only_its_link) {
  auto& victim = add();
  Unauthenticated unauthenticated(victim.endpoints()[0]);
  unauthenticated.send_bytes(hello_from(PeerId{7, 7}, id(0), (*RunKey::make("run", "")).job()));
  settle();
  unauthenticated.send_bytes(conformance::pattern(64, test_seed()));
  ASSERT_TRUE(within(1 * second, [&] { return unauthenticated.closed(); }));
  ASSERT_EQ(handler(0).losses.size(), 1u);
  EXPECT_EQ(handler(0).losses[0].why.code(), Code::corrupt);
}

}  // namespace
}  // namespace unisono
