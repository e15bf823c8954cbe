// The shared measuring loop as a C interface, for libraries that are not used from C++. The caller passes functions.
//
// Each function returns 0 on success. It returns 1 if the library cannot do the requested job, and 2 after it has printed an
// error.

#include <cstdio>
#include <string>

#include "../harness.h"

namespace {

using unisono::Code;
using unisono::Status;
using unisono::bench::Buffers;
using unisono::bench::Job;

struct Functions {
  int (*prepare)(const char* collective, void* input, void* output, size_t elements);  // The buffers have fp32 elements.
  int (*call)();
  int (*barrier)();
};

Status status_of(int answer, const char* what) {
  if (answer == 0) return {};
  return {answer == 1 ? Code::unsupported : Code::internal, what};
}

class CallbackSubject final : public unisono::bench::Subject {
 public:
  CallbackSubject(uint32_t rank, uint32_t world_size, const Functions& functions)
      : rank_(rank), world_size_(world_size), functions_(functions) {}
  uint32_t rank() const override { return rank_; }
  uint32_t world_size() const override { return world_size_; }
  Status prepare(const Job& job, const Buffers& buffers) override {
    if (job.element != unisono::bench::Element::f32 || job.parts > 1)
      return {Code::unsupported, "fp32, one operation at a time"};
    return status_of(functions_.prepare(name(job.collective), buffers.input, buffers.output, job.elements()), "prepare");
  }
  Status call() override { return status_of(functions_.call(), "the call failed"); }
  Status barrier() override { return status_of(functions_.barrier(), "the barrier failed"); }
  void progress() override {}

 private:
  uint32_t rank_, world_size_;
  Functions functions_;
};

}  // namespace

// Returns 0 if all jobs were measured and had correct results, 2 if the command line is invalid, and 1 otherwise.
extern "C" int bench_loop(int argc, char** argv, uint32_t rank, uint32_t world_size, const Functions* functions) {
  auto options = unisono::bench::parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr, "%s\n", options.status().to_string().c_str());
    return 2;
  }
  unisono::bench::end_in_time(*options);
  CallbackSubject subject(rank, world_size, *functions);
  const auto status = unisono::bench::run(subject, *options);
  if (!status.ok()) std::fprintf(stderr, "rank %u: %s\n", rank, status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
