#include "elastic/round/moshpit_round.h"

#include <algorithm>

#include "base/check.h"
#include "wire/digest.h"

namespace unisono {
namespace {

RoundFormat format_of(const RoundRequest& request) {
  return {.group = request.id,
          .members = static_cast<uint32_t>(request.members.size()),
          .table = request.table,
          .contribute = request.contribute_codec,
          .result = request.result_codec};
}

}  // namespace

Result<std::unique_ptr<MoshpitRound>> MoshpitRound::make(RoundRequest request, RoundPort& port) {
  if (auto status = check(request); !status.ok()) return status;
  return std::unique_ptr<MoshpitRound>(new MoshpitRound(std::move(request), port));
}

MoshpitRound::MoshpitRound(RoundRequest request, RoundPort& port)
    : request_(std::move(request)),
      format_(format_of(request_)),
      port_(port),
      members_(request_.members.size()),
      owner_(std::in_place, request_, format_),
      repair_(request_.self, format_.members, request_.times.stall_timeout,
              [this](uint32_t rank) {
                return members_[rank].gone == Gone::no && reachable(rank) && !silent(rank, request_.times.stall_timeout, now_);
              }),
      results_(request_.table.chunks()),
      held_(request_.table.chunks()) {
  VerdictOptions options{.members = format_.members,
                         .self = request_.self,
                         .proposer = {},
                         .chunks = format_.table.chunks(),
                         .ballot_timeout = request_.times.ballot_timeout};
  uint32_t chunk = 0;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    members_[rank].first_chunk = chunk;
    members_[rank].chunk_count = request_.chunk_counts[rank];
    chunk += request_.chunk_counts[rank];
    contributors_[rank] = request_.members[rank].role != ElasticRole::reducer;
    options.proposer.push_back(request_.members[rank].role != ElasticRole::client);
  }
  if (request_.commit == CommitRule::agreed) verdict_.emplace(std::move(options));
}

void MoshpitRound::start(Nanos now) {
  UNISONO_CHECK(phase_ == Phase::waiting);
  phase_ = Phase::gathering;
  started_ = now_ = now;
  for (auto& member : members_) member.last_message_at = now;
  keep_alive_at_ = now + request_.times.stall_timeout / 4;
  if (format_.table.chunks() == 0) return end(now);
  settle(now);
}

void MoshpitRound::message(uint32_t rank, const SharedBuffer& bytes, Nanos now) {
  UNISONO_CHECK(phase_ != Phase::waiting && rank < members_.size());
  auto& from = members_[rank];
  if (rank == request_.self || from.gone == Gone::declined || from.gone == Gone::abandoned) {
    ++report_.ignored;
    return;
  }
  now_ = now;
  from.last_message_at = now;
  if (!ended()) report_.received_bytes += bytes.size();
  if (from.gone == Gone::closed) restore_member(rank);
  RoundMessage read;
  if (read_round_message(format_, bytes.view(), read).ok()) {
    std::visit([&](const auto& body) { on(rank, body, bytes, now); }, read);
  } else {
    ++report_.ignored;
  }
  settle(now);
}

void MoshpitRound::on(uint32_t from, const Contribution& contribution, const SharedBuffer& bytes, Nanos) {
  if (ended()) return answer_ended(from);
  // If this is true, the chunk was closed before, because its author was excused. A contribution that comes after that is no
  // error.
  const bool late = owner_->next_chunk() > contribution.chunk;
  if (contribution.author != from || (!late && !owner_->take(contribution, bytes))) ++report_.ignored;
}

void MoshpitRound::on(uint32_t from, const ChunkResult& result, const SharedBuffer& bytes, Nanos now) {
  if (ended()) return answer_ended(from);
  const auto& owner = members_[result.author];
  const bool owned = result.chunk >= owner.first_chunk && result.chunk - owner.first_chunk < owner.chunk_count &&
                     result.author != request_.self;
  if (!owned || ((result.contributors | result.refused) & ~contributors_).any()) {
    ++report_.ignored;
    return;
  }
  if (results_[result.chunk].message) return;
  if (digest64(result_elements(bytes)) != result.digest) {
    ++report_.ignored;
    return;
  }
  store(bytes, result);
  repair_.on_result(result.chunk, from, now);
}

void MoshpitRound::on(uint32_t from, const KeepAlive& alive, const SharedBuffer&, Nanos) {
  if (ended() && !alive.ended) answer_ended(from);
}

void MoshpitRound::on(uint32_t from, const Abandon&, const SharedBuffer&, Nanos now) {
  lose_member(from, Gone::abandoned, now);
}

void MoshpitRound::on(uint32_t from, const Fetch& fetch, const SharedBuffer&, Nanos) { serve(from, fetch.chunk); }

void MoshpitRound::on(uint32_t from, const FetchMiss& miss, const SharedBuffer&, Nanos) { repair_.on_miss(miss.chunk, from); }

void MoshpitRound::on(uint32_t from, const VerdictMessage& message, const SharedBuffer&, Nanos now) {
  if (verdict_) verdict_->message(from, message, now);
  else if (request_.commit == CommitRule::per_result) ++report_.ignored;
}

