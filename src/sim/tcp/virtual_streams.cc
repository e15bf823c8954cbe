#include "sim/tcp/virtual_streams.h"

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/concat.h"
#include "base/error_text.h"

namespace unisono::sim {
namespace {

// Something that a watcher watches.
class Watched {
 public:
  virtual ~Watched() = default;
  virtual bool is_ready(bool readable, bool writable) const = 0;
};

class VirtualWatcher final : public StreamWatcher, public Watched {
 public:
  ~VirtualWatcher() override {
    for (auto* outer : outers_) outer->forget(*this);
  }
  bool report_to(StreamWatcher& outer, uint64_t tag) override {
    auto& own = static_cast<VirtualWatcher&>(outer);
    own.set(*this, true, false, tag);
    outers_.push_back(&own);
    return true;
  }
  void stop_reporting_to(StreamWatcher& outer) override {
    auto& own = static_cast<VirtualWatcher&>(outer);
    own.forget(*this);
    std::erase(outers_, &own);
  }

  void set(const Watched& watched, bool readable, bool writable, uint64_t tag) {
    const auto found = find(watched);
    const Entry entry{&watched, readable, writable, tag};
    if (found == entries_.end()) entries_.push_back(entry);
    else *found = entry;
  }
  void forget(const Watched& watched) {
    if (const auto found = find(watched); found != entries_.end()) entries_.erase(found);
  }

  // What was reported moves behind the others, so that every entry has its turn.
  size_t ready(std::span<uint64_t> tags) override {
    size_t count = 0;
    std::vector<Entry> reported, others;
    for (const auto& entry : entries_) {
      const bool reports = count < tags.size() && entry.watched->is_ready(entry.readable, entry.writable);
      if (reports) tags[count++] = entry.tag;
      (reports ? reported : others).push_back(entry);
    }
    if (count == 0) return 0;
    others.insert(others.end(), reported.begin(), reported.end());
    entries_ = std::move(others);
    return count;
  }
  int wait_handle() const override { return -1; }

  bool is_ready(bool, bool) const override {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const auto& entry) { return entry.watched->is_ready(entry.readable, entry.writable); });
  }

 private:
  struct Entry {
    const Watched* watched = nullptr;
    bool readable = false, writable = false;
    uint64_t tag = 0;
  };
  std::vector<Entry>::iterator find(const Watched& watched) {
    return std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry.watched == &watched; });
  }

  std::vector<VirtualWatcher*> outers_;
  std::vector<Entry> entries_;
};

class VirtualSocket final : public StreamSocket, public Watched {
 public:
  VirtualSocket(StreamWorld& world, std::shared_ptr<VirtualConnection> connection, int side)
      : world_(world), connection_(std::move(connection)), side_(side) {}
  ~VirtualSocket() override {
    if (watcher_ != nullptr) watcher_->forget(*this);
    if (works()) connection_->close(side_, aborts_);
    connection_.reset();
    world_.forget_finished();
  }

  std::optional<int> connected() override {
    if (!works()) return EBADF;
    const auto state = end().state;
    if (state == EndState::dialling) return std::nullopt;
    const int error = connection_->take_error(side_);
    return state == EndState::open || error != 0 ? error : ENOTCONN;
  }
  ptrdiff_t write(const iovec* parts, int count) override { return works() ? connection_->write(side_, parts, count) : -EBADF; }
  ptrdiff_t read(const iovec* parts, int count, bool& ended) override { return take(parts, count, false, ended); }
  ptrdiff_t peek(std::span<std::byte> bytes, bool& ended) override {
    const iovec part{bytes.data(), bytes.size()};
    return take(&part, 1, true, ended);
  }
  bool encrypts() const override { return false; }
  bool has_unflushed() const override { return false; }
  int flush() override { return 0; }
  bool has_buffered() const override { return false; }
  uint64_t incomplete_record() const override { return 0; }
  void shut_down() override {
    if (works()) connection_->shut_down(side_);
  }
  void abort() override { aborts_ = true; }

  bool watch(StreamWatcher& watcher, bool readable, bool writable, uint64_t tag) override {
    auto& own = static_cast<VirtualWatcher&>(watcher);
    const bool wanted = readable || writable;
    if (watcher_ != nullptr && (!wanted || watcher_ != &own)) watcher_->forget(*this);
    watcher_ = wanted ? &own : nullptr;
    if (wanted) own.set(*this, readable, writable, tag);
    return true;
  }
  void tune() override {}
  TcpAddress local() const override { return end().address; }
  TcpAddress remote() const override { return connection_->end(1 - side_).address; }
  bool host_is_silent(Nanos silence) const override { return works() && connection_->host_is_silent(side_, silence); }
  bool awaits_host(Nanos silence) const override { return works() && connection_->awaits_host(side_, silence); }
  Unacknowledged unacknowledged() const override { return connection_->unacknowledged(side_); }
  uint64_t unacknowledged_bytes() const override { return connection_->pipe(side_).unacknowledged_bytes(); }
  void acknowledge_now() override {}
  ConnectionId connection() const { return connection_->id(); }

