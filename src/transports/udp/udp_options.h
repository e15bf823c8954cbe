// The options of the UDP transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "net/losing_socket.h"
#include "tls/datagram_seal.h"
#include "tls/tls_context.h"
#include "transports/payload_pool.h"
#include "wire/datagram.h"
#include "wire/peer_id.h"

namespace unisono {

struct UdpOptions {
  PeerId self{};
  std::string interface {};               // name or address of an interface, as in TcpOptions
  uint16_t port = 0;                      // 0: the kernel chooses
  bool payload_checksum = false;          // true: sent frames carry a checksum
  uint32_t datagram_bytes_max = 0;        // 0: 8972 (IPv6: 8952), or less if the path carries less
  uint64_t rate_limit = 0;                // in bytes/s, for all peers together; 0: no limit
  DatagramAuth auth = DatagramAuth::mac;  // a link uses checksums instead of tags only if both processes set `checksum`
  // With keys, all links are encrypted, and make() refuses checksums. Null: no encryption.
  std::shared_ptr<const TlsContext> tls{};
  SealCipher cipher = fastest_cipher();            // a link uses AES-128-GCM only if both processes wish for it
  uint64_t numbers_per_key = numbers_per_key_max;  // for tests: both processes need the same number
  uint32_t window_bytes = 0;  // a peer may have this many bytes in flight to us; 0: computed from the sockets
  size_t queue_frames_max = 64, extra_frames_max = 4096;  // limits like those of TcpLinkOptions
  Nanos keep_alive = 500 * millisecond;                   // a peer that is silent for this long gets a ping
  Nanos silence = 10 * second;                            // a peer that answers nothing for this long is lost
  Nanos drain = 2 * second;                               // after close(), queued frames are still sent for this long
  InjectedLoss loss{};  // which datagrams are dropped on arrival, on purpose; describe() reports it
  PayloadPoolLimits pool{};
  // Returns the time, as passed to poll(). With a clock, send() sends at once, and delays are measured with fresh times.
  // Without it, datagrams leave at the next poll(), and a thread that is suspended during poll() measures wrong delays.
  std::function<Nanos()> clock{};
};

}  // namespace unisono
