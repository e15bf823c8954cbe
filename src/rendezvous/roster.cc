#include "rendezvous/roster.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/concat.h"
#include "base/hash.h"

namespace unisono {

std::string host_label(const MemberRecord& member) { return concat("host ", member.host, ", pid ", member.pid); }

std::string label(const MemberRecord& member) { return concat("rank ", member.rank, " (", host_label(member), ")"); }

std::optional<Rank> Roster::rank_of(const PeerId& id) const {
  for (const auto& member : members) {
    if (member.id == id) return member.rank;
  }
  return std::nullopt;
}

bool same_host(const MemberRecord& a, const MemberRecord& b) {
  return a.network == b.network && (a.network != 0 || a.host == b.host);
}

uint32_t ranks_beside(const Roster& roster, Rank self) {
  const auto& own = roster.members[self];
  const auto beside = [&](const MemberRecord& m) { return same_host(m, own) || (m.machine != 0 && m.machine == own.machine); };
  return static_cast<uint32_t>(std::count_if(roster.members.begin(), roster.members.end(), beside));
}

uint32_t hosts_per_machine(const Roster& roster) {
  std::map<uint64_t, uint32_t> hosts;
  uint32_t most = 1;
  for (const auto rank : hosts_of(roster)) {
    const auto machine = roster.members[rank].machine;
    if (machine != 0) most = std::max(most, ++hosts[machine]);
  }
  return most;
}

std::vector<Rank> hosts_of(const Roster& roster) {
  std::vector<Rank> hosts;
  const auto numbers = host_numbers(roster);
  for (Rank rank = 0; rank < numbers.size(); ++rank) {
    if (numbers[rank] == hosts.size()) hosts.push_back(rank);
  }
  return hosts;
}

std::vector<uint32_t> host_numbers(const Roster& roster) {
  std::map<std::pair<uint64_t, std::string_view>, uint32_t> known;
  std::vector<uint32_t> numbers;
  for (const auto& member : roster.members) {
    const std::string_view name = member.network == 0 ? member.host : std::string_view();
    numbers.push_back(known.try_emplace({member.network, name}, static_cast<uint32_t>(known.size())).first->second);
  }
  return numbers;
}

uint64_t digest(const Roster& roster) { return hash_of(encode(roster)); }

uint32_t wire_epoch(const Roster& roster) {
  const uint64_t mixed = mix64(digest(roster) ^ roster.epoch);
  const auto folded = static_cast<uint32_t>(mixed ^ (mixed >> 32));
  return folded == 0 ? 1 : folded;  // Epoch 0 is reserved for frames that belong to no epoch.
}

Status check_member(const MemberRecord& member) {
  if (member.host.size() > host_bytes_max) {
    return {Code::invalid, concat("host name of ", member.host.size(), " bytes; at most ", host_bytes_max)};
  }
  if (member.endpoints.size() > endpoints_max) {
    return {Code::invalid, concat(member.endpoints.size(), " endpoints; at most ", endpoints_max)};
  }
  for (const auto& endpoint : member.endpoints) {
    if (endpoint.size() > endpoint_bytes_max) {
      return {Code::invalid, concat("endpoint of ", endpoint.size(), " bytes; at most ", endpoint_bytes_max)};
    }
  }
  return {};
}

void write_member(ByteWriter& writer, const MemberRecord& member) {
  writer.write(member.id.low).write(member.id.high).write(member.rank).write(member.pid).write(member.machine);
  writer.write(member.network).write_string(member.host);
  writer.write(static_cast<uint32_t>(member.endpoints.size()));
  for (const auto& endpoint : member.endpoints) writer.write_string(endpoint);
}

bool read_member(ByteReader& reader, MemberRecord& member) {
  member.id.low = reader.read<uint64_t>();
  member.id.high = reader.read<uint64_t>();
  member.rank = reader.read<uint32_t>();
  member.pid = reader.read<int32_t>();
  member.machine = reader.read<uint64_t>();
  member.network = reader.read<uint64_t>();
  member.host = reader.read_string(host_bytes_max);
  const auto count = reader.read<uint32_t>();
  if (!reader.ok() || count > endpoints_max) return false;
  member.endpoints.clear();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) member.endpoints.push_back(reader.read_string(endpoint_bytes_max));
  return reader.ok();
}

void write_roster(ByteWriter& writer, const Roster& roster) {
  writer.write(roster.epoch).write(roster.key).write(static_cast<uint32_t>(roster.members.size()));
  for (const auto& member : roster.members) write_member(writer, member);
}

Bytes encode(const Roster& roster) {
  ByteWriter writer;
  write_roster(writer, roster);
  return std::move(writer).take();
}

Status read_roster(ByteReader& reader, Roster& roster) {
  roster.epoch = reader.read<uint32_t>();
  roster.key = reader.read<RosterKey>();
  const auto count = reader.read<uint32_t>();
  if (!reader.ok()) return {Code::corrupt, "roster: truncated"};
  if (count == 0 || count > world_size_max) return {Code::corrupt, concat("roster: ", count, " members")};
  roster.members.clear();
  std::vector<PeerId> ids;
  for (uint32_t rank = 0; rank < count; ++rank) {
    MemberRecord member;
    if (!read_member(reader, member)) return {Code::corrupt, concat("roster: member ", rank, " is truncated or above a limit")};
    if (member.rank != rank) return {Code::corrupt, concat("roster: member ", rank, " says rank ", member.rank)};
    ids.push_back(member.id);
    roster.members.push_back(std::move(member));
  }
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) return {Code::corrupt, "roster: one process twice"};
  return {};
}

Result<Roster> decode_roster(ByteView bytes) {
  ByteReader reader(bytes);
  Roster roster;
  if (auto status = read_roster(reader, roster); !status.ok()) return status;
  if (!reader.done()) return Status(Code::corrupt, concat("roster: ", reader.left(), " bytes too many"));
  return roster;
}

}  // namespace unisono
