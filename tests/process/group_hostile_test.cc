// Unauthenticated connections to the ports of a running group: garbage, HTTP, scanners, half-open connections, and hellos of
// another job. None may disturb the group.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "base/concat.h"
#include "base/random.h"
#include "group_cluster.h"
#include "transports/tcp/tcp_greeting.h"
#include "wire/frame.h"

namespace unisono::testing {
namespace {

struct Port {
  sockaddr_storage address{};
  socklen_t size = 0;
};

// Parses an address of /proc/net/tcp, which consists of 32-bit words in host byte order.
Port parse_port(const std::string& text) {
  const auto colon = text.find(':');
  Port port;
  const auto number = htons(static_cast<uint16_t>(std::strtoul(text.c_str() + colon + 1, nullptr, 16)));
  uint32_t words[4] = {};
  for (size_t i = 0; i < colon / 8; ++i)
    words[i] = static_cast<uint32_t>(std::strtoul(text.substr(i * 8, 8).c_str(), nullptr, 16));
  if (colon == 8) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(port.address);
    v4.sin_family = AF_INET;
    v4.sin_port = number;
    v4.sin_addr.s_addr = words[0] == 0 ? htonl(INADDR_LOOPBACK) : words[0];
    port.size = sizeof(v4);
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(port.address);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = number;
    std::memcpy(&v6.sin6_addr, words, sizeof(words));
    if (std::memcmp(words, &in6addr_any, sizeof(words)) == 0) v6.sin6_addr = in6addr_loopback;
    port.size = sizeof(v6);
  }
  return port;
}

// Returns every TCP port at which this process listens.
std::vector<Port> listening_ports(pid_t pid) {
  const auto process = concat("/proc/", pid);
  std::set<std::string> sockets;
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::vector<Port> ports;
  for (const auto* table : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream in(process + table);
    for (std::string line; std::getline(in, line);) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, skip, inode;
      fields >> slot >> local >> remote >> state >> skip >> skip >> skip >> skip >> skip >> inode;
      if (state == "0A" && sockets.contains(inode)) ports.push_back(parse_port(local));
    }
  }
  return ports;
}

class Unauthenticated {
 public:
  explicit Unauthenticated(const Port& port) : fd_(::socket(port.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&port.address), port.size) == 0;
  }
  ~Unauthenticated() { ::close(fd_); }
  Unauthenticated(const Unauthenticated&) = delete;
  bool connected() const { return connected_; }
  void say(const void* bytes, size_t size) const { [[maybe_unused]] const auto sent = ::send(fd_, bytes, size, MSG_NOSIGNAL); }
  void say(const std::string& text) const { say(text.data(), text.size()); }

 private:
  int fd_;
  bool connected_ = false;
};

void say_garbage(const Port& port, Random& random) {
  std::string bytes(1 + random.below(5000), '\0');
  for (auto& byte : bytes) byte = static_cast<char>(random.next());
  Unauthenticated(port).say(bytes);
}

// A preamble and a hello as they lie on the wire.
struct Greeting {
  TcpPreamble preamble;
  TcpSessionHello hello;
};

void seal(Greeting& greeting) {
  greeting.preamble.to = greeting.hello.to;
  unisono::seal(greeting.preamble);
  unisono::seal(greeting.hello, {});
}

// Sends hellos: with a wrong key, with far too many streams, damaged, one that claims to go on with a link, one with frames
// behind it, and a part of one.
void say_hellos(const Port& port, Random& random) {
  Greeting greeting;
  auto& hello = greeting.hello;
  hello.session = random.next();
  hello.attempt = 1;
  hello.from = {random.next(), random.next()};
  hello.to = {random.next(), random.next()};
  const auto say = [&] { Unauthenticated(port).say(&greeting, sizeof greeting); };
  seal(greeting);
  say();
  hello.stream_count = 0xFFFF;
  seal(greeting);
  say();
  hello.stream_count = 1;
  seal(greeting);
  hello.checksum ^= 1;
  say();
  hello.resumes = 1;
  seal(greeting);
  say();
  FrameHeader frame;
  frame.payload_bytes = payload_bytes_max;
  seal_frame(frame);
  Unauthenticated pushy(port);
  pushy.say(&greeting, sizeof greeting);
  for (int i = 0; i < 50; ++i) pushy.say(&frame, sizeof(frame));
  Unauthenticated(port).say(&greeting, random.below(sizeof greeting));
}

