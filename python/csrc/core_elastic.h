// An elastic run as a Python object. MoshpitSgd uses this object, too.
#pragma once

#include <memory>

#include "core.h"

namespace unisono_python {

class PythonElastic {
 public:
  explicit PythonElastic(std::shared_ptr<Elastic> run)
      : run_(std::move(run)), early_(std::make_unique<EndsEarly>([this] { (void)goodbye(); })) {}
  PythonElastic(const PythonElastic&) = delete;
  ~PythonElastic() {
    early_.reset();  // this comes first, so that EndsEarly::end_all() can no longer use run_
    const py::gil_scoped_release released;
    run_.reset();  // when the last reference is gone, this process leaves the run
  }
  Elastic& run() { return *run_; }
  const std::shared_ptr<Elastic>& shared() const { return run_; }
  void leave() { check(goodbye()); }

 private:
  Status goodbye() {
    const py::gil_scoped_release released;
    return run_->leave();
  }
  std::shared_ptr<Elastic> run_;
  std::unique_ptr<EndsEarly> early_;
};

// A view of the state that this process received when it joined the run. It copies nothing and keeps the run alive.
struct StateView {
  std::shared_ptr<Elastic> run;
  const ElasticState& state() const { return run->state(); }
};

using Blobs = MoshpitSgd::Blobs;
// Converts a dictionary that maps names to bytes.
Blobs blobs_of(const py::dict& given);

inline std::vector<std::span<float>> spans_of(const std::vector<Buffer>& buffers) {
  std::vector<std::span<float>> spans;
  for (const auto& buffer : buffers) spans.push_back(buffer.floats());
  return spans;
}

}  // namespace unisono_python
