// The part of the rendezvous server that deals with peers before it knows that they belong to a job.
#include "base/concat.h"
#include "base/error_text.h"
#include "rendezvous/rendezvous_server.h"

#include <cerrno>

namespace unisono::rendezvous {

namespace {

// The answer to an HTTP client. It is meant for a person who uses a browser or curl. Other peers that do not authenticate get
// no answer.
constexpr std::string_view http_reply =
    "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nThis is the rendezvous port of a Unisono "
    "job.\n";

// It tells an unauthenticated peer nothing about the job.
constexpr const char* key_needed =
    "authentication failed: the job at this address has a key, and this process has none: set UNISONO_KEY_FILE to the job's "
    "key file, or start all ranks with `unisono launch`";
constexpr const char* key_unknown =
    "authentication failed: this process has a key, and the server at this address has none: give the same key to all "
    "processes of the job (UNISONO_KEY_FILE)";

}  // namespace

void Server::connected(Connection connection, std::string from, Nanos now) {
  ++counters_.connections;
  Peer peer;
  peer.from = std::move(from);
  peer.deadline = now + settings_.unauthenticated_timeout;
  const bool crowded = is_crowded();
  peers_.emplace(connection, std::move(peer));
  if (crowded) {
    ++counters_.crowded;
    refuse(connection,
           {Code::unavailable, concat("the rendezvous server has ", peers_.size() - 1, " connections, its maximum")});
  }
}

void Server::authenticated(Connection connection, size_t key) {
  const auto it = peers_.find(connection);
  if (it == peers_.end()) return;
  it->second.has_key = true;
  it->second.job.key = key;
}

void Server::rejected(Connection connection, Nanos now) {
  const auto it = peers_.find(connection);
  if (it == peers_.end() || it->second.kind == Peer::Kind::closing) return;
  refuse_unauthenticated(connection, it->second, "a process at " + it->second.from + ": " + error_text(EKEYREJECTED), nullptr,
                         now);
}

std::optional<Connection> Server::oldest_unauthenticated() const {
  for (const auto& [connection, peer] : peers_) {
    const bool refused = peer.kind == Peer::Kind::closing && !peer.is_known;
    if (peer.kind == Peer::Kind::unauthenticated || refused) return connection;
  }
  return std::nullopt;
}

// A peer of a server with keys has sent a message in clear.
void Server::on_clear_message(Connection connection, Peer& peer, const Message& message, Nanos now) {
  const auto hello = message.kind == Kind::hello ? decode_hello(message.payload, message.protocol)
                                                 : Result<Hello>(Status(Code::corrupt, "not a hello"));
  const auto from = hello.ok() ? claim_of(*hello) : "a process";
  refuse_unauthenticated(
      connection, peer,
      concat(from, ": ", error_text(EKEYREJECTED), " (a claim of an unauthenticated process at ", peer.from, ")"), key_needed,
      now);
}

void Server::refuse_unauthenticated(Connection connection, Peer& peer, const std::string& text, const char* answer, Nanos now) {
  ++counters_.unauthenticated;
  report_refusal(text, now);
  peer.kind = Peer::Kind::closing;
  auto bytes = answer == nullptr ? nullptr : std::make_shared<const Bytes>(encode_refused({Code::invalid, answer}, 0));
  send_shared(connection, std::move(bytes), true);
}

void Server::report_refusal(const std::string& text, Nanos now) {
  if (auto reported = refusals_.add(text, now)) report_event(ServerEvent::Kind::refused, {}, std::move(*reported));
}

void Server::on_fault(Connection connection, Peer& peer, Nanos now) {
  const auto program = guess_program(peer.stream.start());
  if (peer.kind == Peer::Kind::unauthenticated && program == "a TLS program") {
    return refuse_unauthenticated(connection, peer,
                                  "a process at " + peer.from +
                                      ": authentication failed: it has a key, and this server has none, or it is another "
                                      "program that speaks TLS",
                                  key_unknown, now);
  }
  const bool http = program == "an HTTP client";
  ++(http ? counters_.http : counters_.garbage);
  const auto text =
      peer.from + ": " + (http ? "an HTTP client" : std::string("not our protocol (") + name(peer.stream.fault()) + ")");
  if (peer.kind != Peer::Kind::unauthenticated) {
    report_event(ServerEvent::Kind::refused, peer.job, text);
    refuse(connection,
           {Code::corrupt, std::string("the rendezvous server received malformed data: ") + name(peer.stream.fault())});
    return;
  }
  // Other programs that look for open ports are no reason why a rank is missing, so an error does not list them.
  if (auto reported = other_programs_.add(text, now)) report_event(ServerEvent::Kind::refused, {}, std::move(*reported));
  peer.kind = Peer::Kind::closing;
  const auto* bytes = reinterpret_cast<const std::byte*>(http_reply.data());
  send_shared(connection, http ? std::make_shared<const Bytes>(bytes, bytes + http_reply.size()) : nullptr, true);
}

// A peer has not said hello in time.
void Server::on_silence(Connection connection, Peer& peer, Nanos now) {
  ++counters_.silent;
  peer.kind = Peer::Kind::closing;
  const auto text = peer.from + ": sent nothing for " + seconds_text(settings_.unauthenticated_timeout);
  if (auto reported = other_programs_.add(text, now)) report_event(ServerEvent::Kind::refused, {}, std::move(*reported));
  send_shared(connection, nullptr, true);
}

// Only a server of one job, or of one key, knows to which job an unauthenticated process may belong.
std::string Server::refusals_text() const {
  return !settings_.only_job.empty() || settings_.key_count == 1 ? refusals_.summary() : std::string();
}

}  // namespace unisono::rendezvous
