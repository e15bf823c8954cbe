// Lossy delivery allocates nothing after the first operation. This file replaces operator new for the whole test program. So
// put every test of this module that counts allocations here.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "lossy/deadline.h"
#include "lossy/delivery_policy.h"
#include "lossy/estimator.h"
#include "lossy/range_arrivals.h"
#include "lossy/stream_clock.h"
#include "testing/replaced_new.h"

namespace {

thread_local uint64_t allocations = 0;

}  // namespace

void* unisono::replaced_new::allocate(size_t bytes, size_t alignment) {
  ++allocations;
  return from_heap(bytes, alignment);
}

// Not inlined, because the compiler would otherwise warn that operator delete calls free.
[[gnu::noinline]] void unisono::replaced_new::release(void* memory) { std::free(memory); }

namespace unisono {
namespace {

constexpr size_t count = 320;

// Estimates full, reduced and empty ranges of one codec and type with all estimators.
class Worker {
 public:
  Worker(const WireCodec& codec, DType dtype)
      : codec_(codec),
        dtype_(dtype),
        message_(codec.message_bytes(count)),
        own_(count * element_bytes(dtype)),
        output_(count * element_bytes(dtype)) {
    kernels::BlockCounts counts;
    encode({.codec = codec_, .dtype = dtype_, .elements = own_.data(), .count = count, .message = message_.data()}, counts);
  }

  void work() {
    for (uint32_t mask = 0; mask < 8; ++mask) {
      const std::byte* const contributions[] = {(mask & 1) != 0 ? message_.data() : nullptr, nullptr,
                                                (mask & 2) != 0 ? message_.data() : nullptr,
                                                (mask & 4) != 0 ? message_.data() : nullptr};
      for (const auto estimator :
           {Estimator::stratified, Estimator::count, Estimator::count_all, Estimator::horvitz_thompson, Estimator::zero_fill}) {
        estimator_.estimate({.codec = codec_,
                             .dtype = dtype_,
                             .contributions = contributions,
                             .own = own_.data(),
                             .owner = 1,
                             .count = count,
                             .estimator = estimator,
                             .output = output_.data()});
      }
    }
  }

 private:
  WireCodec codec_;
  DType dtype_;
  std::vector<std::byte> message_, own_, output_;
  RangeEstimator estimator_;
};

TEST(LossyMemory, the_estimator_allocates_only_for_its_first_range) {
  const WireCodec quantized{.kind = StepCodec::Kind::quantize, .block = {.bits = 4, .group = 32}};
  for (const auto dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    for (const auto& codec : {WireCodec{.dtype = dtype, .block = {}}, quantized}) {
      if (dtype == DType::f64 && codec.quantizes()) continue;
      Worker worker(codec, dtype);
      worker.work();
      const auto before = allocations;
      worker.work();
      EXPECT_EQ(allocations, before) << to_string(codec) << " of " << name(dtype);
    }
  }
}

TEST(LossyMemory, arrivals_allocate_only_when_they_grow) {
  RangeArrivals arrivals;
  arrivals.reset(4262);
  EXPECT_GT(allocations, 0u);
  const auto before = allocations;
  std::byte bitmap[512];
  for (const uint32_t ranges : {4262, 1, 356, 4262}) {
    arrivals.reset(ranges);
    arrivals.mark(0);
    arrivals.missing_bitmap(0, ranges, bitmap);
  }
  EXPECT_EQ(allocations, before);
}

TEST(LossyMemory, deadlines_clocks_and_policies_allocate_nothing) {
  Deadline deadline({});
  DeliveryPolicy policy(Delivery::automatic, {});
  const Nanos announced[] = {40, 0, 30, 20};
  const auto before = allocations;
  for (int i = 0; i < 300; ++i) {
    const auto hard = agreed_deadline(announced, deadline.hard());
    StreamClock clock;
    clock.begin(0, {.soft = deadline.soft(hard), .hard = hard, .grace = Deadline::grace(hard)});
    clock.arrived(1, true, false);
    while (clock.end() == StreamEnd::open) clock.update(clock.due(), false);
    deadline.stream_ended(clock.last() - clock.first());
    deadline.phase_ended({.duration = clock.ended_at(), .hard = hard, .missing_fraction = 0.01});
    policy.operation_ended({.phase_duration = 10, .expected = 100, .missing = 1});
  }
  EXPECT_EQ(allocations, before);
}

}  // namespace
}  // namespace unisono
