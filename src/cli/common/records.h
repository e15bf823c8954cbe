// The messages between the launcher and its agents. They are records in a byte stream, which is a socket pair or the pipes of
// ssh.
//
// An agent supervises the ranks of one host (cli/launch/agent.h). It first sends agent_greeting. The launcher skips everything
// before this greeting, because a login shell may have printed it. Then the agent sends `hello`. The launcher answers with
// `start`, and later sends signals. Each record is {u8 kind, u32 rank, u32 payload bytes, payload}, little-endian. Both ends
// must have the same version; `hello` states it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "unisono/status.h"

namespace unisono::cli {

enum class RecordKind : uint8_t {
  hello = 1,    // from the agent: Hello
  start = 2,    // from the launcher: StartOrder
  signal = 3,   // from the launcher: the number of a signal (u32) for every running rank
  started = 4,  // from the agent: the pid (u32) of a rank that was started
  output = 5,   // from the agent: the stream (u8, 1 or 2) and the bytes that a rank wrote to it
  ended = 6,    // from the agent: Ended, for a rank that has ended
  refused = 7,  // from the agent: Refused, for a rank that could not be started
  done = 8,     // from the agent: all processes have ended, and no record follows
};

inline constexpr std::string_view agent_greeting = "\nunisono-agent-1\n";
inline constexpr size_t record_bytes_max =
    4u << 20;  // a start order has at most 2 MiB of arguments and environment, which is the limit of the kernel

struct Record {
  RecordKind kind = RecordKind::done;
  uint32_t rank = 0;
  Bytes payload;
};

struct Hello {
  std::string version;
  std::string host;   // the host's own name
  uint32_t pid = 0;   // pid of the agent
  uint32_t port = 0;  // the port that the agent reserved on its host for the rendezvous of the job
};

struct StartOrder {
  std::vector<std::string> program;      // argv
  std::vector<std::string> environment;  // NAME=value; these are added to the agent's environment
  std::string directory;
  uint32_t first_rank = 0;
  uint32_t rank_count = 0;  // number of ranks on this host
  bool keep_port = false;   // true for the host of rank 0: the agent keeps the port that it reserved
  bool pin = false;         // whether each rank may use only its share of the host's cores
  std::string key{};        // 64 hexadecimal digits; empty: the ranks get no key
};

struct Ended {
  bool by_signal = false;
  bool core_dumped = false;
  int32_t code = 0;  // the exit code, or the number of the signal that killed the rank
  Nanos after = 0;   // time since the rank was started
};

struct Refused {
  int32_t error = 0;  // errno
  std::string message;
};

void append_record(std::string& out, RecordKind kind, uint32_t rank, ByteView payload);
void append_output(std::string& out, uint32_t rank, uint8_t stream, std::string_view bytes);

Bytes encode(const Hello& hello);
Bytes encode(const StartOrder& order);
Bytes encode(const Ended& ended);
Bytes encode(const Refused& refused);
// Each returns false if the payload is not exactly one encoded struct of this type.
bool decode(ByteView payload, Hello& hello);
bool decode(ByteView payload, StartOrder& order);
bool decode(ByteView payload, Ended& ended);
bool decode(ByteView payload, Refused& refused);

// Cuts a byte stream into records. If a greeting is expected, preamble() keeps the last 4 KiB that came before the greeting.
class RecordReader {
 public:
  explicit RecordReader(bool expect_greeting) : greeted_(!expect_greeting) {}

  void push(std::string_view bytes);
  // Returns the next record, or nullopt if more bytes are needed. Returns Code::corrupt if the bytes are not records.
  Result<std::optional<Record>> next();
  const std::string& preamble() const { return preamble_; }

 private:
  void skip_to_greeting();
  std::string buffer_;
  size_t at_ = 0;
  std::string preamble_;
  bool greeted_ = false;
};

}  // namespace unisono::cli
