// One collective as a test asks for it: its buffers, the call, and whether the outcome is right.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "group_values.h"
#include "unisono/unisono.h"

namespace unisono::testing {

struct CallPlan {
  std::string collective = "all_reduce";
  size_t count = 1;  // elements of the tensor, or of an even block
  DType dtype = DType::f32;
  uint32_t root = 0;  // of rooted collectives; the other rank of send and recv
  uint32_t tag = 0;
  bool in_place = false;
  bool uneven = false;  // blocks of different sizes, empty ones among them
  size_t offset = 0;    // bytes by which the buffers are out of alignment
  uint64_t seed = 1;
  CallOptions options = {};
  double tolerance = 0;   // of a result whose elements are encoded; f32
  bool feedback = false;  // what encoding leaves over is added in the next call of the same; f32
};

// The elements of rank r's block where blocks are uneven.
size_t uneven_count(size_t count, uint32_t rank);

class Call {
 public:
  Call(Group group, CallPlan plan);
  // Waits: the buffers must outlive the operation.
  ~Call();
  Call(const Call&) = delete;
  // May be called again when the work is done, unless the call is in place.
  void start();
  Work& work() { return work_; }
  // After a call that succeeded. Returns "" if the result is right and no other byte was changed, else a text that says what is
  // wrong.
  std::string check() const;
  uint64_t hash() const { return hash_of(result().data(), result().bytes()); }  // of the result

 private:
  void prepare();
  void prepare_blocks();
  std::vector<std::byte> wanted() const;
  bool result_in_input() const { return plan_.in_place || plan_.collective == "broadcast"; }
  const Buffer& result() const { return result_in_input() ? *input_ : *output_; }
  Tensor out() { return in(plan_.in_place ? *input_ : *output_); }
  Tensor in(Buffer& buffer) const { return {buffer.data(), buffer.bytes() / element_bytes(plan_.dtype), plan_.dtype}; }
  // The number of the giver whose values fill the block that goes from one rank to another.
  uint64_t pair_giver(uint32_t from, uint32_t to) const { return 1000 + uint64_t{from} * world_ + to; }

  Group group_;
  CallPlan plan_;
  const uint32_t rank_, world_;
  std::unique_ptr<Buffer> input_, output_;
  std::vector<float> left_over_;
  uint64_t input_hash_ = 0;  // of the input as it was given
  std::vector<size_t> send_counts_, recv_counts_;
  bool has_result_ = true;
  size_t result_at_ = 0;  // byte offset of the expected result in its buffer
  // The expected result. pieces_: (giver, elements), one after another. Otherwise the reduction of all ranks' elements:
  // reduced_count_ of them from reduced_begin_.
  std::vector<std::pair<uint64_t, size_t>> pieces_;
  size_t reduced_count_ = 0, reduced_begin_ = 0;
  Work work_;
};

}  // namespace unisono::testing
