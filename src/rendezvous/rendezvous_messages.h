// Messages between processes and the rendezvous server: bytes <-> values. The only state is the stream buffer.
//
// Every message has 16 bytes of envelope (magic, protocol version, kind, payload bytes, CRC-32C of envelope and payload) and a
// payload. The envelope, `refused` and the first four fields of `hello` never change, so that processes of different versions
// can still report the difference. Limits are checked before anything is stored.
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
inline constexpr size_t hello_bytes_max = 16 << 10;                   // from an unauthenticated peer
inline constexpr size_t message_bytes_max = roster_bytes_max + 1024;  // from a registered process

enum class Kind : uint16_t {
  hello = 1,        // process -> server: first message of a connection; the attending rank repeats it after each epoch
  refused = 2,      // server -> process: a Status; the connection ends
  welcome = 3,      // server -> process: registered, please wait
  table = 4,        // server -> process: the roster
  joiner = 5,       // server -> attending rank: a process wants to join
  joiner_gone = 6,  // server -> attending rank: that process does not want to any more
  answer = 7,       // attending rank -> server: the roster for a joiner, or a Status
};

enum class Role : uint8_t {
  member = 0,           // one of world_size ranks that form a new group
  joiner = 1,           // waits for a running group
  attending_member = 2  // the member of a running group that answers joiners
};

struct Hello {
  std::string version = library_version;
  std::string host;
  int32_t pid = 0;
  std::string job;
  Role role = Role::member;
  uint32_t world_size = 0;    // member
  uint32_t remaining_ms = 0;  // how long the process will wait; 0 = for ever (attending_member)
  std::string transport;      // a name of transport_table
  uint32_t epoch = 0;         // attending_member: from its roster
  RosterKey key{};            // attending_member: from its roster
  MemberRecord member;
  uint16_t protocol = protocol_version;  // from the envelope
};

struct Welcome {
  PeerId server;  // lets rank 0 see whether it reached its own server
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

// Decode payloads (without envelope). Return corrupt, with the field's name, if a value is out of range or bytes are left over.
// For another protocol version, only the unchanging fields are read.
Result<Hello> decode_hello(ByteView payload, uint16_t protocol);
Result<Welcome> decode_welcome(ByteView payload);
Status decode_refused(ByteView payload);  // never ok: the server's refusal, or corrupt
Result<MemberRecord> decode_joiner(ByteView payload);
Result<PeerId> decode_joiner_gone(ByteView payload);
Result<Answer> decode_answer(ByteView payload);

// Why a stream does not follow the protocol.
enum class StreamFault : uint8_t { none = 0, magic, size, checksum, kind };
const char* name(StreamFault fault);

struct Message {
  uint16_t protocol = 0;
  Kind kind = Kind::hello;
  Bytes payload;
};

// Cuts a byte stream into messages. After a fault it returns no more messages.
class MessageStream {
 public:
  void append(ByteView bytes);
  // The next whole message, with a payload of at most `limit` bytes. Nothing if more bytes are needed or fault() is set.
  std::optional<Message> next(size_t limit);
  StreamFault fault() const { return fault_; }
  // The first bytes received, to identify the program at the other end.
  ByteView start() const { return buffer_; }

 private:
  Bytes buffer_;
  size_t at_ = 0;
  StreamFault fault_ = StreamFault::none;
};

// A guess at the program that sent bytes of another protocol: "an HTTP server", "an SSH server", …
std::string guess_program(ByteView first_bytes);

}  // namespace unisono::rendezvous
