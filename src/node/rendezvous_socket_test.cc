#include "node/rendezvous_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "transports/tcp_socket.h"

namespace unisono {
namespace {

constexpr Nanos plenty = 20 * second;

std::vector<std::string> endpoints_of(uint32_t rank) { return {"tcp://10.0.0.1:" + std::to_string(1000 + rank)}; }

// A port of the kernel's choice that nobody else gets while this lives. Listening: for rank 0 to take over. Otherwise a
// server that names the port can still open it, and until then connections are refused.
class Port {
 public:
  explicit Port(bool listening = false, int family = AF_INET)
      : family_(family), socket_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    (void)setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_storage address{};
    socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    address.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET) reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (family == AF_INET6) reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
    usable_ = socket_.open() && bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0;
    if (listening) usable_ = usable_ && listen(socket_.get(), 64) == 0;
    (void)getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    number_ = ntohs(family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                      : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
  }
  bool usable() const { return usable_; }
  int fd() const { return socket_.get(); }
  RendezvousAddress address() const {
    return {
        .kind = RendezvousAddress::Kind::tcp, .host = family_ == AF_INET ? "127.0.0.1" : "::1", .port = number_, .path = {}};
  }
  std::string number() const { return std::to_string(number_); }

 private:
  int family_;
  Descriptor socket_;
  uint16_t number_ = 0;
  bool usable_ = false;
};

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "unisono-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

RendezvousAddress file_address(const std::string& path) {
  return {.kind = RendezvousAddress::Kind::file, .host = {}, .port = 0, .path = path};
}

ResolvedOptions options_for(uint32_t rank, uint32_t world, const RendezvousAddress& address, const std::string& job = "job") {
  ResolvedOptions options;
  options.rank = rank;
  options.world_size = world;
  options.rendezvous = address;
  options.job = job;
  return options;
}

ResolvedOptions joiner_for(const RendezvousAddress& address, const std::string& job = "job") {
  ResolvedOptions options = options_for(0, 0, address, job);
  options.join_running = true;
  return options;
}

using SessionPointer = std::unique_ptr<RendezvousSession>;
struct Met {
  SessionPointer session;
  Result<Roster> roster = Status(Code::internal, "not met");
};

SessionPointer open_session(const ResolvedOptions& options) {
  auto session = RendezvousSession::make(options, *random_peer_id(), endpoints_of(options.rank));
  EXPECT_TRUE(session.ok()) << session.status().to_string();
  return session.ok() ? std::move(*session) : nullptr;
}

std::future<Met> meet(const ResolvedOptions& options, Nanos timeout = plenty) {
  return std::async(std::launch::async, [options, timeout] {
    Met met;
    met.session = open_session(options);
    met.roster = met.session->meet(monotonic_now() + timeout);
    return met;
  });
}

std::vector<Met> meet_all(uint32_t world, const RendezvousAddress& address, int listen_fd = -1,
                          const std::string& job = "job") {
  std::vector<std::future<Met>> futures;
  for (uint32_t i = 0; i < world; ++i) {
    auto options = options_for(world - 1 - i, world, address, job);  // rank 0 last: the others have to wait for it
    if (options.rank == 0) options.listen_fd = listen_fd;
    futures.push_back(meet(options));
  }
  std::vector<Met> all(world);
  for (uint32_t i = 0; i < world; ++i) all[world - 1 - i] = futures[i].get();
  return all;
}

void expect_met(const std::vector<Met>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    ASSERT_TRUE(all[rank].roster.ok()) << all[rank].roster.status().to_string();
    EXPECT_EQ(*all[rank].roster, *all[0].roster);
    EXPECT_EQ(all[rank].session->attending(), rank == 0);
    EXPECT_EQ(all[0].roster->members[rank].endpoints, endpoints_of(static_cast<uint32_t>(rank)));
    EXPECT_EQ(all[0].roster->members[rank].host, this_host_name());
    EXPECT_EQ(all[0].roster->members[rank].pid, getpid());
  }
}

