#include "tls/tls_flights.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace unisono {
namespace {

std::shared_ptr<const TlsContext> context(char last = '1') {
  return *TlsContext::make({*SecretKey::from_hex(std::string(63, '0') + last)});
}

Bytes copy(std::span<const std::byte> flight) { return {flight.begin(), flight.end()}; }

TEST(TlsFlights, three_datagrams_make_a_connection) {
  TlsFlights client(context(), TlsConnection::Role::client), server(context(), TlsConnection::Role::server);
  for (const auto& [from, to] : {std::pair(&client, &server), std::pair(&server, &client), std::pair(&client, &server)}) {
    EXPECT_FALSE(from->flight().empty());
    EXPECT_LE(from->flight().size(), 400u) << "far below a datagram";
    ASSERT_TRUE(to->step(from->flight()));
  }
  EXPECT_TRUE(client.done() && server.done());
  std::array<std::byte, 32> ours{}, theirs{}, other{};
  EXPECT_TRUE(client.export_key("test", ours) && server.export_key("test", theirs) && server.export_key("other", other));
  EXPECT_EQ(ours, theirs);
  EXPECT_NE(ours, other);
}

TEST(TlsFlights, another_key_ends_it) {
  TlsFlights client(context('1'), TlsConnection::Role::client), server(context('2'), TlsConnection::Role::server);
  EXPECT_FALSE(server.step(client.flight()));
  EXPECT_FALSE(server.done());
}

TEST(TlsFlights, altered_flights_end_it) {
  TlsFlights first(context(), TlsConnection::Role::client);
  const auto bytes = first.flight().size();
  for (size_t at = 0; at < bytes; at += 7) {
    TlsFlights client(context(), TlsConnection::Role::client), server(context(), TlsConnection::Role::server);
    auto ask = copy(client.flight());
    ask[at] ^= std::byte{1};
    if (server.step(ask) && client.step(server.flight())) (void)server.step(client.flight());
    EXPECT_FALSE(server.done()) << at;
  }
  for (size_t at = 0; at < 180; at += 5) {
    TlsFlights client(context(), TlsConnection::Role::client), server(context(), TlsConnection::Role::server);
    ASSERT_TRUE(server.step(client.flight()));
    auto answer = copy(server.flight());
    ASSERT_LT(at, answer.size());
    answer[at] ^= std::byte{1};
    EXPECT_FALSE(client.step(answer) && client.done()) << at;
  }
}

TEST(TlsFlights, a_piece_of_a_flight_is_not_enough) {
  TlsFlights client(context(), TlsConnection::Role::client), server(context(), TlsConnection::Role::server);
  (void)server.step(client.flight().first(client.flight().size() - 1));
  EXPECT_TRUE(server.flight().empty());
  EXPECT_FALSE(server.done());
}

}  // namespace
}  // namespace unisono
