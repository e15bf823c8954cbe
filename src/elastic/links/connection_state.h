// The state that ElasticLinks keeps per peer, or per address whose process is not identified yet: the link, and its waiting
// messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/shared_buffer.h"
#include "elastic/links/run_key.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// FrameHeader::round of frames between elastic links.
enum class ElasticFrame : uint16_t {
  message = 0,
  greeting = 1,   // the payload is a LinkNonce. The first frame in each direction, only with a run key, and without a tag
  parting = 2,    // the sender will send nothing more over this link
  beginning = 3,  // the first bytes of the message that the next frame completes
};

enum class LinkPhase : uint8_t { none, connecting, greeting, up };

inline constexpr size_t beginning_bytes_max = 4096;  // both sides copy these bytes

struct ElasticConnection {
  PeerIndex index = 0;
  uint64_t serial = 0;  // unique among all connections that had this index
  PeerId id;            // PeerId{}: unknown, because only the address is known yet
  std::string address;  // the address being asked; empty once there is a link
  std::vector<std::string> addresses;
  bool known = false, dialable = false;  // as know() was told

  std::deque<SharedMessage> queue;  // not handed to the transport yet
  size_t waiting_bytes = 0;         // of queued messages and of those the transport still holds, each plus its overhead
  bool credit_refused = false;

  LinkPhase phase = LinkPhase::none;
  bool wants_link = false;
  bool dialled = false;          // the connecting link is this side's dial
  std::optional<Status> loss;    // why the previous link was lost; reported when the attempt to make a new one has ended
  std::optional<Status> broken;  // set: the link must be closed, because its data cannot be trusted
  bool sent_parting = false, received_parting = false;
  bool closing = false;  // forgotten when everything is sent and both sides have parted
  bool over = false;     // ElasticLinks::act forgets it now
  bool due = false;      // ElasticLinks::act must look at it
  Nanos last_used = 0;
  // A loss before this time is reported without a new attempt: a path that breaks every link is not retried for ever.
  Nanos next_redial = 0;
  Nanos parting_until = never;
  Nanos greeting_until = never;  // the other side must have identified itself by then

  LinkNonce nonce{};  // this side's
  LinkSeal out, in;
  SharedBuffer landing;  // buffer of the frame that is arriving, with the beginning of its message if that came before
  SharedBuffer beginning;
};

}  // namespace unisono
