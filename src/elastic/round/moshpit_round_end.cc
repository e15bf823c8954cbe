// The end of a round: applies the agreed chunks, and completes the report.
#include <algorithm>
#include <vector>

#include "base/concat.h"
#include "elastic/round/moshpit_round.h"

namespace unisono {
namespace {

std::string seconds(Nanos time) {
  const auto tenths = (time + 50 * millisecond) / (100 * millisecond);
  return concat(tenths / 10, ".", tenths % 10, " s");
}

}  // namespace

void MoshpitRound::finish(Nanos now) {
  for (uint32_t chunk = 0; chunk < format_.table.chunks(); ++chunk) {
    const bool known = static_cast<bool>(results_[chunk].message);
    const bool decided = verdict_ ? verdict_->decided()->test(chunk) : held_.test(chunk) || !known;
    const bool mine = results_[chunk].head.contributors[request_.self];
    if (!request_.states.empty() && !(decided && held_.test(chunk) && mine)) request_.states[chunk].full = false;
    if (!decided) ++report_.voided;
    else if (!held_.test(chunk)) ++report_.lost;
    else if (request_.states.empty()) ++report_.committed;
    else if (!mine) ++report_.kept_local;
    else apply(chunk);
  }
  if (report_.lost > 0) report_.problem = concat("the results of ", report_.lost, " chunks could not be fetched");
  end(now);
}

const ChunkResult* MoshpitRound::applied(uint32_t chunk) const {
  const bool decided = report_.undecided == 0 && (!verdict_ || verdict_->decided()->test(chunk));
  return ended() && decided && held_.test(chunk) ? &results_[chunk].head : nullptr;
}

void MoshpitRound::apply(uint32_t chunk) {
  ++report_.committed;
  const auto& result = results_[chunk];
  std::vector<uint32_t> positions;
  positions.reserve(members_.size());
  uint32_t sharers = 0;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (!result.head.contributors[rank]) continue;
    positions.push_back(request_.members[rank].position);
    if (request_.members[rank].position == request_.members[request_.self].position) ++sharers;
  }
  std::ranges::sort(positions);
  const double parts = static_cast<double>(std::unique(positions.begin(), positions.end()) - positions.begin()) * sharers;
  request_.states[chunk] = {.weight = result.head.total / parts, .full = result.head.full, .sharers = sharers};
  const size_t count = format_.table.count(chunk);
  if (format_.result.is_plain())
    return request_.values->replace(chunk, result.message.slice(result_head_bytes, count * sizeof(float)), result.head.digest);
  auto values = SharedBuffer::make(count * sizeof(float));
  kernels::BlockCounts counts;
  decode({.codec = format_.result,
          .message = result_elements(result.message).data(),
          .elements = reinterpret_cast<float*>(values.data()),
          .count = count},
         counts);
  request_.values->replace(chunk, std::move(values));
}

void MoshpitRound::abort_round(std::string problem, Nanos now) {
  report_.problem = std::move(problem);
  report_.undecided = format_.table.chunks();
  for (auto& state : request_.states) state.full = false;
  if (verdict_) report_.ignored += verdict_->ignored();
  verdict_.reset();
  end(now);
}

void MoshpitRound::end(Nanos now) {
  complete_report();
  contributed_ = std::min(contributed_, now);
  repaired_ = std::min(repaired_, now);
  report_.contribute = contributed_ - started_;
  report_.result = std::max<Nanos>(repaired_ - contributed_, 0);
  report_.verdict = now - std::max(repaired_, contributed_);
  if (verdict_) report_.ignored += verdict_->ignored();
  phase_ = Phase::ended;
  ended_ = now;
  owner_.reset();
  repair_.clear();
}

void MoshpitRound::complete_report() {
  std::vector<uint32_t> present(members_.size()), refused(members_.size());
  uint64_t contributors = 0, elements = 0, averaged = 0;
  double variance = 0, weight = 0;
  report_.contributors_min = known_ > 0 ? format_.members : 0;
  for (const auto& result : results_) {
    if (!result.message) continue;
    const auto count = static_cast<uint32_t>(result.head.contributors.count());
    contributors += count;
    report_.contributors_min = std::min(report_.contributors_min, count);
    report_.contributors_max = std::max(report_.contributors_max, count);
    report_.refused += result.head.refused.count();
    for (uint32_t rank = 0; rank < members_.size(); ++rank) {
      present[rank] += result.head.contributors[rank] ? 1 : 0;
      refused[rank] += result.head.refused[rank] ? 1 : 0;
    }
    if (result.head.is_void()) continue;
    ++averaged;
    elements += format_.table.count(result.head.chunk);
    variance += result.head.variance;
    weight += result.head.total;
  }
  if (known_ > 0) report_.contributors_mean = static_cast<double>(contributors) / known_;
  if (elements > 0) report_.variance = variance / static_cast<double>(elements);
  if (averaged > 0) report_.total_weight = weight / static_cast<double>(averaged);
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    auto reason = absence_reason(rank, present[rank], refused[rank]);
    if (!reason.empty()) report_.absent.push_back({.rank = rank, .reason = std::move(reason)});
  }
}

// Returns why the member was lost or fell silent, or an empty text.
std::string MoshpitRound::loss_reason(const MemberState& member) const {
  switch (member.gone) {
    case Gone::no: break;
    case Gone::dead: return "dead";
    case Gone::left: return "left";
    case Gone::declined: return "took part in another group";
    case Gone::closed: return "connection lost";
    case Gone::abandoned: return "left in the middle of the round";
  }
  return member.fell_silent ? "sent nothing for " + seconds(request_.times.stall_timeout) : std::string();
}

// Returns why the member was absent. If it was not absent, the text is empty: then its values are in all known results, it was
// neither lost nor silent, and the results of its own chunks came. Of the known results, `present` have the member's values,
// and `refused` lack them because they are not finite. For this member itself, only refused values are a reason.
std::string MoshpitRound::absence_reason(uint32_t rank, uint32_t present, uint32_t refused) const {
  const auto& member = members_[rank];
  const bool other = rank != request_.self;
  std::string reason = other ? loss_reason(member) : std::string();
  const auto add = [&](const std::string& part) { reason += (reason.empty() ? "" : ", ") + part; };
  if (refused > 0) add(concat("values that are not finite in ", refused, " of ", known_, " chunks"));
  if (other && contributors_[rank] && present + refused < known_)
    add(concat("contributed to ", present, " of ", known_, " chunks"));
  // An owner that stopped after its contributions has no other sign. Without a verdict, the results may merely be late.
  if (other && reason.empty() && report_.undecided == 0 && member.known < member.chunk_count)
    add(concat("sent no result for ", member.chunk_count - member.known, " of its ", member.chunk_count, " chunks"));
  return reason;
}

}  // namespace unisono
