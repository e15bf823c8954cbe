#include "torch_backend.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "torch_tensors.h"
#include "unisono/store.h"

namespace unisono::torch_backend {
namespace {

using c10d::OpType;
using WorkPointer = UnisonoBackend::WorkPointer;

constexpr uint32_t arrival_tag = 32766, departure_tag = 32767;  // of monitored barriers; users have those below
constexpr uint64_t id_limit = uint64_t{1} << 56;

[[noreturn]] void fail(const Status& status, const std::string& what) { std::rethrow_exception(exception_of(status, what)); }

// torch's store, as the library asks for values.
class TorchStore final : public KeyValueStore {
 public:
  TorchStore(c10::intrusive_ptr<c10d::Store> store, std::string prefix) : store_(std::move(store)), prefix_(std::move(prefix)) {}
  Status set(const std::string& key, const std::string& value) override {
    return guarded(Code::unavailable, [&] { store_->set(prefix_ + key, std::vector<uint8_t>(value.begin(), value.end())); });
  }
  Result<std::string> get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::vector<uint8_t> bytes;
    const auto status = guarded(Code::late, [&] {
      store_->wait({prefix_ + key}, timeout);
      bytes = store_->get(prefix_ + key);
    });
    if (!status.ok()) return status;
    return std::string(bytes.begin(), bytes.end());
  }

 private:
  template <typename Ask>
  static Status guarded(Code code, Ask&& ask) {
    try {
      ask();
      return {};
    } catch (const c10::Error& error) {
      return {code, error.what_without_backtrace()};
    } catch (const std::exception& error) {
      return {code, error.what()};
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
};

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = a ^ (b + 0x9E3779B97F4A7C15ull + (a << 6) + (a >> 2));
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// One after the other in one memory, as a list of views of one tensor is.
bool lie_in_a_row(const std::vector<at::Tensor>& tensors) {
  auto* next = static_cast<const std::byte*>(tensors.front().data_ptr());
  for (const auto& tensor : tensors) {
    if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg() || tensor.data_ptr() != next) return false;
    next += tensor.nbytes();
  }
  return true;
}

std::vector<size_t> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<size_t> sizes;
  for (const auto& tensor : tensors) sizes.push_back(moved(tensor).count);
  return sizes;
}

// Empty where all are alike: then the engine needs to be told nothing.
std::vector<size_t> counts_of(const std::vector<at::Tensor>& tensors) {
  auto sizes = sizes_of(tensors);
  if (std::ranges::all_of(sizes, [&](size_t size) { return size == sizes.front(); })) sizes.clear();
  return sizes;
}

// All values in one memory: their own, or a copy.
at::Tensor flat_input(const std::vector<at::Tensor>& tensors) {
  if (lie_in_a_row(tensors)) {
    const auto elements = std::accumulate(tensors.begin(), tensors.end(), int64_t{0}, [](int64_t sum, const auto& tensor) { return sum + tensor.numel(); });
    if (tensors.front().storage_offset() + elements <= static_cast<int64_t>(tensors.front().storage().nbytes() / tensors.front().element_size()))
      return tensors.front().as_strided({elements}, {1});
  }
  std::vector<at::Tensor> rows;
  for (const auto& tensor : tensors) rows.push_back(dense_input(tensor).reshape({-1}));
  return at::cat(rows);
}

at::Tensor flat_output(const std::vector<at::Tensor>& tensors, std::vector<std::function<void()>>& copies) {
  const auto elements = std::accumulate(tensors.begin(), tensors.end(), int64_t{0}, [](int64_t sum, const auto& tensor) { return sum + tensor.numel(); });
  const bool one_storage = std::ranges::all_of(tensors, [&](const auto& tensor) { return tensor.is_alias_of(tensors.front()) || tensor.numel() == 0; });
  if (one_storage && lie_in_a_row(tensors)) return tensors.front().as_strided({elements}, {1});
  auto flat = at::empty({elements}, tensors.front().options());
  copies.emplace_back([tensors, flat] {
    const at::NoGradGuard no_grad;
    int64_t at = 0;
    for (auto tensor : tensors) {
      tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
      at += tensor.numel();
    }
  });
  return flat;
}

void check_list(const std::vector<at::Tensor>& tensors, const at::Tensor& like, size_t count, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == count, "unisono: ", what, " takes one tensor per rank, ", count, "; ", tensors.size(), " were given");
  for (const auto& tensor : tensors) check_cpu(tensor, what), check_same_type(tensor, like, what);
}

at::Tensor& only(std::vector<at::Tensor>& tensors, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "unisono: ", what, " takes one tensor; ", tensors.size(), " were given");
  check_cpu(tensors.front(), what);
  return tensors.front();
}

}  // namespace

CallContext& call_context() {
  thread_local CallContext context;
  return context;
}

struct UnisonoBackend::Call {
  OpType type = OpType::UNKNOWN;
  const char* title = nullptr;
  bool async = true;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  Tensors inputs{}, outputs{}, kept{};
  std::vector<std::function<void()>> copies{};
};

