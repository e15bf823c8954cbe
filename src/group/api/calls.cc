#include "group/api/calls.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/concat.h"
#include "codecs/codec.h"
#include "engine/operations/any_source.h"
#include "lossy/range_geometry.h"

namespace unisono {
namespace {

constexpr uint64_t id_max = uint64_t{1} << 56;
constexpr uint64_t slice_bytes_min = 64, slice_bytes_max = 16u << 20;

Status invalid_call(const std::string& what) { return {Code::invalid, what}; }

std::string number(uint64_t n) { return std::to_string(n); }

// Computes the sum of `counts`. If `counts` is empty, computes `even` * world instead. Returns false if the result overflows.
bool total_of(Counts counts, size_t even, uint32_t world, size_t& total) {
  if (counts.empty()) return !__builtin_mul_overflow(even, static_cast<size_t>(world), &total);
  total = 0;
  for (const auto c : counts) {
    if (__builtin_add_overflow(total, c, &total)) return false;
  }
  return true;
}

bool all_equal(Counts counts) { return std::ranges::adjacent_find(counts, std::not_equal_to()) == counts.end(); }

// Returns the block sizes, or an empty list if all of them are equal. Thus a request with a list of equal sizes matches a
// request without a list.
std::vector<size_t> uneven(Counts counts) {
  return all_equal(counts) ? std::vector<size_t>() : std::vector<size_t>(counts.begin(), counts.end());
}

// Checks the arguments of a call, and keeps the first error. After the first error, every check returns false.
class Checks {
 public:
  Status take() { return std::move(status_); }

