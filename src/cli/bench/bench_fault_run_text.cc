// Formats the output of a fault run as text and as JSON lines.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/bench/bench_fault_run.h"
#include "cli/common/text.h"

namespace unisono::cli {
namespace {

double seconds(Nanos time) { return static_cast<double>(time) / static_cast<double>(second); }
double milliseconds(Nanos time) { return static_cast<double>(time) / static_cast<double>(millisecond); }

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

constexpr const char* words[] = {"kill", "stop", "resume"};
const char* kind_name(const Fault& fault) { return words[static_cast<size_t>(fault.kind)]; }

}  // namespace

std::string fault_run_head(const FaultRunOptions& options, const std::vector<Fault>& faults) {
  std::string text = "# faults:";
  for (const auto& fault : faults)
    text += fmt::format(" {} rank {} after {};", kind_name(fault), fault.rank, format_duration(fault.at));
  text += fmt::format("\n# {} of {}, again and again; {}; an operation may take {}\n", facts_of(options.data.collective).name,
                      format_bytes(options.bytes),
                      options.reform ? "the survivors re-form and continue" : "the first failure ends it (--no-reform)",
                      format_duration(options.call.timeout.count() * millisecond));
  text += "# before each operation a sum of 16 bytes says whether it goes on; an operation may fail there\n";
  text +=
      "# one line per stretch of operations with equal outcomes; seconds since the group formed; times are those of rank "
      "0\n#\n";
  text += fmt::format("#{:>9} {:>9} {:>10} {:>6} {:>7} {:>10} {:>10} {:>10} {:>7}\n", "from", "to", "operations", "ranks",
                      "contrib", "p50", "p99", "max", "#wrong");
  return text + fmt::format("#{:>9} {:>9} {:>10} {:>6} {:>7} {:>10} {:>10} {:>10} {:>7}\n", "(s)", "(s)", "", "", "", "(us)",
                            "(us)", "(us)", "");
}

std::string to_line(const Stretch& stretch) {
  return fmt::format(" {:>9.3f} {:>9.3f} {:>10} {:>6} {:>7} {:>10.1f} {:>10.1f} {:>10.1f} {:>7}\n", seconds(stretch.from),
                     seconds(stretch.to), stretch.operations, stretch.world_size, stretch.contributors, stretch.timing.p50_us,
                     stretch.timing.p99_us, stretch.timing.max_us, stretch.wrong);
}

std::string to_line(const InjectedFault& injected, Nanos since_formed) {
  return fmt::format("#{:>9.3f} {}\n", seconds(since_formed), describe(injected.fault));
}

std::string to_line(const Failure& failure) {
  std::string text =
      fmt::format("#{:>9.3f} operation {} ended with {}\n", seconds(failure.at), failure.operation, failure.status.to_string());
  const bool renumbered = !failure.before.empty() && failure.before.back() != failure.before.size() - 1;
  if (renumbered)
    text += fmt::format("#{:>9} its ranks 0 to {} are {} of those that began\n", "", failure.before.size() - 1,
                        format_ranks(failure.before));
  if (failure.cause)
    text += fmt::format("#{:>9} {} {:.1f} ms after {}\n", "", failure.reformed ? "all notified within" : "notified",
                        milliseconds(failure.noticed_after), describe(*failure.cause));
  if (!failure.reformed) return text;
  return text + fmt::format("#{:>9} re-formed in {:.1f} ms (epoch {}): {} {} on\n", "", milliseconds(failure.reform_time),
                            failure.epoch, format_ranks(failure.members), failure.members.size() == 1 ? "goes" : "go");
}

std::string to_line(const FaultRunOutcome& outcome) {
  const auto wrong = outcome.wrong == 0 ? "0 OK" : fmt::format("{} FAILED", outcome.wrong);
  std::string text = fmt::format("# Out of bounds values : {}\n", wrong);
  if (!outcome.went_on)
    return text + fmt::format("# ended at the first failure, as asked, after {} operations\n", outcome.operations);
  if (outcome.left == outcome.started)
    return text + fmt::format("# all {} ranks went on; {} operations\n", outcome.started, outcome.operations);
  return text + fmt::format("# the survivors went on: {} of {} ranks; {} operations, {} of them after the last failure\n",
                            outcome.left, outcome.started, outcome.operations, outcome.after);
}

std::string to_json(const Stretch& stretch) {
  return dump({{"kind", "stretch"},
               {"from_s", seconds(stretch.from)},
               {"to_s", seconds(stretch.to)},
               {"operations", stretch.operations},
               {"world_size", stretch.world_size},
               {"contributors", stretch.contributors},
               {"p50_us", stretch.timing.p50_us},
               {"p99_us", stretch.timing.p99_us},
               {"max_us", stretch.timing.max_us},
               {"wrong", stretch.wrong}});
}

std::string to_json(const InjectedFault& injected, Nanos since_formed) {
  return dump({{"kind", "fault"},
               {"at_s", seconds(since_formed)},
               {"fault", kind_name(injected.fault)},
               {"rank", injected.fault.rank}});
}

std::string to_json(const Failure& failure) {
  nlohmann::ordered_json json{{"kind", "failure"},
                              {"at_s", seconds(failure.at)},
                              {"operation", failure.operation},
                              {"code", name(failure.status.code())},
                              {"message", failure.status.message()},
                              {"before", failure.before}};
  if (failure.cause) json["noticed_after_ms"] = milliseconds(failure.noticed_after);
  if (failure.reformed) {
    json["reform_ms"] = milliseconds(failure.reform_time);
    json["epoch"] = failure.epoch;
    json["members"] = failure.members;
  }
  return dump(json);
}

std::string to_json(const FaultRunOutcome& outcome) {
  return dump({{"kind", "outcome"},
               {"started", outcome.started},
               {"left", outcome.left},
               {"operations", outcome.operations},
               {"after", outcome.after},
               {"wrong", outcome.wrong},
               {"went_on", outcome.went_on}});
}

}  // namespace unisono::cli
