// For tests: the kernel's stream connections, which a test can break.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "net/stream_socket.h"
#include "net/tcp_socket.h"
#include "transports/tcp/kernel_streams.h"

namespace unisono::conformance {

// It must live longer than the transport that uses it.
class BreakableStreams final : public StreamNetwork {
 public:
  // Ends all connections in both directions. What has arrived can still be read.
  void shut_all() {
    for (auto* socket : sockets_) socket->shut();
  }
  void shut(size_t index) { sockets_.at(index)->shut(); }
  // Ends all connections with a reset, as a middlebox does that has forgotten them. What has arrived can still be read.
  void reset_all() {
    for (auto* socket : sockets_) socket->reset();
  }
  size_t open() const { return sockets_.size(); }
  size_t dials() const { return dials_; }
  // While true, dials get no answer, or connections of others are not accepted. Nobody is told.
  bool dials_blocked = false, arrivals_blocked = false;
  // The peer's host seems not to have answered for this long.
  Nanos silence = 0;

  Result<std::vector<InterfaceAddress>> interfaces() override { return kernel_streams().interfaces(); }
  Result<std::unique_ptr<StreamWatcher>> make_watcher(StreamWatcher* outer, uint64_t tag) override {
    return kernel_streams().make_watcher(outer, tag);
  }
  Result<std::unique_ptr<StreamListener>> listen(const StreamListenRequest& request, StreamWatcher& watcher,
                                                 uint64_t tag) override {
    auto listener = kernel_streams().listen(request, watcher, tag);
    if (!listener.ok()) return listener.status();
    return std::unique_ptr<StreamListener>(std::make_unique<Listener>(std::move(*listener), *this));
  }
  std::unique_ptr<StreamSocket> connect(const TcpAddress& to, std::span<const TcpAddress> sources, int& error) override {
    ++dials_;
    auto socket = kernel_streams().connect(to, sources, error);
    return socket ? std::make_unique<Socket>(std::move(socket), *this) : nullptr;
  }

 private:
  class Socket final : public StreamSocket {
   public:
    Socket(std::unique_ptr<StreamSocket> inner, BreakableStreams& network) : inner_(std::move(inner)), network_(network) {
      network_.sockets_.push_back(this);
    }
    ~Socket() override { std::erase(network_.sockets_, this); }

    void shut() {
      if (const int descriptor = this->descriptor(); descriptor >= 0) (void)::shutdown(descriptor, SHUT_RDWR);
    }
    void reset() {
      const int descriptor = this->descriptor();
      if (descriptor < 0) return;
      local_ = inner_->local();
      remote_ = inner_->remote();
      std::array<std::byte, 65536> part;
      bool ended = false;
      for (ptrdiff_t count = 0; (count = read_some(*inner_, part, ended)) > 0;) {
        arrived_.insert(arrived_.end(), part.begin(), part.begin() + count);
      }
      const linger at_once{.l_onoff = 1, .l_linger = 0};
      EXPECT_EQ(::setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
      inner_.reset();
    }

    std::optional<int> connected() override {
      if (network_.dials_blocked) return std::nullopt;
      return inner_ ? inner_->connected() : ECONNRESET;
    }
    ptrdiff_t write(const iovec* parts, int count) override { return inner_ ? inner_->write(parts, count) : -ECONNRESET; }
    ptrdiff_t read(const iovec* parts, int count, bool& ended) override {
      if (inner_) return inner_->read(parts, count, ended);
      ended = false;
      size_t taken = 0;
      for (int i = 0; i < count; ++i) {
        const size_t bytes = std::min(parts[i].iov_len, arrived_.size() - read_ - taken);
        if (bytes > 0) std::memcpy(parts[i].iov_base, arrived_.data() + read_ + taken, bytes);
        taken += bytes;
      }
      read_ += taken;
      return taken > 0 ? static_cast<ptrdiff_t>(taken) : -ECONNRESET;
    }
    ptrdiff_t peek(std::span<std::byte> bytes, bool& ended) override {
      ended = false;
      return inner_ ? inner_->peek(bytes, ended) : -ECONNRESET;
    }
    bool encrypts() const override { return inner_ && inner_->encrypts(); }
    bool has_unflushed() const override { return inner_ && inner_->has_unflushed(); }
    int flush() override { return inner_ ? inner_->flush() : ECONNRESET; }
    bool has_buffered() const override { return inner_ && inner_->has_buffered(); }
    uint64_t incomplete_record() const override { return inner_ ? inner_->incomplete_record() : 0; }
    void shut_down() override {
      if (inner_) inner_->shut_down();
    }
    void abort() override {
      if (inner_) inner_->abort();
    }
    bool watch(StreamWatcher& watcher, bool readable, bool writable, uint64_t tag) override {
      return !inner_ || inner_->watch(watcher, readable, writable, tag);
    }
    void tune() override {
      if (inner_) inner_->tune();
    }
    TcpAddress local() const override { return inner_ ? inner_->local() : local_; }
    TcpAddress remote() const override { return inner_ ? inner_->remote() : remote_; }
    bool host_is_silent(Nanos silence) const override { return silence <= network_.silence; }
    bool awaits_host(Nanos silence) const override { return silence <= network_.silence; }
    uint64_t unacknowledged_bytes() const override { return inner_ ? inner_->unacknowledged_bytes() : unknown; }
    void acknowledge_now() override {
      if (inner_) inner_->acknowledge_now();
    }
    Unacknowledged unacknowledged() const override { return inner_ ? inner_->unacknowledged() : Unacknowledged(); }

   private:
    // Returns the descriptor with this connection's addresses; -1: it is not connected.
    int descriptor() const {
      if (!inner_ || inner_->remote().bytes == 0) return -1;
      const auto local = inner_->local().to_string(), remote = inner_->remote().to_string();
      rlimit limit{};
      EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
      const int end = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 4096));
      for (int descriptor = 0; descriptor < end; ++descriptor) {
        sockaddr_storage address;
        socklen_t bytes = sizeof address;
        if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) continue;
        if (local_address(descriptor).to_string() == local && remote_address(descriptor).to_string() == remote)
          return descriptor;
      }
      return -1;
    }

    std::unique_ptr<StreamSocket> inner_;  // null: it was reset
    BreakableStreams& network_;
    Bytes arrived_;  // what had arrived before the reset
    size_t read_ = 0;
    TcpAddress local_, remote_;
  };

  class Listener final : public StreamListener {
   public:
    Listener(std::unique_ptr<StreamListener> inner, BreakableStreams& network) : inner_(std::move(inner)), network_(network) {}
    uint16_t port() const override { return inner_->port(); }
    StreamArrival accept() override {
      if (network_.arrivals_blocked) return {};
      auto arrival = inner_->accept();
      if (arrival.socket) arrival.socket = std::make_unique<Socket>(std::move(arrival.socket), network_);
      return arrival;
    }

   private:
    std::unique_ptr<StreamListener> inner_;
    BreakableStreams& network_;
  };

  std::vector<Socket*> sockets_;
  size_t dials_ = 0;
};

}  // namespace unisono::conformance
