// An elastic run of real processes under test: each is a group_program that averages known values (group_elastic.h) and does
// what the test says.
//
// Nothing here sleeps: every wait is for an answer, and ends with a test failure if it does not come.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "group_cluster.h"

namespace unisono::testing {

class ElasticPeers {
 public:
  // all: options of elastic_join for every peer; port: where all listen (each on a host of its own), 0: at this host's own
  // address, where the kernel chooses.
  explicit ElasticPeers(std::string all, uint16_t port = 0);

  // Starts a process that joins, the first one as founder and others by it, where `own` names no other seeds. Returns its
  // index, which is also its name: worker-0.
  size_t begin(const std::string& own = "", const std::vector<std::string>& wrapper = {});
  // The peer's answer to its join command.
  Line joined(size_t peer);
  // begin() and joined(), which must be ok.
  size_t add(const std::string& own = "", const std::vector<std::string>& wrapper = {});
  // The address of a peer that has joined, as "tcp://127.0.0.1:40001".
  std::string endpoint(size_t peer);

  RankProcess& operator[](size_t peer) { return *peers_.at(peer); }
  // The same command to all of these at once; all answers must be ok.
  std::vector<Line> ask(const std::vector<size_t>& peers, const std::string& command);
  // Asks for the status of one until it is as wanted.
  bool becomes(size_t peer, const std::function<bool(const Line& status)>& wanted);
  bool becomes(size_t peer, const std::string& text) {
    return becomes(peer, [&](const Line& status) { return status.says(text); });
  }
  void stop(size_t peer);
  void kill(size_t peer);
  // They end their loops; values were right in every averaging step, and each ends with 0.
  std::vector<Line> finish(const std::vector<size_t>& peers);

 private:
  test::TemporaryFolder folder_;
  std::string all_;
  uint16_t port_;
  std::vector<std::unique_ptr<RankProcess>> peers_;
  std::vector<Line> joins_;
};

// "0.25/0.75/0/…": what these weights give, by index.
std::string shares_of(const std::vector<double>& weights);

// The averaging step that each tells of was exact, has these weights' mean, and the same bits on all.
void expect_exact(const std::vector<Line>& steps, const std::vector<double>& weights);

}  // namespace unisono::testing
