#include "sim/elastic/elastic_network.h"

#include <algorithm>
#include <utility>

namespace unisono::sim {

uint32_t ElasticNetwork::add(ElasticActor* actor, Nanos when) {
  const auto index = static_cast<uint32_t>(processes_.size());
  processes_.emplace_back().actor = actor;
  push({.at = std::max(when, now_), .to = index, .kind = Kind::start});
  return index;
}

void ElasticNetwork::push(Event event) {
  uint32_t index = static_cast<uint32_t>(events_.size());
  if (free_events_.empty()) {
    events_.emplace_back();
  } else {
    index = free_events_.back();
    free_events_.pop_back();
  }
  queue_.push({.at = event.at, .sequence = sequence_++, .event = index});
  events_[index] = std::move(event);
}

ElasticNetwork::Link& ElasticNetwork::link(uint32_t from, uint32_t to) {
  auto& links = processes_[from].links;
  if (links.size() <= to) links.resize(processes_.size());
  return links[to];
}

void ElasticNetwork::at(Nanos when, std::function<void()> action) {
  actions_[next_action_] = std::move(action);
  push({.at = std::max(when, now_), .to = next_action_++, .kind = Kind::action});
}

void ElasticNetwork::send(uint32_t from, uint32_t to, SharedBuffer message) {
  auto& sender = processes_[from];
  if (sender.actor == nullptr) return;
  ++messages_;
  bytes_ += message.size();
  sender.sent_bytes += message.size();
  if (!alive(to)) return lose(from, to, true, now_ + 2 * model_.delay);
  auto& there = link(from, to);
  if (!there.linked) there.linked = link(to, from).linked = true;
  if (separated(from, to)) {
    cut_messages_[{from, to}].emplace_back(now_, std::move(message));
    push({.at = now_ + model_.silence, .to = to, .from = from, .kind = Kind::heal_check});
    return;
  }
  Nanos arrives = now_;
  if (model_.bytes_per_second > 0) {
    const auto time = static_cast<Nanos>(static_cast<double>(message.size()) * 1e9 / model_.bytes_per_second);
    sender.line_free = std::max(sender.line_free, now_) + time;
    auto& receiver = processes_[to];
    // The receiver's downlink carries messages in the order in which they were sent. A switch with one queue per port does the
    // same.
    receiver.down_free = std::max(receiver.down_free + time, sender.line_free);
    arrives = receiver.down_free;
  }
  arrives += model_.delay + static_cast<Nanos>(random_.below(static_cast<uint64_t>(model_.jitter)));
  there.last_arrival = std::max(there.last_arrival, arrives);
  push({.at = there.last_arrival, .to = to, .from = from, .kind = Kind::arrive, .message = std::move(message)});
}

bool ElasticNetwork::credit(uint32_t from, uint32_t to) {
  if (model_.bytes_per_second <= 0) return true;
  auto& sender = processes_[from];
  const auto waiting = static_cast<double>(std::max<Nanos>(0, sender.line_free - now_)) * model_.bytes_per_second / 1e9;
  if (waiting < static_cast<double>(model_.credit_bytes)) return true;
  if (sender.waits_credit.insert(to).second) {
    const auto surplus = (waiting - static_cast<double>(model_.credit_bytes) / 2) * 1e9 / model_.bytes_per_second;
    push({.at = now_ + static_cast<Nanos>(surplus) + 1, .to = from, .from = to, .kind = Kind::credit});
  }
  return false;
}

void ElasticNetwork::lose(uint32_t to, uint32_t from, bool refused, Nanos when) {
  push({.at = when, .to = to, .from = from, .kind = Kind::lost, .refused = refused});
}

void ElasticNetwork::kill(uint32_t index) {
  auto& process = processes_[index];
  process.actor = nullptr;
  process.held.clear();
  for (uint32_t other = 0; other < process.links.size(); ++other) {
    if (process.links[other].linked && !separated(index, other)) lose(other, index, true, now_ + model_.delay);
  }
}

void ElasticNetwork::stop(uint32_t index) { processes_[index].stopped = true; }

void ElasticNetwork::go_on(uint32_t index) {
  auto& process = processes_[index];
  process.stopped = false;
  // As with poll(), messages that arrived in the meantime are handled before any timer.
  for (auto held = std::exchange(process.held, {}); auto& event : held) {
    event.at = now_;
    push(std::move(event));
  }
  push({.at = now_, .to = index, .kind = Kind::wake});
}

void ElasticNetwork::cut(const std::set<uint32_t>& cut_side) { cut_side_ = cut_side; }

void ElasticNetwork::heal() {
  cut_side_.clear();
  for (auto& [pair, waiting] : std::exchange(cut_messages_, {})) {
    for (auto& [sent, message] : waiting) {
      if (alive(pair.second))
        push({.at = now_ + model_.delay,
              .to = pair.second,
              .from = pair.first,
              .kind = Kind::arrive,
              .message = std::move(message)});
      else lose(pair.first, pair.second, true, now_ + model_.delay);
    }
  }
}

void ElasticNetwork::schedule_wake_up(uint32_t index) {
  auto& process = processes_[index];
  if (process.actor == nullptr || process.stopped) return;
  const auto deadline = process.actor->next_deadline();
  if (deadline >= process.wake_at) return;
  process.wake_at = deadline;
  push({.at = std::max(deadline, now_), .to = index, .kind = Kind::wake});
}

void ElasticNetwork::arrive(Event& event) {
  // If the network was cut while the message was in flight, the message waits at the cut.
  if (separated(event.from, event.to)) {
    cut_messages_[{event.from, event.to}].emplace_back(now_, std::move(event.message));
    return push({.at = now_ + model_.silence, .to = event.to, .from = event.from, .kind = Kind::heal_check});
  }
  processes_[event.to].actor->received(event.from, std::move(event.message), now_);
}

void ElasticNetwork::deliver(Event& event) {
  if (event.kind == Kind::action) return actions_.extract(event.to).mapped()();
  if (event.kind == Kind::heal_check) {
    auto found = cut_messages_.find({event.from, event.to});
    if (found == cut_messages_.end() || found->second.empty() || found->second.front().first + model_.silence > now_) return;
    cut_messages_.erase(found);
    link(event.from, event.to).linked = false;
    event = {.at = now_, .to = event.from, .from = event.to, .kind = Kind::lost};
  }
  auto& process = processes_[event.to];
  if (process.actor == nullptr) return;
  if (process.stopped) {
    if (event.kind != Kind::wake) process.held.push_back(std::move(event));
    return;
  }
  switch (event.kind) {
    case Kind::start: process.actor->started(now_); break;
    case Kind::arrive: arrive(event); break;
    case Kind::lost: process.actor->link_lost(event.from, event.refused, now_); break;
    case Kind::credit:
      process.waits_credit.erase(event.from);
      process.actor->credit(event.from, now_);
      break;
    case Kind::wake:
      if (process.wake_at <= now_) process.wake_at = never;
      if (process.actor->next_deadline() <= now_) process.actor->woke(now_);
      break;
    default: break;
  }
  schedule_wake_up(event.to);
}

void ElasticNetwork::prefetch_next() const {
  if (queue_.empty()) return;
  const auto& next = events_[queue_.top().event];
  if (next.kind == Kind::action) return;
  __builtin_prefetch(next.message.data());
  if (const auto* actor = processes_[next.to].actor) actor->prefetch();
}

bool ElasticNetwork::run(Nanos until, const std::function<bool()>& done) {
  while (!queue_.empty() && queue_.top().at <= until) {
    const auto entry = queue_.top();
    queue_.pop();
    now_ = entry.at;
    prefetch_next();
    auto event = std::exchange(events_[entry.event], {});
    free_events_.push_back(entry.event);
    deliver(event);
    if (done && done()) return true;
  }
  now_ = std::max(now_, until);
  return done && done();
}

}  // namespace unisono::sim
