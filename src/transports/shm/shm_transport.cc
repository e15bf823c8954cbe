#include "transports/shm/shm_transport.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/concat.h"
#include "wire/checksum.h"

namespace unisono {
namespace {

using shm::Purpose;
using shm::SlotKind;

constexpr uint32_t small_slot_bytes = 4096;  // One page. Short frames usually have at most 1 KiB.
// In measurements, 1 MiB was the fastest value. Larger values were slower. The value 512 KiB was slower in one case (payloads
// of 64 KiB between two ranks), and as fast in all other cases.
constexpr uint64_t slots_in_turn_bytes = 1u << 20;
constexpr uint32_t small_per_large = 4;  // A peer may hold this many times as many small slots as large slots.
// A piece is small enough that the sender and the receiver can work on different pieces in their caches.
constexpr uint32_t piece_bytes = 128u << 10;
constexpr uint32_t guaranteed_large = 2;           // The sender fills one slot while the receiver reads the other.
constexpr uint32_t frames_per_link_and_poll = 16;  // limited so that one busy peer cannot delay the others
// The sockets are checked once per this time while the process polls, so a peer's death is noticed at most this much later. A
// system call in each poll would cost more than the poll itself.
constexpr Nanos sockets_interval = 100 * microsecond;
// The sockets are also checked after this many polls, in case the caller's `now` does not advance.
constexpr uint32_t polls_per_check = 4096;
constexpr Nanos overflow_interval = 10 * millisecond;

uint64_t handle_of(uint32_t ref) { return uint64_t{1} << 32 | ref; }

shm::Geometry geometry_of(const ShmOptions& options) {
  const uint64_t wanted = options.address_bytes_max / std::max(options.slot_bytes, 1u);
  shm::Geometry geometry;
  geometry.regions = options.peers_max;
  geometry.small_bytes = small_slot_bytes;
  geometry.small_slots = options.peers_max * 2 * guaranteed_large * small_per_large * 2;
  geometry.large_bytes = options.slot_bytes;
  geometry.piece_bytes = std::min(piece_bytes, options.slot_bytes);
  geometry.large_slots = static_cast<uint32_t>(std::clamp<uint64_t>(wanted, options.peers_max * 2 * guaranteed_large, 65536));
  // One peer can hold this many slots. The release ring never contains more unread entries than this.
  const uint32_t held_max = options.slots_per_peer * 2 * (1 + small_per_large);
  geometry.release_entries = std::bit_ceil(std::max(held_max, 16u));
  // The ring has a cell for each slot that can be held, and as many cells for frames without a payload.
  geometry.ring_cells = std::bit_ceil(std::max(held_max * 2, 16u));
  return geometry;
}

}  // namespace

Result<std::unique_ptr<ShmTransport>> ShmTransport::make(const ShmOptions& options) {
  const bool in_range = options.peers_max >= 1 && options.peers_max <= shm::regions_max &&
                        options.slots_per_peer >= guaranteed_large && options.slots_per_peer <= 128 &&
                        options.slot_bytes >= 4096 && options.slot_bytes <= payload_bytes_max;
  if (!in_range || options.slot_bytes % 64 != 0) {
    return Status(Code::invalid,
                  concat("shm: peers_max ", options.peers_max, " (1 to ", shm::regions_max, "), slots_per_peer ",
                         options.slots_per_peer, " (", guaranteed_large, " to 128) or slot_bytes ", options.slot_bytes,
                         " (4096 to ", payload_bytes_max, ", a multiple of 64) is out of range"));
  }
  const shm::Geometry geometry = geometry_of(options);
  auto where = shm::host_id();
  if (!where) return where.status();
  auto arena = shm::Arena::make(geometry);
  if (!arena) return arena.status();
  auto acceptor = shm::Acceptor::make(options.self);
  if (!acceptor) return acceptor.status();
  std::unique_ptr<ShmTransport> transport(
      new ShmTransport(options, std::move(*arena), std::move(*acceptor), "shm://" + *where + "/"));
  if (Status status = transport->open_handles(); !status.ok()) return status;
  return transport;
}

ShmTransport::ShmTransport(const ShmOptions& options, shm::Arena arena, shm::Acceptor acceptor, std::string endpoint_prefix)
    : acceptor_(std::move(acceptor)),
      options_(options),
      endpoint_prefix_(std::move(endpoint_prefix)),
      links_(options.peers_max) {
  const shm::Geometry& geometry = arena.geometry();
  host_.small = shm::SlotPool({.slots = geometry.small_slots,
                               .regions = geometry.regions,
                               .quota_min = guaranteed_large * small_per_large,
                               .quota_max = options.slots_per_peer * small_per_large});
  host_.large = shm::SlotPool({.slots = geometry.large_slots,
                               .regions = geometry.regions,
                               .quota_min = guaranteed_large,
                               .quota_max = options.slots_per_peer,
                               .in_turn = 2 * options.slots_per_peer,
                               .in_turn_bytes = slots_in_turn_bytes});
  host_.payload_checksum = options.payload_checksum;
  host_.arena = std::move(arena);
  active_.reserve(options.peers_max);
  holders_.reserve(options.peers_max);
}

ShmTransport::Link* ShmTransport::up_link(PeerIndex peer) const {
  Link* link = link_of(peer);
  return link != nullptr && link->stage == Link::Stage::up ? link : nullptr;
}

size_t ShmTransport::credit(PeerIndex peer) {
  Link* link = up_link(peer);
  return link == nullptr ? 0 : link->outbound->credit();
}

// Takes one slot. All regions in holders_ will hold it.
bool ShmTransport::take_slot(SlotKind kind, Purpose purpose, size_t bytes, uint32_t& ref) {
  shm::SlotPool& pool = host_.pool(kind);
  const uint32_t low = kind == SlotKind::large ? pool.quota_max() : pool.quota_max() / 2;
  for (const uint16_t region : holders_) {
    if (pool.available(region, purpose) <= low) links_[region]->outbound->drain();
  }
  if (!pool.may_take(holders_, purpose)) return false;
  ref = shm::make_ref(kind, pool.take(holders_, purpose, bytes));
  return true;
}

// Sets holders_ to the regions of those `peers` whose links are up. Returns true if there is at least one such peer, and if the
// ring of each of them has space for a frame.
bool ShmTransport::set_holders(std::span<const PeerIndex> peers) {
  holders_.clear();
  bool all_open = true;
  for (const PeerIndex peer : peers) {
    const Link* link = up_link(peer);
    if (link == nullptr) continue;
    holders_.push_back(link->region);
    if (link->outbound->ring_is_open()) continue;
    link->outbound->want_ring();
    all_open = false;
  }
  return all_open && !holders_.empty();
}

Slot ShmTransport::acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) {
  if (bytes > options_.slot_bytes || !set_holders(peers)) return {};
  const Purpose purpose = result ? Purpose::result : Purpose::contribution;
  uint32_t ref = 0;
  const bool small = bytes <= small_slot_bytes;
  if ((small && take_slot(SlotKind::small, purpose, bytes, ref)) || take_slot(SlotKind::large, purpose, bytes, ref)) {
    const SlotKind kind = shm::ref_kind(ref);
    host_.pool(kind).begin_writing(shm::ref_index(ref));
    return {.data = host_.arena.slot(kind, shm::ref_index(ref)),
            .capacity = host_.arena.slot_bytes(kind),
            .handle = handle_of(ref)};
  }
  if (small) want_slots(SlotKind::small, purpose);
  want_slots(SlotKind::large, purpose);
  return {};
}

