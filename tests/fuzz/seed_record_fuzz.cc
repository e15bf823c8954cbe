// Arbitrary bytes from a hash table as the addresses of a process: few are accepted, each once, and accepted ones can be
// written and read again.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "elastic/seeds/seed_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono;
  // Once unchanged, and once with the opening, which mutations would not find.
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const auto& record : {text, write_seed_record({}) + text}) {
    const auto addresses = read_seed_record(record);
    UNISONO_CHECK(addresses.size() <= seed_record_addresses_max &&
                  (record.size() <= seed_record_bytes_max || addresses.empty()));
    UNISONO_CHECK(read_seed_record(write_seed_record(addresses)) == addresses);
  }
  return 0;
}
