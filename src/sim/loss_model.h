// The random law by which links lose datagrams, from docs/design/methods/packet_loss.md, "Drift" and "Bursts".
// sim/loss_pattern.h draws from it; lab/loss/loss_law.h computes its expected effects.
//
// In each step and phase, a rank sends each other rank one stream: contributions (0), results (1). A stream's ranges are
// datagrams.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono::sim {

struct LossModel {
  // gilbert_elliott: a good/bad chain per link, one transition per datagram. chain: a lost/arrived chain per range of a stream,
  // one transition per step. joint: two receivers of one sender both miss a range with a given probability. links: each link
  // has its own loss.
  enum class Kind : uint8_t { none, iid, gilbert_elliott, chain, joint, links };
  // shard: a stream is lost as a whole or not at all.
  enum class Granularity : uint8_t { datagram, shard };
  struct Link {
    int64_t sender = -1, receiver = -1;  // -1: any
    double loss = 0;
    friend bool operator==(const Link&, const Link&) = default;
  };
  // From one step to another, inclusive, nothing from or to the rank arrives.
  struct Outage {
    Rank rank = 0;
    uint64_t from = 0, to = 0;
    friend bool operator==(const Outage&, const Outage&) = default;
  };
  // In this share of steps and phases, the rank's data comes after the other ranks have gone on.
  struct Slow {
    Rank rank = 0;
    double share = 0;
    friend bool operator==(const Slow&, const Slow&) = default;
  };
  static constexpr uint64_t for_ever = ~uint64_t{0};

  Kind kind = Kind::none;
  double loss = 0;           // p, the mean loss; for links: of those without an entry
  double burst = 1;          // gilbert_elliott: L, mean length of a burst in datagrams
  double good = 0, bad = 1;  // gilbert_elliott: h_g and h_b, the loss in either state
  double recovery = 1;       // chain: r, the probability that a lost range arrives in the next step
  double both = 0;           // joint: c
  Granularity granularity = Granularity::datagram;
  std::vector<Link> links = {};  // if several match a link, the last one counts
  std::vector<Outage> dead = {};
  std::vector<Slow> slow = {};

  // "none", "0.1", "iid:0.1", "gilbert_elliott:p=0.1,burst=8,good=0,bad=1", "chain:p=0.1,recovery=0.25",
  // "joint:p=0.1,both=0.05", "links:p=0,0>1=0.3,2>*=0.1"; then granularity=datagram|shard, dead=RANK@STEP or
  // dead=RANK@FIRST-LAST, and slow=RANKxSHARE; the last two may repeat. invalid: names the wrong part.
  static Result<LossModel> parse(std::string_view text);
  std::string to_string() const;
  friend bool operator==(const LossModel&, const LossModel&) = default;

  // invalid: it names a rank outside a group of this size.
  Status check(uint32_t world) const;
  // Long-term mean loss of a datagram on that link, without dead and slow peers.
  double link_loss(Rank sender, Rank receiver) const;
  // gilbert_elliott: a, the probability that a good link turns bad. chain: that a range that arrived is lost in the next step.
  double fall() const;
  // joint: the probability that a range is lost at all receivers together; otherwise it is lost at each independently.
  double common_loss() const;
  double own_loss() const;
};

}  // namespace unisono::sim
