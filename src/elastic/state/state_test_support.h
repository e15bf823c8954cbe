// Donors and joiners in virtual time. Each process has an outgoing link with a bandwidth and a delay. Messages of one sender
// keep their order. All messages are encoded, and a test may change the bytes.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "base/random.h"
#include "elastic/state/state_copy.h"
#include "elastic/state/state_donor.h"
#include "elastic/state/state_loader.h"
#include "wire/digest.h"

namespace unisono::test {

inline constexpr uint64_t state_schema = 77;

inline Bytes random_bytes(size_t size, uint64_t seed) {
  Random random(seed);
  Bytes bytes(size);
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const auto word = random.next();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), size - at));
  }
  return bytes;
}
// Cuts a vector into chunks.
inline std::vector<SharedBuffer> cut(const Bytes& values, const std::vector<size_t>& chunk_bytes) {
  std::vector<SharedBuffer> chunks;
  size_t at = 0;
  for (const auto bytes : chunk_bytes) chunks.push_back(SharedBuffer::copy(ByteView(values).subspan(at, bytes))), at += bytes;
  return chunks;
}
inline std::vector<uint64_t> digests_of(const std::vector<SharedBuffer>& chunks) {
  std::vector<uint64_t> digests;
  for (const auto& chunk : chunks) digests.push_back(digest64(chunk.view()));
  return digests;
}
inline void finish(StateCopy& copy, int64_t step, const Bytes& values, const std::vector<size_t>& chunk_bytes) {
  auto chunks = cut(values, chunk_bytes);
  auto digests = digests_of(chunks);
  copy.finished(step, std::move(chunks), std::move(digests));
}
inline StateBlob blob(std::string name, const Bytes& bytes) { return {std::move(name), SharedBuffer::copy(bytes)}; }

class StateWorld {
 public:
  // Function that may change a message on its way. It returns false if the message is lost.
  using Tamper = std::function<bool(const PeerId& from, const PeerId& to, Bytes& bytes)>;

  struct Donor {
    PeerId id;
    Bytes values;
    std::unique_ptr<StateCopy> copy;
    std::unique_ptr<StateDonor> machine;
    bool alive = true;
    double bandwidth = 0;
    Nanos link_free = 0;
    uint32_t serving_max = 0;
    std::optional<uint64_t> listed;  // digest in the donor's roster entry; empty: the digest of its real state
    int64_t listed_step = 7;         // averaging step in the donor's roster entry
  };
  struct Joiner {
    PeerId id;
    std::unique_ptr<StateLoader> machine;
    std::optional<Result<LoadedState>> outcome;
    Nanos ended_at = never;
    uint32_t parts_max = 0;
    bool lost_parts = false;  // true if the number of loaded parts ever decreased
  };

  explicit StateWorld(std::vector<size_t> chunk_bytes, Nanos delay = 5 * millisecond)
      : chunk_bytes_(std::move(chunk_bytes)), delay_(delay) {}

  Tamper tamper;
  ElasticTimes times;
  bool bandwidth_known = true;
  uint32_t serve_slots = 2;

  size_t vector_bytes() const {
    size_t bytes = 0;
    for (const auto each : chunk_bytes_) bytes += each;
    return bytes;
  }
  Donor& add_donor(uint64_t id, double bandwidth, uint64_t values_seed = 1, std::vector<StateBlob> blobs = {}) {
    auto donor = std::make_unique<Donor>();
    donor->id = {id, 1};
    donor->values = random_bytes(vector_bytes(), values_seed);
    donor->copy = std::make_unique<StateCopy>(state_schema, chunk_bytes_);
    (void)donor->copy->set_blobs(std::move(blobs));
    finish(*donor->copy, 7, donor->values, chunk_bytes_);
    donor->bandwidth = bandwidth;
    StateDonorOptions options;
    options.schema = state_schema;
    options.serve_slots = serve_slots;
    options.times = times;
    donor->machine = std::make_unique<StateDonor>(options, *donor->copy);
    if (bandwidth_known) donor->machine->set_bandwidth(bandwidth);
    auto& added = *donor;
    donors_[added.id] = std::move(donor);
    return added;
  }
  Joiner& add_joiner(uint64_t id) {
    auto joiner = std::make_unique<Joiner>();
    joiner->id = {id, 2};
    StateLoaderOptions options;
    options.self = joiner->id;
    options.schema = state_schema;
    options.chunk_bytes = chunk_bytes_;
    options.times = times;
    joiner->machine = std::make_unique<StateLoader>(options, roster(), now_);
    auto& added = *joiner;
    joiners_[added.id] = std::move(joiner);
    at(now_, [this, &added] { settle(added); });
    return added;
  }
  std::vector<StateSource> roster() const {
    std::vector<StateSource> sources;
    for (const auto& [id, donor] : donors_) {
      if (donor->alive) sources.push_back({id, donor->listed.value_or(donor->copy->state_digest()), donor->listed_step});
    }
    return sources;
  }
  void roster_changed() {
    for (auto& [id, joiner] : joiners_) {
      joiner->machine->donors_changed(roster(), now_);
      settle(*joiner);
    }
  }
  // Ends the donor and its links. The roster lists the donor for some time longer.
  void kill(Donor& donor) {
    donor.alive = false;
    for (auto& [id, joiner] : joiners_) {
      joiner->machine->peer_gone(donor.id, now_);
      settle(*joiner);
    }
    at(now_ + 3 * second, [this] { roster_changed(); });
  }
  // Gives the donor a new state, as after an averaging step that changes all values.
  void step(Donor& donor, int64_t number, uint64_t values_seed) {
    donor.values = random_bytes(vector_bytes(), values_seed);
    finish(*donor.copy, number, donor.values, chunk_bytes_);
    settle(donor);
  }

