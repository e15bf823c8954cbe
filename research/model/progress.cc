#include "research/model/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace language_model {

namespace {

constexpr size_t line_count = 20;  // number of lines for a whole run, if there is no terminal
constexpr size_t bar_cells = 28;
constexpr auto redraw_every = std::chrono::milliseconds(100);

}  // namespace

Progress::Progress(const Options& options)
    : options_(options), terminal_(isatty(fileno(options.out)) == 1), started_(std::chrono::steady_clock::now()) {}

std::string Progress::line(size_t step, const std::string& note, double seconds) const {
  const double rate = static_cast<double>(step) / std::max(seconds, 1e-9);
  const auto left_s = static_cast<int64_t>(static_cast<double>(options_.steps - step) / rate + 0.5);
  const double tokens = rate * static_cast<double>(options_.tokens_per_step);
  return fmt::format("{} {:>5}/{}  {}  {}ETA {}:{:02}", options_.title, step, options_.steps, note,
                     tokens > 0 ? fmt::format("{:.0f} tokens/s  ", tokens) : "", left_s / 60, left_s % 60);
}

void Progress::show(size_t step, const std::string& note) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - started_).count();
  const bool last = step >= options_.steps;
  if (terminal_) {
    if (!last && now - drawn_ < redraw_every) return;
    drawn_ = now;
    const size_t full = bar_cells * step / std::max<size_t>(1, options_.steps);
    fmt::print(options_.out, "\r[{}{}] {}\x1b[K{}", std::string(full, '#'), std::string(bar_cells - full, '.'),
               line(step, note, seconds), last ? "\n" : "");
  } else {
    if (!last && step < next_line_) return;
    next_line_ = (step * line_count / options_.steps + 1) * options_.steps / line_count;
    fmt::print(options_.out, "{}\n", line(step, note, seconds));
  }
  std::fflush(options_.out);
}

}  // namespace language_model
