// The rendezvous of a job that has a key, over real sockets: processes with another key, without one, and other programs.
#include <poll.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <thread>

#include "rendezvous/rendezvous_socket_test_support.h"

namespace unisono {
namespace {

using namespace test;
using Tls = std::shared_ptr<const TlsContext>;

constexpr const char* other_key = "authentication failed: its key differs from ours, or it has none";

Tls new_key() { return *TlsContext::make({*SecretKey::draw()}); }

std::future<Met> meet_with(const Tls& tls, const ResolvedOptions& options, Nanos timeout = test_timeout) {
  return std::async(std::launch::async, [=] {
    Met met;
    met.session = std::move(*RendezvousSession::make(options, *random_peer_id(), endpoints_of(options.rank), tls));
    met.roster = met.session->meet(monotonic_now() + timeout);
    return met;
  });
}

// Rank 0 of a world with this key. It waits for the others, and collects what it reports.
class Waiting {
 public:
  Waiting(const Tls& tls, uint32_t world, const RendezvousAddress& address, int listen_fd = -1, Nanos timeout = test_timeout) {
    auto options = options_for(0, world, address);
    options.listen_fd = listen_fd;
    session_ = std::move(*RendezvousSession::make(options, *random_peer_id(), endpoints_of(0), tls));
    session_->on_refusal([this](const std::string& text) { refusals_.push_back(text); });
    thread_ = std::thread([this, timeout] { roster_ = session_->meet(monotonic_now() + timeout); });
  }
  ~Waiting() {
    if (thread_.joinable()) thread_.join();
  }
  const Result<Roster>& roster() {
    if (thread_.joinable()) thread_.join();
    return roster_;
  }
  RendezvousSession& session() { return *session_; }
  const std::vector<std::string>& refusals() const { return refusals_; }

