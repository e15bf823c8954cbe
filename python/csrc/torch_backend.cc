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

// Makes torch's store usable as a KeyValueStore.
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

// The library numbers the ranks of a group from 0. Says which ranks they are in the whole job, if these are others.
static std::string global_ranks_text(const std::vector<uint64_t>& global_ranks) {
  std::string text;
  bool differs = false;
  for (size_t rank = 0; rank < global_ranks.size(); ++rank) {
    differs |= global_ranks[rank] != rank;
    text += (rank == 0 ? "" : ", ") + std::to_string(rank) + " is " + std::to_string(global_ranks[rank]);
  }
  return differs ? " (ranks of this group are global ranks: " + text + ")" : "";
}

CallContext& call_context() {
  thread_local CallContext context;
  return context;
}

namespace {
std::mutex handler_mutex;
EventHandler handler;

EventHandler event_handler() {
  const std::lock_guard lock(handler_mutex);
  return handler;
}
}  // namespace

void set_event_handler(const EventHandler& new_handler) {
  const std::lock_guard lock(handler_mutex);
  handler = new_handler;
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
  without_gil([this] { abort_rest("the process group was dropped at rank " + std::to_string(rank_)); });
}

c10::intrusive_ptr<UnisonoBackend> UnisonoBackend::join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                        const c10::intrusive_ptr<BackendOptions>& options) {
  auto join = options->join;
  join.rank = rank;
  join.world_size = size;
  join.timeout = options->timeout;
  if (std::getenv("UNISONO_JOIN_TIMEOUT_MS") == nullptr) join.join_timeout = options->timeout;
  // The same processes may initialise several times with the same store. The name of the job contains the number of the
  // attempt. So only the ranks of the same attempt find each other.
  const auto time = store->add("unisono/rank/" + std::to_string(rank), 1);
  join.job = "torch-" + std::to_string(time);
  join.store = std::make_shared<TorchStore>(store, "");
  join.on_event = event_handler();
  auto group = Group::join(join);
  TORCH_CHECK_VALUE(group || group.status().code() != Code::invalid, "unisono: ", group.status().message());
  if (!group)
    fail(group.status(), "unisono: rank " + std::to_string(rank) + " of " + std::to_string(size) + " cannot join" +
                             global_ranks_text(options->global_ranks_in_group));
  return c10::make_intrusive<UnisonoBackend>(std::move(*group), options);
}

void UnisonoBackend::check_process() const {
  if (forked()) fail({Code::invalid, pool_->owner().refusal()}, "unisono");
}

Group UnisonoBackend::checked_group(bool* coalescing) const {
  check_process();
  const std::lock_guard lock(shared_->mutex);
  if (coalescing != nullptr) *coalescing = shared_->coalescing;
  if (!shared_->group) fail({Code::unavailable, "this process group has been shut down"}, "unisono");
  return *shared_->group;
}

Group UnisonoBackend::group() const { return checked_group(); }

bool UnisonoBackend::over() const {
  if (forked()) return true;
  const std::lock_guard lock(shared_->mutex);
  return !shared_->group;
}

Report UnisonoBackend::last_report() const {
  check_process();
  const std::lock_guard lock(shared_->mutex);
  return shared_->last;
}

// Calls -------------------------------------------------------------------------------------------------------------

const CallSettings& UnisonoBackend::call_settings() const {
  const auto& own = call_context().settings;
  return own ? *own : options_->calls;
}

void UnisonoBackend::check_error_feedback() const {
  TORCH_CHECK_VALUE(call_settings().delivery != Delivery::lossy,
                    "unisono: error feedback needs reliable delivery, because nobody knows the error of a message that is "
                    "lost. The delivery of this call is lossy, by call_options, by the group's Options or by UNISONO_DELIVERY: "
                    "make it reliable, or use no error feedback");
}

void UnisonoBackend::set_delivery(CallOptions& options, DType dtype) const {
  const bool may_be_lossy =
      options.op <= unisono::ReduceOp::avg && is_floating(dtype) && dtype != DType::f64 && options.id == 0;
  if (!may_be_lossy) return;
  const auto& settings = call_settings();
  options.delivery = settings.delivery;
  options.lossy = settings.lossy;
}

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
  const auto& settings = call_settings();
  CallOptions all;
  all.timeout = Milliseconds(timeout.count() > 0 ? timeout.count() : timeout_ms_.load());
  if (takes_codec(type)) all.codec = settings.codec;
  if (context.settings || has_schedule(type, settings.schedule))
    // A schedule that was set by unisono.torch.call_options is always used. The schedule of the group is used only if the
    // collective offers it.
    all.schedule = settings.schedule;
  all.order = settings.order;
  if (context.callback_id != 0) all.id = mixed(context.callback_id, context.calls++) % (id_limit - 1) + 1;
  return all;
}

