// Steps that run out of memory, and the amount of memory that steps use.
//
// This file replaces the global operator new of the whole test program. The new operator counts the allocations of the watched
// threads and makes the n-th fail. The tests repeat a step with increasing n.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/prctl.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/concat.h"
#include "testing/group_of_threads.h"
#include "testing/replaced_new.h"
#include "training/drop_compute/drop_controller.h"
#include "training/reducer/compression_rules.h"
#include "training/reducer/gradient_reducer_test_support.h"
#include "training/reducer/reducer_memory_test_support.h"
#include "training/sharded/drift_probe.h"

namespace {

enum class Watch : int { nothing, this_thread, reducers_thread, callers };
std::atomic<Watch> watch = Watch::nothing;
std::atomic<uint64_t> allocations = 0, fails_from = 0, fails_to = 0;
std::atomic<int64_t> live_bytes = 0;
thread_local bool armed = false;

bool is_reducers_thread() {
  char name[16] = {};
  ::prctl(PR_GET_NAME, name);
  return std::strcmp(name, "unisono-reduce") == 0;
}

bool fails() {
  const auto who = watch.load(std::memory_order_relaxed);
  if (who == Watch::nothing || (who == Watch::reducers_thread ? !is_reducers_thread() : !armed)) return false;
  const auto number = ++allocations;
  return number >= fails_from && number <= fails_to;
}

}  // namespace

void* unisono::replaced_new::allocate(size_t bytes, size_t alignment) {
  if (fails()) return nullptr;
  auto* memory = from_heap(bytes, alignment);
  if (memory != nullptr) live_bytes.fetch_add(static_cast<int64_t>(::malloc_usable_size(memory)), std::memory_order_relaxed);
  return memory;
}

