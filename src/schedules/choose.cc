#include "schedules/choose.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/concat.h"
#include "schedules/hierarchical.h"
#include "schedules/make.h"
#include "schedules/relay.h"

namespace unisono {
namespace {

using enum ScheduleKind;

// Predictions are compared in whole nanoseconds, because doubles may differ in the last bit between ranks. INT64_MAX stands for
// predictions that are too large.
int64_t nanoseconds(double us) { return us > 9e15 ? INT64_MAX : static_cast<int64_t>(std::llround(us * 1000)); }

class Chooser {
 public:
  explicit Chooser(const ChooseRequest& request)
      : request_(request), host_groups_(find_host_groups(request.host_groups, request.world)) {
    for (const auto& members : host_groups_) largest_ = std::max(largest_, static_cast<uint32_t>(members.size()));
  }

  Result<Choice> run();

 private:
  bool is_direct_candidate(const Candidate& candidate) const;
  double predict(const Candidate& candidate) const;
  struct Fractions {
    double inside = 1, between = 1;
  };
  Fractions fractions(const Candidate& candidate) const;  // bytes after encoding / bytes of the tensor
  Load encoded_load(Load load, const Candidate& candidate) const;
  double slice_of(const Candidate& candidate) const;
  double pipelined_slice(double preferred_slice) const;
  double coding_us(const Candidate& candidate) const;
  bool encodes_once(const Candidate& candidate) const;
  Candidate consider(ScheduleKind kind) const;
  Candidate best_hierarchical() const;
  const char* exclusion(const Candidate& candidate) const;
  Status refusal(const Choice& choice) const;
  std::string reason(const Choice& choice) const;
  bool is_kind_requested() const { return request_.kind != automatic; }
  // Returns whether the kind may be fitted to uneven links. A kind that the caller requested is used as it is.
  bool may_fit(ScheduleKind kind) const {
    return request_.uneven != nullptr && !is_kind_requested() && UnevenLinks::can_fit(request_.collective, kind);
  }

  bool may_relay() const;

