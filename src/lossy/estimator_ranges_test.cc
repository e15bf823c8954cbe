// Tests the estimator together with the geometry, the arrival bitmaps and the staging memory of a whole shard.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/random.h"
#include "kernels/dispatch.h"
#include "lossy/estimator.h"
#include "lossy/range_arrivals.h"
#include "lossy/range_geometry.h"

namespace unisono {
namespace {

struct Arrival {
  Rank sender = 0;
  uint32_t range = 0;
  friend bool operator==(const Arrival&, const Arrival&) = default;
};

struct Setting {
  WireCodec codec{.block = {}};
  DType dtype = DType::f32;
  bool own_exact = false;
  bool mean = true;
  bool fp32_output = false;
};

constexpr uint32_t world = 4;
constexpr Rank owner = 1;

// The input of rank `owner`: all ranks' contributions to its shard, encoded range by range.
struct Shard {
  Shard(const Setting& with, uint64_t seed)
      : setting(with),
        geometry(*RangeGeometry::make({.elements = 9'000, .world = world, .datagram_bytes = 600, .codec = with.codec})) {
    Random random(seed);
    const auto count = geometry.shard(owner).count();
    std::vector<float> values(count);
    kernels::BlockCounts counts;
    for (Rank rank = 0; rank < world; ++rank) {
      for (auto& value : values)
        value = static_cast<float>((random.unit() - 0.5) * std::exp2(static_cast<double>(random.below(8))));
      auto& elements = tensors.emplace_back(count * element_bytes(with.dtype));
      if (with.dtype == DType::f32) std::memcpy(elements.data(), values.data(), elements.size());
      else kernels::convert(with.dtype, elements.data(), DType::f32, values.data(), count);
      auto& message = messages.emplace_back(geometry.shard_bytes(owner));
      for (uint32_t range = 0; range < geometry.ranges(owner); ++range) {
        encode({.codec = geometry.cut().codec,
                .dtype = with.dtype,
                .elements = elements.data() + begin(range) * element_bytes(with.dtype),
                .count = size(range),
                .message = message.data() + geometry.offset(range)},
               counts);
      }
    }
  }

  size_t begin(uint32_t range) const { return geometry.range(owner, range).begin - geometry.shard(owner).begin; }
  size_t size(uint32_t range) const { return geometry.range(owner, range).count(); }
  DType output_type() const { return setting.fp32_output ? DType::f32 : setting.dtype; }

  std::vector<Arrival> all() const {
    std::vector<Arrival> all;
    for (Rank sender = 0; sender < world; ++sender) {
      for (uint32_t range = 0; sender != owner && range < geometry.ranges(owner); ++range) all.push_back({sender, range});
    }
    return all;
  }

  // Stages the datagrams of `arrived` and returns the reduced shard. Staging memory starts as NaN, so NaN in the result shows
  // that a missing range was read.
  std::vector<std::byte> close(const std::vector<Arrival>& arrived, Estimator estimator = Estimator::stratified) {
    std::vector<std::vector<std::byte>> staged(world, std::vector<std::byte>(geometry.shard_bytes(owner), std::byte{0xFF}));
    std::vector<RangeArrivals> arrivals(world);
    for (auto& each : arrivals) each.reset(geometry.ranges(owner));
    for (const auto& [sender, range] : arrived) {
      if (arrivals[sender].mark(range))
        std::memcpy(staged[sender].data() + geometry.offset(range), messages[sender].data() + geometry.offset(range),
                    geometry.bytes(owner, range));
    }
    const auto bytes = element_bytes(output_type());
    std::vector<std::byte> output(geometry.shard(owner).count() * bytes, std::byte{0xFF});
    kinds.clear();
    for (uint32_t range = 0; range < geometry.ranges(owner); ++range) {
      const std::byte* contributions[world];
      for (Rank rank = 0; rank < world; ++rank)
        contributions[rank] = arrivals[rank].arrived(range) ? staged[rank].data() + geometry.offset(range) : nullptr;
      contributions[owner] = staged[owner].data();  // the estimator must not read the owner's entry
      kinds.push_back(worker.estimate({.codec = geometry.cut().codec,
                                       .dtype = setting.dtype,
                                       .contributions = contributions,
                                       .own = tensors[owner].data() + begin(range) * element_bytes(setting.dtype),
                                       .owner = owner,
                                       .count = size(range),
                                       .mean = setting.mean,
                                       .estimator = estimator,
                                       .own_exact = setting.own_exact,
                                       .fp32_output = setting.fp32_output,
                                       .output = output.data() + begin(range) * bytes}));
    }
    return output;
  }

  // Returns the shard that a reliable two_step computes; see Operation::reduce_lane and Operation::fold_lane.
  std::vector<std::byte> reliable() const {
    std::vector<std::byte> output(geometry.shard(owner).count() * element_bytes(output_type()));
    const uint32_t divisor = setting.mean ? world : 1;
    if (setting.codec.is_plain()) {
      std::vector<const void*> sources;
      for (const auto& tensor : tensors) sources.push_back(tensor.data());
      kernels::reduce({.dtype = setting.dtype,
                       .sources = sources,
                       .destination = output.data(),
                       .count = geometry.shard(owner).count(),
                       .divisor = divisor});
      return output;
    }
    kernels::BlockCounts counts;
    for (uint32_t range = 0; range < geometry.ranges(owner); ++range) {
      std::vector<const void*> sources;
      for (Rank rank = 0; rank < world; ++rank)
        sources.push_back(rank == owner ? nullptr : messages[rank].data() + geometry.offset(range));
      fold({.from = geometry.cut().codec,
            .messages = sources,
            .own = tensors[owner].data() + begin(range) * element_bytes(setting.dtype),
            .own_exact = setting.own_exact,
            .dtype = setting.dtype,
            .count = size(range),
            .divisor = divisor,
            .output = output.data() + begin(range) * element_bytes(setting.dtype)},
           counts);
    }
    return output;
  }

  Setting setting;
  RangeGeometry geometry;
  std::vector<std::vector<std::byte>> tensors, messages;  // by rank: values of the shard, plain and encoded
  std::vector<RangeKind> kinds;
  RangeEstimator worker;
};

WireCodec quantized(uint8_t bits, bool spikes = false) {
  return {.kind = StepCodec::Kind::quantize,
          .block = {.bits = bits, .group = 32, .metadata = kernels::Metadata::bf16, .spikes = spikes}};
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const bool mean : {false, true}) {
    for (const auto dtype : {DType::f32, DType::bf16, DType::f16}) {
      all.push_back({.codec = {.dtype = dtype, .block = {}}, .dtype = dtype, .mean = mean});
      for (const bool exact : {false, true}) {
        all.push_back({.codec = quantized(8), .dtype = dtype, .own_exact = exact, .mean = mean});
        all.push_back({.codec = quantized(3, true), .dtype = dtype, .own_exact = exact, .mean = mean});
      }
    }
    all.push_back(
        {.codec = {.kind = StepCodec::Kind::bf16, .dtype = DType::bf16, .block = {}}, .dtype = DType::f32, .mean = mean});
  }
  return all;
}

std::string text(const Setting& setting) {
  return to_string(setting.codec) + " of " + name(setting.dtype) + (setting.own_exact ? ", own exact" : "") +
         (setting.mean ? ", mean" : ", sum");
}

TEST(EstimatorOfRanges, a6_everything_present_is_bit_identical_to_the_reliable_sum) {
  for (const auto& setting : settings()) {
    SCOPED_TRACE(text(setting));
    Shard shard(setting, 60);
    for (const auto estimator : {Estimator::stratified, Estimator::count, Estimator::count_all, Estimator::zero_fill}) {
      EXPECT_TRUE(shard.close(shard.all(), estimator) == shard.reliable());
      EXPECT_EQ(std::count(shard.kinds.begin(), shard.kinds.end(), RangeKind::full),
                static_cast<std::ptrdiff_t>(shard.geometry.ranges(owner)));
    }
  }
}

TEST(EstimatorOfRanges, a6_one_missing_datagram_changes_only_its_elements) {
  for (const auto& setting : settings()) {
    SCOPED_TRACE(text(setting));
    Shard shard(setting, 61);
    const auto whole = shard.close(shard.all());
    for (const Arrival lost : {Arrival{0, 0}, Arrival{3, 2}, Arrival{2, shard.geometry.ranges(owner) - 1}}) {
      auto arrived = shard.all();
      std::erase(arrived, lost);
      const auto result = shard.close(arrived);
      const auto first = shard.begin(lost.range) * element_bytes(setting.dtype),
                 end = first + shard.size(lost.range) * element_bytes(setting.dtype);
      EXPECT_TRUE(std::equal(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(first), result.begin()));
      EXPECT_TRUE(std::equal(whole.begin() + static_cast<std::ptrdiff_t>(end), whole.end(),
                             result.begin() + static_cast<std::ptrdiff_t>(end)));
      EXPECT_FALSE(std::equal(whole.begin() + static_cast<std::ptrdiff_t>(first),
                              whole.begin() + static_cast<std::ptrdiff_t>(end),
                              result.begin() + static_cast<std::ptrdiff_t>(first)));
      EXPECT_EQ(std::count(shard.kinds.begin(), shard.kinds.end(), RangeKind::reduced), 1);
    }
  }
}

TEST(EstimatorOfRanges, a6_order_and_repetition_of_arrivals_change_no_bit) {
  constexpr uint64_t seed = 62;
  SCOPED_TRACE(concat("seed ", seed));
  for (const auto& setting : settings()) {
    SCOPED_TRACE(text(setting));
    Shard shard(setting, seed);
    Random random(seed);
    auto arrived = shard.all();
    std::erase_if(arrived, [&](const auto&) { return random.chance(0.3); });
    const auto expected = shard.close(arrived);
    for (int round = 0; round < 5; ++round) {
      auto shuffled = arrived;
      for (const auto& again : arrived) {
        if (random.chance(0.3)) shuffled.push_back(again);
      }
      for (size_t i = shuffled.size(); i > 1; --i) std::swap(shuffled[i - 1], shuffled[random.below(i)]);
      EXPECT_TRUE(shard.close(shuffled) == expected);
    }
  }
}

// Contributions are decoded one by one and added in fp32. The sum is rounded once. The factor 1.5 is (N-1)/R with N = 4 and R =
// 2.
TEST(EstimatorOfRanges, short_ranges_of_messages_are_rounded_once) {
  for (auto setting : settings()) {
    SCOPED_TRACE(text(setting));
    Shard shard(setting, 63);
    auto arrived = shard.all();
    std::erase_if(arrived, [](const Arrival& each) { return each.sender == 2; });
    const auto result = shard.close(arrived);
    const auto& codec = shard.geometry.cut().codec;
    kernels::BlockCounts counts;
    for (uint32_t range = 0; range < shard.geometry.ranges(owner); ++range) {
      const auto count = shard.size(range);
      std::vector<std::vector<float>> values(world, std::vector<float>(count));
      for (const Rank rank : {0, 1, 3}) {
        if (rank == owner && (setting.own_exact || codec.is_plain()))
          widened(setting.dtype, shard.tensors[rank].data() + shard.begin(range) * element_bytes(setting.dtype), count,
                  values[rank].data());
        else
          decode({.codec = codec,
                  .message = shard.messages[rank].data() + shard.geometry.offset(range),
                  .elements = values[rank].data(),
                  .count = count},
                 counts);
      }
      std::vector<float> expected(count);
      for (size_t i = 0; i < count; ++i) {
        const float sum = values[0][i] + values[3][i];
        const float scaled = sum * 1.5f;
        const float total = scaled + values[owner][i];
        expected[i] = setting.mean ? total / 4.0f : total;
      }
      std::vector<std::byte> rounded(count * element_bytes(setting.dtype));
      if (setting.dtype == DType::f32) std::memcpy(rounded.data(), expected.data(), rounded.size());
      else kernels::convert(setting.dtype, rounded.data(), DType::f32, expected.data(), count);
      ASSERT_EQ(std::memcmp(rounded.data(), result.data() + shard.begin(range) * element_bytes(setting.dtype), rounded.size()),
                0)
          << "range " << range;
    }
  }
}

// fp32_output exists because optimizers and codecs of results continue with unrounded values.
TEST(EstimatorOfRanges, fp32_output_of_16_bit_tensors_rounds_to_the_usual_one) {
  for (auto setting : settings()) {
    if (setting.dtype == DType::f32) continue;
    SCOPED_TRACE(text(setting));
    Shard usual(setting, 64);
    setting.fp32_output = true;
    Shard exact(setting, 64);
    for (const size_t keep : {size_t{0}, size_t{20}, exact.all().size()}) {
      auto arrived = exact.all();
      arrived.resize(keep);
      const auto wide = exact.close(arrived), expected = usual.close(arrived);
      std::vector<std::byte> rounded(expected.size());
      kernels::convert(setting.dtype, rounded.data(), DType::f32, wide.data(), wide.size() / sizeof(float));
      EXPECT_TRUE(rounded == expected);
    }
  }
}

TEST(EstimatorOfRanges, the_codecs_error_of_own_values_is_reported_for_every_kind_of_range) {
  const auto codec = quantized(3);
  Random random(65);
  std::vector<float> own(96), other(96), output(96), error(96);
  for (size_t i = 0; i < own.size(); ++i)
    own[i] = static_cast<float>(random.unit()), other[i] = static_cast<float>(random.unit());
  std::vector<std::byte> message(codec.message_bytes(96));
  std::vector<float> decoded(96);
  kernels::BlockCounts counts;
  encode({.codec = codec, .elements = own.data(), .count = 96, .message = message.data()}, counts);
  decode({.codec = codec, .message = message.data(), .elements = decoded.data(), .count = 96}, counts);
  encode({.codec = codec, .elements = other.data(), .count = 96, .message = message.data()}, counts);
  RangeEstimator estimator;
  const std::byte* const full[] = {nullptr, message.data(), message.data()};
  const std::byte* const some[] = {nullptr, nullptr, message.data()};
  const std::byte* const none[] = {nullptr, nullptr, nullptr};
  for (const auto& contributions : {full, some, none}) {
    std::fill(error.begin(), error.end(), 1.0f);
    estimator.estimate({.codec = codec,
                        .contributions = {contributions, 3},
                        .own = own.data(),
                        .count = 96,
                        .output = output.data(),
                        .error = error.data()});
    for (size_t i = 0; i < own.size(); ++i) ASSERT_EQ(error[i], 1.0f + (own[i] - decoded[i]));
  }
}

TEST(EstimatorOfRanges, the_result_may_overwrite_the_own_values) {
  const WireCodec plain{.block = {}}, bf16{.dtype = DType::bf16, .block = {}};
  const std::vector<float> remote{8, 16};
  const auto* const bytes = reinterpret_cast<const std::byte*>(remote.data());
  RangeEstimator estimator;
  for (const size_t received : {0, 1, 2}) {
    std::vector<float> own{1, 2};
    const std::byte* const contributions[] = {received > 0 ? bytes : nullptr, nullptr, received > 1 ? bytes : nullptr};
    estimator.estimate({.codec = plain,
                        .contributions = contributions,
                        .own = own.data(),
                        .owner = 1,
                        .count = 2,
                        .mean = false,
                        .output = own.data()});
    EXPECT_EQ(own, received > 0 ? (std::vector<float>{17, 34}) : (std::vector<float>{3, 6}));
  }
  uint16_t small[] = {0x3F80, 0x4000}, others[] = {0x4100, 0x4180};  // bf16 values 1, 2 and 8, 16
  const std::byte* const contributions[] = {reinterpret_cast<const std::byte*>(others), nullptr, nullptr};
  estimator.estimate({.codec = bf16,
                      .dtype = DType::bf16,
                      .contributions = contributions,
                      .own = small,
                      .owner = 1,
                      .count = 2,
                      .mean = false,
                      .output = small});
  EXPECT_EQ(small[0], 0x4188);  // 17 = 1 + 8 * 2/1: one of two other ranks arrived
  EXPECT_EQ(small[1], 0x4208);  // 34 = 2 + 16 * 2/1
}

// Check A4 of docs/design/methods/packet_loss.md: a range is empty with the probability loss^(N-1). Staging memory starts as
// NaN, and no NaN may reach the output.
TEST(EstimatorOfRanges, a4_empty_ranges_are_as_frequent_as_derived_and_read_no_old_memory) {
  constexpr uint64_t seed = 66;
  constexpr double loss = 0.4;
  SCOPED_TRACE(concat("seed ", seed));
  Shard shard({}, seed);
  Random random(seed);
  double empty = 0, ranges = 0;
  for (int operation = 0; operation < 200; ++operation) {
    auto arrived = shard.all();
    std::erase_if(arrived, [&](const auto&) { return random.chance(loss); });
    const auto output = shard.close(arrived);
    for (size_t i = 0; i < output.size() / sizeof(float); ++i) {
      float value = 0;
      std::memcpy(&value, output.data() + i * sizeof(float), sizeof(float));
      ASSERT_FALSE(std::isnan(value));
    }
    empty += static_cast<double>(std::count(shard.kinds.begin(), shard.kinds.end(), RangeKind::empty));
    ranges += static_cast<double>(shard.kinds.size());
  }
  const double expected = std::pow(loss, world - 1);
  EXPECT_NEAR(empty / ranges, expected, 4 * std::sqrt(expected * (1 - expected) / ranges));
}

TEST(EstimatorOfRanges, a_single_rank_gets_its_own_values) {
  const WireCodec plain{.block = {}};
  const float own[] = {1, -2};
  float output[2] = {};
  const std::byte* const contributions[] = {nullptr};
  RangeEstimator estimator;
  EXPECT_EQ(estimator.estimate(
                {.codec = plain, .contributions = contributions, .own = own, .count = 2, .mean = true, .output = output}),
            RangeKind::full);
  EXPECT_EQ(output[1], -2);
  EXPECT_EQ(estimator.estimate({.codec = plain, .contributions = contributions, .count = 0}), RangeKind::empty);
}

}  // namespace
}  // namespace unisono
