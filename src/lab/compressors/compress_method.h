// One compression method of `unisono-lab bench compress` on one rank. In each step it replaces this rank's gradients by their
// mean over all ranks, for which it uses collectives of the public API. It also reports what the step cost.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lab/compressors/compress_options.h"
#include "unisono/group.h"

namespace unisono::lab {

enum class Phase : uint8_t { begin, first, choose, pack, second, unpack };  // compress_text describes the phases
inline constexpr size_t phase_count = 6;
inline constexpr const char* phase_names[phase_count] = {"begin", "first", "choose", "pack", "second", "unpack"};

struct StepCost {
  std::array<double, phase_count> us{};
  uint64_t payload_bytes = 0;  // number of bytes that this rank passed to collectives
  uint64_t sent_bytes = 0;     // number of bytes that this rank sent, headers included
  uint32_t collectives = 0;
  double total_us() const;
};

struct MethodStep {
  uint64_t number = 0;
  std::span<float> gradients;  // all tensors, one after the other
  // If set, this is called with the gradient of each tensor after error feedback has added its residual (what was not sent
  // before). The measured time does not include this call.
  std::function<void(std::span<const float* const> compensated)> compensated{};
};

class CompressMethod {
 public:
  virtual ~CompressMethod() = default;
  virtual Status run(Group& group, const MethodStep& step, StepCost& cost) = 0;
  // Describes how the i-th tensor is compressed, for example "820 of 4096 rows, sketches of 4".
  virtual std::string treatment(size_t i) const = 0;
};

// codec: encodes the values that the method sends; it must be plain unless takes_codec(method). Fails with Code::invalid if the
// method cannot compress one of the plan's tensors.
Result<std::unique_ptr<CompressMethod>> make_compress_method(const CompressPlan& plan, Method method, const Codec& codec);

}  // namespace unisono::lab
