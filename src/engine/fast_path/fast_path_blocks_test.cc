// The fast path for reduce-scatter, all-to-all, reduce, gather and scatter, in which ranks have different blocks, or a root
// receives. Results, frames and reports must equal the executor's. All other cases are the executor's.
#include <cstring>

#include "engine/fast_path/fast_path_test_support.h"

namespace unisono {
namespace {

using Floats = std::vector<float>;

struct Kind {
  Collective collective;
  bool in_place = false;
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << name(kind.collective) << (kind.in_place ? "_in_place" : "");
}

class FastPathBlocks : public FastPathCalls, public ::testing::WithParamInterface<Kind> {
 protected:
  void make(uint32_t world, size_t count, Rank root = 0, const CallOptions& options = {.schedule = ScheduleKind::direct}) {
    make_cluster(world);
    inputs.assign(world, {});
    outputs.assign(world, {});
    for (Rank r = 0; r < world; ++r) again(r, count, root, options);
  }
  // Makes rank r's call. The input values encode the rank and the position, so that a misplaced block is detected.
  void again(Rank r, size_t count, Rank root = 0, const CallOptions& options = {.schedule = ScheduleKind::direct}) {
    const auto world = cluster->world();
    const auto [collective, in_place] = GetParam();
    auto &in = inputs[r], &out = outputs[r];
    in.resize(input_has_blocks(collective) ? count * world : count);
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = static_cast<float>(1000 * r + i % 991) / 7;  // sums of sevenths depend on the order of additions
    out.assign(output_has_blocks(collective) ? count * world : count, -1);
    if (in_place) out = in;
    const ConstTensor given(in_place ? out.data() : in.data(), in.size(), DType::f32);
    const Tensor got(out.data(), out.size(), DType::f32);
    calls[r] = {.request = request(cluster->caller(r), given, got, root, options), .fast_path = {}};
  }
  OperationRequest request(const Caller& caller, ConstTensor in, Tensor out, Rank root, const CallOptions& options) {
    switch (GetParam().collective) {
      case Collective::reduce_scatter: return reduce_scatter_call(caller, in, out, {}, GetParam().in_place, options).value();
      case Collective::all_to_all: return all_to_all_call(caller, in, out, {}, {}, options).value();
      case Collective::gather: return gather_call(caller, in, out, root, {}, options).value();
      case Collective::scatter: return scatter_call(caller, in, out, root, {}, options).value();
      default: return reduce_call(caller, in, out, root, options).value();
    }
  }
  bool rooted() const { return is_rooted(GetParam().collective); }
  void expect_nothing_held() {
    for (Rank r = 0; r < cluster->world(); ++r)
      EXPECT_EQ(cluster->engine(r).held_bytes() + cluster->engine(r).in_flight_bytes(), 0u) << r;
  }

