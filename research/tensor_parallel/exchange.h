// The ways to sum partial results that the program compares. All calls of Unisono for them are behind this interface.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "research/tensor_parallel/transformer.h"
#include "unisono/unisono.h"

namespace tensor_parallel {

struct Setting {
  std::string name;
  std::optional<unisono::Codec> codec;  // of Unisono's all-reduce; none: Q80, see make_reducer
};

// "exact" (fp32 as it is), "q80", or a codec as unisono::Codec::parse reads it. invalid: names the unknown word.
unisono::Result<Setting> parse_setting(const std::string& word);

// With a codec: Unisono's all-reduce, which chooses the schedule. Without a codec: every rank sends its partial sums as Q80
// blocks to all others, and adds all blocks in rank order, its own decoded, too. That is distributed-llama's scheme; here an
// all-gather of Unisono moves the bytes. The report counts elements, not their bytes.
std::unique_ptr<Reducer> make_reducer(unisono::Group& group, const Setting& setting);

// Forwards calls and records how long each took, less the time until the last rank's first message came. Waiting for a rank
// that still computes is not communication.
class TimedReducer final : public Reducer {
 public:
  explicit TimedReducer(Reducer& reducer) : reducer_(reducer) {}
  unisono::Result<unisono::Report> sum(std::span<float> values) override;
  const std::vector<double>& calls_s() const { return calls_s_; }
  // Bytes and elements of all calls together; the other fields are those of the last call.
  const unisono::Report& report() const { return report_; }

 private:
  Reducer& reducer_;
  std::vector<double> calls_s_;
  unisono::Report report_;
};

// Every rank's values, in rank order.
unisono::Result<std::vector<double>> gather(unisono::Group& group, const std::vector<double>& mine);
unisono::Result<std::vector<uint64_t>> gather(unisono::Group& group, const std::vector<uint64_t>& mine);

}  // namespace tensor_parallel
