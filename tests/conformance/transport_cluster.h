// Several transports of one process that are linked with each other, a sink that records, and a loop that drives them.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "transports/connector.h"
#include "transports/transport.h"

namespace unisono::conformance {

// UNISONO_TEST_SEED in the environment replaces the default; every test shows it when it fails.
inline uint64_t test_seed() {
  const char* text = std::getenv("UNISONO_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20240607;
}

inline Nanos clock_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Real time within which anything promised must happen; long enough for slow machines under sanitizers.
inline constexpr Nanos patience = 30 * second;

// Transport i knows transport j as PeerIndex j.
class Cluster {
 public:
  virtual ~Cluster() = default;
  virtual size_t size() const = 0;
  virtual Transport& at(size_t i) = 0;
  // Simulates the death of its process. at(i) must not be used afterwards.
  virtual void destroy(size_t i) = 0;
  virtual bool alive(size_t i) const = 0;
  // The label under which the others know i.
  virtual std::string label(size_t i) const = 0;
  // Null where links are not made by a Connector.
  virtual Connector* connector(size_t i) = 0;
  // The request that made i's link to j.
  virtual LinkRequest request(size_t i, size_t j) = 0;
};

class SilentSink final : public Sink {
 public:
  explicit SilentSink(Transport& transport) : transport_(transport) {}
  std::byte* place(PeerIndex, const FrameHeader&) override { return nullptr; }
  void received(PeerIndex, const FrameHeader&, const View& view) override {
    if (view.handle != 0) transport_.release(view);
  }
  void sent(uint64_t) override {}
  void lost(PeerIndex, const Status&) override {}
  void credit(PeerIndex) override {}

 private:
  Transport& transport_;
};

// A cluster of transports that are also Connectors. The lower index dials.
template <typename T>
class ConnectorCluster final : public Cluster {
 public:
  using Make = std::function<Result<std::unique_ptr<T>>(size_t index, PeerId self)>;

  // Null if a transport cannot be made or the links do not come up.
  static std::unique_ptr<Cluster> make(size_t count, const Make& make_one) {
    auto cluster = std::unique_ptr<ConnectorCluster>(new ConnectorCluster);
    JobKey key{};
    key.fill(std::byte{0x5A});
    for (size_t i = 0; i < count; ++i) {
      auto made = make_one(i, id(i));
      if (!made.ok()) {
        std::fprintf(stderr, "cannot make transport %zu: %s\n", i, made.status().to_string().c_str());
        return nullptr;
      }
      (*made)->set_job(key);
      cluster->transports_.push_back(std::move(*made));
    }
    for (size_t i = 0; i < count; ++i) cluster->endpoints_.push_back(cluster->transports_[i]->endpoints());
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < count; ++j) {
        if (i == j) continue;
        const auto status = cluster->transports_[i]->add_peer(cluster->request(i, j));
        if (!status.ok()) {
          std::fprintf(stderr, "cannot add peer: %s\n", status.to_string().c_str());
          return nullptr;
        }
      }
    }
    return cluster->connect() ? std::move(cluster) : nullptr;
  }

  size_t size() const override { return transports_.size(); }
  T& at(size_t i) override { return *transports_[i]; }
  void destroy(size_t i) override { transports_[i].reset(); }
  bool alive(size_t i) const override { return transports_[i] != nullptr; }
  std::string label(size_t i) const override {
    return "rank " + std::to_string(i) + " (host test, pid " + std::to_string(1000 + i) + ")";
  }
  Connector* connector(size_t i) override { return transports_[i].get(); }
  LinkRequest request(size_t i, size_t j) override {
    LinkRequest request;
    request.peer = static_cast<PeerIndex>(j);
    request.id = id(j);
    request.label = label(j);
    request.endpoints = endpoints_[j];
    request.dial = i < j;
    request.deadline = clock_now() + patience;
    return request;
  }

 private:
  ConnectorCluster() = default;
  static PeerId id(size_t i) { return {mix64(i + 1), mix64(i + 1001)}; }

