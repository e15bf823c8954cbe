// One rank's memory and the call on it that `unisono bench` measures, against the public API only.
//
// The group must outlive it and keep its ranks: after a re-forming a new one is made.
#pragma once

#include <cstddef>
#include <memory>

#include "cli/bench/bench_accuracy.h"
#include "cli/bench/bench_data.h"
#include "unisono/group.h"

namespace unisono::cli {

struct SubjectOptions {
  DataPlan data;  // its world size is the group's
  CallOptions call;
  Extent extent;
  bool in_place = false;
};

class Subject {
 public:
  Subject(Group& group, const SubjectOptions& options)
      : group_(group), data_(options.data), call_(options.call), extent_(options.extent), in_place_(options.in_place) {}

  // unavailable: there is not enough memory.
  Status allocate();
  // The inputs, again: a call in place has replaced them.
  void fill();
  Result<Report> call() { return call(call_); }
  // The same, and nothing may be missing where calls may be lossy: all is repaired, for as long as it takes.
  Result<Report> call_complete();
  // Elements of this rank's result that are wrong, after fill() and one call.
  uint64_t wrong() const;
  // Likewise, where elements are encoded.
  Accuracy accuracy() const;

 private:
  struct Shape {
    size_t input = 0;  // elements
    size_t output = 0;
  };
  Shape shape() const;
  size_t block_bytes() const { return extent_.block_count * element_bytes(data_.dtype); }
  bool is_root() const { return group_.rank() == data_.root; }
  Tensor tensor(std::byte* bytes, size_t count) const { return {bytes, count, data_.dtype}; }
  Result<Report> call(const CallOptions& options);
  Result<Report> exchange();
  const std::byte* result() const;

  Group& group_;
  const DataPlan data_;
  const CallOptions call_;
  Extent extent_;
  bool in_place_;
  std::unique_ptr<std::byte[]> input_;
  std::unique_ptr<std::byte[]> output_;  // none in place
};

}  // namespace unisono::cli
