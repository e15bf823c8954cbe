// Runs the collectives of MPI in the shared measuring loop. This file is built once with Open MPI's compiler wrapper and once
// with MPICH's. The algorithm is selected outside this program, by the settings of the MPI library.

#define OMPI_SKIP_MPICXX 1  // This leaves out the obsolete C++ bindings, which cause warnings.
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "../harness.h"

namespace {

using unisono::Code;
using unisono::Status;
using unisono::bench::Buffers;
using unisono::bench::Collective;
using unisono::bench::Element;
using unisono::bench::Job;

Status checked(int code, const char* what) {
  return code == MPI_SUCCESS ? Status() : Status(Code::internal, std::string(what) + " returned " + std::to_string(code));
}

class MpiSubject final : public unisono::bench::Subject {
 public:
  MpiSubject() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size_);
  }
  uint32_t rank() const override { return static_cast<uint32_t>(rank_); }
  uint32_t world_size() const override { return static_cast<uint32_t>(world_size_); }
  Status prepare(const Job& job, const Buffers& buffers) override {
    if (job.element != Element::f32) return {Code::unsupported, "MPI has no 16-bit floats"};
    if (job.elements() > static_cast<size_t>(std::numeric_limits<int>::max())) return {Code::invalid, "MPI counts are int"};
    job_ = job;
    buffers_ = buffers;
    count_ = static_cast<int>(job.elements());
    block_ = count_ / world_size_;
    requests_.assign(job.parts, MPI_REQUEST_NULL);
    return {};
  }
  Status call() override {
    if (job_.parts > 1) return all_reduce_parts();
    void *in = buffers_.input, *out = buffers_.output;
    const auto type = MPI_FLOAT;
    const auto world = MPI_COMM_WORLD;
    switch (job_.collective) {
      case Collective::all_reduce:
        return checked(MPI_Allreduce(MPI_IN_PLACE, out, count_, type, MPI_SUM, world), "MPI_Allreduce");
      case Collective::reduce_scatter:
        return checked(MPI_Reduce_scatter_block(in, out, block_, type, MPI_SUM, world), "MPI_Reduce_scatter_block");
      case Collective::all_gather: return checked(MPI_Allgather(in, block_, type, out, block_, type, world), "MPI_Allgather");
      case Collective::all_to_all: return checked(MPI_Alltoall(in, block_, type, out, block_, type, world), "MPI_Alltoall");
      case Collective::broadcast:
        return checked(MPI_Bcast(out, count_, type, unisono::bench::broadcast_root, world), "MPI_Bcast");
    }
    return {Code::internal, "this collective is not supported"};
  }
  Status barrier() override { return checked(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); }
  void progress() override {
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
  }

 private:
  Status all_reduce_parts() {
    for (uint32_t part = 0; part < job_.parts; ++part) {
      const int code = MPI_Iallreduce(MPI_IN_PLACE, buffers_.output + part * job_.bytes, count_, MPI_FLOAT, MPI_SUM,
                                      MPI_COMM_WORLD, &requests_[part]);
      if (code != MPI_SUCCESS) return checked(code, "MPI_Iallreduce");
    }
    return checked(MPI_Waitall(static_cast<int>(job_.parts), requests_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
  }

  int rank_ = 0;
  int world_size_ = 0;
  Job job_;
  Buffers buffers_;
  int count_ = 0, block_ = 0;  // numbers of elements
  std::vector<MPI_Request> requests_;
};

}  // namespace

int main(int argc, char** argv) {
  auto options = unisono::bench::parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr, "%s\n", options.status().to_string().c_str());
    return 2;
  }
  unisono::bench::end_in_time(*options);
  MPI_Init(&argc, &argv);
  MpiSubject subject;
  const auto status = unisono::bench::run(subject, *options);
  if (!status.ok()) {
    std::fprintf(stderr, "rank %u: %s\n", subject.rank(), status.to_string().c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
