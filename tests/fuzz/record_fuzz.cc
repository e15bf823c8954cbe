// Fuzzes the parser of records. Its input comes from a file, or from the memory of another process. Either the bytes are
// refused, or the result is a record with valid values.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "record/recorder.h"
#include "record/snapshot.h"

namespace unisono::record {
namespace {

void check(const Snapshot& record) {
  UNISONO_CHECK(record.world > 0 && record.rank < record.world && record.links.size() == record.world);
  for (const auto& operation : record.operations) {
    UNISONO_CHECK(operation.started <= operation.ended && operation.pending < static_cast<int32_t>(record.world));
    UNISONO_CHECK(!operation.name.to_string().empty() && !operation.name.call().empty());
    (void)record.wall(operation.ended);
  }
  for (const auto& running : record.running) {
    for (const auto rank : running.pending) UNISONO_CHECK(rank < record.world);
    (void)record.wall(running.progress);
  }
  for (const char c : record.host + record.note) UNISONO_CHECK(c >= ' ' && c <= '~');
}

// Returns a valid record in which the input has overwritten some bytes. Mutations alone would hardly find the size of a record.
Bytes damaged(const uint8_t* data, size_t size) {
  const auto made = Recorder::make({.links = {{"shm", "a"}, {"self", "b"}}}, {.operations = ring_min});
  UNISONO_CHECK(made.ok());
  Bytes bytes((*made)->bytes().begin(), (*made)->bytes().end());
  while (size >= 3) {
    const size_t at = (data[0] | size_t{data[1]} << 8) % bytes.size();
    const size_t count = std::min<size_t>({size_t{data[2]} % 64 + 1, size - 3, bytes.size() - at});
    std::memcpy(bytes.data() + at, data + 3, count);
    data += 3 + count;
    size -= 3 + count;
  }
  return bytes;
}

}  // namespace
}  // namespace unisono::record

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono::record;
  if (const auto record = parse({reinterpret_cast<const std::byte*>(data), size})) check(*record);
  if (size < 8) return 0;
  uint64_t overwritten = 0;
  std::memcpy(&overwritten, data, sizeof(overwritten));
  if (const auto record = parse(damaged(data + 8, size - 8), overwritten)) check(*record);
  return 0;
}