  const ChooseRequest& request_;
  const HostGroups host_groups_;
  uint32_t largest_ = 0;
};

bool Chooser::is_direct_candidate(const Candidate& candidate) const {
  if (candidate.kind != hierarchical) return is_direct(request_.collective, candidate.kind, request_.world);
  return hierarchical_is_direct(host_groups_, candidate.inner, candidate.outer);
}

double Chooser::predict(const Candidate& candidate) const {
  if (request_.world == 1) return 0;
  const bool wide = request_.is_16_bit_float && !is_direct_candidate(candidate);
  const double bytes = static_cast<double>(request_.bytes) * (wide ? 2 : 1);
  const auto load = unisono::load({.collective = request_.collective,
                                   .kind = candidate.kind,
                                   .inner = candidate.inner,
                                   .outer = candidate.outer,
                                   .host_groups = host_groups_,
                                   .world = request_.world,
                                   .relayed = candidate.relayed});
  LinkProfile inside = request_.inside, between = request_.between;
  if (facts_of(candidate.kind).is_pipelined) inside.slice_bytes = between.slice_bytes = slice_of(candidate);
  double wire_us = -1;
  if (request_.uneven != nullptr) {
    const auto& cost = request_.uneven->cost({.collective = request_.collective,
                                              .kind = candidate.kind,
                                              .inner = candidate.inner,
                                              .outer = candidate.outer,
                                              .fitted = candidate.fitted});
    wire_us = cost.us_per_byte * bytes * (request_.encoded ? fractions(candidate).between : 1);
    between.latency_us = cost.latency_us;
  }
  double us = predicted_us({.load = request_.encoded ? encoded_load(load, candidate) : load,
                            .inside = inside,
                            .between = between,
                            .bytes = bytes,
                            .largest_host_group = largest_,
                            .host_groups = static_cast<uint32_t>(host_groups_.size()),
                            .between_wire_us = wire_us});
  // To widen the values to fp32 takes one pass over the fp32 copy, and so does rounding them back.
  const double ranks_per_core = unisono::ranks_per_core(request_.inside, largest_, static_cast<uint32_t>(host_groups_.size()));
  if (wide) us += 2 * bytes / request_.inside.reduce_bytes_per_us * ranks_per_core;
  if (!request_.encoded) return us;
  // Between hosts, cores encode one slice while the links carry another. So the longer of the two times counts in full, but
  // only one slice of the shorter time is added. Inside a host, cores encode and also copy, so both times count in full.
  const double coding = coding_us(candidate) * ranks_per_core;
  const double slices = host_groups_.size() > 1 ? std::max(1.0, bytes / slice_of(candidate)) : 1;
  return std::max(us, coding) + std::min(us, coding) / slices;
}

Chooser::Fractions Chooser::fractions(const Candidate& candidate) const {
  const auto& e = *request_.encoded;
  const bool one = candidate.kind == hierarchical ? candidate.outer == one_shot : candidate.kind == one_shot;
  if (candidate.kind == hierarchical) return {(e.reduce + e.gather) / 2, one ? e.across : (e.across + e.gather) / 2};
  const bool reduces_only = one || request_.collective == Collective::reduce_scatter;
  const double all = reduces_only                                    ? e.reduce
                     : request_.collective == Collective::all_gather ? e.gather
                                                                     : (e.reduce + e.gather) / 2;
  return {all, all};
}

Load Chooser::encoded_load(Load load, const Candidate& candidate) const {
  const auto shrink = [](Traffic& part, double& host_group_bytes, double by) {
    for (auto* bytes :
         {&part.bytes, &part.written, &part.read, &part.shared, &part.reduced, &part.summed, &part.total, &host_group_bytes})
      *bytes *= by;
  };
  const auto by = fractions(candidate);
  shrink(load.inside, load.host_group_bytes_inside, by.inside);
  shrink(load.between, load.host_group_bytes_between, by.between);
  return load;
}

// Small slices fill a pipeline quickly, but each slice costs a message.
double Chooser::pipelined_slice(double preferred_slice) const {
  constexpr double slices = 64, smallest = 8 << 10;
  if (request_.slice_bytes != 0) return static_cast<double>(request_.slice_bytes);
  return std::min(preferred_slice, std::max(smallest, static_cast<double>(request_.bytes) / slices));
}

// An encoded slice has few bytes on the wire, so the cost per message dominates, and larger slices are better. But a slice must
// still fit in a cache, and a rank's share must have enough slices to keep cores and links busy at the same time.
double Chooser::slice_of(const Candidate& candidate) const {
  constexpr double slices_per_share_min = 8, in_cache = 1 << 20;
  const double preferred_slice = host_groups_.size() > 1 ? request_.between.slice_bytes : request_.inside.slice_bytes;
  if (facts_of(candidate.kind).is_pipelined) return pipelined_slice(preferred_slice);
  if (!request_.encoded || host_groups_.size() == 1) return preferred_slice;
  const double share = static_cast<double>(request_.bytes) / (candidate.kind == one_shot ? 1 : request_.world);
  return std::max(preferred_slice,
                  std::min({preferred_slice / fractions(candidate).between, in_cache, share / slices_per_share_min}));
}

// Returns the time in which a rank encodes and decodes. `encoded` and `decoded` say how many passes over the tensor this takes.
double Chooser::coding_us(const Candidate& candidate) const {
  const auto& e = *request_.encoded;
  const double n = request_.world, p = largest_;
  double encoded = 1 + 1 / n, decoded = 2;
  // All ranks must add the same values. So a rank encodes its own elements, too, before it adds them.
  if (candidate.kind == one_shot) encoded = 2, decoded = n;
  if (request_.collective == Collective::reduce_scatter) encoded = 1, decoded = 1;
  if (request_.collective == Collective::all_gather) encoded = 1 / n, decoded = 1;
  if (candidate.kind == hierarchical && candidate.outer == one_shot) encoded = 1 + 2 / p, decoded = 2 + 2 / p;
  if (candidate.kind == hierarchical && candidate.outer != one_shot) encoded = 1 + 1 / p + 1 / n, decoded = 2 + 1 / p;
  // Cores that copy slowly also encode slowly. If the copy rate was measured inside the host, encoding reaches at most two
  // thirds of it.
  const bool known = largest_ > 1 && request_.inside.copied_by_cores;
  const double copying = known ? request_.inside.bytes_per_us : e.decode_bytes_per_us;
  const double encoding = std::min(e.encode_bytes_per_us, copying * 2 / 3), decoding = std::min(e.decode_bytes_per_us, copying);
  const double bytes = static_cast<double>(request_.bytes) * (request_.is_16_bit_float ? 2 : 1);
  return bytes * (encoded / encoding + decoded / decoding);
}

bool Chooser::encodes_once(const Candidate& candidate) const {
  switch (request_.collective) {
    case Collective::all_reduce:
      if (candidate.kind != hierarchical) return facts_of(candidate.kind).is_direct(world_max);
      return candidate.inner == two_step && candidate.outer == (host_groups_.size() <= 2 ? one_shot : two_step);
    case Collective::reduce_scatter: return facts_of(candidate.kind).is_direct(world_max);
    default: return request_.collective == Collective::all_gather;
  }
}

Candidate Chooser::best_hierarchical() const {
  Candidate best;
  for (const auto inner : inner_kinds()) {
    if (request_.inner != automatic && request_.inner != inner) continue;
    for (const auto outer : outer_kinds()) {
      if (request_.outer != automatic && request_.outer != outer) continue;
      Candidate next{.kind = hierarchical, .inner = inner, .outer = outer};
      if (request_.encoded && !encodes_once(next)) continue;
      if (request_.order == Order::in_rank_order && !is_direct_candidate(next)) next.excluded = exclusion(next);
      next.predicted_us = predict(next);
      const bool better = best.kind == automatic || (best.excluded && !next.excluded) ||
                          (!best.excluded == !next.excluded && nanoseconds(next.predicted_us) < nanoseconds(best.predicted_us));
      if (better) best = next;
    }
  }
  return best;
}

const char* Chooser::exclusion(const Candidate& candidate) const {
  if (request_.order == Order::in_rank_order && !is_direct_candidate(candidate))
    return "passes partial sums on, so cannot add in rank order";
  if (request_.encoded && !encodes_once(candidate)) return "encodes sums again on every hop";
  if (facts_of(candidate.kind).needs_host_groups && !is_kind_requested() && (host_groups_.size() == 1 || largest_ == 1))
    return "needs several host groups, and several ranks in one";
  return nullptr;
}

// Returns whether relaying (ranks pass values on) is possible and may be useful. With many ranks, it is useful if a message
// costs much more than its bytes.
bool Chooser::may_relay() const {
  const bool alike = host_groups_.size() == 1 || host_groups_.size() == request_.world;
  return request_.collective == Collective::all_reduce && !is_kind_requested() && !request_.encoded && alike &&
         request_.uneven == nullptr && request_.world > 3 && request_.bytes > 0 &&
         request_.bytes * request_.world <= relay_bytes_max;
}

Candidate Chooser::consider(ScheduleKind kind) const {
  auto candidate = kind == hierarchical ? best_hierarchical() : Candidate{.kind = kind};
  if (kind != hierarchical) candidate.predicted_us = predict(candidate);
  if (may_fit(kind)) {
    Candidate fitted{.kind = kind, .fitted = true};
    fitted.predicted_us = predict(fitted);
    if (nanoseconds(fitted.predicted_us) < nanoseconds(candidate.predicted_us)) candidate = fitted;
  }
  if (kind == one_shot && may_relay()) {
    Candidate relayed{.kind = kind, .relayed = true};
    relayed.predicted_us = predict(relayed);
    if (nanoseconds(relayed.predicted_us * 1.2) < nanoseconds(candidate.predicted_us)) candidate = relayed;
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
  std::string text = concat(name(request_.collective), " of ", request_.bytes, " bytes on ", request_.world, " ranks, ",
                            host_groups_.size(), " host groups: ", name(choice.kind));
  if (choice.kind == hierarchical) text += std::string("(") + name(choice.inner) + ", " + name(choice.outer) + ")";
  if (choice.fitted) text += " fitted to the links";
  if (choice.relayed) text += " relayed";
  std::snprintf(number, sizeof(number), " %.1f us", choice.predicted_us);
  text += number;
  if (is_kind_requested()) text += ", as requested";
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
    if (candidate.excluded || (is_kind_requested() && kind != request_.kind)) continue;
    if (best == nullptr || nanoseconds(candidate.predicted_us) < nanoseconds(best->predicted_us)) best = &candidate;
  }
  if (best == nullptr) return refusal(choice);
  choice.kind = best->kind;
  choice.inner = best->inner;
  choice.outer = best->outer;
  choice.fitted = best->fitted;
  choice.relayed = best->relayed;
  choice.predicted_us = best->predicted_us;
  choice.slice_bytes = request_.slice_bytes != 0 ? request_.slice_bytes : static_cast<uint64_t>(std::max(1.0, slice_of(*best)));
  choice.reason = reason(choice);
  return choice;
}

Status check(const ChooseRequest& request) {
  const std::string what = std::string("choosing a schedule for ") + name(request.collective) + ": ";
  if (request.world == 0 || request.world > world_max)
    return {Code::invalid, concat(what, "world size ", request.world, " is not in 1 … ", world_max)};
  if (!request.host_groups.empty() && request.host_groups.size() != request.world)
    return {Code::invalid, concat(what, request.host_groups.size(), " host group numbers for a world of ", request.world)};
  if (!is_usable(request.inside) || !is_usable(request.between))
    return {Code::invalid, what + "a link profile has a rate that is not positive, a negative cost, or no cores"};
  if (request.inner != automatic && !is_inner_kind(request.inner))
    return {Code::unsupported, what + "no kind " + name(request.inner) + " inside host groups"};
  if (request.outer != automatic && !is_outer_kind(request.outer))
    return {Code::unsupported, what + "no kind " + name(request.outer) + " between host groups"};
  if (kinds_of(request.collective).empty()) return {Code::unsupported, what + "goes between two ranks and needs no schedule"};
  return {};
}

}  // namespace

Result<Choice> choose(const ChooseRequest& request) {
  if (auto status = check(request); !status.ok()) return status;
  return Chooser(request).run();
}

}  // namespace unisono
