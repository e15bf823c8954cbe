#include "training/reducer/reduction_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>

#include "base/concat.h"

namespace unisono {
namespace {

// If the norm of a residual exceeds the largest gradient norm by this factor, a warning is given.
constexpr double growth_limit = 100;

// Returns 0 if the system does not say how much memory is free.
uint64_t free_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, rest; file >> key && std::getline(file, rest);) {
    if (key == "MemAvailable:") return std::strtoull(rest.c_str(), nullptr, 10) << 10;
  }
  return 0;
}

}  // namespace

void add(CompressionCosts& to, const CompressionCosts& costs) {
  to.sketch_us += costs.sketch_us;
  to.sketch_reduce_us += costs.sketch_reduce_us;
  to.select_us += costs.select_us;
  to.pack_us += costs.pack_us;
  to.value_reduce_us += costs.value_reduce_us;
  to.unpack_us += costs.unpack_us;
  to.payload_elements += costs.payload_elements;
  to.collectives += costs.collectives;
  to.sent_payload += costs.sent_payload;
  to.sent_headers += costs.sent_headers;
}

// In the averaged buffer, each rank contributed its own value, and zeros for the values of the other ranks. Therefore the value
// of a rank is the average times `world`. The function sums the values over the buckets.
ExchangedNorms exchanged_norms(std::span<Bucket* const> buckets, uint32_t world) {
  ExchangedNorms norms;
  std::vector<double> gradients(world);
  for (const auto* bucket : buckets) {
    if (bucket->side_values.size() != size_t{side_values_per_rank} * world) continue;
    norms.residual.resize(world);
    for (size_t r = 0; r < world; ++r) {
      norms.residual[r] += static_cast<double>(bucket->side_values[2 * r]) * world;
      gradients[r] += static_cast<double>(bucket->side_values[2 * r + 1]) * world;
    }
  }
  for (auto& each : norms.residual) each = std::sqrt(each);
  norms.longest_gradient = std::sqrt(*std::max_element(gradients.begin(), gradients.end()));
  return norms;
}

void ReductionWarnings::warn(CompressionReport& report, bool& given, bool when, const std::string& text) {
  if (given || !when) return;
  given = true;
  report.warnings.push_back(text);
}

void ReductionWarnings::add_warnings(CompressionReport& report, const Compression& compression, double longest_gradient) {
  using enum Compression::Feedback;
  const bool compressing = report.compressed > 0;
  warn(report, growth_, longest_gradient > 0 && report.residual_norm_max > growth_limit * longest_gradient,
       "the residual norm of a rank is more than 100 times the largest gradient norm: rows that cancel out over the ranks "
       "are never sent; set `refresh` to send each row from time to time");
  warn(report, none_, compressing && compression.feedback == none, "without feedback the rows that are not sent are lost");
  warn(report, adaptive_,
       compressing && compression.adaptive_optimizer && (compression.feedback == ef21 || compression.feedback == ef21m),
       "ef21 and ef21m are for SGD: no theorem covers Adam, and a public run with AdamW (GPT-60M, one seed, eta 1) ended at "
       "perplexity 111.90 with EF21 where EF14 had 74.88 and dense 66.04");
  if (memory_ || report.state_bytes == 0) return;
  const auto free = free_memory_bytes();
  warn(report, memory_, free > 0 && report.state_bytes > free / 4,
       concat("the error feedback state takes ", report.state_bytes >> 20, " MB, more than a quarter of the free memory"));
  memory_ = true;
}

std::string CompressionReport::to_string() const {
  char text[400];
  std::snprintf(text, sizeof text,
                "step %llu%s: %u compressed, %u whole; %llu of %llu values (%.3f), %llu collectives, %llu bytes sent; %.3f ms, "
                "%.3f ms of it waiting; captured %.3f, |out| %.4g, |e| mean %.4g max %.4g",
                static_cast<unsigned long long>(step), applied ? "" : " (skipped: not finite)", compressed, whole,
                static_cast<unsigned long long>(costs.payload_elements), static_cast<unsigned long long>(elements),
                payload_ratio(), static_cast<unsigned long long>(costs.collectives),
                static_cast<unsigned long long>(costs.sent_payload + costs.sent_headers), static_cast<double>(total_us) / 1000,
                static_cast<double>(wait_us) / 1000, captured, output_norm, residual_norm_mean, residual_norm_max);
  return text + (off.empty() ? std::string() : "; off: " + off);
}

}  // namespace unisono
