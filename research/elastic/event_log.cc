#include "research/elastic/event_log.h"

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
  return {{"kind", kind},
          {"time", time},
          {"steps", tally.steps},
          {"run_steps", tally.run_steps},
          {"samples", tally.samples},
          {"loss", tally.loss},
          {"life_s", tally.life_s},
          {"useful_s", tally.useful_s}};
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

// Writes a whole line at once and flushes it, because the process may be killed at any time.
void EventLog::write(const std::string& line) {
  if (file_ == nullptr) return;
  std::fwrite((line + "\n").data(), 1, line.size() + 1, file_);
  std::fflush(file_);
}

void EventLog::joined(const unisono::ElasticState& state, const TrainingTally& tally) {
  auto line = line_of("joined", tally);
  line.update({{"loaded", state.loaded},
               {"mixed", state.mixed},
               {"donors", state.donors},
               {"averaging", state.step},
               {"load_s", state.seconds},
               {"bytes", state.bytes},
               {"note", state.note}});
  write(line.dump());
}

void EventLog::averaging(const unisono::AveragingReport& averaging, const unisono::MoshpitSgdReport& report,
                         const TrainingTally& tally) {
  auto line = line_of("averaging", tally);
  uint64_t committed = 0, not_applied = 0, absent = 0;
  for (const auto& round : averaging.rounds) {
    committed += round.committed;
    not_applied += round.kept_local + round.voided + round.undecided + round.lost;
    absent += round.absent.size();
  }
  line.update({{"averaging", averaging.step},
               {"exact", averaging.exact},
               {"layout", averaging.layout},
               {"dims", averaging.dims},
               {"peers", averaging.peers},
               {"rounds", averaging.rounds.size()},
               {"committed", committed},
               {"not_applied", not_applied},
               {"absent", absent},
               {"averaging_s", averaging.seconds},
               {"spread", report.spread},
               {"exact_averaging_steps", report.exact},
               {"averaging_steps", report.averaging_steps},
               {"waited_s", report.waited_s},
               {"handled_s", report.handled_s},
               {"note", averaging.note}});
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
