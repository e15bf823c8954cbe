// A state while it is being loaded: which parts are there, and what they make. Every part is checked against the manifest that
// is adopted; with another manifest finished chunks and whole blobs stay, and what is missing is of the new one. A value.
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

  // By the schema: the same at all donors.
  StateAssembly(uint64_t schema, std::vector<size_t> chunk_bytes);

  // corrupt: the manifest is not of a state of this schema.
  Status fits(const StateManifest& manifest) const;
  // One that fits.
  void adopt(StateManifest manifest);
  uint64_t state() const { return state_; }  // digest of the adopted manifest; 0: none yet
  const StateManifest& manifest() const { return manifest_; }

  uint32_t part_count() const { return static_cast<uint32_t>(have_.size()); }
  bool has(uint32_t part) const { return have_.test(part); }
  uint32_t parts_done() const { return static_cast<uint32_t>(parts_done_); }
  uint64_t bytes_done() const { return bytes_done_; }
  uint64_t bytes_all() const;
  bool complete() const { return state_ != 0 && parts_done_ == have_.size(); }
  // Parts of several states are in it that differ.
  bool mixed() const { return mixed_; }

  // part < part_count(). damaged: not what the manifest says; nothing is changed.
  Added add(uint32_t part, ByteView bytes);

  Bytes take_values() { return std::move(values_); }
  std::vector<LoadedBlob> take_blobs() { return std::move(blobs_); }

 private:
  struct Place {
    Bytes* whole =
        nullptr;  // values_ or a blob; as long as whole_bytes once any of it is there: a manifest alone costs no memory
    size_t whole_bytes = 0;
    size_t at = 0;
    size_t bytes = 0;
    uint64_t digest = 0;
  };
  Place place_of(uint32_t part);

  uint64_t schema_;
  std::vector<size_t> chunk_bytes_;
  std::vector<size_t> offsets_;  // of each chunk, and the end
  StateManifest manifest_;
  uint64_t state_ = 0;
  ChunkBits have_;  // by part of manifest_
  size_t parts_done_ = 0;
  uint64_t bytes_done_ = 0;
  bool mixed_ = false;
  Bytes values_;
  std::vector<LoadedBlob> blobs_;  // as in the manifest
};

}  // namespace unisono
