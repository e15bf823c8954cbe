// The memory that one process offers to its peers on the host: one memfd, written by its owner only, read by all.
//
// Everything a process tells its peers lies in its own arena: frames in rings, payloads in slots, but also how far it has
// read their rings and which of their slots it has given back. So every mapping of somebody else's arena is read-only, and
// a broken peer can damage nothing but its own words, which the reader checks. The seals forbid what would hurt a reader
// from outside: shrinking (SIGBUS) and new writable mappings. The memory has no name: it is gone with its last process,
// whatever killed it, and it does not count against the size of /dev/shm.
//
//   page 0        ArenaHead: is the owner asleep?
//   regions       one per peer: RegionHead, ring of cells (owner -> peer), ring of releases
//   small slots   payloads up to small_bytes (a 1 KiB frame is two short writes)
//   large slots   payloads up to large_bytes
// Pages are touched only when used; which slots are, shm_slots.h says.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "unisono/status.h"

namespace unisono::shm {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }
  void reset(int fd = -1);
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Where a payload lies. A ref is 24 bits: place, then 20 bits of index; the byte above is for what the rings add to it.
enum class Place : uint8_t { none = 0, small = 1, large = 2 };
inline constexpr uint32_t ref_index_bits = 20;
inline constexpr uint32_t ref_mask = 0xFFFFFF;
constexpr uint32_t make_ref(Place place, uint32_t index) { return static_cast<uint32_t>(place) << ref_index_bits | index; }
constexpr Place ref_place(uint32_t ref) { return static_cast<Place>(ref >> ref_index_bits & 0x0F); }
constexpr uint32_t ref_index(uint32_t ref) { return ref & ((1u << ref_index_bits) - 1); }

// One cache line: a FrameHeader whose magic is replaced by the sequence number that publishes the cell, and whose checksum is
// replaced by the ref of the payload and the cell's type. One line per frame is what makes a short frame quick.
struct alignas(64) Cell {
  std::atomic<uint64_t> words[8];
};
static_assert(sizeof(Cell) == 64 && std::atomic<uint64_t>::is_always_lock_free);

struct alignas(64) ArenaHead {
  std::atomic<uint32_t> wake;  // 0: awake. Else a number of this sleep * 4 + 1, + 2 if releases are waited for, too
};
struct alignas(64) RegionHead {
  std::atomic<uint32_t> head;  // cells of the peer's ring that the owner has taken
};

// All counts and sizes of an arena. Part of the hello: the peer's numbers are validated, then used for its arena.
struct Geometry {
  uint32_t regions = 0;
  uint32_t ring_cells = 256;       // power of two
  uint32_t release_entries = 512;  // power of two, at least what one peer can hold of ours
  uint32_t small_slots = 0;
  uint32_t small_bytes = 0;
  uint32_t large_slots = 0;
  uint32_t large_bytes = 0;
  uint32_t piece_bytes = 0;  // of payloads that are larger than a large slot

  // Every number in its range, so that no offset below can overflow.
  bool valid() const;
  uint64_t region_bytes() const;
  uint64_t region_offset(uint32_t region) const;
  uint64_t small_offset(uint32_t slot) const;
  uint64_t large_offset(uint32_t slot) const;
  uint64_t total_bytes() const;
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// A mapped arena, own (writable) or a peer's (read-only). Owns the mapping.
class Arena {
 public:
  // A new one, zero, mapped writable and sealed.
  static Result<Arena> make(const Geometry& geometry);
  // A peer's. corrupt if the file is not a sealed memfd of the size that the geometry says.
  static Result<Arena> map(int memfd, const Geometry& geometry);

  Arena() = default;
  Arena(Arena&& other) noexcept { *this = std::move(other); }
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  int memfd() const { return memfd_.get(); }  // of an own arena, to be passed to peers
  const Geometry& geometry() const { return geometry_; }
  bool mapped() const { return base_ != nullptr; }

  ArenaHead& head() const { return *at<ArenaHead>(0); }
  RegionHead& region(uint32_t region) const { return *at<RegionHead>(geometry_.region_offset(region)); }
  Cell* cells(uint32_t region) const { return at<Cell>(geometry_.region_offset(region) + sizeof(RegionHead)); }
  std::atomic<uint32_t>* releases(uint32_t region) const;
  std::byte* slot(Place place, uint32_t index) const {
    const auto& slots = place == Place::small ? small_ : large_;
    return slots.base + index * slots.stride;
  }
  // Whether the ref names a slot of this arena, and what fits into it.
  bool has_slot(uint32_t ref) const;
  uint32_t slot_bytes(Place place) const { return place == Place::small ? geometry_.small_bytes : geometry_.large_bytes; }
  // Own arena only, and only when nobody reads the region any more.
  void clear_region(uint32_t region);

 private:
  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  struct Slots {
    std::byte* base = nullptr;
    uint64_t stride = 0;
  };
  void set_base(void* base);

  UniqueFd memfd_;
  Geometry geometry_;
  std::byte* base_ = nullptr;
  Slots small_, large_;  // as the geometry says
};

}  // namespace unisono::shm
