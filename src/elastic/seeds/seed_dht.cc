#include "elastic/seeds/seed_dht.h"

#include <opendht/dhtrunner.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <utility>

#include "base/concat.h"
#include "base/error_text.h"
#include "base/random.h"
#include "elastic/seeds/seed_record.h"

namespace unisono {

namespace {

constexpr char record_type[] = "unisono-elastic";
// This node of the table stores records of other processes, in at most this much memory.
constexpr ssize_t store_bytes_max = 16 << 20;
// After the first record has come, the look-up waits this long for more records. It does not wait for the end of the search,
// which takes much longer, because it also asks distant nodes.
constexpr auto settling = std::chrono::milliseconds(300);

// The state that callbacks from OpenDHT's threads use. They may come even after the look-up has ended.
struct TableState {
  std::mutex mutex;
  std::condition_variable changed;
  bool connected = false, stopped = false;
  bool put_under_way = false, put_done = false;
};

struct LookUpState {
  explicit LookUpState(size_t nodes) : nodes_left(nodes) {}
  size_t nodes_left;
  bool answered = false, done = false;
  size_t seen = 0;  // how many records were read, valid or not
  std::vector<std::string> addresses{};
};

std::chrono::steady_clock::time_point after_now(Nanos wait) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(wait);
}

// Adds the addresses of a record to the look-up. Returns false once enough records were read, so that the search can end.
bool take_record(LookUpState& look_up, const dht::Value& value, uint64_t own) {
  if (++look_up.seen > SeedDht::records_max) return false;
  if (value.id == own || value.isEncrypted() || value.user_type != record_type) return true;
  for (auto& address : read_seed_record({reinterpret_cast<const char*>(value.data.data()), value.data.size()})) {
    if (std::ranges::find(look_up.addresses, address) == look_up.addresses.end())
      look_up.addresses.push_back(std::move(address));
  }
  return true;
}

// Returns an empty text if a UDP socket can be bound to the address. Otherwise returns the reason why it cannot.
std::string cannot_bind(const TcpAddress& address) {
  const int fd = ::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int error = fd < 0 || ::bind(fd, address.get(), address.bytes) != 0 ? errno : 0;
  if (fd >= 0) ::close(fd);
  return error == 0 ? "" : error_text(error);
}

// Returns the first IPv4 address and the first IPv6 address to which a UDP socket can be bound. The port is 0, so the kernel
// chooses it. Binding is tried here, because a failed bind in OpenDHT leaks descriptors, and reports neither the address nor
// the reason. Returns the error unavailable if there is no such address.
Result<std::vector<TcpAddress>> bindable_addresses(std::span<const TcpAddress> bind) {
  const std::vector<TcpAddress> all{*parse_tcp_address("0.0.0.0"), *parse_tcp_address("::")};
  std::vector<TcpAddress> bindable;
  std::string failures;
  for (auto address : bind.empty() ? all : bind) {
    if (std::ranges::find(bindable, address.family(), &TcpAddress::family) != bindable.end()) continue;
    address.set_port(0);
    const auto why = cannot_bind(address);
    if (why.empty()) bindable.push_back(address);
    else failures += (failures.empty() ? "" : ", ") + address.to_string() + ": " + why;
  }
  if (bindable.empty()) return Status(Code::unavailable, "OpenDHT: no UDP socket at " + failures);
  return bindable;
}

class OpenDhtSeeds final : public SeedDht {
 public:
  explicit OpenDhtSeeds(const SeedDhtOptions& options)
      : key_(dht::InfoHash::get(seed_dht_key(options.run_id))),
        id_(mix64(options.seed) | 1),
        random_(options.seed),
        addresses_(options.addresses) {}
  ~OpenDhtSeeds() override { OpenDhtSeeds::stop(); }

  // Starts this process's node of the table. Throws OpenDHT's exceptions.
  void run(std::span<const TcpAddress> bindable) {
    dht::DhtRunner::Config config;
    config.dht_config.node_config.max_store_size = store_bytes_max;
    for (const auto& address : bindable)
      (address.family() == AF_INET ? config.bind4 : config.bind6) = dht::SockAddr(address.storage, address.bytes);
    dht::DhtRunner::Context context;
    context.statusChangedCallback = [state = state_](dht::NodeStatus status4, dht::NodeStatus status6) {
      const std::lock_guard lock(state->mutex);
      state->connected = status4 == dht::NodeStatus::Connected || status6 == dht::NodeStatus::Connected;
      state->changed.notify_all();
    };
    runner_.run(config, std::move(context));
  }

  Found look_up(std::span<const TcpAddress> nodes, Nanos wait) override {
    try {
      const auto look_up = std::make_shared<LookUpState>(nodes.size());
      const bool there = connect(nodes, look_up, wait);
      if (!there) return {.addresses = {}, .failure = concat("no answer in ", wait / millisecond, " ms")};
      store_record();
      return search(look_up, wait);
    } catch (const std::exception& error) {
      return {.addresses = {}, .failure = error.what()};
    }
  }

