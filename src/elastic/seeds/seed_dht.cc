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

#include "base/random.h"
#include "elastic/seeds/seed_record.h"

namespace unisono {

namespace {

constexpr char record_type[] = "unisono-elastic";
constexpr ssize_t store_bytes_max = 16 << 20;  // memory for other processes' records in the table
// Time to wait for more records after the first one. Waiting for the search's end would mean waiting for the table's far end.
constexpr auto settling = std::chrono::milliseconds(300);

// Shared with the table's threads, which may still call back after the look-up has ended.
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
  size_t seen = 0;  // records read, valid or not
  std::vector<std::string> addresses{};
};

std::chrono::steady_clock::time_point after_now(Nanos wait) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(wait);
}

// Returns false when enough records were read and the search may end.
bool take_record(LookUpState& look_up, const dht::Value& value, uint64_t own) {
  if (++look_up.seen > SeedDht::records_max) return false;
  if (value.id == own || value.isEncrypted() || value.user_type != record_type) return true;
  for (auto& address : read_seed_record({reinterpret_cast<const char*>(value.data.data()), value.data.size()})) {
    if (std::ranges::find(look_up.addresses, address) == look_up.addresses.end())
      look_up.addresses.push_back(std::move(address));
  }
  return true;
}

// Empty if a UDP socket can be bound to the address; otherwise the reason why not.
std::string cannot_bind(const TcpAddress& place) {
  const int fd = ::socket(place.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int error = fd < 0 || ::bind(fd, place.get(), place.bytes) != 0 ? errno : 0;
  if (fd >= 0) ::close(fd);
  return error == 0 ? "" : std::strerror(error);
}

// The first address of each family to which a socket can be bound, with a port chosen by the kernel. Tried in advance because
// OpenDHT reports neither the address nor the reason of a failure, and leaks descriptors. Error: unavailable if there is none.
Result<std::vector<TcpAddress>> places_of(std::span<const TcpAddress> bind) {
  const std::vector<TcpAddress> all{*parse_tcp_address("0.0.0.0"), *parse_tcp_address("::")};
  std::vector<TcpAddress> places;
  std::string failures;
  for (auto address : bind.empty() ? all : bind) {
    if (std::ranges::find(places, address.family(), &TcpAddress::family) != places.end()) continue;
    address.set_port(0);
    const auto why = cannot_bind(address);
    if (why.empty()) places.push_back(address);
    else failures += (failures.empty() ? "" : ", ") + address.to_string() + ": " + why;
  }
  if (places.empty()) return Status(Code::unavailable, "OpenDHT: no UDP socket at " + failures);
  return places;
}

class OpenDhtSeeds final : public SeedDht {
 public:
  explicit OpenDhtSeeds(const SeedDhtOptions& options)
      : key_(dht::InfoHash::get(seed_dht_key(options.run_id))),
        id_(mix64(options.seed) | 1),
        random_(options.seed),
        addresses_(options.addresses) {}
  ~OpenDhtSeeds() override { OpenDhtSeeds::stop(); }

  // Passes on OpenDHT's exceptions.
  void run(std::span<const TcpAddress> places) {
    dht::DhtRunner::Config config;
    config.dht_config.node_config.max_store_size = store_bytes_max;
    for (const auto& place : places)
      (place.family() == AF_INET ? config.bind4 : config.bind6) = dht::SockAddr(place.storage, place.bytes);
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
      if (!there) return {.addresses = {}, .failure = "no answer in " + std::to_string(wait / millisecond) + " ms"};
      announce();
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

  void announce() {
    {
      const std::lock_guard lock(state_->mutex);
      if (addresses_.empty() || state_->put_under_way || state_->put_done) return;
      state_->put_under_way = true;
    }
    const auto text = write_seed_record(addresses_);
    auto record = std::make_shared<dht::Value>(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    record->id = id_;
    record->user_type = record_type;
    // Permanent: while the runner lives, it renews the record before it expires, and puts it at nodes that are nearer to the
    // key.
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
          return false;  // an exception in OpenDHT's thread would end the process
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
    look_up->seen = records_max;  // later records are ignored
    if (found.addresses.empty())
      found.failure = look_up->done ? "it has no record of another process of this run"
                                    : "no record of this run in " + std::to_string(wait / millisecond) + " ms";
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
  std::mutex use_;  // guards the runner, which must not be called while it ends
  dht::DhtRunner runner_;
};

}  // namespace

std::string seed_dht_key(const std::string& run_id) { return "unisono/elastic/" + run_id; }

bool SeedDht::built_in() { return true; }

Result<std::unique_ptr<SeedDht>> SeedDht::make(const SeedDhtOptions& options) {
  const auto places = places_of(options.bind);
  if (!places.ok()) return places.status();
  try {
    auto made = std::make_unique<OpenDhtSeeds>(options);
    made->run(*places);
    return std::unique_ptr<SeedDht>(std::move(made));
  } catch (const std::exception& error) {
    return Status(Code::unavailable, std::string("OpenDHT: ") + error.what());
  }
}

}  // namespace unisono