  bool is_ready(bool readable, bool writable) const override {
    return works() && ((readable && connection_->is_readable(side_)) || (writable && connection_->is_writable(side_)) ||
                       end().state == EndState::gone);
  }

 private:
  const StreamEnd& end() const { return connection_->end(side_); }
  bool works() const { return world_.alive(end().process); }
  ptrdiff_t take(const iovec* parts, int count, bool keep, bool& ended) {
    ended = false;
    return works() ? connection_->read(side_, parts, count, keep, ended) : -EBADF;
  }

  StreamWorld& world_;
  std::shared_ptr<VirtualConnection> connection_;
  int side_;
  bool aborts_ = false;
  VirtualWatcher* watcher_ = nullptr;
};

class VirtualListener final : public StreamListener, public Watched {
 public:
  VirtualListener(StreamWorld& world, uint64_t number, uint16_t port, VirtualWatcher& watcher, uint64_t tag)
      : world_(world), number_(number), port_(port), watcher_(watcher) {
    watcher_.set(*this, true, false, tag);
  }
  ~VirtualListener() override {
    watcher_.forget(*this);
    world_.remove_listener(number_);
  }
  uint16_t port() const override { return port_; }
  StreamArrival accept() override {
    auto connection = world_.accept(number_);
    if (!connection) return {};
    return {.socket = std::make_unique<VirtualSocket>(world_, std::move(connection), 1)};
  }
  bool is_ready(bool, bool) const override { return world_.has_waiting(number_); }

 private:
  StreamWorld& world_;
  uint64_t number_;
  uint16_t port_;
  VirtualWatcher& watcher_;
};

bool same_kind(const TcpAddress& a, const TcpAddress& b) {
  return a.family() == b.family() && a.is_link_local() == b.is_link_local() && a.is_loopback() == b.is_loopback() &&
         a.scope() == b.scope();
}

}  // namespace

Result<std::vector<InterfaceAddress>> VirtualStreams::interfaces() {
  std::vector<InterfaceAddress> result;
  for (const auto& address : world_.addresses_of(process_)) {
    auto& entry = result.emplace_back();
    entry.interface = concat("virtual", result.size() - 1);
    entry.address = address;
  }
  return result;
}

Result<std::unique_ptr<StreamWatcher>> VirtualStreams::make_watcher(StreamWatcher* outer, uint64_t tag) {
  std::unique_ptr<StreamWatcher> made = std::make_unique<VirtualWatcher>();
  if (outer != nullptr) (void)made->report_to(*outer, tag);
  return made;
}

Result<std::unique_ptr<StreamListener>> VirtualStreams::listen(const StreamListenRequest& request, StreamWatcher& watcher,
                                                               uint64_t tag) {
  StreamWorld::Listener listener{.process = process_, .port = request.port};
  const auto& own = world_.addresses_of(process_);
  for (const auto& entry : request.addresses) {
    const bool has = std::any_of(own.begin(), own.end(), [&](const auto& one) { return one.same_host(entry.address); });
    if (has) listener.addresses.push_back(entry.address);
  }
  const bool nowhere = !request.addresses.empty() && listener.addresses.empty();
  const auto number = nowhere || !world_.alive(process_) ? 0 : world_.add_listener(listener);
  if (number == 0) {
    auto where = request.addresses.empty() ? own.front() : request.addresses.front().address;
    where.set_port(request.port);
    return Status(Code::unavailable,
                  "tcp: cannot listen at " + where.to_string() + ": " + error_text(nowhere ? EADDRNOTAVAIL : EADDRINUSE));
  }
  return std::unique_ptr<StreamListener>(
      new VirtualListener(world_, number, listener.port, static_cast<VirtualWatcher&>(watcher), tag));
}

std::unique_ptr<StreamSocket> VirtualStreams::connect(const TcpAddress& to, std::span<const TcpAddress> sources, int& error) {
  error = 0;
  const auto& own = world_.addresses_of(process_);
  auto from = std::find_if(own.begin(), own.end(), [&](const auto& one) { return same_kind(one, to); });
  for (const auto& source : sources) {
    if (!same_kind(source, to)) continue;
    from = std::find_if(own.begin(), own.end(), [&](const auto& one) { return one.same_host(source); });
    if (from == own.end()) error = EADDRNOTAVAIL;
    break;
  }
  if (from == own.end() && error == 0) error = ENETUNREACH;
  if (error != 0 || !world_.alive(process_)) return nullptr;
  return std::make_unique<VirtualSocket>(world_, world_.dial(process_, *from, to), 0);
}

ConnectionId connection_of(const StreamSocket& socket) { return static_cast<const VirtualSocket&>(socket).connection(); }

}  // namespace unisono::sim
