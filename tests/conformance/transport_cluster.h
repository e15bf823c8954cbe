// For tests: several transports of one process that are linked, a sink that records upcalls, and a loop that drives the
// transports.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/concat.h"
#include "base/random.h"
#include "transports/connector.h"
#include "transports/transport.h"

namespace unisono::conformance {

// Returns the seed of all tests. UNISONO_TEST_SEED in the environment replaces the default. A test that fails prints the seed.
inline uint64_t test_seed() {
  const char* text = std::getenv("UNISONO_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20240607;
}

inline Nanos clock_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The time limit for everything that a transport promises. It is long enough for slow machines under sanitizers.
inline constexpr Nanos patience = 30 * second;

// Transport i knows transport j as PeerIndex j.
class Cluster {
 public:
  virtual ~Cluster() = default;
  virtual size_t size() const = 0;
  virtual Transport& at(size_t i) = 0;
  // Destroys transport i, as if its process had died. at(i) must not be used afterwards.
  virtual void destroy(size_t i) = 0;
  virtual bool alive(size_t i) const = 0;
  // The label by which the other transports know transport i.
  virtual std::string label(size_t i) const = 0;
  // Returns null if the links of the transport are not made by a Connector.
  virtual Connector* connector(size_t i) = 0;
  // Returns the request with which transport i made its link to j.
  virtual LinkRequest request(size_t i, size_t j) = 0;
};

class SilentSink final : public Sink {
 public:
  explicit SilentSink(Transport& transport) : transport_(transport) {}
  std::byte* receive_buffer(PeerIndex, const FrameHeader&) override { return nullptr; }
  void received(PeerIndex, const FrameHeader&, const View& view) override {
    if (view.handle != 0) transport_.release(view);
  }
  void sent(uint64_t) override {}
  void lost(PeerIndex, const Status&, PeerFate) override {}
  void credit(PeerIndex) override {}

 private:
  Transport& transport_;
};

// A cluster of transports that are also Connectors. In each pair, the transport with the lower index dials.
template <typename T>
class ConnectorCluster final : public Cluster {
 public:
  using Make = std::function<Result<std::unique_ptr<T>>(size_t index, PeerId self)>;

  // Returns null if a transport cannot be made or if the links do not come up.
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
  std::string label(size_t i) const override { return concat("rank ", i, " (host test, pid ", 1000 + i, ")"); }
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

// Fills `bytes` with values that depend on the seed, so that the receiver can check them.
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
// Uses memcmp, because under sanitizers a comparison byte by byte took most of the time of these tests.
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

  std::byte* receive_buffer(PeerIndex from, const FrameHeader& header) override {
    ++buffer_requests;
    return on_receive_buffer ? on_receive_buffer(from, header) : nullptr;
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
  void lost(PeerIndex peer, const Status& why, PeerFate fate) override {
    losses[peer].push_back(why);
    fates[peer] = fate;
    sent_when_lost = sent_ids;
  }
  void credit(PeerIndex peer) override { ++credits[peer]; }
  void noticed(PeerIndex peer, EventKind kind, const std::string& text) override { notices.push_back({peer, kind, text}); }

  // Keeps a copy. Its address modulo 16 is the same as that of the original.
  ByteView keep(ByteView payload) {
    const auto shift = reinterpret_cast<uintptr_t>(payload.data()) % 16;
    auto& bytes = kept.emplace_back(payload.size() + 32);
    const auto begin = (16 - reinterpret_cast<uintptr_t>(bytes.data()) % 16) % 16 + shift;
    if (!payload.empty()) std::memcpy(bytes.data() + begin, payload.data(), payload.size());
    return {bytes.data() + begin, payload.size()};
  }

  Transport* transport;
  std::vector<Bytes> kept;
  std::function<std::byte*(PeerIndex, const FrameHeader&)> on_receive_buffer;
  std::function<void(PeerIndex, const FrameHeader&)> on_received;
  bool keep_views = false;
  std::vector<Frame> frames;
  std::vector<View> views;
  std::map<uint64_t, int> sent_ids, sent_when_lost;
  std::map<PeerIndex, std::vector<Status>> losses;
  std::map<PeerIndex, PeerFate> fates;
  std::map<PeerIndex, int> credits;
  std::vector<std::tuple<PeerIndex, EventKind, std::string>> notices;
  size_t buffer_requests = 0;
};

// One recorder for each transport. turn() polls the transports.
class Recorders {
 public:
  explicit Recorders(Cluster& cluster) : cluster_(cluster) {
    for (size_t i = 0; i < cluster.size(); ++i) recorders_.push_back(std::make_unique<Recorder>(&cluster.at(i)));
  }
  Recorder& operator[](size_t i) { return *recorders_[i]; }

  void turn(size_t i) {
    if (cluster_.alive(i)) cluster_.at(i).poll(clock_now(), *recorders_[i]);
  }
  void turn_all() {
    for (size_t i = 0; i < cluster_.size(); ++i) turn(i);
  }
  // Polls until done() is true. Returns false if that takes longer than `patience`.
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
