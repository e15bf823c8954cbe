// Calls whose arguments differ between ranks, although they name the same collective, type and number of elements. All ranks
// must end with invalid at once, with both values, and the group must be usable afterwards.
#include <functional>
#include <numeric>
#include <string>

#include "engine/engine_test_support.h"
#include "executor/block_balance.h"

namespace unisono {
namespace {

using test::expect_nothing_held;
using test::expect_ok;
using test::in;
using test::Ints;
using test::out;
using test::sums;
using test::test_values;

constexpr size_t count = 1000;

struct Memory {
  explicit Memory(uint32_t world) : input(count * world), output(count * world) {}
  Ints input, output;
};
using Make = std::function<Result<OperationRequest>(const Caller&, Memory&, uint64_t variant)>;

struct DifferingCall {
  std::string name;
  Make make;                   // variant 1 differs from variant 0
  std::string with_0, with_1;  // what the error says about the two
};

std::ostream& operator<<(std::ostream& stream, const DifferingCall& call) { return stream << call.name; }

ConstTensor block(const Ints& values) { return std::span(values).first(count); }
Tensor block(Ints& values) { return std::span(values).first(count); }

DifferingCall rooted(const std::string& name, ScheduleKind kind,
                     const std::function<Result<OperationRequest>(const Caller&, Memory&, Rank, const CallOptions&)>& make) {
  return {
      name + "_" + unisono::name(kind),
      [=](const Caller& c, Memory& m, uint64_t variant) { return make(c, m, static_cast<Rank>(variant), {.schedule = kind}); },
      " with root 0", " with root 1"};
}

std::vector<DifferingCall> differing_calls() {
  std::vector<DifferingCall> calls;
  for (const auto kind : {ScheduleKind::direct, ScheduleKind::tree}) {
    calls.push_back(rooted("broadcast", kind, [](const Caller& c, Memory& m, Rank root, const CallOptions& o) {
      return broadcast_call(c, block(m.output), root, o);
    }));
    calls.push_back(rooted("reduce", kind, [](const Caller& c, Memory& m, Rank root, CallOptions o) {
      o.order = Order::any;
      return reduce_call(c, block(std::as_const(m.input)), block(m.output), root, o);
    }));
  }
  calls.push_back(rooted("gather", ScheduleKind::direct, [](const Caller& c, Memory& m, Rank root, const CallOptions& o) {
    return gather_call(c, block(std::as_const(m.input)), out(m.output), root, {}, o);
  }));
  calls.push_back(rooted("scatter", ScheduleKind::direct, [](const Caller& c, Memory& m, Rank root, const CallOptions& o) {
    return scatter_call(c, in(m.input), block(m.output), root, {}, o);
  }));
  calls.push_back({"agreement",
                   [](const Caller& c, Memory&, uint64_t variant) { return barrier_call(c, {.agreement = 5 + variant}); },
                   "barrier(one_shot) with agreement 5", "barrier(one_shot) with agreement 6"});
  calls.push_back({"slices",
                   [](const Caller& c, Memory& m, uint64_t variant) {
                     return all_reduce_call(c, block(std::as_const(m.input)), block(m.output),
                                            {.slice_bytes = uint64_t{4096} << variant});
                   },
                   " with slices of 4096 bytes", " with slices of 8192 bytes"});
  for (const auto kind : {ScheduleKind::automatic, ScheduleKind::direct, ScheduleKind::ring}) {
    const auto sizes = [](const Caller& c, uint64_t variant) {
      std::vector<size_t> sizes(c.world, 10);
      sizes[c.world - 2] += variant, sizes[c.world - 1] -= variant;
      return sizes;
    };
    calls.push_back({concat("blocks_of_reduce_scatter_", name(kind)),
                     [=](const Caller& c, Memory& m, uint64_t variant) {
                       const auto blocks = sizes(c, variant);
                       return reduce_scatter_call(c, std::span<const int32_t>(m.input).first(10 * c.world),
                                                  std::span<int32_t>(m.output).first(blocks[c.self]), blocks, false,
                                                  {.schedule = kind});
                     },
                     " of 10 elements", " of 11 elements"});
    calls.push_back({concat("blocks_of_all_gather_", name(kind)),
                     [=](const Caller& c, Memory& m, uint64_t variant) {
                       const auto blocks = sizes(c, variant);
                       return all_gather_call(c, std::span<const int32_t>(m.input).first(blocks[c.self]),
                                              std::span<int32_t>(m.output).first(10 * c.world), blocks, false,
                                              {.schedule = kind});
                     },
                     " of 10 elements", " of 11 elements"});
  }
  return calls;
}

class DifferingCalls : public ::testing::TestWithParam<DifferingCall> {};

// Rank `odd` makes another call than all others.
void expect_difference_is_named(const DifferingCall& call, uint32_t world, Rank odd, bool odd_is_last) {
  SCOPED_TRACE(concat(call.name, ", world ", world, ", odd rank ", odd, odd_is_last ? ", last" : ""));
  TestCluster cluster(world);
  std::vector<Memory> memory(world, Memory(world));
  std::vector<std::shared_ptr<Completion>> done(world);
  const auto submit = [&](Rank r) { done[r] = cluster.submit(r, call.make(cluster.caller(r), memory[r], r == odd ? 1 : 0)); };
  if (!odd_is_last) submit(odd);
  for (Rank r = 0; r < world; ++r) {
    if (r != odd) submit(r);
    if (odd_is_last) cluster.settle();
  }
  if (odd_is_last) submit(odd);
  cluster.settle();  // no time passes
  for (Rank r = 0; r < world; ++r) {
    ASSERT_TRUE(done[r]->done) << "rank " << r;
    const auto text = done[r]->status.to_string();
    EXPECT_EQ(done[r]->status.code(), Code::invalid) << text;
    EXPECT_NE(text.find("calls differ: rank "), std::string::npos) << text;
    EXPECT_NE(text.find(call.with_0), std::string::npos) << text;
    EXPECT_NE(text.find(call.with_1), std::string::npos) << text;
    EXPECT_EQ(text.find("this rank"), std::string::npos) << text;
  }
  expect_nothing_held(cluster);
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<Ints> values(world);
    for (Rank r = 0; r < world; ++r) {
      values[r] = test_values(r, count);
      done[r] = cluster.submit(r, all_reduce_call(cluster.caller(r), in(values[r]), out(values[r]), {}));
    }
    cluster.finish(done);
    expect_ok(done);
    for (Rank r = 0; r < world; ++r) EXPECT_EQ(values[r], sums(world, count)) << "the next call, rank " << r;
  }
}

TEST_P(DifferingCalls, end_with_both_values_on_every_rank_and_leave_the_group_usable) {
  for (const uint32_t world : {2u, 3u, 4u, 5u, 7u}) {
    for (const Rank odd : {0u, 1u, world - 1}) {
      for (const bool last : {false, true}) expect_difference_is_named(GetParam(), world, odd, last);
    }
  }
}

TEST_P(DifferingCalls, are_found_in_large_worlds) { expect_difference_is_named(GetParam(), 40, 17, true); }

INSTANTIATE_TEST_SUITE_P(All, DifferingCalls, ::testing::ValuesIn(differing_calls()),
                         [](const auto& call) { return call.param.name; });

// Every rank takes itself for the root, or names a rank that names another one.
TEST(DifferingRoots, that_all_differ_are_invalid_on_every_rank) {
  for (const auto& call : differing_calls()) {
    if (call.with_1 != " with root 1") continue;
    for (const uint32_t world : {2u, 3u, 4u, 5u, 40u}) {
      for (const Rank shift : {0u, 1u, world - 1}) {
        SCOPED_TRACE(concat(call.name, ", world ", world, ", shift ", shift));
        TestCluster cluster(world);
        std::vector<Memory> memory(world, Memory(world));
        std::vector<std::shared_ptr<Completion>> done;
        for (Rank r = 0; r < world; ++r)
          done.push_back(cluster.submit(r, call.make(cluster.caller(r), memory[r], (r + shift) % world)));
        cluster.settle();  // no time passes
        for (Rank r = 0; r < world; ++r) {
          ASSERT_TRUE(done[r]->done) << "rank " << r;
          EXPECT_EQ(done[r]->status.code(), Code::invalid) << done[r]->status.to_string();
          EXPECT_NE(done[r]->status.message().find(" with root "), std::string::npos) << done[r]->status.to_string();
        }
        expect_nothing_held(cluster);
      }
    }
  }
}

// Rank `odd` has another size for the block that it shares with the root, or the root for the block of `odd`.
void expect_sizes_are_named(bool gather, uint32_t world, Rank root, Rank odd, bool odd_is_last) {
  SCOPED_TRACE(concat(gather ? "gather" : "scatter", ", world ", world, ", root ", root, ", odd rank ", odd));
  TestCluster cluster(world);
  std::vector<Memory> memory(world, Memory(world));
  std::vector<std::shared_ptr<Completion>> done(world);
  const auto call = [&](Rank r, size_t block, const std::vector<size_t>& sizes) {
    auto& [input, output] = memory[r];
    const auto all = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
    const auto caller = cluster.caller(r);
    done[r] = cluster.submit(r, gather ? gather_call(caller, std::span(std::as_const(input)).first(block),
                                                     std::span(output).first(all), root, sizes, {})
                                       : scatter_call(caller, std::span(std::as_const(input)).first(all),
                                                      std::span(output).first(block), root, sizes, {}));
  };
  const std::vector<size_t> sizes(world, 100);
  const auto submit = [&](Rank r, bool differs) {
    call(r, differs && r == odd ? 99 : 100, r == root ? sizes : std::vector<size_t>());
  };
  for (Rank r = 0; r < world; ++r) {
    if (r != odd || !odd_is_last) submit(r, true);
    if (odd_is_last) cluster.settle();
  }
  if (odd_is_last) submit(odd, true);
  cluster.settle();  // no time passes
  const Rank sends = gather ? odd : root, expects = gather ? root : odd;
  for (const auto& completion : done) {
    ASSERT_TRUE(completion->done);
    EXPECT_EQ(completion->status.code(), Code::invalid) << completion->status.to_string();
    EXPECT_NE(completion->status.message().find(concat("rank ", sends, " sent a block of ", gather ? 99 : 100,
                                                       " elements where rank ", expects, " expects ", gather ? 100 : 99)),
              std::string::npos)
        << completion->status.to_string();
  }
  expect_nothing_held(cluster);
  for (Rank r = 0; r < world; ++r) submit(r, false);
  cluster.finish(done);
  expect_ok(done);
}

// Only the sender and the receiver know the size of a block of a gather or a scatter. Yet every rank learns that they differ.
TEST(DifferingBlocks, of_a_gather_and_a_scatter_are_invalid_on_every_rank) {
  for (const uint32_t world : {2u, 3u, 4u, 5u, 40u}) {
    for (const Rank root : {0u, 1u, world - 1}) {
      for (const Rank odd : {0u, 1u, world - 1}) {
        if (odd == root) continue;
        for (const bool gather : {true, false}) {
          for (const bool last : {true, false}) expect_sizes_are_named(gather, world, root, odd, last);
        }
      }
    }
  }
}

struct DifferingPair {
  uint32_t world;
  Rank from, to;  // They disagree on the block that `from` sends to `to`.
  bool sender_differs;
  Rank last;  // the rank that calls last
  bool one_host;
};

void expect_pair_is_named(const DifferingPair& pair) {
  const auto& [world, from, to, sender_differs, last, one_host] = pair;
  SCOPED_TRACE(concat("world ", world, ", from ", from, " to ", to, sender_differs ? ", sender differs" : ", receiver differs",
                      ", last ", last, one_host ? ", one host" : ""));
  TestCluster cluster(world, {}, {}, one_host ? world : 1);
  std::vector<Memory> memory(world, Memory(world));
  std::vector<std::shared_ptr<Completion>> done(world);
  const auto call = [&](Rank r, bool differs) {
    std::vector<size_t> sends(world, 100), receives(world, 100);
    if (differs && sender_differs && r == from) sends[to] = 99;
    if (differs && !sender_differs && r == to) receives[from] = 99;
    const auto total = [](const std::vector<size_t>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), size_t{0}); };
    const auto& input = memory[r].input;
    done[r] = cluster.submit(r, all_to_all_call(cluster.caller(r), std::span(input).first(total(sends)),
                                                std::span(memory[r].output).first(total(receives)), sends, receives, {}));
  };
  for (Rank r = 0; r < world; ++r) {
    if (r != last) call(r, true);
    cluster.settle();
  }
  call(last, true);
  cluster.settle();  // no time passes
  for (const auto& completion : done) {
    ASSERT_TRUE(completion->done);
    EXPECT_EQ(completion->status.code(), Code::invalid) << completion->status.to_string();
    EXPECT_NE(completion->status.message().find(concat("rank ", from, " sent a block of ", sender_differs ? 99 : 100,
                                                       " elements where rank ", to, " expects ", sender_differs ? 100 : 99)),
              std::string::npos)
        << completion->status.to_string();
  }
  expect_nothing_held(cluster);
  for (Rank r = 0; r < world; ++r) call(r, false);
  cluster.finish(done);
  expect_ok(done);
}