void expect_error(const Result<Roster>& roster, Code code, std::initializer_list<std::string> parts) {
  ASSERT_FALSE(roster.ok());
  EXPECT_EQ(roster.status().code(), code) << roster.status().to_string();
  for (const auto& part : parts)
    EXPECT_NE(roster.status().message().find(part), std::string::npos)
        << "'" << part << "' is not in: " << roster.status().message();
}

// Polls until a joiner is there, sleeping on the session's descriptor only.
std::vector<MemberRecord> wait_for_joiners(RendezvousSession& session, size_t count = 1) {
  const Nanos until = monotonic_now() + plenty;
  for (auto joiners = session.poll_joiners();; joiners = session.poll_joiners()) {
    if (joiners.size() >= count || monotonic_now() > until) return joiners;
    pollfd handle{session.wait_handle(), POLLIN, 0};
    (void)poll(&handle, 1, 1000);
  }
}

Roster with_joiner(Roster roster, MemberRecord joiner) {
  roster.epoch++;
  joiner.rank = static_cast<uint32_t>(roster.members.size());
  roster.members.push_back(std::move(joiner));
  return roster;
}

Descriptor dial(const RendezvousAddress& address) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return socket;
}

TEST(RendezvousSession, ranks_meet_over_ipv4) {
  Port port(true);
  expect_met(meet_all(5, port.address(), port.fd()));
}

TEST(RendezvousSession, ranks_meet_over_ipv6) {
  Port port(true, AF_INET6);
  if (!port.usable()) GTEST_SKIP() << "no IPv6 loopback here";
  expect_met(meet_all(3, port.address(), port.fd()));
}

TEST(RendezvousSession, rank_0_opens_the_port_that_its_launcher_holds) {
  Port port;
  expect_met(meet_all(4, port.address()));
}

TEST(RendezvousSession, ranks_meet_by_name) {
  Port port;
  auto address = port.address();
  address.host = "localhost";
  expect_met(meet_all(3, address));
}

TEST(RendezvousSession, ranks_meet_in_a_folder_that_rank_0_makes) {
  Folder folder;
  expect_met(meet_all(4, file_address(folder.path("meet"))));
}

TEST(RendezvousSession, ranks_meet_beside_a_file) {
  Folder folder;
  std::ofstream(folder.path("meet.txt")) << "anything";
  expect_met(meet_all(3, file_address(folder.path("meet.txt"))));
}

TEST(RendezvousSession, ranks_meet_at_a_path_longer_than_a_socket_address) {
  Folder folder;
  const auto deep = folder.path(std::string(120, 'd'));
  ASSERT_EQ(mkdir(deep.c_str(), 0700), 0);
  expect_met(meet_all(2, file_address(deep + "/meet")));
}

