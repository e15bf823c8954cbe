// The messages between the launcher and its agents: records over a byte stream (a socket pair, or the pipes of ssh).
//
// An agent supervises the ranks of one host (cli/launch/agent.h). It greets with agent_greeting, so that the
// launcher can skip what a login shell prints before it, then sends hello; the launcher answers with start, later with signals.
// Each record is {u8 kind, u32 rank, u32 payload bytes, payload}, little-endian. Both ends are the same version: hello says
// which.
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
  hello = 1,    // agent: Hello
  start = 2,    // launcher: StartOrder
  signal = 3,   // launcher: u32 signal number, for every rank that runs
  started = 4,  // agent, of a rank: u32 pid
  output = 5,   // agent, of a rank: u8 stream (1 or 2), bytes
  ended = 6,    // agent, of a rank: Ended
  refused = 7,  // agent, of a rank that could not be started: Refused
  done = 8,     // agent: every process is gone, nothing follows
};

inline constexpr std::string_view agent_greeting = "\nunisono-agent-1\n";
inline constexpr size_t record_bytes_max =
    4u << 20;  // a start order holds at most the kernel's 2 MiB of arguments and environment

struct Record {
  RecordKind kind = RecordKind::done;
  uint32_t rank = 0;
  Bytes payload;
};

struct Hello {
  std::string version;
  std::string host;   // what the host calls itself
  uint32_t pid = 0;   // of the agent
  uint32_t port = 0;  // held on this host for the job's rendezvous
};

struct StartOrder {
  std::vector<std::string> program;      // argv
  std::vector<std::string> environment;  // NAME=value, on top of the agent's own environment
  std::string directory;
  uint32_t first_rank = 0;
  uint32_t rank_count = 0;  // local world size
  bool keep_port = false;   // rank 0's host keeps the held port
  bool pin = false;         // each rank gets its share of the host's cores
};

struct Ended {
  bool by_signal = false;
  bool core_dumped = false;
  int32_t code = 0;  // exit code, or signal number
  Nanos after = 0;   // since the rank was started
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
// False if the payload is not exactly one of these.
bool decode(ByteView payload, Hello& hello);
bool decode(ByteView payload, StartOrder& order);
bool decode(ByteView payload, Ended& ended);
bool decode(ByteView payload, Refused& refused);

// Cuts a byte stream into records. With a greeting expected, what comes before it is kept in preamble() (its last 4 KiB).
class RecordReader {
 public:
  explicit RecordReader(bool expect_greeting) : greeted_(!expect_greeting) {}

  void push(std::string_view bytes);
  // The next whole record; nothing if more bytes are needed; corrupt if these are not records.
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