  std::vector<Floats> inputs, outputs;  // indexed by rank
};

class FastPathSums : public FastPathBlocks {};            // tests of collectives that reduce
class FastPathDistinctBlocks : public FastPathBlocks {};  // tests of collectives that send different blocks

TEST_P(FastPathBlocks, gives_the_executors_values_and_the_executors_report) {
  for (const uint32_t world : {2u, 3u, 8u, 32u}) {
    for (const Rank root : {0u, world - 1}) {
      for (const size_t count : {1, 7, 1025, 2048}) {
        make(world, count, root);
        std::vector<std::shared_ptr<Completion>> done;
        for (Rank r = 0; r < world; ++r) done.push_back(by_executor(r));
        cluster->finish(done);
        const auto expected = outputs;
        make(world, count, root);
        for (Rank r = 0; r < world; ++r) ASSERT_TRUE(begin(r)) << world << " ranks, " << count;
        expect_all_found();
        for (Rank r = 0; r < world; ++r) {
          ASSERT_EQ(outputs[r], expected[r]) << "rank " << r << " of " << world << ", " << count;
          auto ours = report(r);
          // with several senders, timing decides which is the last
          if (world > 2) ours.last_rank = done[r]->report.last_rank;
          expect_equal_reports(ours, done[r]->report);
        }
        expect_nothing_held();
      }
    }
  }
}

TEST_P(FastPathBlocks, writes_the_same_record_as_the_executor) {
  for (const Rank root : {0u, 2u}) {
    const auto call = [&] { make(3, 100, root); };
    const auto ours = records_after(true, call), theirs = records_after(false, call);
    for (Rank r = 0; r < 3; ++r) expect_equal_records(ours[r], theirs[r]);
    const auto bytes = ours[root].operations[0].name.bytes;
    EXPECT_EQ(bytes, GetParam().collective == Collective::reduce ? 400u : 1200u) << "of the larger buffer";
    EXPECT_EQ(ours[1].operations[0].name.bytes, rooted() ? 400u : 1200u);
  }
}

TEST_P(FastPathBlocks, the_executor_takes_over_sent_and_received_frames) {
  for (const Rank root : {0u, 1u}) {
    for (const bool some_there : {false, true}) {
      make(3, 500, root);
      for (Rank r = 0; r < 3; ++r) ASSERT_TRUE(begin(r));
      expect_all_found();
      const auto expected = outputs;

      make(3, 500, root);
      std::vector<std::shared_ptr<Completion>> done;
      if (some_there) done.push_back(by_executor(2));
      ASSERT_TRUE(begin(0));
      ASSERT_EQ(look(0), FastPath::Found::incomplete) << "rank 1 has not begun";
      done.push_back(take_over(0));
      EXPECT_FALSE(done.back()->done);
      done.push_back(by_executor(1));
      if (!some_there) done.push_back(by_executor(2));
      cluster->finish(done);
      for (const auto& completion : done) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
      EXPECT_EQ(outputs, expected);
      expect_nothing_held();
      for (Rank r = 0; r < 3; ++r) EXPECT_EQ(cluster->engine(r).counters().frames_stale, 0u);
    }
  }
}

TEST_P(FastPathBlocks, a_plan_is_reused_only_for_equal_calls) {
  make(2, 20);
  Rank turn = 0;
  for (const size_t count : {20, 20, 7}) {
    const Rank root = turn++ % 2;
    for (Rank r = 0; r < 2; ++r) {
      again(r, count, root);
      ASSERT_TRUE(begin(r));
    }
    expect_all_found();
    const auto got = outputs;
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < 2; ++r) {
      again(r, count, root);
      done.push_back(by_executor(r));
    }
    cluster->finish(done);
    EXPECT_EQ(got, outputs) << count << " elements, root " << root;
  }
}

// Like the executor, the fast path sums bf16 values in fp32 and rounds once.
TEST_P(FastPathSums, averages_of_16_bit_floats_equal_the_executors) {
  const auto averages = [&](bool fast_path) {
    make(3, 600, 1, {.op = ReduceOp::avg, .schedule = ScheduleKind::direct});
    for (Rank r = 0; r < 3; ++r) {
      auto& words = GetParam().in_place ? outputs[r] : inputs[r];
      auto* const values = reinterpret_cast<uint16_t*>(words.data());
      for (size_t i = 0; i < 2 * words.size(); ++i)
        values[i] = static_cast<uint16_t>(0x3F80 + (37 * i + 11 * r) % 128);  // bf16 values in [1, 2)
      calls[r].request.dtype = DType::bf16;
    }
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < 3; ++r) {
      if (fast_path) EXPECT_TRUE(begin(r));
      else done.push_back(by_executor(r));
    }
    if (!fast_path) cluster->finish(done);
    if (fast_path) expect_all_found();
    return outputs;
  };
  const auto ours = averages(true), theirs = averages(false);
  for (Rank r = 0; r < 3; ++r) EXPECT_EQ(std::memcmp(ours[r].data(), theirs[r].data(), ours[r].size() * sizeof(float)), 0) << r;
}

TEST_P(FastPathDistinctBlocks, nothing_is_sent_without_credit_for_all_ranks) {
  make(3, 100);
  std::vector<Slot> taken;
  const PeerIndex one[] = {1};
  auto& transport = cluster->hub().at(0);
  for (auto slot = transport.acquire(one, 400, false); slot; slot = transport.acquire(one, 400, false)) taken.push_back(slot);
  transport.abandon(taken.back());
  taken.pop_back();
  EXPECT_FALSE(begin(0)) << "one of two";
  EXPECT_EQ(cluster->hub().at(0).counters().sent_frames, 0u);
  auto slot = transport.acquire(one, 400, false);
  EXPECT_TRUE(slot) << "which was given back";
  if (slot) transport.abandon(slot);
  for (const auto& used : taken) transport.abandon(used);
  EXPECT_TRUE(begin(0));
}

TEST_P(FastPathBlocks, a_call_that_differs_and_a_lost_rank_are_named) {
  const bool to_root = rooted();
  const Rank root = to_root ? 0 : 1;
  make(2, 100, root);
  ASSERT_TRUE(begin(0));
  expect_difference_is_named(0, 1);

  make(3, 100, root);
  ASSERT_TRUE(begin(0));
  expect_death_is_named(0, to_root ? 2 : 1);
}

