// Virtual sockets behind shaped links: every host has one link to a switch, with a bucket of tokens and a queue in each direction, as the kernel's tbf.
// And lossy groups over whole UDP transports on them, under virtual time.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "node/calls.h"
#include "node/lossy_group.h"
#include "transports/udp_transport.h"

namespace unisono::sim {

struct ShapedSettings {
  uint32_t ranks = 8;
  double bytes_per_second = 12.5e6;
  double bucket_bytes = 128u << 10, queue_bytes = 640u << 10;
  Nanos delay = 15 * microsecond;  // of each half of the way
  double loss = 0;                 // of datagrams that have come as far as their receiver
  Nanos wake = 0;                  // mean time until a process gets its processor, exponential
  uint64_t seed = 1;
};

class ShapedNetwork {
 public:
  static constexpr size_t datagram_bytes_max = 1472, wire_bytes = 42;

  explicit ShapedNetwork(const ShapedSettings& settings)
      : settings_(settings), random_(settings.seed), out_(settings.ranks, Link{.tokens = settings.bucket_bytes}), in_(out_), inboxes_(settings.ranks) {}

  static std::string endpoint(size_t rank) { return "10.0.0." + std::to_string(rank + 1) + ":4500"; }
  std::unique_ptr<DatagramSocket> socket(size_t rank) { return std::make_unique<Socket>(*this, rank); }
  // When the next datagram moves.
  Nanos next_event() const { return events_.empty() ? never : events_.top().at; }
  void lose(double share) { settings_.loss = share; }
  uint64_t overflowed() const { return overflowed_; }
  // Of datagrams of data: all, and those that were sent again.
  uint64_t data() const { return data_; }
  uint64_t repairs() const { return repairs_; }

  void run_until(Nanos now, const std::function<void(size_t rank)>& arrived) {
    while (!events_.empty() && events_.top().at <= now) {
      const auto event = events_.top();
      events_.pop();
      now_ = event.at;
      if (event.arrives) {
        inboxes_[event.packet->to].push_back(event.packet);
        arrived(event.packet->to);
      } else {
        const auto at = pass(in_[event.packet->to], event.packet->bytes.size() + wire_bytes, event.at);
        if (at == never || random_.chance(settings_.loss)) continue;
        event.packet->came = at + settings_.delay;
        push({.at = event.packet->came, .packet = event.packet, .arrives = true});
      }
    }
    now_ = now;
  }
  Nanos now() const { return now_; }

 private:
  struct Packet {
    size_t to = 0;
    TcpAddress from;
    Bytes bytes;
    Nanos came = 0;
  };
  struct Event {
    Nanos at = 0;
    std::shared_ptr<Packet> packet{};
    bool arrives = false;
    uint64_t order = 0;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  struct Link {
    double tokens = 0;
    Nanos counted_at = 0, last_left_at = 0;
    std::deque<std::pair<Nanos, double>> queue{};
    double queued = 0;
  };
  class Socket final : public DatagramSocket {
   public:
    Socket(ShapedNetwork& network, size_t rank) : network_(network), rank_(rank), address_(*parse_tcp_endpoint("tcp://" + endpoint(rank))) {}
    SendOutcome send(std::span<const OutDatagram> batch) override {
      for (size_t i = 0; i < batch.size(); ++i) {
        if (datagram_header_bytes + batch[i].payload.size() > datagram_bytes_max) return {.taken = i, .stop = SendStop::too_long, .error = 0};
        network_.carry(rank_, address_, batch[i]);
      }
      return {.taken = batch.size()};
    }
    ReceiveOutcome receive(DatagramInbox& inbox, size_t datagrams_max) override {
      ReceiveOutcome outcome;
      auto& queue = network_.inboxes_[rank_];
      for (; !queue.empty() && outcome.datagrams < datagrams_max; ++outcome.datagrams) {
        const auto packet = std::move(queue.front());
        queue.pop_front();
        inbox.arrived(packet->bytes, packet->from, packet->came);
      }
      outcome.drained = queue.empty();
      return outcome;
    }
    int wait_handle() const override { return -1; }
    uint64_t own_drops() const override { return 0; }
    const TcpAddress& address() const override { return address_; }

