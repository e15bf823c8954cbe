// Writes an averaging report as text, for logs.
#include <cstdio>
#include <utility>

#include "base/concat.h"
#include "unisono/elastic.h"

namespace unisono {

namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", value);
  return text;
}

std::string join_names(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string round_text(const RoundSummary& round) {
  std::string text = concat("round ", round.round, ": ", round.outcome);
  if (round.group > 0) text += concat(", group of ", round.group, ", ", number(round.contributors_mean), " contributed");
  const std::pair<uint64_t, const char*> counts[] = {
      {round.kept_local, "kept"}, {round.voided, "void"}, {round.undecided, "undecided"}, {round.lost, "lost"}};
  for (const auto& [count, name] : counts) {
    if (count > 0) text += concat(", ", count, " chunks ", name);
  }
  if (round.refused > 0) text += concat(", ", round.refused, " contributions refused");
  if (!round.absent.empty()) text += "; absent: " + join_names(round.absent);
  return text;
}

}  // namespace

std::string AveragingReport::to_string() const {
  std::string text = concat("averaging step ", step, exact ? ", exact" : ", not exact", ", ", peers, " peers, layout ", layout);
  for (size_t axis = 0; axis < dims.size(); ++axis) text += concat(axis == 0 ? " (" : "x", dims[axis]);
  if (!dims.empty()) text += ")";
  text += ", " + number(seconds * 1e3) + " ms";
  for (const auto& round : rounds) text += "; " + round_text(round);
  if (!note.empty()) text += "; " + note;
  return text;
}

}  // namespace unisono
