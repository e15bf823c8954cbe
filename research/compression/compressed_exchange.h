// An exchange that compresses the gradients of parameters. Values behind them, such as the loss, stay exact.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "research/model/bucket_reducer.h"
#include "research/model/data_parallel.h"
#include "unisono/unisono.h"

namespace language_model {

// options.compression names the method; it must not be `nothing`. Errors: as make_library_reducer and make_baseline_reducer.
unisono::Result<std::unique_ptr<GradientExchange>> make_compressed_exchange(unisono::Group group,
                                                                            const ExchangeOptions& options);
// The same with the caller's reducer. method: its name in the notes.
std::unique_ptr<GradientExchange> make_compressed_exchange(unisono::Group group, std::vector<Bucket> buckets,
                                                           std::unique_ptr<BucketReducer> reducer, std::string method);

}  // namespace language_model
