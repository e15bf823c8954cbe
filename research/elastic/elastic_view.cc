#include "research/elastic/elastic_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/concat.h"

namespace language_model {
namespace {

uint32_t count_there(const unisono::ElasticStatus& status) {
  return static_cast<uint32_t>(std::ranges::count_if(
      status.peers, [](const auto& peer) { return peer.self || peer.status == "alive" || peer.status == "suspect"; }));
}

std::string grid_of(const std::vector<uint32_t>& dims) {
  std::string text;
  for (const auto dim : dims) text += unisono::concat(text.empty() ? "" : "x", dim);
  return text.empty() ? "-" : text;
}

std::string averaging_text(const ElasticView& view) {
  if (view.averaging == nullptr) return "no averaging step yet";
  return fmt::format("averaging step {}{} in {:.2f} s, spread {:.2g}", view.averaging->step,
                     view.averaging->exact ? ", exact," : ", not exact,", view.averaging->seconds, view.report.spread);
}

// Adds a line to the page. Control characters are replaced, because other processes choose the names, and a terminal could take
// control characters for commands.
void add(std::string& page, std::string line, size_t width) {
  line.resize(std::min(line.size(), width));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  page += line + "\n";
}

}  // namespace

std::string page_of(const ElasticView& view, size_t width, size_t rows) {
  const auto& [run, name, status, report, averaging, tally, rate] = view;
  std::string page;
  add(page,
      fmt::format("run {}, this is {} ({}); {} peers, grid {}, layout {}, {} links", run, name, status.phase,
                  count_there(status), grid_of(status.dims), status.layout, status.links),
      width);
  add(page,
      fmt::format("step {} ({} here)  loss {:.3f}  {:.0f} tokens/s  useful {:.1f} %", tally.run_steps, tally.steps, tally.loss,
                  rate, 100 * tally.useful_share()),
      width);
  add(page,
      fmt::format("{}; {} of {} exact, {} alone; sent {:.1f} MB, received {:.1f} MB", averaging_text(view), report.exact,
                  report.averaging_steps, report.alone, static_cast<double>(status.sent_bytes) / 1e6,
                  static_cast<double>(status.received_bytes) / 1e6),
      width);
  if (averaging != nullptr) {
    for (const auto& round : averaging->rounds) {
      std::string line =
          fmt::format("  round {}  {} of {}  {} chunks", round.round, round.outcome, round.group, round.committed);
      if (const auto lost = round.kept_local + round.voided + round.undecided + round.lost; lost > 0)
        line += fmt::format(", {} not applied", lost);
      line += fmt::format("  gather {:.2f} s, rest {:.2f} s", round.gather_s,
                          round.contribute_s + round.result_s + round.verdict_s);
      for (const auto& who : round.absent) line += "  absent: " + who;
      add(page, line, width);
    }
  }
  add(page, fmt::format("  {:<24} {:<8} {:>8} {:>10}  {}", "peer", "status", "averaging", "MB/s", "address"), width);
  size_t shown = 0;
  for (const auto& peer : status.peers) {
    if (shown++ == rows) {
      add(page, fmt::format("  and {} more", status.peers.size() - rows), width);
      break;
    }
    add(page,
        fmt::format("{} {:<24} {:<8} {:>8} {:>10}  {}", peer.self ? '*' : ' ', peer.name, peer.status, peer.finished_step,
                    peer.bytes_per_second > 0 ? fmt::format("{:.1f}", peer.bytes_per_second / 1e6) : "-", peer.address),
        width);
  }
  return page;
}

std::string line_of(const ElasticView& view) {
  return fmt::format("step {}  loss {:.3f}  {:.0f} tokens/s  {} peers  {}  useful {:.1f} %", view.tally.run_steps,
                     view.tally.loss, view.tokens_per_s, count_there(view.status), averaging_text(view),
                     100 * view.tally.useful_share());
}

}  // namespace language_model
