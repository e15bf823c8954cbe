#include "torch_call.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "unisono/store.h"

namespace unisono::torch_backend {
namespace {

constexpr uint64_t id_limit = uint64_t{1} << 56;

// Adapts torch's store to KeyValueStore.
class TorchStore final : public KeyValueStore {
 public:
  TorchStore(c10::intrusive_ptr<c10d::Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
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

}  // namespace

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = a ^ (b + 0x9E3779B97F4A7C15ull + (a << 6) + (a >> 2));
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

CallContext& call_context() {
  thread_local CallContext context;
  return context;
}

UnisonoBackend::UnisonoBackend(Group group, c10::intrusive_ptr<BackendOptions> options)
    : Backend(static_cast<int>(group.rank()), static_cast<int>(group.world_size())),
      options_(std::move(options)),
      timeout_ms_(options_->timeout.count()),
      pool_(std::make_shared<CallbackPool>()),
      shared_(std::make_shared<Shared>()) {
  shared_->group = std::move(group);
  init();
}

UnisonoBackend::~UnisonoBackend() {
  without_gil([this] { shutdown(); });
}

c10::intrusive_ptr<UnisonoBackend> UnisonoBackend::join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                        const c10::intrusive_ptr<BackendOptions>& options) {
  auto join = options->join;
  join.rank = rank;
  join.world_size = size;
  join.timeout = options->timeout;
  if (std::getenv("UNISONO_JOIN_TIMEOUT_MS") == nullptr) join.join_timeout = options->timeout;
  // Processes that initialise again with the same store meet others in the same attempt.
  const auto time = store->add("unisono/rank/" + std::to_string(rank), 1);
  join.job = "torch-" + std::to_string(time);
  join.store = std::make_shared<TorchStore>(store, "");
  auto group = Group::join(join);
  TORCH_CHECK_VALUE(group || group.status().code() != Code::invalid, "unisono: ", group.status().message());
  if (!group) fail(group.status(), "unisono: rank " + std::to_string(rank) + " of " + std::to_string(size) + " cannot join");
  return c10::make_intrusive<UnisonoBackend>(std::move(*group), options);
}

Group UnisonoBackend::checked_group(bool* coalescing) const {
  const std::lock_guard lock(shared_->mutex);
  if (coalescing != nullptr) *coalescing = shared_->coalescing;
  if (!shared_->group) fail({Code::unavailable, "this process group has been shut down"}, "unisono");
  return *shared_->group;
}

Group UnisonoBackend::group() const { return checked_group(); }

bool UnisonoBackend::over() const {
  const std::lock_guard lock(shared_->mutex);
  return !shared_->group;
}

Report UnisonoBackend::last_report() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->last;
}

// Calls -------------------------------------------------------------------------------------------------------------

namespace {

std::optional<Collective> collective_of(OpType type) {
  switch (type) {
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED: return Collective::all_reduce;
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
    case OpType::ALLGATHER_COALESCED: return Collective::all_gather;
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
    case OpType::REDUCE_SCATTER_TENSOR_COALESCED: return Collective::reduce_scatter;
    case OpType::BROADCAST: return Collective::broadcast;
    case OpType::REDUCE: return Collective::reduce;
    case OpType::BARRIER: return Collective::barrier;
    default: return std::nullopt;
  }
}

bool has_schedule(OpType type, ScheduleKind kind) {
  const auto collective = collective_of(type);
  return collective && facts_of(kind).serves(*collective);
}

bool takes_codec(OpType type) {
  switch (type) {
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
    case OpType::ALLGATHER_COALESCED:
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
    case OpType::REDUCE_SCATTER_TENSOR_COALESCED:
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE: return true;
    default: return false;
  }
}

}  // namespace

CallOptions UnisonoBackend::call_options(std::chrono::milliseconds timeout, OpType type) {
  auto& context = call_context();
  const auto& settings = context.settings ? *context.settings : options_->calls;
  CallOptions all;
  all.timeout = Milliseconds(timeout.count() > 0 ? timeout.count() : timeout_ms_.load());
  if (takes_codec(type)) all.codec = settings.codec;
  if (context.settings || has_schedule(type, settings.schedule))
    all.schedule = settings.schedule;  // a call's own choice requires an explicit schedule
  all.order = settings.order;
  if (context.place != 0) all.id = mixed(context.place, context.calls++) % (id_limit - 1) + 1;
  return all;
}

WorkSetup UnisonoBackend::setup_of(Call&& call) {
  // Calls made by callbacks are matched by the callback, not by call order.
  const auto& context = call_context();
  WorkSetup setup{.rank = rank_, .type = call.type, .title = call.title, .pool = pool_};
  setup.sequence = context.place == 0 ? sequence_++ : sequence_.load();
  setup.identity = context.place == 0 ? mixed(setup.sequence, 0) : mixed(context.place, context.calls);
  setup.outputs = std::move(call.outputs);
  setup.inputs = std::move(call.inputs);
  setup.kept = std::move(call.kept);
  setup.copies = std::move(call.copies);
  setup.listener = shared_;
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

WorkPointer UnisonoBackend::run_all(Call&& call, const std::vector<Part>& parts) {
  auto group = checked_group();
  std::vector<unisono::Work> works;
  works.reserve(parts.size());
  for (const auto& start : parts) works.push_back(start(group, call_options(call.timeout, call.type)));
  return issue(setup_of(std::move(call)), std::move(works));
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

// Groups ------------------------------------------------------------------------------------------------------------

void UnisonoBackend::setTimeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() > 0, "unisono: a time-out of ", timeout.count(), " ms");
  timeout_ms_ = timeout.count();
  options_->timeout = timeout;
}

void UnisonoBackend::abort() {
  std::optional<Group> group;
  {
    const std::lock_guard lock(shared_->mutex);
    group = shared_->group;
  }
  if (group)
    group->abort("the process group was aborted at rank " +
                 std::to_string(rank_));  // which may hold callbacks that wait for its operations
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
c10::intrusive_ptr<BackendOptions> options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given,
                                               const BackendOptions& own) {
  auto options = c10::make_intrusive<BackendOptions>(own);
  if (const auto* more = dynamic_cast<const BackendOptions*>(given.get())) options->calls = more->calls;
  if (given)
    options->timeout = given->timeout, options->group_name = given->group_name,
    options->global_ranks_in_group = given->global_ranks_in_group;
  return options;
}
}  // namespace

c10::intrusive_ptr<c10d::Backend> UnisonoBackend::split(const c10::intrusive_ptr<c10d::Store>&, const std::vector<int>& ranks,
                                                        const c10::intrusive_ptr<Options>& options) {
  const std::vector<uint32_t> members(ranks.begin(), ranks.end());
  if (std::ranges::find(members, static_cast<uint32_t>(rank_)) == members.end()) return nullptr;
  auto group = checked_group().split(members);
  if (!group) fail(group.status(), "unisono: split");
  return c10::make_intrusive<UnisonoBackend>(std::move(*group), options_for(options, *options_));
}

// The callers guarantee that the other ranks are here; excluded ranks do not take part.
c10::intrusive_ptr<c10d::Backend> UnisonoBackend::shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                                         const c10::intrusive_ptr<Options>& options) {
  const std::set<int64_t> left_out(ranks_to_exclude.begin(), ranks_to_exclude.end());
  TORCH_CHECK_VALUE(!left_out.contains(rank_), "unisono: shrink: rank ", rank_, " is among those that are left out");
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (!left_out.contains(rank)) ranks.push_back(rank);
  }
  if (flags != 0) abort();  // SHRINK_ABORT
  return split({}, ranks, options);
}

}  // namespace unisono::torch_backend