// What operations in flight and the backend have in common.
struct UnisonoBackend::Shared {
  mutable std::mutex mutex;
  std::optional<Group> group;  // none: shut down
  c10d::ErrorType error = c10d::ErrorType::SUCCESS;
  Report last;
  bool coalescing = false;
  std::vector<c10::intrusive_ptr<TorchWork>> coalesced;
  std::vector<unisono::Work> coalesced_parts;

  void ended(const Status& status, const Report& report) {
    const std::lock_guard lock(mutex);
    last = report;
    if (status.ok()) return;
    error = status.code() == Code::late ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
  }
};

UnisonoBackend::UnisonoBackend(Group group, c10::intrusive_ptr<BackendOptions> options)
    : Backend(static_cast<int>(group.rank()), static_cast<int>(group.world_size())), options_(std::move(options)), timeout_ms_(options_->timeout.count()),
      pool_(std::make_shared<CallbackPool>()), shared_(std::make_shared<Shared>()) {
  shared_->group = std::move(group);
  init();
}

UnisonoBackend::~UnisonoBackend() {
  without_gil([this] { shutdown(); });
}

c10::intrusive_ptr<UnisonoBackend> UnisonoBackend::join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const c10::intrusive_ptr<BackendOptions>& options) {
  auto join = options->join;
  join.rank = rank;
  join.world_size = size;
  join.timeout = options->timeout;
  join.join_timeout = options->timeout;
  // Whoever initialises again with the same store meets those who do so for the same time.
  const auto time = store->add("unisono/rank/" + std::to_string(rank), 1);
  join.job = "torch-" + std::to_string(time);
  join.store = std::make_shared<TorchStore>(store, "");
  auto group = Group::join(join);
  if (!group) fail(group.status(), "unisono: rank " + std::to_string(rank) + " of " + std::to_string(size) + " cannot join");
  return c10::make_intrusive<UnisonoBackend>(std::move(*group), options);
}

Group UnisonoBackend::checked_group() const {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->group) fail({Code::unavailable, "this process group has been shut down"}, "unisono");
  return *shared_->group;
}

Group UnisonoBackend::group() const { return checked_group(); }

Report UnisonoBackend::last_report() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->last;
}

// Calls -------------------------------------------------------------------------------------------------------------

CallOptions UnisonoBackend::call_options(std::chrono::milliseconds timeout) {
  auto& context = call_context();
  const auto& settings = context.settings ? *context.settings : options_->calls;
  CallOptions all;
  all.timeout = Milliseconds(timeout.count() > 0 ? timeout.count() : timeout_ms_.load());
  all.codec = settings.codec;
  all.schedule = settings.schedule;
  all.order = settings.order;
  if (context.place != 0) all.id = mixed(context.place, context.calls++) % (id_limit - 1) + 1;
  return all;
}

WorkSetup UnisonoBackend::setup_of(Call&& call) {
  // What callbacks start has no place in the order of calls.
  const auto& context = call_context();
  WorkSetup setup{.rank = rank_, .type = call.type, .title = call.title, .pool = pool_};
  setup.sequence = context.place == 0 ? sequence_++ : sequence_.load();
  setup.identity = context.place == 0 ? mixed(setup.sequence, 0) : mixed(context.place, context.calls);
  setup.outputs = std::move(call.outputs);
  setup.inputs = std::move(call.inputs);
  // kept: what the engine reads and writes until it is done.
  setup.finish = [kept = std::move(call.kept), copies = std::move(call.copies)] {
    for (const auto& copy : copies) copy();
  };
  setup.ended = [shared = shared_](const Status& status, const Report& report) { shared->ended(status, report); };
  return setup;
}

WorkPointer UnisonoBackend::issue(WorkSetup setup, std::vector<unisono::Work> parts) {
  auto work = c10::make_intrusive<TorchWork>(std::move(setup), parts);
  const std::lock_guard lock(shared_->mutex);
  if (shared_->coalescing) {
    shared_->coalesced.push_back(work);
    shared_->coalesced_parts.insert(shared_->coalesced_parts.end(), parts.begin(), parts.end());
  }
  return work;
}

template <typename Start, typename Run>
WorkPointer UnisonoBackend::run(Call&& call, Start&& start, Run&& run) {
  auto group = checked_group();
  const auto options = call_options(call.timeout);
  const bool waits = !call.async;
  auto setup = setup_of(std::move(call));
  if (!waits) return issue(std::move(setup), {start(group, options)});
  bool coalescing = false;
  {
    const std::lock_guard lock(shared_->mutex);
    coalescing = shared_->coalescing;
  }
  if (coalescing) return issue(std::move(setup), {start(group, options)});
  return c10::make_intrusive<TorchWork>(std::move(setup), run(group, options));
}

