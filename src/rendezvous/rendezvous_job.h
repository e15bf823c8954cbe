// One job at the rendezvous: the registered processes, whether their requests agree, and the error if they do not.
//
// A job is forming until all ranks of its world have registered. Then the server makes the roster, and the job is running while
// an attending rank stays connected. Only bookkeeping: no bytes and no sockets. The server decides when to call.
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
  bool announced = false;  // the attending rank knows it
};

// The effect of a hello on a forming job.
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

  // Whether this hello (of role member) may take its rank. Has no side effect.
  Verdict judge(const Hello& hello) const;
  // Takes the rank that judge() allowed.
  void add(Connection connection, const Hello& hello, Nanos now);
  // Frees the rank of a closed connection. True if it had one.
  bool remove(Connection connection);
  bool complete() const { return !members_.empty() && members_.size() == world_size_; }
  // The first roster of a complete job.
  Roster form(const RosterKey& key) const;
  // The error for missing ranks, like "job 'x': ranks 3, 5 of 8 are missing after 60.0 s; here: rank 0 (host a, pid 1), …;
  // turned away: …"
  Status missing(Nanos now) const;
  // While forming: the earliest deadline of a member. It ends the job, because without that member the world cannot become
  // complete in time.
  Nanos deadline() const;
  // Notes a process that was refused; the error for missing ranks names it. The number of notes is bounded.
  void note(std::string what);

  const std::string& name() const { return name_; }
  Phase phase = Phase::idle;
  Nanos since = 0;                  // time of the first registration, or of the forming
  Status verdict;                   // failed: the reason
  uint32_t told = 0;                // failed: how many processes know the reason
  Connection attending_member = 0;  // running: connection that gets announcements of joiners; 0: none
  Hello attending;                  // running: the hello of the attending rank
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
// Whether two processes can reach each other through shared memory, judged by their records.
bool same_host(const MemberRecord& a, const MemberRecord& b);
// "1.5 s"
std::string seconds_text(Nanos time);

}  // namespace unisono::rendezvous
