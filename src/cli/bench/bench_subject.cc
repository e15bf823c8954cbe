#include "cli/bench/bench_subject.h"

#include <fmt/format.h>

#include <cstring>
#include <new>

#include "cli/common/text.h"

namespace unisono::cli {

Subject::Shape Subject::shape() const {
  const auto block = extent_.block_count;
  const auto all = extent_.tensor_count;
  switch (data_.collective) {
    case Collective::reduce_scatter: return {all, block};
    case Collective::all_gather: return in_place_ ? Shape{all, 0} : Shape{block, all};
    case Collective::gather: return {block, is_root() ? all : 0};
    case Collective::scatter: return {is_root() ? all : 0, block};
    case Collective::barrier: return {};
    default: return {all, all};
  }
}

Status Subject::allocate() {
  const auto size = element_bytes(data_.dtype);
  const auto [input, output] = shape();
  input_.reset(new (std::nothrow) std::byte[input * size]);
  if (!in_place_) output_.reset(new (std::nothrow) std::byte[output * size]);
  if (!input_ || (!in_place_ && !output_)) {
    return Status(Code::unavailable,
                  fmt::format("no memory for {} in each rank", format_bytes((input + (in_place_ ? 0 : output)) * size)));
  }
  // Writes to all pages, so that the measurement contains no page faults. The values are wrong on purpose: a missing result is
  // then noticed.
  if (!in_place_) std::memset(output_.get(), 0xA5, output * size);
  return {};
}

void Subject::fill() {
  const auto rank = group_.rank();
  if (data_.collective == Collective::all_gather && in_place_) {
    std::memset(input_.get(), 0xA5, extent_.tensor_count * element_bytes(data_.dtype));
    return fill_input(data_, rank, 0, extent_.block_count, input_.get() + rank * block_bytes());
  }
  // In a broadcast, only the root's buffer has the input. The buffers of the other ranks start with wrong values.
  const bool unused = data_.collective == Collective::broadcast && !is_root();
  if (unused) std::memset(input_.get(), 0xA5, extent_.tensor_count * element_bytes(data_.dtype));
  else fill_input(data_, rank, 0, shape().input, input_.get());
}

Result<Report> Subject::exchange() {
  const auto n = group_.world_size();
  const auto rank = group_.rank();
  if (n == 1) {
    if (output_) std::memcpy(output_.get(), input_.get(), extent_.tensor_count * element_bytes(data_.dtype));
    return Report{};
  }
  auto receive = group_.recv_async(tensor(output_.get(), extent_.tensor_count), (rank + n - 1) % n, 0, call_);
  auto send = group_.send_async(tensor(input_.get(), extent_.tensor_count), (rank + 1) % n, 0, call_);
  auto sent = send.wait();
  auto received = receive.wait();
  if (!sent.ok()) return sent;
  if (received.ok()) received->sent_bytes += sent->sent_bytes;  // the report covers both directions
  return received;
}

Result<Report> Subject::call_complete() {
  auto options = call_;
  options.lossy.loss_budget = 0;
  options.lossy.deadline = {};
  return call(options);
}

Result<Report> Subject::call(const CallOptions& options) {
  const auto root = data_.root;
  const auto input = tensor(input_.get(), shape().input);
  const auto output = in_place_ ? input : tensor(output_.get(), shape().output);
  switch (data_.collective) {
    case Collective::all_reduce:
      return in_place_ ? group_.all_reduce(input, options) : group_.all_reduce(input, output, options);
    case Collective::reduce_scatter:
      return in_place_ ? group_.reduce_scatter(input, Counts{}, options)
                       : group_.reduce_scatter(input, output, Counts{}, options);
    case Collective::all_gather:
      return in_place_ ? group_.all_gather(input, Counts{}, options) : group_.all_gather(input, output, Counts{}, options);
    case Collective::broadcast: return group_.broadcast(input, root, options);
    case Collective::reduce: return group_.reduce(input, output, root, options);
    case Collective::gather: return group_.gather(input, output, root, Counts{}, options);
    case Collective::scatter: return group_.scatter(input, output, root, Counts{}, options);
    case Collective::all_to_all: return group_.all_to_all(input, output, Counts{}, Counts{}, options);
    case Collective::send_recv: return exchange();
    case Collective::barrier: return group_.barrier(options);
  }
  return Status(Code::internal, "no such collective");
}

const std::byte* Subject::result() const {
  const std::byte* result = in_place_ ? input_.get() : output_.get();
  if (in_place_ && data_.collective == Collective::reduce_scatter) result += group_.rank() * block_bytes();
  return result;
}

uint64_t Subject::wrong() const { return count_wrong(data_, group_.rank(), extent_.block_count, result()); }

Accuracy Subject::accuracy() const { return accuracy_of(data_, group_.rank(), extent_.block_count, result()); }

}  // namespace unisono::cli
