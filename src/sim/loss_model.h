// Which datagrams a link loses, by a law of docs/design/methods/packet_loss.md, "Drift" and "Bursts". What is drawn from it is
// in sim/loss_pattern.h, what it comes to in lab/loss/loss_law.h.
//
// A rank sends each other one a stream per step and phase: contributions (0), results (1). Ranges of a stream are datagrams.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono::sim {

struct LossModel {
  // gilbert_elliott: a chain good/bad per link, one move per datagram. chain: a chain lost/arrives per range of a stream, one
  // move per step. joint: two receivers of one sender both miss a range with a probability of its own. links: each link has its
  // loss.
  enum class Kind : uint8_t { none, iid, gilbert_elliott, chain, joint, links };
  // shard: a stream is lost as a whole, or not at all.
  enum class Granularity : uint8_t { datagram, shard };
  struct Link {
    int64_t sender = -1, receiver = -1;  // -1: any
    double loss = 0;
    friend bool operator==(const Link&, const Link&) = default;
  };
  // Nothing that it sends and nothing that is sent to it arrives, from one step to another, both included.
  struct Outage {
    Rank rank = 0;
    uint64_t from = 0, to = 0;
    friend bool operator==(const Outage&, const Outage&) = default;
  };
  // In this share of steps and phases all that it sends comes when the others have gone on.
  struct Slow {
    Rank rank = 0;
    double share = 0;
    friend bool operator==(const Slow&, const Slow&) = default;
  };
  static constexpr uint64_t for_ever = ~uint64_t{0};

  Kind kind = Kind::none;
  double loss = 0;           // p, the mean; of links: where no other is given
  double burst = 1;          // gilbert_elliott: L, mean length of a burst in datagrams
  double good = 0, bad = 1;  // gilbert_elliott: h_g and h_b, the loss in either state
  double recovery = 1;       // chain: r, chance that what was lost arrives in the next step
  double both = 0;           // joint: c
  Granularity granularity = Granularity::datagram;
  std::vector<Link> links = {};  // of those that fit a link, the last one counts
  std::vector<Outage> dead = {};
  std::vector<Slow> slow = {};

  // "none", "0.1", "iid:0.1", "gilbert_elliott:p=0.1,burst=8,good=0,bad=1", "chain:p=0.1,recovery=0.25",
  // "joint:p=0.1,both=0.05", "links:p=0,0>1=0.3,2>*=0.1"; then granularity=datagram|shard, dead=RANK@STEP or
  // dead=RANK@FIRST-LAST, slow=RANKxSHARE, the last two as often as needed. invalid: names the part that is wrong.
  static Result<LossModel> parse(std::string_view text);
  std::string to_string() const;
  friend bool operator==(const LossModel&, const LossModel&) = default;

  // invalid: it names a rank that a group of so many does not have.
  Status check(uint32_t world) const;
  // The loss of a datagram of that link, in the mean over time; dead and slow peers are not in it.
  double link_loss(Rank sender, Rank receiver) const;
  // gilbert_elliott: a, the chance that a good link turns bad. chain: that what arrived is lost in the next step.
  double fall() const;
  // joint: the chance that a range is lost to all receivers at once, and otherwise to each of them by itself.
  double common_loss() const;
  double own_loss() const;
};

}  // namespace unisono::sim
