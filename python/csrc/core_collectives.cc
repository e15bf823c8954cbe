// The collectives of a Group. A blocking call starts an asynchronous call and then waits for it in pieces of time, so that
// Ctrl-C can end the waiting.
#include <functional>
#include <numeric>
#include <type_traits>

#include "core_options.h"

namespace unisono_python {

namespace {

using Shape = std::vector<py::ssize_t>;
using Sizes = std::optional<std::vector<size_t>>;
using Start = std::function<Work(Group&, const CallOptions&)>;

// Prepares a call: first its memory, then its operation.
class Call {
 public:
  Call(const char* collective, const py::kwargs& words) : collective_(collective), flight_(new_flight()) {
    flight_->needed = std::string_view(collective) != "recv";
    flight_->buffers.reserve(2);  // add() returns references to elements; this keeps them valid
    flight_->words = call_words(words, collective);
    auto& call = flight_->words;
    call.options.encode_error = call.encode_error ? call.encode_error.floats().data() : nullptr;
    call.options.needed_ranges = call.needed_ranges.get();
  }
  const Buffer& add(py::handle array, const char* name, Access access) {
    return flight_->buffers.emplace_back(array, std::string(collective_) + ": " + name, access, flight_->words.dtype),
           flight_->buffers.back();
  }
  // Returns the output that the caller gave, or a new array if the caller gave none.
  const Buffer& output(py::handle given, py::handle like, DType dtype, const Shape& shape) {
    if (!given.is_none()) return add(given, "output", Access::write);
    flight_->output = empty_like(like, dtype, shape);
    return add(flight_->output, "output", Access::write);
  }
  void check_error_size(size_t elements) const {
    const auto& error = flight_->words.encode_error;
    if (error && error.count() != elements)
      throw py::value_error(std::string(collective_) + ": encode_error has " + std::to_string(error.count()) +
                            " elements, the input " + std::to_string(elements));
  }
  const CallOptions& options() const { return flight_->words.options; }

  py::object start(Group& group, const Start& begin) {
    launch(group, begin);
    return work_object(std::move(flight_));
  }
  OutputReport run(Group& group, const Start& begin) {
    try {
      if (options().measure_error && blocking) return {run_in_thread(group), py::none()};
      auto polling = group.polling();
      launch(polling, begin);
      return {wait_for(flight_->work, {}), std::move(flight_->output)};
    } catch (...) {
      flight_->needed = false;
      keep_until_done(std::move(flight_));  // after KeyboardInterrupt the operation continues
      throw;
    }
  }
  // The blocking form of the call. The library offers measure_error only in this form.
  std::function<Result<Report>(Group&, const CallOptions&)> blocking;

