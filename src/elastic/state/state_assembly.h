// A state that is being loaded: which parts have arrived, and their bytes. Each part is checked against the adopted manifest.
// When another manifest is adopted, finished chunks and whole blobs stay; all missing parts then come from the new state. A
// value.
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

  // chunk_bytes follow from the schema, so they are equal at all donors.
  StateAssembly(uint64_t schema, std::vector<size_t> chunk_bytes);

  // Error: corrupt if the manifest does not describe a state of this schema.
  Status fits(const StateManifest& manifest) const;
  // The manifest must fit.
  void adopt(StateManifest manifest);
  uint64_t state() const { return state_; }  // digest of the adopted manifest; 0: none yet
  const StateManifest& manifest() const { return manifest_; }

  uint32_t part_count() const { return static_cast<uint32_t>(have_.size()); }
  bool has(uint32_t part) const { return have_.test(part); }
  uint32_t parts_done() const { return static_cast<uint32_t>(parts_done_); }
  uint64_t bytes_done() const { return bytes_done_; }
  uint64_t bytes_all() const;
  bool complete() const { return state_ != 0 && parts_done_ == have_.size(); }
  // It contains different parts of several states.
  bool mixed() const { return mixed_; }

  // Requires part < part_count(). damaged: the bytes do not match the manifest; nothing changes.
  Added add(uint32_t part, ByteView bytes);

  Bytes take_values() { return std::move(values_); }
  std::vector<LoadedBlob> take_blobs() { return std::move(blobs_); }

 private:
  struct Place {
    // values_ or a blob. It gets whole_bytes of memory when its first part arrives, so a manifest alone costs no memory.
    Bytes* whole = nullptr;
    size_t whole_bytes = 0;
    size_t at = 0;
    size_t bytes = 0;
    uint64_t digest = 0;
  };
  Place place_of(uint32_t part);

  uint64_t schema_;
  std::vector<size_t> chunk_bytes_;
  std::vector<size_t> offsets_;  // of each chunk; the last entry is the end
  StateManifest manifest_;
  uint64_t state_ = 0;
  ChunkBits have_;  // by part of manifest_
  size_t parts_done_ = 0;
  uint64_t bytes_done_ = 0;
  bool mixed_ = false;
  Bytes values_;
  std::vector<LoadedBlob> blobs_;  // in the manifest's order
};

}  // namespace unisono