void UnisonoBackend::startCoalescing() {
  const std::lock_guard lock(shared_->mutex);
  TORCH_CHECK(!shared_->coalescing, "unisono: calls are being coalesced already");
  shared_->coalescing = true;
}

WorkPointer UnisonoBackend::endCoalescing() {
  std::vector<c10::intrusive_ptr<TorchWork>> works;
  std::vector<unisono::Work> parts;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->coalescing = false;
    works.swap(shared_->coalesced);
    parts.swap(shared_->coalesced_parts);
  }
  Call call{.type = OpType::COALESCED, .title = "unisono:coalesced"};
  for (const auto& work : works) {
    for (const auto& output : work->result()) call.outputs.push_back(output);
  }
  call.copies.emplace_back([works] {
    for (const auto& work : works) work->wait();
  });
  auto setup = setup_of(std::move(call));
  if (parts.empty()) return c10::make_intrusive<TorchWork>(std::move(setup), Result<Report>(Report{}));
  return c10::make_intrusive<TorchWork>(std::move(setup), std::move(parts));
}

// Collectives -------------------------------------------------------------------------------------------------------

WorkPointer UnisonoBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  auto& tensor = only(tensors, "broadcast");
  Call call{.type = OpType::BROADCAST, .title = "unisono:broadcast", .async = options.asyncOp, .timeout = options.timeout, .inputs = tensors, .outputs = tensors};
  const auto dense = dense_output(tensor, true, call.copies);
  call.kept = {dense};
  const auto inout = moved_into(dense);
  const auto root = static_cast<uint32_t>(options.rootRank);
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.broadcast_async(inout, root, o); }, [&](Group& g, const CallOptions& o) { return g.broadcast(inout, root, o); });
}

WorkPointer UnisonoBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors.front().layout() == at::kSparse) return allreduce_sparse(tensors, options);
  auto& tensor = only(tensors, "allreduce");
  Call call{.type = OpType::ALLREDUCE, .title = "unisono:all_reduce", .async = options.asyncOp, .timeout = options.timeout, .inputs = tensors, .outputs = tensors};
  const auto dense = dense_output(tensor, true, call.copies);
  const auto reduction = reduction_of(dense, options.reduceOp);
  call.kept = {dense};
  const auto with = [&](CallOptions o) {
    o.op = reduction.op;
    const auto& settings = call_context().settings ? *call_context().settings : options_->calls;
    const bool may_be_lossy = reduction.op <= unisono::ReduceOp::avg && is_floating(reduction.tensor.dtype) && reduction.tensor.dtype != DType::f64 && o.id == 0;
    if (may_be_lossy) o.delivery = settings.delivery, o.lossy = settings.lossy;
    return o;
  };
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.all_reduce_async(reduction.tensor, with(o)); }, [&](Group& g, const CallOptions& o) { return g.all_reduce(reduction.tensor, with(o)); });
}

// Every rank has its own places: all ranks' places and values are gathered, and added in rank order. On the caller's thread, as sizes have to be known first.
WorkPointer UnisonoBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  TORCH_CHECK_VALUE(tensors.size() == 1 && tensors.front().layout() == at::kSparse && tensors.front().device().is_cpu(), "unisono: allreduce_sparse takes one sparse COO tensor on the CPU");
  TORCH_CHECK_VALUE(static_cast<c10d::ReduceOp::RedOpType>(options.reduceOp) == c10d::ReduceOp::SUM, "unisono: sparse tensors are summed only");
  auto& tensor = tensors.front();
  Call call{.type = OpType::_ALLREDUCE_SPARSE, .title = "unisono:sparse_all_reduce", .timeout = options.timeout, .inputs = tensors, .outputs = tensors};
  const auto own = tensor.detach().coalesce();
  const auto indices = own.indices().contiguous(), values = own.values().contiguous();
  auto group = checked_group();
  const auto gather = [&](const at::Tensor& mine, const at::Tensor& all, const std::vector<size_t>& counts) {
    if (const auto outcome = group.all_gather(moved(mine), moved_into(all), counts, call_options(options.timeout)); !outcome.ok()) fail(outcome.status(), "allreduce_sparse");
  };
  const auto shape = at::tensor({own._nnz(), static_cast<int64_t>(own.sparse_dim()), static_cast<int64_t>(own.dense_dim()), own.numel()});
  const auto shapes = at::empty({size_, 4}, at::kLong);
  gather(shape, shapes, {});
  std::vector<size_t> index_counts, value_counts;
  int64_t entries = 0;
  const bool typed = moved(at::empty({1}, values.options())).count == 1;  // else elements are moved as bytes
  const auto per_entry = c10::multiply_integers(values.sizes().slice(1)) * (typed ? 1 : static_cast<int64_t>(values.element_size()));
  for (int rank = 0; rank < size_; ++rank) {
    const auto row = shapes[rank];
    TORCH_CHECK_VALUE(row.narrow(0, 1, 3).equal(shape.narrow(0, 1, 3)), "unisono: allreduce_sparse: rank ", rank, " has another shape");
    const auto count = row[0].item<int64_t>();
    entries += count;
    index_counts.push_back(count * own.sparse_dim());
    value_counts.push_back(count * per_entry);
  }
  auto value_sizes = values.sizes().vec();
  value_sizes[0] = entries;
  const auto all_indices = at::empty({entries, own.sparse_dim()}, at::kLong), all_values = at::empty(value_sizes, values.options());
  gather(indices.t().contiguous(), all_indices, index_counts);
  gather(values, all_values, value_counts);
  const at::NoGradGuard no_grad;
  tensor.copy_(at::sparse_coo_tensor(all_indices.t(), all_values, own.sizes()).coalesce());
  return c10::make_intrusive<TorchWork>(setup_of(std::move(call)), Result<Report>(last_report()));
}

