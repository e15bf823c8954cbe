#include "elastic/state/state_copy.h"

#include <algorithm>

#include "base/check.h"
#include "base/concat.h"
#include "wire/digest.h"

namespace unisono {

StateCopy::StateCopy(uint64_t schema, std::vector<size_t> chunk_bytes) : schema_(schema), chunk_bytes_(std::move(chunk_bytes)) {
  UNISONO_CHECK(chunk_bytes_.size() <= state_chunks_max);
  for (const auto bytes : chunk_bytes_) bytes_ += bytes;
}

Status StateCopy::set_blobs(std::vector<StateBlob> blobs) {
  if (blobs.size() > state_blobs_max) {
    return {Code::invalid, concat(blobs.size(), " blobs: at most ", state_blobs_max, " are possible")};
  }
  std::sort(blobs.begin(), blobs.end(), [](const StateBlob& a, const StateBlob& b) { return a.name < b.name; });
  uint64_t total = 0;
  for (size_t i = 0; i < blobs.size(); ++i) {
    total += blobs[i].bytes.size();
    if (blobs[i].name.size() > state_blob_name_bytes_max)
      return {Code::invalid, "blob " + blobs[i].name + ": its name is too long"};
    if (i > 0 && blobs[i].name == blobs[i - 1].name) return {Code::invalid, "blob " + blobs[i].name + ": given twice"};
  }
  if (total > state_blob_bytes_max) {
    return {Code::invalid, concat("blobs of ", total, " bytes: at most ", state_blob_bytes_max, " are possible")};
  }
  entries_.clear();
  blobs_.clear();
  for (auto& blob : blobs) {
    StateBlobEntry entry{blob.name, blob.bytes.size(), {}};
    for (size_t at = 0; at < entry.bytes; at += state_piece_bytes) {
      entry.digests.push_back(digest64(blob.bytes.view().subspan(at, std::min(state_piece_bytes, blob.bytes.size() - at))));
    }
    entries_.push_back(std::move(entry));
    blobs_.push_back(std::move(blob.bytes));
  }
  if (newest_) remake_newest(newest_->manifest.step, newest_->chunks, newest_->manifest.chunk_digests);
  return {};
}

void StateCopy::finished(int64_t step, std::vector<SharedBuffer> chunks, std::vector<uint64_t> digests) {
  UNISONO_CHECK(step >= -1 && digests.size() == chunk_bytes_.size());
  UNISONO_CHECK(std::ranges::equal(chunks, chunk_bytes_, {}, &SharedBuffer::size));
  remake_newest(step, std::move(chunks), std::move(digests));
}

void StateCopy::remake_newest(int64_t step, std::vector<SharedBuffer> chunks, std::vector<uint64_t> digests) {
  auto version = std::make_shared<Version>();
  version->manifest = {step, schema_, bytes_, std::move(digests), entries_};
  version->digest = digest(version->manifest);
  version->chunks = std::move(chunks);
  version->blobs = blobs_;
  newest_ = std::move(version);
}

uint64_t StateCopy::state_digest() const { return held_ ? held_->digest : newest_ ? newest_->digest : 0; }

int64_t StateCopy::step() const { return held_ ? held_->manifest.step : newest_ ? newest_->manifest.step : -1; }

void StateCopy::hold() {
  UNISONO_CHECK(newest_ != nullptr);
  if (!held_) held_ = newest_;
}

void StateCopy::release() { held_.reset(); }

SharedBuffer StateCopy::part(uint32_t part) const {
  if (part < chunk_bytes_.size()) return held_->chunks[part];
  size_t piece = part - chunk_bytes_.size();
  for (size_t blob = 0; blob < held_->blobs.size(); ++blob) {
    const auto pieces = held_->manifest.blobs[blob].digests.size();
    if (piece >= pieces) {
      piece -= pieces;
      continue;
    }
    const size_t from = piece * state_piece_bytes;
    return held_->blobs[blob].slice(from, std::min(held_->blobs[blob].size() - from, state_piece_bytes));
  }
  return {};
}

}  // namespace unisono
