// Mutates valid schedules at random; the checker must refuse the mutants. A mutation at one rank separates a send from its
// receive, so it is always wrong. A mutation at both ends of a message may be correct: for example, the message moves to an
// idle round. So each mutant that the checker accepts is executed and must give correct results.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/random.h"
#include "schedules/test_support.h"

namespace unisono {
namespace {

using Schedules = std::vector<Schedule>;
constexpr uint64_t seed = 20'240'611;

// Splits each step into steps of one chunk. A mutation can then change a single chunk.
void expand(Schedules& schedules) {
  for (auto& schedule : schedules) {
    std::vector<Step> steps;
    for (const auto& step : schedule.steps)
      for (auto chunk = step.chunks.begin; chunk < step.chunks.end; ++chunk)
        steps.push_back({step.round, step.op, step.peer, {chunk, chunk + 1}});
    schedule.steps = std::move(steps);
  }
}

auto sort_key(const Step& step) {
  return std::tuple(step.round, step.op != Op::send, step.peer, step.chunks.begin, step.chunks.end, step.op);
}

void sort(Schedule& schedule) {
  std::stable_sort(schedule.steps.begin(), schedule.steps.end(),
                   [](const Step& a, const Step& b) { return sort_key(a) < sort_key(b); });
}

bool same(Schedules a, Schedules b) {
  for (size_t rank = 0; rank < a.size(); ++rank) {
    sort(a[rank]);
    sort(b[rank]);
    if (a[rank].steps != b[rank].steps) return false;
  }
  return true;
}

// Executes the schedules. The order of the steps is random, as far as the messages permit. Counts the contributions in each
// result.
class Replay {
 public:
  Replay(Collective collective, Rank root, const Schedules& schedules, uint64_t order_seed)
      : collective_(collective), root_(root), world_(static_cast<uint32_t>(schedules.size())), random_(order_seed) {
    for (Rank rank = 0; rank < world_; ++rank)
      for (const auto& step : schedules[rank].steps) chains_[{rank, step.chunks.begin}].push_back(step);
    chunk_count_ = schedules[0].chunk_count;
  }

  bool correct() {
    for (uint32_t chunk = 0; chunk < chunk_count_; ++chunk)
      for (Rank rank = 0; rank < world_; ++rank) {
        auto& counts = values_[{rank, chunk}];
        counts.assign(world_, 0);
        if (reduces() || rank == source(chunk)) counts[rank] = 1;
      }
    while (step_somewhere()) {}
    for (const auto& [where, chain] : chains_)
      if (!chain.empty()) return false;
    if (!wire_.empty()) return false;
    for (uint32_t chunk = 0; chunk < chunk_count_; ++chunk)
      for (Rank rank = 0; rank < world_; ++rank)
        if (must_have(rank, chunk) && !complete(rank, chunk)) return false;
    return true;
  }

 private:
  using Where = std::pair<Rank, uint32_t>;                     // (rank, chunk)
  using Message = std::tuple<uint32_t, uint32_t, Rank, Rank>;  // (round, chunk, from, to)

  bool reduces() const {
    return collective_ == Collective::all_reduce || collective_ == Collective::reduce_scatter ||
           collective_ == Collective::reduce || collective_ == Collective::barrier;
  }
  Rank source(uint32_t chunk) const {
    if (collective_ == Collective::all_to_all) return chunk / world_;
    return collective_ == Collective::broadcast || collective_ == Collective::scatter ? root_ : chunk;
  }
  bool must_have(Rank rank, uint32_t chunk) const {
    if (collective_ == Collective::all_to_all) return rank == chunk % world_;
    if (collective_ == Collective::reduce_scatter || collective_ == Collective::scatter) return rank == chunk;
    if (collective_ == Collective::reduce || collective_ == Collective::gather) return rank == root_;
    return true;
  }
  bool complete(Rank rank, uint32_t chunk) {
    for (Rank other = 0; other < world_; ++other) {
      const int wanted = reduces() || other == source(chunk) ? 1 : 0;
      const int count = values_[{rank, chunk}][other];
      if (collective_ == Collective::barrier ? count < wanted : count != wanted) return false;
    }
    return true;
  }

