#include "transports/testing/loopback.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/concat.h"
#include "net/tcp_socket.h"
#include "transports/payload_pool.h"
#include "wire/checksum.h"

namespace unisono {

// The mutex guards all members of State. It is never held during an upcall.
struct LoopbackHub::State {
  // An item of an endpoint's inbox. It is a frame, or the event that a peer is gone, which comes after that peer's last frame.
  struct Item {
    PeerIndex from = 0;
    FrameHeader header;
    uint64_t block = 0;  // 0: no payload
    const std::byte* data = nullptr;
    bool as_view = false;
    std::optional<Status> lost{};
  };

  struct EndpointState {  // the hub's state of one endpoint
    std::string label;
    bool dead = false;
    std::vector<char> linked;           // for each peer: whether a link to it exists
    std::vector<char> wants_credit;     // for each peer: whether credit() was 0 or acquire() failed
    std::vector<size_t> in_flight;      // for each peer: how many frames with payload are in its inbox
    std::vector<PeerIndex> has_credit;  // the peers that the next poll reports by Sink::credit
    std::deque<Item> inbox;
    size_t slots_out = 0;
    bool armed = false;
    Descriptor bell;
    TransportCounters counters;
  };

  struct Shared {  // a memory block with a payload
    // The endpoint that holds the block as a slot; no_owner if the block is not a slot.
    uint32_t owner = PayloadPool::no_owner;
    uint32_t uses = 0;
    std::byte* data = nullptr;
    std::vector<PeerIndex> peers;
  };

  explicit State(const LoopbackOptions& given) : options(given) {}

  LoopbackOptions options;
  std::mutex mutex;
  PayloadPool pool{PayloadPoolLimits{}};
  std::vector<Shared> blocks;  // The block with the handle h is blocks[h - 1].
  std::vector<EndpointState> endpoint_states;
  std::vector<std::unique_ptr<Endpoint>> endpoints;

