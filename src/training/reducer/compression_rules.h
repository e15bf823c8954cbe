// Compression's options (unisono/compression.h) as the compressors and error feedback take them. The options are ones that
// check() accepts.
#pragma once

#include "compressors/arc_top_k.h"
#include "compressors/power_sgd.h"
#include "training/reducer/error_feedback.h"
#include "unisono/compression.h"

namespace unisono {

// ratio: that of the step in question (ratio_at).
RowRule row_rule(const Compression& compression, double ratio);
ArcOptions arc_options(const Compression& compression, double ratio);
PowerOptions power_options(const Compression& compression);
// How a tensor of this shape travels in compressed steps. (Method dense: as if it were arc.)
Decision decide(const Compression& compression, double ratio, std::span<const uint64_t> shape);
Result<std::unique_ptr<Compressor>> make_compressor(const Compression& compression, double ratio, uint32_t group,
                                                    std::vector<GroupTensor> tensors, uint32_t notes = 0);
FeedbackOptions feedback_options(const Compression& compression);
double ratio_at(const Compression& compression, uint64_t step);

}  // namespace unisono
