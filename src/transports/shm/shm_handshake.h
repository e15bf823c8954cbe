// How two processes of one host connect: through a listening Unix socket, whose name is made from the listener's PeerId. Each
// process sends one hello, together with the descriptor of its memory.
//
// The socket is in the abstract name space, so no file can stay behind. Only processes in the same network name space can reach
// it. For this reason the host part of an endpoint contains the boot id and the network name space. The connection stays open
// as long as the link: it wakes the peer, and its end shows that the peer has died. SOCK_SEQPACKET keeps message boundaries, so
// a hello arrives as a whole or not at all.
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

inline constexpr uint64_t hello_magic = 0x4D48534F494E5531;  // the bytes "1UNIOSHM" in memory
inline constexpr uint32_t hello_version = 2;
inline constexpr Nanos hello_wait = 5 * second;     // An accepted connection must send its hello within this time.
inline constexpr Nanos arrival_wait = 10 * second;  // A valid hello waits this long for add_peer or set_job.
inline constexpr size_t unauthenticated_max = 64;

// Why a connection is refused. The reason is sent to the refused peer, which shows it in its error. The numbers are part of the
// format.
enum class Refusal : uint32_t {
  none = 0,
  malformed = 1,
  version = 2,
  other_job = 3,
  other_process = 4,  // the hello is meant for another process
  unknown_peer = 5,   // the sender was not added as a peer in time
  duplicate = 6,      // a link to this process exists already
  memory = 7,         // the memory that came with the hello has the wrong size or the wrong seals
  busy = 8,           // too many connections are waiting
  descriptors = 9,    // the receiver of the hello could not take its descriptor, because it has too many open
};
const char* name(Refusal refusal);
// Returns an error that names the limit of open descriptors that this process has reached. `what` says what failed.
Status no_descriptors(const std::string& what, int error);
// Returns the error for a hello whose descriptor the kernel cut off, because no number was free for it.
Status truncated_hello();

// The first message in each direction: a hello or a refusal. In a refusal, only magic, version and refusal have a meaning. A
// refusal never contains the key.
struct Hello {
  uint64_t magic = hello_magic;
  uint32_t version = hello_version;
  Refusal refusal = Refusal::none;
  JobKey key{};
  PeerId from;
  PeerId to;
  Geometry geometry;
  uint32_t region = 0;    // The receiver of the hello may use this region of the sender's arena.
  uint32_t checksum = 0;  // CRC-32C of all bytes before this member
};
static_assert(sizeof(Hello) == 104);

// A hello that has been checked, and the descriptor that came with it.
struct Arrival {
  UniqueFd socket;
  Hello hello;
  UniqueFd memory;
};

// Returns "<boot id>-<network name space>". Two processes can connect if and only if this string is the same in both.
Result<std::string> host_id();
// Returns the socket name to try at this attempt (a number). Each attempt has another name, because another transport with the
// same id may have taken the names of earlier attempts.
std::string socket_name(const PeerId& id, uint32_t attempt);
void seal_hello(Hello& hello);

// Listens at the name. Returns the error unavailable if the name is taken.
Result<UniqueFd> listen_at(const std::string& name);
// Connects to the name. Returns an empty descriptor if the listener is busy; then try again. Returns the error unavailable if
// nobody listens.
Result<UniqueFd> dial(const std::string& name);
// Returns true if the socket that listens at the other end was opened by the user of this process.
bool is_of_this_user(int socket);
Status send_hello(int socket, const Hello& hello, int memory);
void send_refusal(int socket, Refusal refusal);
enum class HelloState : uint8_t { waiting, complete, refused, ended, malformed };
// Receives one message. If the result is `refused`, arrival.hello.refusal says why. If the result is `malformed`, send
// `refusal` as the answer. If `refusal` is `descriptors`, the hello may be good: this process could not take what came with it.
HelloState receive_hello(Arrival& arrival, Refusal& refusal);

// The listening side of the handshake. It accepts connections, reads hellos and refuses unauthenticated peers. It keeps good
// connections until the transport takes them.
class Acceptor {
 public:
  static Result<Acceptor> make(const PeerId& self);

  const std::string& name() const { return name_; }  // name of the listening socket
  // A descriptor that is readable when step() has work. It is negative after close().
  int handle() const { return epoll_.get(); }
  // Call this when handle() is readable, and whenever next_deadline() has passed. `key` is null as long as the job is not
  // known. Returns ok, or an error if a connection could not be taken because no descriptor was free.
  Status step(Nanos now, const JobKey* key);
  // If a hello with the right key has come from the process `from`, returns its connection.
  std::optional<Arrival> take(const PeerId& from, const JobKey& key);
  Nanos next_deadline() const;
  // Refuses the waiting hellos of the process `from`. Call this if a link to that process exists already.
  void refuse_duplicates(const PeerId& from);
  uint64_t refused_count() const { return refused_; }
  // Stops listening, and closes the connections that nobody has taken. Afterwards, step() and take() do nothing.
  void close();

 private:
  struct PendingConnection {
    Arrival arrival;
    Nanos deadline = 0;
    bool hello_received = false;  // a complete and valid hello has arrived
    bool gone = false;
  };
  Status accept_some(Nanos now);
  Status step_pending(PendingConnection& pending, Nanos now, const JobKey* key);
  void listen_for(uint32_t events);
  void refuse(PendingConnection& pending, Refusal why);
  bool watch(int fd, uint64_t tag);

  PeerId self_;
  std::string name_;
  UniqueFd epoll_;
  UniqueFd listener_;
  std::vector<PendingConnection> pending_;
  uint64_t refused_ = 0;
  Nanos accept_again_ = never;  // when accepting is tried again after no descriptor was free; never: that did not happen
};

}  // namespace unisono::shm
