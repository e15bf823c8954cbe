// Test data, and groups of ranks in one process whose all-reduces are plain sums.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "compressors/arc_top_k.h"
#include "compressors/counter_random.h"

namespace unisono::test {

using Values = std::vector<float>;

inline Values normals(uint64_t seed, uint64_t step, uint32_t tensor, size_t count) {
  Values values(count);
  RandomStream{.seed = seed, .step = step, .tensor = tensor, .purpose = RandomStream::Purpose::test_data}.normals(0, values);
  return values;
}

// Options that compress every tensor, as the checks of docs/design/methods/arc_top_k.md require.
inline ArcOptions arc_options(uint32_t ratio_ppm, uint32_t rank, uint64_t seed) {
  return {.rule = {.ratio_ppm = ratio_ppm, .rank = rank, .max_payload_ppm = UINT32_MAX, .min_elements = 0}, .seed = seed};
}

inline double squared(const Values& values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return sum;
}

// A compressor for one tensor on one rank.
class Alone {
 public:
  Alone(const ArcOptions& options, uint32_t number, uint64_t rows, uint64_t columns)
      : made_(make_arc_top_k(options, 0, {{.number = number, .shape = {rows, columns}}})) {
    EXPECT_TRUE(made_.ok()) << made_.status().to_string();
  }

  // Runs one step and returns the decompressed values.
  Values run(uint64_t step, const Values& in) {
    auto values = in;
    const CompressorInput inputs[] = {{.values = values.data()}};
    compressor().begin(step, inputs);
    const float* const from[] = {values.data()};
    EXPECT_TRUE(compressor().choose().ok());
    compressor().pack(from);
    float* const to[] = {values.data()};
    EXPECT_TRUE(compressor().accept().ok());
    if (compressor().decisions()[0].treatment == Treatment::compressed) std::fill(values.begin(), values.end(), 0.0f);
    compressor().unpack(to);
    return values;
  }
  std::vector<uint32_t> chosen(uint64_t step, const Values& in) {
    run(step, in);
    const auto rows = compressor().rows(0);
    return {rows.begin(), rows.end()};
  }
  // Returns the share of the squared norm that one step loses.
  double error(uint64_t step, const Values& in) {
    const auto out = run(step, in);
    double lost = 0;
    for (size_t i = 0; i < in.size(); ++i) lost += (double{in[i]} - out[i]) * (double{in[i]} - out[i]);
    return lost / squared(in);
  }
  double mean_error(uint64_t steps, const Values& in) {
    double sum = 0;
    for (uint64_t step = 1; step <= steps; ++step) sum += error(step, in);
    return sum / static_cast<double>(steps);
  }
  Compressor& compressor() { return **made_; }

 private:
  Result<std::unique_ptr<Compressor>> made_;
};

// Averages in place, like an all-reduce: every rank gets the same bits.
inline void average(std::vector<std::span<float>>& buffers) {
  for (size_t i = 0; i < buffers[0].size(); ++i) {
    float sum = 0;
    for (const auto& buffer : buffers) sum += buffer[i];
    for (auto& buffer : buffers) buffer[i] = sum / static_cast<float>(buffers.size());
  }
}

}  // namespace unisono::test
