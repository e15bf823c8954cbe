#include "elastic/layout/record_holders.h"

#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "base/random.h"

namespace unisono {

namespace {

struct Scored {
  uint64_t score = 0;
  PeerId id;
  bool operator<(const Scored& other) const { return score != other.score ? score > other.score : pid64(id) < pid64(other.id); }
};

std::vector<PeerId> best(std::string_view key, std::span<const PeerId> peers, size_t count) {
  const auto hash = fnv1a64(key);
  std::vector<Scored> scored;
  scored.reserve(peers.size());
  for (const auto& peer : peers) scored.push_back({mix64(hash ^ pid64(peer)), peer});
  count = std::min(count, scored.size());
  std::partial_sort(scored.begin(), scored.begin() + static_cast<ptrdiff_t>(count), scored.end());
  std::vector<PeerId> ordered;
  ordered.reserve(count);
  for (size_t i = 0; i < count; ++i) ordered.push_back(scored[i].id);
  return ordered;
}

}  // namespace

uint64_t fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char letter : text) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001b3ull;
  return hash;
}

uint64_t holder_score(std::string_view key, const PeerId& peer) { return mix64(fnv1a64(key) ^ pid64(peer)); }

std::vector<PeerId> by_score(std::string_view key, std::span<const PeerId> peers) { return best(key, peers, peers.size()); }

std::vector<PeerId> record_holders(std::string_view key, std::span<const PeerId> peers) {
  return best(key, peers, record_holders_max);
}

std::string layout_key(std::string_view run, uint64_t version) { return concat("layout/", run, '/', version); }

std::string slot_key(std::string_view run, const SlotName& slot) {
  return concat("seat/", run, '/', slot.layout_version, '/', slot.step, '/', slot.round, '/', slot.line);
}

std::string to_string(const SlotName& slot) {
  return concat("averaging step ", slot.step, ", round ", slot.round, ", line ", slot.line, " of layout ", slot.layout_version);
}

}  // namespace unisono
