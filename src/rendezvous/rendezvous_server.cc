#include "rendezvous/rendezvous_server.h"

#include <algorithm>

#include "base/concat.h"

namespace unisono::rendezvous {

namespace {

std::string describe(const Hello& hello, const std::string& from) {
  const std::string where = concat("host ", hello.host, ", pid ", hello.pid, ", from ", from);
  if (hello.protocol != protocol_version) return where;
  switch (hello.role) {
    case Role::member: return concat("rank ", hello.member.rank, " (", where, ")");
    case Role::joiner: return "joiner (" + where + ")";
    case Role::attending_member: return concat("attending rank ", hello.member.rank, " (", where, ")");
  }
  return where;
}

}  // namespace

const Job* Server::job(const std::string& name, size_t key) const {
  const auto it = jobs_.find({key, name});
  return it == jobs_.end() ? nullptr : &it->second;
}

void Server::received(Connection connection, ByteView bytes, Nanos now) {
  const auto it = peers_.find(connection);
  if (it == peers_.end() || it->second.kind == Peer::Kind::closing) return;
  it->second.stream.append(bytes);
  for (;;) {
    auto& peer = it->second;  // Handlers do not erase peers, so the reference stays valid. Only disconnected() erases them.
    if (peer.kind == Peer::Kind::closing) return;
    const auto message = peer.stream.next(peer.kind == Peer::Kind::attending_member ? message_bytes_max : hello_bytes_max);
    if (!message) {
      if (peer.stream.fault() != StreamFault::none) on_fault(connection, peer, now);
      return;
    }
    if (may_learn(peer)) on_message(connection, peer, *message, now);
    else on_clear_message(connection, peer, *message, now);
  }
}

void Server::on_message(Connection connection, Peer& peer, const Message& message, Nanos now) {
  if (message.kind == Kind::hello) {
    auto hello = decode_hello(message.payload, message.protocol);
    if (!hello.ok()) {
      ++counters_.garbage;
      return refuse(connection, hello.status());
    }
    peer.is_known = true;
    return on_hello(connection, peer, *hello, now);
  }
  const bool has_table = peer.kind == Peer::Kind::linking || peer.kind == Peer::Kind::attending_member;
  if (has_table && (message.kind == Kind::joined || message.kind == Kind::failed))
    return on_join_ended(connection, peer, message);
  if (peer.kind == Peer::Kind::member && message.kind == Kind::failed)
    return on_member_failed(connection, peer.job, message, now);
  const auto job = jobs_.find(peer.job);
  if (message.kind == Kind::answer && peer.kind == Peer::Kind::attending_member && job != jobs_.end()) {
    auto answer = decode_answer(message.payload);
    if (!answer.ok()) return refuse(connection, answer.status());
    return on_answer(job->second, *answer);
  }
  refuse(connection, {Code::corrupt,
                      concat("message of kind ", static_cast<int>(message.kind), " is not expected by a rendezvous server")});
}

void Server::on_hello(Connection connection, Peer& peer, const Hello& hello, Nanos now) {
  if (hello.protocol != protocol_version) {
    return refuse_process(
        connection, hello,
        {Code::unsupported, concat("this process runs ", version_text(hello), "; the rendezvous server, ", settings_.label,
                                   ", runs unisono ", library_version, ", protocol ", protocol_version)});
  }
  if (!settings_.only_job.empty() && hello.job != settings_.only_job) {
    return refuse_process(
        connection, hello,
        {Code::invalid, "this process belongs to job '" + hello.job + "', but " + settings_.label +
                            " serves another job at this address: two jobs need two ports (or a standalone `unisono "
                            "rendezvous`); the processes of one job need one name (UNISONO_JOB)"},
        "it belongs to job '" + hello.job + "'");
  }
  const bool again =
      peer.kind == Peer::Kind::attending_member && hello.role == Role::attending_member && hello.job == peer.job.name;
  if (peer.kind != Peer::Kind::unauthenticated && !again)
    return refuse(connection, {Code::corrupt, "a second hello on one connection"});
  switch (hello.role) {
    case Role::member: return on_member(connection, peer, hello, now);
    case Role::joiner: return on_joiner(connection, peer, hello, now);
    case Role::attending_member: return on_attender(connection, peer, hello, now);
  }
}

void Server::on_member(Connection connection, Peer& peer, const Hello& hello, Nanos now) {
  Job* job = make_job({peer.job.key, hello.job});
  if (job == nullptr)
    return refuse_process(connection, hello,
                          {Code::unavailable, concat("the rendezvous server has ", jobs_.size(), " jobs, its maximum")});
  if (job->phase == Job::Phase::failed) {
    ++job->notified_count;
    return refuse_process(connection, hello, job->failure);
  }
  if (job->phase == Job::Phase::running) {
    return refuse_process(
        connection, hello,
        {Code::invalid, "job '" + hello.job + "' is running already, since " + seconds_text(now - job->since) +
                            ", attended by " + label(job->attending.member) + "; " + label(hello.member) +
                            " can join with join_running, or start a job with another name"});
  }
  const auto decision = job->decide(hello);
  switch (decision.kind) {
    case Decision::Kind::refuse: return refuse_process(connection, hello, decision.why, decision.note);
    case Decision::Kind::fail_all:
      fail(*job, decision.why, now);
      ++job->notified_count;
      refuse_process(connection, hello, decision.why);
      return drop_if_idle({peer.job.key, hello.job});
    case Decision::Kind::replace:
      job->remove(decision.replaced);
      refuse(decision.replaced, {Code::unavailable, "replaced by a newer connection of the same process"});
      break;
    case Decision::Kind::accept: break;
  }
  job->add(connection, hello, now);
  peer.kind = Peer::Kind::member;
  peer.job.name = hello.job;
  peer.deadline = never;
  send(connection, encode(Welcome{settings_.identity, library_version}));
  report_event(ServerEvent::Kind::registered, peer.job,
               concat(describe(hello, peer.from), ", ", job->members().size(), " of ", hello.world_size));
  if (job->complete()) form(*job, now);
}

void Server::form(Job& job, Nanos now) {
  const Roster roster = job.form(settings_.make_key());
  const auto table = std::make_shared<const Bytes>(encode_table(roster));
  ++formations_;
  for (const auto& [rank, registration] : job.members()) {
    auto& peer = peers_.at(registration.connection);
    peer.kind = rank == 0 ? Peer::Kind::attending_member : Peer::Kind::linking;
    peer.formation = formations_;
    peer.label = label(registration.hello.member);
    send_shared(registration.connection, table, false);
  }
  const auto& first = job.members().at(0);
  job.phase = Job::Phase::running;
  job.attending_member = first.connection;
  job.attending = first.hello;
  job.attending.epoch = roster.epoch;
  job.attending.key = roster.key;
  job.since = now;
  job.clear_members();
  report_event(ServerEvent::Kind::formed, {job.key(), job.name()}, concat(roster.members.size(), " ranks"));
  announce(job);
}

void Server::fail(Job& job, const Status& why, Nanos now) {
  for (const auto& [rank, registration] : job.members()) {
    refuse(registration.connection, why);
    ++job.notified_count;
  }
  job.clear_members();
  job.phase = settings_.keep_failures ? Job::Phase::failed : Job::Phase::idle;
  job.failure = why;
  job.since = now;
  report_event(ServerEvent::Kind::failed, {job.key(), job.name()}, why.message());
}

void Server::fail_job(const std::string& name, const Status& why, Nanos now) {
  Job* job = make_job({0, name});
  if (job != nullptr && (job->phase == Job::Phase::idle || job->phase == Job::Phase::forming)) fail(*job, why, now);
}

// A registered member cannot join, and the table has not been made. All members get its reason.
void Server::on_member_failed(Connection connection, const JobId& id, const Message& message, Nanos now) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || job->second.phase != Job::Phase::forming) return;
  for (const auto& [rank, registration] : job->second.members()) {
    if (registration.connection != connection) continue;
    const auto why = decode_refused(message.payload);
    return fail(job->second, {why.code(), concat(label(registration.hello.member), " could not join: ", why.message())}, now);
  }
}

