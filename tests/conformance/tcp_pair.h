// For tests: two TCP transports that the test drives. Other programs can also connect to them.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>

#include <netinet/in.h>
#include <sys/socket.h>

#include "net/tcp_socket.h"
#include "transport_promises_data.h"
#include "transports/tcp/kernel_streams.h"
#include "transports/tcp/tcp_greeting.h"
#include "transports/tcp/tcp_transport.h"

namespace unisono::conformance {

inline constexpr PeerId id_a{1, 100}, id_b{2, 200};

inline JobKey job(uint8_t fill = 0x5A) {
  JobKey key;
  key.fill(std::byte{fill});
  return key;
}

// Stands for a process of its own, so it shares no port with other transports.
inline std::unique_ptr<TcpTransport> transport(PeerId self, TcpOptions options = {},
                                               StreamNetwork& network = kernel_streams()) {
  options.self = self;
  options.shares_port = false;
  if (options.interface.empty()) options.interface = "127.0.0.1";
  auto made = TcpTransport::make(options, network);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? std::move(*made) : nullptr;
}

inline LinkRequest request(PeerId to, std::vector<std::string> endpoints, bool dial, Nanos within = patience) {
  LinkRequest request;
  request.peer = 0;
  request.id = to;
  request.label = "rank 3 (host b, pid 42)";
  request.endpoints = std::move(endpoints);
  request.dial = dial;
  request.deadline = clock_now() + within;
  return request;
}

// Two transports. They use the real clock, unless a test passes times.
class TcpPair : public testing::Test {
 protected:
  void SetUp() override {
    a = transport(id_a);
    b = transport(id_b);
    ASSERT_TRUE(a && b);
    a->set_job(job());
    b->set_job(job());
    sink_a = std::make_unique<Recorder>(a.get());
    sink_b = std::make_unique<Recorder>(b.get());
  }
  void turn() {
    a->poll(clock_now(), *sink_a);
    if (b) b->poll(clock_now(), *sink_b);
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
    const auto before = sink_b->frames.size();
    ASSERT_TRUE(until([&] { return a->credit(0) > 0; }));
    const auto told = sink_a->sent_ids[1];
    const bool done = a->send(0, data_header(1, payload.size()), payload, 1);
    ASSERT_TRUE(until([&] { return sink_b->frames.size() == before + 1 && (done || sink_a->sent_ids[1] > told); }));
    EXPECT_EQ(sink_b->frames.back().payload, payload);
    EXPECT_TRUE(sink_a->losses.empty());
    EXPECT_TRUE(sink_b->losses.empty());
  }
  const Status& loss_of_a() { return sink_a->losses[0].at(0); }

  std::unique_ptr<TcpTransport> a, b;
  std::unique_ptr<Recorder> sink_a, sink_b;
};

// The first bytes of a connection. A test may change the fields; seal() then makes the checksums right.
struct Greeting {
  TcpPreamble preamble{};
  TcpSessionHello hello{};

  Greeting& seal() {
    preamble.to = hello.to;
    unisono::seal(preamble);
    unisono::seal(hello, {});
    return *this;
  }
};

inline Greeting hello_from(PeerId from, PeerId to, const JobKey& key = job()) {
  Greeting greeting;
  greeting.hello.session = from.low;
  greeting.hello.attempt = 1;
  greeting.hello.key = key;
  greeting.hello.from = from;
  greeting.hello.to = to;
  return greeting.seal();
}

inline TcpBegin begin_at(uint64_t position) {
  TcpBegin begin{.position = position};
  seal(begin);
  return begin;
}

// A connection from a peer that does not authenticate.
class Unauthenticated {
 public:
  explicit Unauthenticated(const TcpTransport& to) : Unauthenticated(to.endpoints().at(0)) {}
  explicit Unauthenticated(const std::string& endpoint) {
    const auto address = *parse_tcp_endpoint(endpoint);
    socket_ = Descriptor(::socket(address.family(), SOCK_STREAM, 0));
    set_stream_options(socket_.get());
    connected_ = ::connect(socket_.get(), address.get(), address.bytes) == 0;
  }
  bool connected() const { return connected_; }
  void send_bytes(ByteView bytes) { (void)::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void send_bytes(const std::string& text) { send_bytes(std::as_bytes(std::span(text))); }
  void send_bytes(const Greeting& greeting) {
    send_struct(greeting.preamble);
    send_struct(greeting.hello);
  }
  template <typename T>
  void send_struct(const T& message) {
    send_bytes(std::as_bytes(std::span(&message, 1)));
  }
  bool closed() {
    for (;;) {
      std::array<std::byte, 64> scratch;
      bool ended = false;
      const auto count = receive_some(socket_.get(), scratch, ended);
      if (count <= 0) return ended || count < 0;
      received_.insert(received_.end(), scratch.begin(), scratch.begin() + count);
    }
  }
  // For the hello, so that the connection counts as direct.
  TcpEnds ends() const { return {to_wire(local_address(socket_.get())), to_wire(remote_address(socket_.get()))}; }
  const Bytes& received() const { return received_; }
  // Returns the reply, once it is there.
  std::optional<TcpSessionReply> reply() const {
    TcpSessionReply reply;
    if (received_.size() < sizeof reply) return {};
    std::memcpy(static_cast<void*>(&reply), received_.data(), sizeof reply);
    EXPECT_TRUE(is_sound(reply));
    return reply;
  }
  TcpRefusal refusal() const { return reply() ? reply()->reason : TcpRefusal::none; }
  void disconnect() { socket_.reset(); }

 private:
  Descriptor socket_;
  bool connected_ = false;
  Bytes received_;
};

}  // namespace unisono::conformance
