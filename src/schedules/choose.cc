#include "schedules/choose.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "schedules/hierarchical.h"
#include "schedules/make.h"

namespace unisono {
namespace {

using enum ScheduleKind;

constexpr ScheduleKind inner_kinds[] = {two_step, halving_doubling, ring, direct, tree};
constexpr ScheduleKind outer_kinds[] = {one_shot, two_step, halving_doubling, ring};

// Doubles that differ in the last bit must not decide. Whole nanoseconds do; what does not fit is beyond any deadline.
int64_t nanoseconds(double us) { return us > 9e15 ? INT64_MAX : static_cast<int64_t>(std::llround(us * 1000)); }

bool is_usable(const LinkProfile& link) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  const auto not_negative = [](double value) { return std::isfinite(value) && value >= 0; };
  return positive(link.bytes_per_us) && positive(link.reduce_bytes_per_us) && positive(link.slice_bytes) &&
         link.slice_bytes < 0x1p62 && not_negative(link.host_bytes_per_us) && not_negative(link.latency_us) &&
         not_negative(link.per_message_cpu_us) && not_negative(link.per_batch_cpu_us) && not_negative(link.switch_us) &&
         link.cores > 0;
}

class Chooser {
 public:
  explicit Chooser(const ChooseRequest& request)
      : request_(request), islands_(find_islands(request.islands, request.world)) {
    for (const auto& members : islands_) largest_ = std::max(largest_, static_cast<uint32_t>(members.size()));
  }

  Result<Choice> run();

 private:
  bool direct_holds(const Candidate& candidate) const;
  double predict(const Candidate& candidate) const;
  Candidate consider(ScheduleKind kind) const;
  Candidate best_hierarchical() const;
  const char* exclusion(const Candidate& candidate) const;
  Status refusal(const Choice& choice) const;
  std::string reason(const Choice& choice) const;
  bool wished() const { return request_.kind != automatic; }
  // A kind that was asked for is taken as it is.
  bool may_fit(ScheduleKind kind) const {
    return request_.uneven != nullptr && !wished() && UnevenLinks::can_fit(request_.collective, kind);
  }

