#include "transports/shm/shm_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/concat.h"
#include "base/error_text.h"
#include "wire/frame.h"

namespace unisono::shm {
namespace {

constexpr uint64_t page = 4096;
// This is added to the distance between slots. If the distance were a power of two, all slots would begin in the same cache
// sets.
constexpr uint64_t slot_colour = page;
constexpr int wanted_seals = F_SEAL_SHRINK | F_SEAL_GROW;

constexpr uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

Status system_error(Code code, const std::string& what) { return {code, what + ": " + error_text(errno)}; }

}  // namespace

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) {
    disown_descriptor(fd_);
    ::close(fd_);
  }
  fd_ = own_descriptor(fd);
}

bool Geometry::valid() const {
  const auto in = [](uint32_t value, uint32_t low, uint32_t high) { return value >= low && value <= high; };
  return in(regions, 1, 256) && in(ring_cells, 8, 4096) && std::has_single_bit(ring_cells) && in(release_entries, 8, 65536) &&
         std::has_single_bit(release_entries) && in(small_slots, 1, 1u << 20) && in(small_bytes, 64, 64u << 10) &&
         small_bytes % 64 == 0 && in(large_slots, 1, 1u << 16) && in(large_bytes, 4096, payload_bytes_max) &&
         large_bytes % 64 == 0 && in(piece_bytes, 64, large_bytes);
}

uint64_t Geometry::region_bytes() const {
  return round_up(sizeof(RegionHead) + uint64_t{ring_cells} * sizeof(Cell) + uint64_t{release_entries} * 4, page);
}

uint64_t Geometry::region_offset(uint32_t region) const { return page + region * region_bytes(); }

uint64_t Geometry::small_offset(uint32_t slot) const { return region_offset(regions) + uint64_t{slot} * small_bytes; }

uint64_t Geometry::large_offset(uint32_t slot) const {
  return round_up(small_offset(small_slots), page) + slot * (round_up(large_bytes, page) + slot_colour);
}

uint64_t Geometry::total_bytes() const { return large_offset(large_slots); }

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  if (base_ != nullptr) ::munmap(base_, geometry_.total_bytes());
  memfd_ = std::move(other.memfd_);
  geometry_ = other.geometry_;
  set_base(std::exchange(other.base_, nullptr));
  return *this;
}

void Arena::set_base(void* base) {
  base_ = static_cast<std::byte*>(base);
  if (base == nullptr) return;
  const auto slots = [&](uint64_t first, uint64_t second) { return Slots{base_ + first, second - first}; };
  small_ = slots(geometry_.small_offset(0), geometry_.small_offset(1));
  large_ = slots(geometry_.large_offset(0), geometry_.large_offset(1));
}

Arena::~Arena() {
  if (base_ != nullptr) ::munmap(base_, geometry_.total_bytes());
}

Result<Arena> Arena::make(const Geometry& geometry) {
  if (!geometry.valid()) return Status(Code::invalid, "shm: sizes of the shared memory are out of range");
  const uint64_t bytes = geometry.total_bytes();
  rlimit file_size{};  // ftruncate() to a size beyond this limit would raise SIGXFSZ
  if (::getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur < bytes) {
    return Status(Code::unavailable, concat("shm: the limit on file sizes (ulimit -f) is below ", bytes, " bytes"));
  }
  Arena arena;
  arena.geometry_ = geometry;
  arena.memfd_.reset(::memfd_create("unisono", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!arena.memfd_) return system_error(Code::unavailable, "shm: memfd_create");
  if (::ftruncate(arena.memfd(), static_cast<off_t>(bytes)) != 0) {
    return system_error(Code::unavailable, concat("shm: ftruncate to ", bytes, " bytes"));
  }
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena.memfd(), 0);
  if (base == MAP_FAILED) return system_error(Code::unavailable, concat("shm: mmap of ", bytes, " bytes"));
  arena.set_base(base);
  // The seal FUTURE_WRITE keeps this mapping writable, and forbids all other writable mappings. Kernels before 5.1 do not have
  // this seal. With such a kernel we trust the peers to map the memory read-only.
  (void)::fcntl(arena.memfd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  if (::fcntl(arena.memfd(), F_ADD_SEALS, wanted_seals | F_SEAL_SEAL) != 0) {
    return system_error(Code::unavailable, "shm: sealing the shared memory");
  }
  return arena;
}

Result<Arena> Arena::map(int memfd, const Geometry& geometry) {
  if (!geometry.valid()) return Status(Code::corrupt, "shm: the peer's sizes are out of range");
  struct stat info {};
  if (::fstat(memfd, &info) != 0) return system_error(Code::corrupt, "shm: fstat of the peer's memory");
  const uint64_t bytes = geometry.total_bytes();
  const int seals = ::fcntl(memfd, F_GET_SEALS);
  if (seals < 0 || (seals & wanted_seals) != wanted_seals || static_cast<uint64_t>(info.st_size) != bytes) {
    return Status(Code::corrupt,
                  "shm: the shared memory of the peer is not sealed, or its size differs from the announced size");
  }
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, memfd, 0);
  if (base == MAP_FAILED) return system_error(Code::unavailable, concat("shm: mmap of the peer's ", bytes, " bytes"));
  Arena arena;
  arena.geometry_ = geometry;
  arena.set_base(base);
  return arena;
}

std::atomic<uint32_t>* Arena::releases(uint32_t region) const {
  return at<std::atomic<uint32_t>>(geometry_.region_offset(region) + sizeof(RegionHead) +
                                   uint64_t{geometry_.ring_cells} * sizeof(Cell));
}

bool Arena::has_slot(uint32_t ref) const {
  switch (ref_kind(ref)) {
    case SlotKind::small: return ref_index(ref) < geometry_.small_slots;
    case SlotKind::large: return ref_index(ref) < geometry_.large_slots;
    default: return false;
  }
}

void Arena::clear_region(uint32_t region) { std::memset(base_ + geometry_.region_offset(region), 0, geometry_.region_bytes()); }

}  // namespace unisono::shm