// Called when no slot could be taken for the regions in holders_. A region that may take no slot waits until it may take one.
// If each region may take a slot, all of them wait until enough shared slots are free for all.
void ShmTransport::want_slots(SlotKind kind, Purpose purpose) {
  const auto lacks = [&](uint16_t region) { return host_.pool(kind).available(region, purpose) == 0; };
  const bool any_lacks = std::any_of(holders_.begin(), holders_.end(), lacks);
  const auto slots_needed = static_cast<uint32_t>(holders_.size());
  for (const uint16_t region : holders_) {
    if (!any_lacks) links_[region]->outbound->want(kind, purpose, slots_needed);
    else if (lacks(region)) links_[region]->outbound->want(kind, purpose, 0);
  }
}

void ShmTransport::commit(const Slot& slot, const FrameHeader& header) {
  const auto ref = static_cast<uint32_t>(slot.handle);
  UNISONO_CHECK(slot.handle == handle_of(ref) && host_.arena.has_slot(ref));
  const SlotKind kind = shm::ref_kind(ref);
  UNISONO_CHECK(header.payload_bytes <= host_.arena.slot_bytes(kind));
  FrameHeader copy = header;
  if (host_.payload_checksum && copy.payload_bytes > 0) {
    copy.flags |= frame_flag_payload_checksum;
    copy.payload_checksum = crc32c(host_.arena.slot(kind, shm::ref_index(ref)), copy.payload_bytes);
  }
  shm::SlotPool& pool = host_.pool(kind);
  const shm::SlotPool::Holders holders = pool.holders(shm::ref_index(ref));
  holders_.clear();
  for (size_t word = 0; word < holders.size(); ++word) {
    for (uint64_t bits = holders[word]; bits != 0; bits &= bits - 1) {
      const auto region = static_cast<uint16_t>(word * 64 + static_cast<size_t>(std::countr_zero(bits)));
      const bool up = links_[region]->stage == Link::Stage::up;
      if (up) holders_.push_back(region);
      if (!up || copy.payload_bytes == 0) (void)pool.release(shm::ref_index(ref), region);
    }
  }
  publish(copy, copy.payload_bytes > 0 ? ref : 0);
  pool.end_writing(shm::ref_index(ref));
}

