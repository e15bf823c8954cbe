// Helpers for tests of encoded collectives: short names of codecs, inputs, and an all-reduce on all ranks of a cluster.
// digest() also checks that every rank has the same bits.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "engine/test_cluster.h"
#include "kernels/golden_test_support.h"

namespace unisono::test {

using Vectors = std::vector<std::vector<float>>;

inline StepCodec step(uint8_t bits, uint16_t group, StepCodec::Metadata metadata,
                      StepCodec::Spikes spikes = StepCodec::Spikes::off) {
  return {.kind = StepCodec::Kind::quantize, .bits = bits, .group = group, .metadata = metadata, .spikes = spikes};
}

inline Codec both(const StepCodec& reduce, const StepCodec& gather) {
  return {.reduce = reduce, .across = reduce, .gather = gather};
}

inline Vectors golden(uint32_t world, size_t count) {
  Vectors values;
  for (uint32_t r = 0; r < world; ++r) values.push_back(gold(count, r + 1));
  return values;
}

struct Outcome {
  Vectors values;
  std::vector<Report> reports;
};

// All ranks reduce their values in place. errors: null, or a vector that receives the encoding error of each rank.
inline Outcome all_reduce(TestCluster& cluster, Vectors values, CallOptions options, Vectors* errors = nullptr) {
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < cluster.world(); ++r) {
    const Tensor tensor{std::span<float>(values[r])};
    if (errors != nullptr) options.encode_error = (*errors)[r].data();
    done.push_back(cluster.submit(r, all_reduce_call(cluster.caller(r), tensor, tensor, options)));
  }
  cluster.finish(done);
  Outcome outcome{std::move(values), {}};
  for (const auto& completion : done) {
    EXPECT_TRUE(completion->done && completion->status.ok()) << completion->status.to_string();
    outcome.reports.push_back(completion->report);
  }
  return outcome;
}

inline uint32_t digest(const Outcome& outcome) {
  const auto& first = outcome.values.front();
  for (const auto& values : outcome.values) {
    EXPECT_TRUE(first.empty() || std::memcmp(values.data(), first.data(), first.size() * sizeof(float)) == 0);
  }
  return crc32(first.data(), first.size() * sizeof(float));
}

}  // namespace unisono::test