  // Executes one step that can be executed now: a send, or a receive of a message that has arrived. Tries the chains in turn,
  // from a random chain on.
  bool step_somewhere() {
    if (chains_.empty()) return false;
    auto at = std::next(chains_.begin(), static_cast<std::ptrdiff_t>(random_.below(chains_.size())));
    for (size_t i = 0; i < chains_.size(); ++i, ++at) {
      if (at == chains_.end()) at = chains_.begin();
      if (!at->second.empty() && run(at->first, at->second)) return true;
    }
    return false;
  }

  bool run(Where where, std::vector<Step>& chain) {
    const auto [rank, chunk] = where;
    const Step step = chain.front();
    if (step.op == Op::send) {
      wire_[{step.round, chunk, rank, step.peer}] = values_[where];
    } else {
      // The order of receives within a round is free. Takes a receive whose message has arrived.
      auto next = std::find_if(chain.begin(), chain.end(), [&](const Step& s) {
        return s.round == step.round && wire_.contains({s.round, chunk, s.peer, rank});
      });
      if (next == chain.end()) return false;
      const auto message = wire_.find({next->round, chunk, next->peer, rank});
      auto& counts = values_[where];
      for (Rank other = 0; other < world_; ++other)
        counts[other] = next->op == Op::recv_copy ? message->second[other] : counts[other] + message->second[other];
      wire_.erase(message);
      chain.erase(next);
      return true;
    }
    chain.erase(chain.begin());
    return true;
  }

  Collective collective_;
  Rank root_;
  uint32_t world_;
  uint32_t chunk_count_ = 0;
  Random random_;
  std::map<Where, std::vector<Step>> chains_;
  std::map<Where, std::vector<int>> values_;
  std::map<Message, std::vector<int>> wire_;
};

Step& any_step(Schedules& schedules, Random& random, Rank& rank) {
  do {
    rank = static_cast<Rank>(random.below(schedules.size()));
  } while (schedules[rank].steps.empty());
  auto& steps = schedules[rank].steps;
  return steps[random.below(steps.size())];
}

// Mutates the steps of one rank only. Returns the name of the mutation.
const char* mutate_one_side(Schedules& schedules, Random& random) {
  Rank rank = 0;
  Step& step = any_step(schedules, random, rank);
  const char* what = "";
  switch (random.below(6)) {
    case 0:
      what = "drop";
      schedules[rank].steps.erase(schedules[rank].steps.begin() + (&step - schedules[rank].steps.data()));
      break;
    case 1:
      what = "change peer";
      step.peer = static_cast<Rank>(random.below(schedules.size()));
      break;
    case 2:
      what = "change chunk";
      step.chunks.begin = static_cast<uint32_t>(random.below(schedules[rank].chunk_count));
      step.chunks.end = step.chunks.begin + 1;
      break;
    case 3:
      what = "change round";
      step.round = static_cast<uint32_t>(random.below(step.round + 4));
      break;
    case 4:
      what = "swap operation";
      step.op = static_cast<Op>((static_cast<uint32_t>(step.op) + 1 + random.below(2)) % 3);
      break;
    default: {
      what = "duplicate";
      const Step copy = step;
      schedules[rank].steps.push_back(copy);
    }
  }
  sort(schedules[rank]);
  return what;
}

// Mutates both ends of one message. Returns the name of the mutation.
const char* mutate_both_sides(Schedules& schedules, Random& random) {
  const auto world = static_cast<Rank>(schedules.size());
  Rank from = 0;
  Step* found = nullptr;
  while (found == nullptr || found->op != Op::send) found = &any_step(schedules, random, from);
  const Step sent = *found;
  auto& receiver = schedules[sent.peer].steps;
  const auto received = std::find_if(receiver.begin(), receiver.end(), [&](const Step& s) {
    return s.op != Op::send && s.peer == from && s.round == sent.round && s.chunks == sent.chunks;
  });
  EXPECT_NE(received, receiver.end());
  Step moved = *received;
  Step resent = sent;
  receiver.erase(received);
  schedules[from].steps.erase(schedules[from].steps.begin() + (found - schedules[from].steps.data()));
  const char* what = "drop message";
  const auto choice = random.below(5);
  if (choice == 1) {
    what = "redirect message";
    resent.peer = (from + 1 + static_cast<Rank>(random.below(world - 1))) % world;
  } else if (choice == 2) {
    what = "change chunk of message";
    resent.chunks.begin = moved.chunks.begin = static_cast<uint32_t>(random.below(schedules[from].chunk_count));
    resent.chunks.end = moved.chunks.end = resent.chunks.begin + 1;
  } else if (choice == 3) {
    what = "change round of message";
    resent.round = moved.round = static_cast<uint32_t>(random.below(sent.round + 4));
  } else if (choice == 4) {
    what = "repeat message later";
    schedules[from].steps.push_back(resent);
    schedules[sent.peer].steps.push_back(moved);
    resent.round = moved.round = sent.round + 1 + static_cast<uint32_t>(random.below(3));
  }
  if (choice != 0) {
    schedules[from].steps.push_back(resent);
    schedules[resent.peer].steps.push_back(moved);
  }
  for (auto& schedule : schedules) sort(schedule);
  return what;
}

class Mutation : public testing::TestWithParam<Collective> {
 protected:
  static constexpr int mutants_per_schedule = test::world_sizes_limit == 64 ? 60 : 8;

