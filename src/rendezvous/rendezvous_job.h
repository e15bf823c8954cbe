// One job at the rendezvous: who has registered, whether they ask for the same thing, and what to say if they do not.
//
// A job is forming until all ranks of its world are there; then the server makes the roster and the job is running for as
// long as an attending rank stays connected. Pure bookkeeping: no bytes, no sockets; the server decides when to ask.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "rendezvous/rendezvous_messages.h"
#include "rendezvous/roster.h"

namespace unisono::rendezvous {

using Connection = uint64_t;

struct Registration {
  Connection connection = 0;
  Hello hello;
  Nanos deadline = never;
};

struct Joiner {
  Connection connection = 0;
  Hello hello;
  Nanos deadline = never;
  bool announced = false;  // to the attending rank
};

// What a hello does to a forming job.
struct Verdict {
  enum class Kind : uint8_t { accept, replace, refuse, fail_all };
  Kind kind = Kind::accept;
  Status why;               // refuse, fail_all
  Connection replaced = 0;  // replace: the same process's older connection
};

class Job {
 public:
  enum class Phase : uint8_t { idle, forming, running, failed };

  explicit Job(std::string name) : name_(std::move(name)) {}

  // Whether this hello (of role member) may take its rank. Changes nothing.
  Verdict judge(const Hello& hello) const;
  // Takes the rank that judge() allowed.
  void add(Connection connection, const Hello& hello, Nanos now);
  // The connection is gone: its rank is free again. True if it held one.
  bool remove(Connection connection);
  bool complete() const { return !members_.empty() && members_.size() == world_size_; }
  // The first roster of a complete job.
  Roster form(const RosterKey& key) const;
  // "job 'x': ranks 3, 5 of 8 are missing after 60.0 s; here: rank 0 (host a, pid 1), …; turned away: …"
  Status missing(Nanos now) const;
  // Forming: the first member to give up ends it, because without that one the world cannot become complete in time.
  Nanos deadline() const;
  // A process that was turned away, to be named if ranks stay missing. Bounded.
  void note(std::string what);

  const std::string& name() const { return name_; }
  Phase phase = Phase::idle;
  Nanos since = 0;          // of the first registration, or of the forming
  Status verdict;           // failed
  uint32_t told = 0;        // failed: how many processes have been told
  Connection attender = 0;  // running: who is told of joiners; 0 = nobody
  Hello attending;          // running: what it said
  std::map<PeerId, Joiner> joiners;
  const std::map<Rank, Registration>& members() const { return members_; }
  void forget_members() { members_.clear(); }

 private:
  std::string name_;
  uint32_t world_size_ = 0;
  std::map<Rank, Registration> members_;
  std::vector<std::string> notes_;
  uint32_t notes_left_out_ = 0;
};

// "unisono 0.1.0, protocol 2"
std::string version_text(const Hello& hello);
// Whether two processes can reach each other through shared memory, as far as their records say.
bool same_host(const MemberRecord& a, const MemberRecord& b);
// "1.5 s"
std::string seconds_text(Nanos time);

}  // namespace unisono::rendezvous