  const ChooseRequest& request_;
  const Islands islands_;
  uint32_t largest_ = 0;
};

bool Chooser::direct_holds(const Candidate& candidate) const {
  if (candidate.kind != hierarchical) return is_direct(request_.collective, candidate.kind, request_.world);
  return hierarchical_is_direct(islands_, candidate.inner, candidate.outer);
}

double Chooser::predict(const Candidate& candidate) const {
  if (request_.world == 1) return 0;
  const bool wide = request_.is_16_bit_float && !direct_holds(candidate);
  const double bytes = static_cast<double>(request_.bytes) * (wide ? 2 : 1);
  const Load load = unisono::load({.collective = request_.collective,
                                   .kind = candidate.kind,
                                   .inner = candidate.inner,
                                   .outer = candidate.outer,
                                   .islands = islands_,
                                   .world = request_.world});
  LinkProfile between = request_.between;
  double wire_us = -1;
  if (request_.uneven != nullptr) {
    const auto& cost = request_.uneven->cost({.collective = request_.collective,
                                              .kind = candidate.kind,
                                              .inner = candidate.inner,
                                              .outer = candidate.outer,
                                              .fitted = candidate.fitted});
    wire_us = cost.us_per_byte * bytes;
    between.latency_us = cost.latency_us;
  }
  double us = predicted_us({.load = load,
                            .inside = request_.inside,
                            .between = between,
                            .bytes = bytes,
                            .largest_island = largest_,
                            .between_wire_us = wire_us});
  // To fp32 before and back after: two passes over the wide copy.
  const double crowd = std::max(1.0, static_cast<double>(largest_) / request_.inside.cores);
  if (wide) us += 2 * bytes / request_.inside.reduce_bytes_per_us * crowd;
  return us;
}

Candidate Chooser::best_hierarchical() const {
  Candidate best;
  for (const auto inner : inner_kinds) {
    if (request_.inner != automatic && request_.inner != inner) continue;
    for (const auto outer : outer_kinds) {
      if (request_.outer != automatic && request_.outer != outer) continue;
      Candidate next{.kind = hierarchical, .inner = inner, .outer = outer};
      if (request_.order == Order::in_rank_order && !direct_holds(next)) next.excluded = exclusion(next);
      next.predicted_us = predict(next);
      const bool better = best.kind == automatic || (best.excluded && !next.excluded) ||
                          (!best.excluded == !next.excluded && nanoseconds(next.predicted_us) < nanoseconds(best.predicted_us));
      if (better) best = next;
    }
  }
  return best;
}

const char* Chooser::exclusion(const Candidate& candidate) const {
  if (request_.order == Order::in_rank_order && !direct_holds(candidate))
    return "passes partial sums on, so cannot add in rank order";
  if (candidate.kind == hierarchical && !wished() && (islands_.size() == 1 || largest_ == 1))
    return "needs several islands, and several ranks in one";
  return nullptr;
}

Candidate Chooser::consider(ScheduleKind kind) const {
  auto candidate = kind == hierarchical ? best_hierarchical() : Candidate{.kind = kind};
  if (kind != hierarchical) candidate.predicted_us = predict(candidate);
  if (may_fit(kind)) {
    Candidate fitted{.kind = kind, .fitted = true};
    fitted.predicted_us = predict(fitted);
    if (nanoseconds(fitted.predicted_us) < nanoseconds(candidate.predicted_us)) candidate = fitted;
  }
  candidate.excluded = exclusion(candidate);
  return candidate;
}

Status Chooser::refusal(const Choice& choice) const {
  std::string list;
  const char* why = "no such schedule";
  for (uint32_t i = 0; i < choice.candidate_count; ++i) {
    const auto& candidate = choice.candidates[i];
    if (candidate.kind == request_.kind) why = candidate.excluded;
    else if (!candidate.excluded) list += (list.empty() ? "" : ", ") + std::string(name(candidate.kind));
  }
  return {Code::unsupported, std::string(name(request_.kind)) + " " + name(request_.collective) + ": " + why +
                                 (list.empty() ? "" : "; there are " + list)};
}

std::string Chooser::reason(const Choice& choice) const {
  const Candidate* second = nullptr;
  for (uint32_t i = 0; i < choice.candidate_count; ++i) {
    const auto& candidate = choice.candidates[i];
    if (candidate.excluded || candidate.kind == choice.kind) continue;
    if (second == nullptr || nanoseconds(candidate.predicted_us) < nanoseconds(second->predicted_us)) second = &candidate;
  }
  char number[64];
  std::string text = std::string(name(request_.collective)) + " of " + std::to_string(request_.bytes) + " bytes on " +
                     std::to_string(request_.world) + " ranks, " + std::to_string(islands_.size()) + " islands: " +
                     name(choice.kind);
  if (choice.kind == hierarchical) text += std::string("(") + name(choice.inner) + ", " + name(choice.outer) + ")";
  if (choice.fitted) text += " fitted to the links";
  std::snprintf(number, sizeof(number), " %.1f us", choice.predicted_us);
  text += number;
  if (wished()) text += ", as asked for";
  if (second != nullptr) {
    std::snprintf(number, sizeof(number), " %.1f us", second->predicted_us);
    text += std::string("; next ") + name(second->kind) + number;
  }
  if (request_.order == Order::in_rank_order) text += "; in rank order";
  return text;
}

Result<Choice> Chooser::run() {
  Choice choice;
  const Candidate* best = nullptr;
  for (const auto kind : kinds_of(request_.collective)) {
    auto& candidate = choice.candidates[choice.candidate_count++];
    candidate = consider(kind);
    if (candidate.excluded || (wished() && kind != request_.kind)) continue;
    if (best == nullptr || nanoseconds(candidate.predicted_us) < nanoseconds(best->predicted_us)) best = &candidate;
  }
  if (best == nullptr) return refusal(choice);
  choice.kind = best->kind;
  choice.inner = best->inner;
  choice.outer = best->outer;
  choice.fitted = best->fitted;
  choice.predicted_us = best->predicted_us;
  const auto& slowest = islands_.size() > 1 ? request_.between : request_.inside;
  choice.slice_bytes = request_.slice_bytes != 0 ? request_.slice_bytes
                                                 : static_cast<uint64_t>(std::max(1.0, slowest.slice_bytes));
  choice.reason = reason(choice);
  return choice;
}

Status check(const ChooseRequest& request) {
  const std::string what = std::string("choosing a schedule for ") + name(request.collective) + ": ";
  if (request.world == 0 || request.world > world_max)
    return {Code::invalid,
            what + "world size " + std::to_string(request.world) + " is not in 1 … " + std::to_string(world_max)};
  if (!request.islands.empty() && request.islands.size() != request.world)
    return {Code::invalid, what + std::to_string(request.islands.size()) + " island numbers for a world of " +
                               std::to_string(request.world)};
  if (!is_usable(request.inside) || !is_usable(request.between))
    return {Code::invalid, what + "a link profile has a rate that is not positive, a negative cost, or no cores"};
  if (request.inner != automatic && !is_inner_kind(request.inner))
    return {Code::unsupported, what + "no kind " + name(request.inner) + " inside islands"};
  if (request.outer != automatic && !is_outer_kind(request.outer))
    return {Code::unsupported, what + "no kind " + name(request.outer) + " between islands"};
  if (kinds_of(request.collective).empty()) return {Code::unsupported, what + "goes between two ranks and needs no schedule"};
  return {};
}

}  // namespace

Result<Choice> choose(const ChooseRequest& request) {
  if (auto status = check(request); !status.ok()) return status;
  return Chooser(request).run();
}

}  // namespace unisono
