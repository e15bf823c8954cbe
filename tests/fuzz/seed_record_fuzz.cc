// Fuzzes seed records. Such a record has the addresses of a process, and is read from a distributed hash table. The number of
// addresses that are accepted is limited. If they are written and read again, they are equal.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "elastic/seeds/seed_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono;
  // Test the input alone, and the input after a valid beginning, because mutations would hardly find one.
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const auto& record : {text, write_seed_record({}) + text}) {
    const auto addresses = read_seed_record(record);
    UNISONO_CHECK(addresses.size() <= seed_record_addresses_max &&
                  (record.size() <= seed_record_bytes_max || addresses.empty()));
    UNISONO_CHECK(read_seed_record(write_seed_record(addresses)) == addresses);
  }
  return 0;
}
