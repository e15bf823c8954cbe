#include "elastic/round/verdict.h"

#include <algorithm>

#include "base/check.h"

namespace unisono {

Verdict::Verdict(VerdictOptions options)
    : options_(std::move(options)),
      gone_(options_.members),
      haves_(options_.members),
      accepts_(options_.members),
      promises_(options_.members) {
  UNISONO_CHECK(options_.self < options_.members && options_.proposer.size() == options_.members &&
                options_.ballot_timeout >= 2);
  for (uint32_t rank = 0; rank < options_.members; ++rank) {
    if (options_.proposer[rank]) proposers_.push_back(rank);
  }
}

uint32_t Verdict::proposer_of(uint32_t ballot) const { return proposers_[ballot % proposers_.size()]; }

void Verdict::have(const ChunkBits& mine, Nanos now) {
  UNISONO_CHECK(mine.size() == options_.chunks);
  if (decided_ || have_at_) return;
  have_at_ = now;
  haves_[options_.self] = mine;
  if (const auto ballot = std::exchange(unanswered_, std::nullopt)) promise_to(proposer_of(*ballot), *ballot, now);
  if (!proposers_.empty()) send(proposers_[0], VerdictHave{mine}, now);
  begin_due_ballot(now);
}

void Verdict::message(uint32_t from, const VerdictMessage& message, Nanos now) {
  if (from == options_.self || !fits(from, message)) {
    ++ignored_;
    return;
  }
  handle(from, message, now);
}

// Returns true if a correct member could have sent this message. Among other things, all proposals of a ballot must come from
// the same member.
bool Verdict::fits(uint32_t from, const VerdictMessage& message) const {
  if (from >= options_.members) return false;
  const auto ours = [&](const ChunkBits& bits) { return bits.size() == options_.chunks; };
  const auto runs = [&](uint32_t ballot, uint32_t rank) { return !proposers_.empty() && proposer_of(ballot) == rank; };
  if (const auto* have = std::get_if<VerdictHave>(&message)) return ours(have->chunks);
  if (const auto* propose = std::get_if<VerdictPropose>(&message)) return ours(propose->value) && runs(propose->ballot, from);
  if (const auto* accept = std::get_if<VerdictAccept>(&message)) return ours(accept->value);
  if (const auto* prepare = std::get_if<VerdictPrepare>(&message)) return runs(prepare->ballot, from);
  if (const auto* promise = std::get_if<VerdictPromise>(&message)) {
    return ours(promise->have) && runs(promise->ballot, options_.self) &&
           (!promise->accepted || ours(promise->accepted->value));
  }
  return ours(std::get<VerdictDecided>(message).value);
}

void Verdict::handle(uint32_t from, const VerdictMessage& message, Nanos now) {
  if (!decided_) return std::visit([&](const auto& body) { on(from, body, now); }, message);
  // An accept gets no answer. Its sender receives the accepts of other members, or it sends HAVE later and gets an answer to
  // that. If all accepts were answered, a round of G members would cost G² messages.
  const bool asks = !std::holds_alternative<VerdictDecided>(message) && !std::holds_alternative<VerdictAccept>(message);
  if (asks && from != options_.self) send(from, decided_message(), now);
}

void Verdict::on(uint32_t from, const VerdictHave& have, Nanos now) {
  haves_[from] = have.chunks;
  propose_first(now);
}

void Verdict::on(uint32_t, const VerdictPropose& propose, Nanos now) {
  if (propose.ballot < promised_) return;
  promised_ = propose.ballot;
  unanswered_.reset();
  accepted_ = VerdictAccept{propose.ballot, propose.value};
  broadcast(*accepted_, now);
}

void Verdict::on(uint32_t from, const VerdictAccept& accept, Nanos now) {
  auto& newest = accepts_[from];
  if (newest && newest->ballot >= accept.ballot) return;
  newest = accept;
  const auto of_ballot = std::ranges::count_if(accepts_, [&](const auto& one) { return one && one->ballot == accept.ballot; });
  // This comes first, so that in the usual case no values need to be compared.
  if (of_ballot < majority()) return;
  if (std::ranges::count(accepts_, newest) >= majority()) decide(accept.value, now);
}

void Verdict::on(uint32_t from, const VerdictPrepare& prepare, Nanos now) {
  if (prepare.ballot < promised_) return;
  promised_ = prepare.ballot;
  promise_to(from, prepare.ballot, now);
}

// Promises to take part in no lower ballot. The promise reports the accepted value and the chunks whose results are held here.
// If this member has accepted no value and its repair has not ended, it has nothing to report. A promise could then only help
// to decide that no chunk is applied, so the promise waits until the repair has ended.
void Verdict::promise_to(uint32_t proposer, uint32_t ballot, Nanos now) {
  const auto& mine = haves_[options_.self];
  if (!accepted_ && !mine) {
    unanswered_ = ballot;
    return;
  }
  send(proposer, VerdictPromise{ballot, accepted_, mine ? *mine : ChunkBits(options_.chunks)}, now);
}

void Verdict::on(uint32_t from, const VerdictPromise& promise, Nanos now) {
  if (phase_ != Phase::preparing || promise.ballot != ballot_) return;
  promises_[from] = true;
  if (!haves_[from]) haves_[from] = promise.have;
  if (promise.accepted && (!newest_accepted_ || promise.accepted->ballot > newest_accepted_->ballot))
    newest_accepted_ = promise.accepted;
  if (std::count(promises_.begin(), promises_.end(), true) < majority()) return;
  propose(ballot_, newest_accepted_ ? newest_accepted_->value : held_by_majority(), now);
}

void Verdict::on(uint32_t, const VerdictDecided& decided, Nanos now) { decide(decided.value, now); }

// Ballot 0 is the lowest one, so it needs no promises. Its proposer waits for the HAVE of each member that is not gone, but for
// at most half a ballot_timeout.
void Verdict::propose_first(Nanos now) {
  if (!have_at_) return;
  if (now - *have_at_ >= options_.ballot_timeout / 2) awaits_all_ = false;
  if (proposers_.empty() || proposers_[0] != options_.self || phase_ != Phase::idle) return;
  uint32_t known = 0;
  bool all = true;
  for (uint32_t rank = 0; rank < options_.members; ++rank) {
    known += haves_[rank] ? 1 : 0;
    all = all && (haves_[rank] || gone_[rank]);
  }
  if (known >= majority() && (all || !awaits_all_)) propose(0, held_by_majority(), now);
}

ChunkBits Verdict::held_by_majority() const {
  ChunkBits value(options_.chunks);
  for (size_t chunk = 0; chunk < options_.chunks; ++chunk) {
    uint32_t holders = 0;
    for (const auto& have : haves_) holders += have && have->test(chunk) ? 1 : 0;
    if (holders >= majority()) value.set(chunk);
  }
  return value;
}

void Verdict::propose(uint32_t ballot, ChunkBits value, Nanos now) {
  phase_ = Phase::proposing;
  ballot_ = ballot;
  value_ = std::move(value);
  repeat_at_ = now + options_.ballot_timeout;
  broadcast(VerdictPropose{ballot_, value_}, now);
}

void Verdict::open_ballot(uint32_t ballot, Nanos now) {
  phase_ = Phase::preparing;
  ballot_ = ballot;
  promises_.assign(options_.members, false);
  newest_accepted_.reset();
  repeat_at_ = now + options_.ballot_timeout;
  broadcast(VerdictPrepare{ballot}, now);
}

void Verdict::decide(const ChunkBits& value, Nanos now) {
  decided_ = value;
  if (!options_.proposer[options_.self]) return;
  for (uint32_t rank = 0; rank < options_.members; ++rank) {
    if (!options_.proposer[rank]) send(rank, decided_message(), now);
  }
}

void Verdict::member_gone(uint32_t rank, Nanos now) {
  UNISONO_CHECK(rank < options_.members);
  if (rank == options_.self || gone_[rank]) return;
  gone_[rank] = true;
  ++gone_count_;
  if (decided_) return;
  propose_first(now);
  begin_due_ballot(now);
}

void Verdict::woke(Nanos now) {
  if (decided_ || !have_at_) return;
  propose_first(now);
  if (!decided_ && phase_ != Phase::idle && now >= repeat_at_) {
    repeat_at_ = now + options_.ballot_timeout;
    if (phase_ == Phase::preparing) broadcast(VerdictPrepare{ballot_}, now);
    else broadcast(VerdictPropose{ballot_, value_}, now);
  }
  begin_due_ballot(now);
}

// Begins the ballot that is due by time. If the proposer of that ballot is gone, begins the next ballot whose proposer is not
// gone. If several ballots have become due since the last call, only the last one counts. A proposer that counts as gone may be
// alive after all, so it still gets HAVE when its ballot becomes due.
void Verdict::begin_due_ballot(Nanos now) {
  if (decided_ || !have_at_ || proposers_.empty()) return;
  const auto timed = static_cast<uint32_t>((now - *have_at_) / options_.ballot_timeout);
  const auto tell = [&](uint32_t ballot) { send(proposer_of(ballot), VerdictHave{*haves_[options_.self]}, now); };
  if (timed > ballots_timed_ && gone_[proposer_of(timed)]) tell(timed);
  ballots_timed_ = std::max(ballots_timed_, timed);
  auto due = timed;
  if (std::ranges::any_of(proposers_, [&](uint32_t rank) { return !gone_[rank]; })) {
    while (gone_[proposer_of(due)]) ++due;
  }
  if (due <= ballots_due_ || gone_[proposer_of(due)]) return;
  ballots_due_ = due;
  if (proposer_of(due) == options_.self) open_ballot(due, now);
  else tell(due);
}

Nanos Verdict::next_deadline() const {
  if (decided_ || !have_at_ || proposers_.empty()) return never;
  Nanos next = *have_at_ + (Nanos{ballots_timed_} + 1) * options_.ballot_timeout;
  if (phase_ != Phase::idle) next = std::min(next, repeat_at_);
  if (phase_ == Phase::idle && awaits_all_ && proposers_[0] == options_.self)
    next = std::min(next, *have_at_ + options_.ballot_timeout / 2);
  return next;
}

// This member handles the message last, because it may send further messages when it does.
void Verdict::broadcast(const VerdictMessage& message, Nanos now) {
  for (uint32_t rank = 0; rank < options_.members; ++rank) {
    const bool reachable = options_.proposer[rank] || options_.proposer[options_.self];  // clients cannot reach each other
    if (rank != options_.self && reachable) send(rank, message, now);
  }
  handle(options_.self, message, now);
}

void Verdict::send(uint32_t to, VerdictMessage message, Nanos now) {
  if (to == options_.self) return handle(to, message, now);
  sends_.push_back({to, std::move(message)});
}

}  // namespace unisono