  // Calls use(request, valid schedules, random) for all kinds and several small worlds.
  template <typename Use>
  void for_each_schedule(Use use) {
    RecordProperty("seed", std::to_string(seed));
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    Random random(seed);
    for (const auto kind : kinds_of(GetParam())) {
      for (uint32_t world = 2; world <= 9; ++world) {
        std::vector<uint32_t> host_groups;
        for (Rank rank = 0; rank < world; ++rank) host_groups.push_back(rank / 3);
        const ScheduleRequest request{
            .collective = GetParam(), .kind = kind, .world = world, .root = world / 2, .host_groups = host_groups};
        auto schedules = test::make_all(request);
        expand(schedules);
        for (auto& schedule : schedules) sort(schedule);
        ASSERT_TRUE(check_schedules({.collective = GetParam(), .root = request.root, .schedules = schedules}).ok());
        ASSERT_TRUE(Replay(GetParam(), request.root, schedules, seed).correct());
        for (int i = 0; i < mutants_per_schedule; ++i) use(request, schedules, random);
      }
    }
  }
};

TEST_P(Mutation, a_mutation_of_one_ranks_steps_is_refused) {
  for_each_schedule([](const ScheduleRequest& request, const Schedules& schedules, Random& random) {
    auto mutant = schedules;
    const auto* what = mutate_one_side(mutant, random);
    if (same(mutant, schedules)) return;  // the mutation happened to change nothing
    const auto proof = check_schedules({.collective = request.collective, .root = request.root, .schedules = mutant});
    EXPECT_FALSE(proof.ok()) << what << " in " << name(request.kind) << " " << name(request.collective) << " of "
                             << request.world;
  });
}

TEST_P(Mutation, a_mutation_of_a_message_is_refused_unless_the_mutant_is_correct) {
  int accepted = 0;
  int refused = 0;
  for_each_schedule([&](const ScheduleRequest& request, const Schedules& schedules, Random& random) {
    auto mutant = schedules;
    const auto* what = mutate_both_sides(mutant, random);
    if (same(mutant, schedules)) return;
    const auto proof = check_schedules({.collective = request.collective, .root = request.root, .schedules = mutant});
    ++(proof.ok() ? accepted : refused);
    if (!proof.ok()) return;
    for (uint64_t order = 0; order < 3; ++order)
      EXPECT_TRUE(Replay(request.collective, request.root, mutant, order).correct())
          << what << " in " << name(request.kind) << " " << name(request.collective) << " of " << request.world
          << " is accepted";
  });
  std::printf("%d message mutants refused, %d accepted because they work\n", refused, accepted);
  EXPECT_GT(refused, accepted);
}

INSTANTIATE_TEST_SUITE_P(All, Mutation, testing::ValuesIn(test::scheduled_collectives),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace unisono