   private:
    ShapedNetwork& network_;
    size_t rank_;
    TcpAddress address_;
  };

  void push(Event event) {
    event.order = order_++;
    events_.push(std::move(event));
  }
  void carry(size_t from, const TcpAddress& address, const OutDatagram& datagram) {
    const auto* to = reinterpret_cast<const sockaddr_in*>(&datagram.to->storage);
    auto packet = std::make_shared<Packet>(Packet{.to = (ntohl(to->sin_addr.s_addr) & 0xFF) - 1, .from = address, .bytes = Bytes(datagram_header_bytes + datagram.payload.size())});
    std::memcpy(packet->bytes.data(), &datagram.header, sizeof datagram.header);
    if (!datagram.payload.empty()) std::memcpy(packet->bytes.data() + datagram_header_bytes, datagram.payload.data(), datagram.payload.size());
    data_ += datagram.header.kind == DatagramKind::data;
    repairs_ += (datagram.header.flags & datagram_repaired) != 0;
    const auto at = pass(out_[from], packet->bytes.size() + wire_bytes, now_);
    if (at != never) push({.at = at + settings_.delay, .packet = std::move(packet)});
  }
  // When it is through; never: the queue is full.
  Nanos pass(Link& link, size_t wire, Nanos now) {
    const auto bytes = static_cast<double>(wire);
    for (; !link.queue.empty() && link.queue.front().first <= now; link.queue.pop_front()) link.queued -= link.queue.front().second;
    if (link.queued + bytes > settings_.queue_bytes) {
      ++overflowed_;
      return never;
    }
    Nanos at = std::max(now, link.last_left_at);
    const auto fill = [&] {
      link.tokens = std::min(settings_.bucket_bytes, link.tokens + static_cast<double>(at - link.counted_at) * 1e-9 * settings_.bytes_per_second);
      link.counted_at = at;
    };
    fill();
    if (link.tokens < bytes) {
      at += static_cast<Nanos>((bytes - link.tokens) / settings_.bytes_per_second * 1e9) + 1;
      fill();
    }
    link.tokens -= bytes;
    link.last_left_at = at;
    link.queue.emplace_back(at, bytes);
    link.queued += bytes;
    return at;
  }

  ShapedSettings settings_;
  Random random_;
  std::vector<Link> out_, in_;
  std::vector<std::deque<std::shared_ptr<Packet>>> inboxes_;
  std::priority_queue<Event> events_;
  Nanos now_ = second;
  uint64_t order_ = 0, overflowed_ = 0, data_ = 0, repairs_ = 0;
};

class ShapedCluster : Sink {
 public:
  explicit ShapedCluster(const ShapedSettings& settings) : settings_(settings), network_(settings), random_(settings.seed + 1), wakes_(settings.ranks, never), arrived_(settings.ranks, false) {
    UdpOptions options;
    options.clock = [this] { return now_; };
    for (size_t rank = 0; rank < settings.ranks; ++rank) {
      std::vector<std::unique_ptr<DatagramSocket>> sockets;
      sockets.push_back(network_.socket(rank));
      options.self = id(rank);
      transports_.push_back(UdpTransport::over(options, std::move(sockets)));
      transports_[rank]->set_job(JobKey{});
    }
    groups_.resize(settings.ranks);
    link_all();
  }

  ShapedNetwork& network() { return network_; }
  const UdpTransport& transport(size_t rank) const { return *transports_[rank]; }
  Nanos now() const { return now_; }

  void pass(Nanos time) {
    for (const Nanos until = now_ + time; now_ < until;) step(until);
  }
  // From when all ranks begin until the last one is done; `never` if a call failed.
  Nanos all_reduce(std::vector<std::vector<float>>& values, double loss_budget) {
    CallOptions call{.schedule = ScheduleKind::two_step, .delivery = Delivery::lossy};
    call.lossy.loss_budget = loss_budget;
    const Nanos begun = now_;
    std::vector<std::shared_ptr<Completion>> completions;
    for (Rank rank = 0; rank < settings_.ranks; ++rank) {
      auto request = all_reduce_call({.self = rank, .world = settings_.ranks, .timeout = 10 * second}, ConstTensor(std::span<const float>(values[rank])), Tensor(std::span<float>(values[rank])), call);
      completions.push_back(std::make_shared<Completion>());
      groups_[rank]->submit(std::move(*request), completions.back(), now_);
    }
    const auto done = [&] { return std::all_of(completions.begin(), completions.end(), [](const auto& c) { return c->done; }); };
    while (!done() && now_ < begun + 20 * second) step(begun + 20 * second);
    bool ok = done();
    for (const auto& completion : completions) {
      EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
      ok &= completion->status.ok();
    }
    return ok ? now_ - begun : never;
  }

