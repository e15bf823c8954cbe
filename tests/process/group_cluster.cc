#include "group_cluster.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/concat.h"

namespace unisono::testing {
namespace {

std::vector<std::string> words(const std::vector<std::string>& wrapper, const std::vector<std::string>& commands) {
  auto all = wrapper;
  all.push_back(GROUP_PROGRAM);
  all.insert(all.end(), commands.begin(), commands.end());
  all.push_back("listen");
  return all;
}

// Makes a FIFO. This side opens it for reading, too, so that writing never fails and never blocks. When this side closes it,
// the rank sees the end of the file.
int make_pipe(const std::string& path) {
  if (::mkfifo(path.c_str(), 0600) != 0) std::abort();
  return ::open(path.c_str(), O_RDWR | O_CLOEXEC);
}

Line parse_line(const std::string& text) {
  Line line;
  line.text = text;
  const auto message = text.find(" message=");
  std::istringstream in(text.substr(0, message));
  for (std::string word; in >> word;) {
    const auto equals = word.find('=');
    if (equals != std::string::npos) line.values[word.substr(0, equals)] = word.substr(equals + 1);
  }
  if (message != std::string::npos) {
    const auto begin = message + 9;
    line.values["message"] = text.substr(begin, text.rfind(" end=") - begin);
  }
  return line;
}

}  // namespace

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string Line::value(const std::string& key) const {
  const auto found = values.find(key);
  return found == values.end() ? "" : found->second;
}

int64_t Line::number(const std::string& key) const { return std::strtoll(value(key).c_str(), nullptr, 10); }

RankProcess::RankProcess(const std::string& folder, const std::string& name, std::vector<std::string> environment,
                         const std::vector<std::string>& commands, const Wrapper& wrapper)
    : pipe_(folder + "/commands-" + name),
      commands_(make_pipe(pipe_)),
      next_(commands.size()),
      child_(words(wrapper.words, commands),
             {.environment = (environment.push_back("GROUP_COMMANDS=" + pipe_), std::move(environment)),
              .process_space = wrapper.process_space}) {}

RankProcess::~RankProcess() { ::close(commands_); }

size_t RankProcess::send_command(const std::string& command) {
  const auto line = command + "\n";
  if (::write(commands_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    ADD_FAILURE() << "cannot send command " << command;
  return next_++;
}

Line RankProcess::answer(size_t number) {
  const auto mark = concat(" end=", number, "\n");
  if (!child_.wait_for(mark)) {
    ADD_FAILURE() << "process " << pid() << " did not answer command " << number << "; it said:\n" << output();
    return {};
  }
  const auto& out = child_.out();
  const auto end = out.find(mark);
  if (end == std::string::npos) return {};
  const auto begin = out.rfind('\n', end);
  return parse_line(out.substr(begin == std::string::npos ? 0 : begin + 1,
                               end + mark.size() - 1 - (begin == std::string::npos ? 0 : begin + 1)));
}

bool RankProcess::has_begun(size_t number) {
  const bool seen = child_.wait_for(concat("going seq=", number, "\n"));
  EXPECT_TRUE(seen) << output();
  return seen;
}

int RankProcess::finish() {
  send_command("exit");
  const auto done = child_.wait();
  if (done.timed_out || done.by_signal || done.code != 0) ADD_FAILURE() << "a rank ended badly: " << done.out << done.error;
  return done.by_signal ? -done.code : done.code;
}

Cluster::Cluster(size_t world, const ClusterOptions& options) : options_(options) {
  for (size_t rank = 0; rank < world; ++rank) {
    auto settings = environment(options);
    settings.push_back(concat("RANK=", rank));
    settings.push_back(concat("WORLD_SIZE=", world));
    const auto wrapper = options.wrappers.empty() ? Wrapper() : options.wrappers.at(rank);
    ranks_.push_back(std::make_unique<RankProcess>(folder_.path(), std::to_string(rank), std::move(settings),
                                                   std::vector<std::string>{"join"}, wrapper));
  }
  for (size_t rank = 0; rank < world; ++rank) {
    const auto line = ranks_[rank]->answer(0);
    EXPECT_TRUE(line.ok()) << line.text;
    EXPECT_EQ(line.number("rank"), static_cast<int64_t>(rank));
  }
}

std::vector<std::string> Cluster::environment(const ClusterOptions& options) const {
  std::vector<std::string> settings{"UNISONO_TRANSPORT=" + options.transport, concat("UNISONO_TIMEOUT_MS=", 30'000 * slowness)};
  settings.push_back("UNISONO_RENDEZVOUS=" +
                     (options.rendezvous.empty() ? "file://" + folder_.path() + "/meeting" : options.rendezvous));
  settings.insert(settings.end(), options.environment.begin(), options.environment.end());
  return settings;
}

RankProcess& Cluster::add_joiner() {
  const auto name = std::to_string(ranks_.size());
  ranks_.push_back(
      std::make_unique<RankProcess>(folder_.path(), name, environment(options_), std::vector<std::string>{"join:running=1"}));
  return *ranks_.back();
}

std::vector<size_t> Cluster::all_but(const std::vector<size_t>& gone) const {
  std::vector<size_t> left;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (std::find(gone.begin(), gone.end(), rank) == gone.end()) left.push_back(rank);
  }
  return left;
}

std::vector<size_t> Cluster::send_command(const std::vector<size_t>& ranks, const std::string& command) {
  std::vector<size_t> numbers;
  for (const auto rank : ranks) numbers.push_back(ranks_.at(rank)->send_command(command));
  return numbers;
}

std::vector<Line> Cluster::answers(const std::vector<size_t>& ranks, const std::vector<size_t>& numbers) {
  std::vector<Line> lines;
  for (size_t i = 0; i < ranks.size(); ++i) lines.push_back(ranks_.at(ranks[i])->answer(numbers.at(i)));
  return lines;
}

std::vector<Line> Cluster::ask(const std::vector<size_t>& ranks, const std::string& command) {
  return answers(ranks, send_command(ranks, command));
}

std::vector<Line> Cluster::ask_all(const std::string& command) { return ask(all_but({}), command); }

void Cluster::finish(const std::vector<size_t>& ranks) {
  for (const auto rank : ranks) ranks_.at(rank)->send_command("exit");
  for (const auto rank : ranks) {
    const auto done = ranks_.at(rank)->wait();
    EXPECT_TRUE(!done.timed_out && !done.by_signal && done.code == 0) << "rank " << rank << " ended badly:\n"
                                                                      << done.out << done.error;
  }
}

void expect_all_ok(const std::vector<Line>& lines) {
  for (const auto& line : lines) EXPECT_TRUE(line.ok()) << line.text;
}

void expect_within(const std::string& what, int64_t took_ns, int64_t limit_ms) {
  std::printf("    %s: %.1f ms (limit %lld)\n", what.c_str(), static_cast<double>(took_ns) / 1e6,
              static_cast<long long>(limit_ms * slowness));
  EXPECT_LE(took_ns, limit_ms * slowness * 1'000'000) << what;
}

}  // namespace unisono::testing
