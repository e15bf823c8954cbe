#include "rendezvous/rendezvous_client.h"

#include <algorithm>
#include <limits>

#include "base/concat.h"

namespace unisono::rendezvous {

namespace {
constexpr size_t joiners_known_max = 256;

bool expects_messages(Client::Phase phase) {
  using Phase = Client::Phase;
  return phase == Phase::greeting || phase == Phase::waiting || phase == Phase::linking || phase == Phase::attending;
}
}  // namespace

Bytes Client::connected(Nanos now) {
  phase_ = Phase::greeting;
  greeting_since_ = now;
  received_any_ = false;
  stream_ = {};
  joiners_.clear();
  // Tell the server how long this process will still wait, because the server does not wait longer for the other ranks. The
  // time is at least 1 ms, because with 0 the registration would expire at once.
  const Nanos left_ms = deadline_ == never ? std::numeric_limits<uint32_t>::max() : (deadline_ - now) / millisecond;
  hello_.remaining_ms = static_cast<uint32_t>(std::clamp<Nanos>(left_ms, 1, std::numeric_limits<uint32_t>::max()));
  return encode(hello_);
}

void Client::received(ByteView bytes, Nanos) {
  if (!expects_messages(phase_)) return;
  received_any_ = received_any_ || !bytes.empty();
  stream_.append(bytes);
  while (expects_messages(phase_)) {
    const auto message = stream_.next(message_bytes_max);
    if (message) {
      on_message(*message);
      continue;
    }
    if (stream_.fault() == StreamFault::magic && phase_ == Phase::greeting) {
      fail(Phase::unauthenticated, {Code::unavailable, guess_program(stream_.start())});
    } else if (stream_.fault() != StreamFault::none) {
      fail(Phase::refused, {Code::corrupt, std::string("the rendezvous server sent malformed data: ") + name(stream_.fault())});
    }
    return;
  }
}

void Client::on_message(const Message& message) {
  if (message.kind == Kind::refused) return fail(Phase::refused, decode_refused(message.payload));
  if (message.protocol != protocol_version) {
    return fail(Phase::refused,
                {Code::unsupported, concat("the rendezvous server speaks protocol ", message.protocol, ", this process ",
                                           protocol_version, " (unisono ", library_version, ")")});
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
    const bool wrong_rank =
        hello_.role == Role::member && (rank != hello_.member.rank || roster->members.size() != hello_.world_size);
    if (!rank || wrong_rank)
      return fail(Phase::refused, {Code::corrupt, "the rendezvous server's table does not list this process at its rank"});
    const bool attends = hello_.role == Role::member && *rank == 0;
    roster_ = std::move(*roster);
    forming_ = hello_.role == Role::member;
    phase_ = attends ? Phase::attending : forming_ ? Phase::linking : Phase::met;
    if (attends) (void)attend(*roster_, 0);
    return;
  }
  if (message.kind == Kind::failed && phase_ == Phase::attending) {
    if (forming_) formation_error_ = decode_refused(message.payload);
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
       {Code::corrupt, concat("the rendezvous server sent an unexpected message of kind ", static_cast<int>(message.kind))});
}

void Client::fail(Phase phase, Status why) {
  phase_ = phase;
  error_ = std::move(why);
}

Status Client::formation_error() const {
  if (!forming_) return {};
  return phase_ == Phase::refused ? error_ : formation_error_;
}

std::optional<Bytes> Client::joined() {
  if (!std::exchange(forming_, false)) return std::nullopt;
  const bool told = phase_ == Phase::linking || phase_ == Phase::attending;
  if (phase_ == Phase::linking) phase_ = Phase::leaving;
  return told ? std::optional(encode_joined()) : std::nullopt;
}

std::optional<Bytes> Client::failed(const Status& why) const {
  const bool registered = phase_ == Phase::waiting && hello_.role == Role::member;
  const bool told = registered || (forming_ && (phase_ == Phase::linking || phase_ == Phase::attending));
  return told ? std::optional(encode_failed(why)) : std::nullopt;
}

bool Client::disconnected() {
  if (phase_ == Phase::linking || phase_ == Phase::leaving) phase_ = Phase::met;
  if (phase_ != Phase::met && phase_ != Phase::refused && phase_ != Phase::unauthenticated) phase_ = Phase::unconnected;
  joiners_.clear();
  return received_any_;
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
  phase_ = Phase::unconnected;
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