  bool options(const CallOptions& o) {
    if (o.id >= id_max) return fail("id " + number(o.id) + " is not below 2^56");
    if (o.timeout.count() < 0 || o.timeout.count() > timeout_max / millisecond) {
      return fail(concat("timeout is ", o.timeout.count(), " ms; allowed: 0 (the timeout of the group) to ",
                         number(timeout_max / millisecond)));
    }
    if (o.slice_bytes != 0 && (o.slice_bytes < slice_bytes_min || o.slice_bytes > slice_bytes_max)) {
      return fail("slice_bytes " + number(o.slice_bytes) + " is not in " + number(slice_bytes_min) + "…" +
                  number(slice_bytes_max));
    }
    return require(static_cast<uint8_t>(o.delivery) <= 2, "delivery: unknown") && codec(o);
  }
  // Checks the codec that this call was given. The codec of the group was checked at join.
  bool codec(const CallOptions& o) {
    if (!o.codec) return true;
    for (const auto* step : {&o.codec->reduce, &o.codec->across, &o.codec->gather}) {
      if (const auto fault = why_invalid(*step); !fault.empty()) return fail("codec: " + fault);
    }
    return true;
  }
  bool encode_error(const CallOptions& o, ConstTensor input) {
    if (o.error_feedback && o.encode_error == nullptr) return fail("error_feedback needs encode_error");
    if (o.error_feedback && o.measure_error) return fail("error_feedback and measure_error exclude each other");
    return o.encode_error == nullptr || input.dtype == DType::f32 ||
           fail(std::string("encode_error takes f32 tensors, not ") + name(input.dtype));
  }
  bool measure_error(const CallOptions& o, DType dtype) {
    if (!o.measure_error) return true;
    const bool types = dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16,
               ops = o.op == ReduceOp::sum || o.op == ReduceOp::avg;
    return require(types && ops && o.id == 0, "measure_error takes sums and averages of f32, f16 and bf16 tensors, without id");
  }
  // Checks the delivery options of a call. If `of_shards` is true, a lossy call may also use the biased estimator `zero_fill`
  // and on_empty=hold.
  bool delivery(const CallOptions& o, bool of_shards = false) {
    if (o.delivery == Delivery::reliable) return true;
    return require(o.lossy.estimator <= Estimator::count || (of_shards && o.lossy.estimator == Estimator::zero_fill),
                   "delivery: all estimators except stratified and count are for simulations only") &&
           require(of_shards || o.lossy.on_empty != OnEmpty::hold, "delivery: on_empty=hold is only for the sharded step") &&
           require_ok(o.lossy.check());
  }
  bool only_reliable(const CallOptions& o) {
    return require(o.delivery == Delivery::reliable, "delivery: only all_reduce, reduce_shards and gather_shards can be lossy");
  }
  // Checks the codec of a collective that accepts only the plain codec.
  bool only_plain(const CallOptions& o) {
    if (o.codec && !o.codec->is_plain()) return fail("takes no codec but plain, not " + o.codec->to_string());
    return no_encode_error(o);
  }
  bool no_encode_error(const CallOptions& o) {
    return require(o.encode_error == nullptr && !o.error_feedback, "takes no encode_error") && no_measured_error(o);
  }
  // For collectives that cannot use `agreement`, because only the sender and the receiver know the size of a message.
  bool no_agreement(const CallOptions& o) { return require(o.agreement == 0, "takes no agreement"); }
  bool no_measured_error(const CallOptions& o) {
    return require(!o.measure_error, "measure_error is only for the blocking all_reduce");
  }
  bool tensor(const char* what, ConstTensor t) {
    if (static_cast<uint8_t>(t.dtype) >= dtype_count) return fail(std::string(what) + " has an unknown element type");
    size_t bytes = 0;
    if (__builtin_mul_overflow(t.count, element_bytes(t.dtype), &bytes) || t.count >> amount_bits != 0) {
      return fail(std::string(what) + " has " + number(t.count) + " elements, more than memory can hold");
    }
    if (t.count > 0 && t.data == nullptr) return fail(std::string(what) + " has " + number(t.count) + " elements but no data");
    return true;
  }
  bool counts(const char* what, Counts counts, uint32_t world) {
    if (counts.empty() || counts.size() == world) return true;
    return fail(std::string(what) + " has " + number(counts.size()) + " entries for " + number(world) + " ranks");
  }
  bool size(const char* what, size_t count, size_t expected) {
    if (count == expected) return true;
    return fail(std::string(what) + " has " + number(count) + " elements, expected " + number(expected));
  }
  bool root(Rank root, uint32_t world) {
    if (root < world) return true;
    return fail("rank " + number(root) + " is not in this group of " + number(world));
  }
  bool types(ConstTensor input, ConstTensor output) {
    if (input.dtype == output.dtype) return true;
    return fail(std::string("input is ") + name(input.dtype) + ", output is " + name(output.dtype));
  }
  bool op(ReduceOp op, DType dtype) {
    if (static_cast<uint8_t>(op) >= reduce_op_count) return fail("unknown reduce operation");
    const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
    if (bitwise && is_floating(dtype)) return fail(std::string(name(op)) + " takes integers, not " + name(dtype));
    return true;
  }
  bool total(Counts counts, size_t even, uint32_t world, size_t& total) {
    return total_of(counts, even, world, total) || fail("the blocks' sizes overflow");
  }
  bool even(size_t count, uint32_t world) {
    return count % world == 0 ||
           fail(number(count) + " elements cannot be divided into equal blocks for " + number(world) + " ranks");
  }
  bool require_ok(const Status& status) { return status.ok() || fail(status.message()); }
  bool require(bool condition, const char* message) { return condition || fail(message); }

