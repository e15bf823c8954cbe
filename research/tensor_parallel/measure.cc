#include "research/tensor_parallel/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

namespace tensor_parallel {

using unisono::Group;
using unisono::Result;
using unisono::Status;

namespace {

using Clock = std::chrono::steady_clock;

// After each run of a setting, this many all-reduces are measured alone, without computing.
constexpr size_t alone_prefill_calls = 1;
constexpr size_t alone_decode_calls = 8;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

uint64_t hash_of(std::span<const float> values) {
  uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a hash over 32-bit words
  for (const float value : values) hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001B3ull;
  return hash;
}

class Measurement {
 public:
  Measurement(Group& group, Transformer& model, const MeasureOptions& options)
      : group_(group),
        model_(model),
        options_(options),
        prompt_(embeddings(model.shape(), options.weights, 0, options.prompt)),
        continuation_(embeddings(model.shape(), options.weights, options.prompt, options.tokens)) {
    for (const Setting& setting : options.settings) {
      reducers_.push_back(make_reducer(group, setting));
      measured_.results.push_back({.setting = setting, .prefill = {}, .decode = {}});
    }
  }

  Result<Measured> run(const OnRun& on_run) {
    const size_t settings = options_.settings.size();
    // Make one call of each size to warm up connections and buffers. These calls are not counted.
    for (size_t i = 0; i < settings; ++i) {
      for (const auto embedded : {std::span(prompt_), token(0)}) {
        if (const auto call = alone(*reducers_[i], embedded); !call.ok()) return call.status();
      }
    }
    for (size_t repetition = 0; repetition < options_.repetitions; ++repetition) {
      for (size_t turn = 0; turn < settings; ++turn) {
        // Each repetition begins with another setting. Otherwise a setting would always follow the same one. The first
        // repetition begins with the reference, settings[0].
        const size_t i = (turn + repetition) % settings;
        if (auto done = run_setting(i, repetition); !done.ok()) return done;
        if (on_run) on_run(repetition * settings + turn + 1, options_.settings[i].name);
      }
    }
    return std::move(measured_);
  }

 private:
  std::span<float> token(size_t index) {
    return std::span(continuation_).subspan(index * model_.shape().hidden, model_.shape().hidden);
  }

  Status run_setting(size_t index, size_t repetition) {
    SettingResult& result = measured_.results[index];
    Reducer& reducer = *reducers_[index];
    model_.clear_cache();
    if (auto met = group_.barrier(); !met.ok()) return met.status();
    std::span<const float> hidden;
    if (auto done = run_step(reducer, prompt_, result.prefill, hidden); !done.ok()) return done;
    if (auto judged = judge(index, repetition, "prefill", exact_prefill_, result.prefill, hidden); !judged.ok()) return judged;
    if (auto met = group_.barrier(); !met.ok()) return met.status();
    for (size_t i = 0; i < options_.tokens; ++i) {
      if (auto done = run_step(reducer, token(i), result.decode, hidden); !done.ok()) return done;
    }
    if (auto judged = judge(index, repetition, "decode", exact_decode_, result.decode, hidden); !judged.ok()) return judged;
    return run_alone(reducer, result);
  }

  // Runs one step and appends its times to pending_. The ranks exchange the times later, in judge(), when nothing is measured.
  Status run_step(Reducer& reducer, std::span<const float> embedded, Phase& phase, std::span<const float>& hidden) {
    TimedReducer timed(reducer);
    const auto start = Clock::now();
    const auto out = model_.forward(embedded, timed);
    const double total = seconds_since(start);
    if (!out.ok()) return out.status();
    hidden = *out;
    pending_.push_back(total);
    pending_.insert(pending_.end(), timed.calls_s().begin(), timed.calls_s().end());
    const auto& report = timed.report();
    phase.sent_payload = report.sent_payload;
    phase.sent_bytes = report.sent_bytes;
    phase.bits_per_element = report.bits_per_element();
    phase.schedule = report.schedule;
    phase.codec = report.codec.to_string();
    phase.codec_note = report.codec_note;
    phase.passes = report.passes;
    return {};
  }

