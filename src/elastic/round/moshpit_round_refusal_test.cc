// Members contribute values that are not finite. For each chunk, such a member is treated like an absent one: it keeps values
// and weight, the others average without it, and the reports of all members name it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "elastic/round/round_test_support.h"
#include "wire/digest.h"

namespace unisono {
namespace {

using test::Fate;
using test::line_of;
using test::RoundGroup;
using test::RoundGroupOptions;

constexpr size_t chunk_elements = 256;
constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity(),
                largest = std::numeric_limits<float>::max();

// Each member owns one chunk. All elements at rank r are 8·r.
RoundGroupOptions owners(uint32_t members) {
  RoundGroupOptions options{.members = line_of(members),
                            .chunk_counts = std::vector<uint32_t>(members, 1),
                            .table = ChunkTable(members * chunk_elements, 2),
                            .x = {}};
  for (uint32_t rank = 0; rank < members; ++rank)
    options.x.emplace_back(members * chunk_elements, 8 * static_cast<float>(rank));
  return options;
}

WireCodec codec(StepCodec::Kind kind) { return wire_codec({.kind = kind, .bits = 8}, DType::f32, DType::f32, false); }

struct Variant {
  CommitRule commit = CommitRule::agreed;
  StepCodec::Kind contribute = StepCodec::Kind::plain, result = StepCodec::Kind::plain;
};
constexpr Variant variants[] = {
    {},
    {.commit = CommitRule::per_result},
    {.contribute = StepCodec::Kind::quantize, .result = StepCodec::Kind::quantize},
    {.commit = CommitRule::per_result, .contribute = StepCodec::Kind::fp8, .result = StepCodec::Kind::bf16},
    {.contribute = StepCodec::Kind::bf16},
    {.contribute = StepCodec::Kind::f16},
    {.result = StepCodec::Kind::f16},
};

void use(const Variant& variant, RoundGroupOptions& options) {
  options.commit = variant.commit;
  options.contribute = codec(variant.contribute);
  options.result = codec(variant.result);
}

bool unchanged(const std::vector<float>& before, const std::vector<float>& after, size_t first) {
  return std::memcmp(&before[first], &after[first], chunk_elements * sizeof(float)) == 0;
}

// Rank `bad` has a value that is not finite in chunk 1 of 4. Rank 1 owns this chunk.
void expect_refused(const Variant& variant, uint32_t bad, float value) {
  auto options = owners(4);
  use(variant, options);
  options.x[bad][chunk_elements + 17] = value;
  const auto before = options.x;
  RoundGroup group(std::move(options));
  group.run();
  double weight = 0, weighted = 0;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const auto& report = group.report(rank);
    EXPECT_EQ(report.refused, 1u);
    EXPECT_EQ(report.absent, (std::vector<AbsentMember>{{bad, "values that are not finite in 1 of 4 chunks"}}));
    EXPECT_EQ(report.committed, rank == bad ? 3u : 4u);
    EXPECT_EQ(report.kept_local, rank == bad ? 1u : 0u);
    EXPECT_EQ(report.contributors_min, 3u);
    EXPECT_EQ(report.contributors_max, 4u);
    for (const uint32_t other : {0u, 2u, 3u}) {
      EXPECT_NEAR(group.x(rank)[other * chunk_elements], 12, 0.2) << "the mean of all";
      EXPECT_TRUE(group.states(rank)[other].full);
    }
    const auto& state = group.states(rank)[1];
    EXPECT_FALSE(state.full);
    EXPECT_EQ(state.weight, 1);
    weight += state.weight;
    if (rank == bad) {
      EXPECT_TRUE(unchanged(before[bad], group.x(bad), chunk_elements));
      continue;
    }
    weighted += state.weight * group.x(rank)[chunk_elements];
    const auto first = bad == 0 ? 1u : 0u;
    EXPECT_TRUE(unchanged(group.x(first), group.x(rank), chunk_elements)) << "the same bits at all others";
  }
  EXPECT_EQ(weight, 4);
  EXPECT_NEAR(weighted, 48 - 8. * bad, 1) << "the others keep the sum of their values";
}

TEST(MoshpitRoundRefusal, a_member_is_absent_from_the_chunks_in_which_its_values_are_not_finite) {
  for (const auto& variant : variants) {
    for (const float value : {nan, infinite, -infinite}) {
      for (uint32_t bad = 0; bad < 4; ++bad) {
        SCOPED_TRACE(::testing::Message() << "commit " << static_cast<int>(variant.commit) << ", codecs "
                                          << static_cast<int>(variant.contribute) << " and " << static_cast<int>(variant.result)
                                          << ", " << value << " at rank " << bad);
        expect_refused(variant, bad, value);
      }
    }
  }
}

TEST(MoshpitRoundRefusal, finite_values_of_any_size_are_averaged) {
  for (const auto& variant : variants) {
    auto options = owners(3);
    use(variant, options);
    options.states.resize(3);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      for (size_t i = 0; i < options.x[rank].size(); i += 5) options.x[rank][i] = rank == 2 ? -largest : largest;
      options.states[rank].assign(3, {.weight = contribution_weight_max});
    }
    RoundGroup group(std::move(options));
    group.run();
    for (uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(group.report(rank).refused, 0u);
      EXPECT_EQ(group.report(rank).committed, 3u);
      EXPECT_TRUE(group.report(rank).absent.empty());
      for (const float value : group.x(rank)) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

TEST(MoshpitRoundRefusal, a_chunk_with_one_finite_contribution_changes_nowhere) {
  auto options = owners(2);
  options.x[1][3] = nan;
  const auto before = options.x;
  RoundGroup group(std::move(options));
  group.run();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(group.report(rank).voided, 1u);
    EXPECT_EQ(group.report(rank).refused, 1u);
    EXPECT_EQ(group.report(rank).absent, (std::vector<AbsentMember>{{1, "values that are not finite in 1 of 2 chunks"}}));
    EXPECT_TRUE(unchanged(before[rank], group.x(rank), 0));
    EXPECT_EQ(group.states(rank)[0], (ChunkState{.weight = 1, .full = false, .sharers = 1}));
    EXPECT_EQ(group.x(rank)[chunk_elements], 4);
  }
}

TEST(MoshpitRoundRefusal, a_chunk_without_a_finite_contribution_changes_nowhere) {
  auto options = owners(3);
  for (auto& x : options.x) x[3] = nan;
  const auto before = options.x;
  RoundGroup group(std::move(options));
  group.run();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group.report(rank).voided, 1u);
    EXPECT_EQ(group.report(rank).refused, 3u);
    ASSERT_EQ(group.report(rank).absent.size(), 3u);
    EXPECT_TRUE(unchanged(before[rank], group.x(rank), 0));
  }
}