// Only two ranks know the size of a block of an all-to-all. Yet a rank whose own blocks fit learns that two others disagree.
TEST(DifferingBlocks, of_an_all_to_all_are_invalid_on_every_rank) {
  for (const uint32_t world : {2u, 3u, 4u, 5u, 40u}) {
    for (const auto& [from, to] : {std::pair<Rank, Rank>(0, 1), {1, 0}, {0, world - 1}, {world - 1, world - 2}}) {
      for (const bool sender_differs : {true, false}) {
        for (const Rank last : {from, to, world / 2}) {
          for (const bool one_host : {true, false}) expect_pair_is_named({world, from, to, sender_differs, last, one_host});
        }
      }
    }
  }
}

// The receiver of the block stays silent. The other ranks know that something differs, and do not wait long for it.
TEST(DifferingBlocks, of_an_all_to_all_are_invalid_even_if_the_receiver_cannot_say_so) {
  TestCluster cluster(2);
  std::vector<Memory> memory(2, Memory(2));
  const auto waits =
      cluster.submit(0, all_to_all_call(cluster.caller(0), in(memory[0].input), out(memory[0].output), {}, {}, {}));
  const auto theirs = all_to_all_call(cluster.caller(1), std::span(std::as_const(memory[1].input)).first(2 * count),
                                      std::span(memory[1].output).first(2 * count - 1), std::vector<size_t>{count, count},
                                      std::vector<size_t>{count - 1, count}, {});
  const auto descriptor = describe(*theirs, ScheduleKind::direct, 256u << 10, 2);
  cluster.engine(0).received(1,
                             FrameHeader{.kind = FrameKind::data,
                                         .epoch = 7,
                                         .group = 1,
                                         .operation = cluster.group(0).numbers.next() - 1,
                                         .sender = 1,
                                         .chunk = 2,
                                         .amount = balance_share(*theirs, 1, 2) << amount_bits | count,
                                         .descriptor = descriptor.bits,
                                         .payload_bytes = 4 * count},
                             {.data = reinterpret_cast<const std::byte*>(memory[1].input.data()), .bytes = 4 * count});
  cluster.settle();
  EXPECT_FALSE(waits->done) << "the receiver may still say what differs";
  cluster.advance(dispute_time);
  cluster.settle();
  ASSERT_TRUE(waits->done);
  EXPECT_EQ(waits->status.code(), Code::invalid);
  EXPECT_NE(waits->status.message().find("two ranks disagree on the size of a block"), std::string::npos)
      << waits->status.to_string();
}

