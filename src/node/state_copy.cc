#include "node/state_copy.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "wire/digest.h"

namespace unisono {

StateCopy::StateCopy(uint64_t schema, std::vector<size_t> chunk_bytes) : schema_(schema), chunk_bytes_(std::move(chunk_bytes)) {
  UNISONO_CHECK(chunk_bytes_.size() <= state_chunks_max);
  offsets_.push_back(0);
  for (const auto bytes : chunk_bytes_) offsets_.push_back(offsets_.back() + bytes);
  saved_.resize(chunk_bytes_.size());
}

Status StateCopy::set_blobs(std::vector<StateBlob> blobs) {
  if (blobs.size() > state_blobs_max) {
    return {Code::invalid, std::to_string(blobs.size()) + " blobs: at most " + std::to_string(state_blobs_max) + " are possible"};
  }
  std::sort(blobs.begin(), blobs.end(), [](const StateBlob& a, const StateBlob& b) { return a.name < b.name; });
  uint64_t total = 0;
  for (size_t i = 0; i < blobs.size(); ++i) {
    total += blobs[i].bytes.size();
    if (blobs[i].name.size() > state_blob_name_bytes_max) return {Code::invalid, "blob " + blobs[i].name + ": its name is too long"};
    if (i > 0 && blobs[i].name == blobs[i - 1].name) return {Code::invalid, "blob " + blobs[i].name + ": given twice"};
  }
  if (total > state_blob_bytes_max) {
    return {Code::invalid, "blobs of " + std::to_string(total) + " bytes: at most " + std::to_string(state_blob_bytes_max) + " are possible"};
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
  if (newest_) remake_newest(newest_->manifest.sweep, newest_->manifest.chunk_digests);
  return {};
}

void StateCopy::finished(int64_t sweep, ByteView values, std::vector<uint64_t> digests) {
  UNISONO_CHECK(values.size() == offsets_.back() && sweep >= -1);
  if (digests.empty()) {
    for (size_t chunk = 0; chunk < chunk_bytes_.size(); ++chunk) {
      digests.push_back(digest64(values.subspan(offsets_[chunk], chunk_bytes_[chunk])));
    }
  }
  UNISONO_CHECK(digests.size() == chunk_bytes_.size());
  values_ = values;
  intact_ = true;
  remake_newest(sweep, std::move(digests));
}

void StateCopy::remake_newest(int64_t sweep, std::vector<uint64_t> digests) {
  auto version = std::make_shared<Version>();
  version->manifest = {sweep, schema_, offsets_.back(), std::move(digests), entries_};
  version->digest = digest(version->manifest);
  version->blobs = blobs_;
  newest_ = std::move(version);
}

void StateCopy::before_write(size_t chunk) {
  UNISONO_CHECK(chunk < chunk_bytes_.size());
  intact_ = false;
  if (held_ && !saved_[chunk]) saved_[chunk] = SharedBuffer::copy(held_values_.subspan(offsets_[chunk], chunk_bytes_[chunk]));
}

void StateCopy::before_write_all() {
  intact_ = false;
  for (size_t chunk = 0; held_ && chunk < chunk_bytes_.size(); ++chunk) before_write(chunk);
}

uint64_t StateCopy::state_digest() const { return held_ ? held_->digest : newest_ ? newest_->digest : 0; }

int64_t StateCopy::sweep() const { return held_ ? held_->manifest.sweep : newest_ ? newest_->manifest.sweep : -1; }

bool StateCopy::hold() {
  if (held_) return true;
  if (!newest_ || !intact_) return false;
  held_ = newest_;
  held_values_ = values_;
  return true;
}

void StateCopy::release() {
  held_.reset();
  saved_.assign(chunk_bytes_.size(), {});
}

ByteView StateCopy::piece_of(uint32_t part) const {
  if (part < chunk_bytes_.size()) {
    return saved_[part] ? saved_[part].view() : held_values_.subspan(offsets_[part], chunk_bytes_[part]);
  }
  size_t piece = part - chunk_bytes_.size();
  for (size_t blob = 0; blob < held_->blobs.size(); ++blob) {
    const auto pieces = held_->manifest.blobs[blob].digests.size();
    if (piece >= pieces) {
      piece -= pieces;
      continue;
    }
    const auto bytes = held_->blobs[blob].view().subspan(piece * state_piece_bytes);
    return bytes.first(std::min(bytes.size(), state_piece_bytes));
  }
  return {};
}

size_t StateCopy::part_bytes(uint32_t part) const { return piece_of(part).size(); }

void StateCopy::read_part(uint32_t part, std::span<std::byte> into) const {
  const auto from = piece_of(part);
  UNISONO_CHECK(from.size() == into.size());
  if (!from.empty()) std::memcpy(into.data(), from.data(), from.size());
}

}  // namespace unisono
