// The state that a peer can give to joiners. It consists of the vector at the end of an averaging step, and of named blobs.
// Nothing is copied: the chunks' memory is shared and never written.
//
// While joiners load a state, that state is held. At most one state is held besides the newest one, so there are at most two
// vectors in memory. When the last joiner has released the held state, new joiners get the newest one.
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
  // chunk_bytes: the size of each chunk of the vector. There are at most state_chunks_max chunks.
  StateCopy(uint64_t schema, std::vector<size_t> chunk_bytes);

  // Sets the blobs of the states that follow. A held state keeps its blobs. Returns the error invalid if a limit of
  // state_messages.h is exceeded, or if two blobs have the same name.
  Status set_blobs(std::vector<StateBlob> blobs);
  // Sets the newest state: the vector after averaging step `step`. `chunks` must have the sizes that were given at
  // construction. `digests` are the digest64 of each chunk.
  void finished(int64_t step, std::vector<SharedBuffer> chunks, std::vector<uint64_t> digests);

  // Returns the digest of the state that a new joiner would get, or 0 if there is none yet. The roster announces this digest.
  uint64_t state_digest() const;
  int64_t step() const;  // averaging step of that state; -1: none
  bool empty() const { return newest_ == nullptr; }

  // Only StateDonor calls hold() and release(). hold() keeps the offered state unchanged until release(). It requires that
  // empty() is false.
  void hold();
  void release();
  bool held() const { return held_ != nullptr; }
  // Return the manifest and the digest of the held state. Both functions require held().
  const StateManifest& manifest() const { return held_->manifest; }
  uint64_t held_digest() const { return held_->digest; }
  // Returns a part of the held state. Requires part < manifest().part_count().
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
  size_t bytes_ = 0;  // the size of all chunks together
  std::vector<StateBlobEntry> entries_;
  std::vector<SharedBuffer> blobs_;
  std::shared_ptr<const Version> newest_, held_;
};

}  // namespace unisono
