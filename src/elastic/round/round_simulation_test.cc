// Simulates whole averaging steps over small grids, with random deaths, in virtual time (check A27 of
// docs/design/methods/moshpit.md). Either all members change a chunk, or none does. A changed chunk must have the mean over the
// living members and over dead members that contributed before they died. No weight and no weighted value appears or
// disappears.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/concat.h"
#include "elastic/round/line_average.h"
#include "elastic/round/round_test_support.h"

namespace unisono {
namespace {

using test::Fate;
using test::RoundGroup;
using test::RoundGroupOptions;

constexpr uint64_t first_seed = 1;

uint64_t seed_count(uint64_t usual) {
  const char* text = std::getenv("UNISONO_TEST_SEEDS");  // set by hand for long runs
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

// One chunk of one member. All its elements are equal, so x is any of them.
struct Value {
  double x = 0, weight = 0;
  bool changed = false;
};

struct Peer {
  std::vector<float> x;
  std::vector<ChunkState> states;
  uint32_t first = 0, second = 0;  // the coordinates of the peer's cell
  bool alive = true;
};

class StepSimulation {
 public:
  StepSimulation(uint64_t seed, double loss) : random_(seed), loss_(loss), table_(1 + random_.below(9 * 256), 2) {
    dims_[0] = 1 + static_cast<uint32_t>(random_.below(4));
    dims_[1] = 2 + static_cast<uint32_t>(random_.below(3));
    const uint32_t cells = dims_[0] * dims_[1];
    const auto extras = static_cast<uint32_t>(random_.below(dims_[0] + 1));
    for (uint32_t rank = 0; rank < cells + extras; ++rank) {
      Peer peer;
      peer.first = rank < cells ? rank / dims_[1] : rank - cells;
      peer.second = rank < cells ? rank % dims_[1] : (rank - cells) % dims_[1];
      const auto value = static_cast<float>(random_.unit() * 100 - 50);
      for (size_t i = 0; i < table_.elements(); ++i) peer.x.push_back(value + static_cast<float>(i / table_.chunk_elements()));
      const double weight = random_.chance(0.1) ? 0 : 1 + static_cast<double>(random_.below(16));
      peer.states.assign(table_.chunks(), {.weight = weight});
      peers_.push_back(std::move(peer));
    }
  }

  // Runs the two rounds of an averaging step, local changes of the values, and the first round of another averaging step.
  void run() {
    for (uint32_t round = 0; round < 3; ++round) {
      const uint32_t axis = round % 2;
      if (round == 2) local_steps();
      for (uint32_t line = 0; line < dims_[1 - axis]; ++line) {
        std::vector<uint32_t> members;
        for (uint32_t i = 0; i < peers_.size(); ++i) {
          if (peers_[i].alive && (axis == 0 ? peers_[i].second : peers_[i].first) == line) members.push_back(i);
        }
        if (members.size() >= 2) average(members, axis);
      }
    }
  }
  uint64_t committed() const { return committed_; }
  uint64_t voided() const { return voided_; }
  uint64_t undecided() const { return undecided_; }
  uint64_t deaths() const { return deaths_; }

 private:
  void local_steps() {
    for (auto& peer : peers_) {
      const auto step = static_cast<float>(random_.unit());
      for (auto& x : peer.x) x += step;
    }
  }

  RoundGroupOptions options_of(const std::vector<uint32_t>& members, uint32_t axis) {
    RoundGroupOptions options{.members = {}, .chunk_counts = std::vector<uint32_t>(members.size()), .table = table_, .x = {}};
    for (const auto peer : members) {
      const bool client = !options.members.empty() && random_.chance(0.15);
      options.members.push_back({.position = axis == 0 ? peers_[peer].first : peers_[peer].second,
                                 .role = client ? ElasticRole::client : ElasticRole::peer,
                                 .in_layout = true});
      options.x.push_back(peers_[peer].x);
      options.states.push_back(peers_[peer].states);
    }
    for (uint32_t chunk = 0; chunk < table_.chunks(); ++chunk) {
      auto owner = random_.below(members.size());
      if (options.members[owner].role == ElasticRole::client) owner = 0;
      ++options.chunk_counts[owner];
    }
    options.delay_max = millisecond * static_cast<Nanos>(1 + random_.below(30));
    options.seed = random_.next();
    options.credit_bytes = random_.chance(0.5) ? SIZE_MAX : 1;
    const Nanos notices[] = {0, 20 * millisecond, second, never};
    options.noticed_after = notices[random_.below(4)];
    options.noticed_as = random_.chance(0.5) ? MemberLoss::dead : MemberLoss::closed;
    return options;
  }

  void average(const std::vector<uint32_t>& members, uint32_t axis) {
    const auto options = options_of(members, axis);
    RoundGroup group(options);
    // Draws which members die, and at which of their sends. A member survives if it sends fewer messages than drawn.
    std::vector<uint64_t> dies_at(members.size(), UINT64_MAX), sends(members.size());
    for (auto& at : dies_at) {
      if (random_.chance(0.12)) at = random_.below(random_.chance(0.5) ? 2 * table_.chunks() + 4 : 40);
    }
    group.filter([&](uint32_t from, uint32_t, const RoundMessage&) {
      if (sends[from]++ >= dies_at[from]) return Fate::sender_dies;
      return loss_ > 0 && random_.chance(loss_) ? Fate::lost : Fate::arrives;
    });
    group.run();
    uint32_t living = 0;
    bool proposer = false;
    for (uint32_t rank = 0; rank < members.size(); ++rank) {
      living += group.alive(rank) ? 1 : 0;
      proposer = proposer || (group.alive(rank) && options.members[rank].role != ElasticRole::client);
    }
    deaths_ += members.size() - living;
    const bool majority = loss_ == 0 && proposer && living >= members.size() / 2 + 1;
    for (uint32_t chunk = 0; chunk < table_.chunks(); ++chunk) expect_step(options, group, chunk, majority);
    for (uint32_t rank = 0; rank < members.size(); ++rank) {
      auto& peer = peers_[members[rank]];
      peer.alive = group.alive(rank);
      peer.x = group.x(rank);
      peer.states = group.states(rank);
      if (peer.alive) expect_report(group.report(rank), majority);
    }
  }

  void expect_report(const RoundReport& report, bool majority) {
    EXPECT_EQ(report.committed + report.kept_local + report.voided + report.lost + report.undecided, table_.chunks());
    EXPECT_EQ(report.ignored, 0u) << report.problem;
    if (majority) {
      EXPECT_EQ(report.undecided, 0u) << report.problem;
      EXPECT_EQ(report.kept_local, 0u);
      EXPECT_EQ(report.lost, 0u);
    }
    committed_ += report.committed;
    voided_ += report.voided;
    undecided_ += report.undecided;
  }

  Value value_of(const RoundGroupOptions& before, RoundGroup& group, uint32_t rank, uint32_t chunk) const {
    const size_t first = table_.first(chunk);
    for (size_t i = first; i < first + table_.count(chunk); ++i) EXPECT_EQ(group.x(rank)[i], group.x(rank)[first]);
    const auto& state = group.states(rank)[chunk];
    const auto& old = before.states[rank][chunk];
    return {.x = group.x(rank)[first],
            .weight = state.weight,
            .changed = group.x(rank)[first] != before.x[rank][first] || state.weight != old.weight};
  }

  // True if the living members have the values and weights that follow if exactly the contributors in `line` contributed.
  bool matches(const RoundGroupOptions& before, RoundGroup& group, const std::vector<LineMember>& line,
               const std::vector<std::optional<Value>>& values, uint32_t chunk) const {
    const auto weights = line_weights(line);
    if (weights.order.size() < 2 || weights.total == 0) return false;
    double mean = 0, mass_before = 0, mass_after = 0;
    for (const auto rank : weights.order)
      mean += line[rank].weight * (line[rank].weight > 0 ? before.x[rank][table_.first(chunk)] : 0.f);
    mean /= weights.total;
    for (uint32_t rank = 0; rank < line.size(); ++rank) {
      if (values[rank] && (std::abs(values[rank]->x - mean) > 1e-5 * std::max(1., std::abs(mean)) ||
                           std::abs(values[rank]->weight - weights.after[rank]) > 1e-12 * weights.total))
        return false;
      mass_before += line[rank].weight;
      // A dead member counts with its weight after the round, as if it were alive.
      mass_after += values[rank] ? values[rank]->weight : weights.after[rank];
    }
    EXPECT_NEAR(mass_after, mass_before, 1e-12 * mass_before);
    return true;
  }

  void expect_step(const RoundGroupOptions& before, RoundGroup& group, uint32_t chunk, bool majority) const {
    std::vector<LineMember> line(before.members.size());
    std::vector<std::optional<Value>> values(line.size());
    // Members that may have contributed: dead members, and members without a verdict.
    std::vector<uint32_t> unsure;
    uint32_t changed = 0, living = 0;
    for (uint32_t rank = 0; rank < line.size(); ++rank) {
      line[rank] = {.position = before.members[rank].position,
                    .weight = before.states[rank][chunk].weight,
                    .contributed = group.alive(rank)};
      if (!group.alive(rank)) {
        unsure.push_back(rank);
        continue;
      }
      const auto value = value_of(before, group, rank, chunk);
      ++living;
      changed += value.changed ? 1 : 0;
      // Without a majority, some members may decide and then die, while the others never decide. So an unchanged value is
      // checked only if a majority lives.
      if (value.changed || majority) values[rank] = value;
      if (value.changed || loss_ == 0) continue;
      line[rank].contributed = false;
      if (group.report(rank).undecided + group.report(rank).lost > 0) unsure.push_back(rank);
    }
    EXPECT_TRUE(!majority || changed == 0 || changed == living)
        << "chunk " << chunk << ": " << changed << " of " << living << " changed";
    if (changed == 0) return;
    for (uint32_t subset = 0; subset < 1u << unsure.size(); ++subset) {
      for (size_t i = 0; i < unsure.size(); ++i) line[unsure[i]].contributed = (subset >> i & 1) != 0;
      if (matches(before, group, line, values, chunk)) return;
    }
    ADD_FAILURE() << "chunk " << chunk << " is no step of the living and some of the dead";
  }

  Random random_;
  // Probability that a message is lost. If it is above 0, living members may be excused, too.
  const double loss_;
  const ChunkTable table_;
  uint32_t dims_[2] = {};
  std::vector<Peer> peers_;
  uint64_t committed_ = 0, voided_ = 0, undecided_ = 0, deaths_ = 0;
};

void simulate(uint64_t seeds, double loss = 0) {
  uint64_t committed = 0, voided = 0, undecided = 0, deaths = 0;
  for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    StepSimulation simulation(seed, loss);
    simulation.run();
    committed += simulation.committed();
    voided += simulation.voided();
    undecided += simulation.undecided();
    deaths += simulation.deaths();
    if (::testing::Test::HasFailure()) FAIL() << "first failing seed: " << seed;
  }
  ::testing::Test::RecordProperty("deaths", std::to_string(deaths));
  // The simulation must cover deaths, and chunks that are committed, voided and undecided.
  EXPECT_GT(deaths, seeds);
  EXPECT_GT(committed, 10 * seeds);
  EXPECT_GT(voided, seeds / 10);
  EXPECT_GT(undecided, seeds / 10);
}

TEST(RoundSimulationA27, every_chunk_is_the_mean_with_or_without_the_dead_members) { simulate(seed_count(600)); }
TEST(RoundSimulation, with_lost_messages_all_members_that_apply_a_chunk_apply_the_same_mean) {
  simulate(seed_count(300), 0.03);
}
TEST(RoundSimulationLong, with_lost_messages_all_members_that_apply_a_chunk_apply_the_same_mean) {
  simulate(seed_count(10'000), 0.03);
}
TEST(RoundSimulationLongA27, every_chunk_is_the_mean_with_or_without_the_dead_members) { simulate(seed_count(10'000)); }

}  // namespace
}  // namespace unisono
