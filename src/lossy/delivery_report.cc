// Formats a DeliveryReport as text, and computes its summary numbers.
#include <algorithm>
#include <cstdio>
#include <limits>

#include "unisono/delivery.h"

namespace unisono {
namespace {

// Above this ratio the report warns that sums favour the ranks with the best links. Source: docs/design/methods/packet_loss.md.
constexpr double uneven_shares = 1.1;

const char* name(DeliveryReport::End end) {
  constexpr const char* names[] = {"none", "complete", "tail", "soft", "hard", "silent", "lost"};
  return names[static_cast<size_t>(end)];
}

void add(std::string& text, const char* format, auto... values) {
  char line[160];
  std::snprintf(line, sizeof line, format, values...);
  text += line;
}

void describe(std::string& text, const char* what, const DeliveryReport::Phase& phase) {
  if (!phase.ran) return;
  add(text, "; %s %lld us%s", what, static_cast<long long>(phase.duration_us), phase.learning ? " (learning)" : "");
  for (size_t rank = 0; rank < phase.streams.size(); ++rank) {
    const auto& stream = phase.streams[rank];
    if (stream.missing + stream.repaired + stream.late == 0 &&
        (stream.end == DeliveryReport::End::complete || stream.expected == 0))
      continue;
    add(text, ", rank %zu %s: %llu of %llu missing, %llu repaired, %llu late", rank, name(stream.end),
        static_cast<unsigned long long>(stream.missing), static_cast<unsigned long long>(stream.expected),
        static_cast<unsigned long long>(stream.repaired), static_cast<unsigned long long>(stream.late));
  }
}

}  // namespace

double DeliveryReport::share_ratio() const {
  double least = 1, most = 0;
  for (const auto& stream : contribute.streams) {
    if (stream.expected == 0) continue;
    least = std::min(least, stream.share());
    most = std::max(most, stream.share());
  }
  if (most == 0) return 1;
  return least > 0 ? most / least : std::numeric_limits<double>::infinity();
}

std::string DeliveryReport::to_string() const {
  std::string text = used == Delivery::reliable ? "reliable" : "lossy";
  if (!note.empty()) text += " (" + note + ")";
  if (!contribute.ran && !result.ran) return text;
  add(text, ": ranges %llu full, %llu short, %llu empty, %.2f effective contributors",
      static_cast<unsigned long long>(full_ranges), static_cast<unsigned long long>(short_ranges),
      static_cast<unsigned long long>(empty_ranges), effective_contributors);
  describe(text, "contributions", contribute);
  describe(text, "results", result);
  if (stale_ranges > 0) add(text, "; %llu ranges stale", static_cast<unsigned long long>(stale_ranges));
  if (behind > 0) add(text, "; %u operations behind", behind);
  if (const auto ratio = share_ratio(); ratio > uneven_shares)
    add(text, "; unequal loss: the best-connected rank weighs %.2f times as much as the worst", ratio);
  if (!outcome.ok()) text += "; " + outcome.to_string();
  return text;
}

}  // namespace unisono
