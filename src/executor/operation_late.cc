// Errors of an operation that cannot continue: the missing ranks, the phase and the missing bytes.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "executor/absence.h"
#include "executor/operation.h"

namespace unisono {

bool Operation::needs(Rank peer) const {
  if (done_ || peer >= flows_.size()) return false;
  const auto& flow = flows_[peer];
  if (flow.send_used < flow.send_total || flow.recv_arrived < flow.recv_total || flow.waits_to_send()) return true;
  // Empty messages (empty blocks, barriers) do not count in the flows.
  for (const auto& lane : lanes_) {
    const auto& chunk = plan_->chunks[lane.chunk];
    for (auto s = lane.stage; s < chunk.stage_end && !lane.finished; ++s) {
      const auto& stage = plan_->stages[s];
      const auto ranks = plan_->receives(stage);
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (ranks[i] == peer && !arrivals_.arrived(lane.arrivals + stage.recv_before + i)) return true;
      }
      const auto sends = plan_->sends(stage);
      const bool still_to_send = s > lane.stage || !lane.entered;  // sends of an entered stage are queued or in the transport
      if (still_to_send && std::find(sends.begin(), sends.end(), peer) != sends.end()) return true;
    }
  }
  return false;
}

Progress Operation::progress(std::vector<Rank>& pending) const {
  Progress progress{.since = now_};
  pending.clear();
  for (const auto rank : plan_->partners) {
    const auto& flow = flows_[rank];
    progress.sent_bytes += flow.send_used;
    progress.sent_total += flow.send_total;
    progress.received_bytes += flow.recv_arrived;
    progress.received_total += flow.recv_total;
  }
  std::pair<uint32_t, uint32_t> first{UINT32_MAX, UINT32_MAX};  // round and slice, as in first_missing
  for (size_t i = oldest_; i < lanes_.size(); ++i) {
    const auto& lane = lanes_[i];
    if (lane.finished || lane.stage == plan_->chunks[lane.chunk].stage_end) continue;
    const auto& stage = plan_->stages[lane.stage];
    const std::pair at(stage.round, lane.slice);
    if (at > first || lane.got >= stage.recv_end - stage.recv_begin) continue;
    if (at < first) pending.clear();
    first = at;
    progress.phase = stage.reduces ? Progress::Phase::contributions : Progress::Phase::results;
    progress.round = stage.round;
    const auto ranks = plan_->receives(stage);
    for (size_t r = 0; r < ranks.size() && pending.size() < pending_told_max; ++r) {
      const bool told = std::find(pending.begin(), pending.end(), ranks[r]) != pending.end();
      if (!told && !arrivals_.arrived(lane.arrivals + stage.recv_before + r)) pending.push_back(ranks[r]);
    }
  }
  std::sort(pending.begin(), pending.end());
  if (!pending.empty()) return progress;
  for (size_t i = oldest_; i < lanes_.size() && pending.empty(); ++i) {
    const auto& lane = lanes_[i];
    if (lane.finished || lane.sends_pending == 0 || lane.stage == plan_->chunks[lane.chunk].stage_end) continue;
    const auto sends = plan_->sends(plan_->stages[lane.stage]);
    pending.assign(sends.begin(),
                   sends.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(sends.size(), pending_told_max)));
    progress.phase = Progress::Phase::sending;
    progress.round = plan_->stages[lane.stage].round;
  }
  return progress;
}

void Operation::peer_lost(Rank peer, const Status& why, const Status& before, Nanos now) {
  if (!needs(peer)) return;
  now_ = now;
  const auto& flow = flows_[peer];
  const bool follows = !before.ok() && !gave_up(why);
  const auto text = label() + ": " + (follows ? before.message() + "; then " : "") + describe_absence(peer, why) + "; " +
                    std::to_string(flow.recv_total - flow.recv_arrived) + " of " + std::to_string(flow.recv_total) +
                    " bytes from it are missing";
  if (follows || gave_up(why)) fail_here({Code::unavailable, text});
  else fail_here({Code::peer_lost, text + "; call reform()"});
}

// Missing messages per rank, and messages that the rank has not taken.
std::map<Rank, Operation::Missing> Operation::missing() const {
  std::map<Rank, Missing> missing;
  for (const auto& lane : lanes_) {
    if (lane.finished) continue;
    const auto& chunk = plan_->chunks[lane.chunk];
    for (auto s = lane.stage; s < chunk.stage_end; ++s) {
      const auto& stage = plan_->stages[s];
      const auto ranks = plan_->receives(stage);
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (arrivals_.arrived(lane.arrivals + stage.recv_before + i)) continue;
        auto& m = missing[ranks[i]];
        m.bytes += message_bytes(lane, stage);
        ++m.messages;
        m.first = std::min(m.first, {stage.round, lane.slice});
      }
    }
  }
  for (const auto rank : plan_->partners) {
    const auto& flow = flows_[rank];
    if (flow.waits_to_send()) missing[rank].unsent_bytes = flow.send_total - flow.send_used;
  }
  return missing;
}

// The ranks that hold up everything: their missing messages are of the first round and, in it, of the first slice. The others
// may only wait for these ranks. Or this rank holds the others back, because it cannot use their messages before.
std::map<Rank, Operation::Missing> Operation::first_missing() const {
  auto missing = this->missing();
  std::pair<uint32_t, uint32_t> first{UINT32_MAX, UINT32_MAX};
  for (const auto& [rank, m] : missing) first = std::min(first, m.first);
  std::erase_if(missing, [&](const auto& each) { return each.second.first != first; });
  return missing;
}

