// The steps of a round: send contributions, close chunks, fetch missing results, agree on the verdict.
#include <algorithm>

#include "elastic/round/moshpit_round.h"

namespace unisono {

void MoshpitRound::settle(Nanos now) {
  if (!ended()) {
    send_contributions();
    close_chunks(now);
    if (contributed_ == never && contributions_done()) contributed_ = now;
    flush_verdict();
    const bool decided = verdict_ && verdict_->decided() != nullptr;
    if (phase_ == Phase::gathering && decided) finish_repair(now);  // the others have decided without this member's report
    if (phase_ == Phase::gathering) gather(now);
    if (phase_ == Phase::deciding) decide(now);
  }
  if (!ended()) abort_if_hopeless(now);
  flush_verdict();
}

// Serves the owners in turn, so that none waits while another gets everything.
void MoshpitRound::send_contributions() {
  if (request_.states.empty()) return;
  for (bool more = true; more;) {
    more = false;
    for (uint32_t step = 1; step < members_.size(); ++step) {
      const auto rank = static_cast<uint32_t>((request_.self + step) % members_.size());
      more = contribute_to(members_[rank], rank) || more;
    }
  }
}

bool MoshpitRound::contribute_to(MemberState& owner, uint32_t rank) {
  owner.sent = std::max(owner.sent, owner.answered);  // skips chunks that were closed without this member
  const bool due = owner.sent < owner.chunk_count && owner.sent < owner.answered + format_.table.window();
  if (!due || owner.gone != Gone::no || !port_.credit(rank)) return false;
  const uint32_t chunk = owner.first_chunk + owner.sent++;
  const auto& state = request_.states[chunk];
  const Contribution head{
      .chunk = chunk, .author = request_.self, .weight = state.weight, .full = state.full, .sharers = state.sharers};
  if (format_.contribute.is_plain() && state.weight > 0) {
    send(rank, {contribution_head(format_, head), request_.values->buffer(chunk)}, true);
    return true;
  }
  auto message = contribution_message(format_, head);
  if (state.weight > 0) {
    kernels::BlockCounts counts;
    encode({.codec = format_.contribute,
            .elements = request_.values->chunk(chunk),
            .count = format_.table.count(chunk),
            .message = message.data() + contribution_head_bytes},
           counts);
  }
  send(rank, std::move(message), true);
  return true;
}

bool MoshpitRound::contributions_done() const {
  if (!owner_->done()) return false;
  return request_.states.empty() || std::all_of(members_.begin(), members_.end(), [&](const MemberState& owner) {
           return &owner == &members_[request_.self] || owner.gone != Gone::no || owner.sent >= owner.chunk_count;
         });
}

void MoshpitRound::close_chunks(Nanos now) {
  if (owner_->done()) return;
  const auto excuses = excused(now);
  ChunkResult head;
  for (auto owing = owner_->owing();; owing = owner_->owing()) {
    auto message = owner_->close_next(excuses, head);
    if (!message) return;
    for (uint32_t rank = 0; rank < members_.size(); ++rank) {
      if (owing[rank] && silent(rank, request_.times.stall_timeout, now)) members_[rank].fell_silent = true;
    }
    send_to_all(message, true);
    store(std::move(message), head);
  }
}

void MoshpitRound::store(SharedBuffer message, const ChunkResult& head) {
  auto& owner = members_[head.author];
  result_bytes_ += message.size();
  results_[head.chunk] = {.message = std::move(message), .head = head};
  if (!head.is_void()) held_.set(head.chunk);
  ++known_;
  ++owner.known;
  while (owner.answered < owner.chunk_count && results_[owner.first_chunk + owner.answered].message) ++owner.answered;
}

// When to start asking other members for missing results: their owners are gone or silent, or have had all the time that they
// may take.
Nanos MoshpitRound::repair_deadline() const {
  Nanos silence = started_;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const auto& owner = members_[rank];
    if (owner.known == owner.chunk_count || owner.gone != Gone::no) continue;
    silence = rank == request_.self ? never : std::max(silence, owner.heard_at + request_.times.result_timeout);
    if (silence == never) break;
  }
  return std::min(silence, started_ + request_.contribute_timeout + request_.times.result_timeout);
}

bool MoshpitRound::repair_due(Nanos now) const { return now >= repair_deadline(); }

