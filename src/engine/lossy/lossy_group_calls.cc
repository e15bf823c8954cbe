// Announces lossy calls, and compares those of other ranks with this rank's. Data carries a hash of its call; the announcements
// say what differs.
#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "base/hash.h"
#include "engine/lossy/lossy_group.h"
#include "executor/call_text.h"

namespace unisono {

// Announces this rank's call to the other ranks, because datagrams do not describe it. If an equal call was announced recently,
// does nothing.
void LossyGroup::announce_call() {
  // Ranges have no header that names the codec, so the announcement must tell codecs apart.
  const auto codec = to_string(call_.geometry->cut().codec);
  const auto sizes = setup_.datagram_bytes | uint64_t{call_.request.shard_unit} << 32;
  const auto call = describe(call_.request, ScheduleKind::two_step, sizes ^ hash_of(std::as_bytes(std::span(codec))), world());
  const auto announced = std::span(announced_calls_).first(std::min<size_t>(announced_count_, announced_calls_.size()));
  const auto equal = std::ranges::find_if(announced, [&](const auto& each) { return each.equals(call); });
  if (equal != announced.end()) {
    own_call_ = *equal;
    own_call_.op = op_;
    return;
  }
  own_call_ = {.op = op_, .call = call, .text = call_text(call_.request, call, setup_.datagram_bytes, world())};
  announced_calls_[announced_count_++ % announced_calls_.size()] = own_call_;
  announce_to_all();
}

void LossyGroup::announce_to_all() {
  for (Rank rank = 0; setup_.announce_call && rank < world(); ++rank) {
    if (rank != setup_.datagrams.self && lost_[rank].ok()) setup_.announce_call(rank, own_call_);
  }
}

void LossyGroup::on_call(Rank from, AnnouncedCall call, Nanos now) {
  const auto distance = op_distance(call.op, op_);
  if (from < world() && distance < 0) return compare_past_call(from, call, now);
  if (from >= world() || distance > 1) return;
  auto& received = received_calls_[from][call.op & 1];
  received = {.call = std::move(call), .known = true};
  compare_call(from, now);
}

void LossyGroup::compare_call(Rank from, Nanos now) {
  const auto& received = received_calls_[from][op_ & 1];
  if (!running_ || current().done() || !received.known || received.call.op != op_) return;
  if (received.call.equals(own_call_.call)) return;
  announce_call_again();
  current().fail({Code::invalid, difference(from, received.call, own_call_)}, now);
}

std::string LossyGroup::difference(Rank from, const AnnouncedCall& theirs, const AnnouncedCall& ours) const {
  return announced_difference({.rank = from, .location = location(from), .call = theirs},
                              {.rank = setup_.datagrams.self, .call = ours});
}

void LossyGroup::compare_past_call(Rank from, const AnnouncedCall& call, Nanos now) {
  auto& own = past_calls_[call.op % past_calls_.size()];
  if (!own.known || own.call.op != call.op || own.call.equals(call.call)) return;
  own.known = false;  // The other rank may answer in the same way.
  if (setup_.announce_call && lost_[from].ok()) setup_.announce_call(from, own.call);
  violation_ = {Code::invalid,
                concat("the result of lossy operation ", call.op, " is wrong: ", difference(from, call, own.call))};
  if (running_ && !current().done()) current().fail(std::exchange(violation_, {}), now);
}

// Announces this rank's call again, because another rank makes a different call. That rank may know nothing of this call,
// because a call that equals an earlier one is not announced.
void LossyGroup::announce_call_again() {
  if (announced_again_ == op_ + 1) return;
  announced_again_ = op_ + 1;
  announce_to_all();
}

// Returns true if the header of this operation's data has the hash of another call. Sizes cannot show this if, for example,
// only the codecs differ. In a result of a sum, the field has its other meaning.
bool LossyGroup::is_of_other_call(const DatagramHeader& header) const {
  const bool has_hash = header.phase == 0 || call_.request.collective == Collective::all_gather;
  if (header.kind != DatagramKind::data || !has_hash) return false;
  return header.contributors != 0 && header.contributors != own_call_.mark();
}

// As long as the group has made one kind of call, data is as the method specifies it: without a hash. If the first calls
// differ, their announcements show it, or the next call does (compare_past_call). Calls that were announced before have hashes.
void LossyGroup::send_stream(const OutStream& stream) {
  auto marked = stream;
  marked.call = announced_count_ > 1 ? own_call_.mark() : 0;
  service_.send_stream(setup_.number, marked);
}

}  // namespace unisono
