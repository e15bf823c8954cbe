// What ElasticLinks knows of one peer, or of one address that is being asked who listens there: its link, and what waits for
// it.
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
  greeting = 1,   // the payload is a LinkNonce; the first frame in each direction, with a run key only, and without a tag
  parting = 2,    // the sender sends nothing more over this link
  beginning = 3,  // of the message that the next frame ends
};

enum class LinkPhase : uint8_t { none, connecting, greeting, up };

inline constexpr size_t beginning_bytes_max = 4096;  // copied by both sides

struct ElasticConnection {
  PeerIndex index = 0;
  uint64_t serial = 0;  // differs from all that had this index before
  PeerId id;            // PeerId{}: not known yet, address is being asked
  std::string address;  // that is being asked; empty once there is a link
  std::vector<std::string> addresses;
  bool known = false, dialable = false;  // as know() said

  std::deque<SharedMessage> queue;  // not yet handed to the transport
  size_t waiting_bytes = 0;         // of these, and of those that the transport still holds; each with its overhead
  bool credit_refused = false;

  LinkPhase phase = LinkPhase::none;
  bool wants_link = false;
  bool dialled = false;          // the link that is connecting is our dial
  std::optional<Status> loss;    // of the link before, to be reported when the attempt to make another has ended
  std::optional<Status> broken;  // the link is to be closed: what came is not to be trusted
  bool said_parting = false, heard_parting = false;
  bool closing = false;  // forgotten when all is sent and both have parted
  bool over = false;     // to be forgotten at once
  bool due = false;      // to be looked at by ElasticLinks::act
  Nanos last_used = 0;
  Nanos next_redial = 0;  // a loss before then is reported as it is: a way that spoils every link is not tried without end
  Nanos parting_until = never;
  Nanos greeting_until = never;  // the other end has to have said who it is by then

  LinkNonce nonce{};  // ours
  LinkSeal out, in;
  SharedBuffer landing;  // of the frame whose bytes are coming; with the beginning of its message, if that came before
  SharedBuffer beginning;
};

}  // namespace unisono
