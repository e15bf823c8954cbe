// Unisono provides all-reduce and other collectives for clusters with stragglers, packet loss, slow links and changing members.
// Include only this header.
#pragma once

#include "unisono/codec_facts.h"   // IWYU pragma: export
#include "unisono/compression.h"   // IWYU pragma: export
#include "unisono/counters.h"      // IWYU pragma: export
#include "unisono/drop_compute.h"  // IWYU pragma: export
#include "unisono/elastic.h"       // IWYU pragma: export
#include "unisono/group.h"         // IWYU pragma: export
#include "unisono/moshpit_sgd.h"   // IWYU pragma: export
#include "unisono/options.h"       // IWYU pragma: export
#include "unisono/report.h"        // IWYU pragma: export
#include "unisono/schedules.h"     // IWYU pragma: export
#include "unisono/sharded_step.h"  // IWYU pragma: export
#include "unisono/status.h"        // IWYU pragma: export
#include "unisono/tensor.h"        // IWYU pragma: export
#include "unisono/training.h"      // IWYU pragma: export
#include "unisono/transports.h"    // IWYU pragma: export
#include "unisono/version.h"       // IWYU pragma: export
