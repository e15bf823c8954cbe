#include "executor/call_text.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

std::string text_of(const OperationRequest& q, ScheduleKind schedule = ScheduleKind::direct) {
  const auto world = q.recv_counts.empty() ? 3 : static_cast<uint32_t>(q.recv_counts.size());
  return call_text(q, describe(q, schedule, 4096, world), 4096, world);
}
std::string difference(const OperationRequest& theirs, const OperationRequest& ours) {
  const auto their_text = text_of(theirs), our_text = text_of(ours);
  return call_difference({.rank = 1, .location = "host b, pid 42", .text = their_text}, {.rank = 0, .text = our_text});
}

TEST(CallText, names_every_argument_that_must_be_equal_on_all_ranks) {
  EXPECT_EQ(text_of({.collective = Collective::broadcast, .count = 10, .root = 2}),
            "broadcast(f32, 10 elements, direct); root 2; slices of 4096 bytes; no codec; no agreement");
  EXPECT_EQ(text_of({.collective = Collective::all_gather, .count = 3, .recv_counts = {3, 4, 5}, .agreement = 17}),
            "all_gather(f32, 12 elements, direct); block 0 of 3 elements; block 1 of 4 elements; block 2 of 5 elements; "
            "slices of 4096 bytes; no codec; agreement 17");
  EXPECT_EQ(text_of({.collective = Collective::barrier}, ScheduleKind::one_shot),
            "barrier(one_shot); slices of 4096 bytes; no codec; no agreement");
}

TEST(CallText, a_difference_shows_both_values_and_only_what_differs) {
  OperationRequest ours{.collective = Collective::broadcast, .count = 10, .root = 0};
  auto theirs = ours;
  theirs.root = 1;
  EXPECT_EQ(difference(theirs, ours),
            "calls differ: rank 1 (host b, pid 42) calls broadcast(f32, 10 elements, direct) with root 1, rank 0 calls "
            "broadcast(f32, 10 elements, direct) with root 0; all ranks must make the same call");
  theirs = {.collective = Collective::barrier, .agreement = 6};
  ours = {.collective = Collective::barrier, .agreement = 5};
  EXPECT_EQ(difference(theirs, ours),
            "calls differ: rank 1 (host b, pid 42) calls barrier(direct) with agreement 6, rank 0 calls barrier(direct) with "
            "agreement 5; all ranks must make the same call");
  theirs = {.collective = Collective::all_gather, .count = 3, .recv_counts = {3, 5, 4}};
  ours = {.collective = Collective::all_gather, .count = 3, .recv_counts = {3, 4, 5}};
  EXPECT_EQ(
      difference(theirs, ours),
      "calls differ: rank 1 (host b, pid 42) calls all_gather(f32, 12 elements, direct) with block 1 of 5 elements, block 2 "
      "of 4 elements, rank 0 calls all_gather(f32, 12 elements, direct) with block 1 of 4 elements, block 2 of 5 elements; "
      "all ranks must make the same call");
  theirs = {.collective = Collective::all_gather, .count = 4};
  EXPECT_NE(
      difference(theirs, ours).find("(f32, 12 elements, direct) with block 0 of 4 elements, block 2 of 4 elements, rank 0"),
      std::string::npos)
      << difference(theirs, ours);
}

TEST(CallText, different_collectives_are_shown_without_arguments) {
  EXPECT_EQ(
      difference({.collective = Collective::broadcast, .count = 10, .root = 1}, {.collective = Collective::barrier}),
      "calls differ: rank 1 (host b, pid 42) calls broadcast(f32, 10 elements, direct), rank 0 calls barrier(direct); all "
      "ranks must make the same call");
}

TEST(CallText, many_differences_are_counted) {
  OperationRequest ours{.collective = Collective::all_gather, .count = 1, .recv_counts = {}};
  for (size_t i = 0; i < 10; ++i) ours.recv_counts.push_back(i + 1);
  auto theirs = ours;
  for (auto& count : theirs.recv_counts) count = 11 - count;
  EXPECT_NE(difference(theirs, ours).find("block 3 of 7 elements and 6 more differences, rank 0"), std::string::npos)
      << difference(theirs, ours);
}

TEST(CallText, a_receive_is_not_called_a_send) {
  const auto call = [](size_t count) {
    return describe({.collective = Collective::recv, .count = count}, ScheduleKind::direct, 64, 2);
  };
  EXPECT_EQ(descriptor_difference({.rank = 1, .location = "host b, pid 42", .descriptor = call(200)},
                                  {.rank = 0, .descriptor = call(100), .receives = true}),
            "calls differ: rank 1 (host b, pid 42) calls send(f32, 200 elements, direct), rank 0 calls recv(f32, 100 elements, "
            "direct); all ranks must make the same call");
}

TEST(CallText, a_hidden_difference_of_descriptors_says_what_it_may_be) {
  auto ours = describe({.collective = Collective::broadcast, .count = 10}, ScheduleKind::direct, 64, 2), theirs = ours;
  theirs.bits ^= 1;
  const auto text = descriptor_difference({.rank = 1, .descriptor = theirs}, {.rank = 0, .descriptor = ours});
  EXPECT_NE(text.find("these two differ in root, block sizes, slice size, agreement, or options of the codec"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace unisono
