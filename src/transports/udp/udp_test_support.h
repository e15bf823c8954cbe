// Networks for tests of the UDP transport: a virtual network with virtual time, and a lossy network in front of a real socket.
// Both are random and take a seed.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "net/datagram_socket.h"

namespace unisono {

inline constexpr uint32_t group_number = 9;

struct BadNetwork {
  double lose = 0, repeat = 0, reorder = 0;
  uint64_t seed = 1;
};

// A socket that sends through a real socket, but loses, repeats and reorders datagrams on the way.
class BadSocket final : public DatagramSocket {
 public:
  BadSocket(std::unique_ptr<DatagramSocket> inner, const BadNetwork& network)
      : inner_(std::move(inner)), network_(network), random_(network.seed) {}

  void lose(double share) { network_.lose = share; }
  SendOutcome send(std::span<const OutDatagram> batch) override {
    for (const auto& datagram : batch) {
      if (random_.chance(network_.lose)) continue;
      if (random_.chance(network_.reorder)) {
        held_.push_back({*datagram.to, datagram.header, Bytes(datagram.payload.begin(), datagram.payload.end())});
        continue;
      }
      pass(datagram);
      if (random_.chance(network_.repeat)) pass(datagram);
      if (held_.size() > 3) release();
    }
    return {.taken = batch.size()};
  }
  ReceiveOutcome receive(DatagramInbox& inbox, size_t datagrams_max) override {
    release();
    return inner_->receive(inbox, datagrams_max);
  }
  int wait_handle() const override { return inner_->wait_handle(); }
  uint64_t own_drops() const override { return inner_->own_drops(); }
  const TcpAddress& address() const override { return inner_->address(); }

 private:
  struct Held {
    TcpAddress to;
    DatagramHeader header;
    Bytes payload;
  };
  void pass(const OutDatagram& datagram) { (void)inner_->send({&datagram, 1}); }
  void release() {
    for (const auto& held : held_) pass({.to = &held.to, .header = held.header, .payload = held.payload});
    held_.clear();
  }

  std::unique_ptr<DatagramSocket> inner_;
  BadNetwork network_;
  Random random_;
  std::vector<Held> held_;
};

// A network of virtual sockets. A datagram arrives after a delay, unless the test's filter drops it.
class VirtualNetwork {
 public:
  struct Datagram {
    TcpAddress from, to;
    Bytes bytes;
    Nanos at = 0;
    bool confirms = false, alone = false;
    DatagramHeader header() const {
      DatagramHeader header;
      std::memcpy(&header, bytes.data(), sizeof header);
      return header;
    }
  };
  class Socket final : public DatagramSocket {
   public:
    Socket(VirtualNetwork& network, const TcpAddress& address) : network_(network), address_(address) {}
    ~Socket() override { network_.sockets_.erase(address_.to_string()); }
    SendOutcome send(std::span<const OutDatagram> batch) override {
      for (size_t i = 0; i < batch.size(); ++i) {
        if (sizeof(DatagramHeader) + batch[i].payload.size() > network_.datagram_bytes_max)
          return {.taken = i, .stop = SendStop::too_long, .error = 0};
        network_.carry(address_, batch[i]);
      }
      return {.taken = batch.size()};
    }
    ReceiveOutcome receive(DatagramInbox& inbox, size_t datagrams_max) override {
      ReceiveOutcome outcome;
      const auto is_there = [&] {
        return outcome.datagrams < datagrams_max && !inbox_.empty() && inbox_.front().at <= network_.now;
      };
      while (is_there()) {
        std::vector<Datagram> taken;
        while (is_there() && taken.size() < datagrams_per_batch) {
          taken.push_back(std::move(inbox_.front()));
          inbox_.pop_front();
          ++outcome.datagrams;
        }
        std::vector<InDatagram> batch;
        for (auto& datagram : taken) batch.push_back({datagram.bytes, &datagram.from, 0});
        inbox.arrived(batch);
      }
      for (const auto& to : std::exchange(refused_, {})) inbox.refused(to);
      outcome.drained = inbox_.empty() || inbox_.front().at > network_.now;
      return outcome;
    }
    int wait_handle() const override { return -1; }
    uint64_t own_drops() const override { return own_drops_; }
    const TcpAddress& address() const override { return address_; }
    // Simulates a network report that nobody listens at `to`.
    void refuse(const TcpAddress& to) { refused_.push_back(to); }

