#include "cli/bench_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "cli/monotonic.h"
#include "cli/text.h"

namespace unisono::cli {
namespace {

constexpr uint32_t auto_iterations_min = 10;
constexpr uint32_t auto_iterations_max = 2000;

// One rank's memory and the call that is measured.
class Subject {
 public:
  Subject(Group& group, const RunOptions& options, const Extent& extent, bool in_place)
      : group_(group), options_(options), extent_(extent), in_place_(in_place) {}

  Status allocate();
  void fill();
  Result<Report> call();
  uint64_t wrong() const;

 private:
  struct Shape {
    size_t input = 0;   // elements
    size_t output = 0;
  };
  Shape shape() const;
  const DataPlan& data() const { return options_.data; }
  size_t block_bytes() const { return extent_.block_count * element_bytes(data().dtype); }
  bool is_root() const { return group_.rank() == data().root; }
  Tensor tensor(std::byte* bytes, size_t count) const { return {bytes, count, data().dtype}; }
  Result<Report> exchange();

  Group& group_;
  const RunOptions& options_;
  Extent extent_;
  bool in_place_;
  std::unique_ptr<std::byte[]> input_;
  std::unique_ptr<std::byte[]> output_;  // none in place
};

Subject::Shape Subject::shape() const {
  const auto block = extent_.block_count;
  const auto all = extent_.tensor_count;
  switch (data().collective) {
    case Collective::reduce_scatter: return {all, block};
    case Collective::all_gather: return in_place_ ? Shape{all, 0} : Shape{block, all};
    case Collective::gather: return {block, is_root() ? all : 0};
    case Collective::scatter: return {is_root() ? all : 0, block};
    case Collective::barrier: return {};
    default: return {all, all};
  }
}

Status Subject::allocate() {
  const auto size = element_bytes(data().dtype);
  const auto [input, output] = shape();
  input_.reset(new (std::nothrow) std::byte[input * size]);
  if (!in_place_) output_.reset(new (std::nothrow) std::byte[output * size]);
  if (!input_ || (!in_place_ && !output_)) {
    return Status(Code::unavailable, fmt::format("no memory for {} in each rank", format_bytes((input + (in_place_ ? 0 : output)) * size)));
  }
  // Touched now, so that page faults are not measured; wrong if a result never arrives.
  if (!in_place_) std::memset(output_.get(), 0xA5, output * size);
  return {};
}

void Subject::fill() {
  const auto rank = group_.rank();
  if (data().collective == Collective::all_gather && in_place_) {
    std::memset(input_.get(), 0xA5, extent_.tensor_count * element_bytes(data().dtype));
    return fill_input(data(), rank, 0, extent_.block_count, input_.get() + rank * block_bytes());
  }
  // Only root's data may arrive; the others start from something else.
  const bool unused = data().collective == Collective::broadcast && !is_root();
  if (unused) std::memset(input_.get(), 0xA5, extent_.tensor_count * element_bytes(data().dtype));
  else fill_input(data(), rank, 0, shape().input, input_.get());
}

Result<Report> Subject::exchange() {
  const auto n = group_.world_size();
  const auto rank = group_.rank();
  if (n == 1) {
    if (output_) std::memcpy(output_.get(), input_.get(), extent_.tensor_count * element_bytes(data().dtype));
    return Report{};
  }
  auto receive = group_.recv_async(tensor(output_.get(), extent_.tensor_count), (rank + n - 1) % n, 0, options_.call);
  auto send = group_.send_async(tensor(input_.get(), extent_.tensor_count), (rank + 1) % n, 0, options_.call);
  auto sent = send.wait();
  auto received = receive.wait();
  return sent.ok() ? std::move(received) : std::move(sent);
}

Result<Report> Subject::call() {
  const auto& options = options_.call;
  const auto root = data().root;
  const auto input = tensor(input_.get(), shape().input);
  const auto output = in_place_ ? input : tensor(output_.get(), shape().output);
  switch (data().collective) {
    case Collective::all_reduce: return in_place_ ? group_.all_reduce(input, options) : group_.all_reduce(input, output, options);
    case Collective::reduce_scatter:
      return in_place_ ? group_.reduce_scatter(input, Counts{}, options) : group_.reduce_scatter(input, output, Counts{}, options);
    case Collective::all_gather: return in_place_ ? group_.all_gather(input, Counts{}, options) : group_.all_gather(input, output, Counts{}, options);
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

uint64_t Subject::wrong() const {
  const std::byte* result = in_place_ ? input_.get() : output_.get();
  if (in_place_ && data().collective == Collective::reduce_scatter) result += group_.rank() * block_bytes();
  return count_wrong(data(), group_.rank(), extent_.block_count, result);
}

// The same value on all ranks, from rank 0's.
Result<uint64_t> agree(Group& group, uint64_t value) {
  auto done = group.broadcast(std::span<uint64_t>(&value, 1), 0);
  if (!done.ok()) return done.status();
  return value;
}

Result<uint32_t> choose_iterations(Group& group, const RunOptions& options, Subject& subject) {
  Nanos spent = 0;
  const auto warmup = std::max<uint32_t>(options.iterations == 0 ? 1 : 0, options.warmup);
  for (uint32_t i = 0; i < warmup; ++i) {
    const auto start = monotonic_now();
    auto done = subject.call();
    if (!done.ok()) return done.status();
    spent = monotonic_now() - start;
  }
  if (options.iterations != 0) return options.iterations;
  const auto fitting = static_cast<uint64_t>(options.row_time / std::max<Nanos>(spent, 1));
  auto agreed = agree(group, std::clamp<uint64_t>(fitting, auto_iterations_min, auto_iterations_max));
  if (!agreed.ok()) return agreed.status();
  return static_cast<uint32_t>(*agreed);
}

Status combine(Group& group, Across across, std::vector<double>& durations) {
  if (group.world_size() == 1) return {};
  const std::span<double> span(durations);
  const auto op = across == Across::mean ? ReduceOp::avg : across == Across::min ? ReduceOp::min : ReduceOp::max;
  return across == Across::rank_0 ? group.broadcast(span, 0).status() : group.all_reduce(span, {.op = op}).status();
}

Status check(Group& group, Subject& subject, Measurement& measurement) {
  subject.fill();
  auto done = subject.call();
  if (!done.ok()) return done.status();
  measurement.wrong = subject.wrong();
  auto summed = group.all_reduce(std::span<uint64_t>(&measurement.wrong, 1));
  measurement.checked = true;
  return summed.status();
}

}  // namespace

Result<Measurement> measure(Group& group, const RunOptions& options, uint64_t bytes, bool in_place) {
  Measurement measurement;
  measurement.extent = extent_of(options.data.collective, bytes, options.data.dtype, group.world_size());
  Subject subject(group, options, measurement.extent, in_place);
  if (auto status = subject.allocate(); !status.ok()) return status;
  subject.fill();
  if (options.check && options.data.collective != Collective::barrier) {
    if (auto status = check(group, subject, measurement); !status.ok()) return status;
  }
  const auto iterations = choose_iterations(group, options, subject);
  if (!iterations.ok()) return iterations.status();
  measurement.iterations = *iterations;
  std::vector<double> durations(*iterations);
  for (uint32_t i = 0; i < *iterations; ++i) {
    if (options.barrier && options.data.collective != Collective::barrier) {
      if (auto met = group.barrier(); !met.ok()) return met.status();
    }
    const auto start = monotonic_now();
    auto done = subject.call();
    const auto end = monotonic_now();
    if (!done.ok()) return done.status();
    durations[i] = static_cast<double>(end - start) / static_cast<double>(microsecond);
    if (options.on_progress) options.on_progress(i + 1, *iterations, end);
    if (i + 1 == *iterations) measurement.report = *std::move(done);
  }
  if (auto status = combine(group, options.across, durations); !status.ok()) return status;
  measurement.timing = summarise(durations);
  return measurement;
}

}  // namespace unisono::cli
