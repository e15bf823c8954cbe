// The processes of the group. Membership has the roster of the current epoch, the numbers of the members, the links to them,
// and the state of forming or re-forming the group. It starts no operations and sends no messages. The files joining, agreement
// and reforming change it.
//
// The runtime owns the Membership, and the runtime's mutex guards it. It can be reached only through GuardedState.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/topology.h"
#include "group/lifecycle/reform.h"
#include "group/lifecycle/relinking.h"
#include "rendezvous/environment.h"
#include "rendezvous/rendezvous_socket.h"
#include "rendezvous/roster.h"
#include "transports/connector.h"
#include "transports/transport.h"

namespace unisono {

struct Link {
  std::unique_ptr<Transport> transport;
  Connector* connector = nullptr;  // points to an object in `transport`
};

class Membership {
 public:
  Membership(PeerId self, std::vector<Link> links) : self_(self), links_(std::move(links)) {}

  PeerId self() const { return self_; }
  // Returns the links of this process. There is one for each transport.
  std::span<const Link> links() const { return links_; }
  // Returns the session with the rendezvous. Returns null until this process has joined.
  RendezvousSession* session() const { return session_.get(); }
  // Returns the state machine that re-forms the group. Returns null until this process has joined.
  Reform* reform() const { return reform_.get(); }
  // What is known of links while the group re-forms.
  Relinking& relinking() { return relinking_; }
  // Stores the session, and the roster that the rendezvous has returned.
  void join(std::unique_ptr<RendezvousSession> session, const Roster& roster);

  const Roster& roster() const { return roster_; }
  void set_roster(const Roster& roster) { roster_ = roster; }
  // Returns the members in rank order. The entry of this process is self_peer. While the group re-forms, these are the members
  // of the old roster, until link_up() has started all links to the new ones.
  const std::vector<PeerIndex>& peers() const { return peers_; }
  void set_peers(std::vector<PeerIndex> peers) { peers_ = std::move(peers); }
  // Returns what the roster says about a peer. Returns null if the peer is not a member.
  const MemberRecord* record_of(PeerIndex peer) const;
  // Returns all processes that were ever known. The index is their PeerIndex.
  const std::vector<PeerId>& process_ids() const { return process_ids_; }
  // Assigns a number to a process that was not known before.
  PeerIndex add_process(const PeerId& id);
  // Returns the number of a process. Returns self_peer for this process and for an unknown process.
  PeerIndex index_of(const PeerId& id) const;

  // Returns ok while this process is a member. Afterwards returns why it was removed.
  const Status& removed() const { return removed_; }
  void set_removed(const Status& why) { removed_ = why; }
  // Returns how often the group has begun to re-form, including failed attempts. Groups that were made when this number was
  // lower no longer exist.
  uint32_t formation() const { return formation_; }
  // Begins a re-forming: counts it, and forgets the topology on which the group had agreed.
  void begin_formation();

  // Used on rank 0. It is the last report of a member whose links were up.
  struct Readiness {
    uint32_t epoch = 0;
    // size of the largest datagram that all links of the member carry; 0: some link carries no datagrams
    uint32_t datagram_bytes = 0;
    DatagramAuth auth = DatagramAuth::mac;  // the weakest authentication that the member accepts
    bool confirmed = false;                 // the member has got the group's topology of this epoch
  };
  void set_ready(PeerIndex peer, const Readiness& readiness) { ready_[peer] = readiness; }
  // Writes down that a peer has got the topology. Does nothing if its last report is from another epoch.
  void set_confirmed(PeerIndex peer, uint32_t epoch);
  // Returns the last report of a peer. Returns null if the peer has not reported yet.
  const Readiness* ready(PeerIndex peer) const;

  // Returns whether the group has agreed on its topology in this epoch.
  bool topology_known() const { return topology_known_; }
  void set_topology_known(const Topology& topology);
  // Returns the links of the old topology with the host numbers of the current roster. Links of hosts that are gone are left
  // out.
  HostLinks known_links(const HostLinks& links) const;
  // Returns true if all links of this rank are so slow that it is a waste to poll for the next packet.
  bool has_thin_links() const { return has_thin_links_; }

  // Returns the size of the largest datagram that all links from this process to members carry. 0: some link carries no
  // datagrams.
  uint32_t datagram_bytes() const;
  // Returns true when the paths have been probed. From then on, datagram_bytes() does not grow any more.
  bool datagram_bytes_known() const;
  // Prepares the link to this peer for data that will follow soon.
  void measure_rate(PeerIndex peer);

 private:
  std::vector<PeerIndex> served_by(const Link& link) const;
  std::vector<MemberRecord> host_records() const;

  const PeerId self_;
  std::vector<Link> links_;
  std::unique_ptr<RendezvousSession> session_;
  std::unique_ptr<Reform> reform_;
  Relinking relinking_;
  Roster roster_;
  std::vector<PeerIndex> peers_;
  std::vector<PeerId> process_ids_;
  Status removed_;
  uint32_t formation_ = 0;
  std::map<PeerIndex, Readiness> ready_;
  bool topology_known_ = false;
  bool has_thin_links_ = false;
  // The lowest rank of each host of the last known topology. The index is the host number.
  std::vector<MemberRecord> linked_hosts_;
};

}  // namespace unisono
