// Compression's options (unisono/compression.h) as the modules below have them.
#pragma once

#include "compressors/arc_top_k.h"
#include "training/reducer/error_feedback.h"
#include "unisono/compression.h"

namespace unisono {

// ratio: at the step in question. All of an option set that check() accepts.
RowRule row_rule(const Compression& compression, double ratio);
ArcOptions arc_options(const Compression& compression, double ratio);
FeedbackOptions feedback_options(const Compression& compression);
double ratio_at(const Compression& compression, uint64_t step);

}  // namespace unisono