 private:
  bool fail(std::string what) {
    status_ = invalid_call(what);
    return false;
  }
  Status status_;
};

// Returns why a sum cannot be lossy. The result is empty if it can. All ranks get the same result, because these arguments are
// equal on all ranks.
std::string_view needs_reliable(const CallOptions& o, DType dtype, const Codec& codec) {
  const bool types = dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16,
             ops = o.op == ReduceOp::sum || o.op == ReduceOp::avg;
  if (!types || !ops) return "only sums and averages of f32, f16 and bf16 tensors can be lossy";
  if (o.schedule != ScheduleKind::automatic && o.schedule != ScheduleKind::two_step)
    return "only two_step can be lossy, because there a lost message costs one contribution";
  if (o.encode_error != nullptr)
    return "lossy calls have no encode_error and no error_feedback, because nobody knows the error of a message that is lost";
  if (o.id != 0 || o.measure_error || o.agreement != 0) return "lossy calls have no id, measure_error or agreement";
  if (codec.reduce != codec.gather) return "lossy calls have one codec for both steps";
  return {};
}

OperationRequest base_request(const Caller& caller, Collective collective, ConstTensor input, Tensor output,
                              const CallOptions& o) {
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
  if (takes_codec(collective)) q.codec = o.codec ? &*o.codec : caller.codec;
  q.encode_error = o.encode_error;
  q.error_feedback = o.error_feedback;
  q.agreement = o.agreement;
  q.delivery = o.delivery;
  q.lossy = o.lossy;
  return q;
}

}  // namespace

Result<OperationRequest> all_reduce_call(const Caller& c, ConstTensor in, Tensor out, const CallOptions& o) {
  Checks check;
  if (!(check.options(o) && check.tensor("input", in) && check.tensor("output", out) && check.types(in, out) &&
        check.size("output", out.count, in.count) && check.op(o.op, in.dtype) && check.encode_error(o, in) &&
        check.measure_error(o, in.dtype) && check.delivery(o))) {
    return check.take();
  }
  auto q = base_request(c, Collective::all_reduce, in, out, o);
  if (q.delivery != Delivery::reliable) q.reliable_because = needs_reliable(o, in.dtype, *q.codec);
  if (q.delivery == Delivery::lossy && !q.reliable_because.empty())
    return invalid_call("delivery: " + std::string(q.reliable_because));
  q.count = in.count;
  return q;
}

Result<OperationRequest> reduce_scatter_call(const Caller& c, ConstTensor in, Tensor out, Counts counts, bool in_place,
                                             const CallOptions& o) {
  Checks check;
  if (!(check.options(o) && check.only_reliable(o) && check.tensor("input", in) && check.tensor("output", out) &&
        check.types(in, out) && check.counts("counts", counts, c.world) && check.op(o.op, in.dtype) &&
        check.encode_error(o, in) && check.no_measured_error(o) &&
        (!in_place || !counts.empty() || check.even(in.count, c.world)))) {
    return check.take();
  }
  auto q = base_request(c, Collective::reduce_scatter, in, out, o);
  q.in_place_blocks = in_place;
  q.count = counts.empty() ? (in_place ? in.count / c.world : out.count) : counts[c.self];
  size_t total = 0;
  if (!(check.total(counts, q.count, c.world, total) && check.size("input", in.count, total) &&
        (in_place || check.size("output", out.count, q.count)))) {
    return check.take();
  }
  q.send_counts = uneven(counts);
  return q;
}

Result<OperationRequest> all_gather_call(const Caller& c, ConstTensor in, Tensor out, Counts counts, bool in_place,
                                         const CallOptions& o) {
  Checks check;
  if (!(check.options(o) && check.only_reliable(o) && check.no_encode_error(o) && check.tensor("input", in) &&
        check.tensor("output", out) && check.types(in, out) && check.counts("counts", counts, c.world) &&
        (!in_place || !counts.empty() || check.even(out.count, c.world)))) {
    return check.take();
  }
  auto q = base_request(c, Collective::all_gather, in, out, o);
  q.in_place_blocks = in_place;
  q.count = counts.empty() ? (in_place ? out.count / c.world : in.count) : counts[c.self];
  size_t total = 0;
  if (!(check.total(counts, q.count, c.world, total) && check.size("output", out.count, total) &&
        (in_place || check.size("input", in.count, q.count)))) {
    return check.take();
  }
  q.recv_counts = uneven(counts);
  return q;
}

Result<ShardLayout> shard_layout_of(uint32_t world, ConstTensor tensor, const StepCodec& codec, uint32_t shard_unit,
                                    uint32_t datagram_bytes) {
  constexpr uint32_t any_datagram = 1472;
  const auto geometry = RangeGeometry::make({.elements = tensor.count,
                                             .world = world,
                                             .datagram_bytes = datagram_bytes == 0 ? any_datagram : datagram_bytes,
                                             .codec = wire_codec(codec, tensor.dtype, tensor.dtype, false),
                                             .shard_unit = shard_unit});
  if (!geometry) return geometry.status();
  return ShardLayout{.elements = tensor.count,
                     .world = world,
                     .shard_elements = geometry->shard_elements(),
                     .range_elements = geometry->range_elements()};
}

// Makes the request for reduce_shards or gather_shards. whole: the full tensor. part: the shard of this rank.
static Result<OperationRequest> shards_call(const Caller& c, Collective collective, ConstTensor whole, ConstTensor part,
                                            Tensor output, const CallOptions& o) {
  const bool reduces = collective == Collective::reduce_scatter;
  Checks check;
  if (!(check.options(o) && check.tensor("the tensor", whole) && check.tensor("the shard", part) && check.types(whole, part) &&
        check.op(o.op, whole.dtype) && check.no_measured_error(o) && check.encode_error(o, whole) && check.delivery(o, true) &&
        check.require(o.delivery != Delivery::automatic, "delivery: shards take reliable or lossy, not automatic") &&
        check.require(o.lossy.on_empty != OnEmpty::hold || reduces, "delivery: gather_shards cannot use on_empty=hold") &&
        check.require(o.needed_ranges == nullptr || !reduces, "needed_ranges is only for gather_shards"))) {
    return check.take();
  }
  const auto& codec = o.codec ? *o.codec : *c.codec;
  const auto layout = shard_layout_of(c.world, whole, reduces ? codec.reduce : codec.gather, o.shard_unit, 0);
  if (!layout) return layout.status();
  const auto own = layout->count(c.self);
  const auto why = o.delivery == Delivery::reliable
                       ? std::string_view()
                       : needs_reliable(o, whole.dtype, Codec::of(reduces ? codec.reduce : codec.gather));
  if (!why.empty()) return invalid_call("delivery: " + std::string(why));
  if (!check.size("the shard", part.count, own)) return check.take();
  auto q = base_request(c, collective, reduces ? whole : part, output, o);
  if (o.delivery == Delivery::reliable || c.world == 1) {
    std::vector<size_t> counts;
    for (Rank rank = 0; rank < c.world; ++rank) counts.push_back(layout->count(rank));
    (reduces ? q.send_counts : q.recv_counts) = uneven(counts);
    q.count = own;
    q.delivery = Delivery::reliable;
    return q;
  }
  // A rank that receives nothing could run ahead of the others. But a sender keeps the data of an operation only until it
  // starts its second next operation. A slower receiver could then no longer request a repair.
  if (layout->count(c.world - 1) == 0)
    return invalid_call("delivery: of " + number(whole.count) + " elements in shards of " + number(layout->shard_elements) +
                        " some of the " + number(c.world) + " ranks would have no elements; then delivery must be reliable");
  q.count = whole.count;
  q.dtype = whole.dtype;
  q.shard_unit = o.shard_unit;
  q.needed_ranges = o.needed_ranges;
  return q;
}

Result<OperationRequest> reduce_shards_call(const Caller& c, ConstTensor in, Tensor shard, const CallOptions& o) {
  return shards_call(c, Collective::reduce_scatter, in, shard, shard, o);
}

Result<OperationRequest> gather_shards_call(const Caller& c, ConstTensor shard, Tensor out, const CallOptions& o) {
  return shards_call(c, Collective::all_gather, out, shard, out, o);
}

Result<OperationRequest> broadcast_call(const Caller& c, Tensor inout, Rank root, const CallOptions& o) {
  Checks check;
  if (!(check.options(o) && check.only_reliable(o) && check.only_plain(o) && check.tensor("tensor", inout) &&
        check.root(root, c.world)))
    return check.take();
  auto q = base_request(c, Collective::broadcast, inout, inout, o);
  q.count = inout.count;
  q.root = root;
  return q;
}

Result<OperationRequest> reduce_call(const Caller& c, ConstTensor in, Tensor out, Rank root, const CallOptions& o) {
  Checks check;
  if (!(check.options(o) && check.only_reliable(o) && check.only_plain(o) && check.tensor("input", in) &&
        check.root(root, c.world) && check.op(o.op, in.dtype)))
    return check.take();
  const bool is_root = c.self == root;
  if (is_root && !(check.tensor("output", out) && check.types(in, out) && check.size("output", out.count, in.count)))
    return check.take();
  auto q = base_request(c, Collective::reduce, in, out, o);
  if (!is_root) q.output = nullptr;
  q.dtype = in.dtype;
  q.count = in.count;
  q.root = root;
  return q;
}

Result<OperationRequest> gather_call(const Caller& c, ConstTensor in, Tensor out, Rank root, Counts counts,
                                     const CallOptions& o) {
  Checks check;
  if (!(check.options(o) && check.only_reliable(o) && check.only_plain(o) && check.no_agreement(o) &&
        check.tensor("input", in) && check.root(root, c.world)))
    return check.take();
  auto q = base_request(c, Collective::gather, in, out, o);
  q.dtype = in.dtype;
  q.count = in.count;
  q.root = root;
  if (c.self != root) {
    q.output = nullptr;
    return q;
  }
  size_t total = 0;
  if (!(check.tensor("output", out) && check.types(in, out) && check.counts("counts", counts, c.world) &&
        check.total(counts, in.count, c.world, total) && check.size("output", out.count, total) &&
        (counts.empty() || check.size("input", in.count, counts[root])))) {
    return check.take();
  }
  q.recv_counts = uneven(counts);
  return q;
}

Result<OperationRequest> scatter_call(const Caller& c, ConstTensor in, Tensor out, Rank root, Counts counts,
                                      const CallOptions& o) {
  Checks check;
  if (!(check.options(o) && check.only_reliable(o) && check.only_plain(o) && check.no_agreement(o) &&
        check.tensor("output", out) && check.root(root, c.world)))
    return check.take();
  auto q = base_request(c, Collective::scatter, in, out, o);
  q.dtype = out.dtype;
  q.count = out.count;
  q.root = root;
  if (c.self != root) {
    q.input = nullptr;
    return q;
  }
  size_t total = 0;
  if (!(check.tensor("input", in) && check.types(in, out) && check.counts("counts", counts, c.world) &&
        check.total(counts, out.count, c.world, total) && check.size("input", in.count, total) &&
        (counts.empty() || check.size("output", out.count, counts[root])))) {
    return check.take();
  }
  q.send_counts = uneven(counts);
  return q;
}

Result<OperationRequest> all_to_all_call(const Caller& c, ConstTensor in, Tensor out, Counts send, Counts recv,
                                         const CallOptions& o) {
  Checks check;
  if (!(check.options(o) && check.only_reliable(o) && check.no_encode_error(o) && check.no_agreement(o) &&
        check.tensor("input", in) && check.tensor("output", out) && check.types(in, out) &&
        check.counts("send_counts", send, c.world) && check.counts("recv_counts", recv, c.world) &&
        check.require(send.empty() == recv.empty(), "give both send_counts and recv_counts, or neither"))) {
    return check.take();
  }
  auto q = base_request(c, Collective::all_to_all, in, out, o);
  if (send.empty()) {
    if (!(check.size("output", out.count, in.count) && check.even(in.count, c.world))) return check.take();
    q.count = in.count / c.world;
    return q;
  }
  const bool even = all_equal(send) && all_equal(recv) && send[0] == recv[0];
  size_t sent = 0, received = 0;
  if (!(check.total(send, 0, c.world, sent) && check.total(recv, 0, c.world, received) && check.size("input", in.count, sent) &&
        check.size("output", out.count, received) &&
        check.require(even || in.data != out.data || in.count == 0, "uneven blocks cannot be exchanged in place") &&
        check.size("the block for this rank itself", recv[c.self], send[c.self]))) {
    return check.take();
  }
  q.count = even ? send[0] : 0;
  if (!even) q.send_counts.assign(send.begin(), send.end()), q.recv_counts.assign(recv.begin(), recv.end());
  return q;
}

Result<OperationRequest> barrier_call(const Caller& c, const CallOptions& o) {
  Checks check;
  if (!(check.options(o) && check.only_reliable(o) && check.only_plain(o))) return check.take();
  return base_request(c, Collective::barrier, {}, {}, o);
}

Result<OperationRequest> message_call(const Caller& c, Collective direction, ConstTensor in, Tensor out, Rank other,
                                      const CallOptions& o) {
  Checks check;
  const ConstTensor tensor = direction == Collective::send ? in : ConstTensor(out);
  if (!(check.options(o) && check.only_reliable(o) && check.only_plain(o) && check.no_agreement(o) &&
        check.tensor("tensor", tensor) &&
        (other == any_source ? check.require(c.world > 1, "there is no other rank") : check.root(other, c.world)) &&
        check.require(other != c.self, "a rank cannot send to itself"))) {
    return check.take();
  }
  auto q = base_request(c, direction, in, out, o);
  q.dtype = tensor.dtype;
  q.count = tensor.count;
  q.root = other;
  return q;
}

}  // namespace unisono