WorkPointer UnisonoBackend::all_reduce_with_error(at::Tensor& tensor, at::Tensor& error, const Codec& codec, bool average) {
  check_cpu(tensor, "all_reduce_with_error"), check_cpu(error, "all_reduce_with_error");
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kFloat && error.scalar_type() == at::kFloat && tensor.is_contiguous() && error.is_contiguous() && tensor.numel() == error.numel(),
                    "unisono: all_reduce_with_error takes two dense fp32 tensors of one size");
  Call call{.type = OpType::ALLREDUCE, .title = "unisono:all_reduce", .async = true, .inputs = {tensor}, .outputs = {tensor}, .kept = {tensor, error}};
  const auto with = [&](CallOptions o) {
    o.op = average ? unisono::ReduceOp::avg : unisono::ReduceOp::sum;
    o.codec = codec;
    o.encode_error = error.data_ptr<float>();
    return o;
  };
  const auto inout = moved_into(tensor);
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.all_reduce_async(inout, with(o)); }, [&](Group& g, const CallOptions& o) { return g.all_reduce(inout, with(o)); });
}

WorkPointer UnisonoBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "unisono: allreduce_coalesced takes one tensor at least");
  Call call{.type = OpType::ALLREDUCE_COALESCED, .title = "unisono:all_reduce_coalesced", .async = true, .timeout = options.timeout, .inputs = tensors, .outputs = tensors};
  // One sum for all tensors of a type.
  std::map<at::ScalarType, Tensors> by_type;
  for (const auto& tensor : tensors) check_cpu(tensor, "allreduce_coalesced"), by_type[tensor.scalar_type()].push_back(tensor);
  auto group = checked_group();
  std::vector<unisono::Work> parts;
  for (const auto& [type, same] : by_type) {
    const auto flat = flat_output(same, call.copies);
    if (!lie_in_a_row(same) || flat.data_ptr() != same.front().data_ptr()) flat.copy_(flat_input(same));
    const auto reduction = reduction_of(flat, options.reduceOp);
    call.kept.push_back(flat);
    auto o = call_options(options.timeout);
    o.op = reduction.op;
    parts.push_back(group.all_reduce_async(reduction.tensor, o));
  }
  return issue(setup_of(std::move(call)), std::move(parts));
}

WorkPointer UnisonoBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  auto& tensor = only(tensors, "reduce");
  Call call{.type = OpType::REDUCE, .title = "unisono:reduce", .async = options.asyncOp, .timeout = options.timeout, .inputs = tensors, .outputs = tensors};
  const auto root = static_cast<uint32_t>(options.rootRank);
  const bool here = static_cast<int>(root) == rank_;
  const bool scaled = static_cast<c10d::ReduceOp::RedOpType>(options.reduceOp) == c10d::ReduceOp::PREMUL_SUM;
  auto dense = here ? dense_output(tensor, true, call.copies) : dense_input(tensor);
  if (!here && scaled) dense = dense.clone();  // only root's tensor changes
  const auto reduction = reduction_of(dense, options.reduceOp);
  call.kept = {dense};
  const auto with = [&](CallOptions o) { return o.op = reduction.op, o; };
  const auto& t = reduction.tensor;
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.reduce_async(t, here ? t : Tensor(nullptr, 0, t.dtype), root, with(o)); },
             [&](Group& g, const CallOptions& o) { return g.reduce(t, here ? t : Tensor(nullptr, 0, t.dtype), root, with(o)); });
}

WorkPointer UnisonoBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  auto& input = only(inputs, "allgather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "unisono: allgather takes one list of outputs");
  check_list(outputs.front(), input, size_, "allgather");
  Call call{.type = OpType::ALLGATHER, .title = "unisono:all_gather", .async = options.asyncOp, .timeout = options.timeout, .inputs = inputs, .outputs = outputs.front()};
  const auto flat = flat_output(outputs.front(), call.copies), dense = dense_input(input);
  const auto counts = counts_of(outputs.front());
  call.kept = {flat, dense};
  if (counts.empty()) {
    // What hooks get: one tensor, by rank.
    auto sizes = input.sizes().vec();
    sizes.insert(sizes.begin(), size_);
    call.outputs = {flat.view(sizes)};
  }
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.all_gather_async(moved(dense), moved_into(flat), counts, o); },
             [&](Group& g, const CallOptions& o) { return g.all_gather(moved(dense), moved_into(flat), counts, o); });
}