WorkSetup UnisonoBackend::setup_of(Call&& call) {
  // If a call is made in a callback, ranks match it by the identity of the callback. Ranks match all other calls by their
  // order.
  const auto& context = call_context();
  WorkSetup setup{.rank = rank_, .type = call.type, .title = call.title, .pool = pool_};
  setup.sequence = context.callback_id == 0 ? sequence_++ : sequence_.load();
  setup.identity = context.callback_id == 0 ? mixed(setup.sequence, 0) : mixed(context.callback_id, context.calls);
  setup.outputs = std::move(call.outputs);
  setup.inputs = std::move(call.inputs);
  setup.kept = std::move(call.kept);
  setup.copies = std::move(call.copies);
  setup.listener = shared_;
  return setup;
}

WorkPointer UnisonoBackend::issue(WorkSetup setup, std::vector<unisono::Work> parts) {
  auto work = c10::make_intrusive<TorchWork>(std::move(setup), parts);
  shared_->add(work->outcome());
  const std::lock_guard lock(shared_->mutex);
  if (shared_->coalescing) {
    shared_->coalesced.push_back(work);
    shared_->coalesced_parts.insert(shared_->coalesced_parts.end(), parts.begin(), parts.end());
  }
  return work;
}

void UnisonoBackend::wait_for(const std::shared_ptr<Outcome>& outcome) {
  if (outcome->poll()) return;
  shared_->add(outcome);
  try {
    (void)outcome->wait(kNoTimeout);
  } catch (...) {
    outcome->detach();
    throw;
  }
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

void UnisonoBackend::abandon_batch() {
  std::vector<c10::intrusive_ptr<TorchWork>> works;  // they are freed without the lock, because a tensor may need the GIL
  std::vector<unisono::Work> parts;
  const std::lock_guard lock(shared_->mutex);
  shared_->coalescing = false;
  works.swap(shared_->coalesced);
  parts.swap(shared_->coalesced_parts);
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
  auto work = c10::make_intrusive<TorchWork>(std::move(setup), std::move(parts));
  shared_->add(work->outcome());
  return work;
}

// Groups ------------------------------------------------------------------------------------------------------------

void UnisonoBackend::setTimeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() > 0, "unisono: a timeout must be positive: got ", timeout.count(), " ms");
  timeout_ms_ = timeout.count();
  options_->timeout = timeout;
}

void UnisonoBackend::abort() {
  if (forked()) return;
  std::optional<Group> group;
  {
    const std::lock_guard lock(shared_->mutex);
    group = shared_->group;
  }
  if (group) group->abort("the process group was aborted at rank " + std::to_string(rank_));
}

void UnisonoBackend::end(const std::string& failure) {
  const auto rank = "rank " + std::to_string(rank_);
  const auto interruption = rank + " was interrupted by a signal";
  if (!failure.empty()) return abort_rest("the program of " + rank + " has ended with " + failure);
  if (was_interrupted()) return abort_rest(interruption);
  try {
    wait_for_needed();
  } catch (...) {
    abort_rest(interruption);
    throw;
  }
  abort_rest("the process group was destroyed at " + rank);
}

void UnisonoBackend::wait_for_needed() {
  const auto until = Clock::now() + timeout();
  for (bool waited = true; waited;) {
    waited = false;
    for (const auto& outcome : shared_->in_flight()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      if (!outcome->is_needed() || left.count() <= 0) continue;
      (void)outcome->wait(left);
      waited = true;
    }
    // A callback may start further operations.
    (void)wait_interruptibly(until, [this](Clock::duration time) { return pool_->wait_idle(Clock::now() + time); });
  }
}

// Ends what is in flight, and then all threads of this backend.
void UnisonoBackend::abort_rest(const std::string& why) {
  std::optional<Group> last;
  std::vector<c10::intrusive_ptr<TorchWork>> coalesced;
  std::vector<unisono::Work> coalesced_parts;
  {
    const std::lock_guard lock(shared_->mutex);
    last.swap(shared_->group);
    coalesced.swap(shared_->coalesced), coalesced_parts.swap(shared_->coalesced_parts);
  }
  coalesced.clear();
  for (auto rest = shared_->in_flight(); !rest.empty(); rest = shared_->in_flight()) {
    if (last) last->abort(why);
    for (const auto& outcome : rest) outcome->complete();
  }
  pool_->close();
}

c10d::ErrorType UnisonoBackend::getError() {
  check_process();
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

// torch makes sure that all remaining ranks call this. The excluded ranks do not take part.
c10::intrusive_ptr<c10d::Backend> UnisonoBackend::shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                                         const c10::intrusive_ptr<Options>& options) {
  const std::set<int64_t> left_out(ranks_to_exclude.begin(), ranks_to_exclude.end());
  TORCH_CHECK_VALUE(!left_out.contains(rank_), "unisono: shrink: rank ", rank_,
                    " is in ranks_to_exclude: an excluded rank must not call shrink");
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (!left_out.contains(rank)) ranks.push_back(rank);
  }
  if (flags != 0) abort();  // the only flag is SHRINK_ABORT
  return split({}, ranks, options);
}

}  // namespace unisono::torch_backend
