// For tests: members of an elastic run, all in one process. Their sockets are real, but the test sets the time. There is also a
// proxy that changes frames.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "elastic/links/elastic_links.h"
#include "tcp_pair.h"

namespace unisono {

inline SharedBuffer message_of(size_t bytes, uint64_t seed) { return SharedBuffer::copy(conformance::pattern(bytes, seed)); }

struct RecordingHandler final : ElasticSink {
  struct Loss {
    PeerId peer;
    Status why;
    bool refused = false;
  };
  void received(const PeerId& from, SharedBuffer message) override {
    messages.emplace_back(from, std::move(message));
    if (on_received) on_received(from);
  }
  void lost(const PeerId& peer, const Status& why, bool refused) override { losses.push_back({peer, why, refused}); }
  void address_failed(const std::string& address, const Status& why) override { failures.emplace_back(address, why); }
  void credit(const PeerId& peer) override { ++credits[peer]; }

  std::function<void(const PeerId&)> on_received;
  std::vector<std::pair<PeerId, SharedBuffer>> messages;
  std::vector<Loss> losses;
  std::vector<std::pair<std::string, Status>> failures;
  std::map<PeerId, int> credits;
};

class ElasticLinksCluster : public testing::Test {
 protected:
  struct Member {
    std::unique_ptr<ElasticLinks> links;
    RecordingHandler handler;
    bool asleep = false;
  };
  static PeerId id(size_t i) { return {mix64(i + 1), i + 1}; }
  // Returns the key of this name; null for an empty name.
  static std::shared_ptr<const TlsContext> key_of(const std::string& name) {
    static std::map<std::string, std::shared_ptr<const TlsContext>> keys;
    if (name.empty()) return {};
    auto& key = keys[name];
    if (!key) key = *TlsContext::make({*SecretKey::draw()});
    return key;
  }

  // Without an interface, the member is at 127.0.0.1. With "all", it is at all addresses.
  ElasticLinks& add(LinksOptions options = {}) {
    auto member = std::make_unique<Member>();
    options.self = id(members.size());
    if (options.run_id.empty()) options.run_id = "run";
    if (options.interface.empty()) options.interface = "127.0.0.1";
    if (options.interface == "all") options.interface.clear();
    auto made = ElasticLinks::make(options);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    member->links = std::move(*made);
    members.push_back(std::move(member));
    return *members.back()->links;
  }
  ElasticLinks& links(size_t i) { return *members[i]->links; }
  RecordingHandler& handler(size_t i) { return members[i]->handler; }
  std::string address(size_t i) { return links(i).endpoints().at(0); }
  void introduce(size_t to, size_t who, bool dialable = true) { links(to).know(id(who), {address(who)}, dialable); }
  void introduce_all() {
    for (size_t i = 0; i < members.size(); ++i) {
      for (size_t j = 0; j < members.size(); ++j) {
        if (i != j) introduce(i, j);
      }
    }
  }
  // Destroys the links of a member. It then sends nothing more, and its port is closed.
  void kill(size_t i) { members[i]->links.reset(); }
  void send_message(size_t from, size_t to, SharedBuffer message) {
    EXPECT_TRUE(links(from).send(id(to), std::move(message), now));
  }
  void settle(int turns = 30) {
    for (int i = 0; i < turns; ++i) {
      for (auto& member : members) {
        if (member->links && !member->asleep) member->links->poll(now, member->handler);
      }
      for (auto& turn : others) turn();
    }
  }
  bool within(Nanos time, const std::function<bool()>& done) {
    for (const auto limit = now + time; now <= limit; now += 10 * millisecond) {
      settle();
      if (done()) return true;
    }
    return false;
  }
  bool has_received(size_t i, size_t count) {
    return within(5 * second, [&] { return handler(i).messages.size() >= count; }) && handler(i).messages.size() == count;
  }
  bool no_losses() {
    for (auto& member : members) {
      if (!member->handler.losses.empty()) return false;
    }
    return true;
  }
  bool is_drained() {
    for (auto& member : members) {
      if (member->links && member->links->draining()) return false;
    }
    return true;
  }

  std::vector<std::unique_ptr<Member>> members;
  std::vector<std::function<void()>> others;
  Nanos now = 1000 * second;
};

// A proxy between a process that dials and one that listens. It passes each frame of the dialing process to `change`, and sends
// the frames that `change` returns. If the connection is encrypted, it does so with each record of TLS, also of the handshake.
class Proxy {
 public:
  using Frames = std::vector<Bytes>;
  static constexpr size_t record_head_bytes = 5;  // type, version, and the length of the rest, as in RFC 8446, section 5.1
  explicit Proxy(const std::string& to) : to_(*parse_tcp_endpoint(to)) {
    const auto here = *parse_tcp_address("127.0.0.1");
    listening_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    EXPECT_EQ(::bind(listening_.get(), here.get(), here.bytes), 0);
    EXPECT_EQ(::listen(listening_.get(), 8), 0);
  }
  std::string endpoint() const { return local_address(listening_.get()).endpoint(); }
  std::function<Frames(Bytes)> change = [](Bytes frame) { return Frames{std::move(frame)}; };

