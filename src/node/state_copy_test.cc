#include "node/state_copy.h"

#include <gtest/gtest.h>

#include "node/state_test_support.h"
#include "wire/digest.h"

namespace unisono {
namespace {

const std::vector<size_t> sizes = {100, 0, 50};

Bytes part_of(const StateCopy& copy, uint32_t part) {
  Bytes bytes(copy.part_bytes(part));
  copy.read_part(part, bytes);
  return bytes;
}
Bytes slice(const Bytes& values, size_t at, size_t size) {
  return {values.begin() + static_cast<std::ptrdiff_t>(at), values.begin() + static_cast<std::ptrdiff_t>(at + size)};
}

TEST(StateCopy, has_nothing_to_give_before_the_first_sweep) {
  StateCopy copy(1, sizes);
  EXPECT_TRUE(copy.empty());
  EXPECT_EQ(copy.state_digest(), 0u);
  EXPECT_FALSE(copy.hold());
}

TEST(StateCopy, gives_what_was_there_at_the_end_of_the_sweep_although_it_is_overwritten) {
  StateCopy copy(1, sizes);
  const auto original = test::random_bytes(150, 1);
  auto values = original;
  copy.finished(3, values);
  ASSERT_TRUE(copy.hold());
  for (const size_t chunk : {0, 2}) {
    copy.before_write(chunk);
    std::fill(values.begin() + (chunk == 0 ? 0 : 100), values.begin() + (chunk == 0 ? 100 : 150), std::byte{0});
    copy.before_write(chunk);  // later writes of the same sweep
    EXPECT_EQ(part_of(copy, 0), slice(original, 0, 100));
    EXPECT_EQ(part_of(copy, 1), Bytes{});
    EXPECT_EQ(part_of(copy, 2), slice(original, 100, 50));
  }
  EXPECT_EQ(copy.manifest().chunk_digests[2], digest64(slice(original, 100, 50)));
  EXPECT_EQ(digest(copy.manifest()), copy.held_digest());
}

TEST(StateCopy, offers_a_newer_state_once_the_held_one_is_let_go) {
  StateCopy copy(1, sizes);
  auto values = test::random_bytes(150, 1);
  copy.finished(3, values);
  const auto first = copy.state_digest();
  ASSERT_TRUE(copy.hold());
  copy.before_write_all();
  values = test::random_bytes(150, 2);
  copy.finished(4, values);
  EXPECT_EQ(copy.state_digest(), first);
  EXPECT_EQ(copy.sweep(), 3);
  copy.release();
  EXPECT_NE(copy.state_digest(), first);
  EXPECT_EQ(copy.sweep(), 4);
  ASSERT_TRUE(copy.hold());
  EXPECT_EQ(part_of(copy, 0), slice(values, 0, 100));
}

TEST(StateCopy, cannot_be_held_while_it_is_overwritten_and_nobody_had_asked_before) {
  StateCopy copy(1, sizes);
  auto values = test::random_bytes(150, 1);
  copy.finished(3, values);
  copy.before_write(2);
  EXPECT_FALSE(copy.hold());
  EXPECT_NE(copy.state_digest(), 0u);
  copy.finished(4, values);
  EXPECT_TRUE(copy.hold());
}

TEST(StateCopy, names_equal_states_alike_and_takes_digests_that_are_known) {
  const auto values = test::random_bytes(150, 1);
  StateCopy one(1, sizes), other(1, sizes);
  one.finished(3, values);
  other.finished(3, values, {digest64(slice(values, 0, 100)), digest64({}), digest64(slice(values, 100, 50))});
  EXPECT_EQ(one.state_digest(), other.state_digest());
  other.finished(4, values);
  EXPECT_NE(one.state_digest(), other.state_digest());
}

TEST(StateCopy, blobs_are_cut_into_pieces_and_new_ones_count_at_once_but_for_a_held_state) {
  StateCopy copy(1, sizes);
  const auto values = test::random_bytes(150, 1);
  const auto large = test::random_bytes(state_piece_bytes + 10, 2), small = test::random_bytes(5, 3);
  copy.finished(3, values);
  const auto without = copy.state_digest();
  ASSERT_TRUE(copy.set_blobs({test::blob("z", small), test::blob("a", large)}).ok());
  EXPECT_NE(copy.state_digest(), without);
  ASSERT_TRUE(copy.hold());
  ASSERT_EQ(copy.manifest().part_count(), 6u);
  EXPECT_EQ(part_of(copy, 3), slice(large, 0, state_piece_bytes));
  EXPECT_EQ(part_of(copy, 4), slice(large, state_piece_bytes, 10));
  ASSERT_TRUE(copy.set_blobs({}).ok());
  EXPECT_EQ(part_of(copy, 5), small);
  copy.release();
  EXPECT_EQ(copy.state_digest(), without);
}

TEST(StateCopy, refuses_blobs_over_a_limit_and_keeps_what_it_had) {
  StateCopy copy(1, sizes);
  const auto values = test::random_bytes(150, 1);
  copy.finished(3, values);
  ASSERT_TRUE(copy.set_blobs({test::blob("a", values)}).ok());
  const auto before = copy.state_digest();
  EXPECT_EQ(copy.set_blobs({test::blob("b", values), test::blob("b", values)}).code(), Code::invalid);
  EXPECT_EQ(copy.set_blobs({test::blob(std::string(256, 'n'), values)}).code(), Code::invalid);
  std::vector<StateBlob> many;
  for (size_t i = 0; i <= state_blobs_max; ++i) many.push_back(test::blob(std::to_string(i), {}));
  EXPECT_EQ(copy.set_blobs(many).code(), Code::invalid);
  EXPECT_EQ(copy.state_digest(), before);
}

}  // namespace
}  // namespace unisono
