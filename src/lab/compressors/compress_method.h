// One method of `unisono-lab bench compress` at one rank: a step takes this rank's gradients and leaves the mean in their
// place, by collectives of the public API, and says what it cost.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lab/compressors/compress_options.h"
#include "unisono/group.h"

namespace unisono::cli {

enum class Phase : uint8_t { begin, first, choose, pack, second, unpack };  // what they are, compress_text says
inline constexpr size_t phase_count = 6;
inline constexpr const char* phase_names[phase_count] = {"begin", "first", "choose", "pack", "second", "unpack"};

struct StepCost {
  std::array<double, phase_count> us{};
  uint64_t payload_bytes = 0;  // given to collectives
  uint64_t sent_bytes = 0;     // by this rank, headers included
  uint32_t collectives = 0;
  double total_us() const;
};

struct MethodStep {
  uint64_t number = 0;
  std::span<float> gradients;  // all tensors, one after the other
  // If set, called with each tensor's gradient after error feedback was added; its time does not count.
  std::function<void(std::span<const float* const> compensated)> compensated{};
};

class CompressMethod {
 public:
  virtual ~CompressMethod() = default;
  virtual Status run(Group& group, const MethodStep& step, StepCost& cost) = 0;
  // How the i-th tensor is treated: "820 of 4096 rows, sketches of 4".
  virtual std::string treatment(size_t i) const = 0;
};

// codec: of its values; plain for methods that take none. invalid: a tensor that the method cannot take.
Result<std::unique_ptr<CompressMethod>> make_compress_method(const CompressPlan& plan, Method method, const Codec& codec);

}  // namespace unisono::cli
