// How two processes of one host meet: a listening unix socket with a name made of the PeerId, one hello each way, and with it
// the descriptors of the memory and of the doorbell.
//
// The socket is in the abstract name space: no file that could stay behind, and nobody outside the network name space can
// reach it. That is why the host part of an endpoint names the boot and the network name space. The connection stays open
// for the life of the link: its end is how a death is noticed.
// Messages keep their borders (SOCK_SEQPACKET), so a hello arrives whole or not at all.
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

// Why a connection is not taken; sent back, so that the other side can say it. The numbers are part of the format.
enum class Refusal : uint32_t {
  none = 0,
  malformed = 1,
  version = 2,
  other_job = 3,
  other_process = 4,  // meant for somebody else
  unknown_peer = 5,   // nobody added this peer in time
  duplicate = 6,      // there is such a link
  memory = 7,         // the memory that was passed is not as it must be
  busy = 8,           // too many connections wait
};
const char* name(Refusal refusal);

// The first message in each direction. A refusal carries nothing else of use, in particular no key.
struct Hello {
  uint64_t magic = hello_magic;
  uint32_t version = hello_version;
  Refusal refusal = Refusal::none;
  JobKey key{};
  PeerId from;
  PeerId to;
  Geometry geometry;
  uint32_t region = 0;    // of the sender's arena, for the receiver of this
  uint32_t checksum = 0;  // CRC-32C of the bytes before it
};
static_assert(sizeof(Hello) == 104);

// A checked hello and what came with it.
struct Arrival {
  UniqueFd socket;
  Hello hello;
  UniqueFd memory;
  UniqueFd bell;
};

// "<boot id>-<network name space>": equal for two processes exactly if they can meet.
Result<std::string> host_id();
// attempt: names of one process may be taken by another transport with the same id.
std::string socket_name(const PeerId& id, uint32_t attempt);
void seal_hello(Hello& hello);

// unavailable if the name cannot be had.
Result<UniqueFd> listen_at(const std::string& name);
// Empty descriptor: the listener is busy, try again. unavailable: nobody is there.
Result<UniqueFd> dial(const std::string& name);
Status send_hello(int socket, const Hello& hello, int memory, int bell);
void send_refusal(int socket, Refusal refusal);
enum class Incoming : uint8_t { waiting, complete, refused, ended, malformed };
// Takes one message. refused: arrival.hello.refusal says why; malformed: refusal says what to answer.
Incoming receive_hello(Arrival& arrival, Refusal& refusal);

// Readable when the process at the other end has died, even if children of it still hold its sockets; empty where the kernel
// or the process name space does not allow it. And its number for messages; 0 if not visible from here.
UniqueFd process_handle(int socket);
int process_number(int socket);

// The listening side: takes connections, reads hellos, turns unauthenticated peers away, keeps good ones until they are asked
// for.
class Reception {
 public:
  static Result<Reception> make(const PeerId& self);

  const std::string& name() const { return name_; }  // of the listening socket
  int handle() const { return epoll_.get(); }        // readable when step would do something
  // Call when handle() is readable and whenever next_deadline() has passed. key: null before the job is known.
  void step(Nanos now, const JobKey* key);
  // The process whose hello has come, if it has; null key or wrong key: none.
  std::optional<Arrival> take(const PeerId& from, const JobKey& key);
  Nanos next_deadline() const;
  // For hellos of processes that have a link already.
  void refuse_duplicates(const PeerId& from);
  uint64_t refused_count() const { return refused_; }

 private:
  struct Unauthenticated {
    Arrival arrival;
    Nanos deadline = 0;
    bool greeted = false;  // its hello is complete and not wrong so far
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
