// What TCP adds to the promises of every transport: how links come together, and what strangers at the port cannot do.
#include "transports/tcp_transport.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../tests/conformance/transport_promises_data.h"

namespace unisono::conformance {
namespace {

const PeerId id_a{1, 100}, id_b{2, 200};

JobKey job(uint8_t fill = 0x5A) {
  JobKey key;
  key.fill(std::byte{fill});
  return key;
}

std::unique_ptr<TcpTransport> transport(PeerId self, TcpOptions options = {}) {
  options.self = self;
  if (options.interface.empty()) options.interface = "127.0.0.1";
  auto made = TcpTransport::make(options);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? std::move(*made) : nullptr;
}

LinkRequest request(PeerId to, std::vector<std::string> endpoints, bool dial, Nanos within = patience) {
  LinkRequest request;
  request.peer = 0;
  request.id = to;
  request.label = "rank 3 (host b, pid 42)";
  request.endpoints = std::move(endpoints);
  request.dial = dial;
  request.deadline = clock_now() + within;
  return request;
}

// Two transports, driven by the real clock unless a test gives times.
class Tcp : public testing::Test {
 protected:
  void SetUp() override {
    a = transport(id_a);
    b = transport(id_b);
    ASSERT_TRUE(a && b);
    a->set_job(job());
    b->set_job(job());
    hear_a = std::make_unique<Recorder>(a.get());
    hear_b = std::make_unique<Recorder>(b.get());
  }
  void turn() {
    a->poll(clock_now(), *hear_a);
    if (b) b->poll(clock_now(), *hear_b);
  }
  bool until(const std::function<bool()>& done) {
    for (const auto limit = clock_now() + patience; !done();) {
      if (clock_now() > limit) return false;
      turn();
    }
    return true;
  }
  bool both_up() { return a->state(0) == LinkState::up && b->state(0) == LinkState::up; }
  void link() {
    ASSERT_TRUE(a->add_peer(request(id_b, b->endpoints(), true)).ok());
    ASSERT_TRUE(b->add_peer(request(id_a, a->endpoints(), false)).ok());
    ASSERT_TRUE(until([&] { return both_up(); }));
  }
  void expect_link_works() {
    const auto payload = pattern(100'000, test_seed());
    const auto before = hear_b->frames.size();
    ASSERT_TRUE(until([&] { return a->room(0) > 0; }));
    a->send(0, data_header(1, payload.size()), payload, 1);
    ASSERT_TRUE(until([&] { return hear_b->frames.size() == before + 1; }));
    EXPECT_EQ(hear_b->frames.back().payload, payload);
    EXPECT_TRUE(hear_a->losses.empty());
    EXPECT_TRUE(hear_b->losses.empty());
  }
  const Status& loss_of_a() { return hear_a->losses[0].at(0); }

  std::unique_ptr<TcpTransport> a, b;
  std::unique_ptr<Recorder> hear_a, hear_b;
};

// A connection that is not ours.
class Stranger {
 public:
  explicit Stranger(const TcpTransport& to) {
    const auto address = *parse_tcp_endpoint(to.endpoints().at(0));
    socket_ = Descriptor(::socket(address.family(), SOCK_STREAM, 0));
    connected_ = ::connect(socket_.get(), address.get(), address.bytes) == 0;
  }
  bool connected() const { return connected_; }
  void say(ByteView bytes) { (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void say(const std::string& text) { say(std::as_bytes(std::span(text))); }
  void say(const TcpHello& hello) { say(std::as_bytes(std::span(&hello, 1))); }
  bool closed() {
    for (;;) {
      std::array<std::byte, 64> scratch;
      bool ended = false;
      const auto count = receive_some(socket_.get(), scratch, ended);
      if (count <= 0) return ended || count < 0;
      heard_.insert(heard_.end(), scratch.begin(), scratch.begin() + count);
    }
  }
  const Bytes& heard() const { return heard_; }
  TcpRefusal refusal() const {
    TcpReply reply;
    if (heard_.size() < sizeof reply) return TcpRefusal::none;
    std::memcpy(&reply, heard_.data(), sizeof reply);
    return reply.accepted == 0 ? reply.reason : TcpRefusal::none;
  }
  void go() { socket_.reset(); }

 private:
  Descriptor socket_;
  bool connected_ = false;
  Bytes heard_;
};

TcpHello hello_from(PeerId from, PeerId to, const JobKey& key = job()) {
  TcpHello hello;
  hello.key = key;
  hello.from = from;
  hello.to = to;
  seal_hello(hello);
  return hello;
}

// Coming together. ---------------------------------------------------------------------------------------------------

TEST_F(Tcp, a_link_names_its_addresses_and_interface) {
  link();
  EXPECT_NE(a->describe(0).find("tcp 127.0.0.1:"), std::string::npos) << a->describe(0);
  EXPECT_NE(a->describe(0).find("-> " + b->endpoints()[0].substr(6) + " (lo)"), std::string::npos) << a->describe(0);
}

TEST_F(Tcp, the_dialler_may_come_long_before_the_other_side_adds_it) {
  ASSERT_TRUE(a->add_peer(request(id_b, b->endpoints(), true)).ok());
  for (int i = 0; i < 200; ++i) turn();
  EXPECT_EQ(a->state(0), LinkState::connecting);
  ASSERT_TRUE(b->add_peer(request(id_a, {}, false)).ok());
  EXPECT_TRUE(until([&] { return both_up(); }));
}

TEST_F(Tcp, connections_wait_until_the_job_is_known) {
  auto late = transport(id_b);
  Recorder hear(late.get());
  ASSERT_TRUE(late->add_peer(request(id_a, {}, false)).ok());
  ASSERT_TRUE(a->add_peer(request(id_b, late->endpoints(), true)).ok());
  for (int i = 0; i < 200; ++i) {
    turn();
    late->poll(clock_now(), hear);
  }
  EXPECT_EQ(late->state(0), LinkState::connecting);
  late->set_job(job());
  EXPECT_TRUE(until([&] {
    late->poll(clock_now(), hear);
    return a->state(0) == LinkState::up && late->state(0) == LinkState::up;
  }));
}

TEST_F(Tcp, unreachable_addresses_do_not_keep_the_reachable_one_from_winning) {
  // Nobody listens at the first; the second belongs to this process itself; the third is right.
  const auto nobody = transport(PeerId{9, 9})->endpoints()[0];
  std::vector<std::string> endpoints = {nobody, a->endpoints()[0], "shm://host/name", b->endpoints()[0]};
  ASSERT_TRUE(a->add_peer(request(id_b, endpoints, true)).ok());
  ASSERT_TRUE(b->add_peer(request(id_a, {}, false)).ok());
  EXPECT_TRUE(until([&] { return both_up(); }));
  expect_link_works();
}

TEST_F(Tcp, a_link_that_never_comes_up_names_every_address_and_its_error) {
  const auto nobody = transport(PeerId{9, 9})->endpoints()[0];
  ASSERT_TRUE(a->add_peer(request(id_b, {nobody, a->endpoints()[0]}, true, 300 * millisecond)).ok());
  ASSERT_TRUE(until([&] { return !hear_a->losses.empty(); }));
  EXPECT_EQ(loss_of_a().code(), Code::unavailable);
  const auto& text = loss_of_a().message();
  EXPECT_NE(text.find("rank 3 (host b, pid 42)"), std::string::npos) << text;
  EXPECT_NE(text.find(nobody.substr(6) + ": connection refused"), std::string::npos) << text;
  EXPECT_NE(text.find(a->endpoints()[0].substr(6) + ": refused: another process is there"), std::string::npos) << text;
  EXPECT_EQ(a->state(0), LinkState::lost);
}

TEST_F(Tcp, who_waits_in_vain_says_where_it_waited) {
  ASSERT_TRUE(a->add_peer(request(id_b, {}, false, 50 * millisecond)).ok());
  ASSERT_TRUE(until([&] { return !hear_a->losses.empty(); }));
  EXPECT_EQ(loss_of_a().code(), Code::unavailable);
  EXPECT_NE(loss_of_a().message().find(a->endpoints()[0]), std::string::npos) << loss_of_a().message();
}

TEST_F(Tcp, another_job_is_refused_at_once_by_name) {
  b->set_job(job(0x77));
  ASSERT_TRUE(a->add_peer(request(id_b, b->endpoints(), true)).ok());
  ASSERT_TRUE(b->add_peer(request(id_a, {}, false)).ok());
  ASSERT_TRUE(until([&] { return !hear_a->losses.empty(); }));
  EXPECT_EQ(loss_of_a().code(), Code::unavailable);
  EXPECT_NE(loss_of_a().message().find("another job"), std::string::npos) << loss_of_a().message();
  EXPECT_EQ(b->counters().refused_connections, 1u);
  EXPECT_EQ(b->state(0), LinkState::connecting);
}

TEST_F(Tcp, an_index_can_be_used_again_after_lost_and_after_close) {
  link();
  b->close(0);
  ASSERT_TRUE(until([&] { return !hear_a->losses.empty(); }));
  hear_a->losses.clear();
  link();
  expect_link_works();
  a->close(0);
  ASSERT_TRUE(until([&] { return !hear_b->losses.empty(); }));
  hear_b->losses.clear();
  link();
  expect_link_works();
}

TEST_F(Tcp, bad_requests_are_refused) {
  EXPECT_EQ(a->add_peer(request(id_a, b->endpoints(), true)).code(), Code::invalid) << "itself";
  EXPECT_EQ(a->add_peer(request(id_b, {}, true)).code(), Code::invalid) << "nowhere to dial";
  EXPECT_EQ(a->add_peer(request(id_b, {"tcp://nonsense"}, true)).code(), Code::invalid);
  auto far = request(id_b, b->endpoints(), true);
  far.peer = UINT32_MAX;
  EXPECT_EQ(a->add_peer(far).code(), Code::invalid);
  auto keyless = transport(PeerId{5, 5});
  EXPECT_EQ(keyless->add_peer(request(id_b, b->endpoints(), true)).code(), Code::invalid) << "no key";
}

TEST_F(Tcp, the_loss_of_a_link_names_peer_cause_addresses_and_bytes) {
  link();
  expect_link_works();
  b.reset();
  ASSERT_TRUE(until([&] { return !hear_a->losses.empty(); }));
  const auto& text = loss_of_a().message();
  EXPECT_EQ(loss_of_a().code(), Code::peer_lost);
  EXPECT_NE(text.find("rank 3 (host b, pid 42): "), std::string::npos) << text;
  EXPECT_NE(text.find("closed the connection; tcp 127.0.0.1:"), std::string::npos) << text;
  EXPECT_NE(text.find("100064 bytes sent, 0 received"), std::string::npos) << text;
}

TEST(TcpMake, names_a_port_that_is_taken) {
  const auto first = transport(id_a);
  const auto second = TcpTransport::make({.self = id_b, .interface = "127.0.0.1", .port = first->port()});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::unavailable);
  const auto& text = second.status().message();
  EXPECT_NE(text.find("127.0.0.1:" + std::to_string(first->port()) + ": address already in use"), std::string::npos) << text;
}

TEST(TcpMake, names_the_interfaces_there_are_when_one_is_unknown) {
  const auto made = TcpTransport::make({.interface = "nonesuch0"});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::invalid);
  EXPECT_NE(made.status().message().find("lo 127.0.0.1"), std::string::npos) << made.status().message();
}

TEST(TcpMake, refuses_impossible_numbers_of_streams) {
  EXPECT_EQ(TcpTransport::make({.streams = 0}).status().code(), Code::invalid);
  EXPECT_EQ(TcpTransport::make({.streams = tcp_streams_max + 1u}).status().code(), Code::invalid);
}

TEST(TcpMake, listens_everywhere_by_default_loopback_last) {
  auto made = TcpTransport::make({.self = id_a});
  ASSERT_TRUE(made.ok());
  const auto endpoints = (*made)->endpoints();
  ASSERT_FALSE(endpoints.empty());
  EXPECT_TRUE(parse_tcp_endpoint(endpoints.back())->is_loopback()) << endpoints.back();
  for (const auto& endpoint : endpoints) EXPECT_EQ(parse_tcp_endpoint(endpoint)->port(), (*made)->port());
}

TEST(TcpMake, an_interface_by_name_has_one_port_on_all_its_addresses) {
  auto made = TcpTransport::make({.self = id_a, .interface = "lo"});
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  for (const auto& endpoint : (*made)->endpoints()) {
    const auto address = *parse_tcp_endpoint(endpoint);
    EXPECT_TRUE(address.is_loopback());
    Descriptor socket(::socket(address.family(), SOCK_STREAM, 0));
    EXPECT_EQ(::connect(socket.get(), address.get(), address.bytes), 0) << endpoint;
  }
}

// Strangers. ---------------------------------------------------------------------------------------------------------

TEST_F(Tcp, an_http_client_is_closed_without_an_answer) {
  link();
  Stranger stranger(*b);
  stranger.say("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(until([&] { return stranger.closed(); }));
  EXPECT_TRUE(stranger.heard().empty());
  EXPECT_EQ(b->counters().refused_connections, 1u);
  expect_link_works();
}

TEST_F(Tcp, random_bytes_are_closed) {
  link();
  Random random(test_seed());
  for (int i = 0; i < 50; ++i) {
    Stranger stranger(*b);
    stranger.say(pattern(1 + random.below(300), random.next()));
    ASSERT_TRUE(until([&] { return stranger.closed(); }));
  }
  EXPECT_EQ(b->counters().refused_connections, 50u);
  expect_link_works();
}

TEST_F(Tcp, half_a_hello_that_ends_is_closed) {
  link();
  const auto hello = hello_from(PeerId{7, 7}, id_b);
  Stranger stranger(*b);
  stranger.say(std::as_bytes(std::span(&hello, 1)).first(40));
  for (int i = 0; i < 100; ++i) turn();
  EXPECT_EQ(b->counters().refused_connections, 0u);
  stranger.go();
  ASSERT_TRUE(until([&] { return b->counters().refused_connections == 1; }));
  expect_link_works();
}

TEST_F(Tcp, silence_ends_after_its_time_and_not_before) {
  Stranger stranger(*b);
  Nanos now = clock_now();
  ASSERT_TRUE(until([&] {
    b->poll(now, *hear_b);
    return b->next_deadline() != never && b->next_deadline() > now;
  }));
  EXPECT_LE(b->next_deadline(), now + 6 * second);
  b->poll(now + 4 * second, *hear_b);
  EXPECT_FALSE(stranger.closed());
  b->poll(now + 11 * second, *hear_b);
  EXPECT_TRUE(stranger.closed());
  EXPECT_EQ(b->counters().refused_connections, 1u);
}

TEST_F(Tcp, a_wrong_key_a_wrong_version_and_a_wrong_addressee_are_told_why) {
  link();
  auto versioned = hello_from(PeerId{7, 7}, id_b);
  versioned.version = 77;
  auto striped = hello_from(PeerId{7, 7}, id_b);
  striped.stream_index = 5;
  seal_hello(striped);
  auto damaged = hello_from(PeerId{7, 7}, id_b);
  damaged.from.low ^= 1;
  const std::pair<TcpHello, TcpRefusal> cases[] = {
      {hello_from(PeerId{7, 7}, id_b, job(1)), TcpRefusal::other_job},
      {versioned, TcpRefusal::version},
      {hello_from(PeerId{7, 7}, PeerId{8, 8}), TcpRefusal::other_process},
      {striped, TcpRefusal::stream},
      {damaged, TcpRefusal::none},  // no answer
      {hello_from(id_a, id_b), TcpRefusal::duplicate},
  };
  for (const auto& [hello, why] : cases) {
    Stranger stranger(*b);
    stranger.say(hello);
    ASSERT_TRUE(until([&] { return stranger.closed(); }));
    EXPECT_EQ(stranger.refusal(), why);
  }
  EXPECT_EQ(b->counters().refused_connections, 5u) << "a duplicate is no stranger";
  expect_link_works();
}

TEST_F(Tcp, both_sides_dialling_is_refused) {
  ASSERT_TRUE(b->add_peer(request(id_a, a->endpoints(), true)).ok());
  Stranger stranger(*b);
  stranger.say(hello_from(id_a, id_b));
  ASSERT_TRUE(until([&] { return stranger.closed(); }));
  EXPECT_EQ(stranger.refusal(), TcpRefusal::not_expected);
}

TEST_F(Tcp, a_good_hello_that_nobody_wants_is_refused_in_the_end) {
  Stranger stranger(*b);
  stranger.say(hello_from(PeerId{7, 7}, id_b));
  Nanos now = clock_now();
  for (int i = 0; i < 100; ++i) b->poll(now, *hear_b);
  b->poll(now + 9 * second, *hear_b);
  EXPECT_FALSE(stranger.closed());
  b->poll(now + 21 * second, *hear_b);
  EXPECT_TRUE(stranger.closed());
  EXPECT_EQ(stranger.refusal(), TcpRefusal::unknown_peer);
}

TEST_F(Tcp, a_thousand_connections_do_no_harm) {
  link();
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 1000; ++i) {
    crowd.push_back(std::make_unique<Stranger>(*b));
    ASSERT_TRUE(crowd.back()->connected());
    if (i % 3 == 0) crowd.back()->say("1UNISONO");
    if (i % 20 == 0) turn();
  }
  ASSERT_TRUE(until([&] { return b->counters().refused_connections >= 900; }));
  expect_link_works();
  const auto open = std::ranges::count_if(crowd, [](auto& stranger) { return !stranger->closed(); });
  EXPECT_LE(open, 64);
  // A member still gets in: the oldest stranger makes way.
  b->close(0);
  ASSERT_TRUE(until([&] { return !hear_a->losses.empty(); }));
  hear_a->losses.clear();
  link();
}

TEST_F(Tcp, strangers_are_turned_away_when_there_are_no_descriptors_left) {
  link();
  Stranger one(*b), two(*b);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto lowest_free = Descriptor(::dup(0)).get();
  const rlimit none{static_cast<rlim_t>(lowest_free), limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool refused = until([&] { return b->counters().refused_connections == 2; });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(refused);
  EXPECT_TRUE(one.closed());
  expect_link_works();
}

TEST_F(Tcp, bytes_behind_an_accepted_hello_that_are_no_frames_end_that_link_as_corrupt) {
  ASSERT_TRUE(b->add_peer(request(PeerId{7, 7}, {}, false)).ok());
  Stranger member(*b);
  member.say(hello_from(PeerId{7, 7}, id_b));
  ASSERT_TRUE(until([&] { return b->state(0) == LinkState::up; }));
  member.say(pattern(64, test_seed()));
  ASSERT_TRUE(until([&] { return !hear_b->losses.empty(); }));
  EXPECT_EQ(hear_b->losses[0][0].code(), Code::corrupt);
  EXPECT_NE(hear_b->losses[0][0].message().find("magic"), std::string::npos) << hear_b->losses[0][0].message();
  EXPECT_EQ(b->counters().refused_frames[static_cast<size_t>(FrameFault::magic)], 1u);
  ASSERT_TRUE(until([&] { return member.closed(); }));
}

TEST_F(Tcp, a_link_that_ends_inside_a_frame_says_so) {
  ASSERT_TRUE(b->add_peer(request(PeerId{7, 7}, {}, false)).ok());
  Stranger member(*b);
  member.say(hello_from(PeerId{7, 7}, id_b));
  ASSERT_TRUE(until([&] { return b->state(0) == LinkState::up; }));
  auto header = data_header(1, 1000);
  seal_frame(header);
  member.say(std::as_bytes(std::span(&header, 1)));
  for (int i = 0; i < 100; ++i) turn();
  EXPECT_FALSE(member.closed());
  member.go();
  ASSERT_TRUE(until([&] { return !hear_b->losses.empty(); }));
  EXPECT_NE(hear_b->losses[0][0].message().find("inside a frame"), std::string::npos) << hear_b->losses[0][0].message();
  EXPECT_TRUE(hear_b->frames.empty());
}

TEST_F(Tcp, frames_that_the_kernel_took_survive_close) {
  link();
  const auto payload = pattern(256u << 10, test_seed());
  uint64_t taken = 0;
  while (a->send(0, data_header(taken, payload.size()), payload, taken)) ++taken;
  ASSERT_GT(taken, 0u);
  // Input that nobody reads must not turn the end into a reset, which would throw away what is under way.
  for (int i = 0; i < 50; ++i) b->send(0, data_header(0, 0), {}, 0);
  a->close(0);
  ASSERT_TRUE(until([&] { return !hear_b->losses.empty(); }));
  EXPECT_GE(hear_b->frames.size(), taken);
}

TEST_F(Tcp, the_end_of_one_stream_waits_for_what_the_others_still_bring) {
  const PeerId peer{7, 7};
  ASSERT_TRUE(b->add_peer(request(peer, {}, false)).ok());
  Stranger first(*b), second(*b);
  auto hello = hello_from(peer, id_b);
  hello.stream_count = 2;
  seal_hello(hello);
  first.say(hello);
  hello.stream_index = 1;
  seal_hello(hello);
  second.say(hello);
  Nanos now = clock_now();
  for (int i = 0; i < 1000 && b->state(0) != LinkState::up; ++i) b->poll(now, *hear_b);
  ASSERT_EQ(b->state(0), LinkState::up);
  EXPECT_FALSE(first.closed());
  EXPECT_FALSE(second.closed());
  second.go();
  for (int i = 0; i < 100; ++i) b->poll(now, *hear_b);
  EXPECT_TRUE(hear_b->losses.empty());
  EXPECT_LE(b->next_deadline(), now + 100 * millisecond);
  auto header = data_header(5, 0);
  seal_frame(header);
  first.say(std::as_bytes(std::span(&header, 1)));
  first.go();
  for (int i = 0; i < 100; ++i) b->poll(now, *hear_b);
  EXPECT_EQ(hear_b->frames.size(), 1u);
  EXPECT_EQ(hear_b->losses[0].size(), 1u);
}

TEST_F(Tcp, the_other_streams_are_not_waited_for_without_end) {
  const PeerId peer{7, 7};
  ASSERT_TRUE(b->add_peer(request(peer, {}, false)).ok());
  Stranger first(*b), second(*b);
  auto hello = hello_from(peer, id_b);
  hello.stream_count = 2;
  for (auto* stranger : {&first, &second}) {
    seal_hello(hello);
    stranger->say(hello);
    ++hello.stream_index;
  }
  Nanos now = clock_now();
  for (int i = 0; i < 1000 && b->state(0) != LinkState::up; ++i) b->poll(now, *hear_b);
  EXPECT_FALSE(second.closed());
  second.go();
  for (int i = 0; i < 100; ++i) b->poll(now, *hear_b);
  EXPECT_TRUE(hear_b->losses.empty());
  b->poll(now + 100 * millisecond, *hear_b);
  EXPECT_EQ(hear_b->losses[0].size(), 1u);
}

TEST_F(Tcp, a_dialler_that_starts_again_replaces_its_half_made_link) {
  const PeerId peer{7, 7};
  ASSERT_TRUE(b->add_peer(request(peer, {}, false)).ok());
  auto hello = hello_from(peer, id_b);
  hello.stream_count = 2;
  seal_hello(hello);
  auto lost = std::make_unique<Stranger>(*b);
  lost->say(hello);
  ASSERT_TRUE(until([&] {
    lost->closed();
    return lost->heard().size() == sizeof(TcpReply);
  }));
  lost.reset();
  Stranger first(*b), second(*b);
  first.say(hello);
  hello.stream_index = 1;
  seal_hello(hello);
  second.say(hello);
  EXPECT_TRUE(until([&] { return b->state(0) == LinkState::up; }));
}

// Limits. ------------------------------------------------------------------------------------------------------------

TEST_F(Tcp, a_sink_that_keeps_views_holds_back_its_peer_and_nobody_else) {
  TcpOptions tight;
  tight.pool.owner_bytes_max = 1u << 20;
  b = transport(id_b, tight);
  b->set_job(job());
  hear_b = std::make_unique<Recorder>(b.get());
  hear_b->keep_views = true;
  link();
  const auto payload = pattern(256u << 10, test_seed());
  size_t sent = 0;
  const auto pump = [&] {
    for (; sent < 40 && a->room(0) > 0; ++sent) a->send(0, data_header(sent, payload.size()), payload, sent);
  };
  for (int i = 0; i < 2000; ++i) {
    pump();
    turn();
  }
  EXPECT_EQ(hear_b->views.size(), 4u);
  ASSERT_TRUE(until([&] {
    pump();
    for (const auto& view : std::exchange(hear_b->views, {})) b->release(view);
    return hear_b->frames.size() == 40;
  }));
  EXPECT_TRUE(hear_b->losses.empty());
}

TEST_F(Tcp, a_peer_that_takes_nothing_is_lost_when_too_much_waits) {
  link();
  // Not even frames without payload are kept without end.
  for (int i = 0; i < 2'000'000 && hear_a->losses.empty(); ++i) {
    EXPECT_TRUE(a->send(0, data_header(1, 0), {}, 0));
    if (i % 10'000 == 0) a->poll(clock_now(), *hear_a);
  }
  ASSERT_FALSE(hear_a->losses.empty());
  EXPECT_NE(loss_of_a().message().find("frames wait"), std::string::npos) << loss_of_a().message();
}

TEST_F(Tcp, more_links_than_are_tried_directly_work_too) {
  constexpr size_t count = 12;
  auto cluster = ConnectorCluster<TcpTransport>::make(count, [](size_t, PeerId self) {
    return TcpTransport::make({.self = self, .interface = "127.0.0.1"});
  });
  ASSERT_NE(cluster, nullptr);
  everyone_sends_to_everyone(*cluster);
}

}  // namespace
}  // namespace unisono::conformance
