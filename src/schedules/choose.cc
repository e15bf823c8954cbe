#include "schedules/choose.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "schedules/hierarchical.h"
#include "schedules/make.h"
#include "schedules/relay.h"

namespace unisono {
namespace {

using enum ScheduleKind;

// Doubles that differ in the last bit must not decide. Whole nanoseconds do; what does not fit is beyond any deadline.
int64_t nanoseconds(double us) { return us > 9e15 ? INT64_MAX : static_cast<int64_t>(std::llround(us * 1000)); }

class Chooser {
 public:
  explicit Chooser(const ChooseRequest& request)
      : request_(request), host_groups_(find_host_groups(request.host_groups, request.world)) {
    for (const auto& members : host_groups_) largest_ = std::max(largest_, static_cast<uint32_t>(members.size()));
  }

  Result<Choice> run();

 private:
  bool direct_holds(const Candidate& candidate) const;
  double predict(const Candidate& candidate) const;
  struct Fractions {
    double inside = 1, between = 1;
  };
  Fractions fractions(const Candidate& candidate) const;  // of what travels, where elements are encoded
  Load shrunk(Load load, const Candidate& candidate) const;
  double slice_of(const Candidate& candidate) const;
  double pipelined_slice(double suits) const;
  double coding_us(const Candidate& candidate) const;
  bool encodes_once(const Candidate& candidate) const;
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

  bool may_relay() const;

  const ChooseRequest& request_;
  const HostGroups host_groups_;
  uint32_t largest_ = 0;
};

bool Chooser::direct_holds(const Candidate& candidate) const {
  if (candidate.kind != hierarchical) return is_direct(request_.collective, candidate.kind, request_.world);
  return hierarchical_is_direct(host_groups_, candidate.inner, candidate.outer);
}

double Chooser::predict(const Candidate& candidate) const {
  if (request_.world == 1) return 0;
  const bool wide = request_.is_16_bit_float && !direct_holds(candidate);
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
  double us = predicted_us({.load = request_.encoded ? shrunk(load, candidate) : load,
                            .inside = inside,
                            .between = between,
                            .bytes = bytes,
                            .largest_host_group = largest_,
                            .host_groups = static_cast<uint32_t>(host_groups_.size()),
                            .between_wire_us = wire_us});
  // To fp32 before and back after: two passes over the wide copy.
  const double crowd = unisono::crowd(request_.inside, largest_, static_cast<uint32_t>(host_groups_.size()));
  if (wide) us += 2 * bytes / request_.inside.reduce_bytes_per_us * crowd;
  if (!request_.encoded) return us;
  // Between hosts, cores encode one slice while links carry another, so only one slice's share adds up. Inside a host the cores
  // do both, so all of it adds up.
  const double coding = coding_us(candidate) * crowd;
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

Load Chooser::shrunk(Load load, const Candidate& candidate) const {
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

// Small slices fill a pipeline soon, and cost a message each.
double Chooser::pipelined_slice(double suits) const {
  constexpr double slices = 64, smallest = 8 << 10;
  if (request_.slice_bytes != 0) return static_cast<double>(request_.slice_bytes);
  return std::min(suits, std::max(smallest, static_cast<double>(request_.bytes) / slices));
}

// Encoded, a slice is so little on the wire that its messages cost more than they hide: larger ones, as long as a rank's share
// is in enough of them for cores and links to work at the same time, and they stay in a cache.
double Chooser::slice_of(const Candidate& candidate) const {
  constexpr double slices_of_a_share = 8, in_cache = 1 << 20;
  const double suits = host_groups_.size() > 1 ? request_.between.slice_bytes : request_.inside.slice_bytes;
  if (facts_of(candidate.kind).is_pipelined) return pipelined_slice(suits);
  if (!request_.encoded || host_groups_.size() == 1) return suits;
  const double share = static_cast<double>(request_.bytes) / (candidate.kind == one_shot ? 1 : request_.world);
  return std::max(suits, std::min({suits / fractions(candidate).between, in_cache, share / slices_of_a_share}));
}

// Encoding and decoding of a rank, in passes over the tensor.
double Chooser::coding_us(const Candidate& candidate) const {
  const auto& e = *request_.encoded;
  const double n = request_.world, p = largest_;
  double encoded = 1 + 1 / n, decoded = 2;
  if (candidate.kind == one_shot) encoded = 2, decoded = n;  // its own elements once more, to add them as the others have them
  if (request_.collective == Collective::reduce_scatter) encoded = 1, decoded = 1;
  if (request_.collective == Collective::all_gather) encoded = 1 / n, decoded = 1;
  if (candidate.kind == hierarchical && candidate.outer == one_shot) encoded = 1 + 2 / p, decoded = 2 + 2 / p;
  if (candidate.kind == hierarchical && candidate.outer != one_shot) encoded = 1 + 1 / p + 1 / n, decoded = 2 + 1 / p;
  // Cores that are slow to copy are slow to encode: of the rate that was measured inside the host, encoding reaches some two
  // thirds.
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
  if (request_.encoded && !encodes_once(candidate)) return "encodes sums again on every hop";
  if (facts_of(candidate.kind).needs_host_groups && !wished() && (host_groups_.size() == 1 || largest_ == 1))
    return "needs several host groups, and several ranks in one";
  return nullptr;
}

// Where messages are dear and ranks are many. The gain has to be worth more than the estimate's error.
bool Chooser::may_relay() const {
  const bool alike = host_groups_.size() == 1 || host_groups_.size() == request_.world;
  return request_.collective == Collective::all_reduce && !wished() && !request_.encoded && alike &&
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
  std::string text = std::string(name(request_.collective)) + " of " + std::to_string(request_.bytes) + " bytes on " +
                     std::to_string(request_.world) + " ranks, " + std::to_string(host_groups_.size()) +
                     " host groups: " + name(choice.kind);
  if (choice.kind == hierarchical) text += std::string("(") + name(choice.inner) + ", " + name(choice.outer) + ")";
  if (choice.fitted) text += " fitted to the links";
  if (choice.relayed) text += " relayed";
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
  choice.relayed = best->relayed;
  choice.predicted_us = best->predicted_us;
  choice.slice_bytes = request_.slice_bytes != 0 ? request_.slice_bytes : static_cast<uint64_t>(std::max(1.0, slice_of(*best)));
  choice.reason = reason(choice);
  return choice;
}

Status check(const ChooseRequest& request) {
  const std::string what = std::string("choosing a schedule for ") + name(request.collective) + ": ";
  if (request.world == 0 || request.world > world_max)
    return {Code::invalid,
            what + "world size " + std::to_string(request.world) + " is not in 1 … " + std::to_string(world_max)};
  if (!request.host_groups.empty() && request.host_groups.size() != request.world)
    return {Code::invalid, what + std::to_string(request.host_groups.size()) + " host group numbers for a world of " +
                               std::to_string(request.world)};
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
