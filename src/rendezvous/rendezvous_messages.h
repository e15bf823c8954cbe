// What processes and the rendezvous server say to each other: bytes <-> values. No state but the stream buffer.
//
// Every message is 16 bytes of envelope (magic, protocol version, kind, payload bytes, CRC-32C of envelope and payload)
// and a payload. Envelope, `refused` and the first four fields of `hello` never change, so that processes of different
// versions can still tell each other so. Limits are checked before anything is stored.
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

inline constexpr uint32_t message_magic = 0x52494E55;  // "UNIR" in memory order
inline constexpr uint16_t protocol_version = 2;
inline constexpr const char* library_version = UNISONO_VERSION;
inline constexpr size_t envelope_bytes = 16;
inline constexpr size_t version_bytes_max = 64;
inline constexpr size_t job_bytes_max = 255;
inline constexpr size_t transport_bytes_max = 16;
inline constexpr size_t text_bytes_max = 64 << 10;
inline constexpr size_t hello_bytes_max = 16 << 10;                   // from unauthenticated peers
inline constexpr size_t message_bytes_max = roster_bytes_max + 1024;  // from those who have registered

enum class Kind : uint16_t {
  hello = 1,        // process -> server: the first message of a connection; again by an attending rank after each epoch
  refused = 2,      // server -> process: a Status; the connection ends
  welcome = 3,      // server -> process: registered, wait
  table = 4,        // server -> process: the roster
  joiner = 5,       // server -> attending rank: a process wants to join
  joiner_gone = 6,  // server -> attending rank: it does not any more
  answer = 7,       // attending rank -> server: the roster for a joiner, or a Status
};

enum class Role : uint8_t {
  member = 0,   // one of world_size ranks that form a new group
  joiner = 1,   // waits for a running group
  attender = 2  // a member of a running group, to be told of joiners
};

struct Hello {
  std::string version = library_version;
  std::string host;
  int32_t pid = 0;
  std::string job;
  Role role = Role::member;
  uint32_t world_size = 0;    // member
  uint32_t remaining_ms = 0;  // how long the process is going to wait; 0 = for ever (attender)
  std::string transport;      // a name of transport_table
  uint32_t epoch = 0;         // attender: of its roster
  RosterKey key{};            // attender: of its roster
  MemberRecord member;
  uint16_t protocol = protocol_version;  // from the envelope
};

struct Welcome {
  PeerId server;  // identity of the server, so that rank 0 sees whether it reached its own
  std::string version;
};

struct Answer {
  PeerId joiner;
  Status status;  // ok: roster holds the joiner
  Roster roster;
};

Bytes encode(const Hello& hello);
Bytes encode(const Welcome& welcome);
Bytes encode_refused(const Status& status);
Bytes encode_table(const Roster& roster);
Bytes encode_joiner(const MemberRecord& member);
Bytes encode_joiner_gone(const PeerId& id);
Bytes encode(const Answer& answer);

// Payloads (without envelope) back to values; corrupt, with the field, if anything is out of range or left over.
// Of another protocol version only the unchanging fields are read.
Result<Hello> decode_hello(ByteView payload, uint16_t protocol);
Result<Welcome> decode_welcome(ByteView payload);
Status decode_refused(ByteView payload);  // never ok: what the server said, or corrupt
Result<MemberRecord> decode_joiner(ByteView payload);
Result<PeerId> decode_joiner_gone(ByteView payload);
Result<Answer> decode_answer(ByteView payload);

// Why a stream is not ours.
enum class StreamFault : uint8_t { none = 0, magic, size, checksum, kind };
const char* name(StreamFault fault);

struct Message {
  uint16_t protocol = 0;
  Kind kind = Kind::hello;
  Bytes payload;
};

// Cuts a byte stream into messages. After a fault nothing more comes out.
class MessageStream {
 public:
  void append(ByteView bytes);
  // The next whole message with a payload of at most limit bytes; nothing if more bytes are needed or fault() is set.
  std::optional<Message> next(size_t limit);
  StreamFault fault() const { return fault_; }
  // The first bytes received, for naming who is at the other end.
  ByteView start() const { return buffer_; }

 private:
  Bytes buffer_;
  size_t at_ = 0;
  StreamFault fault_ = StreamFault::none;
};

// A guess at the program behind bytes that are not ours: "an HTTP server", "an SSH server", …
std::string guess_program(ByteView first_bytes);

}  // namespace unisono::rendezvous