std::string Operation::missing_text(const std::map<Rank, Missing>& missing) const {
  std::string text;
  for (const auto& [rank, m] : missing) {
    if (!text.empty()) text += "; ";
    text += "rank " + std::to_string(rank) + " (" + port_->place(rank) + ")";
    if (m.messages > 0) {
      const auto& flow = flows_[rank];
      text += flow.first_arrival == never ? " has sent nothing" : " has sent " + std::to_string(flow.recv_arrived) + " bytes";
      text += ", missing " + std::to_string(m.bytes) + " bytes (" + std::to_string(m.messages) + " messages, phase: round " +
              std::to_string(m.first.first) + ")";
    }
    if (m.unsent_bytes > 0)
      text += (m.messages > 0 ? std::string(" and") : std::string()) + " takes no more data, " +
              std::to_string(m.unsent_bytes) + " bytes unsent";
  }
  if (!text.empty()) return text;
  const auto receivers = pending_receivers();
  if (receivers.empty()) return "rank " + std::to_string(setup_.self) + ", this one, has all messages and is still at work";
  for (const auto rank : receivers)
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (" + port_->place(rank) + ")";
  return "nothing is missing, but not all was taken that was sent to " + text;
}

// The ranks that may not have taken the messages sent to them.
std::vector<Rank> Operation::pending_receivers() const {
  std::vector<bool> waits(setup_.world);
  for (const auto& lane : lanes_) {
    if (lane.finished || lane.sends_pending == 0 || lane.stage == plan_->chunks[lane.chunk].stage_end) continue;
    for (const auto rank : plan_->sends(plan_->stages[lane.stage])) waits[rank] = true;
  }
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < setup_.world; ++rank) {
    if (waits[rank]) ranks.push_back(rank);
  }
  return ranks;
}

// The deadline has passed. A rank whose own contribution is missing is to blame; so is the only other rank of two. But a rank
// that relays, or adds before it sends, may itself be waiting. Then all ranks ask each other which ranks they wait for, and a
// rank that does not answer is to blame.
void Operation::deadline(Nanos now) {
  if (done_) return;
  now_ = now;
  if (inquiring_) return end_inquiry();
  const auto missing = first_missing();
  const bool contribution = std::all_of(missing.begin(), missing.end(), [&](const auto& m) {
    return m.second.first.first == 0 && flows_[m.first].first_arrival == never;
  });
  if (contribution || setup_.world == 2) return fail_here(late(missing_text(missing)));
  begin_inquiry();
}

Status Operation::late(const std::string& who) const {
  return {Code::late, label() + ": not finished after " + std::to_string(age() / millisecond) + " ms: " + who};
}

// Prepares this rank's answer: the ranks it waits for.
void Operation::answer() {
  answered_ = inquiry_due_ = true;
  answered_by_.assign(setup_.world, false);
  answered_by_[setup_.self] = true;
  lags_.assign(setup_.world, 0);
  waiter_of_.assign(setup_.world, UINT32_MAX);
  waits_for_ = pending_receivers();
  for (const auto& [rank, m] : missing()) waits_for_.push_back(rank);
  for (const auto rank : waits_for_) waiter_of_[rank] = setup_.self;
}

// Only a rank past its own deadline aborts; the others have answered, and are notified of the result.
void Operation::begin_inquiry() {
  if (!answered_) answer();
  inquiring_ = true;
  inquiry_ends_ = now_ + inquiry_time;
  end_inquiry_if_all_spoke();
}

void Operation::heard_late(Rank from, Nanos its_age, std::span<const uint32_t> waits_for, Nanos now) {
  if (done_ || from >= setup_.world) return;
  now_ = now;
  if (!answered_) answer();
  answered_by_[from] = true;
  lags_[from] = age() - its_age;
  for (const auto rank : waits_for) {
    if (rank < setup_.world && waiter_of_[rank] == UINT32_MAX) waiter_of_[rank] = from;
  }
  end_inquiry_if_all_spoke();
}

void Operation::end_inquiry_if_all_spoke() {
  if (inquiring_ && std::find(answered_by_.begin(), answered_by_.end(), false) == answered_by_.end()) end_inquiry();
}

// A silent rank that another rank waits for is to blame. If there is none: ranks that made the call much later than this one.
// Otherwise the ranks that hold up this one.
void Operation::end_inquiry() {
  auto missing = this->missing();
  std::string silent, behind;
  for (Rank rank = 0; rank < setup_.world; ++rank) {
    const auto who = [&] { return "rank " + std::to_string(rank) + " (" + port_->place(rank) + ")"; };
    if (answered_by_[rank]) {
      if (lags_[rank] > setup_.request.timeout / 2)
        behind +=
            (behind.empty() ? "" : "; ") + who() + " made its call " + std::to_string(lags_[rank] / millisecond) + " ms later";
    } else if (waiter_of_[rank] != UINT32_MAX && !missing.contains(rank)) {
      silent +=
          (silent.empty() ? "" : "; ") + who() + " does not answer, rank " + std::to_string(waiter_of_[rank]) + " waits for it";
    }
  }
  // Silent ranks with missing messages are named by missing_text().
  std::erase_if(missing, [&](const auto& each) { return answered_by_[each.first]; });
  if (!missing.empty()) silent += (silent.empty() ? "" : "; ") + missing_text(missing);
  fail_here(late(!silent.empty() ? silent : !behind.empty() ? behind : missing_text(first_missing())));
}

}  // namespace unisono