void Server::on_join_ended(Connection connection, Peer& peer, const Message& message) {
  if (peer.formation == 0) return;  // Another member has failed before. This member has been told.
  if (message.kind == Kind::failed) {
    const auto why = decode_refused(message.payload);
    end_formation(peer, {why.code(), peer.label + " could not join: " + why.message()});
    if (peer.kind == Peer::Kind::attending_member) return send(connection, encode_failed(why));
    return refuse(connection, why);
  }
  peer.formation = 0;
  if (peer.kind != Peer::Kind::linking) return;
  peer.kind = Peer::Kind::closing;
  send_shared(connection, nullptr, true);
}

// A member has the table, and its join has failed. Tells all members whose joins have not ended, because the group cannot form
// without it. Otherwise each of them would wait for its own deadline.
void Server::end_formation(const Peer& by, const Status& why) {
  const auto formation = by.formation;
  for (auto& [connection, peer] : peers_) {
    if (peer.formation != formation) continue;
    peer.formation = 0;
    // The attending member stays connected, because its join may have succeeded meanwhile.
    if (peer.kind == Peer::Kind::attending_member && &peer != &by) send(connection, encode_failed(why));
    else if (&peer != &by) refuse(connection, why);
  }
  report_event(ServerEvent::Kind::failed, by.job, why.message());
}

