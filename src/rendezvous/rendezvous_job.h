// A job at the rendezvous. It knows which processes have registered, and checks that their requests agree.
//
// A job is forming until all ranks of its world have registered. Then the server makes the roster (the list of members). After
// that, the job is running as long as an attending rank is connected. This class only keeps the books: it has no bytes and no
// sockets.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "rendezvous/rendezvous_messages.h"
#include "rendezvous/roster.h"

namespace unisono::rendezvous {

using Connection = uint64_t;

// The only endpoint of a member that registers to say why it cannot join. The server forms no group with it.
inline constexpr std::string_view failing_endpoint = "none";
bool is_failing(const Hello& hello);

struct Registration {
  Connection connection = 0;
  Hello hello;
  Nanos deadline = never;
};

struct Joiner {
  Connection connection = 0;
  Hello hello;
  Nanos deadline = never;
  bool announced = false;  // true: the attending rank has been told about this joiner
};

// Says what to do with a hello to a job that is forming.
struct Decision {
  enum class Kind : uint8_t { accept, replace, refuse, fail_all };
  Kind kind = Kind::accept;
  Status why;               // used by refuse and fail_all
  Connection replaced = 0;  // used by replace: the older connection of the same process
  std::string note = {};    // used by refuse: the reason in a few words
};

class Job {
 public:
  enum class Phase : uint8_t { idle, forming, running, failed };

  explicit Job(std::string name, size_t key = 0) : name_(std::move(name)), key_(key) {}

  // Decides whether the member that sent this hello may have its rank. Changes nothing. If the hello disagrees with the
  // registered members, two or more of them are the majority, and only the new process is refused. One alone is not: then
  // nobody knows which of the two is wrong, and the job fails.
  Decision decide(const Hello& hello) const;
  // Registers a process with the rank that decide() has allowed.
  void add(Connection connection, const Hello& hello, Nanos now);
  // Frees the rank of a connection that was closed. Returns what the process had registered with, if the connection had a rank.
  std::optional<Hello> remove(Connection connection);
  // Returns true if all ranks have registered, and all of them can join.
  bool complete() const;
  // Makes the first roster. The job must be complete.
  Roster form(const RosterKey& key) const;
  // Returns an error that lists the missing ranks. Example:
  // "job 'x': ranks 3, 5 of 8 missing after 60.0 s; registered: rank 0 (host a, pid 1), …; refused: …". It also names the ranks
  // that have registered only to say why they cannot join.
  Status missing(Nanos now) const;
  // Returns the earliest deadline of the registered members. When it has passed, that member gives up. The world cannot become
  // complete then, so a forming job fails.
  Nanos deadline() const;
  // Remembers a process that was refused, so that missing() can name it. Only the first few are remembered; the others are
  // counted.
  void note(std::string what);

  const std::string& name() const { return name_; }
  size_t key() const { return key_; }
  Phase phase = Phase::idle;
  Nanos since = 0;              // when the first process registered, or when the group formed
  Status failure;               // used in phase failed: the reason
  uint32_t notified_count = 0;  // used in phase failed: how many processes have been told the reason
  // used in phase running: the connection that receives the announcements of joiners; 0: there is none
  Connection attending_member = 0;
  Hello attending;  // used in phase running: the hello of the attending rank
  std::map<PeerId, Joiner> joiners;
  const std::map<Rank, Registration>& members() const { return members_; }
  void clear_members() { members_.clear(); }

 private:
  Decision disagreement(Code code, std::string text, std::string note) const;

  std::string name_;
  size_t key_;  // the number of the key that its processes have
  uint32_t world_size_ = 0;
  std::map<Rank, Registration> members_;
  std::vector<std::string> notes_;
  uint32_t notes_left_out_ = 0;
};

// Returns a text like "unisono 0.1.0, protocol 2".
std::string version_text(const Hello& hello);
// Returns a text like "1.5 s".
std::string seconds_text(Nanos time);

}  // namespace unisono::rendezvous