void MoshpitRound::member_gone(uint32_t rank, MemberLoss why, Nanos now) {
  UNISONO_CHECK(phase_ != Phase::waiting && rank < members_.size());
  constexpr Gone reasons[] = {Gone::dead, Gone::left, Gone::declined, Gone::closed};
  now_ = now;
  lose_member(rank, reasons[static_cast<size_t>(why)], now);
  settle(now);
}

void MoshpitRound::lose_member(uint32_t rank, Gone why, Nanos now) {
  auto& member = members_[rank];
  if (rank == request_.self || ended() || (member.gone != Gone::no && member.gone != Gone::closed) || member.gone == why)
    return;
  member.gone = why;
  if (verdict_) verdict_->member_gone(rank, now);
}

// The connection to the member was lost and is back. Messages may be lost, so this member sends its contributions and results
// again.
void MoshpitRound::restore_member(uint32_t rank) {
  auto& member = members_[rank];
  member.gone = Gone::no;
  member.sent = member.answered;
  if (results_.empty()) return;
  const auto& self = members_[request_.self];
  for (uint32_t chunk = self.first_chunk; chunk < self.first_chunk + self.chunk_count; ++chunk) {
    if (results_[chunk].message) serve(rank, chunk);
  }
}

void MoshpitRound::credit(uint32_t rank, Nanos now) {
  UNISONO_CHECK(phase_ != Phase::waiting && rank < members_.size());
  now_ = now;
  serve_wanted(rank);
  settle(now);
}

void MoshpitRound::abandon(Nanos now) {
  UNISONO_CHECK(phase_ != Phase::waiting);
  if (ended()) return;
  send_to_all(round_message(format_.group, Abandon{}), false);
  abort_round("this process left", now);
}

void MoshpitRound::woke(Nanos now) {
  UNISONO_CHECK(phase_ != Phase::waiting);
  now_ = now;
  if (!ended() && now >= keep_alive_at_) {
    keep_alive_at_ = now + request_.times.stall_timeout / 4;
    send_to_all(round_message(format_.group, KeepAlive{}), false);
  }
  if (!ended() && verdict_) verdict_->woke(now);
  settle(now);
}

bool MoshpitRound::over(Nanos now) const { return ended() && now >= ended_ + request_.round_timeout; }

void MoshpitRound::release_results() {
  UNISONO_CHECK(ended());
  results_ = {};
  result_bytes_ = 0;
}

size_t MoshpitRound::held_bytes() const { return result_bytes_ + (owner_ ? owner_->held_bytes() : 0); }

bool MoshpitRound::reachable(uint32_t rank) const {
  const auto client = [&](uint32_t one) { return request_.members[one].role == ElasticRole::client; };
  return rank != request_.self && !(client(rank) && client(request_.self));
}

bool MoshpitRound::silent(uint32_t rank, Nanos limit, Nanos now) const {
  return rank != request_.self && now - members_[rank].last_message_at >= limit;
}

RankSet MoshpitRound::excused(Nanos now) const {
  RankSet set;
  if (now - started_ >= request_.contribute_timeout) return set.set();
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    set[rank] = members_[rank].gone != Gone::no || silent(rank, request_.times.stall_timeout, now);
  }
  return set;
}

// A member that counts as gone gets no elements. If it is alive after all, it fetches the results from other members.
void MoshpitRound::send(uint32_t rank, SharedMessage message, bool bulk) {
  const auto gone = members_[rank].gone;
  if (!reachable(rank) || gone == Gone::left || gone == Gone::declined || gone == Gone::abandoned || (bulk && gone != Gone::no))
    return;
  if (!ended()) report_.sent_bytes += message.size();
  port_.send(rank, std::move(message), bulk);
}

void MoshpitRound::send_to_all(const SharedBuffer& message, bool bulk) {
  for (uint32_t step = 1; step < members_.size(); ++step) send((request_.self + step) % members_.size(), message, bulk);
}

void MoshpitRound::serve(uint32_t rank, uint32_t chunk) {
  if (chunk >= results_.size() || !results_[chunk].message)
    return send(rank, round_message(format_.group, FetchMiss{chunk}), false);
  auto& wanted = members_[rank].wanted;
  if (port_.credit(rank)) return send(rank, results_[chunk].message, true);
  if (wanted.size() == 0) wanted = ChunkBits(format_.table.chunks());
  wanted.set(chunk);
}

void MoshpitRound::serve_wanted(uint32_t rank) {
  const auto wanted = std::exchange(members_[rank].wanted, {});
  for (uint32_t chunk = 0; chunk < wanted.size(); ++chunk) {
    if (wanted.test(chunk)) serve(rank, chunk);
  }
}

void MoshpitRound::answer_ended(uint32_t rank) {
  const bool decided = verdict_ && verdict_->decided() != nullptr;
  send(rank,
       round_message(format_.group,
                     decided ? RoundMessage{verdict_->decided_message()} : RoundMessage{KeepAlive{.ended = true}}),
       false);
}

}  // namespace unisono
