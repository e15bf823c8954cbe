#include "group_elastic.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <map>
#include <span>
#include <utility>

#include "base/concat.h"
#include "base/hash.h"

namespace unisono::testing {
namespace {

constexpr size_t period = 8, shares_count = period - 1;
// The values are split into two tensors. Thus the tests also cover how tensors are put together.
constexpr size_t last_tensor = 8 * period;

sigset_t termination_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  return set;
}

// Turns a text into one word, because an answer consists of words.
std::string word(std::string text) {
  for (auto& c : text) c = c == ' ' || c == '\n' ? '_' : c;
  return text;
}

template <typename Items, typename Text>
std::string joined(const Items& items, const char* between, Text text) {
  std::string all;
  for (const auto& item : items) all += (all.empty() ? "" : between) + text(item);
  return all;
}

std::vector<std::string> absences(const AveragingReport& report) {
  std::vector<std::string> all;
  for (const auto& round : report.rounds) all.insert(all.end(), round.absent.begin(), round.absent.end());
  return all;
}

std::string outcomes(const AveragingReport& report) {
  return word(joined(report.rounds, "/", [](const RoundSummary& round) { return round.outcome; }));
}

uint32_t largest_group(const AveragingReport& report) {
  uint32_t largest = 0;
  for (const auto& round : report.rounds) largest = std::max(largest, round.group);
  return largest;
}

std::string shares_text(std::span<const float> values) {
  return joined(values.first(shares_count), "/", [](float share) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.6g", static_cast<double>(share));
    return std::string(text);
  });
}

// Returns how many peers have contributed to this tile of eight elements. If the shares are impossible and `wrong` is empty,
// `wrong` gets a description.
uint32_t members_of(std::span<const float> eight, std::string& wrong) {
  double sum = 0;
  uint32_t members = 0;
  bool good = eight[shares_count] == 1.0F;
  for (const auto share : eight.first(shares_count)) {
    good = good && share >= 0 && share <= 1;
    sum += static_cast<double>(share);
    members += share > 0 ? 1 : 0;
  }
  good = good && std::abs(sum - 1) < 1e-5;
  if (good || !wrong.empty()) return members;
  char text[64];
  std::snprintf(text, sizeof(text), ", sum %.9g, one %.9g", sum, static_cast<double>(eight[shares_count]));
  wrong = "shares " + shares_text(eight) + text;
  return members;
}

bool fits(const AveragingOutcome& averaged, const Command& wanted) {
  if (wanted.number("exact", 0) != 0 && !averaged.report.exact) return false;
  if (const auto members = wanted.number("members", 0);
      members != 0 && (averaged.members_min != members || averaged.members_max != members))
    return false;
  if (const auto group = wanted.number("group", 0); group != 0 && largest_group(averaged.report) != group) return false;
  if (const auto outcome = wanted.text("outcome"); !outcome.empty() && outcomes(averaged.report) != outcome) return false;
  const auto name = wanted.text("absent");
  const auto absent = absences(averaged.report);
  return name.empty() || std::ranges::any_of(absent, [&](const std::string& one) { return one.starts_with(name + ' '); });
}

