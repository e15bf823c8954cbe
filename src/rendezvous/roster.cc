#include "rendezvous/roster.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "base/hash.h"

namespace unisono {

std::string place_of(const MemberRecord& member) { return "host " + member.host + ", pid " + std::to_string(member.pid); }

std::string label(const MemberRecord& member) { return "rank " + std::to_string(member.rank) + " (" + place_of(member) + ")"; }

std::optional<Rank> Roster::rank_of(const PeerId& id) const {
  for (const auto& member : members) {
    if (member.id == id) return member.rank;
  }
  return std::nullopt;
}

uint32_t ranks_beside(const Roster& roster, Rank self) {
  const auto& own = roster.members[self];
  const auto beside = [&](const MemberRecord& m) { return m.host == own.host || (m.machine != 0 && m.machine == own.machine); };
  return static_cast<uint32_t>(std::count_if(roster.members.begin(), roster.members.end(), beside));
}

uint32_t hosts_per_machine(const Roster& roster) {
  std::map<uint64_t, std::set<std::string_view>> hosts;
  size_t most = 1;
  for (const auto& member : roster.members) {
    if (member.machine == 0) continue;
    auto& there = hosts[member.machine];
    there.insert(member.host);
    most = std::max(most, there.size());
  }
  return static_cast<uint32_t>(most);
}

std::vector<std::string> hosts_of(const Roster& roster) {
  std::vector<std::string> hosts;
  for (const auto& member : roster.members) {
    if (std::find(hosts.begin(), hosts.end(), member.host) == hosts.end()) hosts.push_back(member.host);
  }
  return hosts;
}

uint64_t digest(const Roster& roster) { return hash_of(encode(roster)); }

uint32_t wire_epoch(const Roster& roster) {
  const uint64_t mixed = mix64(digest(roster) ^ roster.epoch);
  const auto folded = static_cast<uint32_t>(mixed ^ (mixed >> 32));
  return folded == 0 ? 1 : folded;  // 0 marks frames that belong to no epoch
}

Status check_member(const MemberRecord& member) {
  if (member.host.size() > host_bytes_max) {
    return {Code::invalid,
            "host name of " + std::to_string(member.host.size()) + " bytes; at most " + std::to_string(host_bytes_max)};
  }
  if (member.endpoints.size() > endpoints_max) {
    return {Code::invalid, std::to_string(member.endpoints.size()) + " endpoints; at most " + std::to_string(endpoints_max)};
  }
  for (const auto& endpoint : member.endpoints) {
    if (endpoint.size() > endpoint_bytes_max) {
      return {Code::invalid,
              "endpoint of " + std::to_string(endpoint.size()) + " bytes; at most " + std::to_string(endpoint_bytes_max)};
    }
  }
  return {};
}

void write_member(ByteWriter& writer, const MemberRecord& member) {
  writer.write(member.id.low).write(member.id.high).write(member.rank).write(member.pid).write(member.machine);
  writer.write_string(member.host);
  writer.write(static_cast<uint32_t>(member.endpoints.size()));
  for (const auto& endpoint : member.endpoints) writer.write_string(endpoint);
}

bool read_member(ByteReader& reader, MemberRecord& member) {
  member.id.low = reader.read<uint64_t>();
  member.id.high = reader.read<uint64_t>();
  member.rank = reader.read<uint32_t>();
  member.pid = reader.read<int32_t>();
  member.machine = reader.read<uint64_t>();
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
  if (!reader.ok()) return {Code::corrupt, "roster: cut"};
  if (count == 0 || count > world_size_max) return {Code::corrupt, "roster: " + std::to_string(count) + " members"};
  roster.members.clear();
  std::vector<PeerId> ids;
  for (uint32_t rank = 0; rank < count; ++rank) {
    MemberRecord member;
    if (!read_member(reader, member))
      return {Code::corrupt, "roster: member " + std::to_string(rank) + " is cut or over a limit"};
    if (member.rank != rank)
      return {Code::corrupt, "roster: member " + std::to_string(rank) + " says rank " + std::to_string(member.rank)};
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
  if (!reader.done()) return Status(Code::corrupt, "roster: " + std::to_string(reader.left()) + " bytes too many");
  return roster;
}

}  // namespace unisono
