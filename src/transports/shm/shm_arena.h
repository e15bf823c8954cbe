// The memory that one process offers to its peers on the host: one memfd, which its owner alone writes and all read.
//
// A process's own arena holds everything that it sends to its peers: frames in rings and payloads in slots. It also shows how
// far the process has read their rings and which of their slots it has returned. So every mapping of another process's arena is
// read-only, and a broken peer can damage only its own memory, which readers check. The seals forbid shrinking (which would
// raise SIGBUS in a reader) and new writable mappings. The memory has no name: it is gone with its last process, however that
// process died, and it does not count against the size of /dev/shm.
//
//   page 0        ArenaHead: is the owner asleep?
//   regions       one per peer: RegionHead, ring of cells (owner -> peer), ring of releases
//   small slots   payloads up to small_bytes (a 1 KiB frame is two short writes)
//   large slots   payloads up to large_bytes
// Pages are touched only when used; shm_slots.h decides which slots are.
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

// Which kind of slot holds a payload. A ref has 24 bits: the kind, then 20 bits of index. The rings use the byte above.
enum class Place : uint8_t { none = 0, small = 1, large = 2 };
inline constexpr uint32_t ref_index_bits = 20;
inline constexpr uint32_t ref_mask = 0xFFFFFF;
constexpr uint32_t make_ref(Place place, uint32_t index) { return static_cast<uint32_t>(place) << ref_index_bits | index; }
constexpr Place ref_place(uint32_t ref) { return static_cast<Place>(ref >> ref_index_bits & 0x0F); }
constexpr uint32_t ref_index(uint32_t ref) { return ref & ((1u << ref_index_bits) - 1); }

// A FrameHeader in one cache line. The sequence number that publishes the cell replaces its magic; the payload's ref and the
// cell's type replace its checksums. Short frames are fast because each takes one cache line.
struct alignas(64) Cell {
  std::atomic<uint64_t> words[8];
};
static_assert(sizeof(Cell) == 64 && std::atomic<uint64_t>::is_always_lock_free);

struct alignas(64) ArenaHead {
  std::atomic<uint32_t> wake;  // 0: awake. Else 4 * the number of this sleep + 1, and + 2 if it waits for releases, too
};
struct alignas(64) RegionHead {
  std::atomic<uint32_t> head;  // how many cells of the peer's ring the owner has taken
};

// All counts and sizes of an arena. Part of the hello: a process validates the peer's numbers and then uses them for its arena.
struct Geometry {
  uint32_t regions = 0;
  uint32_t ring_cells = 256;       // power of two
  uint32_t release_entries = 512;  // power of two; at least what one peer can hold of this arena
  uint32_t small_slots = 0;
  uint32_t small_bytes = 0;
  uint32_t large_slots = 0;
  uint32_t large_bytes = 0;
  uint32_t piece_bytes = 0;  // size of the pieces of payloads that do not fit into a large slot

  // True if every number is in its range, so that no offset below can overflow.
  bool valid() const;
  uint64_t region_bytes() const;
  uint64_t region_offset(uint32_t region) const;
  uint64_t small_offset(uint32_t slot) const;
  uint64_t large_offset(uint32_t slot) const;
  uint64_t total_bytes() const;
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// A mapped arena: the process's own (writable) or a peer's (read-only). Owns the mapping.
class Arena {
 public:
  // Makes an arena of zeros, mapped writable and sealed.
  static Result<Arena> make(const Geometry& geometry);
  // Maps a peer's arena. Returns corrupt unless the file is a sealed memfd of the size that the geometry says.
  static Result<Arena> map(int memfd, const Geometry& geometry);

  Arena() = default;
  Arena(Arena&& other) noexcept { *this = std::move(other); }
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  int memfd() const { return memfd_.get(); }  // of the process's own arena; passed to peers
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
  // Whether the ref names a slot of this arena.
  bool has_slot(uint32_t ref) const;
  uint32_t slot_bytes(Place place) const { return place == Place::small ? geometry_.small_bytes : geometry_.large_bytes; }
  // For the process's own arena, when nobody reads the region any more.
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
  Slots small_, large_;  // from the geometry
};

}  // namespace unisono::shm
