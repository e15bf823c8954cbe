// Short collectives without the executor whose ranks give or get different blocks, or have a root that others send to:
// reduce-scatter, all-to-all, scatter, gather, reduce. The same results, frames and reports as the executor's, and its way out
// of everything else.
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
  // Every rank's values tell whose they are and where they were.
  void again(Rank r, size_t count, Rank root = 0, const CallOptions& options = {.schedule = ScheduleKind::direct}) {
    const auto world = cluster->world();
    const auto [collective, in_place] = GetParam();
    auto &in = inputs[r], &out = outputs[r];
    in.resize(gives_blocks(collective) ? count * world : count);
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = static_cast<float>(1000 * r + i % 991) / 7;  // whose sums depend on their order
    out.assign(gets_blocks(collective) ? count * world : count, -1);
    if (in_place) out = in;
    const ConstTensor given(in_place ? out.data() : in.data(), in.size(), DType::f32);
    const Tensor got(out.data(), out.size(), DType::f32);
    calls[r] = {.request = request(cluster->caller(r), given, got, root, options), .fast_path = {}};
  }
  OperationRequest request(const Caller& caller, ConstTensor in, Tensor out, Rank root, const CallOptions& options) {
    switch (GetParam().collective) {
      case Collective::reduce_scatter: return reduce_scatter_call(caller, in, out, {}, GetParam().in_place, options).value();
      case Collective::all_to_all: return all_to_all_call(caller, in, out, {}, {}, options).value();
      case Collective::scatter: return scatter_call(caller, in, out, root, {}, options).value();
      case Collective::gather: return gather_call(caller, in, out, root, {}, options).value();
      default: return reduce_call(caller, in, out, root, options).value();
    }
  }
  bool rooted() const { return is_rooted(GetParam().collective); }
  bool waits(Rank r, Rank root) const { return !rooted() || (GetParam().collective == Collective::scatter) == (r != root); }
  void expect_nothing_held() {
    for (Rank r = 0; r < cluster->world(); ++r)
      EXPECT_EQ(cluster->engine(r).held_bytes() + cluster->engine(r).in_flight_bytes(), 0u) << r;
  }

  std::vector<Floats> inputs, outputs;  // by rank
};

class FastPathSums : public FastPathBlocks {};   // those that add
class FastPathGifts : public FastPathBlocks {};  // those that have a block for each other rank

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
        for (Rank r = 0; r < world; ++r) {
          ASSERT_EQ(look(r), FastPath::Found::all);
          ASSERT_EQ(outputs[r], expected[r]) << "rank " << r << " of " << world << ", " << count;
          auto ours = report(r);
          if (waits(r, root) && world > 2) ours.last_rank = done[r]->report.last_rank;  // of several, a matter of time
          expect_alike(ours, done[r]->report);
        }
        expect_nothing_held();
      }
    }
  }
}

TEST_P(FastPathBlocks, is_written_down_as_the_executors_is) {
  for (const Rank root : {0u, 2u}) {
    const auto call = [&] { make(3, 100, root); };
    const auto ours = written(true, call), theirs = written(false, call);
    for (Rank r = 0; r < 3; ++r) expect_written_alike(ours[r], theirs[r]);
    const auto bytes = ours[root].operations[0].name.bytes;
    EXPECT_EQ(bytes, GetParam().collective == Collective::reduce ? 400u : 1200u) << "of the larger buffer";
    EXPECT_EQ(ours[1].operations[0].name.bytes, rooted() ? 400u : 1200u);
  }
}

