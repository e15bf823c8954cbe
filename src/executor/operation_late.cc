// Makes the errors of an operation that cannot continue. They name the missing ranks, the phase, and the missing bytes.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/concat.h"
#include "executor/absence.h"
#include "executor/confirmation.h"
#include "executor/operation.h"

namespace unisono {

// Returns what the transport knows about the path to the rank, as an addition to a text about this rank.
static std::string link_state_text(const Port& port, Rank rank) {
  const auto state = port.link_state(rank);
  return state.empty() ? state : concat("; rank ", rank, ": ", state);
}

bool Operation::needs(Rank peer) const {
  if (done_ || peer >= flows_.size()) return false;
  const auto& flow = flows_[peer];
  if (flow.send_used < flow.send_total || flow.recv_arrived < flow.recv_total || flow.waits_to_send()) return true;
  // The flows do not count empty messages, which belong to empty blocks or barriers.
  for (const auto& lane : lanes_) {
    const auto& chunk = plan_->chunks[lane.chunk];
    for (auto s = lane.stage; s < chunk.stage_end && !lane.finished; ++s) {
      const auto& stage = plan_->stages[s];
      const auto ranks = plan_->receives(stage);
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (ranks[i] == peer && !arrivals_.arrived(lane.arrivals + stage.recv_before + i)) return true;
      }
      const auto sends = plan_->sends(stage);
      // When the lane enters a stage, the sends of the stage are queued or handed to the transport.
      const bool still_to_send = s > lane.stage || !lane.entered;
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
  std::pair<uint32_t, uint32_t> first{UINT32_MAX, UINT32_MAX};  // (round, slice), as in first_missing()
  for (size_t i = oldest_; i < lanes_.size(); ++i) {
    const auto& lane = lanes_[i];
    if (lane.finished || lane.stage == plan_->chunks[lane.chunk].stage_end) continue;
    const auto& stage = plan_->stages[lane.stage];
    const std::pair at(stage.round, lane.slice);
    if (at > first || lane.arrived_messages >= stage.recv_end - stage.recv_begin) continue;
    if (at < first) pending.clear();
    first = at;
    progress.phase = stage.reduces ? Progress::Phase::contributions : Progress::Phase::results;
    progress.round = stage.round;
    const auto ranks = plan_->receives(stage);
    for (size_t r = 0; r < ranks.size() && pending.size() < pending_listed_max; ++r) {
      const bool listed = std::find(pending.begin(), pending.end(), ranks[r]) != pending.end();
      if (!listed && !arrivals_.arrived(lane.arrivals + stage.recv_before + r)) pending.push_back(ranks[r]);
    }
  }
  std::sort(pending.begin(), pending.end());
  if (!pending.empty()) return progress;
  for (size_t i = oldest_; i < lanes_.size() && pending.empty(); ++i) {
    const auto& lane = lanes_[i];
    if (lane.finished || lane.sends_pending == 0 || lane.stage == plan_->chunks[lane.chunk].stage_end) continue;
    const auto sends = plan_->sends(plan_->stages[lane.stage]);
    pending.assign(sends.begin(),
                   sends.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(sends.size(), pending_listed_max)));
    progress.phase = Progress::Phase::sending;
    progress.round = plan_->stages[lane.stage].round;
  }
  return progress;
}

void Operation::peer_lost(Rank peer, const Status& why, const Status& before, Nanos now) {
  if (!needs(peer)) return;
  now_ = now;
  const bool follows = !before.ok() && !is_abort(why);
  const auto text = concat(label(), ": ", follows ? before.message() + "; then " : "", describe_absence(peer, why), "; ",
                           missing_from_lost(peer));
  if (follows || is_abort(why)) fail_here({Code::unavailable, text});
  else fail_here({Code::peer_lost, text + "; call reform()"});
}

// Says what a rank that is gone has not sent, or not received.
std::string Operation::missing_from_lost(Rank peer) const {
  const auto& flow = flows_[peer];
  const auto is_last = [&](uint32_t round) { return plan_->last_confirmation >= 0 && round >= last_confirmation_round; };
  if (flow.recv_arrived < flow.recv_total)
    return concat(flow.recv_total - flow.recv_arrived, " of ", flow.recv_total, " bytes from it are missing");
  const auto missing = this->missing();
  if (const auto it = missing.find(peer); it != missing.end() && it->second.messages > 0)
    return it->second.messages == 1
               ? concat("its message that ",
                        is_last(it->second.first.first) ? "all ranks make the same call" : "it has begun the call",
                        " is missing")
               : concat(it->second.messages, " of its messages are missing; they carry no data");
  if (flow.send_used < flow.send_total)
    return concat(flow.send_total - flow.send_used, " of ", flow.send_total, " bytes for it have not been sent");
  return "it may not have received all that was sent to it";
}

// For each rank, returns which messages from it are missing, and how many bytes this rank cannot send to it.
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

// Returns the ranks that hold up the operation: those whose missing messages belong to the earliest round and slice. Other
// ranks are not to blame, because they may themselves wait for these ranks or for this rank.
std::map<Rank, Operation::Missing> Operation::first_missing() const {
  auto missing = this->missing();
  std::pair<uint32_t, uint32_t> first{UINT32_MAX, UINT32_MAX};
  for (const auto& [rank, m] : missing) first = std::min(first, m.first);
  std::erase_if(missing, [&](const auto& each) { return each.second.first != first; });
  return missing;
}

std::string Operation::missing_text(const std::map<Rank, Missing>& missing) const {
  const auto round_text = [&](uint32_t round) {
    return plan_->last_confirmation >= 0 && round >= last_confirmation_round ? std::string("confirmation")
                                                                             : concat("round ", round);
  };
  std::string text;
  for (const auto& [rank, m] : missing) {
    if (!text.empty()) text += "; ";
    text += concat("rank ", rank, " (", port_->location(rank), ")");
    if (m.messages > 0) {
      const auto& flow = flows_[rank];
      text += flow.first_arrival == never ? " has sent nothing"
              : flow.recv_total == 0      ? concat(" has sent ", flow.received_messages, " messages without data")
                                          : concat(" has sent ", flow.recv_arrived, " bytes");
      text += concat(", missing ", m.bytes > 0 ? concat(m.bytes, " bytes (") : "", m.messages,
                     m.messages == 1 ? " message" : " messages", m.bytes > 0 ? "" : " without data (",
                     m.bytes > 0 ? ", phase: " : "phase: ", round_text(m.first.first), ")");
    }
    if (m.unsent_bytes > 0)
      text += concat(m.messages > 0 ? std::string(" and") : std::string(), " receives no more data, ", m.unsent_bytes,
                     " bytes unsent");
    text += link_state_text(*port_, rank);
  }
  if (!text.empty()) return text;
  const auto receivers = pending_receivers();
  if (receivers.empty()) return concat("rank ", setup_.self, " has all messages and is still computing");
  for (const auto rank : receivers) text += concat(text.empty() ? "rank " : ", rank ", rank, " (", port_->location(rank), ")");
  text = concat("all messages have arrived, but data that was sent to ", text, " has not been received");
  for (const auto rank : receivers) text += link_state_text(*port_, rank);
  return text;
}

// Returns the ranks that may not have taken messages that were sent to them.
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

// The deadline has passed. A rank is to blame if it has not sent its contribution, or if it is the only other rank. In other
// cases, a missing rank may itself wait for a third rank, so the ranks ask each other for which ranks they wait. A rank that
// does not answer is to blame.
void Operation::deadline(Nanos now) {
  if (done_) return;
  now_ = now;
  if (disputed_) return fail_here(std::exchange(dispute_why_, {}));
  if (inquiring_) return end_inquiry();
  const auto missing = first_missing();
  const bool contribution = std::all_of(missing.begin(), missing.end(), [&](const auto& m) {
    return m.second.first.first == 0 && flows_[m.first].first_arrival == never;
  });
  if (contribution || setup_.world == 2) return fail_here(late(missing_text(missing)));
  begin_inquiry();
}

Status Operation::late(const std::string& cause) const {
  return {Code::late, concat(label(), ": not finished after ", age() / millisecond, " ms: ", cause)};
}

// Prepares a report that says for which ranks this rank waits.
void Operation::answer() {
  answered_ = inquiry_due_ = true;
  inquiry_.answered_by.assign(setup_.world, false);
  inquiry_.answered_by[setup_.self] = true;
  inquiry_.lags.assign(setup_.world, 0);
  inquiry_.waiter_of.assign(setup_.world, UINT32_MAX);
  inquiry_.waits_for = pending_receivers();
  for (const auto& [rank, m] : missing()) inquiry_.waits_for.push_back(rank);
  for (const auto rank : inquiry_.waits_for) inquiry_.waiter_of[rank] = setup_.self;
}

bool Operation::prepare_last_report(Nanos now) {
  if (done_) return false;
  now_ = now;
  inquiry_.waits_for.clear();
  for (const auto& [rank, m] : first_missing()) {
    if (m.messages > 0) inquiry_.waits_for.push_back(rank);
  }
  return !inquiry_.waits_for.empty();
}

// Only a rank that is past its deadline begins an inquiry and aborts. The other ranks answer, and later receive the abort.
void Operation::begin_inquiry() {
  if (!answered_) answer();
  inquiring_ = true;
  inquiry_.ends = now_ + inquiry_time;
  end_inquiry_if_all_answered();
}

void Operation::on_late_report(Rank from, Nanos its_age, std::span<const uint32_t> waits_for, Nanos now) {
  if (done_ || from >= setup_.world) return;
  now_ = now;
  if (!answered_) answer();
  inquiry_.answered_by[from] = true;
  inquiry_.lags[from] = age() - its_age;
  for (const auto rank : waits_for) {
    if (rank < setup_.world && inquiry_.waiter_of[rank] == UINT32_MAX) inquiry_.waiter_of[rank] = from;
  }
  end_inquiry_if_all_answered();
}

void Operation::end_inquiry_if_all_answered() {
  if (inquiring_ && std::find(inquiry_.answered_by.begin(), inquiry_.answered_by.end(), false) == inquiry_.answered_by.end())
    end_inquiry();
}

// Fails the operation. The error names the silent ranks for which some rank waits. If there are none, it names the ranks that
// started much later than this rank. If there are none of these either, it names the ranks of first_missing().
void Operation::end_inquiry() {
  auto missing = this->missing();
  std::string silent, behind;
  for (Rank rank = 0; rank < setup_.world; ++rank) {
    const auto who = [&] { return concat("rank ", rank, " (", port_->location(rank), ")"); };
    if (inquiry_.answered_by[rank]) {
      if (inquiry_.lags[rank] > setup_.request.timeout / 2)
        behind += concat(behind.empty() ? "" : "; ", who(), " made its call ", inquiry_.lags[rank] / millisecond, " ms later");
    } else if (inquiry_.waiter_of[rank] != UINT32_MAX && !missing.contains(rank)) {
      silent += concat(silent.empty() ? "" : "; ", who(), " does not answer; rank ", inquiry_.waiter_of[rank], " waits for it");
    }
  }
  // Silent ranks with missing messages are described by missing_text().
  std::erase_if(missing, [&](const auto& each) { return inquiry_.answered_by[each.first]; });
  if (!missing.empty()) silent += (silent.empty() ? "" : "; ") + missing_text(missing);
  fail_here(late(!silent.empty() ? silent : !behind.empty() ? behind : missing_text(first_missing())));
}

}  // namespace unisono
