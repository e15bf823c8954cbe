// Converts the options of compression (unisono/compression.h) to the options of compressors and of error feedback. The options
// must have passed check().
#pragma once

#include "compressors/arc_top_k.h"
#include "compressors/power_sgd.h"
#include "training/reducer/error_feedback.h"
#include "unisono/compression.h"

namespace unisono {

// `ratio` is the ratio that applies in the current step (ratio_at).
RowRule row_rule(const Compression& compression, double ratio);
ArcOptions arc_options(const Compression& compression, double ratio);
PowerOptions power_options(const Compression& compression);
// Returns how a tensor of this shape is sent in compressed steps. If the method is `dense`, returns what the method `arc` would
// decide.
Decision decide(const Compression& compression, double ratio, std::span<const uint64_t> shape);
Result<std::unique_ptr<Compressor>> make_compressor(const Compression& compression, double ratio, uint32_t group,
                                                    std::vector<GroupTensor> tensors, uint32_t side_value_count = 0);
FeedbackOptions feedback_options(const Compression& compression);
double ratio_at(const Compression& compression, uint64_t step);

}  // namespace unisono
