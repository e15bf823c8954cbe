// Test support: one RosterKeeper without a network, and messages that tests pass to it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "elastic/roster/elastic_test_support.h"
#include "elastic/roster/roster_keeper.h"

namespace unisono::test {

inline const ElasticTimes times;

inline KeeperOptions options(bool found, std::vector<std::string> seeds = {}) {
  KeeperOptions all;
  all.run_id = "demo";
  all.found = found;
  all.seeds = std::move(seeds);
  return all;
}

inline RosterMessage from_run(RosterBody body, std::vector<PeerClaim> claims = {}) {
  return {.run = fnv1a64("demo"), .body = std::move(body), .claims = std::move(claims)};
}

template <typename Body>
std::vector<RosterSend> sends_of(RosterKeeper& keeper) {
  auto sends = keeper.take_sends();
  std::erase_if(sends, [](const RosterSend& one) { return !std::holds_alternative<Body>(one.message.body); });
  return sends;
}

// Returns the message's claim about the peer, or null if there is none.
inline const PeerClaim* about(const RosterSend& one, const PeerId& id) {
  for (const auto& claim : one.message.claims) {
    if (claim.entry.id == id) return &claim;
  }
  return nullptr;
}

// Returns a founder, peer 1, that knows peers 2 … `count` as alive.
inline RosterKeeper founder(uint64_t count, KeeperOptions all = options(true)) {
  RosterKeeper keeper(std::move(all), peer_entry(1));
  EXPECT_TRUE(keeper.start(0).ok());
  std::vector<PeerClaim> claims;
  for (uint64_t number = 2; number <= count; ++number) claims.push_back(peer_claim(number));
  if (count > 1) keeper.message(peer_id(2), from_run(RosterGossip{}, claims), 0);
  (void)keeper.take_sends();
  (void)keeper.take_events();
  return keeper;
}

// Calls woke() at each deadline until `end`. No peer answers. Appends the keeper's messages to `sends`.
inline void run(RosterKeeper& keeper, Nanos end, std::vector<RosterSend>* sends = nullptr) {
  while (keeper.next_deadline() <= end) keeper.woke(keeper.next_deadline());
  if (sends == nullptr) return;
  for (auto& one : keeper.take_sends()) sends->push_back(std::move(one));
}

// Runs the keeper until `end`, and answers all its probes. Returns the keeper's messages.
inline std::vector<RosterSend> run_answered(RosterKeeper& keeper, Nanos begin, Nanos end) {
  std::vector<RosterSend> sends;
  for (Nanos at = begin; at <= end; at += times.probe_timeout / 16) {
    run(keeper, at);
    for (auto& one : keeper.take_sends()) {
      if (const auto* probe = std::get_if<RosterProbe>(&one.message.body))
        keeper.message(one.to, from_run(RosterAck{peer_id(1), one.to, probe->sequence}), at);
      sends.push_back(std::move(one));
    }
  }
  return sends;
}

}  // namespace unisono::test