  bool connect() {
    std::vector<SilentSink> sinks;
    for (auto& transport : transports_) sinks.emplace_back(*transport);
    const auto limit = clock_now() + patience;
    for (;;) {
      bool all = true;
      for (size_t i = 0; i < size(); ++i) {
        transports_[i]->poll(clock_now(), sinks[i]);
        for (size_t j = 0; j < size(); ++j) all &= i == j || transports_[i]->state(static_cast<PeerIndex>(j)) == LinkState::up;
      }
      if (all) return true;
      if (clock_now() > limit) return false;
    }
  }

  std::vector<std::unique_ptr<T>> transports_;
  std::vector<std::vector<std::string>> endpoints_;
};

// Bytes that follow from a seed, so that the receiver can check what the sender meant.
inline void fill(std::span<std::byte> bytes, uint64_t seed) {
  Random random(seed);
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    const auto word = random.next();
    std::memcpy(bytes.data() + at, &word, 8);
  }
  const auto word = random.next();
  if (at < bytes.size()) std::memcpy(bytes.data() + at, &word, bytes.size() - at);
}
// Comparing byte by byte dominated the time of these tests under sanitizers.
inline bool same(ByteView a, ByteView b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}
inline Bytes pattern(size_t count, uint64_t seed) {
  Bytes bytes(count);
  fill(bytes, seed);
  return bytes;
}

// Records all upcalls.
class Recorder final : public Sink {
 public:
  struct Frame {
    PeerIndex from = 0;
    FrameHeader header;
    Bytes payload;
    bool placed = false;
  };
  explicit Recorder(Transport* owner) : transport(owner) {}

  std::byte* place(PeerIndex from, const FrameHeader& header) override {
    ++place_count;
    return placer ? placer(from, header) : nullptr;
  }
  void received(PeerIndex from, const FrameHeader& header, const View& view) override {
    Frame frame{from, header, {}, view.handle == 0};
    if (view.bytes > 0) frame.payload.assign(view.data, view.data + view.bytes);
    frames.push_back(std::move(frame));
    if (on_received) on_received(from, header);
    if (view.handle == 0) return;
    if (keep_views) views.push_back(view);
    else transport->release(view);
  }
  void sent(uint64_t id) override { ++sent_ids[id]; }
  void lost(PeerIndex peer, const Status& why) override {
    losses[peer].push_back(why);
    sent_when_lost = sent_ids;
  }
  void credit(PeerIndex peer) override { ++credits[peer]; }

  // A copy with the same offset from a multiple of 16 bytes as the original.
  ByteView keep(ByteView payload) {
    const auto shift = reinterpret_cast<uintptr_t>(payload.data()) % 16;
    auto& bytes = kept.emplace_back(payload.size() + 32);
    const auto begin = (16 - reinterpret_cast<uintptr_t>(bytes.data()) % 16) % 16 + shift;
    if (!payload.empty()) std::memcpy(bytes.data() + begin, payload.data(), payload.size());
    return {bytes.data() + begin, payload.size()};
  }

  Transport* transport;
  std::vector<Bytes> kept;
  std::function<std::byte*(PeerIndex, const FrameHeader&)> placer;
  std::function<void(PeerIndex, const FrameHeader&)> on_received;
  bool keep_views = false;
  std::vector<Frame> frames;
  std::vector<View> views;
  std::map<uint64_t, int> sent_ids;
  std::map<uint64_t, int> sent_when_lost;
  std::map<PeerIndex, std::vector<Status>> losses;
  std::map<PeerIndex, int> credits;
  size_t place_count = 0;
};

// One recorder per transport; turn() polls the transports.
class Players {
 public:
  explicit Players(Cluster& cluster) : cluster_(cluster) {
    for (size_t i = 0; i < cluster.size(); ++i) recorders_.push_back(std::make_unique<Recorder>(&cluster.at(i)));
  }
  Recorder& operator[](size_t i) { return *recorders_[i]; }

  void turn(size_t i) {
    if (cluster_.alive(i)) cluster_.at(i).poll(clock_now(), *recorders_[i]);
  }
  void turn_all() {
    for (size_t i = 0; i < cluster_.size(); ++i) turn(i);
  }
  // False if `done` does not come true in time.
  bool until(const std::function<bool()>& done) {
    const auto limit = clock_now() + patience;
    while (!done()) {
      if (clock_now() > limit) return false;
      turn_all();
    }
    return true;
  }

 private:
  Cluster& cluster_;
  std::vector<std::unique_ptr<Recorder>> recorders_;
};

}  // namespace unisono::conformance
