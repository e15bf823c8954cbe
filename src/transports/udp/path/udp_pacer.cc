#include "transports/udp/path/udp_pacer.h"

#include <algorithm>
#include <bit>

namespace unisono {

namespace {
constexpr int64_t billion = 1'000'000'000;
}

TokenBucket::TokenBucket(uint64_t rate, uint32_t datagram_bytes) {
  set(rate, datagram_bytes, 0);
  credit_ = cap_;
}

void TokenBucket::set(uint64_t rate, uint32_t datagram_bytes, Nanos now) {
  credit_ = credit(now);
  updated_ = std::max(updated_, now);
  rate_ = std::clamp<uint64_t>(rate, 1, rate_max);
  // A rate in bytes/s times a time in ns gives a number of billionths of a byte.
  cap_ = std::max(2 * int64_t{datagram_bytes} * billion, static_cast<int64_t>(rate_) * burst_time);
  credit_ = std::min(credit_, cap_);
}

int64_t TokenBucket::credit(Nanos now) const {
  if (now <= updated_) return credit_;
  const auto rate = static_cast<int64_t>(rate_);
  const Nanos full_after = (cap_ - credit_) / rate + 1;
  return now - updated_ >= full_after ? cap_ : std::min(cap_, credit_ + (now - updated_) * rate);
}

int64_t TokenBucket::needed(size_t bytes) const {
  return bytes >= static_cast<size_t>(cap_ / billion) ? cap_ : static_cast<int64_t>(bytes) * billion;
}

bool TokenBucket::take(size_t bytes, Nanos now) {
  if (credit(now) < needed(bytes)) return false;
  spend(bytes, now);
  return true;
}

void TokenBucket::spend(size_t bytes, Nanos now) {
  credit_ = credit(now);
  updated_ = std::max(updated_, now);
  const auto debt_max = std::max(cap_, static_cast<int64_t>(debt_bytes_max) * billion);
  credit_ = std::max(credit_ - static_cast<int64_t>(std::min(bytes, 2 * debt_bytes_max)) * billion, -debt_max);
}

Nanos TokenBucket::ready_at(size_t bytes, Nanos now) const {
  const int64_t missing = needed(bytes) - credit(now);
  if (missing <= 0) return now;
  const auto rate = static_cast<int64_t>(rate_);
  return std::max(now, updated_) + (missing + rate - 1) / rate;
}

Pacer::Pacer(const PacerSettings& settings, size_t destinations) : settings_(settings), rank_(1, settings.datagram_bytes) {
  grow(destinations);
}

void Pacer::grow(size_t destinations) {
  while (lanes_.size() < destinations) lanes_.push_back({.bucket{settings_.destination_rate, settings_.datagram_bytes}});
  open_.resize((lanes_.size() + 63) / 64);
  blocked_.resize(open_.size());
  find_largest_rate();
  rank_ = TokenBucket(rank_rate(), settings_.datagram_bytes);
}

void Pacer::want(size_t destination, uint32_t bytes) {
  auto& lane = lanes_[destination];
  if (lane.wanted == bytes) return;
  lane.wanted = bytes;
  put(blocked_, destination, false);
  put(open_, destination, bytes > 0);
}

void Pacer::set_rate(size_t destination, uint64_t rate, Nanos now) {
  auto& lane = lanes_[destination];
  if (lane.bucket.rate() == rate) return;
  lane.bucket.set(rate, settings_.datagram_bytes, now);
  put(blocked_, destination, false);
  put(open_, destination, lane.wanted > 0);
  find_largest_rate();
  rank_.set(rank_rate(), settings_.datagram_bytes, now);
}

void Pacer::set_datagram_bytes(uint32_t bytes, Nanos now) {
  settings_.datagram_bytes = bytes;
  for (auto& lane : lanes_) lane.bucket.set(lane.bucket.rate(), bytes, now);
  rank_.set(rank_rate(), bytes, now);
}

void Pacer::set_rate_limit(uint64_t rate, Nanos now) {
  settings_.rate_limit = rate;
  rank_.set(rank_rate(), settings_.datagram_bytes, now);
}

void Pacer::set_rank_rate(uint64_t rate, Nanos now) {
  if (rank_max_ == rate) return;
  rank_max_ = rate;
  rank_.set(rank_rate(), settings_.datagram_bytes, now);
}

uint64_t Pacer::rank_rate() const {
  const auto rate = settings_.rate_limit > 0 ? settings_.rate_limit : largest_rate();
  return rank_max_ > 0 ? std::min(rate, rank_max_) : rate;
}

void Pacer::find_largest_rate() {
  largest_rate_ = 0;
  for (const auto& lane : lanes_) largest_rate_ = std::max(largest_rate_, lane.bucket.rate());
}

std::optional<size_t> Pacer::next(Nanos now) {
  if (now >= unblock_at_) unblock(now);
  while (const auto found = first_open(turn_)) {
    auto& lane = lanes_[*found];
    lane.blocked_until = lane.bucket.ready_at(lane.wanted, now);
    if (lane.blocked_until <= now) {
      if (turn_ != *found) turn_used_ = 0;
      turn_ = *found;
      if (rank_.ready_at(lane.wanted, now) > now) return std::nullopt;
      return found;
    }
    put(open_, *found, false);
    put(blocked_, *found, true);
    unblock_at_ = std::min(unblock_at_, lane.blocked_until);
  }
  return std::nullopt;
}

void Pacer::sent(size_t destination, size_t bytes, Nanos now) {
  spend(destination, bytes, now);
  turn_used_ += bytes;
  if (turn_used_ + settings_.datagram_bytes <= turn_bytes()) return;
  turn_ = destination + 1 < lanes_.size() ? destination + 1 : 0;
  turn_used_ = 0;
}

uint64_t Pacer::turn_bytes() const {
  return std::min<uint64_t>(turn_bytes_max, rank_.rate() / static_cast<uint64_t>(second / turn_time));
}

void Pacer::spend(size_t destination, size_t bytes, Nanos now) {
  lanes_[destination].bucket.spend(bytes, now);
  rank_.spend(bytes, now);
}

Nanos Pacer::ready_at(Nanos now) {
  if (next(now)) return now;
  // next() has found no destination. If a lane (the state of one destination) is still open, it waits only for the rank's
  // tokens.
  if (const auto found = first_open(turn_)) return rank_.ready_at(lanes_[*found].wanted, now);
  return unblock_at_;
}

// Moves those blocked lanes that have tokens again to the open lanes. It is called when the first of them may send, so at most
// once per datagram.
void Pacer::unblock(Nanos now) {
  unblock_at_ = never;
  for (size_t word = 0; word < blocked_.size(); ++word) {
    for (uint64_t left = blocked_[word]; left != 0; left &= left - 1) {
      const size_t destination = word * 64 + static_cast<size_t>(std::countr_zero(left));
      if (lanes_[destination].blocked_until > now) {
        unblock_at_ = std::min(unblock_at_, lanes_[destination].blocked_until);
        continue;
      }
      put(blocked_, destination, false);
      put(open_, destination, true);
    }
  }
}

std::optional<size_t> Pacer::first_open(size_t from) const {
  const size_t words = open_.size();
  // The word that contains `from` is looked at twice: in the first step at its bits from `from` on, and in the last step at the
  // bits before `from`.
  for (size_t step = 0; step <= words; ++step) {
    const size_t word = (from / 64 + step) % std::max<size_t>(words, 1);
    uint64_t bits = words == 0 ? 0 : open_[word];
    const uint64_t upper = ~uint64_t{0} << (from % 64);
    if (step == 0) bits &= upper;
    if (step == words) bits &= ~upper;
    if (bits != 0) return word * 64 + static_cast<size_t>(std::countr_zero(bits));
  }
  return std::nullopt;
}

void Pacer::put(std::vector<uint64_t>& set, size_t destination, bool in) {
  const uint64_t bit = uint64_t{1} << (destination % 64);
  if (in) set[destination / 64] |= bit;
  else set[destination / 64] &= ~bit;
}

}  // namespace unisono