ElasticOptions options_of(const Command& command, size_t elements) {
  ElasticOptions options;
  options.run_id = command.text("run", "processes");
  options.found = command.number("found", 0) != 0;
  if (const auto seeds = command.text("seeds"); !seeds.empty()) options.seeds = split_text(seeds, '+');
  options.tensor_elements = {elements - last_tensor, last_tensor};
  options.name = "worker-" + command.text("index", "0");
  options.interface = command.text("interface");
  options.port = static_cast<uint16_t>(command.number("port", 0));
  options.key = command.text("key");
  const auto role = command.text("role", "peer");
  if (role == "client") options.role = ElasticOptions::Role::client;
  else if (role == "reducer") options.role = ElasticOptions::Role::reducer;
  else if (role != "peer") misuse("role " + role);
  options.max_group = static_cast<uint32_t>(command.number("max_group", 32));
  options.min_peers = static_cast<uint32_t>(command.number("min_peers", 1));
  options.join_timeout = Milliseconds(command.number("join", 30'000));
  options.gather_timeout = Milliseconds(command.number("gather", 0));
  options.stall_timeout = Milliseconds(command.number("stall", 0));
  return options;
}

}  // namespace

ElasticRunner::~ElasticRunner() {
  (void)stop();
  if (!termination_.joinable()) return;
  over_ = true;
  ::pthread_kill(termination_.native_handle(), SIGTERM);
  termination_.join();
}

Answer ElasticRunner::run(const Command& command) {
  if (command.name == "elastic_join") return join(command);
  if (!run_) misuse(command.name + " before elastic_join");
  if (command.name == "elastic_loop") return loop();
  if (command.name == "elastic_wait") return wait(command);
  if (command.name == "elastic_receive") return receive(command);
  if (command.name == "elastic_stop") return stop();
  if (command.name == "elastic_summary") return summary();
  if (command.name == "elastic_status") return status();
  if (command.name == "elastic_leave") return leave();
  if (command.name != "elastic_step") misuse(command.name);
  if (loop_.joinable()) misuse("elastic_step in a loop");
  (void)step();
  const std::lock_guard lock(mutex_);
  return answer_of(history_.size() - 1);
}

Answer ElasticRunner::join(const Command& command) {
  if (run_) misuse("elastic_join twice");
  // Block the signals before any other thread starts. All threads inherit the mask, so only the thread that calls sigwait
  // receives these signals.
  const auto signals = termination_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  weight_ = static_cast<double>(command.number("weight", 1));
  reducer_ = command.text("role") == "reducer";
  elements_ = command.number("elements", 4000) * period;
  const auto index = command.number("index", 0);
  if (!reducer_) own_.resize(elements_);
  for (size_t i = 0; i < own_.size(); ++i) own_[i] = i % period == index || i % period == shares_count ? 1 : 0;
  auto run = Elastic::join(options_of(command, elements_));
  if (!run) return {run.status(), {}};
  run_.emplace(std::move(*run));
  termination_ = std::thread([this] { handle_termination(); });
  const auto& state = run_->state();
  Answer answer;
  std::string wrong;
  for (size_t at = 0; at + period <= state.values.size(); at += period)
    (void)members_of(std::span(state.values).subspan(at, period), wrong);
  if (!wrong.empty()) answer.status = Status(Code::internal, "WRONG STATE: " + wrong);
  return answer.add("loaded", state.loaded)
      .add("state_step", state.step)
      .add("bytes", state.bytes)
      .add("donors", state.donors)
      .add("endpoints", joined(run_->status().endpoints, "+", [](const std::string& one) { return one; }))
      .add("note", word(state.note));
}

void ElasticRunner::handle_termination() {
  const auto signals = termination_signals();
  int number = 0;
  ::sigwait(&signals, &number);
  if (over_) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  const auto left = run_->leave();
  put("left code=" + std::string(name(left.code())) + "\n");
  std::_Exit(0);
}

bool ElasticRunner::step() {
  values_ = own_;
  const std::span<float> all(values_);
  std::vector<std::span<float>> tensors;
  if (!reducer_) tensors = {all.first(elements_ - last_tensor), all.last(last_tensor)};
  auto report = run_->average(std::span<const std::span<float>>(tensors), weight_);
  auto averaged = std::make_unique<AveragingOutcome>();
  if (report.ok()) *averaged = measure(std::move(*report));
  else averaged->error = report.status().to_string();
  const bool good = averaged->error.empty();
  const std::lock_guard lock(mutex_);
  history_.push_back(std::move(averaged));
  changed_.notify_all();
  return good;
}

AveragingOutcome ElasticRunner::measure(AveragingReport report) const {
  AveragingOutcome averaged;
  averaged.report = std::move(report);
  if (values_.empty()) return averaged;
  averaged.members_min = UINT32_MAX;
  const std::span<const float> all(values_);
  for (size_t at = 0; at + period <= all.size(); at += period) {
    const auto eight = all.subspan(at, period);
    const auto members = members_of(eight, averaged.wrong);
    averaged.members_min = std::min(averaged.members_min, members);
    averaged.members_max = std::max(averaged.members_max, members);
    averaged.same = averaged.same && std::ranges::equal(eight, all.first(period));
  }
  averaged.shares = shares_text(all);
  averaged.hash = hash_of(std::as_bytes(all));
  return averaged;
}

Answer ElasticRunner::answer_of(size_t number) const {
  const auto& averaged = *history_[number];
  const auto& report = averaged.report;
  Answer answer;
  if (!averaged.error.empty()) answer.status = Status(Code::unavailable, averaged.error);
  if (!averaged.wrong.empty())
    answer.status = Status(Code::internal, "WRONG VALUES: " + averaged.wrong + "; " + report.to_string());
  uint64_t kept = 0, voided = 0, undecided = 0, lost = 0, sent = 0;
  for (const auto& round : report.rounds)
    kept += round.kept_local, voided += round.voided, undecided += round.undecided, lost += round.lost,
        sent += round.sent_bytes;
  return answer.add("done", number + 1)
      .add("step", report.step)
      .add("exact", report.exact)
      .add("layout", report.layout)
      .add("peers", report.peers)
      .add("dims", joined(report.dims, "x", [](uint32_t length) { return std::to_string(length); }))
      .add("group", largest_group(report))
      .add("outcome", outcomes(report))
      .add("kept", kept)
      .add("void", voided)
      .add("undecided", undecided)
      .add("lost", lost)
      .add("sent", sent)
      .add("members", averaged.members_min)
      .add("members_max", averaged.members_max)
      .add("same", averaged.same)
      .add("shares", averaged.shares)
      .add("hash", averaged.hash)
      .add("ms", std::lround(report.seconds * 1e3))
      .add("absent", word(joined(absences(report), ";", [](const std::string& one) { return one; })))
      .add("note", word(report.note));
}

Answer ElasticRunner::loop() {
  if (loop_.joinable()) misuse("elastic_loop twice");
  if (!run_->ready(Milliseconds{40'000})) return {Status(Code::late, "there is no layout after 40 s"), {}};
  {
    const std::lock_guard lock(mutex_);
    stop_ = false;
    looping_ = true;
  }
  loop_ = std::thread([this] {
    for (bool more = true; more;) {
      const bool good = step();
      const std::lock_guard lock(mutex_);
      more = good && !stop_;
      looping_ = more;
      changed_.notify_all();
    }
  });
  return {};
}

Answer ElasticRunner::wait(const Command& command) {
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(command.number("ms", 45'000));
  for (size_t at = command.number("from", history_.size());;) {
    for (; at < history_.size(); ++at) {
      if (fits(*history_[at], command)) return answer_of(at);
    }
    if (looping_ && changed_.wait_until(lock, until) == std::cv_status::no_timeout) continue;
    if (at < history_.size()) continue;  // The averaging step has ended just at the time limit.
    const std::string last =
        history_.empty() ? "no averaging step has ended" : history_.back()->error + history_.back()->report.to_string();
    return Answer{Status(Code::late, "no averaging step met the conditions; the last one: " + last), {}}.add("done",
                                                                                                             history_.size());
  }
}

Answer ElasticRunner::receive(const Command& command) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  const auto enough = run_->status().received_bytes + command.number("bytes", 1);
  while (run_->status().received_bytes < enough) {
    if (std::chrono::steady_clock::now() > until)
      return {Status(Code::late, "the requested number of bytes was not received in 40 s"), {}};
  }
  return {};
}

Answer ElasticRunner::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  if (loop_.joinable()) loop_.join();
  return summary();
}

Answer ElasticRunner::summary() {
  const std::lock_guard lock(mutex_);
  Answer answer;
  std::map<std::string, uint64_t> ended;
  std::set<std::string> absent;
  uint64_t exact = 0;
  double longest = 0;
  for (size_t number = 0; number < history_.size(); ++number) {
    const auto& averaged = *history_[number];
    if (!averaged.wrong.empty() && answer.status.ok()) answer.status = answer_of(number).status;
    ++ended[averaged.error.empty() ? outcomes(averaged.report) : "failed"];
    exact += averaged.report.exact ? 1 : 0;
    longest = std::max(longest, averaged.report.seconds);
    for (const auto& one : absences(averaged.report)) absent.insert(one);
  }
  return answer.add("done", history_.size())
      .add("exact", exact)
      .add("longest_ms", std::lround(longest * 1e3))
      .add("outcomes", joined(ended, ";", [](const auto& one) { return concat(word(one.first), ":", one.second); }))
      .add("absent", word(joined(absent, ";", [](const std::string& one) { return one; })));
}

Answer ElasticRunner::status() {
  const auto status = run_->status();
  const auto peers =
      joined(status.peers, ";", [](const ElasticPeer& peer) { return peer.name + ":" + peer.status + ":" + peer.role; });
  return Answer()
      .add("phase", status.phase)
      .add("layout", status.layout)
      .add("serving", status.serving)
      .add("refused", status.refused)
      .add("refusal", word(status.last_refusal))
      .add("links", status.links)
      .add("peers", peers);
}

Answer ElasticRunner::leave() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  const auto left = run_->leave();
  if (loop_.joinable()) loop_.join();
  auto answer = summary();
  if (answer.status.ok()) answer.status = left;
  return answer;
}

}  // namespace unisono::testing
