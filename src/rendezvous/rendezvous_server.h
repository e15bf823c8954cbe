// The rendezvous server, as a state machine without sockets. Its inputs are connections, received bytes and the time; its
// outputs are bytes to send.
//
// Inside rank 0, it serves one job. As a standalone server, it serves any number of jobs. The numbers of connections, jobs and
// joiners and the sizes of messages are limited, so a peer that is not authenticated can do little harm. If no hello arrives on
// a connection within `unauthenticated_timeout`, the connection is dropped. If bytes of another protocol arrive, the connection
// ends and is counted. When a connection ends, its rank is free again.
//
// A server may have keys. The driver proves them by TLS, and says which key a connection has shown. Then a peer without one of
// the keys learns nothing and changes nothing; and jobs of different keys are apart, even if they have the same name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "rendezvous/rendezvous_job.h"
#include "rendezvous/rendezvous_messages.h"
#include "rendezvous/rendezvous_refusal_log.h"

namespace unisono::rendezvous {

struct ServerSettings {
  PeerId identity = {};
  size_t key_count = 0;                      // 0: the server takes processes in clear
  std::string only_job = {};                 // empty: the server accepts all jobs
  std::string label = {};                    // describes this server in messages: "rank 0 (host a, pid 1)"
  std::function<RosterKey()> make_key = {};  // It must use the operating system's source of random numbers.
  // true: if a job has failed, members that come later get the job's error. This is for a server that serves a single run.
  bool keep_failures = false;
  Nanos unauthenticated_timeout = 5 * second;
  // This is enough for all ranks of the largest world, and for as many other connections.
  size_t connections_max = 2 * world_size_max;
  size_t jobs_max = 1024;
  size_t joiners_max = 256;  // A job may have this many joiners. One re-forming does not admit more.
};

// Bytes that must be sent on the connection `to`. If `close` is set, the connection must be closed afterwards. The bytes are
// shared, because all members of a job receive the same roster.
struct ServerSend {
  Connection to = 0;
  std::shared_ptr<const Bytes> bytes;  // null: there is nothing to send
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
  uint64_t garbage = 0;          // connections on which malformed bytes or bytes of another protocol arrived, except HTTP
  uint64_t http = 0;             // connections that came from an HTTP client
  uint64_t silent = 0;           // connections on which no hello arrived in time
  uint64_t crowded = 0;          // connections that were too many (connections_max)
  uint64_t refused = 0;          // processes that were refused after their hello
  uint64_t unauthenticated = 0;  // connections whose peer has another key than the server, or one of them has none
};

class Server {
 public:
  explicit Server(ServerSettings settings) : settings_(std::move(settings)) {}

  // The key with this number, and the name that a process gave. Processes that give the same name with different keys belong
  // to different jobs.
  struct JobId {
    size_t key = 0;
    std::string name;
    friend auto operator<=>(const JobId&, const JobId&) = default;
  };

  // Tells the server about a new connection. `from` is the address of the peer, for use in messages. The driver (the owner of
  // the sockets) must never use a connection number again.
  void connected(Connection connection, std::string from, Nanos now);
  // The peer has shown that it has the key with this number. What it sends from now on has arrived through TLS.
  void authenticated(Connection connection, size_t key);
  // The peer has begun TLS, but not with a key of this server.
  void rejected(Connection connection, Nanos now);
  // Returns true if a new connection would be one too many. The driver then closes the oldest connection that may be closed:
  // one that has not said hello, or was refused before that. So idle connections cannot keep out the processes of a job.
  bool is_crowded() const { return peers_.size() >= settings_.connections_max; }
  std::optional<Connection> oldest_unauthenticated() const;
  void received(Connection connection, ByteView bytes, Nanos now);
  void disconnected(Connection connection, Nanos now);
  void woke(Nanos now);
  Nanos next_deadline() const;
  // Ends the job with this error, unless its group has formed: all its members get the error, also those that come later.
  void fail_job(const std::string& name, const Status& why, Nanos now);
  // Sends the reason on all connections and closes them.
  void shut_down(const Status& why, Nanos now);

  std::vector<ServerSend> take_sends() { return std::exchange(sends_, {}); }
  std::vector<ServerEvent> take_events() { return std::exchange(events_, {}); }
  const ServerCounters& counters() const { return counters_; }
  // Returns a job. Returns null if the server does not have it.
  const Job* job(const std::string& name, size_t key = 0) const;

 private:
  struct Peer {
    enum class Kind : uint8_t { unauthenticated, member, linking, joiner, attending_member, closing };
    Kind kind = Kind::unauthenticated;
    std::string from;
    bool has_key = false;   // true: the peer has shown the key job.key
    bool is_known = false;  // true: the peer has said hello
    JobId job;              // the name is empty until the peer has a part in the job
    PeerId id;              // used by joiners
    // Used by members that have the table, until their join has ended: which forming of a group they belong to (0: none), and
    // what they are called in messages.
    uint64_t formation = 0;
    std::string label;
    Nanos deadline = never;
    MessageStream stream;
  };

  void on_message(Connection connection, Peer& peer, const Message& message, Nanos now);
  void on_clear_message(Connection connection, Peer& peer, const Message& message, Nanos now);
  void on_fault(Connection connection, Peer& peer, Nanos now);
  void on_silence(Connection connection, Peer& peer, Nanos now);
  void refuse_unauthenticated(Connection connection, Peer& peer, const std::string& text, const char* answer, Nanos now);
  void report_refusal(const std::string& text, Nanos now);
  std::string refusals_text() const;
  bool may_learn(const Peer& peer) const { return settings_.key_count == 0 || peer.has_key; }
  void on_hello(Connection connection, Peer& peer, const Hello& hello, Nanos now);
  void on_member(Connection connection, Peer& peer, const Hello& hello, Nanos now);
  void on_joiner(Connection connection, Peer& peer, const Hello& hello, Nanos now);
  void on_attender(Connection connection, Peer& peer, const Hello& hello, Nanos now);
  void on_answer(Job& job, const Answer& answer);
  void form(Job& job, Nanos now);
  void fail(Job& job, const Status& why, Nanos now);
  void on_member_failed(Connection connection, const JobId& id, const Message& message, Nanos now);
  void on_join_ended(Connection connection, Peer& peer, const Message& message);
  void end_formation(const Peer& by, const Status& why);
  void announce(Job& job);
  Job* make_job(const JobId& id);
  void drop_if_idle(const JobId& id);

  void send(Connection to, Bytes bytes);
  void send_shared(Connection to, std::shared_ptr<const Bytes> bytes, bool close);
  void refuse(Connection to, const Status& why);
  void withdraw_joiner(Job& job, Connection connection, const PeerId& id);
  // `note` says in a few words why; the error of the job contains it.
  void refuse_process(Connection to, const Hello& hello, const Status& why, const std::string& note = {});
  void report_event(ServerEvent::Kind kind, const JobId& job, std::string text);

  ServerSettings settings_;
  std::map<Connection, Peer> peers_;
  std::map<JobId, Job> jobs_;
  std::vector<ServerSend> sends_;
  std::vector<ServerEvent> events_;
  ServerCounters counters_;
  RefusalLog refusals_, other_programs_;
  uint64_t formations_ = 0;  // how many groups have got their tables
};

}  // namespace unisono::rendezvous