 private:
  SessionPointer session_;
  Result<Roster> roster_ = Status(Code::internal, "not met");
  std::vector<std::string> refusals_;
  std::thread thread_;
};

// A relay between processes and a server at a Unix-like pair of TCP ports. It keeps what every connection carried.
class Relay {
 public:
  explicit Relay(uint16_t to) : to_(to), port_(true), thread_([this] { run(); }) {}
  ~Relay() { stop(); }
  RendezvousAddress address() const { return port_.address(); }
  void stop() {
    (void)shutdown(port_.fd(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  // The bytes of both directions, and of the dialers alone, one text for each connection.
  const std::string& carried() const { return carried_; }
  const std::vector<std::string>& dialed() const { return dialed_; }

 private:
  struct Pair {
    Descriptor near, far;
    size_t number = 0;
    bool open = true;
  };
  void run() {
    std::vector<Pair> pairs;
    for (;;) {
      std::vector<pollfd> fds{{port_.fd(), POLLIN, 0}};
      for (const auto& pair : pairs) {
        fds.push_back({pair.open ? pair.near.get() : -1, POLLIN, 0});
        fds.push_back({pair.open ? pair.far.get() : -1, POLLIN, 0});
      }
      if (poll(fds.data(), fds.size(), 20'000) <= 0) return;
      for (size_t i = 0; i < pairs.size(); ++i) {
        auto& pair = pairs[i];
        if (fds[1 + 2 * i].revents != 0) pass(pair.near, pair.far, pair, true);
        if (pair.open && fds[2 + 2 * i].revents != 0) pass(pair.far, pair.near, pair, false);
      }
      if (fds[0].revents == 0) continue;
      Pair pair{.near = Descriptor(accept4(port_.fd(), nullptr, nullptr, SOCK_CLOEXEC)),
                .far = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                .number = dialed_.size()};
      if (!pair.near.open()) return;  // stop()
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(to_);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (connect(pair.far.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) continue;
      dialed_.emplace_back();
      pairs.push_back(std::move(pair));
    }
  }
  void pass(const Descriptor& from, const Descriptor& to, Pair& pair, bool dialer) {
    std::array<char, 65536> buffer;
    const auto count = recv(from.get(), buffer.data(), buffer.size(), 0);
    if (count <= 0) {
      pair.open = false;
      pair.near.reset();
      pair.far.reset();
      return;
    }
    const std::string_view bytes(buffer.data(), static_cast<size_t>(count));
    carried_ += bytes;
    if (dialer) dialed_[pair.number] += bytes;
    (void)!::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  const uint16_t to_;
  ReservedPort port_;
  std::string carried_;
  std::vector<std::string> dialed_;
  std::thread thread_;
};

Descriptor dial_raw(uint16_t port, std::string_view bytes) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  (void)!::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return socket;
}

// Reads until the other side ends the connection.
std::string read_all(const Descriptor& socket) {
  std::string all;
  std::array<char, 4096> buffer;
  for (;;) {
    const auto count = recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (count <= 0) return all;
    all.append(buffer.data(), static_cast<size_t>(count));
  }
}

TEST(RendezvousTls, ranks_with_one_key_meet_at_a_port_and_at_a_file) {
  const auto key = new_key();
  Folder folder;
  ReservedPort port;
  for (const auto& address : {port.address(), file_address(folder.path("meet"))}) {
    std::vector<std::future<Met>> futures;
    for (uint32_t rank = 0; rank < 4; ++rank) futures.push_back(meet_with(key, options_for(rank, 4, address)));
    std::vector<Met> all;
    for (auto& future : futures) all.push_back(future.get());
    expect_met(all);
    for (auto& each : all) each.session->joined();
    auto joining = meet_with(key, joiner_for(address));
    const auto joiners = wait_for_joiners(*all[0].session);
    ASSERT_EQ(joiners.size(), 1u);
    all[0].session->answer_joiner(joiners[0].id, with_joiner(*all[0].roster, joiners[0]));
    EXPECT_TRUE(joining.get().roster.ok());
  }
}

TEST(RendezvousTls, processes_without_the_key_fail_at_once_and_rank_0_goes_on_waiting) {
  const auto key = new_key();
  ReservedPort port(true);
  Waiting zero(key, 2, port.address(), port.fd());
  expect_error(meet_with(new_key(), options_for(1, 2, port.address())).get().roster, Code::invalid,
               {"tcp://127.0.0.1:" + port.number() + ": ", other_key, "UNISONO_KEY_FILE"});
  expect_error(meet_with(nullptr, options_for(1, 2, port.address())).get().roster, Code::invalid,
               {"the job at this address has a key, and this process has none: set UNISONO_KEY_FILE"});
  auto one = meet_with(key, options_for(1, 2, port.address()));
  EXPECT_TRUE(zero.roster().ok()) << zero.roster().status().to_string();
  EXPECT_TRUE(one.get().roster.ok());
  ASSERT_EQ(zero.refusals().size(), 2u);
  EXPECT_NE(zero.refusals()[0].find(other_key), std::string::npos) << zero.refusals()[0];
  EXPECT_EQ(zero.refusals()[1].find("rank 1 (host " + this_host_name() + "): " + other_key), 0u) << zero.refusals()[1];
  EXPECT_NE(zero.session().describe().find("2 without our key"), std::string::npos) << zero.session().describe();
}

TEST(RendezvousTls, a_rank_that_misses_another_learns_who_had_no_key) {
  ReservedPort port(true);
  Waiting zero(new_key(), 2, port.address(), port.fd(), second);
  EXPECT_FALSE(meet_with(nullptr, options_for(1, 2, port.address())).get().roster.ok());
  expect_error(zero.roster(), Code::late,
               {"rank 1 of 2 missing", "not authenticated: [rank 1 (host " + this_host_name() + "): " + other_key});
}

TEST(RendezvousTls, a_process_with_a_key_does_not_go_on_in_clear) {
  ReservedPort port(true);
  Waiting zero(nullptr, 2, port.address(), port.fd());
  expect_error(meet_with(new_key(), options_for(1, 2, port.address())).get().roster, Code::invalid,
               {"tcp://127.0.0.1:" + port.number() + ": ", other_key, "UNISONO_KEY_FILE"});
  auto one = meet_with(nullptr, options_for(1, 2, port.address()));
  EXPECT_TRUE(zero.roster().ok());
  EXPECT_TRUE(one.get().roster.ok());
}

TEST(RendezvousTls, another_program_at_the_port_is_named_to_a_process_with_a_key) {
  ReservedPort port(true);
  std::thread program([&] {
    const Descriptor socket(accept(port.fd(), nullptr, nullptr));
    constexpr std::string_view reply = "HTTP/1.1 400 Bad Request\r\n\r\n";
    (void)!::send(socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
    (void)read_all(socket);
  });
  expect_error(meet_with(new_key(), options_for(1, 2, port.address())).get().roster, Code::unavailable,
               {"is taken by another program: an HTTP server answered"});
  program.join();
}

TEST(RendezvousTls, garbage_half_open_connections_and_replays_leave_a_forming_job_alone) {
  const auto key = new_key();
  ReservedPort port(true);
  Waiting zero(key, 3, port.address(), port.fd());
  // Rank 1 comes through a relay, which keeps its bytes.
  Relay relay(port.address().port);
  auto one = meet_with(key, options_for(1, 3, relay.address()));
  const std::string hello = "\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03";
  std::vector<Descriptor> half_open;
  for (int i = 0; i < 40; ++i) half_open.push_back(dial_raw(port.address().port, i % 2 == 0 ? hello : std::string()));
  for (const std::string_view bytes : {"garbage", "\x16garbage that is no TLS", "UNIR", "UNIR and something else that is long"})
    half_open.push_back(dial_raw(port.address().port, bytes));
  EXPECT_NE(read_all(dial_raw(port.address().port, "GET / HTTP/1.0\r\n\r\n")).find("rendezvous port"), std::string::npos);
  auto two = meet_with(key, options_for(2, 3, port.address()));
  EXPECT_TRUE(zero.roster().ok()) << zero.roster().status().to_string();
  const Met others[] = {one.get(), two.get()};
  for (const auto& other : others) {
    ASSERT_TRUE(other.roster.ok()) << other.roster.status().to_string();
    other.session->joined();
  }
  zero.session().joined();
  // All that rank 1 has sent, once more, does nothing to the running job.
  relay.stop();
  ASSERT_EQ(relay.dialed().size(), 1u);
  const auto replay = dial_raw(port.address().port, relay.dialed()[0]);
  const Nanos until = monotonic_now() + test_timeout;
  while (zero.session().describe().find(", 2 without our key") == std::string::npos && monotonic_now() < until)
    (void)zero.session().poll_joiners();
  EXPECT_NE(zero.session().describe().find(", 2 without our key"), std::string::npos) << zero.session().describe();
  EXPECT_TRUE(zero.session().attending());
  EXPECT_TRUE(zero.session().formation_error().ok());
  auto joining = meet_with(key, joiner_for(port.address()));
  EXPECT_EQ(wait_for_joiners(zero.session()).size(), 1u);
  zero.session().close();
  EXPECT_FALSE(joining.get().roster.ok());
}

TEST(RendezvousTls, a_connection_carries_no_name_in_clear) {
  const std::string job = "a-job-with-a-long-name";
  for (const auto& key : {Tls(), new_key()}) {
    ReservedPort port(true);
    Relay relay(port.address().port);
    auto options = options_for(0, 2, port.address(), job);
    options.listen_fd = port.fd();
    auto zero = meet_with(key, options);
    auto one = meet_with(key, options_for(1, 2, relay.address(), job));
    auto met = zero.get();
    ASSERT_TRUE(met.roster.ok());
    ASSERT_TRUE(one.get().roster.ok());
    met.session.reset();
    relay.stop();
    ASSERT_GT(relay.carried().size(), 300u);
    std::vector<std::string> secrets{job, "10.0.0.1:1001", "UNIR", "auto"};
    // A shorter name could be among random bytes by chance.
    if (this_host_name().size() >= 5) secrets.push_back(this_host_name());
    for (const auto& secret : secrets) EXPECT_EQ(relay.carried().find(secret) != std::string::npos, key == nullptr) << secret;
  }
}

TEST(RendezvousTls, a_flood_of_connections_does_not_end_a_forming_job) {
  const auto key = new_key();
  ReservedPort port(true);
  Waiting zero(key, 2, port.address(), port.fd());
  // The backlog of the port is 64, and a connection that finds it full waits for a second.
  for (int round = 0; round < 40; ++round) {
    std::vector<Descriptor> many;
    for (int i = 0; i < 20; ++i) many.push_back(dial_raw(port.address().port, round % 2 == 0 ? "" : "\x16\x03\x01"));
  }
  auto one = meet_with(key, options_for(1, 2, port.address()));
  EXPECT_TRUE(zero.roster().ok());
  EXPECT_TRUE(one.get().roster.ok());
  EXPECT_LE(zero.refusals().size(), 8u) << "they are reported at a bounded rate";
}

}  // namespace
}  // namespace unisono