// Ranks 0 and 1 take the mean without a weight of their own, so no weight is left when rank 2 is refused.
TEST(MoshpitRoundRefusal, a_chunk_changes_nowhere_if_no_weight_is_left) {
  auto options = owners(3);
  options.x[2][3] = infinite;
  for (const double weight : {0., 0., 1.}) options.states.push_back(std::vector<ChunkState>(3, {.weight = weight}));
  const auto before = options.x;
  RoundGroup group(std::move(options));
  group.run();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group.report(rank).voided, 1u);
    EXPECT_TRUE(unchanged(before[rank], group.x(rank), 0));
    EXPECT_EQ(group.x(rank)[chunk_elements], 16);
  }
}

TEST(MoshpitRoundRefusal, two_reasons_of_one_member_are_both_told) {
  auto options = owners(4);
  options.x[3][0] = nan;
  RoundGroup group(std::move(options));
  // Rank 3 dies after its contributions to the chunks of ranks 0 and 1.
  int sent = 0;
  group.filter([&](uint32_t from, uint32_t, const RoundMessage& message) {
    const bool contribution = std::holds_alternative<Contribution>(message);
    return from == 3 && (!contribution || ++sent > 2) ? Fate::sender_dies : Fate::arrives;
  });
  group.run();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(
        group.report(rank).absent,
        (std::vector<AbsentMember>{{3, "dead, values that are not finite in 1 of 3 chunks, contributed to 1 of 3 chunks"}}));
  }
}

TEST(MoshpitRoundRefusal, a_result_that_refuses_a_reducer_is_ignored) {
  auto options = owners(3);
  options.members[2] = {.position = 2, .role = ElasticRole::reducer, .in_layout = false};
  options.x[2].clear();
  RoundGroup group(std::move(options));
  group.start();
  ChunkResult forged{.chunk = 1, .author = 1, .contributors = 0b011, .refused = 0b100, .total = 2};
  auto message = result_message(group.format(), forged);
  std::memset(message.data() + result_head_bytes, 0, message.size() - result_head_bytes);
  forged.digest = digest64(result_elements(message));
  write_result_head(group.format(), forged, message);
  group.inject(1, 0, message);
  EXPECT_EQ(group.report(0).ignored, 1u);
}

TEST(MoshpitRoundReport, an_owner_whose_results_do_not_arrive_is_named) {
  RoundGroup group(owners(4));
  group.filter([](uint32_t from, uint32_t, const RoundMessage& message) {
    return from == 3 && std::holds_alternative<ChunkResult>(message) ? Fate::lost : Fate::arrives;
  });
  group.run();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group.report(rank).voided, 1u);
    EXPECT_EQ(group.report(rank).absent, (std::vector<AbsentMember>{{3, "sent no result for 1 of its 1 chunks"}}));
  }
  EXPECT_TRUE(group.report(3).absent.empty());
}

}  // namespace
}  // namespace unisono
