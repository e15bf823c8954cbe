#include "elastic/round/round_owner.h"

#include <algorithm>
#include <cmath>

#include "wire/digest.h"

namespace unisono {
namespace {

// This many elements are decoded at a time. For 64 members, they fit into a second-level cache.
constexpr size_t tile_elements = 2 * part_unit;

const float* floats(ByteView bytes) { return reinterpret_cast<const float*>(bytes.data()); }

}  // namespace

RoundOwner::RoundOwner(const RoundRequest& request, const RoundFormat& format) : request_(request), format_(format) {
  for (uint32_t rank = 0; rank < request.self; ++rank) first_ += request.chunk_counts[rank];
  count_ = request.chunk_counts[request.self];
  for (uint32_t rank = 0; rank < request.members.size(); ++rank) {
    expected_[rank] = rank != request.self && request.members[rank].role != ElasticRole::reducer;
  }
}

bool RoundOwner::take(const Contribution& contribution, const SharedBuffer& message) {
  if (!expected_[contribution.author] || contribution.chunk < first_ + closed_ || contribution.chunk >= first_ + count_)
    return false;
  const uint32_t index = contribution.chunk - first_ - closed_;
  if (index >= format_.table.window()) return false;
  if (index >= open_.size()) open_.resize(index + 1);
  auto& open = open_[index];
  if (open.authors[contribution.author]) return false;
  open.authors.set(contribution.author);
  open.contributions.push_back({contribution, message});
  held_bytes_ += message.size();
  return true;
}

RankSet RoundOwner::pending() const {
  if (done()) return {};
  return open_.empty() ? expected_ : expected_ & ~open_.front().authors;
}

SharedBuffer RoundOwner::close_next(const RankSet& excused, ChunkResult& result) {
  if (done() || (pending() & ~excused).any()) return {};
  if (open_.empty()) open_.emplace_back();
  auto open = std::move(open_.front());
  open_.pop_front();
  const uint32_t chunk = first_ + closed_++;
  for (const auto& held : open.contributions) held_bytes_ -= held.message.size();
  if (!request_.states.empty()) add_own(chunk, open);
  auto message = reduce(chunk, open, result);
  if (done()) {
    mean_ = {};
    tiles_ = {};
  }
  return message;
}

// If the codec is lossy, this member's own values are encoded, too. Otherwise the lines of a grid would end with different
// bits.
void RoundOwner::add_own(uint32_t chunk, OpenChunk& open) {
  const auto& state = request_.states[chunk];
  Held own{
      .head = {.chunk = chunk, .author = request_.self, .weight = state.weight, .full = state.full, .sharers = state.sharers},
      .message = {}};
  if (!format_.contribute.is_plain() && state.weight > 0) {
    own.message = contribution_message(format_, own.head);
    kernels::BlockCounts counts;
    encode({.codec = format_.contribute,
            .elements = request_.values->chunk(chunk),
            .count = format_.table.count(chunk),
            .message = own.message.data() + contribution_head_bytes},
           counts);
  }
  open.authors.set(request_.self);
  open.contributions.push_back(std::move(own));
}

bool RoundOwner::is_full(const OpenChunk& open, const LineWeights& weights) const {
  if (!request_.line_complete) return false;
  for (uint32_t rank = 0; rank < request_.members.size(); ++rank) {
    const auto& member = request_.members[rank];
    if (member.in_layout && member.role != ElasticRole::reducer && !open.authors[rank]) return false;
  }
  // After the previous round, `sharers` members shared one weight equally: those that had the author's position in that round.
  // In this round, at least as many members must contribute at the author's position.
  return std::all_of(open.contributions.begin(), open.contributions.end(), [&](const Held& held) {
    return held.head.full && weights.sharers[held.head.author] >= held.head.sharers;
  });
}

// Averages the chunk without the contributions that are not finite. Such a contribution makes the variance NaN or infinite, and
// finite contributions never do. So the values themselves are searched only if the variance shows that there is something to
// find, and a chunk without faults costs no second pass over its values.
SharedBuffer RoundOwner::reduce(uint32_t chunk, OpenChunk& open, ChunkResult& result) {
  auto message = average(chunk, open, result);
  if (!std::isfinite(result.variance)) {
    for (const auto& held : open.contributions) open.refused[held.head.author] = !is_finite(chunk, held);
    std::erase_if(open.contributions, [&](const Held& held) { return open.refused[held.head.author]; });
    open.authors &= ~open.refused;
    message = average(chunk, open, result);
  }
  result.digest = digest64(result_elements(message));
  write_result_head(format_, result, message);
  return message;
}

// Returns true if no value of the contribution is NaN or infinite, as its receiver decodes it.
bool RoundOwner::is_finite(uint32_t chunk, const Held& held) {
  if (held.head.weight == 0) return true;
  const size_t count = format_.table.count(chunk);
  const float* values = held.message ? floats(contribution_elements(held.message)) : request_.values->chunk(chunk);
  if (!format_.contribute.is_plain()) {
    kernels::BlockCounts counts;
    tiles_.resize(std::max(tiles_.size(), count));
    decode({.codec = format_.contribute,
            .message = contribution_elements(held.message).data(),
            .elements = tiles_.data(),
            .count = count},
           counts);
    values = tiles_.data();
  }
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

// Writes the mean of the open contributions, without the digest.
SharedBuffer RoundOwner::average(uint32_t chunk, const OpenChunk& open, ChunkResult& result) {
  std::vector<LineMember> line(request_.members.size());
  for (uint32_t rank = 0; rank < line.size(); ++rank) line[rank].position = request_.members[rank].position;
  for (const auto& held : open.contributions) {
    line[held.head.author].weight = held.head.weight;
    line[held.head.author].contributed = true;
  }
  const auto weights = line_weights(line);
  result = {
      .chunk = chunk, .author = request_.self, .contributors = open.authors, .refused = open.refused, .total = weights.total};
  if (!result.is_void()) result.full = is_full(open, weights);
  auto message = result_message(format_, result);
  if (!result.is_void()) {
    const size_t count = format_.table.count(chunk);
    auto* const elements = message.data() + result_head_bytes;
    if (!format_.result.is_plain()) mean_.resize(std::min(format_.table.chunk_elements(), format_.table.elements()));
    float* const mean = format_.result.is_plain() ? reinterpret_cast<float*>(elements) : mean_.data();
    result.variance = format_.contribute.is_plain() ? mean_of_plain(line, weights, open, chunk, mean)
                                                    : mean_of_encoded(line, weights, open, chunk, mean);
    kernels::BlockCounts counts;
    if (!format_.result.is_plain())
      encode({.codec = format_.result, .elements = mean, .count = count, .message = elements}, counts);
  }
  return message;
}

double RoundOwner::mean_of_plain(const std::vector<LineMember>& line, const LineWeights& weights, const OpenChunk& open,
                                 uint32_t chunk, float* mean) const {
  std::vector<const float*> values(line.size());
  for (const auto& held : open.contributions) {
    if (held.head.weight == 0) continue;
    values[held.head.author] = held.message ? floats(contribution_elements(held.message)) : request_.values->chunk(chunk);
  }
  return line_mean(weights, line, values, format_.table.count(chunk), mean);
}

// Decodes and adds the elements piece by piece, so that decoded values are still in a cache when they are added.
double RoundOwner::mean_of_encoded(const std::vector<LineMember>& line, const LineWeights& weights, const OpenChunk& open,
                                   uint32_t chunk, float* mean) {
  const size_t count = format_.table.count(chunk);
  tiles_.resize(line.size() * tile_elements + std::min(format_.table.chunk_elements(), format_.table.elements()));
  std::vector<const float*> values(line.size());
  kernels::BlockCounts counts;
  double variance = 0;
  for (size_t first = 0; first < count; first += tile_elements) {
    const TaskPart part{first, std::min(tile_elements, count - first)};
    for (const auto& held : open.contributions) {
      if (held.head.weight == 0) continue;
      // decode() writes a piece at its offset in the whole chunk. In tiles_, the chunk of each member begins one piece further
      // than the chunk of the previous rank. The chunks overlap there, but the pieces that are in use at the same time do not.
      float* const whole = tiles_.data() + held.head.author * tile_elements;
      decode({.codec = format_.contribute,
              .message = contribution_elements(held.message).data(),
              .elements = whole,
              .count = count},
             counts, part);
      values[held.head.author] = whole + first;
    }
    variance += line_mean(weights, line, values, part.count, mean + first);
  }
  return variance;
}

}  // namespace unisono
