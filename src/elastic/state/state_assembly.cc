#include "elastic/state/state_assembly.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/concat.h"
#include "wire/digest.h"

namespace unisono {

StateAssembly::StateAssembly(uint64_t schema, std::vector<size_t> chunk_bytes)
    : schema_(schema), chunk_bytes_(std::move(chunk_bytes)) {
  UNISONO_CHECK(chunk_bytes_.size() <= state_chunks_max);
  offsets_.push_back(0);
  for (const auto bytes : chunk_bytes_) offsets_.push_back(offsets_.back() + bytes);
}

Status StateAssembly::fits(const StateManifest& manifest) const {
  if (manifest.schema != schema_) return {Code::corrupt, "state message: manifest of other tensors"};
  if (manifest.vector_bytes != offsets_.back() || manifest.chunk_digests.size() != chunk_bytes_.size()) {
    return {Code::corrupt,
            concat("state message: manifest of ", manifest.vector_bytes, " bytes in ", manifest.chunk_digests.size(),
                   " chunks, not ", offsets_.back(), " in ", chunk_bytes_.size())};
  }
  return {};
}

void StateAssembly::adopt(StateManifest manifest) {
  ChunkBits have(manifest.part_count());
  for (size_t chunk = 0; state_ != 0 && chunk < chunk_bytes_.size(); ++chunk) {
    if (!have_.test(chunk)) continue;
    have.set(chunk);
    mixed_ = mixed_ || manifest.chunk_digests[chunk] != manifest_.chunk_digests[chunk];
  }
  std::vector<LoadedBlob> blobs;
  size_t next = chunk_bytes_.size();  // number of the blob's first part in the new manifest
  for (const auto& entry : manifest.blobs) {
    blobs.push_back({entry.name, {}});
    size_t old = chunk_bytes_.size();
    for (size_t i = 0; i < manifest_.blobs.size(); old += manifest_.blobs[i++].digests.size()) {
      const auto& before = manifest_.blobs[i];
      if (before.name != entry.name || before.bytes != entry.bytes) continue;
      const auto pieces = before.digests.size();
      size_t done = 0;
      for (size_t piece = 0; piece < pieces; ++piece) done += have_.test(old + piece) ? 1 : 0;
      const bool same = before.digests == entry.digests;
      // A blob must not be a mixture of pieces of two states. Therefore, if the new blob differs and the old one is incomplete,
      // all of its pieces are loaded again.
      if (!same && done < pieces) continue;
      for (size_t piece = 0; piece < pieces; ++piece) {
        if (have_.test(old + piece)) have.set(next + piece);
      }
      blobs.back() = std::move(blobs_[i]);
      mixed_ = mixed_ || (!same && done > 0);
    }
    next += entry.digests.size();
  }
  manifest_ = std::move(manifest);
  state_ = digest(manifest_);
  have_ = std::move(have);
  blobs_ = std::move(blobs);
  parts_done_ = have_.count();
  bytes_done_ = 0;
  for (uint32_t part = 0; part < have_.size(); ++part) bytes_done_ += have_.test(part) ? location_of(part).bytes : 0;
}

uint64_t StateAssembly::bytes_all() const {
  uint64_t bytes = offsets_.back();
  for (const auto& blob : manifest_.blobs) bytes += blob.bytes;
  return bytes;
}

StateAssembly::PartLocation StateAssembly::location_of(uint32_t part) {
  if (part < chunk_bytes_.size())
    return {&values_, offsets_.back(), offsets_[part], chunk_bytes_[part], manifest_.chunk_digests[part]};
  size_t piece = part - chunk_bytes_.size();
  size_t blob = 0;
  while (piece >= manifest_.blobs[blob].digests.size()) piece -= manifest_.blobs[blob++].digests.size();
  const auto& entry = manifest_.blobs[blob];
  const size_t at = piece * state_piece_bytes;
  return {&blobs_[blob].bytes, entry.bytes, at, std::min<size_t>(state_piece_bytes, entry.bytes - at), entry.digests[piece]};
}

StateAssembly::Added StateAssembly::add(uint32_t part, ByteView bytes) {
  UNISONO_CHECK(part < have_.size());
  if (have_.test(part)) return Added::repeated;
  const auto expected = location_of(part);
  if (bytes.size() != expected.bytes || digest64(bytes) != expected.digest) return Added::damaged;
  expected.whole->resize(expected.whole_bytes);
  if (!bytes.empty()) std::memcpy(expected.whole->data() + expected.at, bytes.data(), bytes.size());
  have_.set(part);
  ++parts_done_;
  bytes_done_ += bytes.size();
  return Added::fresh;
}

}  // namespace unisono