TEST_P(FastPathBlocks, the_executor_takes_over_what_was_sent_and_what_is_there) {
  for (const Rank root : {0u, 1u}) {
    for (const bool some_there : {false, true}) {
      make(3, 500, root);
      for (Rank r = 0; r < 3; ++r) ASSERT_TRUE(begin(r));
      for (Rank r = 0; r < 3; ++r) ASSERT_EQ(look(r), FastPath::Found::all);
      const auto expected = outputs;

      make(3, 500, root);
      std::vector<std::shared_ptr<Completion>> done;
      const bool first_waits = waits(0, root);
      if (some_there) done.push_back(by_executor(2));
      ASSERT_TRUE(begin(0));
      if (!first_waits) {
        EXPECT_EQ(look(0), FastPath::Found::all);
      } else if (look(0) == FastPath::Found::nothing_yet) {
        done.push_back(take_over(0));
        EXPECT_FALSE(done.back()->done);
      } else {
        ADD_FAILURE() << "rank 1 has not begun";
      }
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

TEST_P(FastPathBlocks, what_was_found_out_for_one_serves_only_its_like) {
  make(2, 20);
  Rank turn = 0;
  for (const size_t count : {20, 20, 7}) {
    const Rank root = turn++ % 2;
    for (Rank r = 0; r < 2; ++r) {
      again(r, count, root);
      ASSERT_TRUE(begin(r));
    }
    for (Rank r = 0; r < 2; ++r) ASSERT_EQ(look(r), FastPath::Found::all);
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

// Rounded once, from sums in more bits, as the executor rounds.
TEST_P(FastPathSums, averages_of_16_bit_floats_are_the_executors) {
  const auto averages = [&](bool fast_path) {
    make(3, 600, 1, {.op = ReduceOp::avg, .schedule = ScheduleKind::direct});
    for (Rank r = 0; r < 3; ++r) {
      auto& words = GetParam().in_place ? outputs[r] : inputs[r];
      auto* const values = reinterpret_cast<uint16_t*>(words.data());
      for (size_t i = 0; i < 2 * words.size(); ++i)
        values[i] = static_cast<uint16_t>(0x3F80 + (37 * i + 11 * r) % 128);  // 1 to 2
      calls[r].request.dtype = DType::bf16;
    }
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < 3; ++r) {
      if (fast_path) EXPECT_TRUE(begin(r));
      else done.push_back(by_executor(r));
    }
    if (!fast_path) cluster->finish(done);
    for (Rank r = 0; r < 3 && fast_path; ++r) EXPECT_EQ(look(r), FastPath::Found::all);
    return outputs;
  };
  const auto ours = averages(true), theirs = averages(false);
  for (Rank r = 0; r < 3; ++r) EXPECT_EQ(std::memcmp(ours[r].data(), theirs[r].data(), ours[r].size() * sizeof(float)), 0) << r;
}

TEST_P(FastPathGifts, where_there_is_no_credit_for_all_nothing_is_sent) {
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

TEST_P(FastPathBlocks, a_call_that_differs_is_named_and_so_is_a_rank_that_is_lost) {
  const bool to_root = rooted() && GetParam().collective != Collective::scatter;
  const Rank root = to_root ? 0 : 1;
  make(2, 100, root);
  ASSERT_TRUE(begin(0));
  expect_difference_is_named(0, 1);

  make(3, 100, root);
  ASSERT_TRUE(begin(0));
  expect_death_is_named(0, to_root ? 2 : 1);
}

TEST_P(FastPathBlocks, a_message_of_another_block_or_another_length_is_something_else) {
  const auto collective = GetParam().collective;
  const Rank root = collective == Collective::scatter ? 1 : 0;
  const uint32_t right = collective == Collective::all_to_all ? 3
                         : collective == Collective::gather   ? 1
                                                              : 0;  // from rank 1 to rank 0 of 3
  for (const int wrong : {0, 1, 2}) {
    make(3, 100, root);
    ASSERT_TRUE(begin(0));
    auto header = calls[0].fast_path.header;
    header.sender = 1;
    header.chunk = wrong == 1 ? right + 1 : right;
    header.payload_bytes = wrong == 2 ? 396 : 400;
    cluster->hub().at(1).send(0, header, std::as_bytes(std::span(inputs[1])).first(header.payload_bytes), 0);
    const auto found = look(0);
    if (wrong == 0) EXPECT_NE(found, FastPath::Found::something_else);
    else EXPECT_EQ(found, FastPath::Found::something_else) << wrong;
  }
}

TEST_P(FastPathBlocks, is_only_for_short_even_blocks_in_one_round) {
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
  for (Rank r = 0; r < 2; ++r) ASSERT_EQ(look(r), FastPath::Found::all);
  if (!blocks || GetParam().in_place) return;
  // Though what was found out would serve as many elements.
  again(0, 10);
  auto& uneven = calls[0].request;
  if (gives_blocks(GetParam().collective)) uneven.send_counts = {10, 10};
  if (gets_blocks(GetParam().collective)) uneven.recv_counts = {10, 10};
  EXPECT_FALSE(begin(0)) << "blocks of sizes of their own";
}

// The root's own values lie where those of rank 0 will: a rank that is late makes the executor begin where these have come
// already.
TEST_F(FastPathCalls, what_gathers_into_its_own_input_has_it_put_away_first) {
  for (const bool all : {false, true}) {
    make_cluster(3);
    std::vector<Floats> memory(3, Floats(300, -1));
    const auto call = [&](Rank r) {
      std::fill_n(memory[r].begin(), 100, static_cast<float>(r + 1));
      const ConstTensor in(memory[r].data(), 100, DType::f32);
      const Tensor out(memory[r].data(), 300, DType::f32);
      const CallOptions direct{.schedule = ScheduleKind::direct};
      calls[r] = {.request = (all ? all_gather_call(cluster->caller(r), in, out, {}, false, direct)
                                  : gather_call(cluster->caller(r), in, out, 1, {}, direct))
                                 .value(),
                  .fast_path = {}};
    };
    for (Rank r = 0; r < 3; ++r) call(r);
    std::vector<std::shared_ptr<Completion>> done = {by_executor(0)};
    ASSERT_TRUE(begin(1));
    EXPECT_EQ(look(1), FastPath::Found::nothing_yet);
    EXPECT_EQ(memory[1][0], 1) << "of rank 0";
    done.push_back(take_over(1));
    done.push_back(by_executor(2));
    cluster->finish(done);
    Floats expected(300, 1);
    std::fill_n(expected.begin() + 100, 100, 2.0f);
    std::fill_n(expected.begin() + 200, 100, 3.0f);
    EXPECT_EQ(memory[1], expected) << (all ? "all_gather" : "gather");
  }
}

const Kind scatters{Collective::reduce_scatter}, scatters_in_place{Collective::reduce_scatter, true},
    reduces{Collective::reduce}, reduces_in_place{Collective::reduce, true};
const Kind exchanges{Collective::all_to_all}, exchanges_in_place{Collective::all_to_all, true};
std::string title(const ::testing::TestParamInfo<Kind>& info) { return ::testing::PrintToString(info.param); }

class FastPathUneven : public FastPathCalls {};

// Rank 0 sends and receives blocks of one size, so it takes the fast path. The other ranks exchange blocks of several sizes, so
// they use the executor.
TEST_F(FastPathUneven, a_rank_of_equal_blocks_is_beside_others_whose_blocks_differ) {
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
  const std::vector<std::shared_ptr<Completion>> done{by_executor(1), by_executor(2)};
  for (int turn = 0; turn < 3; ++turn) cluster->engine(1).poll(cluster->now()), cluster->engine(2).poll(cluster->now());
  ASSERT_EQ(look(0), FastPath::Found::all);
  cluster->finish(done);
  for (const auto& completion : done) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
  EXPECT_EQ(out, expected);
}

INSTANTIATE_TEST_SUITE_P(All, FastPathBlocks,
                         ::testing::Values(scatters, scatters_in_place, exchanges, exchanges_in_place,
                                           Kind{Collective::scatter}, Kind{Collective::gather}, reduces, reduces_in_place),
                         title);
INSTANTIATE_TEST_SUITE_P(All, FastPathSums, ::testing::Values(scatters, scatters_in_place, reduces, reduces_in_place), title);
INSTANTIATE_TEST_SUITE_P(All, FastPathGifts,
                         ::testing::Values(scatters, scatters_in_place, exchanges, exchanges_in_place,
                                           Kind{Collective::scatter}),
                         title);

}  // namespace
}  // namespace unisono