// Publishes the frame to the links of all regions in holders_.
void ShmTransport::publish(const FrameHeader& header, uint32_t ref) {
  if (holders_.size() == 1) return links_[holders_.front()]->outbound->publish(header, ref);
  for (const uint16_t region : holders_) links_[region]->outbound->publish(header, ref, shm::batched_publish_order);
  shm::publication_fence();
  for (const uint16_t region : holders_) links_[region]->outbound->wake_reader();
}

void ShmTransport::abandon(const Slot& slot) {
  const auto ref = static_cast<uint32_t>(slot.handle);
  UNISONO_CHECK(slot.handle == handle_of(ref) && host_.arena.has_slot(ref));
  shm::SlotPool& pool = host_.pool(shm::ref_kind(ref));
  const shm::SlotPool::Holders holders = pool.holders(shm::ref_index(ref));
  for (uint16_t region = 0; region < links_.size(); ++region) {
    if ((holders[region / 64] >> region % 64 & 1) != 0) (void)pool.release(shm::ref_index(ref), region);
  }
  pool.end_writing(shm::ref_index(ref));
}

bool ShmTransport::send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  Link* link = up_link(peer);
  return link == nullptr || link->outbound->send(header, payload, id);
}

bool ShmTransport::send_copies(std::span<const PeerIndex> peers, const FrameHeader& header, const std::byte* payload) {
  uint32_t ref = 0;
  const bool fast_path =
      header.payload_bytes <= small_slot_bytes && !host_.payload_checksum && set_holders(peers) &&
      (header.payload_bytes == 0 || take_slot(SlotKind::small, Purpose::contribution, header.payload_bytes, ref));
  if (!fast_path) return Transport::send_copies(peers, header, payload);
  for (const uint16_t region : holders_) links_[region]->outbound->prefetch();
  if (ref != 0) std::memcpy(host_.arena.slot(SlotKind::small, shm::ref_index(ref)), payload, header.payload_bytes);
  publish(header, ref);
  return true;
}

Next ShmTransport::next(PeerIndex from, const FrameHeader& expected, const std::byte*& payload) {
  Link* link = up_link(from);
  return link == nullptr ? Next::none : link->inbound->next(expected, payload);
}

void ShmTransport::take_next(std::span<const PeerIndex> from) {
  for (const PeerIndex peer : from) {
    Link* link = up_link(peer);
    UNISONO_CHECK(link != nullptr);
    link->inbound->take_next();
  }
  shm::publication_fence();
  for (const PeerIndex peer : from) up_link(peer)->inbound->wake_writer();
}

void ShmTransport::release(const View& view) {
  if (view.handle == 0) return;
  if ((view.handle & shm::block_handle_bit) != 0) {
    host_.buffers.give(view.handle & ~shm::block_handle_bit);
    return;
  }
  const uint64_t region = (view.handle >> 32) - 1;
  UNISONO_CHECK(region < links_.size() && links_[region] && links_[region]->inbound);
  links_[region]->inbound->release(static_cast<uint32_t>(view.handle));
}

void ShmTransport::cancel(const Cancellation& what) {
  for (Link* link : active_) {
    if (link->stage != Link::Stage::up) continue;
    link->outbound->cancel(what.match, what.mask);
    if (what.concerns_frames_from(link->request.peer)) link->inbound->cancel(what.group, what.operation);
  }
  host_.sent.remove_if([&](uint64_t id) { return what.concerns_send(id); });
}