  void at(Nanos when, std::function<void()> act) { events_.push({when, event_number_++, std::move(act)}); }
  void run(Nanos until) {
    while (!events_.empty() && events_.top().when <= until) {
      const auto event = events_.top();
      events_.pop();
      now_ = event.when;
      event.act();
    }
    now_ = until;
  }
  // Runs until all joiners have ended, or until time `until`.
  void run_all(Nanos until = 3600 * second) {
    while (!events_.empty() && events_.top().when <= until && !all_ended()) run(events_.top().when);
  }
  bool all_ended() const {
    return std::all_of(joiners_.begin(), joiners_.end(), [](const auto& entry) { return entry.second->ended_at != never; });
  }
  Nanos now() const { return now_; }
  std::map<PeerId, std::unique_ptr<Donor>>& donors() { return donors_; }
  std::map<PeerId, std::unique_ptr<Joiner>>& joiners() { return joiners_; }
  const std::map<std::pair<PeerId, PeerId>, uint64_t>& bytes_between() const { return bytes_between_; }

  void settle(Donor& donor) {
    if (!donor.alive) return;
    donor.serving_max = std::max(donor.serving_max, donor.machine->serving());
    transmit(donor.id, donor.bandwidth, donor.link_free, donor.machine->take_sends());
    wake_at(donor.machine->next_deadline(), [this, &donor] {
      if (!donor.alive || donor.machine->next_deadline() > now_) return;
      donor.machine->woke(now_);
      settle(donor);
    });
  }
  void settle(Joiner& joiner) {
    const auto parts = joiner.machine->progress().parts;
    joiner.lost_parts = joiner.lost_parts || parts < joiner.parts_max;
    joiner.parts_max = std::max(joiner.parts_max, parts);
    transmit(joiner.id, 1e9, joiner_link_free_[joiner.id], joiner.machine->take_sends());
    if (auto outcome = joiner.machine->take_outcome()) {
      joiner.outcome = std::move(outcome);
      joiner.ended_at = now_;
    }
    wake_at(joiner.machine->next_deadline(), [this, &joiner] {
      if (joiner.machine->next_deadline() > now_) return;
      joiner.machine->woke(now_);
      settle(joiner);
    });
  }

 private:
  struct Event {
    Nanos when;
    uint64_t number;
    std::function<void()> act;
    bool operator<(const Event& other) const { return std::pair(when, number) > std::pair(other.when, other.number); }
  };

  void wake_at(Nanos deadline, std::function<void()> act) {
    if (deadline != never) at(std::max(deadline, now_), std::move(act));
  }
  void transmit(const PeerId& from, double bandwidth, Nanos& link_free, std::vector<StateSend> sends) {
    for (auto& send : sends) {
      const auto whole = send.message.whole();
      const auto view = whole.view();
      bytes_between_[{from, send.to}] += view.size();
      link_free = std::max(link_free, now_) + static_cast<Nanos>(1e9 * static_cast<double>(view.size()) / bandwidth);
      at(link_free + delay_,
         [this, from, to = send.to, bytes = Bytes(view.begin(), view.end())]() mutable { deliver(from, to, bytes); });
    }
  }
  void deliver(const PeerId& from, const PeerId& to, Bytes& bytes) {
    if (tamper && !tamper(from, to, bytes)) return;
    const auto message = decode_state(bytes);
    if (!message.ok()) return;
    if (const auto donor = donors_.find(to); donor != donors_.end()) {
      if (!donor->second->alive) return;
      (void)donor->second->machine->message(from, *message, now_);
      settle(*donor->second);
    } else if (const auto sender = donors_.find(from); sender == donors_.end() || sender->second->alive) {
      (void)joiners_.at(to)->machine->message(from, *message, now_);
      settle(*joiners_.at(to));
    }
  }

  std::vector<size_t> chunk_bytes_;
  Nanos delay_;
  std::map<PeerId, std::unique_ptr<Donor>> donors_;
  std::map<PeerId, std::unique_ptr<Joiner>> joiners_;
  std::map<PeerId, Nanos> joiner_link_free_;
  std::map<std::pair<PeerId, PeerId>, uint64_t> bytes_between_;
  std::priority_queue<Event> events_;
  uint64_t event_number_ = 0;
  Nanos now_ = 0;
};

}  // namespace unisono::test