WorkPointer UnisonoBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  check_cpu(output, "all_gather_into_tensor"), check_cpu(input, "all_gather_into_tensor"), check_same_type(output, input, "all_gather_into_tensor");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_, "unisono: all_gather_into_tensor: an output of ", output.numel(), " elements for ", size_, " inputs of ", input.numel());
  Call call{.type = OpType::_ALLGATHER_BASE, .title = "unisono:all_gather_into_tensor", .async = options.asyncOp, .timeout = options.timeout, .inputs = {input}, .outputs = {output}};
  const auto flat = dense_output(output, false, call.copies), dense = dense_input(input);
  call.kept = {flat, dense};
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.all_gather_async(moved(dense), moved_into(flat), {}, o); },
             [&](Group& g, const CallOptions& o) { return g.all_gather(moved(dense), moved_into(flat), {}, o); });
}

WorkPointer UnisonoBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == static_cast<size_t>(size_), "unisono: allgather_coalesced takes one list of outputs per rank, ", size_, "; ", outputs.size(), " were given");
  Call call{.type = OpType::ALLGATHER_COALESCED, .title = "unisono:all_gather_coalesced", .timeout = options.timeout, .inputs = inputs};
  auto group = checked_group();
  std::vector<unisono::Work> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_ranks;
    for (auto& list : outputs) {
      TORCH_CHECK_VALUE(list.size() == inputs.size(), "unisono: allgather_coalesced: ", list.size(), " outputs for ", inputs.size(), " inputs");
      of_ranks.push_back(list[i]);
    }
    check_list(of_ranks, inputs[i], size_, "allgather_coalesced");
    const auto flat = flat_output(of_ranks, call.copies), dense = dense_input(inputs[i]);
    call.kept.insert(call.kept.end(), {flat, dense});
    call.outputs.insert(call.outputs.end(), of_ranks.begin(), of_ranks.end());
    parts.push_back(group.all_gather_async(moved(dense), moved_into(flat), counts_of(of_ranks), call_options(options.timeout)));
  }
  return issue(setup_of(std::move(call)), std::move(parts));
}

WorkPointer UnisonoBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == inputs.size(), "unisono: allgather_into_tensor_coalesced: ", outputs.size(), " outputs for ", inputs.size(), " inputs");
  Call call{.type = OpType::ALLGATHER_COALESCED, .title = "unisono:all_gather_into_tensor_coalesced", .timeout = options.timeout, .inputs = inputs, .outputs = outputs};
  auto group = checked_group();
  std::vector<unisono::Work> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_cpu(inputs[i], "allgather_into_tensor_coalesced"), check_same_type(outputs[i], inputs[i], "allgather_into_tensor_coalesced");
    const auto flat = dense_output(outputs[i], false, call.copies), dense = dense_input(inputs[i]);
    call.kept.insert(call.kept.end(), {flat, dense});
    parts.push_back(group.all_gather_async(moved(dense), moved_into(flat), {}, call_options(options.timeout)));
  }
  return issue(setup_of(std::move(call)), std::move(parts));
}

WorkPointer UnisonoBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  auto& input = only(inputs, "gather");
  const auto root = static_cast<uint32_t>(options.rootRank);
  const bool here = static_cast<int>(root) == rank_;
  TORCH_CHECK_VALUE(outputs.size() == (here ? 1u : 0u), "unisono: gather: ", here ? "the root needs one list of outputs" : "only the root has outputs");
  Call call{.type = OpType::GATHER, .title = "unisono:gather", .async = options.asyncOp, .timeout = options.timeout, .inputs = inputs};
  const auto dense = dense_input(input);
  at::Tensor flat;
  std::vector<size_t> counts;
  if (here) {
    check_list(outputs.front(), input, size_, "gather");
    flat = flat_output(outputs.front(), call.copies);
    counts = counts_of(outputs.front());
    call.outputs = outputs.front();
  }
  call.kept = {flat, dense};
  const auto out = here ? moved_into(flat) : Tensor(nullptr, 0, moved(dense).dtype);
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.gather_async(moved(dense), out, root, counts, o); }, [&](Group& g, const CallOptions& o) { return g.gather(moved(dense), out, root, counts, o); });
}

