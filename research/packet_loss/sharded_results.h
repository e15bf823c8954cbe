// Prints the results of a training with a sharded optimizer. They are a part of the table and of summary.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "research/packet_loss/sharded_training.h"

namespace language_model {

std::string describe(const ShardedResults& results);
nlohmann::json to_json(const ShardedResults& results);

}  // namespace language_model
