#include "group/api/calls.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "codecs/codec.h"
#include "engine/operations/any_source.h"
#include "lossy/range_geometry.h"

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

bool alike(Counts counts) { return std::ranges::adjacent_find(counts, std::not_equal_to()) == counts.end(); }

// Equal blocks need no list of sizes: with one or without, it is the same request.
std::vector<size_t> uneven(Counts counts) {
  return alike(counts) ? std::vector<size_t>() : std::vector<size_t>(counts.begin(), counts.end());
}

// The first thing that is wrong with a call. Each check is true if the call may go on.
class Checks {
 public:
  Status take() { return std::move(status_); }

  bool options(const CallOptions& o) {
    if (o.id >= id_max) return fail("id " + number(o.id) + " is not below 2^56");
    if (o.timeout.count() < 0 || o.timeout.count() > timeout_max / millisecond) {
      return fail("timeout is " + std::to_string(o.timeout.count()) + " ms; needed: 0 (the group's) to " +
                  number(timeout_max / millisecond));
    }
    if (o.slice_bytes != 0 && (o.slice_bytes < slice_bytes_min || o.slice_bytes > slice_bytes_max)) {
      return fail("slice_bytes " + number(o.slice_bytes) + " is not in " + number(slice_bytes_min) + "…" +
                  number(slice_bytes_max));
    }
    return that(static_cast<uint8_t>(o.delivery) <= 2, "delivery: unknown") && codec(o);
  }
  // The call's own codec. The group's was checked when the group was joined.
  bool codec(const CallOptions& o) {
    if (!o.codec) return true;
    for (const auto* step : {&o.codec->reduce, &o.codec->across, &o.codec->gather}) {
      if (const auto fault = fault_of(*step); !fault.empty()) return fail("codec: " + fault);
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
    return that(types && ops && o.id == 0, "measure_error takes sums and averages of f32, f16 and bf16 tensors, without id");
  }
  // A call that may be lossy. of_shards: an average of shards may also use the biased estimator (zero_fill), and hold.
  bool delivery(const CallOptions& o, bool of_shards = false) {
    if (o.delivery == Delivery::reliable) return true;
    return that(o.lossy.estimator <= Estimator::count || (of_shards && o.lossy.estimator == Estimator::zero_fill),
                "delivery: estimators but stratified and count are for simulations") &&
           that(of_shards || o.lossy.on_empty != OnEmpty::hold, "delivery: on_empty=hold is for the sharded step") &&
           sound(o.lossy.check());
  }
  bool only_reliable(const CallOptions& o) {
    return that(o.delivery == Delivery::reliable, "delivery: only all_reduce, reduce_shards and gather_shards can be lossy");
  }
  // A collective that takes only plain elements.
  bool only_plain(const CallOptions& o) {
    if (o.codec && !o.codec->is_plain()) return fail("takes no codec but plain, not " + o.codec->to_string());
    return no_encode_error(o);
  }
  bool no_encode_error(const CallOptions& o) {
    return that(o.encode_error == nullptr && !o.error_feedback, "has no encode_error") && no_measured_error(o);
  }
  // A collective whose sizes are known to pairs of ranks only.
  bool no_agreement(const CallOptions& o) { return that(o.agreement == 0, "has no agreement"); }
  bool no_measured_error(const CallOptions& o) { return that(!o.measure_error, "measure_error is for blocking all_reduce"); }
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
    return count % world == 0 || fail(number(count) + " elements do not make equal blocks for " + number(world) + " ranks");
  }
  bool tag(uint32_t tag) { return tag < tag_max || fail("tag " + number(tag) + " is not below 2^15"); }
  bool sound(const Status& status) { return status.ok() || fail(status.message()); }
  bool that(bool right, const char* otherwise) { return right || fail(otherwise); }

 private:
  bool fail(std::string what) {
    status_ = wrong(what);
    return false;
  }
  Status status_;
};