void Server::on_joiner(Connection connection, Peer& peer, const Hello& hello, Nanos now) {
  Job* job = make_job({peer.job.key, hello.job});
  if (job == nullptr)
    return refuse_process(connection, hello,
                          {Code::unavailable, concat("the rendezvous server has ", jobs_.size(), " jobs, its maximum")});
  if (job->joiners.size() >= settings_.joiners_max) {
    return refuse_process(connection, hello,
                          {Code::unavailable, concat("job '", hello.job, "' has ", job->joiners.size(),
                                                     " processes waiting to join, its maximum")});
  }
  if (const auto before = job->joiners.find(hello.member.id); before != job->joiners.end()) {
    refuse(before->second.connection, {Code::unavailable, "replaced by a newer connection of the same process"});
    job->joiners.erase(before);
  }
  Joiner joiner{
      .connection = connection, .hello = hello, .deadline = now + hello.remaining_ms * millisecond, .announced = false};
  job->joiners.emplace(hello.member.id, std::move(joiner));
  peer.kind = Peer::Kind::joiner;
  peer.job.name = hello.job;
  peer.id = hello.member.id;
  peer.deadline = never;
  send(connection, encode(Welcome{settings_.identity, library_version}));
  report_event(ServerEvent::Kind::joiner, peer.job, describe(hello, peer.from));
  announce(*job);
}

// Announces every new joiner to the attending rank. Refuses joiners that have another version.
void Server::announce(Job& job) {
  if (job.phase != Job::Phase::running || job.attending_member == 0) return;
  std::vector<PeerId> incompatible;
  for (auto& [id, joiner] : job.joiners) {
    if (joiner.hello.version != job.attending.version) {
      incompatible.push_back(id);
    } else if (!joiner.announced) {
      joiner.announced = true;
      send(job.attending_member, encode_joiner(joiner.hello.member));
    }
  }
  for (const auto& id : incompatible) {
    const auto joiner = job.joiners.extract(id).mapped();
    refuse_process(joiner.connection, joiner.hello,
                   {Code::unsupported, "this process runs " + version_text(joiner.hello) + ", but job '" + job.name() +
                                           "' runs " + version_text(job.attending)});
  }
}