  void turn() {
    Descriptor came(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK));
    if (came.open()) {
      Pipe pipe;
      pipe.dialler = std::move(came);
      pipe.listener = Descriptor(::socket(AF_INET, SOCK_STREAM, 0));
      // Set TCP_NODELAY. Without it, small frames would wait for real acknowledgements while the virtual time of the test goes
      // on.
      set_stream_options(pipe.dialler.get());
      set_stream_options(pipe.listener.get());
      if (::connect(pipe.listener.get(), to_.get(), to_.bytes) == 0) pipes_.push_back(std::move(pipe));
    }
    ended_ += std::erase_if(pipes_, [&](auto& pipe) { return !carry(pipe); });
  }
  // Returns how many connections one of their sides has ended.
  size_t ended() const { return ended_; }
  // Closes all connections, like a middlebox that loses its state.
  void cut() { pipes_.clear(); }

 private:
  struct Pipe {
    Descriptor dialler, listener;
    Bytes forth;
    enum class Part : uint8_t { preamble, hello, begin, frames, records };
    Part next = Part::preamble;
  };
  static bool read(int socket, Bytes& into) {
    for (;;) {
      std::array<std::byte, 65536> part;
      bool ended = false;
      const auto count = receive_some(socket, part, ended);
      if (count <= 0) return !ended && count == 0;
      into.insert(into.end(), part.begin(), part.begin() + count);
    }
  }
  static void write(int socket, ByteView bytes) { (void)::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  bool carry(Pipe& pipe) {
    Bytes back;
    if (!read(pipe.dialler.get(), pipe.forth)) return false;
    const bool stands = read(pipe.listener.get(), back);
    write(pipe.dialler.get(), back);  // the last bytes of a connection, too
    if (!stands) return false;
    for (bool changes = false;;) {
      const size_t bytes = next_bytes(pipe, changes);
      if (bytes == 0) return true;
      Bytes part(pipe.forth.begin(), pipe.forth.begin() + static_cast<ptrdiff_t>(bytes));
      pipe.forth.erase(pipe.forth.begin(), pipe.forth.begin() + static_cast<ptrdiff_t>(bytes));
      const auto parts = changes ? change(std::move(part)) : Frames{std::move(part)};
      for (const auto& each : parts) write(pipe.listener.get(), each);
    }
  }
  template <typename T>
  static std::optional<T> first(const Bytes& bytes) {
    T message;
    if (bytes.size() < sizeof message) return {};
    std::memcpy(static_cast<void*>(&message), bytes.data(), sizeof message);
    return message;
  }
  // Returns the size of the next part if it is complete, and otherwise 0. Sets `changes` if the part is a frame of the run, or
  // a record. The frames of the stream itself, such as confirmations, stay as they are.
  static size_t next_bytes(Pipe& pipe, bool& changes) {
    size_t bytes = 0;
    auto next = Pipe::Part::frames;
    changes = false;
    if (pipe.next == Pipe::Part::preamble) {
      const auto preamble = first<TcpPreamble>(pipe.forth);
      if (!preamble) return 0;
      bytes = sizeof *preamble;
      next = (preamble->flags & tcp_flag_encrypted) != 0 ? Pipe::Part::records : Pipe::Part::hello;
    } else if (pipe.next == Pipe::Part::records) {
      const auto head = first<std::array<uint8_t, record_head_bytes>>(pipe.forth);
      if (!head) return 0;
      bytes = record_head_bytes + ((*head)[3] << 8 | (*head)[4]);
      next = Pipe::Part::records;
      changes = true;
    } else if (pipe.next == Pipe::Part::hello) {
      const auto hello = first<TcpSessionHello>(pipe.forth);
      if (!hello) return 0;
      bytes = sizeof *hello + hello->addresses * sizeof(TcpWireAddress);
      // After a hello to no process in particular comes one to the process that has answered.
      next = hello->to == PeerId{} ? Pipe::Part::hello : Pipe::Part::begin;
    } else if (pipe.next == Pipe::Part::begin) {
      bytes = sizeof(TcpBegin);
    } else if (const auto header = first<FrameHeader>(pipe.forth)) {
      bytes = sizeof *header + header->payload_bytes;
      changes = header->kind == FrameKind::elastic;
    }
    if (pipe.forth.size() < bytes || bytes == 0) return 0;
    pipe.next = next;
    return bytes;
  }

  TcpAddress to_;
  Descriptor listening_;
  std::vector<Pipe> pipes_;
  size_t ended_ = 0;
};

}  // namespace unisono
