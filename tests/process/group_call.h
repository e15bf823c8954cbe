// One collective call of a test. It has the buffers, makes the call, and checks the result.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "group_values.h"
#include "unisono/unisono.h"

namespace unisono::testing {

struct CallPlan {
  std::string collective = "all_reduce";
  size_t count = 1;  // number of elements in the tensor; if blocks are even: in each block
  DType dtype = DType::f32;
  uint32_t root = 0;  // the root, for collectives that have one; for send and recv: the other rank
  uint32_t tag = 0;
  bool in_place = false;
  // for all_to_all: this rank expects one element more from rank more_from - 1 than that rank sends; 0: from none
  uint64_t more_from = 0;
  bool uneven = false;  // true: the blocks have different sizes, and some are empty
  size_t offset = 0;    // The addresses of the buffers are this many bytes away from an aligned address.
  uint64_t seed = 1;
  CallOptions options = {};
  double tolerance = 0;   // The largest error that is accepted in an element. 0: results must be exact. Only for f32.
  bool feedback = false;  // With error feedback, the encoding error is added to the next equal call. Only for f32.
};

// Returns the number of elements in the block of `rank` if blocks are uneven.
size_t uneven_count(size_t count, uint32_t rank);

class Call {
 public:
  Call(Group group, CallPlan plan);
  // Waits until the operation is done, because the buffers must outlive it.
  ~Call();
  Call(const Call&) = delete;
  // Starts the call. When its work is done, it may be started again, unless it is in place.
  void start();
  Work& work() { return work_; }
  // Returns "" if the result is right and all other bytes are unchanged. Otherwise returns a description of the error. Call it
  // after the operation has succeeded.
  std::string check() const;
  uint64_t hash() const { return hash_of(result().data(), result().bytes()); }  // hash of the result

 private:
  void prepare();
  void prepare_blocks();
  std::vector<std::byte> wanted() const;
  bool result_in_input() const { return plan_.in_place || plan_.collective == "broadcast"; }
  const Buffer& result() const { return result_in_input() ? *input_ : *output_; }
  Tensor out() { return in(plan_.in_place ? *input_ : *output_); }
  Tensor in(Buffer& buffer) const { return {buffer.data(), buffer.bytes() / element_bytes(plan_.dtype), plan_.dtype}; }
  // Returns a number that identifies the values in the block that rank `from` sends to rank `to`.
  uint64_t pair_source(uint32_t from, uint32_t to) const { return 1000 + uint64_t{from} * world_ + to; }

  Group group_;
  CallPlan plan_;
  const uint32_t rank_, world_;
  std::unique_ptr<Buffer> input_, output_;
  std::vector<float> left_over_;
  uint64_t input_hash_ = 0;  // hash of the input before the call
  std::vector<size_t> send_counts_, recv_counts_;
  bool has_result_ = true;
  size_t result_at_ = 0;  // byte offset of the result in its buffer
  // The expected result. If pieces_ is not empty, the result consists of these pieces (source, number of elements), one after
  // another. Otherwise it consists of the elements [reduced_begin_, reduced_begin_ + reduced_count_) of the reduction of all
  // ranks' inputs.
  std::vector<std::pair<uint64_t, size_t>> pieces_;
  size_t reduced_count_ = 0, reduced_begin_ = 0;
  Work work_;
};

}  // namespace unisono::testing
