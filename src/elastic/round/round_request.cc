#include "elastic/round/round_request.h"

#include <numeric>
#include <string>

#include "base/concat.h"
#include "elastic/round/round_messages.h"

namespace unisono {
namespace {

Status invalid(const std::string& what) { return {Code::invalid, "a round with " + what}; }

Status check_values(const RoundRequest& request) {
  const bool reducer = request.members[request.self].role == ElasticRole::reducer;
  const size_t elements = reducer ? 0 : request.table.elements(), chunks = reducer ? 0 : request.table.chunks();
  const auto given = request.values == nullptr ? ChunkTable() : request.values->table();
  if (given.elements() != elements || given.chunks() != chunks) {
    return invalid(concat(given.elements(), " elements in ", given.chunks(), " chunks instead of ", elements, " in ", chunks));
  }
  if (request.states.size() != chunks) return invalid(concat(request.states.size(), " states instead of ", chunks));
  for (const auto& state : request.states) {
    if (!(state.weight >= 0 && state.weight <= contribution_weight_max)) return invalid(concat("weight ", state.weight));
    if (state.sharers < 1 || state.sharers > round_members_max) return invalid(concat(state.sharers, " sharers of a weight"));
  }
  return {};
}

}  // namespace

Status check(const RoundRequest& request) {
  const size_t members = request.members.size();
  if (members < 2 || members > round_members_max) return invalid(concat(members, " members: 2 to 256 are possible"));
  if (request.self >= members) return invalid(concat("own rank ", request.self, " of ", members));
  if (request.chunk_counts.size() != members)
    return invalid(concat(request.chunk_counts.size(), " chunk counts for ", members, " members"));
  const auto owned = std::accumulate(request.chunk_counts.begin(), request.chunk_counts.end(), uint64_t{0});
  if (owned != request.table.chunks()) return invalid(concat(owned, " owned chunks of ", request.table.chunks()));
  for (size_t rank = 0; rank < members; ++rank) {
    const bool client = request.members[rank].role == ElasticRole::client;
    if (client && request.chunk_counts[rank] > 0) return invalid(concat("chunks owned by rank ", rank, ", which is a client"));
  }
  if (auto status = request.times.check(); !status.ok()) return status;
  for (const Nanos timeout : {request.contribute_timeout, request.round_timeout}) {
    if (timeout < millisecond || timeout > timeout_max) return invalid(concat("a timeout of ", timeout / 1000, " us"));
  }
  return check_values(request);
}

}  // namespace unisono
