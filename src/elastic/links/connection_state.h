// The data that ElasticLinks keeps for each peer: the link and the waiting messages. An address also has a connection, even
// while the process at it is not identified yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/shared_buffer.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// The kinds of frames between elastic links. FrameHeader::round carries the kind.
enum class ElasticFrame : uint16_t {
  message = 0,
  // 1 is no kind: it is refused.
  parting = 2,      // the sender sends no further frame over this link
  first_piece = 3,  // carries the first bytes of a message; the next frame carries the rest
};

enum class LinkPhase : uint8_t { none, connecting, up };

// The payload of a `first_piece` frame is no longer than this, because both sides copy it.
inline constexpr size_t first_piece_bytes_max = 4096;

struct ElasticConnection {
  PeerIndex index = 0;
  uint64_t serial = 0;  // each connection has another one, even if the index is reused
  PeerId id;            // PeerId{}: only the address is known yet
  std::string address;  // send_to_address() sends to this address; empty once the link is up
  std::vector<std::string> addresses;
  bool known = false, dialable = false;  // set by ElasticLinks::know()

  std::deque<SharedMessage> queue;  // messages that the transport has not got yet
  // Size of the messages that are in `queue` or in the transport. For each message, overhead_bytes are added.
  size_t waiting_bytes = 0;
  bool credit_refused = false;

  LinkPhase phase = LinkPhase::none;
  bool wants_link = false;
  bool dialled = false;  // true: this side has dialled the link that is being made
  // Why the previous link was lost. The loss is reported after the attempt to make a new link has ended.
  std::optional<Status> loss;
  std::optional<Status> broken;  // if set, the link must be closed for this reason
  bool sent_parting = false, received_parting = false;
  // True: close() was called. The connection ends once all messages are sent and both sides have parted.
  bool closing = false;
  bool over = false;  // the next ElasticLinks::act deletes this connection
  bool due = false;   // this connection's index is in ElasticLinks::due_
  Nanos last_used = 0;
  // If the link is lost before this time, the loss is reported at once, and no new link is attempted. Otherwise, if a path
  // breaks every link, it would be redialled for ever.
  Nanos next_redial = 0;
  Nanos parting_until = never;

  // Buffer for the frame that is arriving. If a `first_piece` frame came before it, the buffer begins with the bytes of that
  // frame.
  SharedBuffer receive_buffer;
  SharedBuffer first_piece;
};

}  // namespace unisono
