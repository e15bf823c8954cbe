#include "transports/tcp/tcp_port.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/concat.h"
#include "base/error_text.h"
#include "forks/fork.h"

namespace unisono {
namespace {

constexpr int accepts_per_step = 64;  // limited so that many connections at once cannot delay the links
// So many members watch the port. More are not needed, since whoever steps accepts for all; and the kernel limits how many
// epoll sets one event may wake.
constexpr size_t watching_max = 4;

// Which members share a port: those of one process and network that listen at the same addresses.
struct PortKey {
  const StreamNetwork* network = nullptr;
  std::string addresses{};
  uint16_t port = 0;
  friend auto operator<=>(const PortKey&, const PortKey&) = default;
};

}  // namespace

class TcpPort {
 public:
  static Result<std::shared_ptr<TcpPort>> open(StreamNetwork& network, const StreamListenRequest& listen);

  uint16_t port() const { return listener_->port(); }
  bool alive() const { return !owner_.forked(); }
  uint64_t add(const TcpPortMember& member);
  void remove(uint64_t number);
  void answer_anyone(uint64_t number);
  bool step(uint64_t number, Nanos now, std::vector<TcpArrival>& arrived);
  Nanos next_deadline() const;
  size_t waiting() const;
  TcpPortRefusals refusals() const;

 private:
  struct Member {
    TcpPortMember settings;
    bool watches = false;
    std::vector<TcpArrival> arrived{};
  };
  struct Pending {
    std::unique_ptr<StreamSocket> socket;
    std::array<std::byte, sizeof(TcpPreamble)> bytes{};
    size_t byte_count = 0;
    Nanos deadline = 0;
  };

  bool accept_some(const TcpPortMember& stepping, Nanos now) UNISONO_REQUIRES(mutex_);
  // Returns false if the connection goes on waiting.
  bool settle(Pending& pending, Nanos now) UNISONO_REQUIRES(mutex_);
  void hand_over(Pending& pending, const TcpPreamble& preamble) UNISONO_REQUIRES(mutex_);
  void refuse(Pending& pending, TcpRefusal why, const char* text) UNISONO_REQUIRES(mutex_);
  void watch_by_some() UNISONO_REQUIRES(mutex_);

