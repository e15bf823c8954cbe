#include "elastic/layout/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/random.h"
#include "elastic/layout/record_holders.h"
#include "wire/digest.h"

namespace unisono {
namespace {

std::vector<PeerId> peers_of(uint32_t count, uint64_t seed = 1) {
  Random random(seed);
  std::vector<PeerId> peers;
  for (uint32_t i = 0; i < count; ++i) {
    const auto low = random.next();
    peers.push_back({low, random.next()});
  }
  return peers;
}

Layout layout_of(uint32_t count, uint64_t version = 3) {
  auto layout = make_layout({.run = "demo", .version = version, .first_step = 9}, peers_of(count));
  EXPECT_TRUE(layout.ok()) << layout.status().to_string();
  return std::move(layout).value();
}

Bytes bytes_of(const Layout& layout) {
  ByteWriter writer;
  write_layout(writer, layout);
  return std::move(writer).take();
}

// Returns the layout's encoding with a matching digest, even if other fields are invalid.
Bytes sealed(Layout layout) {
  const auto bytes = bytes_of(layout);
  layout.digest = digest64(ByteView(bytes).first(bytes.size() - sizeof(layout.digest)));
  return bytes_of(layout);
}

void expect_corrupt(const Bytes& bytes, const std::string& why) {
  ByteReader reader(bytes);
  Layout layout;
  const auto status = read_layout(reader, layout);
  EXPECT_EQ(status.code(), Code::corrupt);
  EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  EXPECT_EQ(layout, Layout{}) << "touched";
}

void expect_invalid(const LayoutRequest& request, const std::vector<PeerId>& peers, const std::string& why) {
  const auto layout = make_layout(request, peers);
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().code(), Code::invalid);
  EXPECT_NE(layout.status().message().find(why), std::string::npos) << layout.status().message();
}

TEST(Layout, survives_encoding) {
  for (const uint32_t count : {1u, 5u, 37u, 1025u, 4096u}) {
    const auto layout = layout_of(count);
    const auto bytes = bytes_of(layout);
    ByteReader reader(bytes);
    Layout read;
    ASSERT_TRUE(read_layout(reader, read).ok());
    EXPECT_EQ(read, layout);
    EXPECT_TRUE(reader.done());
    const auto grid = grid_of(read);
    ASSERT_TRUE(grid.ok());
    EXPECT_EQ(grid->dims(), fitted_dims(count, 32));
    EXPECT_EQ(grid->peers(), count);
  }
}

TEST(Layout, decoding_leaves_the_bytes_that_follow_it) {
  auto bytes = bytes_of(layout_of(5));
  bytes.push_back(std::byte{7});
  ByteReader reader(bytes);
  Layout read;
  ASSERT_TRUE(read_layout(reader, read).ok());
  EXPECT_EQ(reader.read<uint8_t>(), 7);
}

TEST(Layout, of_the_published_kinds_survives_encoding) {
  for (const auto kind : {GridKind::published, GridKind::chunk_keys}) {
    const auto layout = make_layout({.run = "demo", .version = 1, .grid = kind, .max_group = 8}, peers_of(37));
    ASSERT_TRUE(layout.ok());
    const auto bytes = bytes_of(*layout);
    ByteReader reader(bytes);
    Layout read;
    ASSERT_TRUE(read_layout(reader, read).ok());
    EXPECT_EQ(read, *layout);
    EXPECT_EQ(grid_of(read)->cells(), 64u);
  }
}

TEST(Layout, of_the_published_kinds_can_be_exact_only_if_it_is_full) {
  for (const auto kind : {GridKind::published, GridKind::chunk_keys}) {
    const auto exact = [&](uint32_t peers) {
      return can_be_exact(*make_layout({.run = "demo", .version = 1, .grid = kind, .max_group = 4}, peers_of(peers)));
    };
    EXPECT_TRUE(exact(16));
    EXPECT_TRUE(exact(64));
    EXPECT_TRUE(exact(3)) << "one group of all";
    EXPECT_FALSE(exact(15));
    EXPECT_FALSE(exact(17));
  }
  EXPECT_TRUE(can_be_exact(layout_of(37)));
}

TEST(Layout, orders_peers_by_score_under_its_key) {
  std::vector<PeerId> peers;
  for (uint64_t pid = 1; pid <= 8; ++pid) peers.push_back({pid, 77});
  const auto layout = make_layout({.run = "demo", .version = 1}, peers);
  ASSERT_TRUE(layout.ok());
  std::vector<uint64_t> order;
  for (const auto& peer : layout->peers) order.push_back(peer.low);
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 5, 4, 7, 6, 2, 3, 8}));
  EXPECT_EQ(make_layout({.run = "demo", .version = 2}, peers)->peers, by_score("layout/demo/2", peers));
  EXPECT_EQ(make_layout({.run = "other", .version = 1}, peers)->peers, by_score("layout/other/1", peers));
}

TEST(Layout, is_the_same_however_the_roster_is_ordered) {
  auto peers = peers_of(100);
  peers.push_back({peers[0].low, 1});  // has the same low half as peers[0], and therefore the same score
  const LayoutRequest request{.run = "demo", .version = 2, .first_step = 4};
  const auto first = make_layout(request, peers);
  ASSERT_TRUE(first.ok());
  Random random(5);
  for (int trial = 0; trial < 20; ++trial) {
    for (size_t i = peers.size() - 1; i > 0; --i) std::swap(peers[i], peers[random.below(i + 1)]);
    const auto again = make_layout(request, peers);
    ASSERT_TRUE(again.ok());
    ASSERT_EQ(*again, *first) << trial;
  }
}

