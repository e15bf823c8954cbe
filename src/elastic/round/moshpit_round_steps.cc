// The steps of a round: send contributions, close chunks, fetch missing results, and agree on the verdict.
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
    // The other members may have decided before this member has sent its HAVE.
    if (phase_ == Phase::gathering && decided) finish_repair(now);
    if (phase_ == Phase::gathering) gather(now);
    if (phase_ == Phase::deciding) decide(now);
  }
  if (!ended()) abort_if_hopeless(now);
  flush_verdict();
}

// Goes through the owners, and sends each of them one contribution at a time. If it sent all contributions to one owner first,
// the other owners would have to wait.
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
  // If the result of a chunk is known already, the chunk was closed without this member, and is skipped.
  owner.sent = std::max(owner.sent, owner.answered);
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
  for (auto pending = owner_->pending();; pending = owner_->pending()) {
    auto message = owner_->close_next(excuses, head);
    if (!message) return;
    for (uint32_t rank = 0; rank < members_.size(); ++rank) {
      if (pending[rank] && silent(rank, request_.times.stall_timeout, now)) members_[rank].fell_silent = true;
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

// Returns when this member begins to fetch missing results from other members. This is when the owners of the missing results
// are gone, or have been silent for result_timeout. At the latest, it is contribute_timeout + result_timeout after the start.
Nanos MoshpitRound::repair_deadline() const {
  Nanos silence = started_;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const auto& owner = members_[rank];
    if (owner.known == owner.chunk_count || owner.gone != Gone::no) continue;
    silence = rank == request_.self ? never : std::max(silence, owner.last_message_at + request_.times.result_timeout);
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
        if (!results_[chunk].message) repair_.request_chunk(chunk, false);
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
    repair_.request_chunk(chunk, true);
    missing = true;
  }
  // If no other member is left to ask, the missing results are lost for this member.
  if (!missing || all_others_gone()) return finish(now);
  fetch(now);
}

void MoshpitRound::flush_verdict() {
  if (!verdict_) return;
  const auto sends = verdict_->take_sends();
  SharedBuffer bytes;
  for (size_t i = 0; i < sends.size(); ++i) {
    // Successive messages to different members mostly have the same content. Such a content is encoded only once.
    if (i == 0 || sends[i].message != sends[i - 1].message)
      bytes = round_message(format_.group, RoundMessage{sends[i].message});
    send(sends[i].to, bytes, false);
  }
}

// Returns true if the remaining members cannot decide, because they are too few, or because all of them are clients, which
// cannot reach each other. If `for_certain` is true, dead members count as remaining, because they may have voted before they
// died.
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

// Returns true if no other member can answer any more. A member cannot answer if it is dead, or has left, declined or abandoned
// the round.
bool MoshpitRound::all_others_gone() const {
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const auto why = members_[rank].gone;
    if (rank != request_.self && (why == Gone::no || why == Gone::closed)) return false;
  }
  return true;
}

void MoshpitRound::abort_if_hopeless(Nanos now) {
  if (now - started_ >= request_.round_timeout) {
    if (verdict_ && verdict_->decided() != nullptr) return finish(now);
    return abort_round("no verdict within the round's time", now);
  }
  if (!verdict_ || verdict_->decided() != nullptr) return;
  if (hopeless(true)) return abort_round("too few members took part", now);
  if (!hopeless(false)) return;
  if (all_others_gone()) return abort_round("too few members are left", now);
  // First wait for half a ballot_timeout, because messages of dead members may still be in flight, to this member or to others.
  if (hopeless_since_ == never) hopeless_since_ = now;
  if (now - hopeless_since_ >= request_.times.ballot_timeout / 2) abort_round("too few members are left", now);
}

Nanos MoshpitRound::gathering_deadline() const {
  Nanos next = never;
  if (!owner_->done()) {
    next = started_ + request_.contribute_timeout;
    const auto pending = owner_->pending();
    for (uint32_t rank = 0; rank < members_.size(); ++rank) {
      const bool excusable =
          pending[rank] && members_[rank].gone == Gone::no && !silent(rank, request_.times.stall_timeout, now_);
      if (excusable) next = std::min(next, members_[rank].last_message_at + request_.times.stall_timeout);
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