  uint64_t take_block(size_t bytes, uint32_t owner, uint32_t uses);
  void drop_block(uint64_t block);
  void ring(EndpointState& endpoint_state);
  void push(PeerIndex from, PeerIndex to, const FrameHeader& header, uint64_t block, bool as_view);
  void unlink(size_t a, size_t b, const char* why, bool tell_a, bool tell_b);
  void empty_inbox(EndpointState& endpoint_state, std::optional<PeerIndex> from);
  void give_credit(PeerIndex owner);
  FrameHeader seal(const FrameHeader& header, std::span<const std::byte> payload) const;
};

uint64_t LoopbackHub::State::take_block(size_t bytes, uint32_t owner, uint32_t uses) {
  const auto block = pool.take(PayloadPool::no_owner, bytes);
  if (!block) return 0;
  if (block.handle > blocks.size()) blocks.resize(block.handle);
  auto& shared = blocks[block.handle - 1];
  shared.owner = owner;
  shared.uses = uses;
  shared.data = block.data;
  return block.handle;
}

void LoopbackHub::State::drop_block(uint64_t block) {
  if (block == 0 || block > blocks.size() || blocks[block - 1].uses == 0) return;
  auto& shared = blocks[block - 1];
  if (--shared.uses > 0) return;
  pool.give(block);
  if (shared.owner == PayloadPool::no_owner) return;
  --endpoint_states[shared.owner].slots_out;
  give_credit(shared.owner);
}

// Call this when a slot or a place in a queue of the endpoint `owner` became free. It finds the peers to which `owner` can send
// again, and `owner` reports these by Sink::credit in its next poll.
void LoopbackHub::State::give_credit(PeerIndex owner) {
  auto& endpoint_state = endpoint_states[owner];
  for (PeerIndex peer = 0; peer < endpoint_states.size(); ++peer) {
    if (!endpoint_state.wants_credit[peer] || !endpoint_state.linked[peer] ||
        endpoint_state.in_flight[peer] >= options.queue_frames_max)
      continue;
    endpoint_state.wants_credit[peer] = 0;
    endpoint_state.has_credit.push_back(peer);
    ring(endpoint_state);
  }
}

void LoopbackHub::State::ring(EndpointState& endpoint_state) {
  if (!endpoint_state.armed) return;
  endpoint_state.armed = false;
  const uint64_t one = 1;
  (void)!::write(endpoint_state.bell.get(), &one, sizeof one);  // fails only if the descriptor is readable already
}

void LoopbackHub::State::push(PeerIndex from, PeerIndex to, const FrameHeader& header, uint64_t block, bool as_view) {
  auto& sender = endpoint_states[from];
  auto& receiver = endpoint_states[to];
  Item item{.from = from, .header = header, .block = block, .as_view = as_view};
  if (block != 0) {
    item.data = blocks[block - 1].data;
    ++sender.in_flight[to];
  }
  receiver.inbox.push_back(std::move(item));
  ++sender.counters.sent_frames;
  sender.counters.sent_bytes += sizeof header + header.payload_bytes;
  ring(receiver);
}

void LoopbackHub::State::empty_inbox(EndpointState& endpoint_state, std::optional<PeerIndex> from) {
  std::deque<Item> kept;
  for (auto& item : endpoint_state.inbox) {
    if (from && item.from != *from) kept.push_back(std::move(item));
    else drop_block(item.block);
  }
  endpoint_state.inbox.swap(kept);
}

void LoopbackHub::State::unlink(size_t a, size_t b, const char* why, bool tell_a, bool tell_b) {
  if (!endpoint_states[a].linked[b]) return;
  const auto end = [&](size_t self, size_t peer, bool tell) {
    auto& endpoint_state = endpoint_states[self];
    endpoint_state.linked[peer] = endpoint_state.wants_credit[peer] = 0;
    endpoint_state.in_flight[peer] = 0;
    if (!tell) return empty_inbox(endpoint_state, static_cast<PeerIndex>(peer));
    Item event{.from = static_cast<PeerIndex>(peer), .header = {}};
    event.lost = Status(Code::peer_lost, endpoint_states[peer].label + ": " + why + "; loopback");
    endpoint_state.inbox.push_back(std::move(event));
    ring(endpoint_state);
  };
  end(a, b, tell_a);
  end(b, a, tell_b);
}

FrameHeader LoopbackHub::State::seal(const FrameHeader& header, std::span<const std::byte> payload) const {
  auto sealed = header;
  if (options.payload_checksum) {
    sealed.flags |= frame_flag_payload_checksum;
    sealed.payload_checksum = crc32c(payload.data(), payload.size());
  }
  seal_frame(sealed);
  return sealed;
}

class LoopbackHub::Endpoint final : public Transport {
 public:
  Endpoint(State& state, PeerIndex self) : state_(state), self_(self) {}

  const char* name() const override { return "loopback"; }
  size_t slot_bytes() const override { return payload_bytes_max; }

  size_t credit(PeerIndex peer) override {
    const std::lock_guard lock(state_.mutex);
    if (!linked(peer)) return 0;
    const size_t used = endpoint_state().in_flight[peer];
    if (used < state_.options.queue_frames_max) return state_.options.queue_frames_max - used;
    endpoint_state().wants_credit[peer] = 1;
    return 0;
  }

  Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) override {
    UNISONO_CHECK(bytes <= payload_bytes_max);
    const std::lock_guard lock(state_.mutex);
    const auto& options = state_.options;
    bool possible = endpoint_state().slots_out < options.slots - (result ? 0 : options.result_slots);
    for (const auto peer : peers) possible &= !linked(peer) || endpoint_state().in_flight[peer] < options.queue_frames_max;
    const uint64_t block = possible ? state_.take_block(bytes, self_, 1) : 0;
    if (block == 0) {
      for (const auto peer : peers) {
        if (linked(peer)) endpoint_state().wants_credit[peer] = 1;
      }
      return {};
    }
    ++endpoint_state().slots_out;
    auto& shared = state_.blocks[block - 1];
    shared.peers.assign(peers.begin(), peers.end());
    return {shared.data, std::max<size_t>(bytes, 1), block};
  }

