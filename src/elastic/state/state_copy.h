// What a peer can give to joiners: the vector as it was at the end of an averaging step, and named blobs. Nothing is copied:
// the memory of its chunks is shared with whoever made them, and nobody changes it.
//
// At most one state is held besides the newest one, so that as much memory as two vectors is all that this keeps; the newest
// one is offered once the last joiner has let go of the one that is held.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/shared_buffer.h"
#include "elastic/state/state_messages.h"
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
  // The state after this averaging step: the vector's chunks, as long as they were said to be, and digest64 of each.
  void finished(int64_t step, std::vector<SharedBuffer> chunks, std::vector<uint64_t> digests);

  // Digest of what a joiner would be given now, for the roster; 0: nothing yet.
  uint64_t state_digest() const;
  int64_t step() const;  // of the same; -1: none
  bool empty() const { return newest_ == nullptr; }

  // For StateDonor. From hold(), if it is not empty, until release() the state stays the same.
  void hold();
  void release();
  bool held() const { return held_ != nullptr; }
  // Of the held state.
  const StateManifest& manifest() const { return held_->manifest; }
  uint64_t held_digest() const { return held_->digest; }
  // part < manifest().part_count()
  SharedBuffer part(uint32_t part) const;

 private:
  struct Version {
    StateManifest manifest;
    uint64_t digest = 0;
    std::vector<SharedBuffer> chunks, blobs;
  };

  void remake_newest(int64_t step, std::vector<SharedBuffer> chunks, std::vector<uint64_t> digests);

  uint64_t schema_;
  std::vector<size_t> chunk_bytes_;
  size_t bytes_ = 0;  // of all chunks
  std::vector<StateBlobEntry> entries_;
  std::vector<SharedBuffer> blobs_;
  std::shared_ptr<const Version> newest_, held_;
};

}  // namespace unisono
