#include "cli/common/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "cli/common/text.h"

namespace unisono::cli {
namespace {

constexpr Nanos bar_interval = 100 * millisecond;
constexpr Nanos line_interval = 5 * second;
constexpr size_t bar_cells = 20;

std::string bar(double part) {
  const auto full = static_cast<size_t>(part * bar_cells);
  return "[" + std::string(full, '#') + std::string(bar_cells - full, ' ') + "]";
}

}  // namespace

std::vector<std::string> progress_names() { return {"auto", "bar", "lines", "off"}; }

ProgressStyle progress_style_of(std::FILE* stream) {
  return ::isatty(::fileno(stream)) == 1 ? ProgressStyle::bar : ProgressStyle::lines;
}

ProgressOptions progress_options(std::string label, uint64_t total, const std::string& style) {
  ProgressOptions out{
      .label = std::move(label), .total = total, .style = progress_style_of(stderr), .width = 80, .stream = stderr};
  if (style == "bar") out.style = ProgressStyle::bar;
  if (style == "lines") out.style = ProgressStyle::lines;
  if (style == "off") out.style = ProgressStyle::off;
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20) out.width = size.ws_col;
  return out;
}

Progress::Progress(const ProgressOptions& options, Nanos now)
    : options_(options), started_(now), next_(now + (options.style == ProgressStyle::bar ? bar_interval : line_interval)) {}

std::string Progress::render(uint64_t done, const std::string& what, Nanos elapsed) const {
  std::string text = options_.label;
  if (options_.total > 0) {
    const auto part = std::min(1.0, static_cast<double>(done) / static_cast<double>(options_.total));
    text += fmt::format(" {:3.0f}% {} {}/{}", part * 100, bar(part), done, options_.total);
    if (!what.empty()) text += "  " + what;
    const auto left = part > 0 ? static_cast<Nanos>(static_cast<double>(elapsed) * (1 - part) / part) : 0;
    if (done > 0 && done < options_.total) text += fmt::format("  {} left", format_duration(left / second * second));
  } else {
    text += fmt::format(" {} done  {}", done, what);
  }
  if (options_.style == ProgressStyle::bar && text.size() >= options_.width) text.resize(options_.width - 1);
  return text;
}

void Progress::update(uint64_t done, const std::string& what, Nanos now) {
  if (options_.style == ProgressStyle::off || now < next_) return;
  next_ = now + (options_.style == ProgressStyle::bar ? bar_interval : line_interval);
  const bool is_bar = options_.style == ProgressStyle::bar;
  const auto text = render(done, what, now - started_);
  fmt::print(options_.stream, "{}{}{}", is_bar ? "\r" : "", text, is_bar ? "\x1b[K" : "\n");
  std::fflush(options_.stream);
  shown_ = is_bar;
}

void Progress::clear() {
  if (!shown_) return;
  fmt::print(options_.stream, "\r\x1b[K");
  std::fflush(options_.stream);
  shown_ = false;
}

}  // namespace unisono::cli
