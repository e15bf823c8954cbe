// Support for tests of the rendezvous server: hellos, and a server with its clients without a network.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "rendezvous/rendezvous_client.h"
#include "rendezvous/rendezvous_server.h"
#include "testing/peer_ids.h"

namespace unisono::rendezvous {

inline Hello make_hello(uint32_t rank, uint32_t world, const std::string& job = "job", uint64_t life = 1) {
  Hello hello;
  hello.member = test::member(rank, life);
  hello.host = hello.member.host;
  hello.pid = hello.member.pid;
  hello.job = job;
  hello.world_size = world;
  hello.transport = "auto";
  return hello;
}

inline Hello make_joiner(uint32_t number, const std::string& job = "job") {
  Hello hello = make_hello(number, 0, job, 2);
  hello.role = Role::joiner;
  return hello;
}

// A server and its clients without a network: bytes arrive at once. Connections are numbered from 1 in the order of dialing.
class ServerFixture {
 public:
  explicit ServerFixture(ServerSettings settings = {}) : server(complete(std::move(settings))) {}

  // Dials with this hello. Returns the connection's number.
  size_t dial(const Hello& hello, Nanos timeout = 60 * second) {
    clients.emplace_back(std::make_unique<Client>(hello, now + timeout));
    const auto connection = clients.size();
    server.connected(connection, concat("10.0.0.9:", connection), now);
    server.received(connection, clients.back()->connected(now), now);
    deliver();
    return connection;
  }
  // Connects and sends these bytes. Returns the server's answer, and whether the server closed the connection.
  std::pair<std::string, bool> dial_raw(std::string_view text) {
    clients.emplace_back(nullptr);
    const auto connection = clients.size();
    server.connected(connection, "10.0.0.8:1", now);
    server.received(connection, ByteView(reinterpret_cast<const std::byte*>(text.data()), text.size()), now);
    std::pair<std::string, bool> out;
    for (const auto& send : server.take_sends()) {
      if (send.bytes) out.first.append(reinterpret_cast<const char*>(send.bytes->data()), send.bytes->size());
      out.second = out.second || send.close;
    }
    if (out.second) server.disconnected(connection, now);
    return out;
  }
  void send_bytes(size_t from, const Bytes& bytes) {
    server.received(from, bytes, now);
    deliver();
  }
  void hang_up(size_t connection) {
    (void)client(connection).disconnected();
    server.disconnected(connection, now);
    deliver();
  }
  void pass(Nanos time) {
    now += time;
    if (server.next_deadline() <= now) server.woke(now);
    deliver();
  }
  void deliver() {
    for (auto sends = server.take_sends(); !sends.empty(); sends = server.take_sends()) {
      for (const auto& send : sends) {
        auto* client = clients[send.to - 1].get();
        if (client != nullptr && send.bytes) client->received(*send.bytes, now);
        if (send.close) server.disconnected(send.to, now);
      }
    }
  }
  Client& client(size_t connection) { return *clients[connection - 1]; }
  Client::Phase phase(size_t connection) { return client(connection).phase(); }
  std::string error(size_t connection) { return client(connection).error().message(); }

  Nanos now = 100 * second;
  Server server;
  std::vector<std::unique_ptr<Client>> clients;

 private:
  static ServerSettings complete(ServerSettings settings) {
    settings.identity = {5, 5};
    if (settings.label.empty()) settings.label = "rank 0 (host h0, pid 100)";
    settings.make_key = [] {
      RosterKey key;
      key.fill(std::byte{9});
      return key;
    };
    return settings;
  }
};

using Phase = Client::Phase;

inline void expect_has(const std::string& text, std::initializer_list<std::string> parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

}  // namespace unisono::rendezvous
