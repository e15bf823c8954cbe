#include "language_model/event_log.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

namespace language_model {

using nlohmann::ordered_json;
using unisono::Code;
using unisono::Result;
using unisono::Status;

namespace {

ordered_json line_of(const char* kind, const TrainingTally& tally) {
  const double time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return {{"kind", kind}, {"time", time}, {"steps", tally.steps}, {"run_steps", tally.run_steps}, {"samples", tally.samples}, {"loss", tally.loss}, {"life_s", tally.life_s}, {"useful_s", tally.useful_s}};
}

}  // namespace

Result<EventLog> EventLog::open(const std::string& path) {
  if (path.empty()) return EventLog(nullptr);
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "ae");
  if (file == nullptr) return Status(Code::unavailable, "cannot write " + path + ": " + std::strerror(errno));
  return EventLog(file);
}

EventLog::~EventLog() {
  if (file_ != nullptr && file_ != stdout) std::fclose(file_);
}

// Whole lines, at once: the process may be killed at any time.
void EventLog::write(const std::string& line) {
  if (file_ == nullptr) return;
  std::fwrite((line + "\n").data(), 1, line.size() + 1, file_);
  std::fflush(file_);
}

void EventLog::joined(const unisono::ElasticState& state, const TrainingTally& tally) {
  auto line = line_of("joined", tally);
  line.update({{"loaded", state.loaded}, {"mixed", state.mixed}, {"donors", state.donors}, {"sweep", state.sweep}, {"load_s", state.seconds}, {"bytes", state.bytes}, {"note", state.note}});
  write(line.dump());
}

void EventLog::sweep(const unisono::SweepReport& sweep, const unisono::MoshpitSgdReport& report, const TrainingTally& tally) {
  auto line = line_of("sweep", tally);
  uint64_t committed = 0, not_applied = 0, absent = 0;
  for (const auto& round : sweep.rounds) {
    committed += round.committed;
    not_applied += round.kept_local + round.voided + round.undecided + round.lost;
    absent += round.absent.size();
  }
  line.update({{"sweep", sweep.sweep}, {"exact", sweep.exact}, {"layout", sweep.layout}, {"dims", sweep.dims}, {"peers", sweep.peers}, {"rounds", sweep.rounds.size()}, {"committed", committed}, {"not_applied", not_applied}, {"absent", absent},
               {"sweep_s", sweep.seconds}, {"spread", report.spread}, {"exact_sweeps", report.exact}, {"sweeps", report.sweeps}, {"waited_s", report.waited_s}, {"handled_s", report.handled_s}, {"note", sweep.note}});
  write(line.dump());
}

void EventLog::progress(const TrainingTally& tally) { write(line_of("progress", tally).dump()); }

void EventLog::held_out(double loss, const TrainingTally& tally) {
  auto line = line_of("held_out", tally);
  line["held_out"] = loss;
  write(line.dump());
}

void EventLog::ended(const std::string& why, uint64_t hash, const TrainingTally& tally) {
  auto line = line_of("ended", tally);
  line["why"] = why;
  line["hash"] = fmt::format("{:016x}", hash);
  write(line.dump());
}

}  // namespace language_model