 private:
  struct Told {
    Rank from = 0, to = 0;
    uint32_t op = 0;
    CallDescriptor call;
  };
  static PeerId id(size_t rank) { return {rank + 1, 1000}; }
  // No frames here.
  std::byte* place(PeerIndex, const FrameHeader&) override { return nullptr; }
  void received(PeerIndex, const FrameHeader&, const View&) override { ADD_FAILURE(); }
  void sent(uint64_t) override {}
  void lost(PeerIndex, const Status& why) override { ADD_FAILURE() << why.to_string(); }
  void room(PeerIndex) override {}

  void link_all() {
    std::vector<PeerIndex> peers;
    for (Rank rank = 0; rank < settings_.ranks; ++rank) {
      peers.push_back(rank);
      for (Rank other = 0; other < settings_.ranks; ++other) {
        if (rank == other) continue;
        EXPECT_TRUE(transports_[rank]->add_peer({.peer = other, .id = id(other), .label = "rank " + std::to_string(other), .endpoints = {"udp://" + ShapedNetwork::endpoint(other)}, .dial = rank < other, .deadline = now_ + 10 * second}).ok());
      }
    }
    pass(600 * millisecond);
    for (Rank rank = 0; rank < settings_.ranks; ++rank) {
      LossyGroupSetup setup{.number = 1, .datagrams = {.run_id = 1, .epoch = 7, .self = rank, .world = settings_.ranks}, .peers = peers, .datagram_bytes = transports_[rank]->datagram_bytes(peers),
                            .place = [](Rank r) { return "process " + std::to_string(r); },
                            .tell = [this, rank](Rank to, uint32_t op, const CallDescriptor& call) { told_.push_back({.from = rank, .to = to, .op = op, .call = call}); }};
      groups_[rank] = std::move(LossyGroup::make(*transports_[rank]->datagrams(), std::move(setup)).value());
    }
  }
  Nanos due(size_t rank) const {
    const auto due = transports_[rank]->next_deadline();
    return groups_[rank] ? std::min(due, groups_[rank]->next_deadline()) : due;
  }
  void step(Nanos until) {
    auto next = told_.empty() ? std::min(until, network_.next_event()) : now_;
    for (size_t rank = 0; rank < settings_.ranks; ++rank) next = std::min(next, wakes_[rank] != never ? wakes_[rank] : due(rank));
    now_ = std::max(now_, next);
    network_.run_until(now_, [this](size_t rank) { arrived_[rank] = true; });
    for (const auto& told : std::exchange(told_, {})) groups_[told.to]->heard_call(told.from, told.op, told.call, now_);
    for (size_t rank = 0; rank < settings_.ranks; ++rank) {
      if (wakes_[rank] == never && (arrived_[rank] || due(rank) <= now_)) wakes_[rank] = now_ + latency();
      if (wakes_[rank] > now_) continue;
      wakes_[rank] = never;
      arrived_[rank] = false;
      for (bool any = true; any;) {
        any = transports_[rank]->poll(now_, *this);
        if (groups_[rank]) any |= groups_[rank]->step(now_);
      }
    }
  }
  Nanos latency() { return 10 * microsecond + static_cast<Nanos>(static_cast<double>(settings_.wake) * -std::log(1 - random_.unit())); }

  ShapedSettings settings_;
  ShapedNetwork network_;
  Random random_;
  std::vector<Nanos> wakes_;
  std::vector<bool> arrived_;
  std::vector<std::unique_ptr<UdpTransport>> transports_;
  std::vector<std::unique_ptr<LossyGroup>> groups_;
  std::vector<Told> told_;
  Nanos now_ = second;
};

}  // namespace unisono::sim