  void commit(const Slot& slot, const FrameHeader& header) override {
    UNISONO_CHECK(header.payload_bytes <= slot.capacity);
    const std::lock_guard lock(state_.mutex);
    const auto sealed = state_.seal(header, {slot.data, header.payload_bytes});
    for (const auto peer : state_.blocks[slot.handle - 1].peers) {
      if (!linked(peer)) continue;
      const bool empty = header.payload_bytes == 0;
      if (!empty) ++state_.blocks[slot.handle - 1].uses;
      state_.push(self_, peer, sealed, empty ? 0 : slot.handle, true);
    }
    state_.drop_block(slot.handle);
  }

  void abandon(const Slot& slot) override {
    const std::lock_guard lock(state_.mutex);
    state_.drop_block(slot.handle);
  }

  bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t) override {
    UNISONO_CHECK(payload.size() <= payload_bytes_max);
    const std::lock_guard lock(state_.mutex);
    if (!linked(peer)) return true;
    uint64_t block = 0;
    if (!payload.empty()) {
      block = state_.take_block(payload.size(), PayloadPool::no_owner, 1);
      if (block == 0) {
        state_.unlink(self_, peer, "no memory for its frames", true, true);
        return true;
      }
      std::memcpy(state_.blocks[block - 1].data, payload.data(), payload.size());
    }
    auto complete = header;
    complete.payload_bytes = static_cast<uint32_t>(payload.size());
    state_.push(self_, peer, state_.seal(complete, payload), block, false);
    return true;
  }

  void release(const View& view) override {
    const std::lock_guard lock(state_.mutex);
    state_.drop_block(view.handle);
  }

  bool looks_ahead() const override { return true; }

  Next next(PeerIndex from, const FrameHeader& expected, const std::byte*& payload) override {
    const std::lock_guard lock(state_.mutex);
    const auto next = first_from(from);
    if (next == endpoint_state().inbox.end() || next->lost) return Next::none;
    if (!same_except_checksums(next->header, expected)) return Next::other;
    payload = next->data;
    return Next::expected;
  }

  void take_next(std::span<const PeerIndex> from) override {
    const std::lock_guard lock(state_.mutex);
    for (const auto peer : from) {
      const auto next = first_from(peer);
      UNISONO_CHECK(next != endpoint_state().inbox.end() && !next->lost);
      count(*next);
      state_.drop_block(next->block);
      endpoint_state().inbox.erase(next);
    }
  }

  // Nothing is ever pending: send() copies its payload, and poll() fills a receive buffer in the same call in which it asked
  // for it.
  void cancel(const Cancellation&) override {}

  bool poll(Nanos, Sink& sink) override {
    bool any = false;
    for (size_t left = inbox_count(); left > 0; --left) {
      auto item = next_item();
      if (!item) break;
      any = true;
      if (item->lost) sink.lost(item->from, *item->lost, PeerFate::ended);
      else deliver(*item, sink);
    }
    for (const auto peer : take_credit_returned()) {
      any = true;
      sink.credit(peer);
    }
    return any;
  }

  Nanos next_deadline() const override { return never; }

  void close(PeerIndex peer) override {
    const std::lock_guard lock(state_.mutex);
    if (peer < state_.endpoint_states.size()) state_.unlink(self_, peer, "closed the link", false, true);
  }

  int wait_handle() const override { return endpoint_state().bell.get(); }

  bool arm() override {
    const std::lock_guard lock(state_.mutex);
    silence_bell();
    endpoint_state().armed = endpoint_state().inbox.empty() && endpoint_state().has_credit.empty();
    return endpoint_state().armed;
  }

  void disarm() override {
    const std::lock_guard lock(state_.mutex);
    endpoint_state().armed = false;
    silence_bell();
  }

  TransportCounters counters() const override {
    const std::lock_guard lock(state_.mutex);
    return endpoint_state().counters;
  }

  std::string describe(PeerIndex peer) const override {
    const std::lock_guard lock(state_.mutex);
    return "loopback to " + (peer < state_.endpoint_states.size() ? state_.endpoint_states[peer].label : std::string("nobody"));
  }

 private:
  using Item = State::Item;

  State::EndpointState& endpoint_state() const { return state_.endpoint_states[self_]; }
  bool linked(PeerIndex peer) const { return peer < state_.endpoint_states.size() && endpoint_state().linked[peer]; }

  void silence_bell() {
    uint64_t count = 0;
    (void)!::read(endpoint_state().bell.get(), &count, sizeof count);
  }

  size_t inbox_count() {
    const std::lock_guard lock(state_.mutex);
    return endpoint_state().inbox.size();
  }

  std::optional<Item> next_item() {
    const std::lock_guard lock(state_.mutex);
    auto& inbox = endpoint_state().inbox;
    if (inbox.empty()) return {};  // An upcall has closed the link, and this emptied the inbox.
    auto item = std::move(inbox.front());
    inbox.pop_front();
    if (!item.lost) count(item);
    return item;
  }

  std::deque<Item>::iterator first_from(PeerIndex from) {
    return std::ranges::find_if(endpoint_state().inbox, [&](const Item& item) { return item.from == from; });
  }

  void count(const Item& item) {
    ++endpoint_state().counters.received_frames;
    endpoint_state().counters.received_bytes += sizeof item.header + item.header.payload_bytes;
    auto& sender = state_.endpoint_states[item.from];
    if (item.block != 0 && sender.in_flight[self_] > 0) --sender.in_flight[self_];
    state_.give_credit(item.from);
  }

  void deliver(const Item& item, Sink& sink) {
    const size_t bytes = item.header.payload_bytes;
    auto* target = bytes == 0 || item.as_view ? nullptr : sink.receive_buffer(item.from, item.header);
    if (target == nullptr) return sink.received(item.from, item.header, {item.data, bytes, item.block});
    std::memcpy(target, item.data, bytes);
    release({item.data, bytes, item.block});
    sink.received(item.from, item.header, {target, bytes, 0});
  }

  std::vector<PeerIndex> take_credit_returned() {
    const std::lock_guard lock(state_.mutex);
    return std::exchange(endpoint_state().has_credit, {});
  }

  State& state_;
  PeerIndex self_;
};

