// The keys of a run: which data they depend on, and which messages a tag accepts.
#include "elastic/links/run_key.h"

#include <gtest/gtest.h>

#include <string_view>

namespace unisono {
namespace {

RunKey key(const std::string& run, const std::string& secret) {
  auto made = RunKey::make(run, secret);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(*made);
}

ByteView bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

class LinkSeals : public testing::Test {
 protected:
  static const RunKey& run() {
    static const RunKey made = key("run", "secret");
    return made;
  }
  LinkEnd a{{1, 2}, RunKey::draw_nonce()}, b{{3, 4}, RunKey::draw_nonce()};
  LinkSeal out = run().seal(a, b), in = run().seal(a, b);
};

TEST(RunKey, depends_on_run_and_secret_and_on_nothing_else) {
  const auto one = key("run", "secret");
  EXPECT_TRUE(one.authenticates());
  EXPECT_EQ(one.job(), key("run", "secret").job());
  EXPECT_NE(one.job(), key("run", "Secret").job());
  EXPECT_NE(one.job(), key("ruN", "secret").job());
  EXPECT_NE(one.job(), key("run", "").job());
}

TEST(RunKey, without_a_secret_keeps_runs_apart) {
  EXPECT_FALSE(key("run", "").authenticates());
  EXPECT_EQ(key("run", "").job(), key("run", "").job());
  EXPECT_NE(key("run", "").job(), key("other", "").job());
}

TEST(RunKey, refuses_a_secret_of_a_megabyte) {
  EXPECT_EQ(RunKey::make("run", std::string(1u << 20, 'x')).status().code(), Code::invalid);
}

TEST_F(LinkSeals, accept_messages_in_the_order_of_sealing) {
  for (const auto* text : {"", "one", "two", ""}) {
    const auto number = out.next();
    const auto tag = out.seal(0, bytes(text));
    EXPECT_TRUE(in.open(0, number, tag, bytes(text)));
  }
  EXPECT_EQ(in.next(), 4u);
}

TEST_F(LinkSeals, refuse_other_bytes_another_kind_and_another_tag) {
  auto tag = out.seal(0, bytes("one"));
  EXPECT_FALSE(in.open(0, 0, tag, bytes("onE")));
  EXPECT_FALSE(in.open(0, 0, tag, bytes("one ")));
  EXPECT_FALSE(in.open(2, 0, tag, bytes("one")));
  EXPECT_FALSE(in.open(0, 0, {tag.low ^ 1, tag.high}, bytes("one")));
  EXPECT_FALSE(in.open(0, 0, {tag.low, tag.high ^ 1}, bytes("one")));
  EXPECT_TRUE(in.open(0, 0, tag, bytes("one")));
}

TEST_F(LinkSeals, refuse_messages_that_are_repeated_or_too_early) {
  const auto one = out.seal(0, bytes("one")), two = out.seal(0, bytes("two"));
  EXPECT_FALSE(in.open(0, 1, two, bytes("two")));
  EXPECT_TRUE(in.open(0, 0, one, bytes("one")));
  EXPECT_FALSE(in.open(0, 0, one, bytes("one")));
  EXPECT_FALSE(in.open(0, 1, one, bytes("one")));
  EXPECT_TRUE(in.open(0, 1, two, bytes("two")));
}

TEST_F(LinkSeals, of_other_links_directions_and_secrets_are_refused) {
  const auto tag = out.seal(0, bytes("one"));
  LinkEnd other = b;
  other.nonce = RunKey::draw_nonce();
  LinkEnd namesake = b;
  namesake.id.low ^= 1;
  for (auto wrong : {run().seal(b, a), run().seal(a, other), run().seal(a, namesake), key("run", "Secret").seal(a, b)}) {
    EXPECT_FALSE(wrong.open(0, 0, tag, bytes("one")));
  }
}

}  // namespace
}  // namespace unisono
