#include "elastic_peers.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/concat.h"

namespace unisono::testing {

ElasticPeers::ElasticPeers(std::string all, uint16_t port) : all_(std::move(all)), port_(port) {}

size_t ElasticPeers::begin(const std::string& own, const Wrapper& wrapper) {
  const auto index = peers_.size();
  auto command = concat("elastic_join:index=", index);
  command += port_ == 0 ? std::string(",interface=127.0.0.1") : concat(",port=", port_);
  if (index == 0) command += ",found=1";
  else if (own.find("seeds=") == std::string::npos) command += ",seeds=" + endpoint(0);
  for (const auto& options : {all_, own}) command += options.empty() ? "" : "," + options;
  peers_.push_back(std::make_unique<RankProcess>(folder_.path(), std::to_string(index), std::vector<std::string>{},
                                                 std::vector<std::string>{command}, wrapper));
  joins_.emplace_back();
  return index;
}

Line ElasticPeers::joined(size_t peer) { return joins_.at(peer) = peers_.at(peer)->answer(0); }

size_t ElasticPeers::add(const std::string& own, const Wrapper& wrapper) {
  const auto index = begin(own, wrapper);
  const auto line = joined(index);
  EXPECT_TRUE(line.ok()) << line.text;
  return index;
}

std::string ElasticPeers::endpoint(size_t peer) { return joins_.at(peer).value("endpoints"); }

std::vector<Line> ElasticPeers::ask(const std::vector<size_t>& peers, const std::string& command) {
  std::vector<size_t> numbers;
  for (const auto peer : peers) numbers.push_back(peers_.at(peer)->send_command(command));
  std::vector<Line> lines;
  for (size_t i = 0; i < peers.size(); ++i) {
    auto& peer = *peers_.at(peers[i]);
    lines.push_back(peer.answer(numbers[i]));
    if (!lines.back().ok() && !lines.back().text.empty())
      ADD_FAILURE() << lines.back().text << "\n" << peer.ask("elastic_status").text << "\n" << peer.ask("elastic_summary").text;
  }
  return lines;
}

bool ElasticPeers::wait_for_status(size_t peer, const std::function<bool(const Line& status)>& wanted) {
  const auto until = now_ns() + int64_t{40'000'000'000};
  for (;;) {
    const auto status = peers_.at(peer)->ask("elastic_status");
    if (status.ok() && wanted(status)) return true;
    if (status.ok() && now_ns() < until) continue;
    ADD_FAILURE() << "worker-" << peer << " has the last status: " << status.text;
    return false;
  }
}

void ElasticPeers::stop(size_t peer) {
  peers_.at(peer)->signal(SIGSTOP);
  ASSERT_TRUE(peers_.at(peer)->wait_stopped());
}

void ElasticPeers::kill(size_t peer) {
  peers_.at(peer)->signal(SIGKILL);
  const auto done = peers_.at(peer)->wait();
  EXPECT_TRUE(done.by_signal && done.code == SIGKILL) << done.out << done.error;
}

std::vector<Line> ElasticPeers::finish(const std::vector<size_t>& peers) {
  const auto lines = ask(peers, "elastic_leave");
  for (const auto& line : lines) std::printf("    %s\n", line.text.c_str());
  for (const auto peer : peers) peers_.at(peer)->send_command("exit");
  for (const auto peer : peers) {
    const auto done = peers_.at(peer)->wait();
    EXPECT_TRUE(!done.timed_out && !done.by_signal && done.code == 0) << "worker-" << peer << " ended badly:\n"
                                                                      << done.out << done.error;
  }
  return lines;
}

std::string shares_of(const std::vector<double>& weights) {
  constexpr size_t shares_count = 7;
  double sum = 0;
  for (const auto weight : weights) sum += weight;
  std::string text;
  for (size_t index = 0; index < shares_count; ++index) {
    char share[32];
    std::snprintf(share, sizeof(share), "%.6g", index < weights.size() ? weights[index] / sum : 0);
    text += (index == 0 ? "" : "/") + std::string(share);
  }
  return text;
}

void expect_exact(const std::vector<Line>& steps, const std::vector<double>& weights) {
  for (const auto& step : steps) {
    EXPECT_EQ(step.value("exact"), "1") << step.text;
    EXPECT_EQ(step.value("same"), "1") << step.text;
    EXPECT_EQ(step.value("shares"), shares_of(weights)) << step.text;
    EXPECT_EQ(step.value("hash"), steps.front().value("hash")) << step.text;
  }
}

}  // namespace unisono::testing
