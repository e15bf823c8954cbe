#include "rendezvous/rendezvous_client.h"

#include <algorithm>
#include <limits>

namespace unisono::rendezvous {

namespace {
constexpr size_t joiners_known_max = 256;
}

Bytes Client::connected(Nanos now) {
  phase_ = Phase::greeting;
  greeting_since_ = now;
  heard_ = false;
  stream_ = {};
  joiners_.clear();
  // A server must not wait for the other ranks longer than this process does. At least 1 ms: 0 would be an expired
  // registration.
  const Nanos left_ms = deadline_ == never ? std::numeric_limits<uint32_t>::max() : (deadline_ - now) / millisecond;
  hello_.remaining_ms = static_cast<uint32_t>(std::clamp<Nanos>(left_ms, 1, std::numeric_limits<uint32_t>::max()));
  return encode(hello_);
}

void Client::received(ByteView bytes, Nanos) {
  if (phase_ != Phase::greeting && phase_ != Phase::waiting && phase_ != Phase::attending) return;
  heard_ = heard_ || !bytes.empty();
  stream_.append(bytes);
  while (phase_ == Phase::greeting || phase_ == Phase::waiting || phase_ == Phase::attending) {
    const auto message = stream_.next(message_bytes_max);
    if (message) {
      on_message(*message);
      continue;
    }
    if (stream_.fault() == StreamFault::magic && phase_ == Phase::greeting) {
      fail(Phase::unauthenticated, {Code::unavailable, guess_program(stream_.start())});
    } else if (stream_.fault() != StreamFault::none) {
      fail(Phase::refused,
           {Code::corrupt, std::string("the stream from the rendezvous server broke: ") + name(stream_.fault())});
    }
    return;
  }
}

void Client::on_message(const Message& message) {
  if (message.kind == Kind::refused) return fail(Phase::refused, decode_refused(message.payload));
  if (message.protocol != protocol_version) {
    return fail(
        Phase::refused,
        {Code::unsupported, "the rendezvous server speaks protocol " + std::to_string(message.protocol) + ", this process " +
                                std::to_string(protocol_version) + " (unisono " + library_version + ")"});
  }
  if (message.kind == Kind::welcome && phase_ == Phase::greeting) {
    const auto welcome = decode_welcome(message.payload);
    if (!welcome.ok()) return fail(Phase::refused, welcome.status());
    server_ = welcome->server;
    phase_ = hello_.role == Role::attending_member ? Phase::attending : Phase::waiting;
    ++times_registered_;
    return;
  }
  if (message.kind == Kind::table && phase_ == Phase::waiting) {
    auto roster = decode_roster(message.payload);
    if (!roster.ok()) return fail(Phase::refused, roster.status());
    const auto rank = roster->rank_of(hello_.member.id);
    const bool wrong_place =
        hello_.role == Role::member && (rank != hello_.member.rank || roster->members.size() != hello_.world_size);
    if (!rank || wrong_place)
      return fail(Phase::refused, {Code::corrupt, "the rendezvous server's table does not hold this process at its rank"});
    const bool attends = hello_.role == Role::member && *rank == 0;
    roster_ = std::move(*roster);
    phase_ = attends ? Phase::attending : Phase::met;
    if (attends) (void)attend(*roster_, 0);
    return;
  }
  if (message.kind == Kind::joiner && phase_ == Phase::attending) {
    auto member = decode_joiner(message.payload);
    if (!member.ok()) return fail(Phase::refused, member.status());
    if (joiners_.size() < joiners_known_max) joiners_[member->id] = std::move(*member);
    return;
  }
  if (message.kind == Kind::joiner_gone && phase_ == Phase::attending) {
    const auto id = decode_joiner_gone(message.payload);
    if (!id.ok()) return fail(Phase::refused, id.status());
    joiners_.erase(*id);
    return;
  }
  fail(phase_ == Phase::greeting ? Phase::unauthenticated : Phase::refused,
       {Code::corrupt,
        "a rendezvous message of kind " + std::to_string(static_cast<int>(message.kind)) + " that no server sends now"});
}

void Client::fail(Phase phase, Status why) {
  phase_ = phase;
  error_ = std::move(why);
}

bool Client::disconnected() {
  if (phase_ != Phase::met && phase_ != Phase::refused && phase_ != Phase::unauthenticated) phase_ = Phase::apart;
  joiners_.clear();
  return heard_;
}

std::optional<Bytes> Client::attend(const Roster& roster, Rank self) {
  hello_.role = Role::attending_member;
  hello_.epoch = roster.epoch;
  hello_.key = roster.key;
  hello_.world_size = static_cast<uint32_t>(roster.members.size());
  hello_.remaining_ms = 0;
  hello_.member.rank = self;
  deadline_ = never;
  if (phase_ == Phase::attending) return encode(hello_);
  phase_ = Phase::apart;
  return std::nullopt;
}

std::vector<MemberRecord> Client::joiners() const {
  std::vector<MemberRecord> list;
  for (const auto& [id, member] : joiners_) list.push_back(member);
  return list;
}

std::optional<Bytes> Client::answer(const PeerId& joiner, const Result<Roster>& answer) {
  if (phase_ != Phase::attending || joiners_.erase(joiner) == 0) return std::nullopt;
  Answer message{.joiner = joiner, .status = answer.status(), .roster = {}};
  if (answer.ok()) message.roster = answer.value();
  return encode(message);
}

}  // namespace unisono::rendezvous