void unisono::replaced_new::release(void* memory) {
  if (memory != nullptr) live_bytes.fetch_sub(static_cast<int64_t>(::malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}

namespace unisono {
namespace {

using test::arc;
using test::Case;
using test::in_group;
using test::kept_by;
using test::Ledger;
using test::normals;
using test::OneRank;
using test::ReducerRank;
using test::Values;

// Makes the n-th allocation of the watched threads fail. for_good: all later allocations fail too. end() returns true if there
// were at least n allocations.
class FailingAllocations {
 public:
  FailingAllocations(Watch who, uint64_t n, bool for_good) : n_(n) {
    allocations = 0;
    fails_from = n;
    fails_to = for_good ? UINT64_MAX : n;
    watch = who;
  }
  ~FailingAllocations() { end(); }
  bool end() {
    watch = Watch::nothing;
    return allocations >= n_;
  }

 private:
  const uint64_t n_;
};

class NoMemory : public ::testing::TestWithParam<Case> {};

void expect_kept(const Case& c, FeedbackState& before, const FeedbackState& after, const Values& gradient) {
  if (c.feedback.kind == Feedback::ef14) {
    if (before.residual.empty()) {
      // A tensor without a residual keeps its gradient only if there is memory for it.
      EXPECT_TRUE(after.residual.empty() || after.residual == gradient);
      return;
    }
    ASSERT_EQ(after.residual.size(), gradient.size());
    for (size_t k = 0; k < gradient.size(); ++k) ASSERT_EQ(after.residual[k], gradient[k] + before.residual[k]);
  } else if (c.feedback.kind == Feedback::ef21m) {
    EXPECT_EQ(after.known, before.known);
    EXPECT_EQ(after.mean, before.mean);
    ASSERT_EQ(after.momentum.size(), before.momentum.size());
    for (size_t k = 0; k < after.momentum.size(); ++k)
      ASSERT_EQ(after.momentum[k], (1 - c.feedback.eta) * before.momentum[k] + c.feedback.eta * gradient[k]);
  }
}

TEST_P(NoMemory, a_failed_allocation_in_a_step_keeps_residual_and_gradient) {
  const auto& c = GetParam();
  uint64_t n = 1;
  for (bool more = true; more; ++n) {
    OneRank rank(c);
    uint64_t step = 0;
    for (; !c.first && step < 3; ++step) {
      rank.fill(step);
      ASSERT_TRUE(rank.step(step, Sending::compressed).ok());
    }
    if (c.anew) rank.make();
    std::array<FeedbackState, 2> before{rank.kept("w"), rank.kept("v")};
    rank.fill(step);
    const auto gradients = rank.gradients();
    Status status;
    {
      FailingAllocations failing(Watch::this_thread, n, c.for_good);
      armed = true;
      status = rank.step(step, c.sending);
      armed = false;
      more = failing.end();
    }
    SCOPED_TRACE(concat("allocation ", n));
    ASSERT_EQ(status.ok(), !more);
    if (more) {
      EXPECT_EQ(status.code(), Code::unavailable);
      expect_kept(c, before[0], rank.kept("w"), gradients[0]);
      if (c.feedback.lossy) expect_kept(c, before[1], rank.kept("v"), gradients[1]);
    }
    rank.fill(++step);
    EXPECT_TRUE(rank.step(step, Sending::compressed).ok());
  }
  EXPECT_GT(n, 2u) << "nothing failed";
}

constexpr FeedbackOptions ef14{.kind = Feedback::ef14}, ef21m{.kind = Feedback::ef21m};
constexpr FeedbackOptions lossy14{.kind = Feedback::ef14, .lossy = true}, lossy21m{.kind = Feedback::ef21m, .lossy = true};

ArcOptions drawn() {
  auto options = test::arc_options(200'000, 4, 5);
  options.random = true;
  return options;
}

INSTANTIATE_TEST_SUITE_P(
    All, NoMemory,
    ::testing::Values(Case{.name = "ef14", .feedback = ef14}, Case{.name = "ef14_first", .feedback = ef14, .first = true},
                      Case{.name = "ef14_for_good", .feedback = ef14, .first = true, .for_good = true},
                      Case{.name = "ef14_whole", .feedback = ef14, .sending = Sending::whole},
                      Case{.name = "ef14_random", .feedback = ef14, .arc = drawn()},
                      Case{.name = "ef14_lossy", .feedback = lossy14}, Case{.name = "ef21m", .feedback = ef21m},
                      Case{.name = "ef21m_first", .feedback = ef21m, .first = true},
                      Case{.name = "ef21m_for_good", .feedback = ef21m, .for_good = true},
                      Case{.name = "ef21m_whole", .feedback = ef21m, .sending = Sending::whole, .anew = true},
                      Case{.name = "ef21m_lossy", .feedback = lossy21m}, Case{.name = "power", .feedback = ef14, .power = true},
                      Case{.name = "power_first", .feedback = ef14, .first = true, .power = true},
                      Case{.name = "power_anew", .feedback = ef14, .anew = true, .power = true},
                      Case{.name = "power_whole", .feedback = ef14, .sending = Sending::whole, .power = true},
                      Case{.name = "ef14_anew", .feedback = ef14, .anew = true},
                      Case{.name = "ef21m_anew", .feedback = ef21m, .anew = true},
                      Case{.name = "ef21m_anew_for_good", .feedback = ef21m, .for_good = true, .anew = true}),
    [](const auto& each) { return std::string(each.param.name); });

// Two ranks run steps. In one step an allocation fails: in the reducers' threads, or in the calling thread of rank 0. This step
// runs in a group of its own with a short timeout, because the group's engine may fail. The other steps use another group.
class TwoRanks {
 public:
  TwoRanks(Watch who, uint64_t n) : who_(who), n_(n) {}
  // Returns false if the step made fewer than n allocations.
  bool run() {
    Options hurried;
    hurried.timeout = Milliseconds(25);
    std::array<std::optional<Group>, 2> scarce;
    in_group(
        2, [&](Group& group) { scarce[group.rank()] = group; }, hurried);
    in_group(2, [&](Group& group) { run(group, *scarce[group.rank()]); });
    ledger_.expect_balanced();
    return more_;
  }
  bool failed() const { return !ended_[0].ok() || !ended_[1].ok(); }
  bool is_apart() const { return ended_[0].ok() != ended_[1].ok(); }

 private:
  void run(Group& group, Group& scarce) {
    ReducerRank rank(group);
    const uint32_t own = group.rank();
    ranks_[own] = &rank;
    EXPECT_TRUE(rank.make(arc()).ok());
    for (uint64_t step = 0; step < 2; ++step) usual_step(rank, step);
    // On a busy machine resume() may exceed the short timeout, so both ranks repeat it until both succeed.
    for (std::array met{0, 0}; met[0] + met[1] < 2;) {
      met = {};
      met[own] = rank.reducer->resume(scarce).ok();
      EXPECT_TRUE(group.all_reduce(std::span<int32_t>(met)).ok());
    }
    rank.fill(2);
    both_.arrive_and_wait();
    std::optional<FailingAllocations> failing;
    if (own == 0) failing.emplace(who_, n_, false);
    both_.arrive_and_wait();
    scarce_step(rank, own);
    both_.arrive_and_wait();
    if (own == 0) more_ = failing->end();
    both_.arrive_and_wait();
    continue_training(rank, group, own);
  }
  void usual_step(ReducerRank& rank, uint64_t number) {
    rank.fill(number);
    ledger_.give(rank);
    const auto report = rank.step();
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    ledger_.deliver(rank);
  }
  void scarce_step(ReducerRank& rank, uint32_t own) {
    auto given = rank.values;
    const auto gradient = [&](uint32_t i) { return Gradient{.name = test::model[i].name, .values = rank.values[i].data()}; };
    const Gradient first[] = {gradient(4), gradient(3)}, second[] = {gradient(2), gradient(1), gradient(0)};
    armed = own == 0;
    const auto one = rank.reducer->reduce(first), two = rank.reducer->reduce(second);
    auto report = rank.reducer->finish();
    armed = false;
    ended_[own] = report.status();
    for (const auto& [status, tensors] :
         {std::pair(one, std::vector<size_t>{4, 3}), std::pair(two, std::vector<size_t>{2, 1, 0})}) {
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), Code::unavailable) << status.to_string();
      EXPECT_EQ(report.status().code(), Code::unavailable) << report.status().to_string();
      // A refused bucket was not submitted. Its gradients are unchanged, and the ledger must not count them.
      for (const size_t i : tensors) {
        EXPECT_EQ(rank.values[i], given[i]);
        std::fill(given[i].begin(), given[i].end(), 0.0f);
      }
    }
    ledger_.give(given);
  }
  // If at least one rank has the averages, both ranks use them.
  void continue_training(ReducerRank& rank, Group& group, uint32_t own) {
    const auto resumed = rank.reducer->resume(group);
    EXPECT_TRUE(resumed.ok()) << resumed.status().to_string();
    if (!resumed.ok()) return;
    const bool someone = ended_[0].ok() || ended_[1].ok();
    EXPECT_EQ(resumed->step, someone ? 3u : 2u);
    EXPECT_TRUE(!someone || ended_[resumed->parameters_from].ok());
    if (someone) ledger_.deliver(*ranks_[resumed->parameters_from]);
    both_.arrive_and_wait();
    for (uint64_t step = 3; step < 5; ++step) usual_step(rank, step);
    ledger_.keep(rank);
  }

  const Watch who_;
  const uint64_t n_;
  Ledger ledger_;
  std::barrier<> both_{2};
  std::array<ReducerRank*, 2> ranks_{};
  std::array<Status, 2> ended_;
  bool more_ = true;
};

void expect_to_lose_nothing(Watch who) {
  uint64_t n = 1, tried = 0, failed = 0, apart = 0;
  // n grows faster and faster, because the later allocations are many and alike.
  for (bool more = true; more && !::testing::Test::HasFailure(); n += 1 + n / 32) {
    SCOPED_TRACE(concat("allocation ", n));
    TwoRanks ranks(who, n);
    more = ranks.run();
    ++tried, failed += ranks.failed(), apart += ranks.is_apart();
  }
  std::printf("    %llu allocations failed, and %llu steps, %llu of these on one rank only\n",
              static_cast<unsigned long long>(tried - 1), static_cast<unsigned long long>(failed),
              static_cast<unsigned long long>(apart));
  EXPECT_GT(failed, 10u);
}

TEST(GradientReducerMemory, loses_nothing_if_an_allocation_fails_in_the_reducers_thread) {
  expect_to_lose_nothing(Watch::reducers_thread);
}
TEST(GradientReducerMemory, loses_nothing_if_an_allocation_fails_in_a_call) { expect_to_lose_nothing(Watch::callers); }

// bytes: allocated for a bucket, and still in use after four steps. state, buffers: the sizes that ErrorFeedback reports.
struct Measured {
  int64_t bytes = 0;
  uint64_t state = 0, buffers = 0;
};
Measured measure(const Compression& compression, const std::vector<Parameter>& parameters) {
  std::vector<Values> gradients;
  std::vector<float*> pointers;
  for (const auto& parameter : parameters) gradients.emplace_back(matrix_of(parameter.shape).elements());
  const auto before = live_bytes.load();
  FeedbackStore store;
  std::vector<GroupTensor> tensors;
  std::vector<std::string> names;
  for (uint32_t i = 0; i < parameters.size(); ++i) {
    tensors.push_back({.number = i, .shape = parameters[i].shape});
    names.push_back(parameters[i].name);
    pointers.push_back(gradients[i].data());
  }
  auto feedback =
      *ErrorFeedback::make(feedback_options(compression),
                           *make_compressor(compression, compression.ratio, 0, std::move(tensors)), std::move(names), store);
  for (uint64_t step = 0; step < 4; ++step) {
    for (uint32_t i = 0; i < gradients.size(); ++i)
      std::fill(gradients[i].begin(), gradients[i].end(), static_cast<float>(step + 1));
    feedback->begin(step, pointers);
    EXPECT_TRUE(feedback->next().ok());
    const auto lost = feedback->encode_errors();
    std::fill(lost.begin(), lost.end(), 0.0f);
    EXPECT_TRUE(feedback->finish().ok());
  }
  Measured measured{.bytes = live_bytes.load() - before, .buffers = feedback->buffer_bytes()};
  for (const auto& [name, state] : store) measured.state += state.bytes();
  return measured;
}

// Checks the sizes of the plan. The last two arguments are bytes of state per parameter, for compressed tensors and for tensors
// that are sent whole. Memory that is not reported may be at most 1 % of the reported bytes.
void expect_as_planned(const Compression& compression, uint64_t state_of_compressed, uint64_t state_of_whole) {
  const std::vector<Parameter> parameters{{"w", {1000, 700}}, {"v", {512, 3, 3, 64}}, {"b", {5000}}};
  const auto plan = CompressionPlan::make(parameters, compression);
  ASSERT_TRUE(plan.ok());
  const auto measured = measure(compression, parameters);
  SCOPED_TRACE(concat(compression.to_string(), ": ", measured.bytes, " bytes allocated"));
  const uint64_t warm = compression.method == Compression::Method::power_sgd ? 4 * 2 * (700 + 576) : 0;
  EXPECT_EQ(plan->state_bytes, state_of_compressed * (700'000 + 512 * 576) + state_of_whole * 5000 + warm);
  EXPECT_EQ(measured.state, plan->state_bytes);
  const auto buffers = static_cast<double>(plan->buffer_bytes),
             reported = static_cast<double>(measured.state + measured.buffers);
  EXPECT_NEAR(static_cast<double>(measured.buffers), buffers, 0.05 * buffers);
  EXPECT_GE(static_cast<double>(measured.bytes), reported);
  EXPECT_LE(static_cast<double>(measured.bytes), 1.01 * reported + (warm > 0 ? 8192 : 0));
}

// Bytes of state per parameter of a compressed tensor: EF14 4, EF21M 12. Per parameter of a tensor that is sent whole: EF14 0,
// EF21M 4 (the running mean). If a codec encodes the values, such tensors need as much as compressed ones.
TEST(ReducerMemory, equals_the_plan_and_the_reports) {
  expect_as_planned(arc("feedback=ef14"), 4, 0);
  expect_as_planned(arc("feedback=ef14,values=bf16"), 4, 4);
  expect_as_planned(arc("feedback=ef21m"), 12, 4);
  expect_as_planned(arc("feedback=ef21m,values=bf16"), 12, 12);
  expect_as_planned(test::power_sgd("feedback=ef14"), 4, 0);
  expect_as_planned(test::power_sgd("feedback=none"), 0, 0);
}

// From its second step on, a PowerSGD compressor allocates nothing.
TEST(ReducerMemory, power_sgd_allocates_once) {
  auto made = make_compressor(test::power_sgd(), 0.2, 0, {{0, {90, 70}}, {1, {33}}}, 4);
  Values a = normals(1, 0, 0, 6300), b(33), warm;
  const CompressorInput inputs[] = {{.values = a.data(), .warm = &warm}, {.values = b.data()}};
  const float* const from[] = {a.data(), b.data()};
  float* const to[] = {a.data(), b.data()};
  std::optional<FailingAllocations> failing;
  for (const uint64_t step : {0, 1, 2, 3}) {
    if (step == 1) failing.emplace(Watch::this_thread, 1, true);
    armed = step > 0;
    (*made)->begin(step, inputs);
    const bool chosen = (*made)->choose().ok();
    (*made)->pack(from);
    const bool accepted = (*made)->accept().ok();
    (*made)->unpack(to);
    for (const bool averaged : {true, false}) (*made)->subtract_sent(0, a.data(), averaged);
    armed = false;
    EXPECT_TRUE(chosen && accepted);
  }
  EXPECT_FALSE(failing->end());
}

// In a group of two ranks, the reducer must report the memory sizes that the plan predicts.
TEST(ReducerMemory, of_a_reducer_equals_its_reports_and_the_plan) {
  for (const std::string feedback : {"ef14", "ef21m"}) {
    in_group(2, [&](Group& group) {
      ReducerRank rank(group);
      const auto compression = arc("feedback=" + feedback);
      ASSERT_TRUE(rank.make(compression).ok());
      for (uint64_t step = 0; step < 3; ++step) {
        rank.fill(step);
        ASSERT_TRUE(rank.reduce({0, 1, 2, 3, 4}).ok());
        const auto report = rank.reducer->finish();
        ASSERT_TRUE(report.ok());
        const auto plan = CompressionPlan::make(test::model, compression);
        ASSERT_TRUE(plan.ok());
        EXPECT_EQ(report->state_bytes, plan->state_bytes);
        // 4096 bytes allow for the flag and the side values. In step 0, buffers may be smaller, because there is no spare
        // residual yet. EF21M sends its first step whole, so it has a copy of all gradients.
        EXPECT_TRUE(step == 0 || report->buffer_bytes >= plan->buffer_bytes) << report->buffer_bytes;
        EXPECT_LE(report->buffer_bytes,
                  plan->buffer_bytes + 4096 + (feedback == "ef21m" && step == 0 ? 4 * plan->elements : 0));
      }
    });
  }
}

TEST(DropControllerMemory, is_allocated_once) {
  constexpr uint32_t micro_batches = 12;
  DropController controller(micro_batches);
  FailingAllocations failing(Watch::this_thread, 1, true);
  armed = true;
  for (int64_t step = 0; step < 10; ++step) {
    for (const auto rule : {DropOptions::Rule::after, DropOptions::Rule::before, DropOptions::Rule::at}) {
      controller.begin({.rule = rule}, {.threshold_ns = 1000, .planned = micro_batches}, step);
      for (int64_t i = 1; i <= micro_batches; ++i) controller.micro_batch_done(step + i);
    }
  }
  armed = false;
  EXPECT_FALSE(failing.end());
  EXPECT_EQ(controller.computed(), micro_batches);
}

// Steps of a sharded state, with the drift measurement, allocate nothing after the third.
TEST(ShardedStateMemory, is_allocated_once) {
  for (const WireCodec& codec : {WireCodec{.block = {}}, WireCodec{.dtype = DType::bf16, .block = {}},
                                 WireCodec{.kind = StepCodec::Kind::quantize, .block = {.bits = 4, .group = 32}}}) {
    const auto geometry = RangeGeometry::make({.elements = 5000, .world = 3, .datagram_bytes = 576, .codec = codec});
    ASSERT_TRUE(geometry.ok());
    auto state = ShardedState::make(*geometry, 1, std::vector<float>(5000, 1.0f), make_adamw({}), {.stale_max = 2});
    ASSERT_TRUE(state.ok());
    DriftProbe probe(*geometry, 7);
    OwnUpdates updates(7);
    std::vector<float> gradient(state->own_values().size(), 0.5f), buffer(probe.buffer_elements());
    std::vector<uint8_t> held(geometry->ranges(1));
    held[1] = 1;
    std::vector<uint32_t> wanted;
    std::vector<uint64_t> ages(8);
    std::vector<std::byte> message;
    const auto step = [&] {
      state->update(gradient, held, 0.9f);
      const auto encoded = state->encode();
      message.assign(encoded.begin(), encoded.end());
      for (uint32_t range = 0; range + 1 < geometry->ranges(0); range += 2)
        state->receive(0, range, state->step(), std::span(message).subspan(geometry->offset(range), geometry->bytes(1, range)));
      state->close_step();
      state->to_fetch(2, wanted);
      state->age_histogram(ages);
      updates.add(*state);
      probe.pack(*state, {}, buffer);
    };
    for (int i = 0; i < 3; ++i) step();
    FailingAllocations failing(Watch::this_thread, 1, true);
    armed = true;
    for (int i = 0; i < 20; ++i) step();
    armed = false;
    EXPECT_FALSE(failing.end());
    EXPECT_EQ(state->age(0, 0), 0u);
    EXPECT_EQ(state->age(0, 1), 23u);
    EXPECT_EQ(wanted.size(), geometry->ranges(2));
  }
}

}  // namespace
}  // namespace unisono
