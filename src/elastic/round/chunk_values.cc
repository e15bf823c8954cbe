#include "elastic/round/chunk_values.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "wire/digest.h"

namespace unisono {

ChunkValues::ChunkValues(const ChunkTable& table, const SharedBuffer& whole) : table_(table), digests_(table.chunks()) {
  UNISONO_CHECK(whole.size() == table.elements() * sizeof(float));
  for (uint32_t chunk = 0; chunk < table.chunks(); ++chunk)
    chunks_.push_back(whole.slice(table.first(chunk) * sizeof(float), table.count(chunk) * sizeof(float)));
}

void ChunkValues::replace(uint32_t chunk, SharedBuffer values, std::optional<uint64_t> digest) {
  UNISONO_CHECK(chunk < table_.chunks() && values.size() == chunks_[chunk].size());
  chunks_[chunk] = std::move(values);
  digests_[chunk] = digest;
}

std::vector<uint64_t> ChunkValues::digests() const {
  std::vector<uint64_t> all(table_.chunks());
  for (uint32_t chunk = 0; chunk < table_.chunks(); ++chunk)
    all[chunk] = digests_[chunk] ? *digests_[chunk] : digest64(chunks_[chunk].view());
  return all;
}

void ChunkValues::read(size_t first, std::span<float> into) const {
  UNISONO_CHECK(first + into.size() <= table_.elements());
  for (size_t done = 0; done < into.size();) {
    const auto at = static_cast<uint32_t>((first + done) / table_.chunk_elements());
    const size_t inside = first + done - table_.first(at), count = std::min(into.size() - done, table_.count(at) - inside);
    std::memcpy(into.data() + done, chunk(at) + inside, count * sizeof(float));
    done += count;
  }
}

std::vector<float> ChunkValues::all() const {
  std::vector<float> values(table_.elements());
  read(0, values);
  return values;
}

}  // namespace unisono