void Server::on_attender(Connection connection, Peer& peer, const Hello& hello, Nanos now) {
  Job* job = make_job({peer.job.key, hello.job});
  if (job == nullptr)
    return refuse_process(connection, hello,
                          {Code::unavailable, concat("the rendezvous server has ", jobs_.size(), " jobs, its maximum")});
  if (job->phase == Job::Phase::forming) {
    return refuse_process(connection, hello,
                          {Code::invalid, "job '" + hello.job + "' is forming a new group; the running group of " +
                                              label(hello.member) + " cannot attend this rendezvous"});
  }
  const bool rival = job->phase == Job::Phase::running && job->attending_member != connection;
  if (rival && (hello.key != job->attending.key || hello.epoch <= job->attending.epoch)) {
    return refuse_process(connection, hello,
                          {Code::invalid, concat("job '", hello.job, "' already has an attending rank: ",
                                                 label(job->attending.member), " at epoch ", job->attending.epoch)});
  }
  if (rival)
    refuse(job->attending_member, {Code::peer_lost, concat("job '", hello.job, "' is attended by ", label(hello.member),
                                                           " at epoch ", hello.epoch, " now")});
  if (peer.kind != Peer::Kind::attending_member) {
    send(connection, encode(Welcome{settings_.identity, library_version}));
    for (auto& [id, joiner] : job->joiners) joiner.announced = false;
  }
  if (job->phase != Job::Phase::running) job->since = now;
  job->phase = Job::Phase::running;
  job->attending_member = connection;
  job->attending = hello;
  peer.kind = Peer::Kind::attending_member;
  peer.job.name = hello.job;
  peer.deadline = never;
  announce(*job);
}

void Server::on_answer(Job& job, const Answer& answer) {
  const auto it = job.joiners.find(answer.joiner);
  if (it == job.joiners.end()) return;  // The joiner has gone away meanwhile.
  const auto connection = it->second.connection;
  job.joiners.erase(it);
  if (!answer.status.ok()) return refuse(connection, answer.status);
  peers_.at(connection).kind = Peer::Kind::closing;
  send_shared(connection, std::make_shared<const Bytes>(encode_table(answer.roster)), true);
}

void Server::disconnected(Connection connection, Nanos now) {
  const auto it = peers_.find(connection);
  if (it == peers_.end()) return;
  const Peer peer = std::move(it->second);
  peers_.erase(it);
  if (peer.formation != 0) end_formation(peer, {Code::peer_lost, peer.label + " has ended while the group formed"});
  const auto found = jobs_.find(peer.job);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  if (const auto hello = job.remove(connection)) {
    report_event(ServerEvent::Kind::ended, peer.job, peer.from + " left before the group had formed");
    // Its reason would have ended the job. The others get what is known, instead of waiting for a rank that cannot join.
    if (is_failing(*hello))
      fail(job, {Code::peer_lost, label(hello->member) + " could not join, and has ended before it said why"}, now);
    else if (job.members().empty()) job.phase = Job::Phase::idle;
  }
  withdraw_joiner(job, connection, peer.id);
  if (job.attending_member == connection) {
    job.attending_member = 0;
    job.phase = Job::Phase::idle;
    for (auto& [id, waiting] : job.joiners) waiting.announced = false;
    report_event(ServerEvent::Kind::ended, peer.job, "the attending rank left, " + label(job.attending.member));
  }
  drop_if_idle(peer.job);
}

// Removes a joiner that no longer wants to join. Its connection may stay open.
void Server::withdraw_joiner(Job& job, Connection connection, const PeerId& id) {
  const auto joiner = job.joiners.find(id);
  if (joiner == job.joiners.end() || joiner->second.connection != connection) return;
  if (joiner->second.announced && job.attending_member != 0) send(job.attending_member, encode_joiner_gone(id));
  job.joiners.erase(joiner);
}

