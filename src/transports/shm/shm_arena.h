// The memory that one process offers to its peers on the host. It is one memfd (a file that exists only in memory). Only its
// owner writes this memory; all peers map it read-only.
//
// An arena holds everything that its owner sends: frames in rings and payloads in slots. It also shows how far the owner has
// read the peers' rings, and which of the peers' slots the owner has released. Therefore a broken peer can damage only its own
// arena, and readers check what they read there. The file's seals forbid new writable mappings. They also forbid shrinking the
// file, which would raise SIGBUS in a reader. The memory has no name: it disappears with the last process that maps it, and it
// does not count against the size of /dev/shm.
//
//   page 0        ArenaHead: is the owner asleep?
//   regions       one per peer: RegionHead, ring of cells (owner -> peer), ring of released slots
//   small slots   payloads up to small_bytes (a 1 KiB frame needs only two short writes: its cell and its slot)
//   large slots   payloads up to large_bytes
// The kernel allocates a page when it is first touched; shm_slots.h decides which slots are used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "forks/fork.h"
#include "unisono/status.h"

namespace unisono::shm {

// Owns one file descriptor. A child made by fork() does not keep it (forks/fork.h).
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(own_descriptor(fd)) {}
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

// The kind of slot that holds a payload. A slot reference (`ref`) has 24 bits: 4 for the kind, then 20 for the index. An entry
// of a ring has 8 more bits above the reference. They hold the type of the cell or, in the ring of released slots, the lap
// number.
enum class SlotKind : uint8_t { none = 0, small = 1, large = 2 };
inline constexpr uint32_t ref_index_bits = 20;
inline constexpr uint32_t ref_mask = 0xFFFFFF;
constexpr uint32_t make_ref(SlotKind kind, uint32_t index) { return static_cast<uint32_t>(kind) << ref_index_bits | index; }
constexpr SlotKind ref_kind(uint32_t ref) { return static_cast<SlotKind>(ref >> ref_index_bits & 0x0F); }
constexpr uint32_t ref_index(uint32_t ref) { return ref & ((1u << ref_index_bits) - 1); }

// A cell of a ring holds a FrameHeader in one cache line, so that a short frame costs one cache line. Two fields of the header
// are replaced. The magic is replaced by the sequence number that publishes the cell. The header checksum is replaced by the
// payload's `ref` and the cell's type.
struct alignas(64) Cell {
  std::atomic<uint64_t> words[8];
};
static_assert(sizeof(Cell) == 64 && std::atomic<uint64_t>::is_always_lock_free);

struct alignas(64) ArenaHead {
  // 0 means that the owner is awake. Otherwise the value is 4 * n + 1 during the owner's n-th sleep. If the sleeping owner also
  // waits for released slots, 2 is added.
  std::atomic<uint32_t> wake;
};
struct alignas(64) RegionHead {
  std::atomic<uint32_t> head;  // The arena's owner has taken this many cells of the peer's ring.
};

// All counts and sizes of an arena. A process sends its Geometry in its hello. The receiver checks these numbers before it uses
// them to find its way in the sender's arena.
struct Geometry {
  uint32_t regions = 0;
  uint32_t ring_cells = 256;  // power of two
  // A power of two. It must not be less than the number of this arena's slots that one peer can hold.
  uint32_t release_entries = 512;
  uint32_t small_slots = 0;
  uint32_t small_bytes = 0;
  uint32_t large_slots = 0;
  uint32_t large_bytes = 0;
  uint32_t piece_bytes = 0;  // a payload larger than a large slot is sent in pieces of this size

  // Returns true if every number is in its range. Then no offset below can overflow.
  bool valid() const;
  uint64_t region_bytes() const;
  uint64_t region_offset(uint32_t region) const;
  uint64_t small_offset(uint32_t slot) const;
  uint64_t large_offset(uint32_t slot) const;
  uint64_t total_bytes() const;
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// A mapped arena: this process's own arena, which is writable, or a peer's arena, which is read-only. The class owns the
// mapping.
class Arena {
 public:
  // Makes an arena that is filled with zeros, mapped writable, and sealed.
  static Result<Arena> make(const Geometry& geometry);
  // Maps a peer's arena. Returns the error corrupt unless the file is a sealed memfd and has the size that the geometry
  // requires.
  static Result<Arena> map(int memfd, const Geometry& geometry);

  Arena() = default;
  Arena(Arena&& other) noexcept { *this = std::move(other); }
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  int memfd() const { return memfd_.get(); }  // the descriptor of this process's arena, to be sent to peers
  const Geometry& geometry() const { return geometry_; }
  bool mapped() const { return base_ != nullptr; }

  ArenaHead& head() const { return *at<ArenaHead>(0); }
  RegionHead& region(uint32_t region) const { return *at<RegionHead>(geometry_.region_offset(region)); }
  Cell* cells(uint32_t region) const { return at<Cell>(geometry_.region_offset(region) + sizeof(RegionHead)); }
  std::atomic<uint32_t>* releases(uint32_t region) const;
  std::byte* slot(SlotKind kind, uint32_t index) const {
    const auto& slots = kind == SlotKind::small ? small_ : large_;
    return slots.base + index * slots.stride;
  }
  // Returns true if the ref denotes a slot of this arena.
  bool has_slot(uint32_t ref) const;
  uint32_t slot_bytes(SlotKind kind) const { return kind == SlotKind::small ? geometry_.small_bytes : geometry_.large_bytes; }
  // Fills a region of this process's arena with zeros. Call it only when no peer reads the region any more.
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
  Slots small_, large_;  // base address of the slots and the distance between them, computed from geometry_
};

}  // namespace unisono::shm
