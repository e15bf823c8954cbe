// One rank's memory and the call on it that `unisono bench` measures, against the public API only.
//
// The group must outlive it and keep its ranks: after a re-forming a new one is made.
#pragma once

#include <cstddef>
#include <memory>

#include "cli/bench_data.h"
#include "unisono/group.h"

namespace unisono::cli {

class Subject {
 public:
  Subject(Group& group, const DataPlan& data, const CallOptions& call, const Extent& extent, bool in_place)
      : group_(group), data_(data), call_(call), extent_(extent), in_place_(in_place) {}

  // unavailable: there is not enough memory.
  Status allocate();
  // The inputs, again: a call in place has replaced them.
  void fill();
  Result<Report> call();
  // Elements of this rank's result that are wrong, after fill() and one call.
  uint64_t wrong() const;

 private:
  struct Shape {
    size_t input = 0;   // elements
    size_t output = 0;
  };
  Shape shape() const;
  size_t block_bytes() const { return extent_.block_count * element_bytes(data_.dtype); }
  bool is_root() const { return group_.rank() == data_.root; }
  Tensor tensor(std::byte* bytes, size_t count) const { return {bytes, count, data_.dtype}; }
  Result<Report> exchange();

  Group& group_;
  const DataPlan data_;
  const CallOptions call_;
  Extent extent_;
  bool in_place_;
  std::unique_ptr<std::byte[]> input_;
  std::unique_ptr<std::byte[]> output_;  // none in place
};

}  // namespace unisono::cli