  // Gathers the times of the steps since the last call, and checks that the hidden states of all ranks have the same bits.
  Status judge(size_t index, size_t repetition, const char* name, std::vector<float>& exact, Phase& phase,
               std::span<const float> hidden) {
    if (repetition == 0) {
      if (index == 0) exact.assign(hidden.begin(), hidden.end());
      phase.snr_db = snr_db(exact, hidden);
    }
    // Unisono's report names the plain codec, because it moved bytes.
    if (!options_.settings[index].codec) phase.codec = "q80";
    const auto times = gather(group_, std::exchange(pending_, {}));
    if (!times.ok()) return times.status();
    add_steps(*times, phase);
    const auto gathered = gather(group_, std::vector<uint64_t>{hash_of(hidden), phase.sent_payload, phase.sent_bytes});
    if (!gathered.ok()) return gathered.status();
    std::vector<uint64_t> hashes;
    phase.sent_payload = phase.sent_bytes = 0;
    for (size_t at = 0; at < gathered->size(); at += 3) {
      hashes.push_back((*gathered)[at]);
      phase.sent_payload += (*gathered)[at + 1];
      phase.sent_bytes += (*gathered)[at + 2];
    }
    phase.sent_payload /= hashes.size();
    phase.sent_bytes /= hashes.size();
    for (size_t rank = 1; rank < hashes.size(); ++rank) {
      if (hashes[rank] == hashes.front()) continue;
      measured_.faults.push_back(
          fmt::format("{}, repetition {}: after the {} rank {} has another hidden state than rank 0: hash {:016x}, not {:016x}",
                      options_.settings[index].name, repetition + 1, name, rank, hashes[rank], hashes.front()));
    }
    return {};
  }

  void add_steps(const std::vector<double>& times, Phase& phase) {
    const size_t words_per_step = 1 + 2 * model_.shape().blocks;
    const size_t words_per_rank = times.size() / group_.world_size();
    for (size_t at = 0; at + words_per_step <= words_per_rank; at += words_per_step) {
      Step step;
      for (size_t word = 0; word < words_per_step; ++word) {
        double least = std::numeric_limits<double>::infinity();
        double most = 0;
        for (size_t from = at + word; from < times.size(); from += words_per_rank) {
          least = std::min(least, times[from]);
          most = std::max(most, times[from]);
        }
        if (word == 0) step.total_s = most;
        else step.communication_s += least;
      }
      phase.steps.push_back(step);
    }
  }

  Status run_alone(Reducer& reducer, SettingResult& result) {
    for (size_t i = 0; i < alone_prefill_calls + alone_decode_calls; ++i) {
      const bool prefill = i < alone_prefill_calls;
      const auto call = alone(reducer, prefill ? std::span<const float>(prompt_) : token(0));
      if (!call.ok()) return call.status();
      (prefill ? result.prefill : result.decode).alone_s.push_back(*call);
    }
    return {};
  }

  Result<double> alone(Reducer& reducer, std::span<const float> values) {
    scratch_.assign(values.begin(), values.end());
    if (auto met = group_.barrier(); !met.ok()) return met.status();
    const auto start = Clock::now();
    if (auto summed = reducer.sum(scratch_); !summed.ok()) return summed.status();
    const auto all = gather(group_, std::vector<double>{seconds_since(start)});
    if (!all.ok()) return all.status();
    return std::accumulate(all->begin(), all->end(), 0.0) / static_cast<double>(all->size());
  }

  Group& group_;
  Transformer& model_;
  const MeasureOptions& options_;
  std::vector<float> prompt_, continuation_, scratch_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
  std::vector<float> exact_prefill_, exact_decode_;
  std::vector<double> pending_;
  Measured measured_;
};

}  // namespace

double snr_db(std::span<const float> exact, std::span<const float> other) {
  double signal = 0, error = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double difference = static_cast<double>(exact[i]) - static_cast<double>(other[i]);
    signal += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
    error += difference * difference;
  }
  return error == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / error);
}

Result<Measured> measure(Group& group, Transformer& model, const MeasureOptions& options, const OnRun& on_run) {
  return Measurement(group, model, options).run(on_run);
}

}  // namespace tensor_parallel
