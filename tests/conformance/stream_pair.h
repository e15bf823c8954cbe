// For tests of stream sockets: a place with two processes that can reach each other, and a connection between them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <vector>

#include "base/error_text.h"
#include "net/stream_socket.h"
#include "transport_cluster.h"

namespace unisono::conformance {

class StreamPlace {
 public:
  virtual ~StreamPlace() = default;
  virtual StreamNetwork& dialling() = 0;
  virtual StreamNetwork& listening() = 0;
  // The address of the listening process.
  virtual InterfaceAddress address() = 0;
  // Lets a little time pass.
  virtual void pass() = 0;
};

class StreamPromise : public testing::TestWithParam<std::function<std::unique_ptr<StreamPlace>()>> {
 protected:
  static constexpr uint64_t listener_tag = 1, dialled_tag = 2, accepted_tag = 3, inner_tag = 4;

  void SetUp() override {
    place = GetParam()();
    ASSERT_NE(place, nullptr);
    watcher = make_watcher(place->listening());
    far_watcher = make_watcher(place->dialling());
    ASSERT_TRUE(watcher && far_watcher);
  }
  static std::unique_ptr<StreamWatcher> make_watcher(StreamNetwork& network, StreamWatcher* outer = nullptr, uint64_t tag = 0) {
    auto made = network.make_watcher(outer, tag);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? std::move(*made) : nullptr;
  }
  bool until(const std::function<bool()>& done) {
    for (const auto limit = clock_now() + patience; !done(); place->pass()) {
      if (clock_now() > limit) return false;
    }
    return true;
  }
  Result<std::unique_ptr<StreamListener>> listen(uint16_t port = 0) {
    return place->listening().listen({.addresses = {place->address()}, .port = port}, *watcher, listener_tag);
  }
  std::unique_ptr<StreamSocket> dial(uint16_t port) {
    auto to = place->address().address;
    to.set_port(port);
    int error = -1;
    auto socket = place->dialling().connect(to, {}, error);
    EXPECT_EQ(error, 0);
    return socket;
  }
  void connect() {
    auto made = listen();
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    listener = std::move(*made);
    dialled = dial(listener->port());
    ASSERT_NE(dialled, nullptr);
    ASSERT_TRUE(until([&] { return (accepted = listener->accept().socket) != nullptr; }));
    ASSERT_TRUE(until([&] { return dialled->connected() == 0; }));
  }
  static bool reports(StreamWatcher& watcher, uint64_t tag) {
    std::array<uint64_t, 8> tags;
    const auto count = watcher.ready(tags);
    return std::find(tags.begin(), tags.begin() + count, tag) != tags.begin() + count;
  }
  // Reads until `count` bytes are there or the connection has ended, and sets `ended`. Returns the number of bytes.
  size_t read(StreamSocket& socket, size_t count) {
    size_t total = 0;
    ended = false;
    EXPECT_TRUE(until([&] {
      std::array<std::byte, 4096> bytes;
      const auto taken = read_some(socket, std::span(bytes).first(std::min(count - total, bytes.size())), ended);
      EXPECT_GE(taken, 0) << error_text(static_cast<int>(-taken));
      total += static_cast<size_t>(std::max<ptrdiff_t>(taken, 0));
      return taken < 0 || ended || total == count;
    }));
    return total;
  }
  // Writes until the socket takes no more, and returns the number of bytes.
  static size_t fill(StreamSocket& socket) {
    const std::vector<std::byte> bytes(1 << 20);
    size_t total = 0;
    for (ptrdiff_t count = 1; count > 0; total += static_cast<size_t>(count)) {
      count = write_some(socket, bytes);
      EXPECT_GE(count, 0);
      if (count < 0) break;
    }
    return total;
  }

  std::unique_ptr<StreamPlace> place;
  std::unique_ptr<StreamWatcher> watcher, far_watcher;  // of the listening process, and of the dialling one
  std::unique_ptr<StreamListener> listener;
  std::unique_ptr<StreamSocket> dialled, accepted;
  bool ended = false;
};

}  // namespace unisono::conformance
