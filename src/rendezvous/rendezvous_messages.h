// The messages that processes exchange with the rendezvous server. The functions convert bytes to values and back. Only
// MessageStream has a state.
//
// A message consists of an envelope of 16 bytes and a payload. The envelope has the magic number, the protocol version, the
// kind, the number of bytes in the payload, and a CRC-32C of envelope and payload. Three things never change: the envelope, the
// message `refused`, and the first four fields of `hello`. Therefore two processes of different versions can still report that
// their versions differ. All limits are checked before anything is stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "rendezvous/roster.h"
#include "unisono/status.h"
#include "unisono/version.h"
#include "wire/peer_id.h"

namespace unisono::rendezvous {

inline constexpr uint32_t message_magic = 0x52494E55;  // In memory, these bytes are "UNIR".
inline constexpr uint16_t protocol_version = 3;
inline constexpr const char* library_version = UNISONO_VERSION;
inline constexpr size_t envelope_bytes = 16;
inline constexpr size_t version_bytes_max = 64;
inline constexpr size_t job_bytes_max = 255;
inline constexpr size_t transport_bytes_max = 16;
inline constexpr size_t text_bytes_max = 64 << 10;
// A hello may not be larger, because it comes from a peer that has not been authenticated.
inline constexpr size_t hello_bytes_max = 16 << 10;
inline constexpr size_t message_bytes_max = roster_bytes_max + 1024;  // A message from a registered process may not be larger.

enum class Kind : uint16_t {
  hello = 1,        // process -> server: the first message of a connection. The attending rank sends it again after each epoch.
  refused = 2,      // server -> process: a Status. The server closes the connection after it.
  welcome = 3,      // server -> process: the process is registered and must wait
  table = 4,        // server -> process: the roster
  joiner = 5,       // server -> attending rank: a process wants to join
  joiner_gone = 6,  // server -> attending rank: a joiner has gone away
  answer = 7,       // attending rank -> server: the new roster for a joiner, or a Status
  joined = 8,       // member -> server: its links are up and its join has succeeded
  // member -> server: its join has failed, before or after it got the table. Server -> attending rank: so has another's
  failed = 9,
};

enum class Role : uint8_t {
  member = 0,           // one of the world_size ranks that form a new group
  joiner = 1,           // a process that wants to join a running group
  attending_member = 2  // the member of a running group that answers joiners
};

struct Hello {
  std::string version = library_version;
  std::string host;
  int32_t pid = 0;
  std::string job;
  Role role = Role::member;
  uint32_t world_size = 0;    // used by role member
  uint32_t remaining_ms = 0;  // how long the process will wait; 0: as long as it takes (attending_member)
  std::string transport;      // one of the names in transport_table
  uint32_t epoch = 0;         // used by role attending_member: the epoch of its roster
  RosterKey key{};            // used by role attending_member: the key of its roster
  MemberRecord member;
  uint16_t protocol = protocol_version;  // the protocol version in the envelope
};

struct Welcome {
  PeerId server;  // The identity of the server. Rank 0 uses it to check whether it has reached its own server.
  std::string version;
};

struct Answer {
  PeerId joiner;
  Status status;  // If it is ok, the roster contains the joiner.
  Roster roster;
};

Bytes encode(const Hello& hello);
Bytes encode(const Welcome& welcome);
// `protocol` 0: for an unauthenticated peer, which learns no version.
Bytes encode_refused(const Status& status, uint16_t protocol = protocol_version);
Bytes encode_table(const Roster& roster);
Bytes encode_joiner(const MemberRecord& member);
Bytes encode_joiner_gone(const PeerId& id);
Bytes encode(const Answer& answer);
Bytes encode_joined();
Bytes encode_failed(const Status& status);

// These functions decode a payload, which comes without its envelope. They return `corrupt`, with the name of the field, if a
// value is out of range or if there are bytes left over. If a hello has another protocol version, only those of its fields are
// read that never change.
Result<Hello> decode_hello(ByteView payload, uint16_t protocol);
Result<Welcome> decode_welcome(ByteView payload);
// Returns the status that the other side sent, or `corrupt`; never ok. It decodes `refused` and `failed`.
Status decode_refused(ByteView payload);
Result<MemberRecord> decode_joiner(ByteView payload);
Result<PeerId> decode_joiner_gone(ByteView payload);
Result<Answer> decode_answer(ByteView payload);

// Says how a stream of bytes violates the protocol.
enum class StreamFault : uint8_t { none = 0, magic, size, checksum, kind };
const char* name(StreamFault fault);

struct Message {
  uint16_t protocol = 0;
  Kind kind = Kind::hello;
  Bytes payload;
};

// Cuts a stream of bytes into messages. After a fault, it returns no more messages.
class MessageStream {
 public:
  void append(ByteView bytes);
  // Returns the next message. Returns nothing if more bytes are needed, or after a fault. It is a fault if a payload has more
  // than `limit` bytes.
  std::optional<Message> next(size_t limit);
  StreamFault fault() const { return fault_; }
  // Returns the first bytes that were received. They help to identify the program at the other end.
  ByteView start() const { return buffer_; }

 private:
  Bytes buffer_;
  size_t at_ = 0;
  StreamFault fault_ = StreamFault::none;
};

// Guesses which program sent bytes of another protocol: "an HTTP server", "an SSH server", …
std::string guess_program(ByteView first_bytes);

}  // namespace unisono::rendezvous
