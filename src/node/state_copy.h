// What a peer can give to joiners: the vector as it was at the end of a sweep, and named blobs. While joiners load, chunks are
// copied just before they are overwritten; while nobody does, nothing is.
//
// The vector stays the owner's: it says when a sweep is finished, and before it writes into a chunk again. At most one state is
// held, so copies take at most as much memory as the vector; a newer one is offered once the last joiner has let go of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/shared_buffer.h"
#include "node/state_messages.h"
#include "unisono/status.h"

namespace unisono {

struct StateBlob {
  std::string name;
  SharedBuffer bytes;
};

class StateCopy {
 public:
  // chunk_bytes: how the vector is cut; at most state_chunks_max.
  StateCopy(uint64_t schema, std::vector<size_t> chunk_bytes);

  // From now on; a state that is held keeps its own. invalid: more than the limits of state_messages.h allow, or a name twice.
  Status set_blobs(std::vector<StateBlob> blobs);
  // `values`, as long as all chunks, are the state after this sweep. Each chunk stays as it is, and readable, until it was announced to
  // before_write; so do those of earlier calls, should they lie elsewhere. digests: digest64 of each chunk, if the owner knows them; empty: they are computed here.
  void finished(int64_t sweep, ByteView values, std::vector<uint64_t> digests = {});
  // Before the first write into a chunk after finished(); more often does no harm.
  void before_write(size_t chunk);
  void before_write_all();

  // Digest of what a joiner would be given now, for the roster; 0: nothing yet. A state that is just being overwritten still
  // counts: another one follows it.
  uint64_t state_digest() const;
  int64_t sweep() const;  // of the same; -1: none
  bool empty() const { return newest_ == nullptr; }

  // For StateDonor. hold(): false if the values are being overwritten; else the state stays readable until release().
  [[nodiscard]] bool hold();
  void release();
  bool held() const { return held_ != nullptr; }
  // Of the held state.
  const StateManifest& manifest() const { return held_->manifest; }
  uint64_t held_digest() const { return held_->digest; }
  // part < manifest().part_count()
  size_t part_bytes(uint32_t part) const;
  void read_part(uint32_t part, std::span<std::byte> into) const;  // as long as part_bytes

 private:
  struct Version {
    StateManifest manifest;
    uint64_t digest = 0;
    std::vector<SharedBuffer> blobs;
  };

  void remake_newest(int64_t sweep, std::vector<uint64_t> digests);
  ByteView piece_of(uint32_t part) const;

  uint64_t schema_;
  std::vector<size_t> chunk_bytes_;
  std::vector<size_t> offsets_;  // of each chunk, and the end
  std::vector<StateBlobEntry> entries_;
  std::vector<SharedBuffer> blobs_;
  std::shared_ptr<const Version> newest_;
  ByteView values_;
  bool intact_ = false;  // values_ are newest_
  std::shared_ptr<const Version> held_;
  ByteView held_values_;
  std::vector<SharedBuffer> saved_;  // chunks of the held state that are overwritten in held_values_, or about to be
};

}  // namespace unisono
