// An elastic run of real processes under test. Each process is a group_program that averages known values (group_elastic.h) and
// executes commands of the test.
//
// Nothing here sleeps for a fixed time. Every wait is for an answer. If the answer does not come, the test fails.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "group_cluster.h"

namespace unisono::testing {

class ElasticPeers {
 public:
  // all: options of elastic_join that every peer gets. port: all peers listen at this port, so each needs a host of its own.
  // port 0: the peers listen at the loopback address of this host, at ports that the kernel chooses.
  explicit ElasticPeers(std::string all, uint16_t port = 0);

  // Starts a process that joins the run. The first process founds the run. Later ones get the first process as their seed (the
  // peer that they ask first), unless `own` has seeds. Returns the index of the process, which is also in its name (worker-0).
  size_t begin(const std::string& own = "", const Wrapper& wrapper = {});
  // Returns the answer of the peer to its join command.
  Line joined(size_t peer);
  // Calls begin() and joined(). Joining must succeed.
  size_t add(const std::string& own = "", const Wrapper& wrapper = {});
  // Returns the address of a peer that has joined, for example "tcp://127.0.0.1:40001".
  std::string endpoint(size_t peer);

  RankProcess& operator[](size_t peer) { return *peers_.at(peer); }
  // Sends a command to all these peers at once. All answers must be ok.
  std::vector<Line> ask(const std::vector<size_t>& peers, const std::string& command);
  // Asks a peer for its status until `wanted` returns true. Returns false after a time limit.
  bool wait_for_status(size_t peer, const std::function<bool(const Line& status)>& wanted);
  bool wait_for_status(size_t peer, const std::string& text) {
    return wait_for_status(peer, [&](const Line& status) { return status.says(text); });
  }
  void stop(size_t peer);
  void kill(size_t peer);
  // Ends the averaging loops of these peers, and then the peers. The values of all averaging steps must have been right, and
  // each peer must exit with 0.
  std::vector<Line> finish(const std::vector<size_t>& peers);

 private:
  test::TemporaryFolder folder_;
  std::string all_;
  uint16_t port_;
  std::vector<std::unique_ptr<RankProcess>> peers_;
  std::vector<Line> joins_;
};

// Returns the shares that peers with these weights should have, as a text like "0.25/0.75/0/…".
std::string shares_of(const std::vector<double>& weights);

// Checks each averaging step in `steps`: it was exact, its mean fits these weights, and all peers have the same bits.
void expect_exact(const std::vector<Line>& steps, const std::vector<double>& weights);

}  // namespace unisono::testing