TEST_P(FastPathBlocks, a_message_of_another_block_or_length_is_unexpected) {
  const auto collective = GetParam().collective;
  const Rank root = collective == Collective::scatter ? 1 : 0;
  // the chunk from rank 1 to rank 0, of 3 ranks
  const uint32_t right = collective == Collective::all_to_all ? 3 : collective == Collective::gather ? 1 : 0;
  for (const int wrong : {0, 1, 2}) {
    make(3, 100, root);
    ASSERT_TRUE(begin(0));
    auto header = calls[0].fast_path.header;
    header.sender = 1;
    if (collective == Collective::all_to_all) header.amount = calls[0].fast_path.plan->amounts[1];
    header.chunk = wrong == 1 ? right + 1 : right;
    header.payload_bytes = wrong == 2 ? 396 : 400;
    cluster->hub().at(1).send(0, header, std::as_bytes(std::span(inputs[1])).first(header.payload_bytes), 0);
    const auto found = look(0);
    if (wrong == 0) EXPECT_NE(found, FastPath::Found::unexpected_frame);
    else EXPECT_EQ(found, FastPath::Found::unexpected_frame) << wrong;
  }
}

TEST_P(FastPathBlocks, serves_only_short_even_blocks_in_one_round) {
  const bool blocks = GetParam().collective != Collective::reduce;
  make(2, (256 << 10) / 4 / (blocks ? 2 : 1) + 1);
  EXPECT_FALSE(begin(0)) << "too long";
  make(33, 10);
  EXPECT_FALSE(begin(0)) << "too many";
  make(2, 0);
  EXPECT_FALSE(begin(0)) << "nothing to send";
  if (GetParam().collective != Collective::all_to_all) {
    make(4, 10, 0, {.schedule = GetParam().collective == Collective::reduce_scatter ? ScheduleKind::ring : ScheduleKind::tree});
    EXPECT_FALSE(begin(0)) << "another schedule";
  }
  make(2, 10);
  for (Rank r = 0; r < 2; ++r) ASSERT_TRUE(begin(r));
  expect_all_found();
  if (!blocks || GetParam().in_place) return;
  // The cached plan fits the number of elements. It must still not be used for explicit block sizes.
  again(0, 10);
  auto& uneven = calls[0].request;
  if (input_has_blocks(GetParam().collective)) uneven.send_counts = {10, 10};
  if (output_has_blocks(GetParam().collective)) uneven.recv_counts = {10, 10};
  EXPECT_FALSE(begin(0)) << "blocks of sizes of their own";
}

// Rank 1's input lies where the output receives rank 0's block. If the executor takes over after that block has arrived, the
// input is already overwritten.
TEST_F(FastPathCalls, an_all_gather_into_its_own_input_saves_the_input_first) {
  make_cluster(3);
  std::vector<Floats> memory(3, Floats(300, -1));
  for (Rank r = 0; r < 3; ++r) {
    std::fill_n(memory[r].begin(), 100, static_cast<float>(r + 1));
    const ConstTensor in(memory[r].data(), 100, DType::f32);
    const Tensor out(memory[r].data(), 300, DType::f32);
    calls[r] = {.request = all_gather_call(cluster->caller(r), in, out, {}, false, {.schedule = ScheduleKind::direct}).value(),
                .fast_path = {}};
  }
  std::vector<std::shared_ptr<Completion>> done = {by_executor(0)};
  ASSERT_TRUE(begin(1));
  EXPECT_EQ(look(1), FastPath::Found::incomplete);
  EXPECT_EQ(memory[1][0], 1) << "of rank 0";
  done.push_back(take_over(1));
  done.push_back(by_executor(2));
  cluster->finish(done);
  Floats expected(300, 1);
  std::fill_n(expected.begin() + 100, 100, 2.0f);
  std::fill_n(expected.begin() + 200, 100, 3.0f);
  EXPECT_EQ(memory[1], expected);
}

const Kind scatters{Collective::reduce_scatter}, scatters_in_place{Collective::reduce_scatter, true},
    reduces{Collective::reduce}, reduces_in_place{Collective::reduce, true};
const Kind gathers{Collective::gather}, scatters_from_root{Collective::scatter};
const Kind exchanges{Collective::all_to_all}, exchanges_in_place{Collective::all_to_all, true};
std::string title(const ::testing::TestParamInfo<Kind>& info) { return ::testing::PrintToString(info.param); }

