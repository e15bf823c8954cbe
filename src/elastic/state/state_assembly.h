// A state that is being loaded: its bytes, and which parts of it have arrived. Each part is checked against the adopted
// manifest. If another manifest is adopted, finished chunks and complete blobs are kept, and the missing parts come from the
// new state. A value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "elastic/round/chunk_bits.h"
#include "elastic/state/state_messages.h"
#include "unisono/status.h"

namespace unisono {

struct LoadedBlob {
  std::string name;
  Bytes bytes;
};

class StateAssembly {
 public:
  enum class Added : uint8_t { fresh, repeated, damaged };

  // chunk_bytes: the size of each chunk. The sizes follow from the schema, so all donors have the same ones.
  StateAssembly(uint64_t schema, std::vector<size_t> chunk_bytes);

  // Returns ok, or the error corrupt if the manifest does not describe a state of this schema.
  Status fits(const StateManifest& manifest) const;
  // Loads the state that this manifest describes from now on. Requires that fits(manifest) is ok.
  void adopt(StateManifest manifest);
  uint64_t state() const { return state_; }  // digest of the adopted manifest; 0: none was adopted yet
  const StateManifest& manifest() const { return manifest_; }

  uint32_t part_count() const { return static_cast<uint32_t>(have_.size()); }
  bool has(uint32_t part) const { return have_.test(part); }
  uint32_t parts_done() const { return static_cast<uint32_t>(parts_done_); }
  uint64_t bytes_done() const { return bytes_done_; }
  uint64_t bytes_all() const;
  bool complete() const { return state_ != 0 && parts_done_ == have_.size(); }
  // Returns true if the parts that were loaded so far come from different states.
  bool mixed() const { return mixed_; }

  // Adds a part. Requires part < part_count(). If the bytes do not match the manifest, returns `damaged` and changes nothing.
  Added add(uint32_t part, ByteView bytes);

  Bytes take_values() { return std::move(values_); }
  std::vector<LoadedBlob> take_blobs() { return std::move(blobs_); }

 private:
  struct PartLocation {
    // Points to values_ or to a blob. Its memory, of whole_bytes, is allocated only when the first part arrives, so a manifest
    // alone costs no memory.
    Bytes* whole = nullptr;
    size_t whole_bytes = 0;
    size_t at = 0;
    size_t bytes = 0;
    uint64_t digest = 0;
  };
  PartLocation location_of(uint32_t part);

  uint64_t schema_;
  std::vector<size_t> chunk_bytes_;
  std::vector<size_t> offsets_;  // where each chunk begins in values_; the last entry is the total size
  StateManifest manifest_;
  uint64_t state_ = 0;
  ChunkBits have_;  // which parts have arrived, numbered as in manifest_
  size_t parts_done_ = 0;
  uint64_t bytes_done_ = 0;
  bool mixed_ = false;
  Bytes values_;
  std::vector<LoadedBlob> blobs_;  // in the order of the manifest
};

}  // namespace unisono
