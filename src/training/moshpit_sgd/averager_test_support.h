// Sweeps among peers of one process, for tests: who has begun when the sweep is closed takes part, and the mean is taken in double. Virtual time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "training/moshpit_sgd/averager.h"

namespace unisono::test {

struct SharedSweeps {
  struct Entry {
    std::vector<std::span<float>> values;
    double weight = 0;
    internal::StateBlobs blobs;
    bool closed = false;
    SweepReport report;
  };
  std::map<uint32_t, Entry> entries;  // by peer
  uint64_t next_sweep = 0;
  Nanos now = 0;
  Nanos sweep_time = 0;               // that end() waits, if the sweep goes on still
  std::function<void()> meanwhile;    // what others do, while end() waits
  Status refusal;                     // of begin()
  Status failure;                     // of end()

  // All that have begun take part, but `cut`, who keep what they have and learn that nothing came.
  void close(uint32_t peers, const std::vector<uint32_t>& cut = {}) {
    std::vector<Entry*> in;
    for (auto& [peer, entry] : entries) {
      if (entry.closed) continue;
      entry.closed = true;
      entry.report = {};
      entry.report.sweep = next_sweep, entry.report.peers = peers;
      entry.report.rounds.resize(1);
      if (std::ranges::find(cut, peer) == cut.end()) in.push_back(&entry);
    }
    ++next_sweep;
    double weight = 0;
    for (const auto* entry : in) weight += entry->weight;
    if (in.size() < 2 || weight == 0) return;
    for (size_t tensor = 0; tensor < in[0]->values.size(); ++tensor) {
      for (size_t i = 0; i < in[0]->values[tensor].size(); ++i) {
        double sum = 0;
        for (const auto* entry : in) {
          if (entry->weight > 0) sum += entry->weight * static_cast<double>(entry->values[tensor][i]);
        }
        for (auto* entry : in) entry->values[tensor][i] = static_cast<float>(sum / weight);
      }
    }
    const bool exact = in.size() == peers;
    for (auto* entry : in) {
      entry->report.exact = exact;
      auto& round = entry->report.rounds[0];
      round.group = static_cast<uint32_t>(in.size()), round.committed = 1, round.variance = 0.25, round.total_weight = weight;
    }
  }
};

class SharedAverager final : public internal::Averager {
 public:
  SharedAverager(SharedSweeps& sweeps, uint32_t peer) : sweeps_(sweeps), peer_(peer) {}

  Status begin(std::span<const std::span<float>> values, double weight, internal::StateBlobs blobs) override {
    EXPECT_FALSE(sweeps_.entries.contains(peer_)) << "two sweeps at once";
    if (!sweeps_.refusal.ok()) return sweeps_.refusal;
    sweeps_.entries[peer_] = {.values = {values.begin(), values.end()}, .weight = weight, .blobs = std::move(blobs), .closed = false, .report = {}};
    return {};
  }
  bool done() const override { return sweeps_.entries.at(peer_).closed; }
  Result<SweepReport> end(Milliseconds timeout) override {
    auto& entry = sweeps_.entries.at(peer_);
    if (!entry.closed && timeout.count() > 0) return Status(Code::late, "goes on");
    if (const auto meanwhile = sweeps_.meanwhile; !entry.closed && meanwhile) meanwhile();  // a copy: it may take itself away
    if (!entry.closed) sweeps_.now += sweeps_.sweep_time, sweeps_.close(static_cast<uint32_t>(sweeps_.entries.size()));
    const auto report = entry.report;
    sweeps_.entries.erase(peer_);
    if (!sweeps_.failure.ok()) return sweeps_.failure;
    return report;
  }
  void abandon() override { sweeps_.entries.erase(peer_); }
  Nanos now() const override { return sweeps_.now; }

 private:
  SharedSweeps& sweeps_;
  uint32_t peer_;
};

}  // namespace unisono::test