WorkPointer UnisonoBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  auto& output = only(outputs, "scatter");
  const auto root = static_cast<uint32_t>(options.rootRank);
  const bool here = static_cast<int>(root) == rank_;
  TORCH_CHECK_VALUE(inputs.size() == (here ? 1u : 0u), "unisono: scatter: ", here ? "the root needs one list of inputs" : "only the root has inputs");
  Call call{.type = OpType::SCATTER, .title = "unisono:scatter", .async = options.asyncOp, .timeout = options.timeout, .outputs = outputs};
  const auto dense = dense_output(output, false, call.copies);
  at::Tensor flat;
  std::vector<size_t> counts;
  if (here) {
    check_list(inputs.front(), output, size_, "scatter");
    flat = flat_input(inputs.front());
    counts = counts_of(inputs.front());
    call.inputs = inputs.front();
  }
  call.kept = {flat, dense};
  const auto in = here ? moved(flat) : ConstTensor(nullptr, 0, moved(dense).dtype);
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.scatter_async(in, moved_into(dense), root, counts, o); }, [&](Group& g, const CallOptions& o) { return g.scatter(in, moved_into(dense), root, counts, o); });
}

WorkPointer UnisonoBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  auto& output = only(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1, "unisono: reduce_scatter takes one list of inputs");
  check_list(inputs.front(), output, size_, "reduce_scatter");
  Call call{.type = OpType::REDUCE_SCATTER, .title = "unisono:reduce_scatter", .async = options.asyncOp, .timeout = options.timeout, .inputs = inputs.front(), .outputs = outputs};
  auto flat = flat_input(inputs.front());
  if (static_cast<c10d::ReduceOp::RedOpType>(options.reduceOp) == c10d::ReduceOp::PREMUL_SUM) flat = flat.clone();
  const auto dense = dense_output(output, false, call.copies);
  const auto from = reduction_of(flat, options.reduceOp);
  const auto to = reduction_of(dense, from.op == unisono::ReduceOp::sum ? c10d::ReduceOp(c10d::ReduceOp::SUM) : options.reduceOp);
  auto counts = counts_of(inputs.front());
  for (auto& count : counts) count *= flat.is_complex() ? 2 : 1;
  call.kept = {flat, dense};
  const auto with = [&](CallOptions o) { return o.op = from.op, o; };
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.reduce_scatter_async(from.tensor, to.tensor, counts, with(o)); },
             [&](Group& g, const CallOptions& o) { return g.reduce_scatter(from.tensor, to.tensor, counts, with(o)); });
}

WorkPointer UnisonoBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  c10d::ReduceScatterOptions same = options;
  check_cpu(output, "reduce_scatter_tensor"), check_cpu(input, "reduce_scatter_tensor"), check_same_type(output, input, "reduce_scatter_tensor");
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_, "unisono: reduce_scatter_tensor: an input of ", input.numel(), " elements for ", size_, " outputs of ", output.numel());
  Call call{.type = OpType::_REDUCE_SCATTER_BASE, .title = "unisono:reduce_scatter_tensor", .async = options.asyncOp, .timeout = options.timeout, .inputs = inputs, .outputs = outputs};
  auto flat = dense_input(input);
  if (static_cast<c10d::ReduceOp::RedOpType>(options.reduceOp) == c10d::ReduceOp::PREMUL_SUM && flat.is_alias_of(input)) flat = flat.clone();
  const auto dense = dense_output(output, false, call.copies);
  const auto from = reduction_of(flat, options.reduceOp);
  const auto to = reduction_of(dense, from.op == unisono::ReduceOp::sum ? c10d::ReduceOp(c10d::ReduceOp::SUM) : options.reduceOp);
  call.kept = {flat, dense};
  const auto with = [&](CallOptions o) { return o.op = from.op, o; };
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.reduce_scatter_async(from.tensor, to.tensor, {}, with(o)); },
             [&](Group& g, const CallOptions& o) { return g.reduce_scatter(from.tensor, to.tensor, {}, with(o)); });
}

WorkPointer UnisonoBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == inputs.size(), "unisono: reduce_scatter_tensor_coalesced: ", outputs.size(), " outputs for ", inputs.size(), " inputs");
  Call call{.type = OpType::REDUCE_SCATTER_TENSOR_COALESCED, .title = "unisono:reduce_scatter_tensor_coalesced", .timeout = options.timeout, .inputs = inputs, .outputs = outputs};
  auto group = checked_group();
  std::vector<unisono::Work> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_cpu(inputs[i], "reduce_scatter_tensor_coalesced"), check_same_type(outputs[i], inputs[i], "reduce_scatter_tensor_coalesced");
    const auto dense = dense_output(outputs[i], false, call.copies), flat = dense_input(inputs[i]);
    const auto from = reduction_of(flat, options.reduceOp), to = reduction_of(dense, options.reduceOp);
    call.kept.insert(call.kept.end(), {flat, dense});
    auto o = call_options(options.timeout);
    o.op = from.op;
    parts.push_back(group.reduce_scatter_async(from.tensor, to.tensor, {}, o));
  }
  return issue(setup_of(std::move(call)), std::move(parts));
}

