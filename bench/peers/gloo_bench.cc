// Gloo (the version that Debian packages) under the shared measuring loop: its older algorithm classes, and gloo::allreduce.
//
//   RANK=0 WORLD_SIZE=2 gloo_bench --store DIR --board FILE [--mode async|sync|busy] --plan 1024=bcube,65536=ring_chunked
// Modes sync and busy take Gloo's event thread out of the path; they exist for the older classes only.

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "../harness.h"
#include "gloo/allreduce.h"
#include "gloo/allreduce_bcube.h"
#include "gloo/allreduce_halving_doubling.h"
#include "gloo/allreduce_ring_chunked.h"
#include "gloo/barrier_all_to_all.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/device.h"

namespace {

using unisono::Code;
using unisono::Status;
using Context = std::shared_ptr<gloo::Context>;

class GlooSubject final : public unisono::bench::Subject {
 public:
  GlooSubject(Context context, bool event_thread)
      : context_(std::move(context)),
        barrier_(std::make_unique<gloo::BarrierAllToAll>(context_)),
        event_thread_(event_thread) {}

  uint32_t rank() const override { return static_cast<uint32_t>(context_->rank); }
  uint32_t world_size() const override { return static_cast<uint32_t>(context_->size); }

  Status prepare(const std::string& algorithm, float* data, size_t count) override {
    algorithm_.reset();
    options_.reset();
    const int elements = static_cast<int>(count);
    const std::vector<float*> pointers{data};
    if (algorithm == "ring_chunked") {
      algorithm_ = std::make_unique<gloo::AllreduceRingChunked<float>>(context_, pointers, elements);
    } else if (algorithm == "halving_doubling") {
      algorithm_ = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context_, pointers, elements);
    } else if (algorithm == "bcube") {
      algorithm_ = std::make_unique<gloo::AllreduceBcube<float>>(context_, pointers, elements);
    } else if (event_thread_ && (algorithm.empty() || algorithm == "new_ring" || algorithm == "new_bcube")) {
      using Algorithm = gloo::AllreduceOptions::Algorithm;
      options_ = std::make_unique<gloo::AllreduceOptions>(context_);
      options_->setOutput(data, count);
      options_->setAlgorithm(algorithm == "new_bcube" ? Algorithm::BCUBE : Algorithm::RING);
      options_->setReduceFunction([](void* out, const void* a, const void* b, size_t n) { gloo::sum<float>(out, a, b, n); });
    } else {
      return {Code::invalid, "no algorithm \"" + algorithm + "\" in this mode"};
    }
    return {};
  }
  Status all_reduce() override {
    if (algorithm_) {
      algorithm_->run();
    } else {
      gloo::allreduce(*options_);
    }
    return {};
  }
  Status barrier() override {
    barrier_->run();
    return {};
  }
  void progress() override {}  // a thread of Gloo's own moves the bytes

 private:
  Context context_;
  std::unique_ptr<gloo::BarrierAllToAll> barrier_;  // held by pointer: destructors of Gloo's algorithms may throw
  bool event_thread_;
  std::unique_ptr<gloo::Algorithm> algorithm_;
  std::unique_ptr<gloo::AllreduceOptions> options_;
};

Context connect(const std::string& store_path, const std::string& mode) {
  gloo::transport::tcp::attr attributes("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context =
      std::make_shared<gloo::rendezvous::Context>(std::atoi(std::getenv("RANK")), std::atoi(std::getenv("WORLD_SIZE")));
  gloo::rendezvous::FileStore store(store_path);
  context->connectFullMesh(store, device);
  if (mode != "async") {
    for (int peer = 0; peer < context->size; ++peer) {
      if (peer != context->rank) context->getPair(peer)->setSync(true, mode == "busy");
    }
  }
  return context;
}

}  // namespace

int main(int argc, char** argv) {
  using unisono::bench::argument;
  auto options = unisono::bench::parse_options(argc, argv);
  if (!options || std::getenv("RANK") == nullptr || std::getenv("WORLD_SIZE") == nullptr) {
    std::fprintf(stderr, "%s; RANK and WORLD_SIZE must be set\n", options.status().to_string().c_str());
    return 2;
  }
  unisono::bench::end_in_time(*options);
  const auto mode = argument(argc, argv, "--mode", "async");
  Status status;
  try {  // Gloo reports by exceptions
    GlooSubject subject(connect(argument(argc, argv, "--store", ""), mode), mode == "async");
    status = unisono::bench::run(subject, *options);
  } catch (const std::exception& problem) {
    status = Status(Code::internal, problem.what());
  }
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
