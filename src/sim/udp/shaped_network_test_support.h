// Virtual sockets behind shaped links. Every host has one link to a switch. Each direction of a link has a token bucket and a
// queue, like tbf of the Linux kernel.
#pragma once

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/concat.h"
#include "base/random.h"
#include "net/datagram_socket.h"

namespace unisono::sim {

struct ShapedSettings {
  uint32_t ranks = 8;
  double bytes_per_second = 12.5e6;
  double bucket_bytes = 128u << 10, queue_bytes = 640u << 10;
  Nanos delay = 15 * microsecond;  // delay from a host to the switch, and from the switch to a host
  double loss = 0;                 // fraction of datagrams that are lost after the switch
  Nanos wake = 0;                  // mean of the exponentially distributed delay until a woken process runs
  uint64_t seed = 1;
};

class ShapedNetwork {
 public:
  static constexpr size_t datagram_bytes_max = 1472, wire_bytes = 42;

  explicit ShapedNetwork(const ShapedSettings& settings)
      : settings_(settings),
        random_(settings.seed),
        out_(settings.ranks, Link{.tokens = settings.bucket_bytes}),
        in_(out_),
        inboxes_(settings.ranks) {}

  static std::string endpoint(size_t rank) { return concat("10.0.0.", rank + 1, ":4500"); }
  std::unique_ptr<DatagramSocket> socket(size_t rank) { return std::make_unique<Socket>(*this, rank); }
  // Returns the time of the next event, or `never`.
  Nanos next_event() const { return events_.empty() ? never : events_.top().at; }
  void lose(double share) { settings_.loss = share; }
  uint64_t overflowed() const { return overflowed_; }
  // Data datagrams sent, repairs included; how many of them were repairs.
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
    Socket(ShapedNetwork& network, size_t rank)
        : network_(network), rank_(rank), address_(*parse_tcp_endpoint("tcp://" + endpoint(rank))) {}
    SendOutcome send(std::span<const OutDatagram> batch) override {
      for (size_t i = 0; i < batch.size(); ++i) {
        if (datagram_header_bytes + batch[i].payload.size() > datagram_bytes_max)
          return {.taken = i, .stop = SendStop::too_long, .error = 0};
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
        const InDatagram arriving{packet->bytes, &packet->from, packet->came};
        inbox.arrived({&arriving, 1});
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
    auto packet = std::make_shared<Packet>(Packet{.to = (ntohl(to->sin_addr.s_addr) & 0xFF) - 1,
                                                  .from = address,
                                                  .bytes = Bytes(datagram_header_bytes + datagram.payload.size())});
    std::memcpy(packet->bytes.data(), &datagram.header, sizeof datagram.header);
    if (!datagram.payload.empty())
      std::memcpy(packet->bytes.data() + datagram_header_bytes, datagram.payload.data(), datagram.payload.size());
    data_ += datagram.header.kind == DatagramKind::data;
    repairs_ += (datagram.header.flags & datagram_repaired) != 0;
    const auto at = pass(out_[from], packet->bytes.size() + wire_bytes, now_);
    if (at != never) push({.at = at + settings_.delay, .packet = std::move(packet)});
  }
  // Returns the time at which the datagram has passed the link, or `never` if the queue is full.
  Nanos pass(Link& link, size_t wire, Nanos now) {
    const auto bytes = static_cast<double>(wire);
    for (; !link.queue.empty() && link.queue.front().first <= now; link.queue.pop_front())
      link.queued -= link.queue.front().second;
    if (link.queued + bytes > settings_.queue_bytes) {
      ++overflowed_;
      return never;
    }
    Nanos at = std::max(now, link.last_left_at);
    const auto fill = [&] {
      link.tokens = std::min(settings_.bucket_bytes,
                             link.tokens + static_cast<double>(at - link.counted_at) * 1e-9 * settings_.bytes_per_second);
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

}  // namespace unisono::sim
