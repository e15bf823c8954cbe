// A random law that says which datagrams the links lose. The laws are described in docs/design/methods/packet_loss.md, "Drift"
// and "Bursts". sim/loss_pattern.h draws losses from a law, and lab/loss/loss_law.h computes the effects that a law should
// have.
//
// In each step, a rank sends two streams to each other rank: its contributions (phase 0) and its results (phase 1). Each
// datagram of a stream carries one range (a small part) of the stream.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono::sim {

struct LossModel {
  //   iid: every datagram is lost independently.
  //   gilbert_elliott: each link is a Markov chain with a good and a bad state. It makes one transition per datagram.
  //   chain: each range of a stream is a Markov chain with the states lost and arrived. It makes one transition per step.
  //   joint: with a given probability, two receivers of one sender both miss a range.
  //   links: each link has its own loss.
  enum class Kind : uint8_t { none, iid, gilbert_elliott, chain, joint, links };
  // datagram: each datagram is lost separately. shard: a stream is lost as a whole or not at all.
  enum class Granularity : uint8_t { datagram, shard };
  struct Link {
    int64_t sender = -1, receiver = -1;  // -1: any rank
    double loss = 0;
    friend bool operator==(const Link&, const Link&) = default;
  };
  // From step `from` to step `to`, inclusive, no datagram from the rank or to the rank arrives.
  struct Outage {
    Rank rank = 0;
    uint64_t from = 0, to = 0;
    friend bool operator==(const Outage&, const Outage&) = default;
  };
  // In this fraction of all phases, the data of the rank is late, so that no other rank receives it in time.
  struct Slow {
    Rank rank = 0;
    double share = 0;
    friend bool operator==(const Slow&, const Slow&) = default;
  };
  static constexpr uint64_t no_end = ~uint64_t{0};

  Kind kind = Kind::none;
  double loss = 0;           // p, the mean loss; for Kind::links, the loss of each link that has no entry in `links`
  double burst = 1;          // gilbert_elliott: L, the mean length of a burst, in datagrams
  double good = 0, bad = 1;  // gilbert_elliott: h_g and h_b, the loss in the good and in the bad state
  double recovery = 1;       // chain: r, the probability that a lost range arrives in the next step
  double both = 0;           // joint: c, the probability that two receivers both miss a range
  Granularity granularity = Granularity::datagram;
  std::vector<Link> links = {};  // if several entries match a link, the last one is used
  std::vector<Outage> dead = {};
  std::vector<Slow> slow = {};

  // Parses "none", "0.1", "iid:0.1", "gilbert_elliott:p=0.1,burst=8,good=0,bad=1", "chain:p=0.1,recovery=0.25",
  // "joint:p=0.1,both=0.05" or "links:p=0,0>1=0.3,2>*=0.1". These parts may follow: granularity=datagram|shard, dead=RANK@STEP,
  // dead=RANK@FIRST-LAST, slow=RANKxSHARE. The parts `dead` and `slow` may be repeated. Fails with Code::invalid; the message
  // quotes the invalid part.
  static Result<LossModel> parse(std::string_view text);
  std::string to_string() const;
  friend bool operator==(const LossModel&, const LossModel&) = default;

  // Fails with Code::invalid if the model names a rank that a group of this size does not have.
  Status check(uint32_t world) const;
  // Returns the mean loss of the link in the long run. Losses because of dead or slow peers are not counted.
  double link_loss(Rank sender, Rank receiver) const;
  // Returns a, the probability that a state turns bad. For gilbert_elliott, a good link turns bad with this probability. For
  // chain, a range that arrived in this step is lost in the next step with this probability.
  double fall() const;
  // For `joint`: common_loss() is the probability that all receivers lose a range together. If they do not, each receiver loses
  // it independently, with probability own_loss().
  double common_loss() const;
  double own_loss() const;
};

}  // namespace unisono::sim
