#include "elastic/wire/elastic_message.h"

namespace unisono {

const char* name(ElasticRole role) {
  switch (role) {
    case ElasticRole::peer: return "peer";
    case ElasticRole::client: return "client";
    case ElasticRole::reducer: return "reducer";
  }
  return "unknown";
}

}  // namespace unisono
