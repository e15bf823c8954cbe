#include "elastic/state/state_copy.h"

#include <gtest/gtest.h>

#include "elastic/state/state_test_support.h"
#include "wire/digest.h"

namespace unisono {
namespace {

const std::vector<size_t> chunk_sizes = {100, 0, 50};

Bytes part_of(const StateCopy& copy, uint32_t part) {
  const auto bytes = copy.part(part);
  return {bytes.view().begin(), bytes.view().end()};
}
Bytes slice_of(const Bytes& values, size_t at, size_t size) {
  return {values.begin() + static_cast<std::ptrdiff_t>(at), values.begin() + static_cast<std::ptrdiff_t>(at + size)};
}

TEST(StateCopy, offers_no_state_before_the_first_step) {
  StateCopy copy(1, chunk_sizes);
  EXPECT_TRUE(copy.empty());
  EXPECT_EQ(copy.state_digest(), 0u);
}

TEST(StateCopy, gives_the_chunks_of_the_step) {
  StateCopy copy(1, chunk_sizes);
  const auto values = test::random_bytes(150, 1);
  test::finish(copy, 3, values, chunk_sizes);
  copy.hold();
  EXPECT_EQ(part_of(copy, 0), slice_of(values, 0, 100));
  EXPECT_EQ(part_of(copy, 1), Bytes{});
  EXPECT_EQ(part_of(copy, 2), slice_of(values, 100, 50));
  EXPECT_EQ(copy.manifest().chunk_digests[2], digest64(slice_of(values, 100, 50)));
  EXPECT_EQ(digest(copy.manifest()), copy.held_digest());
}

TEST(StateCopy, offers_a_newer_state_once_the_held_one_is_let_go) {
  StateCopy copy(1, chunk_sizes);
  const auto first = test::random_bytes(150, 1), second = test::random_bytes(150, 2);
  test::finish(copy, 3, first, chunk_sizes);
  const auto digest = copy.state_digest();
  copy.hold();
  test::finish(copy, 4, second, chunk_sizes);
  copy.hold();  // as if another joiner asked for the state
  EXPECT_EQ(copy.state_digest(), digest);
  EXPECT_EQ(copy.step(), 3);
  EXPECT_EQ(part_of(copy, 0), slice_of(first, 0, 100));
  copy.release();
  EXPECT_NE(copy.state_digest(), digest);
  EXPECT_EQ(copy.step(), 4);
  copy.hold();
  EXPECT_EQ(part_of(copy, 0), slice_of(second, 0, 100));
}

TEST(StateCopy, gives_equal_states_equal_digests) {
  const auto values = test::random_bytes(150, 1);
  StateCopy one(1, chunk_sizes), other(1, chunk_sizes);
  test::finish(one, 3, values, chunk_sizes);
  test::finish(other, 3, values, chunk_sizes);
  EXPECT_EQ(one.state_digest(), other.state_digest());
  test::finish(other, 4, values, chunk_sizes);
  EXPECT_NE(one.state_digest(), other.state_digest());
}

TEST(StateCopy, cuts_blobs_into_pieces_and_replaces_them_at_once_except_in_a_held_state) {
  StateCopy copy(1, chunk_sizes);
  const auto values = test::random_bytes(150, 1);
  const auto large = test::random_bytes(state_piece_bytes + 10, 2), small = test::random_bytes(5, 3);
  test::finish(copy, 3, values, chunk_sizes);
  const auto without = copy.state_digest();
  ASSERT_TRUE(copy.set_blobs({test::blob("z", small), test::blob("a", large)}).ok());
  EXPECT_NE(copy.state_digest(), without);
  copy.hold();
  ASSERT_EQ(copy.manifest().part_count(), 6u);
  EXPECT_EQ(part_of(copy, 3), slice_of(large, 0, state_piece_bytes));
  EXPECT_EQ(part_of(copy, 4), slice_of(large, state_piece_bytes, 10));
  ASSERT_TRUE(copy.set_blobs({}).ok());
  EXPECT_EQ(part_of(copy, 5), small);
  copy.release();
  EXPECT_EQ(copy.state_digest(), without);
}

TEST(StateCopy, refuses_blobs_over_a_limit_and_keeps_what_it_had) {
  StateCopy copy(1, chunk_sizes);
  const auto values = test::random_bytes(150, 1);
  test::finish(copy, 3, values, chunk_sizes);
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
