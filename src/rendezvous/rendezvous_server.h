// The rendezvous server as a state machine: connections and bytes are inputs, bytes are outputs, time is an argument. No
// sockets.
//
// Serves one job (inside rank 0) or any number of them (standalone). An unauthenticated peer can do little: connections, jobs,
// joiners and message sizes have limits. A connection without a hello after unauthenticated_timeout is dropped. Bytes of
// another protocol end the connection and are counted. When a connection ends, its rank is free again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "rendezvous/rendezvous_job.h"
#include "rendezvous/rendezvous_messages.h"

namespace unisono::rendezvous {

struct ServerSettings {
  PeerId identity = {};
  std::string only_job = {};                 // empty: any job
  std::string label = {};                    // names this server: "rank 0 (host a, pid 1)"
  std::function<RosterKey()> make_key = {};  // from the operating system's random source
  bool keep_verdicts = false;                // late members of a failed job get the same error (for a server of one run)
  Nanos unauthenticated_timeout = 5 * second;
  size_t connections_max = 2 * world_size_max;  // a world, and as many again for other jobs or unauthenticated peers
  size_t jobs_max = 1024;
  size_t joiners_max = 256;  // per job: the most that one re-forming admits
};

// Bytes for a connection, then perhaps its orderly end. Many connections may share one table.
struct ServerSend {
  Connection to = 0;
  std::shared_ptr<const Bytes> bytes;  // null: no bytes
  bool close = false;
};

struct ServerEvent {
  enum class Kind : uint8_t { registered, formed, failed, joiner, refused, ended };
  Kind kind = Kind::registered;
  std::string job;
  std::string text;
};

struct ServerCounters {
  uint64_t connections = 0;
  uint64_t garbage = 0;  // bytes of another protocol
  uint64_t http = 0;     // those from an HTTP client
  uint64_t silent = 0;   // no hello in time
  uint64_t crowded = 0;  // over connections_max
  uint64_t refused = 0;  // refused after a hello
};

class Server {
 public:
  explicit Server(ServerSettings settings) : settings_(std::move(settings)) {}

  // from: the other end's address, for messages. The driver numbers connections and never uses a number again.
  void connected(Connection connection, std::string from, Nanos now);
  void received(Connection connection, ByteView bytes, Nanos now);
  void disconnected(Connection connection, Nanos now);
  void woke(Nanos now);
  Nanos next_deadline() const;
  // Ends all connections and sends them this reason.
  void shut_down(const Status& why, Nanos now);

  std::vector<ServerSend> take_sends() { return std::exchange(sends_, {}); }
  std::vector<ServerEvent> take_events() { return std::exchange(events_, {}); }
  const ServerCounters& counters() const { return counters_; }
  // The job, if the server has it.
  const Job* job(const std::string& name) const;

 private:
  struct Peer {
    enum class Kind : uint8_t { unauthenticated, member, joiner, attending_member, closing };
    Kind kind = Kind::unauthenticated;
    std::string from;
    std::string job;
    PeerId id;  // joiner
    Nanos deadline = never;
    MessageStream stream;
  };

  void on_message(Connection connection, Peer& peer, const Message& message, Nanos now);
  void on_fault(Connection connection, Peer& peer);
  void on_hello(Connection connection, Peer& peer, const Hello& hello, Nanos now);
  void on_member(Connection connection, Peer& peer, const Hello& hello, Nanos now);
  void on_joiner(Connection connection, Peer& peer, const Hello& hello, Nanos now);
  void on_attender(Connection connection, Peer& peer, const Hello& hello, Nanos now);
  void on_answer(Job& job, const Answer& answer);
  void form(Job& job, Nanos now);
  void fail(Job& job, const Status& why, Nanos now);
  void announce(Job& job);
  Job* make_job(const std::string& name);
  void drop_if_idle(const std::string& name);

  void send(Connection to, Bytes bytes);
  void send_shared(Connection to, std::shared_ptr<const Bytes> bytes, bool close);
  void refuse(Connection to, const Status& why);
  void take_back_joiner(Job& job, Connection connection, const PeerId& id);
  void turn_away(Connection to, const Hello& hello, const Status& why);
  void say(ServerEvent::Kind kind, const std::string& job, std::string text) {
    events_.push_back({kind, job, std::move(text)});
  }

  ServerSettings settings_;
  std::map<Connection, Peer> peers_;
  std::map<std::string, Job> jobs_;
  std::vector<ServerSend> sends_;
  std::vector<ServerEvent> events_;
  ServerCounters counters_;
};

}  // namespace unisono::rendezvous
