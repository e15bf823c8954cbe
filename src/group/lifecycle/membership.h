// Which processes the group consists of: the roster of the current epoch, the numbers and links of its members, and how far
// forming or re-forming it has come. It makes no operation and sends no message; joining, agreement and reforming change it.
//
// Owned by the runtime and guarded by its mutex: only GuardedState leads here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/topology.h"
#include "group/lifecycle/reform.h"
#include "rendezvous/environment.h"
#include "rendezvous/rendezvous_socket.h"
#include "rendezvous/roster.h"
#include "transports/connector.h"
#include "transports/transport.h"

namespace unisono {

struct Link {
  std::unique_ptr<Transport> transport;
  Connector* connector = nullptr;  // the same object
};

class Membership {
 public:
  Membership(PeerId self, std::vector<Link> links) : self_(self), links_(std::move(links)) {}

  PeerId self() const { return self_; }
  // The links of this process, one for each transport.
  std::span<const Link> links() const { return links_; }
  // null: the rendezvous is over.
  RendezvousSession* session() const { return session_.get(); }
  // null: the process has not joined yet.
  Reform* reform() const { return reform_.get(); }
  // The rendezvous has given a roster.
  void join(std::unique_ptr<RendezvousSession> session, const Roster& roster);

  const Roster& roster() const { return roster_; }
  void set_roster(const Roster& roster) { roster_ = roster; }
  // The roster's members by rank; self_peer for this process. Until link_up() has begun all links, these are the members of the
  // former roster.
  const std::vector<PeerIndex>& peers() const { return peers_; }
  void set_peers(std::vector<PeerIndex> peers) { peers_ = std::move(peers); }
  // The roster's record of a peer; null: it is not a member.
  const MemberRecord* record_of(PeerIndex peer) const;
  // Every process that was ever known, by PeerIndex.
  const std::vector<PeerId>& process_ids() const { return process_ids_; }
  // A number for a process that was not known so far.
  PeerIndex add_process(const PeerId& id);
  // self_peer: it is this process, or not known.
  PeerIndex index_of(const PeerId& id) const;

  // Ok while this process is a member, else why it is not any more.
  const Status& removed() const { return removed_; }
  void set_removed(const Status& why) { removed_ = why; }
  // Counts re-formings, also those that fail: groups of an earlier one do not exist any more.
  uint32_t formation() const { return formation_; }
  // A re-forming begins: what was agreed on is void.
  void begin_formation();

  // Rank 0: what a member has said last when its links were up.
  struct Readiness {
    uint32_t epoch = 0;
    uint32_t datagram_bytes = 0;            // the largest datagram on all its links; 0: not all of them carry datagrams
    DatagramAuth auth = DatagramAuth::mac;  // the weakest that it accepts
  };
  void set_ready(PeerIndex peer, const Readiness& readiness) { ready_[peer] = readiness; }
  // null: the peer has said nothing yet.
  const Readiness* ready(PeerIndex peer) const;

  // Whether the group has agreed on its topology in this epoch.
  bool topology_known() const { return topology_known_; }
  void set_topology_known(const Topology& topology);
  // The former topology's links between hosts, renumbered for the hosts of the current roster.
  HostLinks known_links(const HostLinks& links) const;
  // Packets come so seldom on every link of this rank that it is not worth polling for the next.
  bool has_thin_links() const { return has_thin_links_; }

  // The largest datagram that all links of this process to members carry; 0: not all of them carry datagrams.
  uint32_t datagram_bytes() const;
  // It grows no more: paths were tried.
  bool datagram_bytes_known() const;

 private:
  std::vector<PeerIndex> served_by(const Link& link) const;

  const PeerId self_;
  std::vector<Link> links_;
  std::unique_ptr<RendezvousSession> session_;
  std::unique_ptr<Reform> reform_;
  Roster roster_;
  std::vector<PeerIndex> peers_;
  std::vector<PeerId> process_ids_;
  Status removed_;
  uint32_t formation_ = 0;
  std::map<PeerIndex, Readiness> ready_;
  bool topology_known_ = false;
  bool has_thin_links_ = false;
  std::vector<std::string> linked_hosts_;  // of the last known topology, by number
};

}  // namespace unisono
