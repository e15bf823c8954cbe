// The program compares several ways to sum the partial results of the ranks. They are here. The program calls Unisono for sums
// only through this interface.
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
  std::optional<unisono::Codec> codec;  // the codec for Unisono's all-reduce; nullopt: Q80 is used instead, see make_reducer
};

// Parses "exact" (plain fp32), "q80", or a codec that unisono::Codec::parse knows. For any other word, returns invalid with the
// word.
unisono::Result<Setting> parse_setting(const std::string& word);

// If the setting has a codec, the result is Unisono's all-reduce with this codec; Unisono chooses the schedule. If it has none,
// the result is the method of distributed-llama: every rank encodes its partial sums as Q80 blocks, and Unisono's all-gather
// sends the blocks to all other ranks. Then every rank decodes the blocks of all ranks, including its own, and adds them in
// rank order. The report of this method counts elements, not bytes.
std::unique_ptr<Reducer> make_reducer(unisono::Group& group, const Setting& setting);

// Passes each call on to `reducer`, and records how long it took. The recorded time begins when the first message of the last
// rank arrives, because waiting for a rank that still computes is not communication.
class TimedReducer final : public Reducer {
 public:
  explicit TimedReducer(Reducer& reducer) : reducer_(reducer) {}
  unisono::Result<unisono::Report> sum(std::span<float> values) override;
  const std::vector<double>& calls_s() const { return calls_s_; }
  // The numbers of bytes and elements are sums over all calls. The other fields are those of the last call.
  const unisono::Report& report() const { return report_; }

 private:
  Reducer& reducer_;
  std::vector<double> calls_s_;
  unisono::Report report_;
};

// Returns the values of all ranks, in rank order.
unisono::Result<std::vector<double>> gather(unisono::Group& group, const std::vector<double>& mine);
unisono::Result<std::vector<uint64_t>> gather(unisono::Group& group, const std::vector<uint64_t>& mine);

}  // namespace tensor_parallel
