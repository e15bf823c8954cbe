#include "executor/request.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace unisono {
namespace {

TEST(Request, the_parts_of_a_tensor_cover_it_once_and_begin_on_cache_lines) {
  std::vector<std::byte> memory(1);
  for (const auto dtype : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    for (const size_t count : {0, 1, 5, 63, 64, 65, 1000, 100'003}) {
      for (const uint32_t parts : {1u, 2u, 3u, 8u, 64u}) {
        OperationRequest q{.dtype = dtype, .input = memory.data(), .output = memory.data(), .count = count};
        size_t next = 0;
        for (uint32_t chunk = 0; chunk < parts; ++chunk) {
          const auto part = chunk_memory_of(q, chunk, {.chunks = parts}, 0, parts);
          const auto begin = static_cast<size_t>(part.input - memory.data());
          ASSERT_EQ(begin, next * element_bytes(dtype));
          ASSERT_TRUE(part.elements == 0 || begin % 64 == 0) << begin;
          next += part.elements;
        }
        ASSERT_EQ(next, count);
      }
    }
  }
}

TEST(Request, parts_by_shares_cover_the_tensor_once_in_their_proportion) {
  std::vector<std::byte> memory(1);
  const std::vector<uint32_t> shares{7, 0, 40, 17};
  for (const size_t count : {size_t{0}, size_t{1}, size_t{17}, size_t{64 * 16}, size_t{100'003}, size_t{1} << 40}) {
    const OperationRequest q{.dtype = DType::f32, .input = memory.data(), .output = memory.data(), .count = count};
    size_t next = 0;
    for (uint32_t chunk = 0; chunk < shares.size(); ++chunk) {
      const auto part = chunk_memory_of(q, chunk, {.chunks = 4, .shares = shares}, 0, 4);
      const auto begin = static_cast<size_t>(part.input - memory.data());
      ASSERT_EQ(begin, next * 4) << count;
      ASSERT_TRUE(part.elements == 0 || begin % 64 == 0) << begin;
      ASSERT_NEAR(static_cast<double>(part.elements), static_cast<double>(count) * shares[chunk] / 64, 32)
          << count << " " << chunk;
      next += part.elements;
    }
    ASSERT_EQ(next, count);
  }
}

TEST(Request, descriptors_differ_in_what_ranks_must_agree_on) {
  OperationRequest q{.collective = Collective::broadcast, .count = 1000, .root = 1};
  const auto base = describe(q, ScheduleKind::tree, 4096, 3);
  auto changed = q;
  changed.root = 2;
  EXPECT_NE(describe(changed, ScheduleKind::tree, 4096, 3).bits, base.bits);
  EXPECT_NE(describe(q, ScheduleKind::direct, 4096, 3).bits, base.bits);
  EXPECT_NE(describe(q, ScheduleKind::tree, 8192, 3).bits, base.bits);
  changed = q;
  changed.dtype = DType::f64;
  EXPECT_NE(describe(changed, ScheduleKind::tree, 4096, 3).bits, base.bits);
  changed = q;
  changed.count = 1001;
  EXPECT_NE(describe(changed, ScheduleKind::tree, 4096, 3).amount, base.amount);
  changed = q;
  changed.op = ReduceOp::max;
  EXPECT_EQ(describe(changed, ScheduleKind::tree, 4096, 3).bits, base.bits) << "a broadcast has no operation";
}

TEST(Request, agreements_differ_in_forty_bits_and_leave_the_number_of_elements_readable) {
  OperationRequest q{.count = 1000};
  const auto none = describe(q, ScheduleKind::ring, 4096, 3);
  EXPECT_EQ(none.amount, 1000u);
  std::set<std::pair<uint32_t, uint64_t>> seen{{none.bits, none.amount}};
  for (uint64_t agreement = 1; agreement <= 2000; ++agreement) {
    q.agreement = agreement << (agreement % 2 * 40);
    const auto with = describe(q, ScheduleKind::ring, 4096, 3);
    EXPECT_TRUE(seen.emplace(with.bits, with.amount).second) << agreement;
    EXPECT_EQ(to_string(with), to_string(none));
    EXPECT_EQ(with.bits >> 16, none.bits >> 16);
  }
  EXPECT_FALSE(differ_visibly(describe(q, ScheduleKind::ring, 4096, 3), none));
}

TEST(Request, block_sizes_of_an_uneven_gather_are_part_of_the_agreement) {
  OperationRequest q{.collective = Collective::all_gather, .count = 3, .recv_counts = {3, 4, 5}};
  auto other = q;
  other.recv_counts = {3, 5, 4};
  EXPECT_NE(describe(q, ScheduleKind::ring, 4096, 3).bits, describe(other, ScheduleKind::ring, 4096, 3).bits);
  EXPECT_EQ(describe(q, ScheduleKind::ring, 4096, 3).amount, 12u);
}

TEST(Request, block_sizes_are_compared_by_their_total) {
  for (const auto collective : {Collective::reduce_scatter, Collective::all_gather}) {
    const OperationRequest even{.collective = collective, .count = 4};
    auto uneven = even;
    (collective == Collective::reduce_scatter ? uneven.send_counts : uneven.recv_counts) = {4, 3, 5};
    const auto theirs = describe(uneven, ScheduleKind::ring, 4096, 3), ours = describe(even, ScheduleKind::ring, 4096, 3);
    EXPECT_EQ(ours.amount, 12u);
    EXPECT_NE(ours.bits, theirs.bits);
    EXPECT_FALSE(differ_visibly(theirs, ours)) << "both have 12 elements";
  }
  // For a lossy request, `count` is the size of the whole tensor.
  const OperationRequest lossy{.collective = Collective::all_gather, .count = 12, .delivery = Delivery::lossy};
  EXPECT_EQ(describe(lossy, ScheduleKind::two_step, 1472, 3).amount, 12u);
}

TEST(Request, memory_bytes_counts_this_ranks_input_and_output) {
  std::vector<std::byte> memory(2);
  const auto* input = memory.data();
  auto* output = memory.data() + 1;
  const auto bytes = [&](OperationRequest q, Rank self) {
    q.count = 100;
    q.input = input;
    if (q.output == nullptr) q.output = output;
    return memory_bytes(q, 3, self);
  };
  using enum Collective;
  EXPECT_EQ(bytes({.collective = all_reduce}, 0), 800u);
  EXPECT_EQ(bytes({.collective = all_reduce, .dtype = DType::bf16, .output = memory.data()}, 0), 200u) << "in place";
  EXPECT_EQ(bytes({.collective = reduce_scatter}, 0), 1600u);
  EXPECT_EQ(bytes({.collective = reduce_scatter, .in_place_blocks = true}, 0), 1200u);
  EXPECT_EQ(bytes({.collective = reduce_scatter, .send_counts = {1, 2, 4}}, 2), 44u);
  EXPECT_EQ(bytes({.collective = all_gather}, 0), 1600u);
  EXPECT_EQ(bytes({.collective = all_gather, .recv_counts = {1, 2, 4}}, 1), 36u);
  EXPECT_EQ(bytes({.collective = all_to_all}, 0), 2400u);
  EXPECT_EQ(bytes({.collective = all_to_all, .send_counts = {1, 2, 4}, .recv_counts = {8, 16, 32}}, 0), 252u);
  EXPECT_EQ(bytes({.collective = gather, .root = 1}, 0), 400u);
  EXPECT_EQ(bytes({.collective = gather, .root = 1}, 1), 1600u);
  EXPECT_EQ(bytes({.collective = scatter, .send_counts = {1, 2, 4}, .root = 1}, 1), 36u);
  EXPECT_EQ(memory_bytes({.collective = send, .input = input, .count = 100}, 3, 0), 400u);
}

}  // namespace
}  // namespace unisono
