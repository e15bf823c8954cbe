#include "elastic/seeds/seed_finder.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/concat.h"

namespace unisono {

namespace {

constexpr size_t bootstrap_addresses_max = 64;
// The destructor first stops the table, and then waits this long for the thread. The wait is short, because it comes on top of
// join_timeout if joining fails.
constexpr auto drain = std::chrono::milliseconds(200);

std::string name_of(const SeedName& node) {
  const bool wide = node.host.find(':') != std::string::npos;
  return concat("dht:", wide ? '[' + node.host + ']' : node.host, ':', node.port);
}

}  // namespace

struct SeedFinder::State {
  explicit State(SeedFinderOptions all) : options(std::move(all)), all_addresses(all_seeds_are_addresses(options.seeds)) {}

  const SeedFinderOptions options;
  const bool all_addresses;
  std::atomic<uint64_t> version = 0;
  std::mutex mutex;
  std::condition_variable changed;
  bool busy = false, names_read = false, by_table = false, stopped = false;
  Status names_status;
  Seeds names, table;  // what the last look-ups found: in names and files, and in the hash table
  // Made when it is first used. Only the look-up thread uses it, but any thread may call its stop().
  std::unique_ptr<SeedDht> dht;
};

SeedFinder::SeedFinder(SeedFinderOptions options) : state_(std::make_shared<State>(std::move(options))) {}

SeedFinder::~SeedFinder() {
  // Takes over the table, so that this thread destroys it, and not the detached thread.
  std::unique_ptr<SeedDht> dht;
  std::unique_lock lock(state_->mutex);
  state_->stopped = true;
  if (auto* const used = state_->dht.get()) {
    lock.unlock();
    used->stop();
    lock.lock();
  }
  if (state_->changed.wait_for(lock, drain, [&] { return !state_->busy; })) dht = std::move(state_->dht);
}

Status SeedFinder::start(Nanos timeout) {
  if (state_->all_addresses) {
    look_up(state_);
    return state_->names_status;
  }
  look_again();
  std::unique_lock lock(state_->mutex);
  (void)state_->changed.wait_for(lock, std::chrono::nanoseconds(timeout), [&] { return state_->names_read || !state_->busy; });
  return state_->names_status;
}

void SeedFinder::look_again() {
  if (state_->all_addresses) return;
  {
    const std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->busy, true)) return;
  }
  try {
    std::thread([state = state_] {
      ::pthread_setname_np(::pthread_self(), "unisono-seeds");
      try {
        look_up(state);
      } catch (const std::exception&) {
        // The exception means that memory is short. The next look-up may succeed.
      }
      const std::lock_guard lock(state->mutex);
      state->busy = false;
      state->changed.notify_all();
    }).detach();
  } catch (const std::exception&) {
    // The thread could not be started. The next look-up may succeed.
    const std::lock_guard lock(state_->mutex);
    state_->busy = false;
  }
}

void SeedFinder::look_up(const std::shared_ptr<State>& state) {
  auto names = resolve_seeds(state->options.seeds);
  std::vector<SeedName> nodes;
  {
    const std::lock_guard lock(state->mutex);
    state->names_read = true;
    if (names.ok()) {
      nodes = std::exchange(names->dht_nodes, {});
      state->by_table = !nodes.empty();
      if (nodes.empty()) state->table = {};
      state->names = std::move(*names);
    } else {
      if (state->version == 0) state->names_status = names.status();
      state->names.failures = {names.status().message()};  // keep the addresses that earlier look-ups found
    }
    ++state->version;
    state->changed.notify_all();
  }
  if (!nodes.empty()) ask_dht(state, nodes);
}

SeedDht* SeedFinder::dht_of(const std::shared_ptr<State>& state, std::vector<std::string>& failures) {
  {
    const std::lock_guard lock(state->mutex);
    if (state->stopped) return nullptr;
    if (state->dht != nullptr) return state->dht.get();
  }
  auto made = SeedDht::make(state->options.dht);
  if (!made.ok()) failures.push_back(made.status().message());
  const std::lock_guard lock(state->mutex);
  if (!made.ok() || state->stopped) return nullptr;
  state->dht = std::move(*made);
  return state->dht.get();
}

void SeedFinder::ask_dht(const std::shared_ptr<State>& state, const std::vector<SeedName>& nodes) {
  Seeds table;
  std::vector<TcpAddress> addresses;
  std::string asked;
  for (const auto& node : nodes) {
    const auto found = look_up_host(node);
    if (!found.ok()) {
      table.failures.push_back("dht:" + found.status().message());
      continue;
    }
    addresses.insert(addresses.end(), found->begin(), found->end());
    addresses.resize(std::min(addresses.size(), bootstrap_addresses_max));
    asked += (asked.empty() ? "" : ", ") + name_of(node);
  }
  if (auto* const dht = dht_of(state, table.failures)) {
    auto found = dht->look_up(addresses, state->options.dht_wait);
    table.addresses = std::move(found.addresses);
    if (!found.failure.empty() && !asked.empty()) table.failures.push_back(asked + ": " + found.failure);
  }
  const std::lock_guard lock(state->mutex);
  state->table = std::move(table);
  ++state->version;
}

bool SeedFinder::busy() const {
  const std::lock_guard lock(state_->mutex);
  return state_->busy;
}

bool SeedFinder::by_table() const {
  const std::lock_guard lock(state_->mutex);
  return state_->by_table;
}

uint64_t SeedFinder::version() const { return state_->version.load(std::memory_order_acquire); }

Seeds SeedFinder::found() const {
  const std::lock_guard lock(state_->mutex);
  auto all = state_->names;
  for (const auto& address : state_->table.addresses) {
    if (std::ranges::find(all.addresses, address) == all.addresses.end()) all.addresses.push_back(address);
  }
  all.failures.insert(all.failures.end(), state_->table.failures.begin(), state_->table.failures.end());
  return all;
}

}  // namespace unisono
