// How two processes of one host connect: through a listening unix socket whose name comes from the PeerId. Each side sends one
// hello, and with it the descriptors of its memory and of its doorbell.
//
// The socket is in the abstract name space: no file can stay behind, and no process outside the network name space can reach
// it. So the host part of an endpoint names the boot and the network name space. The connection stays open for the life of the
// link, because its end shows the death of the peer. Messages keep their borders (SOCK_SEQPACKET), so a hello arrives whole or
// not at all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transports/connector.h"
#include "transports/shm/shm_arena.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono::shm {

inline constexpr uint64_t hello_magic = 0x4D48534F494E5531;  // "1UNIOSHM" in memory order
inline constexpr uint32_t hello_version = 1;
inline constexpr Nanos hello_wait = 5 * second;     // from the connection to its hello
inline constexpr Nanos arrival_wait = 10 * second;  // from a good hello to add_peer, or to set_job
inline constexpr size_t unauthenticated_max = 64;

// Why a connection is refused. It is sent back, so that the other side can report it. The numbers are part of the format.
enum class Refusal : uint32_t {
  none = 0,
  malformed = 1,
  version = 2,
  other_job = 3,
  other_process = 4,  // meant for another process
  unknown_peer = 5,   // nobody added this peer in time
  duplicate = 6,      // such a link exists
  memory = 7,         // the memory that was passed has the wrong size or seals
  busy = 8,           // too many connections wait
};
const char* name(Refusal refusal);

// The first message in each direction. A refusal carries nothing else of use; in particular it has no key.
struct Hello {
  uint64_t magic = hello_magic;
  uint32_t version = hello_version;
  Refusal refusal = Refusal::none;
  JobKey key{};
  PeerId from;
  PeerId to;
  Geometry geometry;
  uint32_t region = 0;    // the region of the sender's arena for this receiver
  uint32_t checksum = 0;  // CRC-32C of the bytes before it
};
static_assert(sizeof(Hello) == 104);

// A checked hello with the descriptors that came with it.
struct Arrival {
  UniqueFd socket;
  Hello hello;
  UniqueFd memory;
  UniqueFd bell;
};

// "<boot id>-<network name space>": equal for two processes exactly if they can connect.
Result<std::string> host_id();
// The name for this attempt; another transport with the same id may have taken the earlier ones.
std::string socket_name(const PeerId& id, uint32_t attempt);
void seal_hello(Hello& hello);

// Returns unavailable if the name is taken.
Result<UniqueFd> listen_at(const std::string& name);
// An empty descriptor means that the listener is busy: try again. Returns unavailable if nobody listens there.
Result<UniqueFd> dial(const std::string& name);
Status send_hello(int socket, const Hello& hello, int memory, int bell);
void send_refusal(int socket, Refusal refusal);
enum class Incoming : uint8_t { waiting, complete, refused, ended, malformed };
// Receives one message. refused: arrival.hello.refusal says why. malformed: `refusal` is the answer to send.
Incoming receive_hello(Arrival& arrival, Refusal& refusal);

// A descriptor that becomes readable when the process at the other end has died, even if its children still hold its sockets.
// Empty where the kernel or the process name space does not allow it.
// process_number is that process's number for messages; 0 if it is not visible from here.
UniqueFd process_handle(int socket);
int process_number(int socket);

// The listening side: accepts connections, reads hellos, refuses unauthenticated peers, and keeps good connections until the
// transport takes them.
class Reception {
 public:
  static Result<Reception> make(const PeerId& self);

  const std::string& name() const { return name_; }  // of the listening socket
  int handle() const { return epoll_.get(); }        // readable when step has work
  // Call when handle() is readable and whenever next_deadline() has passed. key: null while the job is not known.
  void step(Nanos now, const JobKey* key);
  // The connection of this process, if its hello with the right key has come.
  std::optional<Arrival> take(const PeerId& from, const JobKey& key);
  Nanos next_deadline() const;
  // Refuses further hellos of a process that has a link already.
  void refuse_duplicates(const PeerId& from);
  uint64_t refused_count() const { return refused_; }

 private:
  struct Unauthenticated {
    Arrival arrival;
    Nanos deadline = 0;
    bool greeted = false;  // its hello is complete and has no fault so far
    bool gone = false;
  };
  void accept_some(Nanos now);
  void step_unauthenticated(Unauthenticated& unauthenticated, Nanos now, const JobKey* key);
  void refuse(Unauthenticated& unauthenticated, Refusal why);
  bool watch(int fd, uint64_t tag);

  PeerId self_;
  std::string name_;
  UniqueFd epoll_;
  UniqueFd listener_;
  std::vector<Unauthenticated> unauthenticated_;
  uint64_t refused_ = 0;
};

}  // namespace unisono::shm