// Why a sum cannot be lossy; empty: it can. Looks only at arguments that are equal on all ranks.
std::string_view needs_reliable(const CallOptions& o, DType dtype, const Codec& codec) {
  const bool types = dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16,
             ops = o.op == ReduceOp::sum || o.op == ReduceOp::avg;
  if (!types || !ops) return "only sums and averages of f32, f16 and bf16 tensors can be lossy";
  if (o.schedule != ScheduleKind::automatic && o.schedule != ScheduleKind::two_step)
    return "only two_step can be lossy, because there a lost message costs one contribution";
  if (o.id != 0 || o.encode_error != nullptr || o.measure_error || o.agreement != 0)
    return "lossy calls have no id, encode_error, measure_error or agreement";
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
    return wrong("delivery: " + std::string(q.reliable_because));
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

// whole: the tensor that has shards, of either call; part: the own shard.
static Result<OperationRequest> shards_call(const Caller& c, Collective collective, ConstTensor whole, ConstTensor part,
                                            Tensor output, const CallOptions& o) {
  const bool reduces = collective == Collective::reduce_scatter;
  Checks check;
  if (!(check.options(o) && check.tensor("the tensor", whole) && check.tensor("the shard", part) && check.types(whole, part) &&
        check.op(o.op, whole.dtype) && check.no_measured_error(o) && check.encode_error(o, whole) && check.delivery(o, true) &&
        check.that(o.delivery != Delivery::automatic, "delivery: shards are reliable or lossy") &&
        check.that(o.lossy.on_empty != OnEmpty::hold || reduces, "delivery: gather_shards holds nothing") &&
        check.that(o.needed_ranges == nullptr || !reduces, "needed_ranges is for gather_shards"))) {
    return check.take();
  }
  const auto& codec = o.codec ? *o.codec : *c.codec;
  const auto layout = shard_layout_of(c.world, whole, reduces ? codec.reduce : codec.gather, o.shard_unit, 0);
  if (!layout) return layout.status();
  const auto own = layout->count(c.self);
  const auto why = o.delivery == Delivery::reliable
                       ? std::string_view()
                       : needs_reliable(o, whole.dtype, Codec::of(reduces ? codec.reduce : codec.gather));
  if (!why.empty()) return wrong("delivery: " + std::string(why));
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
  // A rank with nothing to receive could run ahead of its peers, which keep their copies for two operations only.
  if (layout->count(c.world - 1) == 0)
    return wrong("delivery: of " + number(whole.count) + " elements in shards of " + number(layout->shard_elements) +
                 " some of the " + number(c.world) + " ranks would have none; then shards cannot be lossy");
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
        check.that(send.empty() == recv.empty(), "give both send_counts and recv_counts, or neither"))) {
    return check.take();
  }
  auto q = base_request(c, Collective::all_to_all, in, out, o);
  if (send.empty()) {
    if (!(check.size("output", out.count, in.count) && check.even(in.count, c.world))) return check.take();
    q.count = in.count / c.world;
    return q;
  }
  const bool even = alike(send) && alike(recv) && send[0] == recv[0];
  size_t sent = 0, received = 0;
  if (!(check.total(send, 0, c.world, sent) && check.total(recv, 0, c.world, received) && check.size("input", in.count, sent) &&
        check.size("output", out.count, received) &&
        check.that(even || in.data != out.data || in.count == 0, "uneven blocks cannot be exchanged in place") &&
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
                                      uint32_t tag, const CallOptions& o) {
  Checks check;
  const ConstTensor tensor = direction == Collective::send ? in : ConstTensor(out);
  if (!(check.options(o) && check.only_reliable(o) && check.only_plain(o) && check.no_agreement(o) &&
        check.tensor("tensor", tensor) && check.tag(tag) &&
        (other == any_source ? check.that(c.world > 1, "there is no other rank") : check.root(other, c.world)) &&
        check.that(other != c.self, "a rank cannot send to itself"))) {
    return check.take();
  }
  auto q = base_request(c, direction, in, out, o);
  q.dtype = tensor.dtype;
  q.count = tensor.count;
  q.root = other;
  return q;
}

}  // namespace unisono
