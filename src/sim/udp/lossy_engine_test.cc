// Tests lossy calls among other calls in whole engines: the order of calls, and the delivery of automatic calls.
#include "sim/udp/lossy_engine_test_support.h"

#include "base/concat.h"
#include "base/random.h"

namespace unisono::sim {
namespace {

using Values = std::vector<std::vector<float>>;
using Completions = std::vector<std::shared_ptr<Completion>>;

const CallOptions lossy{.delivery = Delivery::lossy};

void expect_differ(const LossyEngines& engines, const Completions& done, Nanos started) {
  for (size_t rank = 0; rank < done.size(); ++rank) {
    ASSERT_TRUE(done[rank]->done) << rank;
    EXPECT_EQ(done[rank]->status.code(), Code::invalid) << rank << ": " << done[rank]->status.to_string();
    for (const char* part :
         {"calls differ: rank ", "(process ", "with lossy delivery, after", "with reliable delivery, after"}) {
      EXPECT_NE(done[rank]->status.message().find(part), std::string::npos) << rank << ": " << done[rank]->status.message();
    }
  }
  EXPECT_LT(engines.now() - started, 10 * millisecond);
}

TEST(CallOrder, a_lossy_and_a_reliable_call_with_one_number_fail_on_all_ranks_at_once) {
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{100'000}}) {
    for (const Rank odd : {0u, 2u}) {
      for (const bool odd_is_lossy : {false, true}) {
        for (const int late : {-1, 0, 1}) {  // the odd rank calls before, with, or after the others
          SCOPED_TRACE(concat(count, " elements, rank ", odd, odd_is_lossy ? " lossy" : " reliable",
                              late < 0   ? " early"
                              : late > 0 ? " late"
                                         : ""));
          LossyEngines engines({.ranks = 3});
          Values values(3, std::vector<float>(count, 1));
          Completions warm;
          for (int round = 0; round < 2; ++round) {
            for (Rank r = 0; r < 3; ++r) warm.push_back(engines.sum(r, values[r], round == 0 ? lossy : CallOptions{}));
            engines.finish(warm);
          }
          Completions done(3);
          const auto call = [&](Rank r) {
            done[r] = engines.sum(r, values[r], (r == odd) == odd_is_lossy ? lossy : CallOptions{});
          };
          if (late < 0) call(odd), engines.pass(3 * millisecond);
          for (Rank r = 0; r < 3; ++r) {
            if (r != odd) call(r);
          }
          if (late > 0) engines.pass(3 * millisecond);
          if (late >= 0) call(odd);
          const auto started = engines.now();
          engines.finish(done);
          expect_differ(engines, done, started);
        }
      }
    }
  }
}

TEST(CallOrder, a_late_call_after_the_mismatch_was_found_fails_at_once) {
  for (const Rank odd : {0u, 1u, 2u}) {
    for (const bool odd_is_lossy : {false, true}) {
      for (const Rank last : {0u, 1u, 2u}) {
        SCOPED_TRACE(concat("rank ", odd, odd_is_lossy ? " lossy, rank " : " reliable, rank ", last, " last"));
        if (odd == last) continue;  // there is no mismatch before the odd rank calls
        LossyEngines engines({.ranks = 3});
        Values values(3, std::vector<float>(1000, 1));
        Completions warm, others, done(3);
        for (Rank r = 0; r < 3; ++r) warm.push_back(engines.sum(r, values[r], lossy));
        engines.finish(warm);
        const auto call = [&](Rank r) {
          done[r] = engines.sum(r, values[r], (r == odd) == odd_is_lossy ? lossy : CallOptions{});
        };
        for (Rank r = 0; r < 3; ++r) {
          if (r == last) continue;
          call(r);
          others.push_back(done[r]);
        }
        engines.finish(others);
        engines.pass(3 * millisecond);
        call(last);
        EXPECT_TRUE(done[last]->done) << "the call must fail at once, because the other ranks send nothing more";
        const auto started = engines.now();
        engines.finish(done);
        expect_differ(engines, done, started);
      }
    }
  }
}

TEST(CallOrder, the_error_names_both_calls_and_how_many_came_before) {
  LossyEngines engines({.ranks = 2});
  Values values(2, std::vector<float>(1000, 1));
  Completions done;
  for (Rank r = 0; r < 2; ++r) done.push_back(engines.sum(r, values[r], lossy));
  engines.finish(done);
  done = {engines.sum(0, values[0], lossy), engines.submit(1, barrier_call(engines.caller(1), {}))};
  engines.finish(done);
  EXPECT_EQ(done[0]->status.message(),
            "all_reduce 1: calls differ: rank 1 (process 1) calls barrier(one_shot) with reliable delivery, "
            "after 1 lossy and 0 other calls; rank 0 "
            "calls all_reduce(f32 sum, 1000 elements, two_step) with lossy delivery, after 1 lossy and 0 other calls");
  EXPECT_NE(done[1]->status.message().find(
                "rank 0 (process 0) calls all_reduce(f32 sum, 1000 elements, two_step) with lossy delivery"),
            std::string::npos)
      << done[1]->status.message();
}

TEST(CallOrder, a_rank_that_only_waits_detects_a_mismatch) {
  // A leaf of a broadcast sends nothing. It detects the mismatch from the datagrams of the other ranks, which may come before
  // or after its call.
  for (const bool late : {false, true}) {
    LossyEngines engines({.ranks = 3});
    Values values(3, std::vector<float>(1000, 1));
    Completions done(3);
    const auto wait = [&] {
      done[2] = engines.submit(2, broadcast_call(engines.caller(2), std::span<float>(values[2]), 0, {}));
    };
    if (!late) wait();
    for (Rank r = 0; r < 2; ++r) done[r] = engines.sum(r, values[r], lossy);
    if (late) engines.pass(3 * millisecond), wait();
    const auto started = engines.now();
    engines.finish(done);
    expect_differ(engines, done, started);
  }
}

TEST(CallOrder, a_queued_lossy_call_that_differs_is_detected) {
  LossyEngines engines({.ranks = 2});
  Values values(2, std::vector<float>(500'000, 1)), more = values;
  const Completions first{engines.sum(0, values[0], lossy), engines.sum(1, values[1], lossy)};
  // The engine describes this call in an error later. The call's options are destroyed before that.
  auto encoded = std::make_unique<CallOptions>(lossy);
  encoded->codec = *Codec::parse("int8");
  Completions second{engines.sum(0, more[0], *encoded)};
  encoded.reset();
  second.push_back(engines.sum(1, more[1], {}));
  engines.finish(second);
  for (const auto& completion : second) EXPECT_EQ(completion->status.code(), Code::invalid) << completion->status.to_string();
  engines.finish(first);
  for (const auto& completion : first) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
}

// Calls of all kinds overlap at random, in equal order on all ranks. Late or lost messages must not make the engine take a call
// for another one.
TEST(CallOrder, overlapping_calls_in_equal_order_never_mismatch) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Random random(seed);
    const auto ranks = 2 + static_cast<uint32_t>(random.below(3));
    LossyEngines engines({.ranks = ranks, .loses = [seed](Rank from, Rank to, uint32_t number) {
                            return mix64(seed + from * 31u + to * 17u + number * 77'777ull) % 20 == 0;
                          }});
    constexpr size_t calls = 40;
    std::vector<int> kinds(calls);
    for (auto& kind : kinds) kind = static_cast<int>(random.below(4));
    std::vector<Values> values(calls, Values(ranks));
    std::vector<size_t> next(ranks), waits_until(ranks);
    Completions done;
    std::vector<Completions> of(ranks);
    while (std::any_of(next.begin(), next.end(), [](size_t n) { return n < calls; })) {
      const auto rank = static_cast<Rank>(random.below(ranks));
      auto& at = next[rank];
      // At most three calls of a rank are in flight.
      if (at == calls || (at >= 3 && !of[rank][at - 3]->done)) {
        engines.pass(100 * microsecond);
        continue;
      }
      auto& own = values[at][rank];
      own.assign(10 + at * 300, 1);
      auto delivery = lossy;
      if (kinds[at] == 1) delivery.delivery = Delivery::automatic;
      if (kinds[at] < 3) of[rank].push_back(engines.sum(rank, own, kinds[at] == 2 ? CallOptions{} : delivery));
      else of[rank].push_back(engines.submit(rank, broadcast_call(engines.caller(rank), std::span<float>(own), 0, {})));
      done.push_back(of[rank].back());
      ++at;
      if (random.below(3) == 0) engines.pass(static_cast<Nanos>(random.below(2000)) * microsecond);
    }
    engines.finish(done);
    for (const auto& completion : done)
      ASSERT_TRUE(completion->done && completion->status.ok()) << completion->status.to_string();
  }
}

TEST(CallOrder, repeated_equal_calls_need_no_notification) {
  LossyEngines engines({.ranks = 3});
  Values values(3, std::vector<float>(10'000, 1));
  const auto round = [&](const CallOptions& options) {
    Completions done;
    for (Rank r = 0; r < 3; ++r) done.push_back(engines.sum(r, values[r], options));
    engines.finish(done);
    for (const auto& completion : done) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
  };
  for (int i = 0; i < 3; ++i) round(lossy), round({});
  const auto before = engines.lossy_frames(0) + engines.lossy_frames(1) + engines.lossy_frames(2);
  for (int i = 0; i < 20; ++i) round(lossy), round({});
  EXPECT_LE(engines.lossy_frames(0) + engines.lossy_frames(1) + engines.lossy_frames(2), before + 2);
}

// Returns a call of which `variant` 1 differs from variant 0.
struct DifferingLossyCall {
  const char* name;
  std::function<Result<OperationRequest>(const Caller&, Values& values, bool variant)> make;
  const char *with_0, *with_1;
};

CallOptions lossy_with(const char* codec) {
  auto options = lossy;
  options.codec = *Codec::parse(codec);
  return options;
}

std::vector<DifferingLossyCall> differing_lossy_calls() {
  const auto sum_of = [](const Caller& caller, std::vector<float>& values, size_t count, const CallOptions& options) {
    const Tensor tensor{std::span<float>(values).first(count)};
    return all_reduce_call(caller, ConstTensor(tensor), tensor, options);
  };
  return {{"number of elements",
           [=](const Caller& c, Values& v, bool variant) { return sum_of(c, v[c.self], variant ? 900 : 1000, lossy); },
           "(f32 sum, 1000 elements", "(f32 sum, 900 elements"},
          {"type",
           [](const Caller& c, Values& v, bool variant) {
             const Tensor tensor(v[c.self].data(), 1000, variant ? DType::bf16 : DType::f32);
             return all_reduce_call(c, ConstTensor(tensor), tensor, lossy);
           },
           "(f32 sum, 1000 elements", "(bf16 sum, 1000 elements"},
          {"operation",
           [=](const Caller& c, Values& v, bool variant) {
             auto options = lossy;
             options.op = variant ? ReduceOp::avg : ReduceOp::sum;
             return sum_of(c, v[c.self], 1000, options);
           },
           "(f32 sum, 1000 elements", "(f32 avg, 1000 elements"},
          {"codec",
           [=](const Caller& c, Values& v, bool variant) {
             static const CallOptions options[] = {lossy_with("int8:metadata=f16"), lossy_with("int8:metadata=bf16")};
             return sum_of(c, v[c.self], 1000, options[variant ? 1 : 0]);
           },
           " with codec int8:metadata=f16", " with codec int8:metadata=bf16"},
          {"operation of a reduce_scatter",
           [](const Caller& c, Values& v, bool variant) {
             auto options = lossy;
             options.op = variant ? ReduceOp::avg : ReduceOp::sum;
             static std::array<std::vector<float>, 4> shards;
             shards[c.self].resize(c.self == 3 ? 1000 - 3 * 256 : 256);
             return reduce_shards_call(c, ConstTensor(std::span<const float>(v[c.self])), Tensor(std::span(shards[c.self])),
                                       options);
           },
           "(f32 sum, 1000 elements", "(f32 avg, 1000 elements"},
          {"codec of an all_gather",
           [](const Caller& c, Values& v, bool variant) {
             static const CallOptions options[] = {lossy_with("int8:metadata=f16"), lossy_with("int8:metadata=bf16")};
             static std::array<std::vector<float>, 4> shards;
             const auto& own = options[variant ? 1 : 0];
             const auto layout =
                 shard_layout_of(4, ConstTensor(std::span<const float>(v[c.self])), own.codec->gather, own.shard_unit, 1472);
             shards[c.self].assign(layout->count(c.self), 1);
             return gather_shards_call(c, ConstTensor(std::span<const float>(shards[c.self])), Tensor(std::span(v[c.self])),
                                       own);
           },
           " with codec int8:metadata=f16", " with codec int8:metadata=bf16"}};
}

TEST(CallOrder, lossy_calls_that_differ_end_with_both_values_on_every_rank_and_leave_the_group_usable) {
  for (const auto& call : differing_lossy_calls()) {
    for (const Rank odd : {0u, 1u, 3u}) {
      for (const int how : {0, 1, 2, 3}) {
        const bool late = (how & 1) != 0;   // the odd rank calls after the others
        const bool known = (how & 2) != 0;  // both calls were made before, so none of them is announced
        SCOPED_TRACE(concat(call.name, ", odd rank ", odd, late ? ", late" : "", known ? ", known" : ""));
        LossyEngines engines({.ranks = 4});
        Values values(4, std::vector<float>(1000, 1));
        Completions done(4);
        for (const bool variant : {false, true}) {
          for (Rank r = 0; known && r < 4; ++r) done[r] = engines.submit(r, call.make(engines.caller(r), values, variant));
          if (known) engines.finish(done);
        }
        for (Rank r = 0; r < 4; ++r) {
          if (r != odd) done[r] = engines.submit(r, call.make(engines.caller(r), values, false));
        }
        if (late) engines.pass(3 * millisecond);
        const auto started = engines.now();
        done[odd] = engines.submit(odd, call.make(engines.caller(odd), values, true));
        engines.finish(done);
        EXPECT_LT(engines.now() - started, 10 * millisecond);
        for (const auto& one : done) {
          EXPECT_EQ(one->status.code(), Code::invalid) << one->status.to_string();
          for (const auto* part : {"calls differ: rank ", call.with_0, call.with_1})
            EXPECT_NE(one->status.message().find(part), std::string::npos) << one->status.message();
        }
        for (Rank r = 0; r < 4; ++r) values[r].assign(1000, 1), done[r] = engines.sum(r, values[r], lossy);
        engines.finish(done);
        for (Rank r = 0; r < 4; ++r) {
          EXPECT_TRUE(done[r]->status.ok()) << done[r]->status.to_string();
          EXPECT_EQ(values[r], std::vector<float>(1000, 4)) << r;
        }
      }
    }
  }
}

TEST(CallOrder, calls_with_an_id_are_not_ordered) {
  LossyEngines engines({.ranks = 2});
  Values values(2, std::vector<float>(1000, 1)), more = values;
  const Completions done{engines.sum(0, values[0], lossy), engines.sum(1, more[1], {.id = 5}),
                         engines.sum(0, more[0], {.id = 5}), engines.sum(1, values[1], lossy)};
  engines.finish(done);
  for (const auto& completion : done) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
}

TEST(LossyAbort, an_abort_ends_earlier_and_later_calls_of_other_ranks) {
  LossyEngines engines({.ranks = 3});
  Values values(3, std::vector<float>(20'000, 1));
  Completions warm;
  for (Rank r = 0; r < 3; ++r) warm.push_back(engines.sum(r, values[r], lossy));
  engines.finish(warm);
  const Completions waiting{engines.sum(1, values[1], lossy), engines.sum(2, values[2], lossy)};
  engines.pass(millisecond);
  EXPECT_FALSE(waiting[0]->done || waiting[1]->done);
  const auto started = engines.now();
  engines.engine(0).abort_group(engines.group(0), {Code::unavailable, "aborted: enough"}, started);
  engines.finish(waiting);
  const Completions later{engines.sum(1, values[1], lossy), engines.sum(2, values[2], lossy)};
  engines.finish(later);
  EXPECT_LT(engines.now() - started, 10 * millisecond);
  for (const auto& ended : {waiting[0], waiting[1], later[0], later[1]}) {
    EXPECT_EQ(ended->status.code(), Code::unavailable) << ended->status.to_string();
    EXPECT_NE(ended->status.message().find("rank 0 aborted the operation: aborted: enough"), std::string::npos)
        << ended->status.to_string();
  }
}

TEST(AutomaticDelivery, automatic_calls_are_lossy_operations_repaired_to_completion_on_datagram_links) {
  LossyEngines engines({.ranks = 3, .loses = [](Rank from, Rank to, uint32_t number) {
                          return mix64(from * 31u + to * 17u + number * 77'777ull) % 5 == 0;
                        }});
  for (int round = 0; round < 40; ++round) {
    Values values{std::vector<float>(20'000, 1), std::vector<float>(20'000, 2), std::vector<float>(20'000, 3)};
    Completions done;
    for (Rank r = 0; r < 3; ++r) done.push_back(engines.sum(r, values[r], {.delivery = Delivery::automatic}));
    engines.finish(done);
    for (Rank r = 0; r < 3; ++r) {
      ASSERT_TRUE(done[r]->status.ok()) << done[r]->status.to_string();
      EXPECT_EQ(done[r]->report.delivery->used, Delivery::reliable);
      EXPECT_TRUE(done[r]->report.delivery->contribute.ran);
      EXPECT_EQ(values[r], std::vector<float>(20'000, 6));
    }
  }
}

TEST(AutomaticDelivery, calls_beyond_the_staging_limit_use_no_datagrams) {
  LossyEngines engines({.ranks = 2});
  Values values(2, std::vector<float>(600'000, 1));
  CallOptions options{.delivery = Delivery::automatic};
  options.lossy.staging_bytes_max = 1u << 20;
  const Completions done{engines.sum(0, values[0], options), engines.sum(1, values[1], options)};
  engines.finish(done);
  for (const auto& completion : done) {
    ASSERT_TRUE(completion->status.ok()) << completion->status.to_string();
    EXPECT_EQ(completion->report.delivery->note, "contributions of 1200000 bytes exceed the staging memory, staging=1048576");
    EXPECT_FALSE(completion->report.delivery->contribute.ran);
  }
}

TEST(AutomaticDelivery, decisions_of_rank_0_reach_all_ranks_and_others_are_refused) {
  uint32_t loss = 60;  // percentage of lost datagrams
  LossyEngines engines({.ranks = 3, .loses = [&loss](Rank from, Rank to, uint32_t number) {
                          return mix64(from * 31u + to * 17u + number * 77'777ull) % 100 < loss;
                        }});
  auto options = lossy;
  options.lossy.loss_budget = 1;
  const auto round = [&] {
    Values values(3, std::vector<float>(20'000, 1));
    Completions done;
    for (Rank r = 0; r < 3; ++r) done.push_back(engines.sum(r, values[r], options));
    engines.finish(done);
    size_t reliable = 0;
    for (const auto& completion : done) {
      EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
      reliable += completion->report.delivery->used == Delivery::reliable;
    }
    return reliable;
  };
  for (int i = 0; i < 21; ++i) EXPECT_EQ(round(), 0u);
  EXPECT_EQ(round(), 3u);
  // Rank 1 must ignore this notification, because rank 2 sends it and only rank 0 may.
  FrameHeader header{.kind = FrameKind::lossy, .epoch = 7, .group = 1, .sender = 2};
  const auto payload =
      DeliveryDecision{.asked = Delivery::lossy, .used = Delivery::lossy, .from = 0, .note = "forged decision"}.encode();
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  engines.engine(1).received(2, header, {.data = payload.data(), .bytes = payload.size()});
  EXPECT_EQ(engines.engine(1).counters().frames_refused, 1u);
  EXPECT_EQ(round(), 3u);
}

}  // namespace
}  // namespace unisono::sim