void attack(const std::vector<Port>& ports, uint64_t seed) {
  Random random(seed);
  std::vector<std::unique_ptr<Unauthenticated>> half_open;
  for (int turn = 0; turn < 20; ++turn) {
    for (const auto& port : ports) {
      say_garbage(port, random);
      say_hellos(port, random);
      Unauthenticated(port).say("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
      Unauthenticated(port).say("SSH-2.0-OpenSSH_9.2p1\r\n");
      Unauthenticated{port};
      half_open.push_back(std::make_unique<Unauthenticated>(port));
      if (turn % 4 == 0) half_open.back()->say("1");
    }
  }
}

// A TCP port for the rendezvous, which no other process can take: the test opens it, and rank 0 takes it over.
class HeldPort {
 public:
  HeldPort() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    const bool open = ::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(fd_, 64) == 0 &&
                      ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    if (open) number_ = ntohs(address.sin_port);
  }
  ~HeldPort() { ::close(fd_); }
  HeldPort(const HeldPort&) = delete;
  std::string address() const { return concat("tcp://127.0.0.1:", number_); }
  std::string setting() const { return concat("UNISONO_LISTEN_FD=", fd_); }

 private:
  int fd_;
  uint16_t number_ = 0;
};

TEST(Unauthenticated, peers_at_every_port_of_a_running_group_do_no_harm) {
  constexpr uint64_t seed = 815;
  HeldPort meeting;
  Cluster group(3, {.transport = "tcp", .environment = {meeting.setting()}, .rendezvous = meeting.address()});
  std::vector<Port> ports;
  for (size_t rank = 0; rank < 3; ++rank) {
    const auto own = listening_ports(group[rank].pid());
    EXPECT_FALSE(own.empty());
    ports.insert(ports.end(), own.begin(), own.end());
  }
  for (const auto& port : ports) EXPECT_TRUE(Unauthenticated(port).connected());
  std::printf("    %zu ports, seed %llu\n", ports.size(), static_cast<unsigned long long>(seed));
  std::atomic<bool> over = false;
  std::thread attacker([&] {
    attack(ports, seed);
    over = true;
  });
  int rounds = 0;
  do {
    expect_all_ok(group.ask_all("all_reduce:count=50000,iters=50,check=1"));
    expect_all_ok(group.ask_all("matrix:counts=3"));
    ++rounds;
  } while (!over);
  attacker.join();
  std::printf("    %d rounds beside the attack\n", rounds);
  expect_all_ok(group.ask_all("reform"));
  expect_all_ok(group.ask_all("all_reduce:count=50000"));
  group.finish();
}

TEST(Unauthenticated, peers_do_not_keep_a_group_from_forming_or_a_process_from_joining) {
  HeldPort meeting;
  Cluster group(2, {.transport = "tcp", .environment = {meeting.setting()}, .rendezvous = meeting.address()});
  std::vector<std::unique_ptr<Unauthenticated>> half_open;
  for (const auto& port : listening_ports(group[0].pid())) {
    for (int i = 0; i < 40; ++i) half_open.push_back(std::make_unique<Unauthenticated>(port));
  }
  auto& newcomer = group.add_joiner();
  int64_t world = 2;
  for (int i = 0; i < 2000 && world == 2 && !HasFailure(); ++i) {
    const auto lines = group.ask({0, 1}, "reform");
    expect_all_ok(lines);
    world = lines[0].number("world");
  }
  EXPECT_EQ(world, 3);
  EXPECT_TRUE(newcomer.answer(0).ok());
  expect_all_ok(group.ask_all("all_reduce:count=50000"));
  group.finish();
}

TEST(SecondJob, at_the_same_rendezvous_is_refused_and_does_no_harm) {
  HeldPort meeting;
  Cluster group(2, {.transport = "tcp", .environment = {meeting.setting()}, .rendezvous = meeting.address()});
  const auto loops = group.send_command({0, 1}, "all_reduce:count=50000,iters=100,check=1");
  std::vector<std::unique_ptr<RankProcess>> others;
  for (int rank = 0; rank < 2; ++rank) {
    others.push_back(
        std::make_unique<RankProcess>(group.folder(), concat("other", rank),
                                      std::vector<std::string>{"UNISONO_JOB=other", "UNISONO_RENDEZVOUS=" + meeting.address(),
                                                               concat("RANK=", rank), "WORLD_SIZE=2"},
                                      std::vector<std::string>{"join:timeout=2000"}));
  }
  for (auto& other : others) {
    const auto line = other->answer(0);
    EXPECT_FALSE(line.ok()) << line.text;
    EXPECT_TRUE(line.says("job")) << line.text;
    std::printf("    reported: %s\n", line.message().c_str());
    other->finish();
  }
  expect_all_ok(group.answers({0, 1}, loops));
  expect_all_ok(group.ask_all("reform"));
  group.finish();
}

}  // namespace
}  // namespace unisono::testing