void Server::woke(Nanos now) {
  for (auto& [connection, peer] : peers_) {
    if (peer.kind == Peer::Kind::unauthenticated && peer.deadline <= now) on_silence(connection, peer, now);
  }
  std::vector<JobId> touched;
  for (auto& [id, job] : jobs_) {
    if (job.phase == Job::Phase::forming && job.deadline() <= now) {
      const auto missing = job.missing(now);
      fail(job, {missing.code(), missing.message() + refusals_text()}, now);
      touched.push_back(id);
    }
    std::vector<PeerId> expired;
    for (const auto& [joiner_id, joiner] : job.joiners) {
      if (joiner.deadline <= now) expired.push_back(joiner_id);
    }
    for (const auto& joiner_id : expired) {
      const auto joiner = job.joiners.at(joiner_id);
      const std::string state = job.phase == Job::Phase::running
                                    ? concat("is running (attended by ", label(job.attending.member), ", epoch ",
                                             job.attending.epoch, ") but was not re-formed")
                                    : "has no running group at this rendezvous";
      refuse(joiner.connection, {Code::late, "job '" + id.name + "' " + state + " while this process waited to join for " +
                                                 seconds_text(joiner.hello.remaining_ms * millisecond)});
      touched.push_back(id);
    }
  }
  for (const auto& id : touched) drop_if_idle(id);
}

Nanos Server::next_deadline() const {
  Nanos deadline = never;
  for (const auto& [connection, peer] : peers_) {
    if (peer.kind == Peer::Kind::unauthenticated) deadline = std::min(deadline, peer.deadline);
  }
  for (const auto& [id, job] : jobs_) {
    if (job.phase == Job::Phase::forming) deadline = std::min(deadline, job.deadline());
    for (const auto& [joiner_id, joiner] : job.joiners) deadline = std::min(deadline, joiner.deadline);
  }
  return deadline;
}

void Server::shut_down(const Status& why, Nanos) {
  for (auto& [connection, peer] : peers_) {
    if (peer.kind != Peer::Kind::closing) refuse(connection, why);
  }
  jobs_.clear();
}

Job* Server::make_job(const JobId& id) {
  const auto it = jobs_.find(id);
  if (it != jobs_.end()) return &it->second;
  if (jobs_.size() >= settings_.jobs_max) return nullptr;
  return &jobs_.emplace(id, Job(id.name, id.key)).first->second;
}

void Server::drop_if_idle(const JobId& id) {
  const auto it = jobs_.find(id);
  if (it != jobs_.end() && it->second.phase == Job::Phase::idle && it->second.joiners.empty()) jobs_.erase(it);
}

void Server::send(Connection to, Bytes bytes) { send_shared(to, std::make_shared<const Bytes>(std::move(bytes)), false); }

void Server::send_shared(Connection to, std::shared_ptr<const Bytes> bytes, bool close) {
  sends_.push_back({to, std::move(bytes), close});
}

void Server::refuse(Connection to, const Status& why) {
  const auto it = peers_.find(to);
  if (it == peers_.end()) return;
  if (const auto job = jobs_.find(it->second.job); job != jobs_.end()) withdraw_joiner(job->second, to, it->second.id);
  it->second.kind = Peer::Kind::closing;
  send_shared(to, may_learn(it->second) ? std::make_shared<const Bytes>(encode_refused(why)) : nullptr, true);
}

void Server::refuse_process(Connection to, const Hello& hello, const Status& why, const std::string& note) {
  ++counters_.refused;
  const auto it = peers_.find(to);
  const auto key = it == peers_.end() ? 0 : it->second.job.key;
  const std::string process_text = describe(hello, it == peers_.end() ? std::string("?") : it->second.from);
  report_event(ServerEvent::Kind::refused, {key, hello.job}, process_text + ": " + why.message());
  // The error of the job lists the refused process, because a rank is often missing for the reason that its process was
  // refused.
  const auto job = jobs_.find({key, settings_.only_job.empty() ? hello.job : settings_.only_job});
  if (job != jobs_.end()) job->second.note(process_text + ": " + (note.empty() ? name(why.code()) : note));
  refuse(to, why);
}

void Server::report_event(ServerEvent::Kind kind, const JobId& job, std::string text) {
  // Names of jobs may be equal if their keys differ.
  const bool several = settings_.key_count > 1 && !job.name.empty();
  events_.push_back({kind, several ? concat(job.name, " (key ", job.key + 1, ")") : job.name, std::move(text)});
}

}  // namespace unisono::rendezvous
