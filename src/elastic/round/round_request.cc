#include "elastic/round/round_request.h"

#include <numeric>
#include <string>

#include "elastic/round/round_messages.h"

namespace unisono {
namespace {

Status invalid(const std::string& what) { return {Code::invalid, "a round with " + what}; }

Status check_values(const RoundRequest& request) {
  const bool reducer = request.members[request.self].role == ElasticRole::reducer;
  const size_t elements = reducer ? 0 : request.table.elements(), chunks = reducer ? 0 : request.table.chunks();
  const auto given = request.values == nullptr ? ChunkTable() : request.values->table();
  if (given.elements() != elements || given.chunks() != chunks) {
    return invalid(std::to_string(given.elements()) + " elements in " + std::to_string(given.chunks()) + " chunks instead of " +
                   std::to_string(elements) + " in " + std::to_string(chunks));
  }
  if (request.states.size() != chunks)
    return invalid(std::to_string(request.states.size()) + " states instead of " + std::to_string(chunks));
  for (const auto& state : request.states) {
    if (!(state.weight >= 0 && state.weight <= contribution_weight_max))
      return invalid("weight " + std::to_string(state.weight));
    if (state.sharers < 1 || state.sharers > round_members_max)
      return invalid(std::to_string(state.sharers) + " sharers of a weight");
  }
  return {};
}

}  // namespace

Status check(const RoundRequest& request) {
  const size_t members = request.members.size();
  if (members < 2 || members > round_members_max) return invalid(std::to_string(members) + " members: 2 to 256 are possible");
  if (request.self >= members) return invalid("own rank " + std::to_string(request.self) + " of " + std::to_string(members));
  if (request.chunk_counts.size() != members)
    return invalid(std::to_string(request.chunk_counts.size()) + " chunk counts for " + std::to_string(members) + " members");
  const auto owned = std::accumulate(request.chunk_counts.begin(), request.chunk_counts.end(), uint64_t{0});
  if (owned != request.table.chunks())
    return invalid(std::to_string(owned) + " owned chunks of " + std::to_string(request.table.chunks()));
  for (size_t rank = 0; rank < members; ++rank) {
    const bool client = request.members[rank].role == ElasticRole::client;
    if (client && request.chunk_counts[rank] > 0)
      return invalid("chunks owned by rank " + std::to_string(rank) + ", which is a client");
  }
  if (auto status = request.times.check(); !status.ok()) return status;
  for (const Nanos timeout : {request.contribute_timeout, request.round_timeout}) {
    if (timeout < millisecond || timeout > timeout_max)
      return invalid("a timeout of " + std::to_string(timeout / 1000) + " us");
  }
  return check_values(request);
}

}  // namespace unisono
