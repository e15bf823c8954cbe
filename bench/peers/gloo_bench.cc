// Runs Gloo in the shared measuring loop, with its older algorithm classes and with its newer functions. The version of Gloo is
// that of Debian's package.
//
//   RANK=0 WORLD_SIZE=2 gloo_bench --store DIR --board FILE [--address 127.0.0.1] [--mode async|sync|busy]
//     --plan 1024=bcube,65536=ring_chunked
// In the modes sync and busy, bytes move without Gloo's event thread. Only the older classes have these modes. Gloo's
// reduce-scatter works only in place, so a call also copies the result to the output.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "../harness.h"
#include "gloo/allgather.h"
#include "gloo/allreduce.h"
#include "gloo/allreduce_bcube.h"
#include "gloo/allreduce_halving_doubling.h"
#include "gloo/allreduce_ring_chunked.h"
#include "gloo/alltoall.h"
#include "gloo/barrier_all_to_all.h"
#include "gloo/broadcast.h"
#include "gloo/math.h"
#include "gloo/reduce_scatter.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/device.h"

namespace {

using unisono::Code;
using unisono::Status;
using unisono::bench::Buffers;
using unisono::bench::Collective;
using unisono::bench::Element;
using unisono::bench::Job;
using Context = std::shared_ptr<gloo::Context>;

class GlooSubject final : public unisono::bench::Subject {
 public:
  GlooSubject(Context context, bool event_thread)
      : context_(std::move(context)),
        barrier_(std::make_unique<gloo::BarrierAllToAll>(context_)),
        event_thread_(event_thread) {}

  uint32_t rank() const override { return static_cast<uint32_t>(context_->rank); }
  uint32_t world_size() const override { return static_cast<uint32_t>(context_->size); }

  Status prepare(const Job& job, const Buffers& buffers) override {
    call_ = nullptr;
    algorithm_.reset();
    if (job.element != Element::f32 || job.parts > 1) return {Code::unsupported, "fp32, one operation at a time"};
    auto* in = reinterpret_cast<float*>(buffers.input);
    auto* out = reinterpret_cast<float*>(buffers.output);
    if (job.collective == Collective::all_reduce) return prepare_all_reduce(job, out);
    if (job.collective == Collective::reduce_scatter) return prepare_reduce_scatter(job, in, out);
    if (!event_thread_) return {Code::unsupported, "the newer functions need the event thread"};
    const size_t count = job.elements(), block = count / world_size();
    if (job.collective == Collective::broadcast) {
      auto options = std::make_shared<gloo::BroadcastOptions>(context_);
      options->setOutput(out, count);
      options->setRoot(unisono::bench::broadcast_root);
      call_ = [options] { gloo::broadcast(*options); };
    } else if (job.collective == Collective::all_gather) {
      auto options = std::make_shared<gloo::AllgatherOptions>(context_);
      options->setInput(in, block);
      options->setOutput(out, count);
      call_ = [options] { gloo::allgather(*options); };
    } else {
      auto options = std::make_shared<gloo::AlltoallOptions>(context_);
      options->setInput(in, count);
      options->setOutput(out, count);
      call_ = [options] { gloo::alltoall(*options); };
    }
    return {};
  }
  Status call() override {
    call_();
    return {};
  }
  Status barrier() override {
    barrier_->run();
    return {};
  }
  void progress() override {}  // Gloo's own thread moves the bytes.

 private:
  Status prepare_all_reduce(const Job& job, float* data) {
    const int elements = static_cast<int>(job.elements());
    const std::vector<float*> pointers{data};
    const auto& algorithm = job.algorithm;
    if (algorithm == "ring_chunked") {
      algorithm_ = std::make_unique<gloo::AllreduceRingChunked<float>>(context_, pointers, elements);
    } else if (algorithm == "halving_doubling") {
      algorithm_ = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context_, pointers, elements);
    } else if (algorithm == "bcube") {
      algorithm_ = std::make_unique<gloo::AllreduceBcube<float>>(context_, pointers, elements);
    } else if (event_thread_ && (algorithm.empty() || algorithm == "new_ring" || algorithm == "new_bcube")) {
      using Algorithm = gloo::AllreduceOptions::Algorithm;
      auto options = std::make_shared<gloo::AllreduceOptions>(context_);
      options->setOutput(data, job.elements());
      options->setAlgorithm(algorithm == "new_bcube" ? Algorithm::BCUBE : Algorithm::RING);
      options->setReduceFunction([](void* out, const void* a, const void* b, size_t n) { gloo::sum<float>(out, a, b, n); });
      call_ = [options] { gloo::allreduce(*options); };
      return {};
    } else {
      return {Code::invalid, "no algorithm \"" + algorithm + "\" in this mode"};
    }
    call_ = [this] { algorithm_->run(); };
    return {};
  }
  Status prepare_reduce_scatter(const Job& job, float* in, float* out) {
    const size_t block = job.elements() / world_size();
    algorithm_ = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
        context_, std::vector<float*>{in}, static_cast<int>(job.elements()),
        std::vector<int>(world_size(), static_cast<int>(block)));
    call_ = [this, in, out, block] {
      algorithm_->run();
      std::memcpy(out, in, block * sizeof(float));
    };
    return {};
  }

  Context context_;
  std::unique_ptr<gloo::BarrierAllToAll> barrier_;  // This is a pointer, because destructors of Gloo's algorithms may throw.
  bool event_thread_;
  std::unique_ptr<gloo::Algorithm> algorithm_;
  std::function<void()> call_;
};

struct ConnectOptions {
  std::string store, address, mode;
};

Context connect(const ConnectOptions& options) {
  gloo::transport::tcp::attr attributes(options.address.c_str());
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context =
      std::make_shared<gloo::rendezvous::Context>(std::atoi(std::getenv("RANK")), std::atoi(std::getenv("WORLD_SIZE")));
  gloo::rendezvous::FileStore store(options.store);
  context->connectFullMesh(store, device);
  if (options.mode != "async") {
    for (int peer = 0; peer < context->size; ++peer) {
      if (peer != context->rank) context->getPair(peer)->setSync(true, options.mode == "busy");
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
  const ConnectOptions connect_options{.store = argument(argc, argv, "--store", ""),
                                       .address = argument(argc, argv, "--address", "127.0.0.1"),
                                       .mode = argument(argc, argv, "--mode", "async")};
  Status status;
  try {  // Gloo reports errors by exceptions.
    GlooSubject subject(connect(connect_options), connect_options.mode == "async");
    status = unisono::bench::run(subject, *options);
  } catch (const std::exception& problem) {
    status = Status(Code::internal, problem.what());
  }
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