class FastPathUneven : public FastPathCalls {};

// Rank 0's blocks all have one size, so it begins on the fast path. The other ranks' blocks have several sizes, so they use the
// executor. Their frames show that, and rank 0 goes on with the executor, which checks that all sizes fit.
TEST_F(FastPathUneven, a_rank_with_equal_blocks_works_with_ranks_whose_blocks_differ) {
  constexpr uint32_t world = 3;
  const auto size = [](Rank from, Rank to) -> size_t { return from == 0 || to == 0 ? 200 : 100 * (from + 2 * to) - 200; };
  const auto value = [](Rank from, Rank to, size_t i) { return static_cast<float>(10000 * from + 1000 * to + i); };
  make_cluster(world);
  std::vector<Floats> in(world), out(world), expected(world);
  std::vector<std::vector<size_t>> send(world), recv(world);
  for (Rank r = 0; r < world; ++r) {
    for (Rank other = 0; other < world; ++other) {
      send[r].push_back(size(r, other));
      recv[r].push_back(size(other, r));
      for (size_t i = 0; i < send[r].back(); ++i) in[r].push_back(value(r, other, i));
      for (size_t i = 0; i < recv[r].back(); ++i) expected[r].push_back(value(other, r, i));
    }
    out[r].resize(expected[r].size());
    calls[r].request = all_to_all_call(cluster->caller(r), ConstTensor(std::span<const float>(in[r])),
                                       Tensor(std::span<float>(out[r])), send[r], recv[r], {.schedule = ScheduleKind::direct})
                           .value();
  }
  ASSERT_TRUE(begin(0));
  EXPECT_FALSE(begin(1));
  std::vector<std::shared_ptr<Completion>> done{by_executor(1), by_executor(2)};
  for (int turn = 0; turn < 3; ++turn) cluster->engine(1).poll(cluster->now()), cluster->engine(2).poll(cluster->now());
  ASSERT_EQ(look(0), FastPath::Found::unexpected_frame);
  done.push_back(take_over(0));
  cluster->finish(done);
  for (const auto& completion : done) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
  EXPECT_EQ(out, expected);
}

// Rank 1 expects one element less from rank 2 than rank 2 sends. The blocks of rank 0 fit.
TEST_F(FastPathUneven, a_block_that_two_other_ranks_see_differently_is_invalid_here) {
  constexpr uint32_t world = 3;
  make_cluster(world);
  std::vector<Floats> in(world, Floats(300)), out(world, Floats(300));
  const std::vector<size_t> even(world, 100), less = {100, 100, 99};
  for (Rank r = 0; r < world; ++r) {
    const auto& expected = r == 1 ? less : even;
    calls[r].request = all_to_all_call(cluster->caller(r), ConstTensor(std::span<const float>(in[r])),
                                       Tensor(std::span<float>(out[r]).first(r == 1 ? 299 : 300)), even, expected, {})
                           .value();
  }
  ASSERT_TRUE(begin(0));
  ASSERT_TRUE(begin(2));
  EXPECT_FALSE(begin(1));
  std::vector<std::shared_ptr<Completion>> done{by_executor(1)};
  cluster->engine(1).poll(cluster->now());
  for (const Rank r : {0, 2}) {
    EXPECT_NE(look(r), FastPath::Found::all) << r;
    done.push_back(take_over(r));
  }
  cluster->settle();  // no time passes
  for (const auto& completion : done) {
    ASSERT_TRUE(completion->done);
    EXPECT_EQ(completion->status.code(), Code::invalid);
    EXPECT_NE(completion->status.message().find("rank 2 sent a block of 100 elements where rank 1 expects 99"),
              std::string::npos)
        << completion->status.to_string();
  }
}

INSTANTIATE_TEST_SUITE_P(All, FastPathBlocks,
                         ::testing::Values(scatters, scatters_in_place, exchanges, exchanges_in_place, reduces,
                                           reduces_in_place, gathers, scatters_from_root),
                         title);
INSTANTIATE_TEST_SUITE_P(All, FastPathSums, ::testing::Values(scatters, scatters_in_place, reduces, reduces_in_place), title);
INSTANTIATE_TEST_SUITE_P(All, FastPathDistinctBlocks,
                         ::testing::Values(scatters, scatters_in_place, exchanges, exchanges_in_place, scatters_from_root),
                         title);

}  // namespace
}  // namespace unisono
