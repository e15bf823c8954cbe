#include "node/calls.h"

#include <string>

namespace unisono {
namespace {

constexpr uint64_t id_max = uint64_t{1} << 56;
constexpr uint32_t tag_max = 1u << 15;
constexpr uint64_t slice_bytes_min = 64, slice_bytes_max = 16u << 20;

Status wrong(const std::string& what) { return {Code::invalid, what}; }

std::string number(uint64_t n) { return std::to_string(n); }

// Sum of the counts, or even * world; false if it overflows.
bool total_of(Counts counts, size_t even, uint32_t world, size_t& total) {
  if (counts.empty()) return !__builtin_mul_overflow(even, static_cast<size_t>(world), &total);
  total = 0;
  for (const auto c : counts) {
    if (__builtin_add_overflow(total, c, &total)) return false;
  }
  return true;
}

Status check_tensor(const char* what, ConstTensor t) {
  if (static_cast<uint8_t>(t.dtype) >= dtype_count) return wrong(std::string(what) + " has an unknown element type");
  size_t bytes = 0;
  if (__builtin_mul_overflow(t.count, element_bytes(t.dtype), &bytes) || bytes > (size_t{1} << 62)) {
    return wrong(std::string(what) + " has " + number(t.count) + " elements, more than memory can hold");
  }
  if (t.count > 0 && t.data == nullptr) return wrong(std::string(what) + " has " + number(t.count) + " elements but no data");
  return {};
}

Status check_counts(const char* what, Counts counts, uint32_t world) {
  if (counts.empty() || counts.size() == world) return {};
  return wrong(std::string(what) + " has " + number(counts.size()) + " entries for " + number(world) + " ranks");
}

Status check_size(const char* what, size_t count, size_t expected) {
  if (count == expected) return {};
  return wrong(std::string(what) + " has " + number(count) + " elements, expected " + number(expected));
}

Status check_root(Rank root, uint32_t world) {
  if (root < world) return {};
  return wrong("rank " + number(root) + " is not in this group of " + number(world));
}

Status check_types(ConstTensor input, ConstTensor output) {
  if (input.dtype == output.dtype) return {};
  return wrong(std::string("input is ") + name(input.dtype) + ", output is " + name(output.dtype));
}

Status check_op(ReduceOp op, DType dtype) {
  if (static_cast<uint8_t>(op) >= reduce_op_count) return wrong("unknown reduce operation");
  const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  if (bitwise && is_floating(dtype)) return wrong(std::string(name(op)) + " takes integers, not " + name(dtype));
  return {};
}

Status check_options(const CallOptions& o) {
  if (o.id >= id_max) return wrong("id " + number(o.id) + " is not below 2^56");
  if (o.timeout.count() < 0) return wrong("timeout is negative");
  if (o.slice_bytes != 0 && (o.slice_bytes < slice_bytes_min || o.slice_bytes > slice_bytes_max)) {
    return wrong("slice_bytes " + number(o.slice_bytes) + " is not in " + number(slice_bytes_min) + "…" + number(slice_bytes_max));
  }
  return {};
}

OperationRequest base_request(const Caller& caller, Collective collective, ConstTensor input, Tensor output, const CallOptions& o) {
  OperationRequest q;
  q.collective = collective;
  q.op = o.op;
  q.dtype = input.data != nullptr || output.data == nullptr ? input.dtype : output.dtype;
  q.input = input.data;
  q.output = output.data;
  q.order = o.order;
  q.schedule = o.schedule;
  q.slice_bytes = o.slice_bytes;
  q.timeout = o.timeout.count() > 0 ? o.timeout.count() * millisecond : caller.timeout;
  return q;
}

template <typename... S>
Status first_error(S&&... statuses) {
  Status result;
  ((result.ok() && !statuses.ok() ? void(result = std::forward<S>(statuses)) : void()), ...);
  return result;
}

}  // namespace

Result<OperationRequest> all_reduce_call(const Caller& c, ConstTensor in, Tensor out, const CallOptions& o) {
  auto status = first_error(check_options(o), check_tensor("input", in), check_tensor("output", out), check_types(in, out),
                            check_size("output", out.count, in.count), check_op(o.op, in.dtype));
  if (!status.ok()) return status;
  auto q = base_request(c, Collective::all_reduce, in, out, o);
  q.count = in.count;
  return q;
}

Result<OperationRequest> reduce_scatter_call(const Caller& c, ConstTensor in, Tensor out, Counts counts, bool in_place, const CallOptions& o) {
  auto status = first_error(check_options(o), check_tensor("input", in), check_tensor("output", out), check_types(in, out),
                            check_counts("counts", counts, c.world), check_op(o.op, in.dtype));
  if (!status.ok()) return status;
  auto q = base_request(c, Collective::reduce_scatter, in, out, o);
  q.in_place_blocks = in_place;
  if (in_place && counts.empty() && in.count % c.world != 0) return wrong(number(in.count) + " elements do not make equal blocks for " + number(c.world) + " ranks");
  q.count = counts.empty() ? (in_place ? in.count / c.world : out.count) : counts[c.self];
  size_t total = 0;
  if (!total_of(counts, q.count, c.world, total)) return wrong("the blocks' sizes overflow");
  status = first_error(check_size("input", in.count, total), in_place ? Status() : check_size("output", out.count, q.count));
  if (!status.ok()) return status;
  q.send_counts.assign(counts.begin(), counts.end());
  return q;
}

Result<OperationRequest> all_gather_call(const Caller& c, ConstTensor in, Tensor out, Counts counts, bool in_place, const CallOptions& o) {
  auto status = first_error(check_options(o), check_tensor("input", in), check_tensor("output", out), check_types(in, out),
                            check_counts("counts", counts, c.world));
  if (!status.ok()) return status;
  auto q = base_request(c, Collective::all_gather, in, out, o);
  q.in_place_blocks = in_place;
  if (in_place && counts.empty() && out.count % c.world != 0) return wrong(number(out.count) + " elements do not make equal blocks for " + number(c.world) + " ranks");
  q.count = counts.empty() ? (in_place ? out.count / c.world : in.count) : counts[c.self];
  size_t total = 0;
  if (!total_of(counts, q.count, c.world, total)) return wrong("the blocks' sizes overflow");
  status = first_error(check_size("output", out.count, total), in_place ? Status() : check_size("input", in.count, q.count));
  if (!status.ok()) return status;
  q.recv_counts.assign(counts.begin(), counts.end());
  return q;
}

Result<OperationRequest> broadcast_call(const Caller& c, Tensor inout, Rank root, const CallOptions& o) {
  auto status = first_error(check_options(o), check_tensor("tensor", inout), check_root(root, c.world));
  if (!status.ok()) return status;
  auto q = base_request(c, Collective::broadcast, inout, inout, o);
  q.count = inout.count;
  q.root = root;
  return q;
}

Result<OperationRequest> reduce_call(const Caller& c, ConstTensor in, Tensor out, Rank root, const CallOptions& o) {
  auto status = first_error(check_options(o), check_tensor("input", in), check_root(root, c.world), check_op(o.op, in.dtype));
  if (status.ok() && c.self == root) status = first_error(check_tensor("output", out), check_types(in, out), check_size("output", out.count, in.count));
  if (!status.ok()) return status;
  auto q = base_request(c, Collective::reduce, in, out, o);
  if (c.self != root) q.output = nullptr;
  q.dtype = in.dtype;
  q.count = in.count;
  q.root = root;
  return q;
}

Result<OperationRequest> gather_call(const Caller& c, ConstTensor in, Tensor out, Rank root, Counts counts, const CallOptions& o) {
  auto status = first_error(check_options(o), check_tensor("input", in), check_root(root, c.world));
  if (!status.ok()) return status;
  auto q = base_request(c, Collective::gather, in, out, o);
  q.dtype = in.dtype;
  q.count = in.count;
  q.root = root;
  if (c.self != root) {
    q.output = nullptr;
    return q;
  }
  size_t total = 0;
  status = first_error(check_tensor("output", out), check_types(in, out), check_counts("counts", counts, c.world));
  if (status.ok() && !total_of(counts, in.count, c.world, total)) status = wrong("the blocks' sizes overflow");
  if (status.ok()) status = check_size("output", out.count, total);
  if (status.ok() && !counts.empty()) status = check_size("input", in.count, counts[root]);
  if (!status.ok()) return status;
  q.recv_counts.assign(counts.begin(), counts.end());
  return q;
}

Result<OperationRequest> scatter_call(const Caller& c, ConstTensor in, Tensor out, Rank root, Counts counts, const CallOptions& o) {
  auto status = first_error(check_options(o), check_tensor("output", out), check_root(root, c.world));
  if (!status.ok()) return status;
  auto q = base_request(c, Collective::scatter, in, out, o);
  q.dtype = out.dtype;
  q.count = out.count;
  q.root = root;
  if (c.self != root) {
    q.input = nullptr;
    return q;
  }
  size_t total = 0;
  status = first_error(check_tensor("input", in), check_types(in, out), check_counts("counts", counts, c.world));
  if (status.ok() && !total_of(counts, out.count, c.world, total)) status = wrong("the blocks' sizes overflow");
  if (status.ok()) status = check_size("input", in.count, total);
  if (status.ok() && !counts.empty()) status = check_size("output", out.count, counts[root]);
  if (!status.ok()) return status;
  q.send_counts.assign(counts.begin(), counts.end());
  return q;
}

Result<OperationRequest> all_to_all_call(const Caller& c, ConstTensor in, Tensor out, Counts send, Counts recv, const CallOptions& o) {
  auto status = first_error(check_options(o), check_tensor("input", in), check_tensor("output", out), check_types(in, out),
                            check_counts("send_counts", send, c.world), check_counts("recv_counts", recv, c.world));
  if (status.ok() && send.empty() != recv.empty()) status = wrong("give both send_counts and recv_counts, or neither");
  if (!status.ok()) return status;
  auto q = base_request(c, Collective::all_to_all, in, out, o);
  if (send.empty()) {
    status = check_size("output", out.count, in.count);
    if (status.ok() && in.count % c.world != 0) status = wrong(number(in.count) + " elements do not make equal blocks for " + number(c.world) + " ranks");
    if (!status.ok()) return status;
    q.count = in.count / c.world;
    return q;
  }
  size_t sent = 0, received = 0;
  if (!total_of(send, 0, c.world, sent) || !total_of(recv, 0, c.world, received)) return wrong("the blocks' sizes overflow");
  status = first_error(check_size("input", in.count, sent), check_size("output", out.count, received));
  if (status.ok() && in.data == out.data && in.count > 0) status = wrong("uneven blocks cannot be exchanged in place");
  if (status.ok()) status = check_size("the block for this rank itself", recv[c.self], send[c.self]);
  if (!status.ok()) return status;
  q.send_counts.assign(send.begin(), send.end());
  q.recv_counts.assign(recv.begin(), recv.end());
  return q;
}

Result<OperationRequest> barrier_call(const Caller& c, const CallOptions& o) {
  auto status = check_options(o);
  if (!status.ok()) return status;
  return base_request(c, Collective::barrier, {}, {}, o);
}

Result<OperationRequest> message_call(const Caller& c, Collective direction, ConstTensor in, Tensor out, Rank other, uint32_t tag, const CallOptions& o) {
  const ConstTensor tensor = direction == Collective::send ? in : ConstTensor(out);
  auto status = first_error(check_options(o), check_tensor("tensor", tensor), check_root(other, c.world));
  if (status.ok() && tag >= tag_max) status = wrong("tag " + number(tag) + " is not below 2^15");
  if (status.ok() && other == c.self) status = wrong("a rank cannot send to itself");
  if (!status.ok()) return status;
  auto q = base_request(c, direction, in, out, o);
  q.dtype = tensor.dtype;
  q.count = tensor.count;
  q.root = other;
  return q;
}

}  // namespace unisono
