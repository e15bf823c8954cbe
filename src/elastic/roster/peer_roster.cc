#include "elastic/roster/peer_roster.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/concat.h"
#include "base/random.h"

namespace unisono {

namespace {

constexpr size_t entries_per_part = 4;

enum Flag : uint8_t { proven_flag = 1, brief_flag = 2, all_flags = 3 };

uint64_t term_of(const PeerEntry& entry) {
  const uint64_t state = uint64_t{entry.incarnation} << 8 | static_cast<uint64_t>(entry.status);
  return mix64(entry.id.low ^ mix64(entry.id.high ^ mix64(state)));
}

std::pair<uint32_t, PeerStatus> precedence(const PeerEntry& entry) { return {entry.incarnation, entry.status}; }

bool read_facts(ByteReader& reader, PeerFacts& facts) {
  facts.counter = reader.read<uint64_t>();
  facts.name = reader.read_string(peer_name_bytes_max);
  const auto count = reader.read<uint8_t>();
  if (!reader.ok() || count > peer_addresses_max) return false;
  for (uint8_t i = 0; i < count; ++i) facts.addresses.push_back(reader.read_string(peer_address_bytes_max));
  const auto role = reader.read<uint8_t>();
  if (role > static_cast<uint8_t>(ElasticRole::reducer)) return false;
  facts.role = static_cast<ElasticRole>(role);
  facts.schema_hash = reader.read<uint64_t>();
  facts.bandwidth = reader.read<double>();
  facts.registered_step = reader.read<int64_t>();
  facts.finished_step = reader.read<int64_t>();
  facts.layout_version = reader.read<uint64_t>();
  facts.state_digest = reader.read<uint64_t>();
  return reader.ok();
}

bool possible(int64_t step) { return step >= -1 && step <= static_cast<int64_t>(step_number_max); }

}  // namespace

const char* name(PeerStatus status) {
  switch (status) {
    case PeerStatus::joining: return "joining";
    case PeerStatus::alive: return "alive";
    case PeerStatus::suspect: return "suspect";
    case PeerStatus::left: return "left";
    case PeerStatus::dead: return "dead";
  }
  return "unknown";
}

std::string label(const PeerEntry& entry) {
  return entry.facts.name + " (" + (entry.facts.addresses.empty() ? std::string("no address") : entry.facts.addresses.front()) +
         ')';
}

Status check_entry(const PeerEntry& entry) {
  const auto& facts = entry.facts;
  if (entry.id == PeerId{}) return {Code::invalid, "a peer whose id is zero"};
  if (entry.incarnation > incarnation_max) return {Code::invalid, concat("incarnation ", entry.incarnation)};
  if (facts.name.size() > peer_name_bytes_max)
    return {Code::invalid, concat("a name of ", facts.name.size(), " bytes: at most ", peer_name_bytes_max)};
  if (facts.addresses.size() > peer_addresses_max)
    return {Code::invalid, concat(facts.addresses.size(), " addresses: at most ", peer_addresses_max)};
  for (const auto& address : facts.addresses) {
    if (address.empty() || address.size() > peer_address_bytes_max)
      return {Code::invalid, concat("an address of ", address.size(), " bytes: 1 to ", peer_address_bytes_max)};
  }
  if (!std::isfinite(facts.bandwidth)) return {Code::invalid, "a bandwidth that is not a number"};
  if (!possible(facts.registered_step) || !possible(facts.finished_step) || facts.layout_version > step_number_max)
    return {Code::invalid, "an averaging step or layout version out of range"};
  return {};
}

void write_claim(ByteWriter& writer, const PeerClaim& claim) {
  const auto& entry = claim.entry;
  const auto& facts = entry.facts;
  writer.write(entry.id.low).write(entry.id.high).write(entry.incarnation).write(static_cast<uint8_t>(entry.status));
  writer.write(static_cast<uint8_t>((claim.proven ? proven_flag : 0) | (claim.brief ? brief_flag : 0))).write(claim.gone_ms);
  if (claim.brief) return;
  writer.write(facts.counter).write_string(facts.name).write(static_cast<uint8_t>(facts.addresses.size()));
  for (const auto& address : facts.addresses) writer.write_string(address);
  writer.write(static_cast<uint8_t>(facts.role)).write(facts.schema_hash).write(facts.bandwidth);
  writer.write(facts.registered_step).write(facts.finished_step).write(facts.layout_version).write(facts.state_digest);
}

bool read_claim(ByteReader& reader, PeerClaim& claim) {
  auto& entry = claim.entry;
  entry.id.low = reader.read<uint64_t>();
  entry.id.high = reader.read<uint64_t>();
  entry.incarnation = reader.read<uint32_t>();
  const auto status = reader.read<uint8_t>();
  const auto flags = reader.read<uint8_t>();
  claim.gone_ms = reader.read<uint32_t>();
  if (!reader.ok() || status > static_cast<uint8_t>(PeerStatus::dead) || flags > all_flags) return false;
  entry.status = static_cast<PeerStatus>(status);
  claim.proven = (flags & proven_flag) != 0;
  claim.brief = (flags & brief_flag) != 0;
  if (!is_gone(entry.status) && claim.gone_ms != 0) return false;
  if (claim.proven && entry.status != PeerStatus::dead) return false;
  return (claim.brief || read_facts(reader, entry.facts)) && check_entry(entry).ok();
}

MergeOutcome PeerRoster::merge(const PeerClaim& claim, Nanos now) {
  using Effect = MergeOutcome::Effect;
  const auto& theirs = claim.entry;
  const bool gone = is_gone(theirs.status);
  const Nanos gone_at = now - Nanos{claim.gone_ms} * millisecond;
  const bool late = gone && now - gone_at >= forget_dead_;
  auto* known = record(theirs.id);
  if (known == nullptr) {
    if (claim.brief) return {Effect::none, theirs.status, theirs.status};
    if (late) return {Effect::late, theirs.status, theirs.status};
    if (!gone && full()) return {Effect::full, theirs.status, theirs.status};
    auto& record = new_record(theirs.id);
    record.entry = theirs;
    record.gone_at = gone_at;
    record.proven = claim.proven;
    enter(record);
    drop_surplus();
    return {Effect::added, theirs.status, theirs.status};
  }
  auto& record = *known;
  const auto before = record.entry.status;
  const bool newer = precedence(theirs) > precedence(record.entry);
  if (newer && late) return {Effect::late, before, before};
  if (newer && !gone && is_gone(before) && full()) return {Effect::full, before, before};
  const bool newer_facts = !claim.brief && (theirs.facts <=> record.entry.facts) > 0;
  const bool same_death = gone && precedence(theirs) == precedence(record.entry);
  // This is the usual case: the same claim has arrived before.
  if (!newer && !newer_facts && !same_death) return {Effect::none, before, before};
  withdraw(record);
  if (newer_facts) record.entry.facts = theirs.facts;
  if (newer) {
    record.entry.incarnation = theirs.incarnation;
    record.entry.status = theirs.status;
    record.gone_at = gone_at;
    record.proven = claim.proven;
  } else if (same_death) {
    record.gone_at = std::min(record.gone_at, gone_at);
    record.proven = record.proven || claim.proven;
  }
  enter(record);
  drop_surplus();
  return {newer         ? Effect::status
          : newer_facts ? Effect::facts
                        : Effect::none,
          before, newer ? theirs.status : before, newer_facts};
}

void PeerRoster::enter(Record& record) {
  const auto& entry = record.entry;
  const bool gone = is_gone(entry.status);
  const bool reachable = !gone && entry.facts.role != ElasticRole::client;
  put(record, present_list, !gone);
  put(record, reachable_list, reachable);
  put(record, keepers_list, reachable && entry.status != PeerStatus::joining);
  put(record, dead_list, entry.status == PeerStatus::dead);
  if (gone) gone_.emplace(record.gone_at, entry.id);
  else sum_of(entry.id) += term_of(entry);
}

void PeerRoster::withdraw(const Record& record) {
  if (is_gone(record.entry.status)) gone_.erase({record.gone_at, record.entry.id});
  else sum_of(record.entry.id) -= term_of(record.entry);
}

void PeerRoster::put(Record& record, List list, bool wanted) {
  auto& position = record.positions[list];
  auto& ids = lists_[list];
  if (wanted == (position != not_in_list)) return;
  if (list == keepers_list) ++keepers_version_;
  if (wanted) {
    position = static_cast<uint32_t>(ids.size());
    ids.push_back(record.entry.id);
    return;
  }
  const auto last = ids.back();
  ids[position] = last;
  auto* moved = this->record(last);
  UNISONO_CHECK(moved != nullptr);
  moved->positions[list] = position;
  ids.pop_back();
  position = not_in_list;
}

void PeerRoster::drop_surplus() {
  while (gone_.size() > max_peers_) erase(gone_.begin()->second);
}

void PeerRoster::erase(PeerId id) {
  const auto slot = slots_.find(id);
  UNISONO_CHECK(slot != PeerSlots::none);
  auto& record = records_[slot];
  withdraw(record);
  for (uint8_t list = 0; list < list_count; ++list) put(record, static_cast<List>(list), false);
  unused_.push_back(slot);
  slots_.erase(id);
  record = {};
}

void PeerRoster::forget(Nanos now) {
  while (next_forget() <= now) erase(gone_.begin()->second);
}

Nanos PeerRoster::next_forget() const { return gone_.empty() ? never : gone_.begin()->first + forget_dead_; }

const PeerRoster::Record* PeerRoster::record(const PeerId& id) const {
  const auto slot = slots_.find(id);
  return slot == PeerSlots::none ? nullptr : &records_[slot];
}

PeerRoster::Record& PeerRoster::new_record(const PeerId& id) {
  auto slot = static_cast<uint32_t>(records_.size());
  if (unused_.empty()) {
    records_.emplace_back();
  } else {
    slot = unused_.back();
    unused_.pop_back();
  }
  slots_.insert(id, slot);
  return records_[slot];
}

const PeerEntry* PeerRoster::find(const PeerId& id) const {
  const auto* known = record(id);
  return known == nullptr ? nullptr : &known->entry;
}

bool PeerRoster::is_keeper(const PeerId& id) const {
  const auto* known = record(id);
  return known != nullptr && known->positions[keepers_list] != not_in_list;
}

bool PeerRoster::gone(const PeerId& id) const {
  const auto* entry = find(id);
  return entry != nullptr && is_gone(entry->status);
}

PeerClaim PeerRoster::claim_of(const Record& record, bool brief, Nanos now) {
  PeerClaim claim{
      .entry = {record.entry.id, record.entry.incarnation, record.entry.status, {}}, .proven = record.proven, .brief = brief};
  if (!brief) claim.entry.facts = record.entry.facts;
  if (is_gone(record.entry.status))
    claim.gone_ms = static_cast<uint32_t>(std::max<Nanos>(now - record.gone_at, 0) / millisecond);
  return claim;
}

const PeerRoster::Record& PeerRoster::record_of(const PeerId& id) const {
  const auto* known = record(id);
  UNISONO_CHECK(known != nullptr);
  return *known;
}

PeerClaim PeerRoster::claim_of(const PeerId& id, Nanos now) const { return claim_of(record_of(id), false, now); }
PeerClaim PeerRoster::brief_claim_of(const PeerId& id, Nanos now) const { return claim_of(record_of(id), true, now); }

std::vector<PeerClaim> PeerRoster::claims(Nanos now) const { return claims_beside({}, now); }

std::vector<PeerClaim> PeerRoster::claims_beside(const std::vector<uint64_t>& parts, Nanos now) const {
  const auto own = this->parts(parts.size());
  std::vector<std::pair<PeerId, uint32_t>> chosen;
  slots_.for_each([&](const PeerId& id, uint32_t slot) {
    const auto part = parts.empty() ? 0 : part_of(id, parts.size());
    if (parts.empty() || own[part] != parts[part]) chosen.emplace_back(id, slot);
  });
  std::ranges::sort(chosen);
  std::vector<PeerClaim> claims;
  claims.reserve(chosen.size());
  for (const auto& [id, slot] : chosen) claims.push_back(claim_of(records_[slot], false, now));
  return claims;
}

uint64_t PeerRoster::sum() const { return std::accumulate(sums_.begin(), sums_.end(), uint64_t{0}); }

std::vector<uint64_t> PeerRoster::parts() const {
  const auto count = std::min(std::bit_floor(slots_.size() / entries_per_part), roster_parts_max);
  return parts(count > 1 ? count : 0);
}

// Returns the roster's sum in `count` parts. `count` and sums_.size() are powers of two, so each returned part is the sum of
// several entries of sums_.
std::vector<uint64_t> PeerRoster::parts(size_t count) const {
  std::vector<uint64_t> parts(count);
  for (size_t part = 0; count > 0 && part < sums_.size(); ++part) parts[part % count] += sums_[part];
  return parts;
}

}  // namespace unisono