TEST(Layout, has_a_digest_of_everything_in_it) {
  const auto peers = peers_of(16);
  const LayoutRequest base{.run = "demo", .version = 2, .first_step = 4, .dims = {4, 4}};
  std::vector<LayoutRequest> others(4, base);
  others[0].version = 3;
  others[1].first_step = 5;
  others[2].grid = GridKind::published;
  others[3].dims = {2, 8};
  std::vector<uint64_t> digests = {make_layout(base, peers)->digest, make_layout(base, peers_of(16, 2))->digest};
  for (const auto& other : others) digests.push_back(make_layout(other, peers)->digest);
  std::sort(digests.begin(), digests.end());
  EXPECT_EQ(std::adjacent_find(digests.begin(), digests.end()), digests.end());
}

TEST(Layout, knows_the_rank_of_a_peer) {
  const auto layout = layout_of(37);
  for (uint32_t rank = 0; rank < 37; ++rank) EXPECT_EQ(layout.rank_of(layout.peers[rank]), rank);
  EXPECT_EQ(layout.rank_of({1, 2}), 37u);
  EXPECT_EQ(layout.rank_of({layout.peers[3].low, layout.peers[3].high + 1}), 37u);
}

TEST(Layout, replaces_an_older_one_and_the_smaller_digest_its_equal) {
  Layout older{.version = 1, .dims = {}, .peers = {}, .digest = 5}, newer = older, equal = older;
  newer.version = 2, newer.digest = 9;
  equal.digest = 4;
  EXPECT_TRUE(replaces(newer, older));
  EXPECT_FALSE(replaces(older, newer));
  EXPECT_TRUE(replaces(equal, older));
  EXPECT_FALSE(replaces(older, equal));
  EXPECT_FALSE(replaces(older, older));
  EXPECT_TRUE(replaces(older, Layout{}));
}

TEST(Layout, is_not_made_without_peers) { expect_invalid({.run = "demo", .version = 1}, {}, "0 peers"); }
TEST(Layout, is_not_made_of_too_many_peers) { expect_invalid({.run = "demo", .version = 1}, peers_of(4097), "4097 peers"); }
TEST(Layout, is_not_made_with_a_peer_twice) {
  expect_invalid({.run = "demo", .version = 1}, {{1, 2}, {3, 4}, {1, 2}}, "twice");
}
TEST(Layout, is_not_made_as_version_0) { expect_invalid({.run = "demo", .version = 0}, peers_of(3), "start with 1"); }
TEST(Layout, is_not_made_for_groups_of_three) {
  expect_invalid({.run = "demo", .version = 1, .max_group = 3}, peers_of(9), "groups of 3");
}
TEST(Layout, is_not_made_with_dims_that_do_not_fit) {
  expect_invalid({.run = "demo", .version = 1, .dims = {3, 3}}, peers_of(8), "3x3");
}

TEST(LayoutBytes, cut_anywhere_are_refused) {
  const auto whole = bytes_of(layout_of(37));
  for (size_t size = 0; size < whole.size(); ++size)
    expect_corrupt(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)), "cut off");
}

TEST(LayoutBytes, with_any_bit_changed_are_refused) {
  const auto whole = bytes_of(layout_of(5));
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    auto bytes = whole;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    expect_corrupt(bytes, "layout");
  }
}

TEST(LayoutBytes, of_version_0_are_refused) {
  auto layout = layout_of(5);
  layout.version = 0;
  expect_corrupt(sealed(layout), "version");
}

TEST(LayoutBytes, of_an_unknown_kind_of_grid_are_refused) {
  auto layout = layout_of(5);
  layout.grid = static_cast<GridKind>(3);
  expect_corrupt(sealed(layout), "kind 3");
}

TEST(LayoutBytes, without_axes_are_refused) {
  auto layout = layout_of(5);
  layout.dims.clear();
  expect_corrupt(sealed(layout), "dims: 0 axes");
}

TEST(LayoutBytes, with_too_many_axes_are_refused) {
  auto layout = layout_of(1);
  layout.dims.assign(21, 1);
  expect_corrupt(sealed(layout), "dims: 21 axes");
}

TEST(LayoutBytes, with_dims_that_do_not_fit_are_refused) {
  auto layout = layout_of(8);
  layout.dims = {3, 3};
  expect_corrupt(sealed(layout), "dims");
}

TEST(LayoutBytes, with_keys_on_axes_that_differ_are_refused) {
  auto layout = layout_of(8);
  layout.grid = GridKind::chunk_keys;
  layout.dims = {2, 4};
  expect_corrupt(sealed(layout), "one length");
}

TEST(LayoutBytes, without_peers_are_refused) {
  auto layout = layout_of(5);
  layout.peers.clear();
  expect_corrupt(sealed(layout), "peers: 0");
}

TEST(LayoutBytes, with_too_many_peers_are_refused) {
  auto layout = layout_of(5);
  layout.peers = peers_of(4097);
  layout.dims = fitted_dims(4097, 32);
  expect_corrupt(sealed(layout), "peers: 4097");
}

TEST(LayoutBytes, with_a_peer_twice_are_refused) {
  auto layout = layout_of(5);
  layout.peers[4] = layout.peers[1];
  expect_corrupt(sealed(layout), "twice");
}

TEST(LayoutBytes, with_another_digest_are_refused) {
  auto layout = layout_of(5);
  ++layout.digest;
  expect_corrupt(bytes_of(layout), "digest");
}

}  // namespace
}  // namespace unisono