WorkPointer UnisonoBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  check_cpu(output, "all_to_all_single"), check_cpu(input, "all_to_all_single"), check_same_type(output, input, "all_to_all_single");
  Call call{.type = OpType::ALLTOALL_BASE, .title = "unisono:all_to_all_single", .async = options.asyncOp, .timeout = options.timeout, .inputs = {input}, .outputs = {output}};
  const auto to = dense_output(output, false, call.copies), from = dense_input(input);
  const auto counts = [&](const std::vector<int64_t>& splits, const at::Tensor& tensor, const char* which) {
    const auto rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    std::vector<size_t> all;
    if (splits.empty()) {
      TORCH_CHECK_VALUE(rows % size_ == 0, "unisono: all_to_all_single: ", rows, " rows of the ", which, " cannot be split evenly among ", size_, " ranks");
      all.assign(size_, moved(tensor).count / size_);
      return all;
    }
    TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(size_) && std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows,
                      "unisono: all_to_all_single: the ", which, " has ", rows, " rows; its splits are ", splits);
    for (const auto split : splits) all.push_back(rows == 0 ? 0 : split * (moved(tensor).count / rows));
    return all;
  };
  const auto sent = counts(input_splits, from, "input"), received = counts(output_splits, to, "output");
  call.kept = {from, to};
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.all_to_all_async(moved(from), moved_into(to), sent, received, o); },
             [&](Group& g, const CallOptions& o) { return g.all_to_all(moved(from), moved_into(to), sent, received, o); });
}

WorkPointer UnisonoBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty(), "unisono: all_to_all takes one tensor per rank");
  check_list(inputs, inputs.front(), size_, "all_to_all"), check_list(outputs, inputs.front(), size_, "all_to_all");
  Call call{.type = OpType::ALLTOALL, .title = "unisono:all_to_all", .async = options.asyncOp, .timeout = options.timeout, .inputs = inputs, .outputs = outputs};
  const auto to = flat_output(outputs, call.copies), from = flat_input(inputs);
  const auto sent = sizes_of(inputs), received = sizes_of(outputs);
  call.kept = {from, to};
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.all_to_all_async(moved(from), moved_into(to), sent, received, o); },
             [&](Group& g, const CallOptions& o) { return g.all_to_all(moved(from), moved_into(to), sent, received, o); });
}

// Messages ----------------------------------------------------------------------------------------------------------

namespace {
uint32_t checked_tag(int tag) {
  TORCH_CHECK_VALUE(tag >= 0 && static_cast<uint32_t>(tag) < arrival_tag, "unisono: tag ", tag, "; 0 to ", arrival_tag - 1, " are possible");
  return static_cast<uint32_t>(tag);
}
}  // namespace

WorkPointer UnisonoBackend::send(Tensors& tensors, int to, int tag) {
  auto& tensor = only(tensors, "send");
  Call call{.type = OpType::SEND, .title = "unisono:send", .inputs = tensors};
  const auto dense = dense_input(tensor);
  call.kept = {dense};
  const auto number = checked_tag(tag);
  auto group = checked_group();
  auto options = call_options(c10d::kUnsetTimeout);
  options.id = 0;
  return issue(setup_of(std::move(call)), {group.send_async(moved(dense), to, number, options)});
}

WorkPointer UnisonoBackend::recv(Tensors& tensors, int from, int tag) {
  auto& tensor = only(tensors, "recv");
  Call call{.type = OpType::RECV, .title = "unisono:recv", .inputs = tensors, .outputs = tensors};  // profilers show what is received into
  const auto dense = dense_output(tensor, false, call.copies);
  call.kept = {dense};
  const auto number = checked_tag(tag);
  TORCH_CHECK_VALUE(from >= 0 && from < size_, "unisono: recv from rank ", from, " of ", size_);
  auto group = checked_group();
  auto options = call_options(c10d::kUnsetTimeout);
  options.id = 0;
  return issue(setup_of(std::move(call)), {group.recv_async(moved_into(dense), from, number, options)});
}

WorkPointer UnisonoBackend::recvAnysource(Tensors& tensors, int tag) {
  auto& tensor = only(tensors, "recv");
  Call call{.type = OpType::RECVANYSOURCE, .title = "unisono:recvAnySource", .inputs = tensors, .outputs = tensors};
  const auto dense = dense_output(tensor, false, call.copies);
  call.kept = {dense};
  const auto number = checked_tag(tag);
  auto group = checked_group();
  auto options = call_options(c10d::kUnsetTimeout);
  options.id = 0;
  return issue(setup_of(std::move(call)), {group.recv_any_async(moved_into(dense), number, options)});
}

WorkPointer UnisonoBackend::barrier(const c10d::BarrierOptions& options) {
  Call call{.type = OpType::BARRIER, .title = "unisono:barrier", .async = options.asyncOp, .timeout = options.timeout};
  return run(std::move(call), [](Group& g, const CallOptions& o) { return g.barrier_async(o); }, [](Group& g, const CallOptions& o) { return g.barrier(o); });
}

