// A stream connection whose bytes are encrypted and authenticated by TLS. It stands in front of another StreamSocket, and is
// used like one.
#pragma once

#include <memory>

#include "net/stream_socket.h"
#include "tls/tls_connection.h"

namespace unisono {

// The handshake goes on in connected(), read() and write(); until it is done, nothing is read or written. `inner` is connected.
// Bytes of `inner` that were read or written before are in clear, and do not count. Throws std::bad_alloc if there is no
// memory.
std::unique_ptr<StreamSocket> make_tls_socket(std::unique_ptr<StreamSocket> inner, std::shared_ptr<const TlsContext> context,
                                              TlsConnection::Role role);

}  // namespace unisono
