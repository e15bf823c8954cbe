// An exchange whose gradients travel smaller, and what does not belong to a parameter, exact.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "research/model/bucket_reducer.h"
#include "research/model/data_parallel.h"
#include "unisono/unisono.h"

namespace language_model {

// options.compression says how; it is not `nothing`. Errors: as make_library_reducer and make_baseline_reducer.
unisono::Result<std::unique_ptr<GradientExchange>> make_compressed_exchange(unisono::Group group,
                                                                            const ExchangeOptions& options);
// The same with a reducer of the caller's. method: what the notes call it.
std::unique_ptr<GradientExchange> make_compressed_exchange(unisono::Group group, std::vector<Bucket> buckets,
                                                           std::unique_ptr<BucketReducer> reducer, std::string method);

}  // namespace language_model
