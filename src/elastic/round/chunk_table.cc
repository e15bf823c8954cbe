#include "elastic/round/chunk_table.h"

#include <algorithm>

#include "base/check.h"

namespace unisono {
namespace {

constexpr size_t chunk_elements_max = 65536, chunk_elements_min = 256, chunk_unit = 64;

size_t pieces(size_t whole, size_t piece) { return whole / piece + (whole % piece != 0 ? 1 : 0); }

}  // namespace

ChunkTable::ChunkTable(size_t elements, uint32_t max_group) : elements_(elements), chunk_elements_(chunk_elements_max) {
  UNISONO_CHECK(max_group >= 1);
  const size_t wanted = 4 * size_t{max_group};
  if (pieces(elements, chunk_elements_max) < wanted) {
    chunk_elements_ = std::max(chunk_elements_min, pieces(pieces(elements, wanted), chunk_unit) * chunk_unit);
  }
  const size_t chunks = pieces(elements, chunk_elements_);
  UNISONO_CHECK(chunks < size_t{1} << 32);
  chunks_ = static_cast<uint32_t>(chunks);
  window_ = static_cast<uint32_t>(std::max<size_t>(inflight_chunks, inflight_bytes_min / (chunk_elements_ * sizeof(float))));
}

}  // namespace unisono