// "1, 2"; and who they are: "rank 1: host a, pid 41; rank 2: host b, pid 7"
std::pair<std::string, std::string> UnisonoBackend::names_of(const std::vector<uint32_t>& ranks) const {
  std::string numbers, processes;
  const auto members = checked_group().members();
  for (const auto rank : ranks) {
    numbers += (numbers.empty() ? "" : ", ") + std::to_string(rank);
    if (rank < members.size()) processes += (processes.empty() ? "" : "; ") + std::string("rank ") + std::to_string(rank) + ": host " + members[rank].host + ", pid " + std::to_string(members[rank].pid);
  }
  return {numbers, processes};
}

// All tell rank 0 that they are there, and are told who was not.
void UnisonoBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) {
  auto group = checked_group();
  auto with = call_options(options.timeout);
  with.id = 0;
  const auto started = std::chrono::steady_clock::now();
  std::vector<uint8_t> missing(size_, 0);
  const auto bytes = std::span(missing);
  if (rank_ > 0) {
    const uint8_t here = 1;
    auto status = group.send(std::span(&here, 1), 0, arrival_tag, with).status();
    with.timeout *= 2;  // rank 0 waits for others as long, and then tells
    if (status.ok()) status = group.recv(bytes, 0, departure_tag, with).status();
    if (!status.ok()) fail(status, "monitored_barrier: rank " + std::to_string(rank_) + " reached it, but has no answer from rank 0");
  } else {
    std::vector<uint8_t> arrived(size_);
    std::vector<unisono::Work> works;
    for (int rank = 1; rank < size_; ++rank) works.push_back(group.recv_async(std::span(&arrived[rank], 1), rank, arrival_tag, with));
    for (int rank = 1; rank < size_; ++rank) {
      missing[rank] = works[rank - 1].wait().ok() ? 0 : 1;
      if (missing[rank] != 0 && !wait_for_all) break;
    }
    std::vector<unisono::Work> told;
    for (int rank = 1; rank < size_; ++rank) {
      if (missing[rank] == 0) told.push_back(group.send_async(std::span<const uint8_t>(missing), rank, departure_tag, with));
    }
    for (auto& work : told) (void)work.wait();
  }
  std::vector<uint32_t> who;
  for (int rank = 0; rank < size_; ++rank) {
    if (missing[rank] != 0) who.push_back(rank);
  }
  ++sequence_;
  if (who.empty()) return;
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - started).count();
  const auto [numbers, processes] = names_of(who);
  fail({Code::late, "rank" + std::string(who.size() > 1 ? "s " : " ") + numbers + " did not reach it in " + std::to_string(waited) + " ms (" + processes + ")"}, "monitored_barrier");
}

// Groups ------------------------------------------------------------------------------------------------------------

void UnisonoBackend::setTimeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() > 0, "unisono: a time-out of ", timeout.count(), " ms");
  timeout_ms_ = timeout.count();
  options_->timeout = timeout;
}

void UnisonoBackend::abort() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->group) shared_->group->abort("the process group was aborted at rank " + std::to_string(rank_));
}

void UnisonoBackend::shutdown() {
  std::optional<Group> last;
  {
    const std::lock_guard lock(shared_->mutex);
    last.swap(shared_->group);
  }
  pool_->close();
}

c10d::ErrorType UnisonoBackend::getError() {
  const std::lock_guard lock(shared_->mutex);
  return shared_->error;
}

namespace {
c10::intrusive_ptr<BackendOptions> options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given, const BackendOptions& own) {
  auto options = c10::make_intrusive<BackendOptions>(own);
  if (const auto* more = dynamic_cast<const BackendOptions*>(given.get())) options->calls = more->calls;
  if (given) options->timeout = given->timeout, options->group_name = given->group_name, options->global_ranks_in_group = given->global_ranks_in_group;
  return options;
}
}  // namespace

c10::intrusive_ptr<c10d::Backend> UnisonoBackend::split(const c10::intrusive_ptr<c10d::Store>&, const std::vector<int>& ranks, const c10::intrusive_ptr<Options>& options) {
  const std::vector<uint32_t> members(ranks.begin(), ranks.end());
  if (std::ranges::find(members, static_cast<uint32_t>(rank_)) == members.end()) return nullptr;
  auto group = checked_group().split(members);
  if (!group) fail(group.status(), "unisono: split");
  return c10::make_intrusive<UnisonoBackend>(std::move(*group), options_for(options, *options_));
}

// The others are there, by what their callers say; those that are left out take no part.
c10::intrusive_ptr<c10d::Backend> UnisonoBackend::shrink(const std::vector<int64_t>& ranks_to_exclude, int, const c10::intrusive_ptr<Options>& options) {
  const std::set<int64_t> left_out(ranks_to_exclude.begin(), ranks_to_exclude.end());
  TORCH_CHECK_VALUE(!left_out.contains(rank_), "unisono: shrink: rank ", rank_, " is among those that are left out");
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (!left_out.contains(rank)) ranks.push_back(rank);
  }
  return split({}, ranks, options);
}

}  // namespace unisono::torch_backend
