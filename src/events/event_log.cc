#include "events/event_log.h"

#include <algorithm>
#include <utility>

#include "base/concat.h"

namespace unisono {

std::string Event::to_string() const {
  auto line = concat("unisono: ", level() == EventLevel::warning ? "warning: " : "", text, " (", facts(kind).name,
                     source.empty() ? "" : "; ", source, ")");
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, ' ');
  return line;
}

Result<LogTarget> parse_log_target(std::string_view text) {
  if (text.empty()) return LogTarget{};
  if (text == "warning") return LogTarget{.least = EventLevel::warning, .path = {}, .chosen = true};
  if (text == "info") return LogTarget{.least = EventLevel::info, .path = {}, .chosen = true};
  if (text.find('/') != std::string_view::npos)
    return LogTarget{.least = EventLevel::info, .path = std::string(text), .chosen = true};
  return Status(Code::invalid,
                concat("UNISONO_LOG is '", text, "'; needed: warning, info, or a path with a slash, such as ./unisono.log"));
}

void EventLog::write(const Event& event, bool handled) {
  if (event.level() < target_.least || (handled && !target_.chosen)) return;
  std::string line;
  {
    MutexLock lock(mutex_);
    auto& kind = kinds_[static_cast<size_t>(event.kind)];
    const auto now = clock_();
    if (kind.known && now - kind.written < period) {
      ++kind.left_out;
      return;
    }
    line = event.to_string();
    if (kind.left_out > 0) line += concat(" [", kind.left_out, " more ", facts(event.kind).name, " since the last line]");
    kind = {.written = now, .left_out = 0, .known = true};
  }
  writer_(line += '\n');
}

}  // namespace unisono