 private:
  // Runs the blocking form. The main thread lets another thread run it, so that Ctrl-C can end the waiting.
  Report run_in_thread(Group group) {
    flight_->ended = std::make_shared<std::atomic<bool>>(false);
    return interruptibly([call = blocking, group, with = options(), ended = flight_->ended]() mutable {
      auto outcome = call(group, with);
      *ended = true;
      return outcome;
    });
  }
  void launch(Group& group, const Start& begin) {
    const py::gil_scoped_release released;
    flight_->work = begin(group, flight_->words.options);
  }
  const char* collective_;
  std::unique_ptr<Flight> flight_;
};

ConstTensor const_tensor(const Buffer& buffer) { return buffer.const_tensor(); }
Tensor tensor(const Buffer& buffer) { return buffer.tensor(); }
Counts span_of(const Sizes& counts) { return counts ? Counts(*counts) : Counts(); }
py::ssize_t total(const std::vector<size_t>& counts) {
  return static_cast<py::ssize_t>(std::accumulate(counts.begin(), counts.end(), size_t{0}));
}

// Returns the shape of an array for the blocks of all ranks. It is (world, *block), or flat if `counts` are given.
Shape blocks_shape(const Group& group, const Buffer& block, const Sizes& counts) {
  if (counts) return {total(*counts)};
  auto shape = block.shape();
  shape.insert(shape.begin(), group.world_size());
  return shape;
}
// Returns the shape of one block. If the first dimension of `blocks` is the number of ranks, the block has the remaining
// dimensions. Otherwise, the block is flat.
Shape block_shape(const Group& group, const Buffer& blocks, const Sizes& counts) {
  if (counts) return {group.rank() < counts->size() ? static_cast<py::ssize_t>((*counts)[group.rank()]) : 0};
  const auto shape = blocks.shape();
  if (!shape.empty() && shape[0] == static_cast<py::ssize_t>(group.world_size())) return {shape.begin() + 1, shape.end()};
  return {static_cast<py::ssize_t>(blocks.count() / group.world_size())};
}

// Binds a collective twice: under its name, and under its name followed by _async. prepare(Group&, Call&, arguments…) must
// return a Start.
template <typename... Args, typename... Extra>
void add_collective(GroupClass& group, const char* name,
                    std::type_identity_t<std::function<Start(Group&, Call&, Args...)>> prepare, const char* doc,
                    const Extra&... extra) {
  group.def(
      name,
      [name, prepare](Group& self, Args... args, const py::kwargs& words) {
        Call call(name, words);
        return call.run(self, prepare(self, call, args...));
      },
      extra..., doc);
  const auto text = std::string("As ") + name + "(), but returns a Work at once.";
  group.def((std::string(name) + "_async").c_str(),
            [name, prepare](Group& self, Args... args, const py::kwargs& words) {
              Call call(name, words);
              return call.start(self, prepare(self, call, args...));
            },
            extra..., text.c_str());
}

using Object = py::object;

void add_reductions(GroupClass& group) {
  add_collective<Object, Object>(
      group, "all_reduce",
      [](Group&, Call& call, Object input, Object output) -> Start {
        if (output.is_none()) output = input;
        const auto in = const_tensor(call.add(input, "input", output.is(input) ? Access::write : Access::read));
        const auto out = output.is(input) ? Tensor(const_cast<void*>(in.data), in.count, in.dtype)
                                          : tensor(call.add(output, "output", Access::write));
        call.check_error_size(in.count);
        call.blocking = [=](Group& g, const CallOptions& options) { return g.all_reduce(in, out, options); };
        return [=](Group& g, const CallOptions& options) { return g.all_reduce_async(in, out, options); };
      },
      "Every rank ends with the reduction of all ranks' arrays.\n\ninput: any shape. output: as many elements of the same "
      "type; None: in place.\nOptions: see unisono.CallOptions. Errors: PeerLost, Late, Invalid (also if ranks call "
      "differently).",
      py::arg("input"), py::arg("output") = py::none());
  add_collective<Object, Object, Sizes>(
      group, "reduce_scatter",
      [](Group& self, Call& call, Object input, Object output, Sizes counts) -> Start {
        const auto& from = call.add(input, "input", Access::read);
        const auto in = const_tensor(from);
        const auto out = tensor(call.output(output, input, from.dtype(), block_shape(self, from, counts)));
        call.check_error_size(in.count);
        return [=](Group& g, const CallOptions& options) { return g.reduce_scatter_async(in, out, span_of(counts), options); };
      },
      "Rank r ends with block r of the reduction.\n\ninput: the blocks of all ranks in rank order. output: this rank's block; "
      "None: allocated (Report.output), of shape input.shape[1:] "
      "if the first dimension is the world size, else flat.\ncounts: elements of each rank's block; None: equal blocks.",
      py::arg("input"), py::arg("output") = py::none(), py::arg("counts") = py::none());
  add_collective<Object, Sizes>(
      group, "reduce_scatter_in_place",
      [](Group&, Call& call, Object inout, Sizes counts) -> Start {
        const auto both = tensor(call.add(inout, "inout", Access::write));
        call.check_error_size(both.count);
        return [=](Group& g, const CallOptions& options) { return g.reduce_scatter_async(both, span_of(counts), options); };
      },
      "Like reduce_scatter(), but the result replaces this rank's block of inout; the other blocks are unspecified afterwards.",
      py::arg("inout"), py::arg("counts") = py::none());
  add_collective<Object, Object, uint32_t>(
      group, "reduce",
      [](Group& self, Call& call, Object input, Object output, uint32_t root) -> Start {
        const bool writes = self.rank() == root, in_place = writes && (output.is_none() || output.is(input));
        const auto in = const_tensor(call.add(input, "input", in_place ? Access::write : Access::read));
        const auto out = in_place ? Tensor(const_cast<void*>(in.data), in.count, in.dtype)
                         : writes ? tensor(call.add(output, "output", Access::write))
                                  : Tensor();
        return [=](Group& g, const CallOptions& options) { return g.reduce_async(in, out, root, options); };
      },
      "root ends with the reduction of all ranks' arrays.\n\noutput: used on root only; None: in place there.",
      py::arg("input"), py::arg("output") = py::none(), py::arg("root") = 0);
}

void add_gatherings(GroupClass& group) {
  add_collective<Object, Object, Sizes>(
      group, "all_gather",
      [](Group& self, Call& call, Object input, Object output, Sizes counts) -> Start {
        const auto& from = call.add(input, "input", Access::read);
        const auto in = const_tensor(from);
        const auto out = tensor(call.output(output, input, from.dtype(), blocks_shape(self, from, counts)));
        return [=](Group& g, const CallOptions& options) { return g.all_gather_async(in, out, span_of(counts), options); };
      },
      "Every rank ends with all ranks' blocks in rank order.\n\ninput: this rank's block. output: large enough for all; None: "
      "allocated (Report.output), of shape (world_size, *input.shape), or flat with counts.\ncounts: elements of each rank's "
      "block; None: equal blocks.",
      py::arg("input"), py::arg("output") = py::none(), py::arg("counts") = py::none());
  add_collective<Object, Sizes>(
      group, "all_gather_in_place",
      [](Group&, Call& call, Object inout, Sizes counts) -> Start {
        const auto both = tensor(call.add(inout, "inout", Access::write));
        return [=](Group& g, const CallOptions& options) { return g.all_gather_async(both, span_of(counts), options); };
      },
      "Like all_gather(), but inout already holds this rank's block at its position.", py::arg("inout"),
      py::arg("counts") = py::none());
  add_collective<Object, Object, uint32_t, Sizes>(
      group, "gather",
      [](Group& self, Call& call, Object input, Object output, uint32_t root, Sizes counts) -> Start {
        const auto& from = call.add(input, "input", Access::read);
        const auto in = const_tensor(from);
        const auto out =
            self.rank() == root ? tensor(call.output(output, input, from.dtype(), blocks_shape(self, from, counts))) : Tensor();
        return [=](Group& g, const CallOptions& options) { return g.gather_async(in, out, root, span_of(counts), options); };
      },
      "root ends with all ranks' blocks in rank order.\n\noutput: used on root only; None: allocated there (Report.output), as "
      "by all_gather(). counts: needed on root only.",
      py::arg("input"), py::arg("output") = py::none(), py::arg("root") = 0, py::arg("counts") = py::none());
  add_collective<Object, Object, uint32_t, Sizes>(
      group, "scatter",
      [](Group& self, Call& call, Object input, Object output, uint32_t root, Sizes counts) -> Start {
        const bool reads = self.rank() == root;
        if (reads && input.is_none()) throw py::type_error("scatter: root needs an input");
        if (!reads && output.is_none())
          throw py::type_error("scatter: ranks other than root need an output: only root knows its size");
        const auto* from = reads ? &call.add(input, "input", Access::read) : nullptr;
        const auto in = reads ? const_tensor(*from) : ConstTensor();
        const auto out = tensor(reads ? call.output(output, input, from->dtype(), block_shape(self, *from, counts))
                                      : call.add(output, "output", Access::write));
        return [=](Group& g, const CallOptions& options) { return g.scatter_async(in, out, root, span_of(counts), options); };
      },
      "Rank r ends with block r of root's input.\n\ninput: used on root only. output: needed on other ranks; None on root: "
      "allocated (Report.output). counts: needed on root only.",
      py::arg("input"), py::arg("output") = py::none(), py::arg("root") = 0, py::arg("counts") = py::none());
}

void add_exchanges(GroupClass& group) {
  add_collective<Object, uint32_t>(
      group, "broadcast",
      [](Group& self, Call& call, Object inout, uint32_t root) -> Start {
        const auto both = call.add(inout, "inout", self.rank() == root ? Access::read : Access::write).tensor();
        return [=](Group& g, const CallOptions& options) { return g.broadcast_async(both, root, options); };
      },
      "Every rank ends with root's array.", py::arg("inout"), py::arg("root") = 0);
  add_collective<Object, Object, Sizes, Sizes>(
      group, "all_to_all",
      [](Group&, Call& call, Object input, Object output, Sizes send_counts, Sizes recv_counts) -> Start {
        const auto& from = call.add(input, "input", Access::read);
        const auto in = const_tensor(from);
        const auto out =
            tensor(call.output(output, input, from.dtype(), recv_counts ? Shape{total(*recv_counts)} : from.shape()));
        return [=](Group& g, const CallOptions& options) {
          return g.all_to_all_async(in, out, span_of(send_counts), span_of(recv_counts), options);
        };
      },
      "Block d of input goes to rank d; block s of output comes from rank s.\n\noutput: None: allocated (Report.output), of "
      "input's shape, or flat with recv_counts. Equal blocks may be exchanged in place: "
      "output is input.\nsend_counts, recv_counts: elements of each block; None: equal blocks.",
      py::arg("input"), py::arg("output") = py::none(), py::arg("send_counts") = py::none(),
      py::arg("recv_counts") = py::none());
  add_collective<>(
      group, "barrier",
      [](Group&, Call&) -> Start { return [](Group& g, const CallOptions& options) { return g.barrier_async(options); }; },
      "Returns when all ranks have called it.");
  add_collective<Object, uint32_t, uint32_t>(
      group, "send",
      [](Group&, Call& call, Object input, uint32_t to, uint32_t tag) -> Start {
        const auto in = const_tensor(call.add(input, "input", Access::read));
        return [=](Group& g, const CallOptions& options) { return g.send_async(in, to, tag, options); };
      },
      "Sends a message to one rank. Messages between two ranks match by tag, in order of the calls for one tag; tag < 2**32.",
      py::arg("input"), py::arg("to"), py::arg("tag") = 0);
  add_collective<Object, uint32_t, uint32_t>(
      group, "recv",
      [](Group&, Call& call, Object output, uint32_t source, uint32_t tag) -> Start {
        const auto out = tensor(call.add(output, "output", Access::write));
        return [=](Group& g, const CallOptions& options) { return g.recv_async(out, source, tag, options); };
      },
      "Receives a message from one rank, with as many elements as output.", py::arg("output"), py::arg("source"),
      py::arg("tag") = 0);
}

void add_shards(GroupClass& group) {
  add_collective<Object, Object>(
      group, "reduce_shards",
      [](Group& self, Call& call, Object input, Object shard) -> Start {
        const auto& from = call.add(input, "input", Access::read);
        const auto in = const_tensor(from);
        const auto& options = call.options();
        const auto layout = check(self.shard_layout(in, options.codec.value_or(Codec()).reduce, options.shard_unit));
        const auto out = tensor(call.output(shard, input, from.dtype(), {static_cast<py::ssize_t>(layout.count(self.rank()))}));
        return [=](Group& g, const CallOptions& o) { return g.reduce_shards_async(in, out, o); };
      },
      "The first half of an all-reduce for ranks that each keep a shard: rank r gets shard r of the reduction.\n\nshard: "
      "shard_layout(input).count(rank) elements; None: allocated (Report.output).",
      py::arg("input"), py::arg("shard") = py::none());
  add_collective<Object, Object>(
      group, "gather_shards",
      [](Group&, Call& call, Object shard, Object output) -> Start {
        const auto in = const_tensor(call.add(shard, "shard", Access::read));
        const auto out = tensor(call.add(output, "output", Access::write));
        return [=](Group& g, const CallOptions& options) { return g.gather_shards_async(in, out, options); };
      },
      "The second half: every rank gets all shards. output: the whole tensor; with lossy delivery, missing ranges keep their "
      "old values.",
      py::arg("shard"), py::arg("output"));
  group.def(
      "shard_layout",
      [](const Group& self, py::handle array, py::handle codec, uint32_t unit, const std::optional<std::string>& dtype) {
        const Buffer like(array, "shard_layout: array", Access::read,
                          dtype == "bf16" ? std::optional(DType::bf16) : std::nullopt);
        return check(self.shard_layout(like.const_tensor(), option_of<StepCodec>(codec, "codec"), unit));
      },
      py::arg("array"), py::arg("codec") = "plain", py::arg("shard_unit") = 0, py::arg("dtype") = py::none(),
      "How an array of this size and type is cut; its elements are not read.");
}

}  // namespace

void add_collectives(GroupClass& group) {
  add_reductions(group);
  add_gatherings(group);
  add_exchanges(group);
  add_shards(group);
}

}  // namespace unisono_python