void MoshpitRound::gather(Nanos now) {
  if (known_ < format_.table.chunks()) {
    if (!repairing_ && !repair_due(now)) return;
    if (!repairing_) {
      repairing_ = true;
      for (uint32_t chunk = 0; chunk < format_.table.chunks(); ++chunk) {
        if (!results_[chunk].message) repair_.want(chunk, false);
      }
    }
    fetch(now);
    if (!repair_.idle()) return;
  }
  finish_repair(now);
}

void MoshpitRound::fetch(Nanos now) {
  repair_.step(now);
  for (const auto& request : repair_.take_requests())
    send(request.to, round_message(format_.group, Fetch{request.chunk}), false);
}

void MoshpitRound::finish_repair(Nanos now) {
  phase_ = Phase::deciding;
  repaired_ = now;
  repair_.clear();
  if (contributed_ == never) contributed_ = now;
  if (!verdict_) return finish(now);
  verdict_->have(held_, now);
  flush_verdict();
}

void MoshpitRound::decide(Nanos now) {
  const auto* decided = verdict_->decided();
  if (decided == nullptr) return;
  bool missing = false;
  for (uint32_t chunk = 0; chunk < decided->size(); ++chunk) {
    if (!decided->test(chunk) || held_.test(chunk)) continue;
    repair_.want(chunk, true);
    missing = true;
  }
  // With no member left to ask, missing results are lost here.
  if (!missing || last_one()) return finish(now);
  fetch(now);
}

void MoshpitRound::flush_verdict() {
  if (!verdict_) return;
  const auto sends = verdict_->take_sends();
  SharedBuffer bytes;
  for (size_t i = 0; i < sends.size(); ++i) {
    // Successive messages are mostly equal, for different members; each is encoded once.
    if (i == 0 || sends[i].message != sends[i - 1].message)
      bytes = round_message(format_.group, RoundMessage{sends[i].message});
    send(sends[i].to, bytes, false);
  }
}

// True if too few members are left to decide, or only clients, which cannot reach each other. for_certain: true even if all
// dead members had voted before.
bool MoshpitRound::hopeless(bool for_certain) const {
  uint32_t gone = 0, deciders = 0;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const auto why = members_[rank].gone;
    const bool dead = why == Gone::dead || why == Gone::left;
    if (why == Gone::declined || why == Gone::abandoned || (dead && !for_certain)) ++gone;
    else if (request_.members[rank].role != ElasticRole::client) ++deciders;
  }
  return deciders == 0 || format_.members - gone < verdict_->majority();
}

// All other members are dead or have left.
bool MoshpitRound::last_one() const {
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const auto why = members_[rank].gone;
    if (rank != request_.self && (why == Gone::no || why == Gone::closed)) return false;
  }
  return true;
}

void MoshpitRound::abort_if_hopeless(Nanos now) {
  if (now - started_ >= request_.round_timeout) {
    if (verdict_ && verdict_->decided() != nullptr) return finish(now);
    return give_up("no verdict within the round's time", now);
  }
  if (!verdict_ || verdict_->decided() != nullptr) return;
  if (hopeless(true)) return give_up("too few members took part", now);
  if (!hopeless(false)) return;
  if (last_one()) return give_up("too few members are left", now);
  // Messages of the members that died or left may still be on the way, here or to other members. So wait half a ballot_timeout.
  if (hopeless_since_ == never) hopeless_since_ = now;
  if (now - hopeless_since_ >= request_.times.ballot_timeout / 2) give_up("too few members are left", now);
}

Nanos MoshpitRound::gathering_deadline() const {
  Nanos next = never;
  if (!owner_->done()) {
    next = started_ + request_.contribute_timeout;
    const auto owing = owner_->owing();
    for (uint32_t rank = 0; rank < members_.size(); ++rank) {
      const bool excusable =
          owing[rank] && members_[rank].gone == Gone::no && !silent(rank, request_.times.stall_timeout, now_);
      if (excusable) next = std::min(next, members_[rank].heard_at + request_.times.stall_timeout);
    }
  }
  if (phase_ == Phase::gathering && !repairing_) next = std::min(next, repair_deadline());
  return next;
}

Nanos MoshpitRound::next_deadline() const {
  if (phase_ == Phase::waiting) return never;
  if (ended()) return ended_ + request_.round_timeout;
  Nanos next = std::min({keep_alive_at_, started_ + request_.round_timeout, repair_.next_deadline(), gathering_deadline()});
  if (verdict_) next = std::min(next, verdict_->next_deadline());
  if (hopeless_since_ != never) next = std::min(next, hopeless_since_ + request_.times.ballot_timeout / 2);
  return next;
}

}  // namespace unisono