bool ShmTransport::report_sent(Sink& sink) {
  const bool any = !host_.sent.empty();
  while (!host_.sent.empty()) {
    const uint64_t id = host_.sent.front();
    host_.sent.pop();
    sink.sent(id);
  }
  return any;
}

bool ShmTransport::poll_link(Link& link, Sink& sink) {
  if (link.stage != Link::Stage::up) return false;
  shm::Inbound& inbound = *link.inbound;
  shm::Outbound& outbound = *link.outbound;
  // If the peer has ended the link, the frames that it published before are still delivered.
  const bool ending = link.goodbye_received || link.given_up || link.gone;
  bool any = ending ? inbound.receive_rest(sink) : inbound.receive(sink, frames_per_link_and_poll);
  any |= outbound.service();
  if (link.stage != Link::Stage::up) return true;
  if (outbound.credit_is_back()) {
    sink.credit(link.request.peer);
    any = true;
  }
  if (link.stage == Link::Stage::up && (ending || inbound.fault() != nullptr || outbound.fault() != nullptr)) {
    lose(link, loss_status(link), sink);
    any = true;
  }
  return any;
}

bool ShmTransport::poll(Nanos now, Sink& sink) {
  UNISONO_CHECK(!polling_);
  polling_ = true;
  bool any = false;
  if (check_now_ || now - checked_at_ >= sockets_interval || ++polls_unchecked_ >= polls_per_check) {
    checked_at_ = now;
    check_now_ = false;
    polls_unchecked_ = 0;
    any |= check_sockets(now, sink);
  }
  for (size_t i = 0; i < active_.size(); ++i) any |= poll_link(*active_[i], sink);
  any |= report_sent(sink);
  polling_ = false;
  return any;
}

bool ShmTransport::draining() const {
  return std::any_of(active_.begin(), active_.end(),
                     [](const Link* link) { return link->stage == Link::Stage::up && link->outbound->holds_frames(); });
}

Nanos ShmTransport::next_deadline() const {
  Nanos first = acceptor_.next_deadline();
  for (const Link* link : active_) {
    if (link->stage == Link::Stage::connecting) first = std::min(first, link->request.deadline);
    if (link->stage == Link::Stage::connecting && link->request.dial && has_key_ && !link->socket)
      first = std::min(first, checked_at_ + millisecond);
    // When the peer has read frames from its full ring, it does not wake us: a full ring is rare, and checking for it in every
    // poll would slow the peer down. Therefore we look again after overflow_interval.
    if (link->stage == Link::Stage::up && link->outbound->overflowing())
      first = std::min(first, checked_at_ + overflow_interval);
  }
  return first;
}

bool ShmTransport::has_work() {
  if (!host_.sent.empty()) return true;
  for (const Link* link : active_) {
    if (link->stage != Link::Stage::up) continue;
    if (link->goodbye_received || link->given_up || link->gone || link->inbound->ready() || link->inbound->fault() != nullptr ||
        link->outbound->ready())
      return true;
  }
  return false;
}

bool ShmTransport::arm() {
  bool releases = false;
  for (const Link* link : active_) {
    releases = releases || (link->stage == Link::Stage::up && link->outbound->wants_releases());
  }
  sleeps_ = (sleeps_ + 1) & 0x3FFFFFFF;
  host_.arena.head().wake.store(sleeps_ << 2 | 1 | (releases ? 2 : 0), std::memory_order_seq_cst);
  if (!has_work()) return true;
  disarm();
  return false;
}

void ShmTransport::disarm() {
  host_.arena.head().wake.store(0, std::memory_order_relaxed);
  check_now_ = true;
}

TransportCounters ShmTransport::counters() const {
  TransportCounters counters = host_.counters;
  counters.refused_connections += acceptor_.refused_count();
  return counters;
}

std::string ShmTransport::describe(PeerIndex peer) const {
  const Link* link = link_of(peer);
  if (link == nullptr) return "shm: no link";
  if (link->stage != Link::Stage::up) return "shm @" + link->socket_name + " (connecting)";
  const std::string who = link->process > 0 ? concat("pid ", link->process) : "a process outside this pid name space";
  return concat("shm ", who, " (slots of ", options_.slot_bytes >> 10, " KiB)");
}

size_t ShmTransport::regions_in_use() const {
  return static_cast<size_t>(std::count_if(links_.begin(), links_.end(), [](const auto& link) { return link != nullptr; }));
}

}  // namespace unisono