   private:
    friend class VirtualNetwork;
    VirtualNetwork& network_;
    TcpAddress address_;
    std::deque<Datagram> inbox_;  // sorted by time of arrival
    std::vector<TcpAddress> refused_;
    uint64_t own_drops_ = 0;
  };

  explicit VirtualNetwork(uint64_t seed) : random(seed) {}

  std::unique_ptr<DatagramSocket> socket(const std::string& endpoint) {
    auto made = std::make_unique<Socket>(*this, *parse_tcp_endpoint("tcp://" + endpoint));
    sockets_[made->address_.to_string()] = made.get();
    return made;
  }
  Socket* find(const std::string& endpoint) const {
    const auto found = sockets_.find(endpoint);
    return found == sockets_.end() ? nullptr : found->second;
  }
  // Returns the time of the next arrival at any socket except `except`.
  Nanos next_arrival(const std::string& except = {}) const {
    Nanos next = never;
    for (const auto& [name, socket] : sockets_) {
      if (name == except) continue;
      if (!socket->refused_.empty()) return now;
      if (!socket->inbox_.empty()) next = std::min(next, socket->inbox_.front().at);
    }
    return next;
  }
  // Puts the datagram into its receiver's inbox, as if it had come through the network.
  void inject(const Datagram& datagram) {
    const auto found = sockets_.find(datagram.to.to_string());
    if (found != sockets_.end()) insert(*found->second, datagram);
  }

  Nanos now = second;
  Nanos delay = 50 * microsecond;
  Nanos jitter = 0;  // a uniform random time is added to the delay, so datagrams are reordered
  double lose = 0, repeat = 0;
  size_t datagram_bytes_max = 9000;
  size_t queue_max = SIZE_MAX;  // limit for the datagrams in one socket's buffer; further datagrams count as its own_drops
  std::function<bool(const Datagram&)> filter;  // returns false to lose the datagram
  std::function<void(const Datagram&)> watcher;
  uint64_t carried = 0, lost = 0;
  Random random;

 private:
  void carry(const TcpAddress& from, const OutDatagram& out) {
    Datagram datagram{from, *out.to, Bytes(sizeof(DatagramHeader) + out.payload.size()), 0, out.confirms, out.alone};
    std::memcpy(datagram.bytes.data(), &out.header, sizeof out.header);
    if (!out.payload.empty()) std::memcpy(datagram.bytes.data() + sizeof out.header, out.payload.data(), out.payload.size());
    ++carried;
    if (watcher) watcher(datagram);
    const auto found = sockets_.find(out.to->to_string());
    if (found == sockets_.end()) {
      sockets_[from.to_string()]->refused_.push_back(*out.to);
      return;
    }
    if (random.chance(lose) || (filter && !filter(datagram))) {
      ++lost;
      return;
    }
    const int copies = random.chance(repeat) ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      datagram.at = now + delay + (jitter > 0 ? static_cast<Nanos>(random.below(static_cast<uint64_t>(jitter))) : 0);
      insert(*found->second, datagram);
    }
  }
  void insert(Socket& socket, const Datagram& datagram) {
    if (socket.inbox_.size() >= queue_max) {
      ++socket.own_drops_;
      return;
    }
    const auto position = std::upper_bound(socket.inbox_.begin(), socket.inbox_.end(), datagram,
                                           [](const auto& a, const auto& b) { return a.at < b.at; });
    socket.inbox_.insert(position, datagram);
  }
  std::map<std::string, Socket*> sockets_;
};

}  // namespace unisono
