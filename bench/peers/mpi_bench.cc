// MPI_Allreduce under the shared measuring loop; built once with Open MPI's compiler wrapper and once with MPICH's.
// Algorithms are chosen from outside, by the settings of each MPI.

#define OMPI_SKIP_MPICXX 1  // the C++ bindings of old, which warn
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdio>
#include <limits>
#include <string>

#include "../harness.h"

namespace {

using unisono::Code;
using unisono::Status;

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
  Status prepare(const std::string&, float* data, size_t count) override {
    if (count > static_cast<size_t>(std::numeric_limits<int>::max())) return {Code::invalid, "MPI counts are int"};
    data_ = data;
    count_ = static_cast<int>(count);
    return {};
  }
  Status all_reduce() override {
    return checked(MPI_Allreduce(MPI_IN_PLACE, data_, count_, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
  }
  Status barrier() override { return checked(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); }
  void progress() override {
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
  }

 private:
  int rank_ = 0;
  int world_size_ = 0;
  float* data_ = nullptr;
  int count_ = 0;
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
