// Measures Unisono's collectives. The measuring loop is the one that also measures the other libraries. Start one process for
// each rank:
//
//   RANK=0 WORLD_SIZE=2 UNISONO_TRANSPORT=shm UNISONO_RENDEZVOUS=file:///path collective_bench --board FILE
//     [--plan [COLLECTIVE/][ELEMENT/][PARTSx]BYTES[=ALGORITHM],…] [--seconds S] [--calls N] [--idle S]
// ALGORITHM is a schedule ("ring", "two_step", …), an order ("strict", "any"), a codec ("int4", "bf16", "int8/int4"), or
// several of these: "two_step+int8". With a codec, all-reduces compute averages, because sums would grow with every call.
// bench/versus starts this program and the programs of the other libraries.

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "harness.h"
#include "unisono/unisono.h"

namespace {

using unisono::CallOptions;
using unisono::Code;
using unisono::Order;
using unisono::Result;
using unisono::Status;
using unisono::Tensor;
using unisono::bench::Buffers;
using unisono::bench::Collective;
using unisono::bench::Element;
using unisono::bench::Job;

Result<CallOptions> parse_algorithm(const std::string& text) {
  CallOptions options;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('+', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (word == "strict" || word == "any") {
      options.order = word == "any" ? Order::any : Order::in_rank_order;
      continue;
    }
    if (const auto* const facts = unisono::find_schedule(word); facts != nullptr) {
      options.schedule = facts->kind;
      continue;
    }
    const auto codec = unisono::Codec::parse(word);
    if (!codec) return Status(Code::invalid, "no schedule, order or codec is called \"" + word + "\"");
    options.codec = *codec;
    options.op = unisono::ReduceOp::avg;
  }
  return options;
}

class UnisonoSubject final : public unisono::bench::Subject {
 public:
  explicit UnisonoSubject(unisono::Group group) : group_(std::move(group)) {}

  uint32_t rank() const override { return group_.rank(); }
  uint32_t world_size() const override { return group_.world_size(); }
  Status prepare(const Job& job, const Buffers& buffers) override {
    auto parsed = parse_algorithm(job.algorithm);
    if (!parsed) return parsed.status();
    options_ = *parsed;
    job_ = job;
    const size_t count = job.elements(), block = count / world_size();
    input_ = Tensor(buffers.input, job.collective == Collective::all_gather ? block : count, dtype(job.element));
    output_ = Tensor(buffers.output, job.collective == Collective::reduce_scatter ? block : count, dtype(job.element));
    works_.resize(job.parts);
    return {};
  }
  Status call() override {
    if (job_.parts > 1) return all_reduce_parts();
    switch (job_.collective) {
      case Collective::all_reduce: return group_.all_reduce(output_, options_).status();
      case Collective::reduce_scatter: return group_.reduce_scatter(input_, output_, {}, options_).status();
      case Collective::all_gather: return group_.all_gather(input_, output_, {}, options_).status();
      case Collective::all_to_all: return group_.all_to_all(input_, output_, {}, {}, options_).status();
      case Collective::broadcast: return group_.broadcast(output_, unisono::bench::broadcast_root, options_).status();
    }
    return {Code::internal, "this collective is not supported"};
  }
  // Contributions are whole numbers from -511 to 511. The codec may round each contribution once, and then the sum once.
  unisono::bench::Tolerance tolerance() const override {
    if (!options_.codec) return {};
    double steps = 255;
    for (const auto* step : {&options_.codec->reduce, &options_.codec->gather}) {
      const auto& facts = unisono::facts_of(step->kind);
      steps = std::min(steps, facts.has_options ? static_cast<double>((1 << step->bits) - 1) : 1 / facts.error);
    }
    const double times =
        job_.collective == Collective::all_reduce || job_.collective == Collective::reduce_scatter ? world_size() : 1;
    return {.error = 1100.0 * world_size() / steps, .times = times};
  }
  Status barrier() override { return group_.barrier().status(); }
  void progress() override {}  // The library's own thread drives the operations that are running.

 private:
  static unisono::DType dtype(Element element) {
    return element == Element::f32    ? unisono::DType::f32
           : element == Element::bf16 ? unisono::DType::bf16
                                      : unisono::DType::f16;
  }
  Status all_reduce_parts() {
    auto* memory = static_cast<std::byte*>(output_.data);
    for (uint32_t part = 0; part < job_.parts; ++part) {
      works_[part] = group_.all_reduce_async(Tensor(memory + part * job_.bytes, output_.count, output_.dtype), options_);
    }
    Status status;
    for (auto& work : works_) {
      if (auto report = work.wait(); !report && status.ok()) status = report.status();
    }
    return status;
  }

  unisono::Group group_;
  CallOptions options_;
  Job job_;
  Tensor input_, output_;
  std::vector<unisono::Work> works_;
};

}  // namespace

int main(int argc, char** argv) {
  auto options = unisono::bench::parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr, "%s\n", options.status().to_string().c_str());
    return 2;
  }
  unisono::bench::end_in_time(*options);
  auto group = unisono::Group::join();
  if (!group) {
    std::fprintf(stderr, "%s\n", group.status().to_string().c_str());
    return 1;
  }
  UnisonoSubject subject(*group);
  const auto status = unisono::bench::run(subject, *options);
  if (!status.ok()) std::fprintf(stderr, "rank %u: %s\n", subject.rank(), status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
