// Virtual stream sockets: a process of a StreamWorld as the TCP transport sees it. Implements net/stream_socket.h.
#pragma once

#include <memory>

#include "net/stream_socket.h"
#include "sim/tcp/stream_world.h"

namespace unisono::sim {

// The network of one process. The world must live longer, and so must this object than what it has made. After the process has
// crashed, its sockets do nothing: reading and writing return -EBADF.
class VirtualStreams final : public StreamNetwork {
 public:
  VirtualStreams(StreamWorld& world, ProcessIndex process) : world_(world), process_(process) {}

  // Functions of StreamNetwork.
  Result<std::vector<InterfaceAddress>> interfaces() override;
  Result<std::unique_ptr<StreamWatcher>> make_watcher(StreamWatcher* outer, uint64_t tag) override;
  Result<std::unique_ptr<StreamListener>> listen(const StreamListenRequest& request, StreamWatcher& watcher,
                                                 uint64_t tag) override;
  std::unique_ptr<StreamSocket> connect(const TcpAddress& to, std::span<const TcpAddress> sources, int& error) override;

 private:
  StreamWorld& world_;
  ProcessIndex process_;
};

// Returns the connection of a virtual socket.
ConnectionId connection_of(const StreamSocket& socket);

}  // namespace unisono::sim