LoopbackHub::LoopbackHub(std::unique_ptr<State> state) : state_(std::move(state)) {}
LoopbackHub::~LoopbackHub() = default;

Result<std::unique_ptr<LoopbackHub>> LoopbackHub::make(const LoopbackOptions& options) {
  if (options.count == 0 || options.slots <= options.result_slots || options.queue_frames_max == 0) {
    return Status(Code::invalid, "loopback: needs an endpoint, a queue, and more slots than are kept back for results");
  }
  auto state = std::make_unique<State>(options);
  state->endpoint_states.resize(options.count);
  for (size_t i = 0; i < options.count; ++i) {
    auto& endpoint_state = state->endpoint_states[i];
    endpoint_state.label = options.label ? options.label(i) : concat("rank ", i, " (loopback)");
    endpoint_state.linked.assign(options.count, 1);
    endpoint_state.linked[i] = 0;
    endpoint_state.wants_credit.assign(options.count, 0);
    endpoint_state.in_flight.assign(options.count, 0);
    endpoint_state.bell = Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!endpoint_state.bell.open()) return Status(Code::unavailable, "loopback: cannot make an eventfd: " + error_text(errno));
    state->endpoints.push_back(std::make_unique<Endpoint>(*state, static_cast<PeerIndex>(i)));
  }
  return std::unique_ptr<LoopbackHub>(new LoopbackHub(std::move(state)));
}

size_t LoopbackHub::size() const { return state_->endpoint_states.size(); }

Transport& LoopbackHub::at(size_t i) { return *state_->endpoints[i]; }

void LoopbackHub::kill(size_t i) {
  const std::lock_guard lock(state_->mutex);
  auto& endpoint_state = state_->endpoint_states[i];
  endpoint_state.dead = true;
  for (size_t peer = 0; peer < size(); ++peer) {
    if (peer != i) state_->unlink(i, peer, "died", false, true);
  }
  state_->empty_inbox(endpoint_state, {});
  endpoint_state.has_credit.clear();
}

}  // namespace unisono