TEST(RendezvousSession, a_socket_that_a_dead_run_left_is_replaced) {
  Folder folder;
  ASSERT_EQ(mkdir(folder.path("meet").c_str(), 0700), 0);
  {
    Descriptor dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const auto name = folder.path("meet/rendezvous.sock");
    ASSERT_LT(name.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  expect_met(meet_all(3, file_address(folder.path("meet"))));
}

TEST(RendezvousSession, one_run_after_another_meets_at_one_place) {
  Folder folder;
  Port port;
  for (int run = 0; run < 3; ++run) {
    expect_met(meet_all(2, file_address(folder.path("meet"))));
    expect_met(meet_all(2, port.address()));
  }
}

TEST(RendezvousSession, a_group_of_one_needs_no_address) {
  auto session = open_session(options_for(0, 1, {}));
  const auto roster = session->meet(monotonic_now() + plenty);
  ASSERT_TRUE(roster.ok());
  EXPECT_EQ(roster->members.size(), 1u);
  EXPECT_EQ(roster->epoch, 1u);
  EXPECT_TRUE(session->poll_joiners().empty());
}

TEST(RendezvousSession, nobody_listening_is_said_with_what_was_tried) {
  Port port;
  auto met = meet(options_for(1, 2, port.address()), 300 * millisecond).get();
  expect_error(met.roster, Code::unavailable,
               {"tcp://127.0.0.1:" + port.number() + ": connection refused",
                " times over 0.3 s; tried address 127.0.0.1; is rank 0 up?"});
}

TEST(RendezvousSession, a_folder_that_nobody_made_is_said) {
  Folder folder;
  auto met = meet(options_for(1, 2, file_address(folder.path("meet"))), 100 * millisecond).get();
  expect_error(met.roster, Code::unavailable, {"file://" + folder.path("meet"), "no such file or directory", "is rank 0 up?"});
}

TEST(RendezvousSession, a_place_that_cannot_be_made_fails_at_once_on_rank_0) {
  Folder folder;
  auto met = meet(options_for(0, 2, file_address(folder.path("no/such/place")))).get();
  expect_error(met.roster, Code::invalid, {"cannot make the folder", "no such file or directory"});
}

TEST(RendezvousSession, a_name_that_does_not_resolve_is_said_by_the_deadline) {
  const RendezvousAddress address{
      .kind = RendezvousAddress::Kind::tcp, .host = "no-such-host.invalid", .port = 29500, .path = {}};
  const Nanos start = monotonic_now();
  auto met = meet(options_for(1, 2, address), 300 * millisecond).get();
  expect_error(met.roster, Code::unavailable, {"tcp://no-such-host.invalid:29500", "the name no-such-host.invalid "});
  EXPECT_LT(monotonic_now() - start, 5 * second) << "the system's resolver must not hold it up";
}

TEST(RendezvousSession, a_missing_rank_is_named_to_all_who_came) {
  Port port(true);
  auto options = options_for(0, 3, port.address());
  options.listen_fd = port.fd();
  auto zero = meet(options, 400 * millisecond);
  auto two = meet(options_for(2, 3, port.address()), 400 * millisecond);
  const std::string here = this_host_name();
  for (auto* future : {&zero, &two})
    expect_error(future->get().roster, Code::late,
                 {"rank 1 of 3 missing after 0.", "here: rank 0 (host " + here, "rank 2 (host " + here});
}

TEST(RendezvousSession, a_late_rank_is_told_why_there_is_no_group) {
  Port port(true);
  auto options = options_for(0, 2, port.address());
  options.listen_fd = port.fd();
  auto zero = meet(options);
  auto wrong = meet(options_for(1, 4, port.address()));
  expect_error(zero.get().roster, Code::invalid, {"disagree on the world size"});
  expect_error(wrong.get().roster, Code::invalid, {"says 2", "says 4"});
}

TEST(RendezvousSession, another_job_at_the_address_is_told_and_harms_nobody) {
  Port port;
  auto zero = meet(options_for(0, 2, port.address(), "first"));
  auto one = meet(options_for(1, 2, port.address(), "first"));
  Met first = zero.get();
  ASSERT_TRUE(first.roster.ok()) << first.roster.status().to_string();
  ASSERT_TRUE(one.get().roster.ok());
  auto intruder = meet(options_for(0, 2, port.address(), "second"));
  const Nanos until = monotonic_now() + plenty;
  while (intruder.wait_for(std::chrono::seconds(0)) != std::future_status::ready && monotonic_now() < until) {
    pollfd handle{first.session->wait_handle(), POLLIN, 0};
    (void)poll(&handle, 1, 20);
    (void)first.session->poll_joiners();
  }
  expect_error(intruder.get().roster, Code::invalid, {"belongs to job 'second'", "serves job 'first'"});
  EXPECT_NE(first.session->describe().find("turned away: 1 processes"), std::string::npos) << first.session->describe();
}

// A program that listens where the rendezvous should be.
class OtherProgram {
 public:
  OtherProgram(const Port& port, std::string says, bool hangs_up)
      : port_(port), says_(std::move(says)), hangs_up_(hangs_up), thread_([this] { run(); }) {}
  ~OtherProgram() {
    (void)shutdown(port_.fd(), SHUT_RDWR);  // wakes accept
    thread_.join();
  }

 private:
  void run() {
    std::vector<Descriptor> open;
    for (;;) {
      Descriptor socket(accept(port_.fd(), nullptr, nullptr));
      if (!socket.open()) return;
      (void)send_some(socket.get(), ByteView(reinterpret_cast<const std::byte*>(says_.data()), says_.size()));
      if (!hangs_up_) open.push_back(std::move(socket));
    }
  }
  const Port& port_;
  std::string says_;
  bool hangs_up_;
  std::thread thread_;
};

TEST(RendezvousSession, an_http_server_at_the_port_is_named_at_once) {
  Port port(true);
  const OtherProgram other(port, "HTTP/1.1 400 Bad Request\r\n\r\n", false);
  for (const uint32_t rank : {0u, 1u}) {
    auto met = meet(options_for(rank, 2, port.address())).get();
    expect_error(met.roster, Code::unavailable,
                 {"port " + port.number() + " is taken by another program: an HTTP server answered"});
  }
}

TEST(RendezvousSession, a_program_that_hangs_up_at_the_port_is_found_out_by_rank_0) {
  Port port(true);
  const OtherProgram other(port, "", true);
  auto met = meet(options_for(0, 2, port.address())).get();
  expect_error(met.roster, Code::unavailable,
               {"port " + port.number() + " is taken by another program", "address already in use"});
}

TEST(RendezvousSession, a_program_that_says_nothing_at_the_port_is_named_at_the_deadline) {
  Port port(true);
  const OtherProgram other(port, "", false);
  auto met = meet(options_for(1, 2, port.address()), 300 * millisecond).get();
  expect_error(met.roster, Code::unavailable, {"connection accepted now, but no answer yet"});
}

TEST(RendezvousSession, a_listening_socket_that_is_none_is_refused) {
  Port port;
  auto options = options_for(0, 2, port.address());
  options.listen_fd = port.fd();
  expect_error(meet(options).get().roster, Code::invalid,
               {"UNISONO_LISTEN_FD=" + std::to_string(port.fd()) + " is not a listening socket"});
  options.listen_fd = 999'999;
  expect_error(meet(options).get().roster, Code::invalid, {"UNISONO_LISTEN_FD=999999"});
}

TEST(RendezvousSession, strangers_at_the_port_do_no_harm_and_are_counted) {
  Port port;
  auto zero = meet(options_for(0, 2, port.address()));
  Descriptor http;
  Descriptor silent;
  {
    // Rank 0 is not there yet, perhaps: a first meeting of two tells when it is.
    auto wrong = meet(options_for(1, 2, port.address(), "other")).get();
    EXPECT_EQ(wrong.roster.status().code(), Code::invalid);
    http = dial(port.address());
    silent = dial(port.address());
    const std::string_view request = "GET / HTTP/1.1\r\n\r\n";
    ASSERT_EQ(send_some(http.get(), ByteView(reinterpret_cast<const std::byte*>(request.data()), request.size())),
              static_cast<ptrdiff_t>(request.size()));
    std::string reply(1000, '\0');
    const auto size = recv(http.get(), reply.data(), reply.size(), 0);
    EXPECT_NE(reply.substr(0, static_cast<size_t>(std::max<ptrdiff_t>(size, 0))).find("rendezvous port of a Unisono job"),
              std::string::npos);
  }
  EXPECT_TRUE(meet(options_for(1, 2, port.address())).get().roster.ok());
  const Met met = zero.get();
  EXPECT_TRUE(met.roster.ok());
  EXPECT_NE(met.session->describe().find("1 processes, 1 HTTP clients"), std::string::npos) << met.session->describe();
}

TEST(RendezvousSession, a_joiner_is_announced_and_taken_in) {
  Port port;
  auto all = meet_all(2, port.address());
  expect_met(all);
  auto future = meet(joiner_for(port.address()));
  const auto joiners = wait_for_joiners(*all[0].session);
  ASSERT_EQ(joiners.size(), 1u);
  EXPECT_TRUE(all[1].session->poll_joiners().empty());
  const Roster next = with_joiner(*all[0].roster, joiners[0]);
  all[0].session->answer_joiner(joiners[0].id, next);
  const Met joined = future.get();
  ASSERT_TRUE(joined.roster.ok()) << joined.roster.status().to_string();
  EXPECT_EQ(*joined.roster, next);
  EXPECT_TRUE(all[0].session->poll_joiners().empty());
}

TEST(RendezvousSession, a_joiner_is_told_why_it_is_not_taken_in) {
  Folder folder;
  auto all = meet_all(1, file_address(folder.path("meet")));
  auto future = meet(joiner_for(file_address(folder.path("meet"))));
  const auto joiners = wait_for_joiners(*all[0].session);
  ASSERT_EQ(joiners.size(), 1u);
  all[0].session->answer_joiner(joiners[0].id, Status(Code::unavailable, "the group is closing"));
  expect_error(future.get().roster, Code::unavailable, {"the group is closing"});
}

TEST(RendezvousSession, a_joiner_that_nobody_takes_in_is_told_by_its_deadline) {
  Port port;
  auto all = meet_all(1, port.address());
  auto future = meet(joiner_for(port.address()), 300 * millisecond);
  const Nanos until = monotonic_now() + plenty;
  while (future.wait_for(std::chrono::seconds(0)) != std::future_status::ready && monotonic_now() < until) {
    pollfd handle{all[0].session->wait_handle(), POLLIN, 0};
    (void)poll(&handle, 1, 20);
    (void)all[0].session->poll_joiners();
  }
  expect_error(future.get().roster, Code::late, {"was not re-formed while this process waited to join"});
}

TEST(RendezvousSession, the_new_rank_0_serves_at_the_same_place_after_the_old_one_died) {
  Folder folder;
  Port port;
  for (const auto& address : {port.address(), file_address(folder.path("meet"))}) {
    auto all = meet_all(3, address);
    expect_met(all);
    Roster next = *all[0].roster;
    all[0].session.reset();
    next.epoch++;
    next.members.erase(next.members.begin());
    for (uint32_t rank = 0; rank < 2; ++rank) next.members[rank].rank = rank;
    all[1].session->attend(next);
    auto future = meet(joiner_for(address));
    const auto joiners = wait_for_joiners(*all[1].session);
    ASSERT_EQ(joiners.size(), 1u) << address.to_string();
    EXPECT_TRUE(all[1].session->attending());
    all[1].session->answer_joiner(joiners[0].id, with_joiner(next, joiners[0]));
    EXPECT_TRUE(future.get().roster.ok());
  }
}

TEST(RendezvousSession, closing_tells_the_joiners_that_wait) {
  Port port;
  auto all = meet_all(1, port.address());
  auto future = meet(joiner_for(port.address()));
  ASSERT_EQ(wait_for_joiners(*all[0].session).size(), 1u);
  all[0].session.reset();
  expect_error(future.get().roster, Code::unavailable, {"job 'job' has ended"});
}

// A standalone server on a thread of its own.
class Standalone {
 public:
  explicit Standalone(const RendezvousAddress& listen) {
    std::promise<RendezvousAddress> ready;
    auto address = ready.get_future();
    thread_ = std::thread([this, listen, ready = std::move(ready)]() mutable {
      status_ = serve_rendezvous({.listen = listen}, stop_, [&](const RendezvousEvent& event) {
        if (event.kind == RendezvousEvent::Kind::listening) ready.set_value(event.address);
        const std::lock_guard lock(mutex_);
        events_ += event.job + ": " + event.text + "\n";
      });
    });
    address_ = address.get();
  }
  ~Standalone() { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    EXPECT_TRUE(status_.ok()) << status_.to_string();
  }
  const RendezvousAddress& address() const { return address_; }
  bool has_event(const std::string& text) {
    const std::lock_guard lock(mutex_);
    return events_.find(text) != std::string::npos;
  }

 private:
  std::atomic<bool> stop_ = false;
  RendezvousAddress address_;
  Status status_;
  std::mutex mutex_;
  std::string events_;
  std::thread thread_;
};

TEST(StandaloneRendezvous, serves_jobs_at_once_and_one_after_another) {
  Standalone server({.kind = RendezvousAddress::Kind::tcp, .host = "127.0.0.1", .port = 0, .path = {}});
  auto b = std::async(std::launch::async, [&] { return meet_all(3, server.address(), -1, "b"); });
  for (int run = 0; run < 3; ++run) expect_met(meet_all(2, server.address(), -1, "a"));
  expect_met(b.get());
  EXPECT_TRUE(server.has_event("a: 2 ranks\n"));
  EXPECT_TRUE(server.has_event("b: 3 ranks\n"));
}

TEST(StandaloneRendezvous, keeps_announcing_joiners_and_survives_rank_0) {
  Standalone server({.kind = RendezvousAddress::Kind::tcp, .host = "127.0.0.1", .port = 0, .path = {}});
  auto all = meet_all(2, server.address());
  expect_met(all);
  auto first = meet(joiner_for(server.address()));
  auto joiners = wait_for_joiners(*all[0].session);
  ASSERT_EQ(joiners.size(), 1u);
  Roster next = with_joiner(*all[0].roster, joiners[0]);
  all[0].session->answer_joiner(joiners[0].id, next);
  ASSERT_TRUE(first.get().roster.ok());
  all[0].session.reset();
  next.epoch++;
  next.members.erase(next.members.begin());
  for (uint32_t rank = 0; rank < 2; ++rank) next.members[rank].rank = rank;
  all[1].session->attend(next);
  auto second_joiner = meet(joiner_for(server.address()));
  joiners = wait_for_joiners(*all[1].session);
  ASSERT_EQ(joiners.size(), 1u);
  all[1].session->answer_joiner(joiners[0].id, with_joiner(next, joiners[0]));
  EXPECT_TRUE(second_joiner.get().roster.ok());
}

TEST(StandaloneRendezvous, takes_precedence_over_rank_0_at_a_file) {
  Folder folder;
  Standalone server(file_address(folder.path("meet")));
  expect_met(meet_all(2, server.address()));
}

TEST(StandaloneRendezvous, tells_those_who_wait_when_it_is_stopped) {
  Standalone server({.kind = RendezvousAddress::Kind::tcp, .host = "127.0.0.1", .port = 0, .path = {}});
  auto member = meet(options_for(1, 2, server.address(), "a"));
  auto joiner = meet(joiner_for(server.address(), "b"));
  const Nanos until = monotonic_now() + plenty;
  while ((!server.has_event("a: rank 1 ") || !server.has_event("b: joiner ")) && monotonic_now() < until)
    std::this_thread::yield();
  server.stop();
  expect_error(member.get().roster, Code::unavailable, {"was stopped"});
  expect_error(joiner.get().roster, Code::unavailable, {"was stopped"});
}

TEST(StandaloneRendezvous, says_that_its_port_is_taken) {
  Port port(true);
  std::atomic<bool> stop = false;
  const auto status = serve_rendezvous({.listen = port.address()}, stop, {});
  EXPECT_EQ(status.code(), Code::unavailable);
  EXPECT_NE(status.message().find("address already in use (taken by another program)"), std::string::npos) << status.message();
}

TEST(Identity, is_new_every_time) { EXPECT_NE(*random_peer_id(), *random_peer_id()); }

}  // namespace
}  // namespace unisono
