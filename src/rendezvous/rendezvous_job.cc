#include "rendezvous/rendezvous_job.h"

#include <algorithm>

#include "base/concat.h"

namespace unisono::rendezvous {

namespace {

constexpr size_t notes_max = 8;
// A message lists at most this many names. With all 4096 names of the largest world, nobody could read it.
constexpr size_t listed_max = 16;

std::string quoted(const std::string& text) { return "'" + text + "'"; }

// Returns why no link can satisfy the transport options of both processes. Returns an empty text if the options are compatible.
std::string transport_conflict(const Hello& a, const Hello& b) {
  const auto says = [](const Hello& hello) { return label(hello.member) + " asks for transport " + hello.transport; };
  if (a.transport == "shm" && b.transport == "tcp") return says(a) + ", " + says(b);
  if (a.transport == "tcp" && b.transport == "shm") return says(a) + ", " + says(b);
  if ((a.transport == "shm" || b.transport == "shm") && !same_host(a.member, b.member)) {
    const auto& demands = a.transport == "shm" ? a : b;
    const auto& other = a.transport == "shm" ? b : a;
    return says(demands) + ", but " + label(other.member) + " is not on the same host";
  }
  return {};
}

}  // namespace

bool is_failing(const Hello& hello) {
  const auto& endpoints = hello.member.endpoints;
  return endpoints.size() == 1 && endpoints[0] == failing_endpoint;
}

std::string version_text(const Hello& hello) { return concat("unisono ", hello.version, ", protocol ", hello.protocol); }

std::string seconds_text(Nanos time) {
  const auto tenths = std::max<Nanos>(0, time) / (second / 10);
  return concat(tenths / 10, ".", tenths % 10, " s");
}

Decision Job::disagreement(Code code, std::string text, std::string note) const {
  const bool majority = members_.size() >= 2;
  return {.kind = majority ? Decision::Kind::refuse : Decision::Kind::fail_all,
          .why = {code, concat("job ", quoted(name_), ": ", text)},
          .note = std::move(note)};
}

Decision Job::decide(const Hello& hello) const {
  if (members_.empty()) return {};
  const auto& first = members_.begin()->second.hello;
  const std::string job = "job " + quoted(name_) + ": ";
  if (hello.world_size != world_size_) {
    return disagreement(Code::invalid,
                        concat("the processes disagree on the world size: ", label(first.member), " says ", world_size_, ", ",
                               label(hello.member), " says ", hello.world_size),
                        concat("it says that the world size is ", hello.world_size, ", not ", world_size_));
  }
  if (hello.version != first.version) {
    return disagreement(Code::unsupported,
                        concat("the processes run different versions: ", label(first.member), " runs ", version_text(first),
                               ", ", label(hello.member), " runs ", version_text(hello)),
                        concat("it runs ", version_text(hello), ", not ", version_text(first)));
  }
  const auto taken = members_.find(hello.member.rank);
  if (taken != members_.end()) {
    const auto& holder = taken->second.hello.member;
    if (holder.id == hello.member.id) return {Decision::Kind::replace, {}, taken->second.connection, {}};
    return {Decision::Kind::refuse,
            {Code::invalid, concat(job, "rank ", hello.member.rank, " of ", world_size_, " is claimed twice: by ",
                                   host_label(holder), " (registered first), and by ", host_label(hello.member),
                                   "; if they belong to two jobs, name them (UNISONO_JOB)")},
            0,
            "its rank is taken"};
  }
  for (const auto& [rank, other] : members_) {
    if (other.hello.member.id == hello.member.id) {
      return {Decision::Kind::refuse,
              {Code::invalid, concat(job, "one process registers as rank ", rank, " and as ", label(hello.member))},
              0,
              concat("it has registered as rank ", rank, ", too")};
    }
    if (auto conflict = transport_conflict(other.hello, hello); !conflict.empty()) {
      return disagreement(Code::invalid, conflict, conflict);
    }
  }
  return {};
}

void Job::add(Connection connection, const Hello& hello, Nanos now) {
  if (members_.empty()) {
    phase = Phase::forming;
    world_size_ = hello.world_size;
    since = now;
  }
  members_[hello.member.rank] = {connection, hello, now + hello.remaining_ms * millisecond};
}

Nanos Job::deadline() const {
  Nanos earliest = never;
  for (const auto& [rank, registration] : members_) earliest = std::min(earliest, registration.deadline);
  return earliest;
}

std::optional<Hello> Job::remove(Connection connection) {
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    if (it->second.connection != connection) continue;
    auto hello = std::move(it->second.hello);
    members_.erase(it);
    return hello;
  }
  return {};
}

bool Job::complete() const {
  return !members_.empty() && members_.size() == world_size_ &&
         std::ranges::none_of(members_, [](const auto& entry) { return is_failing(entry.second.hello); });
}

Roster Job::form(const RosterKey& key) const {
  Roster roster{.epoch = 1, .key = key, .members = {}};
  for (const auto& [rank, registration] : members_) roster.members.push_back(registration.hello.member);
  return roster;
}

Status Job::missing(Nanos now) const {
  std::string absent, here, failing;
  size_t absent_count = 0;
  for (Rank rank = 0; rank < world_size_; ++rank) {
    const auto member = members_.find(rank);
    if (member != members_.end()) continue;
    if (absent_count++ < listed_max) absent += concat(absent.empty() ? "" : ", ", rank);
  }
  if (absent_count > listed_max) absent += concat(" and ", absent_count - listed_max, " more");
  size_t listed = 0;
  for (const auto& [rank, registration] : members_) {
    if (listed++ >= listed_max) continue;
    here += (here.empty() ? "" : ", ") + label(registration.hello.member);
    if (is_failing(registration.hello))
      failing += concat("; ", label(registration.hello.member), " cannot join, and has not said why");
  }
  if (listed > listed_max) here += concat(" and ", listed - listed_max, " more");
  std::string text =
      absent_count == 0
          ? concat("job ", quoted(name_), ": not all ", world_size_, " ranks can join after ", seconds_text(now - since))
          : concat("job ", quoted(name_), ": rank", absent_count == 1 ? " " : "s ", absent, " of ", world_size_,
                   " missing after ", seconds_text(now - since), "; registered: ", here);
  text += failing;
  if (!notes_.empty()) {
    text += "; refused:";
    for (const auto& note : notes_) text += " [" + note + "]";
    if (notes_left_out_ > 0) text += concat(" and ", notes_left_out_, " more");
  }
  return {Code::late, std::move(text)};
}

void Job::note(std::string what) {
  if (notes_.size() < notes_max) {
    notes_.push_back(std::move(what));
  } else {
    ++notes_left_out_;
  }
}

}  // namespace unisono::rendezvous
