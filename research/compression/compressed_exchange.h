// An exchange that compresses the gradients of the parameters. The values that follow the gradients in the buffer, such as the
// loss, are averaged exactly.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "research/model/bucket_reducer.h"
#include "research/model/data_parallel.h"
#include "unisono/unisono.h"

namespace language_model {

// Makes an exchange with the compression method that options.compression selects. The selection must not be `nothing`. Returns
// the errors of make_library_reducer and make_baseline_reducer.
unisono::Result<std::unique_ptr<GradientExchange>> make_compressed_exchange(unisono::Group group,
                                                                            const ExchangeOptions& options);
// Makes an exchange that uses the given reducer. `method` is the name of the reducer that CompressionNotes will show.
std::unique_ptr<GradientExchange> make_compressed_exchange(unisono::Group group, std::vector<Bucket> buckets,
                                                           std::unique_ptr<BucketReducer> reducer, std::string method);

}  // namespace language_model
