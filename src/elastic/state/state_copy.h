// The state that a peer can give to joiners: the vector as of the end of an averaging step, and named blobs. Nothing is copied:
// the memory of the chunks is shared and never written.
//
// At most one older state is held besides the newest, so this keeps at most the memory of two vectors. The newest state is
// offered once the last joiner has released the held one.
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
  // chunk_bytes: the bytes of each chunk of the vector; at most state_chunks_max chunks.
  StateCopy(uint64_t schema, std::vector<size_t> chunk_bytes);

  // Sets the blobs of later states; a held state keeps its own. Error: invalid if a limit of state_messages.h is exceeded, or a
  // name occurs twice.
  Status set_blobs(std::vector<StateBlob> blobs);
  // Sets the state after this averaging step: the vector's chunks, of the lengths given at construction, and digest64 of each.
  void finished(int64_t step, std::vector<SharedBuffer> chunks, std::vector<uint64_t> digests);

  // Digest of the state that a joiner would be given now, for the roster; 0: none yet.
  uint64_t state_digest() const;
  int64_t step() const;  // averaging step of that state; -1: none
  bool empty() const { return newest_ == nullptr; }

  // For StateDonor. If not empty(), hold() keeps the offered state unchanged until release().
  void hold();
  void release();
  bool held() const { return held_ != nullptr; }
  // These describe the held state.
  const StateManifest& manifest() const { return held_->manifest; }
  uint64_t held_digest() const { return held_->digest; }
  // Requires part < manifest().part_count().
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
  size_t bytes_ = 0;  // total of all chunks
  std::vector<StateBlobEntry> entries_;
  std::vector<SharedBuffer> blobs_;
  std::shared_ptr<const Version> newest_, held_;
};

}  // namespace unisono
