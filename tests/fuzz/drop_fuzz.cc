// Fuzzes the parsers of DropCompute, which read files of recorded times, options, and checkpoints. Each input is either
// refused, or accepted; what was accepted can then be used.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/check.h"
#include "training/drop_compute/compute_trace.h"
#include "training/drop_compute/drop_policy.h"
#include "training/drop_compute/threshold_search.h"
#include "unisono/drop_compute.h"

namespace unisono {
namespace {

// If a trace is accepted, it is valid, and every rule can search it.
void fuzz_trace(std::string_view text) {
  const auto trace = ComputeTrace::parse(text);
  if (!trace.ok()) return;
  UNISONO_CHECK(trace->check().ok() && trace->steps() > 0);
  for (const auto rule : {DropOptions::Rule::after, DropOptions::Rule::before, DropOptions::Rule::at}) {
    DropOptions options;
    options.threshold = DropOptions::Threshold::automatic;
    options.rule = rule;
    const auto best = search(*trace, search_options(options, *trace)).best;
    UNISONO_CHECK(best.drop >= 0 && best.drop <= 1);
  }
}

void fuzz_options(std::string_view text) {
  const auto options = DropOptions::parse(text);
  if (!options.ok()) return;
  const auto again = DropOptions::parse(options->to_string());
  UNISONO_CHECK(again.ok() && *again == *options);
}

// If a policy accepts a state, the state can be written, read, and written again with the same bits. Later calls of the policy
// do not hang.
void fuzz_policy(ByteView bytes) {
  for (const char* text : {"auto:warmup=2,calibration=3,min_calibration=2,window=4", "0.002:warmup=1,window=3", "off"}) {
    DropPolicy policy(*DropOptions::parse(text), 3, 5);
    ByteReader reader(bytes);
    if (!policy.read(reader)) continue;
    ByteWriter once, twice;
    policy.write(once);
    DropPolicy other(*DropOptions::parse(text), 3, 5);
    ByteReader own(once.view());
    UNISONO_CHECK(other.read(own) && own.done());
    other.write(twice);
    UNISONO_CHECK(Bytes(once.view().begin(), once.view().end()) == Bytes(twice.view().begin(), twice.view().end()));
    policy.ranks_changed(2);
    for (int i = 0; i < 12; ++i) {
      (void)policy.threshold_ns();
      if (policy.step_ended() == DropPolicy::Gather::nothing) continue;
      const std::vector<std::vector<StepRecord>> ranks(
          2, std::vector<StepRecord>(policy.next_step() - policy.window_from(),
                                     {.planned = 5, .computed = 4, .compute_ns = 10, .wall_ns = 12}));
      (void)policy.window_gathered(ranks);
      (void)policy.extend(1);
      UNISONO_CHECK(!policy.report().to_string().empty() && !policy.total().to_string().empty());
    }
    policy.restart();
    (void)policy.step_ended();
  }
}

}  // namespace
}  // namespace unisono

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 4) {
    case 0: fuzz_trace(text); break;
    // Put a valid header line in front, because mutations would hardly find one.
    case 1: fuzz_trace(ComputeTrace::head(1 + data[0] / 4 % 3) + "\n" + std::string(text)); break;
    case 2: fuzz_options(text); break;
    case 3: fuzz_policy({reinterpret_cast<const std::byte*>(data + 1), size - 1}); break;
  }
  return 0;
}
