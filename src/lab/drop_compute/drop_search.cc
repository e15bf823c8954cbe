#include "lab/drop_compute/drop_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "cli/common/text_file.h"

namespace unisono::lab {

using cli::add_choice;
using cli::add_output_options;
using cli::CommandLineText;
using cli::read_text_file;

const CommandLineText drop_search_text{.name = "unisono-lab drop-compute search",
                                       .usage = "unisono-lab drop-compute search TRACE [OPTIONS]",
                                       .description =
                                           "Searches recorded times for the compute threshold that would have given most "
                                           "micro-batches per second, for each stop rule, and says\n"
                                           "what it would have come to: S_step, the mean over steps of how many times as quick "
                                           "each is, S_total, over all steps together,\n"
                                           "and p, the share of micro-batches that is dropped.",
                                       .footer = R"(Examples:
  unisono-lab drop-compute search trace.csv
  unisono-lab drop-compute search trace.csv --rule after --max-drop 0.05 --slack 0
  unisono-lab drop-compute search trace.csv --objective total --plot search.svg
  cat rank*.csv | unisono-lab drop-compute search -                    one file of each rank

Rules: after, a worker stops when a micro-batch has ended after the threshold; before, when the next one would end
after it, as long as they take on average; at, at the threshold, with what is complete: what is left of the running
one is charged to the next step. Each has a line of its own, and its speed-up holds under it alone.

A trace is what DropCompute::recorded() and 'unisono-lab drop-compute simulate --trace' write: a head line
step,rank,wall_ns,end_1_ns,...,end_M_ns, then a line for each step and rank. wall_ns is the time of the step, end_m_ns
the time from its begin to the end of micro-batch m. Nothing may have been dropped. Steps of which a rank's line is
missing are left out.

The oracle knows before which micro-batches end in time: no method, but a bound, which is optimistic for few workers.
Its thresholds are the 200 of the published code; --search grid chooses by them.

Exit code: 0, also where nothing is to be dropped; 1 if the trace cannot be read or is malformed, or a file cannot be
written; 2 for a wrong command line.)"};

void add_drop_search_options(CLI::App& app, DropSearchOptions& o) {
  app.add_option("trace", o.trace, "recorded times; - for standard input")->type_name("FILE")->required();
  add_choice(app, o.rule,
             {.names = "-r,--rule",
              .value = "RULE",
              .meaning = "when a worker stops",
              .words = {"after", "before", "at", "all"},
              .fallback = "all"});
  add_choice(app, o.search,
             {.names = "--search",
              .value = "KIND",
              .meaning = "all thresholds that make a difference, or 200 by the oracle's step times",
              .words = {"exact", "grid"},
              .fallback = "exact"});
  add_drop_choice(app, o.choice);
  app.add_option("--plot", o.plot, "draw compute times, speed-ups and times of steps there, as SVG")->type_name("FILE");
  add_output_options(app, o.results);
}

namespace {

constexpr uint32_t searched_micro_batches_limit = 65'536;

// The step numbers and rank numbers that occur in a trace. They are the first two numbers of each line below the header.
struct Numbers {
  std::set<uint64_t> steps, ranks;
};

Numbers numbers_in(std::string_view text) {
  Numbers numbers;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    uint64_t step = 0, rank = 0;
    const auto [comma, error] = std::from_chars(line.data(), line.data() + line.size(), step);
    if (error != std::errc{} || comma == line.data() + line.size() || *comma != ',') continue;
    if (std::from_chars(comma + 1, line.data() + line.size(), rank).ec != std::errc{}) continue;
    numbers.steps.insert(step);
    numbers.ranks.insert(rank);
  }
  return numbers;
}

}  // namespace

Result<DropSearch> make_drop_search(const DropSearchOptions& o) {
  const auto rules = parse_rules(o.rule);
  if (!rules.ok()) return rules.status();
  auto choice = drop_choice_of(o.choice, searched_micro_batches_limit);
  if (!choice.ok()) return choice.status();
  if (o.search != "exact" && o.search != "grid")
    return Status(Code::invalid, fmt::format("--search '{}' is none of exact, grid", o.search));
  choice->search = o.search == "grid" ? DropOptions::Search::grid : DropOptions::Search::exact;
  const auto has = [&](DropRule rule) { return std::find(rules->begin(), rules->end(), rule) != rules->end(); };
  if (!o.choice.lag.empty() && !has(DropRule::after)) return Status(Code::invalid, "--lag needs --rule after");
  if (!o.choice.min_computed.empty() && !has(DropRule::after) && !has(DropRule::before))
    return Status(Code::invalid, "--min-computed needs --rule after or before");
  return DropSearch{.trace = o.trace, .rules = *rules, .choice = *choice};
}

Result<NamedTrace> named_trace(std::string name, std::string_view text) {
  auto trace = ComputeTrace::parse(text);
  if (!trace.ok()) return Status(trace.status().code(), fmt::format("{}: {}", name, trace.status().message()));
  const auto numbers = numbers_in(text);
  NamedTrace named{.name = std::move(name),
                   .trace = *std::move(trace),
                   .ranks = {numbers.ranks.begin(), numbers.ranks.end()},
                   .steps_left_out = 0};
  named.steps_left_out = numbers.steps.size() - named.trace.steps();
  return named;
}

Result<NamedTrace> read_trace(const std::string& path) {
  const auto text = read_text_file(path);
  if (!text.ok()) return text.status();
  return named_trace(path == "-" ? "standard input" : path, *text);
}

}  // namespace unisono::lab
