// SeedDht for builds without OpenDHT: make() returns the error unsupported.
#include "elastic/seeds/seed_dht.h"

namespace unisono {

std::string seed_dht_key(const std::string& run_id) { return "unisono/elastic/" + run_id; }

bool SeedDht::built_in() { return false; }

Result<std::unique_ptr<SeedDht>> SeedDht::make(const SeedDhtOptions&) {
  return Status(Code::unsupported, "this build has no OpenDHT; configure it with -DUNISONO_OPENDHT=ON");
}

}  // namespace unisono