// A rank with a large block does not wait for its root's answer until all blocks have arrived.
TEST(RootConfirms, while_the_data_travels) {
  constexpr size_t large = 1u << 20;
  TestCluster cluster(3);
  std::vector<Ints> input(3, Ints(large)), output(3, Ints(3 * large));
  std::vector<std::shared_ptr<Completion>> done(3);
  const std::vector<size_t> sizes = {1, 1, large};
  for (Rank r = 0; r < 3; ++r)
    done[r] =
        cluster.submit(r, gather_call(cluster.caller(r), std::span(std::as_const(input[r])).first(sizes[r]),
                                      std::span(output[r]).first(large + 2), 0, r == 0 ? sizes : std::vector<size_t>(), {}));
  bool early = false;
  for (int turn = 0; turn < 1000 && !done[0]->done; ++turn) {
    for (Rank r = 0; r < 3; ++r) cluster.engine(r).poll(cluster.now());
    early |= done[1]->done && !done[0]->done;
  }
  EXPECT_TRUE(early) << "rank 1 waited for the data of rank 2";
  expect_ok(done);
}

// A rank that cannot answer does not keep the others waiting for its text until their deadlines.
TEST(DifferingBlocks, a_rank_that_says_nothing_is_waited_for_a_short_time) {
  TestCluster cluster(2);
  const auto waits = cluster.submit(0, barrier_call(cluster.caller(0), {.agreement = 5}));
  auto header = FrameHeader{
      .kind = FrameKind::data, .epoch = 7, .group = 1, .operation = cluster.group(0).numbers.next() - 1, .sender = 1};
  const auto theirs = describe(*barrier_call(cluster.caller(1), {.agreement = 6}), ScheduleKind::one_shot, 64, 2);
  header.descriptor = theirs.bits, header.amount = theirs.amount;
  cluster.engine(0).received(1, header, {});
  cluster.settle();
  EXPECT_FALSE(waits->done) << "its text may follow";
  cluster.advance(dispute_time);
  cluster.settle();
  ASSERT_TRUE(waits->done);
  EXPECT_EQ(waits->status.code(), Code::invalid);
  EXPECT_NE(waits->status.message().find("these two differ in root, block sizes, slice size, agreement"), std::string::npos)
      << waits->status.to_string();
}

}  // namespace
}  // namespace unisono