  void stop() override {
    {
      const std::lock_guard lock(state_->mutex);
      state_->stopped = true;
      state_->changed.notify_all();
    }
    const std::lock_guard lock(use_);
    runner_.join();
  }

 private:
  bool connect(std::span<const TcpAddress> nodes, const std::shared_ptr<LookUpState>& look_up, Nanos wait) {
    {
      std::unique_lock lock(state_->mutex);
      if (state_->connected) return true;
    }
    for (const auto& node : nodes) {
      const std::lock_guard lock(use_);
      runner_.bootstrap(dht::SockAddr(node.storage, node.bytes), [state = state_, look_up](bool ok) {
        const std::lock_guard own(state->mutex);
        look_up->answered |= ok;
        --look_up->nodes_left;
        state->changed.notify_all();
      });
    }
    std::unique_lock lock(state_->mutex);
    (void)state_->changed.wait_until(lock, after_now(wait), [&] {
      return state_->stopped || state_->connected || look_up->answered || look_up->nodes_left == 0;
    });
    return !state_->stopped && (state_->connected || look_up->answered);
  }

  void store_record() {
    {
      const std::lock_guard lock(state_->mutex);
      if (addresses_.empty() || state_->put_under_way || state_->put_done) return;
      state_->put_under_way = true;
    }
    const auto text = write_seed_record(addresses_);
    auto record = std::make_shared<dht::Value>(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    record->id = id_;
    record->user_type = record_type;
    // The record is permanent: as long as the runner lives, OpenDHT renews the record before it expires. OpenDHT also stores it
    // at new nodes that are nearer to the key.
    const dht::DoneCallbackSimple done = [state = state_](bool ok) {
      const std::lock_guard lock(state->mutex);
      state->put_under_way = false;
      state->put_done = ok;
    };
    const std::lock_guard lock(use_);
    runner_.put(key_, std::move(record), done, dht::time_point::max(), true);
  }

  Found search(const std::shared_ptr<LookUpState>& look_up, Nanos wait) {
    {
      const dht::GetCallback taken = [state = state_, look_up,
                                      own = id_](const std::vector<std::shared_ptr<dht::Value>>& values) {
        const std::lock_guard lock(state->mutex);
        state->changed.notify_all();
        try {
          return std::ranges::all_of(values, [&](const auto& value) { return take_record(*look_up, *value, own); });
        } catch (const std::bad_alloc&) {
          return false;  // an exception must not leave this callback, because it would end the process
        }
      };
      const dht::DoneCallbackSimple done = [state = state_, look_up](bool) {
        const std::lock_guard lock(state->mutex);
        look_up->done = true;
        state->changed.notify_all();
      };
      const std::lock_guard lock(use_);
      runner_.get(key_, taken, done);
    }
    std::unique_lock lock(state_->mutex);
    const auto over = [&] { return state_->stopped || look_up->done; };
    const auto until = after_now(wait);
    (void)state_->changed.wait_until(lock, until, [&] { return over() || !look_up->addresses.empty(); });
    (void)state_->changed.wait_until(lock, std::min(until, std::chrono::steady_clock::now() + settling), over);
    Found found{.addresses = std::exchange(look_up->addresses, {}), .failure = {}};
    look_up->seen = records_max;  // now the callback ignores later records
    if (found.addresses.empty())
      found.failure = look_up->done ? "it has no record of another process of this run"
                                    : concat("no record of this run in ", wait / millisecond, " ms");
    for (size_t i = 0; i + 1 < found.addresses.size(); ++i)
      std::swap(found.addresses[i], found.addresses[i + random_.below(found.addresses.size() - i)]);
    found.addresses.resize(std::min(found.addresses.size(), addresses_max));
    return found;
  }

  const dht::InfoHash key_;
  const uint64_t id_;
  Random random_;
  const std::vector<std::string> addresses_;
  const std::shared_ptr<TableState> state_ = std::make_shared<TableState>();
  std::mutex use_;  // protects the runner, because stop() must not run during another call
  dht::DhtRunner runner_;
};

}  // namespace

std::string seed_dht_key(const std::string& run_id) { return "unisono/elastic/" + run_id; }

bool SeedDht::built_in() { return true; }

Result<std::unique_ptr<SeedDht>> SeedDht::make(const SeedDhtOptions& options) {
  const auto bindable = bindable_addresses(options.bind);
  if (!bindable.ok()) return bindable.status();
  try {
    auto made = std::make_unique<OpenDhtSeeds>(options);
    made->run(*bindable);
    return std::unique_ptr<SeedDht>(std::move(made));
  } catch (const std::exception& error) {
    return Status(Code::unavailable, std::string("OpenDHT: ") + error.what());
  }
}

}  // namespace unisono