  const OwnerProcess owner_;
  mutable Mutex mutex_;
  std::unique_ptr<StreamWatcher> watcher_;  // watches listener_ and the pending connections
  std::unique_ptr<StreamListener> listener_;
  std::map<uint64_t, Member> members_ UNISONO_GUARDED_BY(mutex_);
  std::vector<Pending> pending_ UNISONO_GUARDED_BY(mutex_);  // oldest first
  uint64_t last_number_ UNISONO_GUARDED_BY(mutex_) = 0;
  TcpPortRefusals refusals_ UNISONO_GUARDED_BY(mutex_);
};

Result<std::shared_ptr<TcpPort>> TcpPort::open(StreamNetwork& network, const StreamListenRequest& listen) {
  auto port = std::make_shared<TcpPort>();
  auto watcher = network.make_watcher(nullptr, 0);
  if (!watcher.ok()) return watcher.status();
  port->watcher_ = std::move(*watcher);
  auto listener = network.listen(listen, *port->watcher_, 0);
  if (!listener.ok()) return listener.status();
  port->listener_ = std::move(*listener);
  return port;
}

uint64_t TcpPort::add(const TcpPortMember& member) {
  MutexLock lock(mutex_);
  members_[++last_number_] = {.settings = member};
  watch_by_some();
  return last_number_;
}

void TcpPort::remove(uint64_t number) {
  if (!alive()) return;  // in a child, the watchers are those of the parent
  MutexLock lock(mutex_);
  const auto found = members_.find(number);
  if (found->second.watches) watcher_->stop_reporting_to(*found->second.settings.watcher);
  members_.erase(found);
  watch_by_some();
}

void TcpPort::answer_anyone(uint64_t number) {
  MutexLock lock(mutex_);
  members_.at(number).settings.answers_anyone = true;
}

void TcpPort::watch_by_some() {
  auto watching =
      static_cast<size_t>(std::count_if(members_.begin(), members_.end(), [](const auto& m) { return m.second.watches; }));
  for (auto& [number, member] : members_) {
    if (watching >= watching_max) return;
    if (member.watches || !watcher_->report_to(*member.settings.watcher, 0)) continue;
    member.watches = true;
    ++watching;
  }
}

bool TcpPort::step(uint64_t number, Nanos now, std::vector<TcpArrival>& arrived) {
  MutexLock lock(mutex_);
  auto& member = members_.at(number);
  bool any = accept_some(member.settings, now);
  any |= std::erase_if(pending_, [&](Pending& pending) UNISONO_REQUIRES(mutex_) { return settle(pending, now); }) > 0;
  any |= !member.arrived.empty();
  for (auto& arrival : member.arrived) arrived.push_back(std::move(arrival));
  member.arrived.clear();
  return any;
}

bool TcpPort::accept_some(const TcpPortMember& stepping, Nanos now) {
  bool any = false;
  refusals_.exhausted.clear();
  for (int i = 0; i < accepts_per_step; ++i) {
    auto arrival = listener_->accept();
    if (arrival.dropped) ++refusals_.count;
    if (is_out_of_descriptors(arrival.error)) refusals_.exhausted = error_text(arrival.error);
    if (!arrival.socket) break;
    any = true;
    if (pending_.size() >= stepping.without_preamble_max) {
      refuse(pending_.front(), TcpRefusal::busy, "too many connections are waiting");
      pending_.erase(pending_.begin());
    }
    if (arrival.socket->watch(*watcher_, true, false, 0))
      pending_.push_back({.socket = std::move(arrival.socket), .deadline = now + stepping.preamble_timeout});
    else ++refusals_.count;
  }
  return any;
}

bool TcpPort::settle(Pending& pending, Nanos now) {
  bool ended = false;
  const auto count = read_some(*pending.socket, std::span(pending.bytes).subspan(pending.byte_count), ended);
  if (count < 0 || ended)
    return refuse(pending, TcpRefusal::not_unisono, "it closed the connection before its preamble was complete"), true;
  pending.byte_count += static_cast<size_t>(count);
  if (!may_become_hello(pending.bytes.data(), pending.byte_count))
    return refuse(pending, TcpRefusal::not_unisono, "another protocol than Unisono"), true;
  if (pending.byte_count < sizeof(TcpPreamble)) {
    if (now < pending.deadline) return false;
    return refuse(pending, TcpRefusal::not_unisono, "it sent no preamble in time"), true;
  }
  TcpPreamble preamble;
  std::memcpy(&preamble, pending.bytes.data(), sizeof preamble);
  if (const auto why = check(preamble); why != TcpRefusal::none) return refuse(pending, why, name(why)), true;
  hand_over(pending, preamble);
  return true;
}

void TcpPort::hand_over(Pending& pending, const TcpPreamble& preamble) {
  const auto called = std::find_if(members_.begin(), members_.end(), [&](const auto& entry) {
    const auto& settings = entry.second.settings;
    return preamble.to == settings.id || (settings.answers_anyone && preamble.to == PeerId{});
  });
  if (called == members_.end()) return refuse(pending, TcpRefusal::other_process, name(TcpRefusal::other_process));
  auto& member = called->second;
  // The socket can be written at once, so it wakes the member, which may sleep in another thread.
  if (!pending.socket->watch(*member.settings.watcher, true, true, 0)) {
    ++refusals_.count;
    return;
  }
  member.arrived.push_back({std::move(pending.socket), preamble});
}

void TcpPort::refuse(Pending& pending, TcpRefusal why, const char* text) {
  ++refusals_.count;
  refusals_.last = concat(pending.socket->remote().to_string(), " (", text, ")");
  if (why == TcpRefusal::not_unisono) return;
  TcpSessionReply reply;
  reply.reason = why;
  seal(reply);
  (void)write_some(*pending.socket, std::as_bytes(std::span(&reply, 1)));
}

Nanos TcpPort::next_deadline() const {
  MutexLock lock(mutex_);
  Nanos next = never;
  for (const auto& pending : pending_) next = std::min(next, pending.deadline);
  return next;
}

size_t TcpPort::waiting() const {
  MutexLock lock(mutex_);
  return pending_.size();
}

TcpPortRefusals TcpPort::refusals() const {
  MutexLock lock(mutex_);
  return refusals_;
}

// The membership ------------------------------------------------------------------------------------------------------

TcpPortMembership::TcpPortMembership(TcpPortMembership&& other) noexcept
    : port_(std::exchange(other.port_, nullptr)), number_(other.number_) {}

TcpPortMembership& TcpPortMembership::operator=(TcpPortMembership&& other) noexcept {
  if (this == &other) return *this;
  leave();
  port_ = std::exchange(other.port_, nullptr);
  number_ = other.number_;
  return *this;
}

Result<TcpPortMembership> TcpPortMembership::join(StreamNetwork& network, const StreamListenRequest& listen,
                                                  const TcpPortMember& member) {
  // Ports that members have open. It is never destroyed, because a group may end after the static objects of the process. It is
  // made under the mutex, because a child made by fork() could find the lock of a static variable locked.
  static std::map<PortKey, std::weak_ptr<TcpPort>>* ports = nullptr;
  PortKey key{.network = &network, .port = listen.port};
  for (const auto& entry : listen.addresses) key.addresses += entry.address.to_string() + " ";
  TcpPortMembership membership;
  if (!member.shares) {
    auto opened = TcpPort::open(network, listen);
    if (!opened.ok()) return opened.status();
    membership.port_ = std::move(*opened);
    membership.number_ = membership.port_->add(member);
    return membership;
  }
  MutexLock lock(fork_mutex());
  if (ports == nullptr) ports = new std::map<PortKey, std::weak_ptr<TcpPort>>;
  std::erase_if(*ports, [](const auto& entry) { return entry.second.expired(); });
  auto& known = (*ports)[key];
  membership.port_ = known.lock();
  // A child made by fork() has no part in the ports of its parent.
  if (membership.port_ != nullptr && !membership.port_->alive()) membership.port_ = nullptr;
  if (membership.port_ == nullptr) {
    auto opened = TcpPort::open(network, listen);
    if (!opened.ok()) return opened.status();
    known = membership.port_ = std::move(*opened);
  }
  membership.number_ = membership.port_->add(member);
  return membership;
}

void TcpPortMembership::leave() {
  if (port_ == nullptr) return;
  port_->remove(number_);
  port_.reset();
}

uint16_t TcpPortMembership::port() const { return port_->port(); }

void TcpPortMembership::answer_anyone() { port_->answer_anyone(number_); }

bool TcpPortMembership::step(Nanos now, std::vector<TcpArrival>& arrived) {
  return port_ != nullptr && port_->step(number_, now, arrived);
}

Nanos TcpPortMembership::next_deadline() const { return port_ == nullptr ? never : port_->next_deadline(); }

size_t TcpPortMembership::waiting() const { return port_ == nullptr ? 0 : port_->waiting(); }

TcpPortRefusals TcpPortMembership::refusals() const { return port_ == nullptr ? TcpPortRefusals() : port_->refusals(); }

}  // namespace unisono
