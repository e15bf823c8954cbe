// For tests: two processes on two virtual hosts, and one connection between them.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <optional>

#include "sim/tcp/virtual_streams.h"

namespace unisono::sim {

inline constexpr int dialler = 0, acceptor = 1;

class StreamPair {
 public:
  explicit StreamPair(const StreamSettings& settings = {})
      : world(settings),
        hosts{world.add_host({"10.0.0.1"}), world.add_host({"10.0.0.2"})},
        processes{world.add_process(hosts[0]), world.add_process(hosts[1])},
        networks{VirtualStreams(world, processes[0]), VirtualStreams(world, processes[1])} {
    world.keep_trace(100);
    for (const int side : {dialler, acceptor}) watchers[side] = std::move(*networks[side].make_watcher(nullptr, 0));
    listener = std::move(*networks[acceptor].listen({}, *watchers[acceptor], 0));
  }

  TcpAddress address(const std::string& host = "10.0.0.2") const {
    auto result = *parse_tcp_address(host);
    result.set_port(listener->port());
    return result;
  }
  std::unique_ptr<StreamSocket> dial(const std::string& host = "10.0.0.2") {
    int error = 0;
    return networks[dialler].connect(address(host), {}, error);
  }
  void connect() {
    sockets[dialler] = dial();
    wait(10 * millisecond);
    ASSERT_EQ(sockets[dialler]->connected(), 0) << world.trace();
    sockets[acceptor] = listener->accept().socket;
    ASSERT_TRUE(sockets[acceptor]) << world.trace();
  }
  void wait(Nanos time) { world.advance(world.now() + time); }

  ptrdiff_t write(int side, size_t bytes, std::byte value = std::byte{7}) {
    const Bytes data(bytes, value);
    return write_some(*sockets[side], data);
  }
  // Returns the number of bytes, or -errno. The end of the stream is `ended`.
  ptrdiff_t read(int side, size_t bytes_max, bool& ended) {
    Bytes data(bytes_max);
    return read_some(*sockets[side], data, ended);
  }
  ptrdiff_t read(int side, size_t bytes_max = 1u << 20) {
    bool ended = false;
    const auto count = read(side, bytes_max, ended);
    return ended ? end_of_stream : count;
  }
  uint64_t unacknowledged(int side) const { return sockets[side]->unacknowledged_bytes(); }
  ConnectionId connection() const { return connection_of(*sockets[dialler]); }

  static constexpr ptrdiff_t end_of_stream = -100'000;
  StreamWorld world;
  HostIndex hosts[2];
  ProcessIndex processes[2];
  VirtualStreams networks[2];
  std::unique_ptr<StreamWatcher> watchers[2];
  std::unique_ptr<StreamListener> listener;
  std::unique_ptr<StreamSocket> sockets[2];
};

}  // namespace unisono::sim
