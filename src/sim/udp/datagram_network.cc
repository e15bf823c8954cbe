#include "sim/udp/datagram_network.h"

#include "sim/udp/packet_overhead.h"

#include <algorithm>
#include <cstring>

namespace unisono::sim {

namespace {

constexpr int ends_sent = 3;
constexpr Nanos end_interval = millisecond, probe_interval_max = 50 * millisecond;

}  // namespace

class DatagramNetwork::Service final : public DatagramService {
 public:
  Service(DatagramNetwork& network, Rank self) : network_(network), self_(self) {}

  Status open_group(uint32_t group, const DatagramGroup& what, std::span<const PeerIndex>, DatagramSink& sink) override {
    groups_[group] = {what, &sink};
    return {};
  }
  void close_group(uint32_t group) override {
    groups_.erase(group);
    std::erase_if(streams_, [&](const Stream& s) { return s.group == group; });
  }
  uint32_t header_bytes() const override { return datagram_header_bytes; }
  uint32_t datagram_bytes(std::span<const PeerIndex>) const override { return network_.settings_.datagram_bytes; }
  bool datagram_bytes_known(std::span<const PeerIndex>) const override { return true; }
  void measure_rate(PeerIndex) override {}
  void send_stream(uint32_t group, const OutStream& what) override {
    const auto ranges = static_cast<uint32_t>((what.bytes.size() + what.range_bytes - 1) / what.range_bytes);
    streams_.push_back({.group = group, .what = what, .ranges = ranges, .repaired_at = std::vector<Nanos>(ranges, -1)});
    network_.wake(self_);
  }
  void drop_stream(uint32_t group, Rank to, StreamName name) override {
    std::erase_if(streams_, [&](const Stream& s) { return s.group == group && s.what.to == to && s.what.name == name; });
  }
  void request_repair(uint32_t group, Rank from, StreamName name, uint16_t slice, uint32_t first,
                      std::span<const std::byte> bitmap) override {
    Packet packet{.from = self_, .to = from, .header = header_for(group, from, name), .payload = {}};
    packet.header.kind = DatagramKind::repair_request;
    packet.header.slice = slice;
    packet.header.packet_index = first;
    packet.payload.assign(bitmap.begin(), bitmap.end());
    requests_.push_back(std::move(packet));
    network_.wake(self_);
  }
  bool stream_unconfirmed(uint32_t group, Rank to, StreamName name) const override {
    return std::any_of(streams_.begin(), streams_.end(),
                       [&](const Stream& s) { return s.group == group && s.what.to == to && s.what.name == name && s.wanted; });
  }
  Nanos answer_time(uint32_t, Rank) const override { return network_.settings_.answer_time; }
  DatagramCounters datagram_counters(uint32_t, Rank) const override { return {}; }

  // Returns the next packet to send, or null if no packet is due. In the latter case, `later` is the earliest time at which a
  // packet may be due, or `never`.
  std::shared_ptr<Packet> next(Nanos now, Nanos& later) {
    later = never;
    if (!requests_.empty()) {
      auto packet = std::make_shared<Packet>(std::move(requests_.front()));
      requests_.pop_front();
      return packet;
    }
    // Takes the streams in turn, so that no receiver has to wait for the stream of another receiver.
    for (size_t i = 0; i < streams_.size(); ++i) {
      auto& stream = streams_[(turn_ + i) % streams_.size()];
      if (auto packet = next_of(stream, now, later)) {
        turn_ = (turn_ + i + 1) % streams_.size();
        return packet;
      }
    }
    return nullptr;
  }
  void received(const Packet& packet, Nanos now) {
    for (auto& [number, group] : groups_) {
      if (group.what.epoch != packet.header.epoch) continue;
      if (packet.header.kind == DatagramKind::repair_request) {
        const auto request = stream_request(packet.header, packet.header.packet_index, packet.payload);
        on_repair_request(number, packet, now);
        group.sink->stream_requested(number, packet.from, request, now);
        return;
      }
      group.sink->datagram(number, packet.from, packet.header, packet.payload, now);
      return;
    }
  }

 private:
  struct Group {
    DatagramGroup what;
    DatagramSink* sink = nullptr;
  };
  struct Stream {
    uint32_t group = 0;
    OutStream what;
    uint32_t ranges = 0, next = 0;
    int ends = 0;
    Nanos end_at = 0, probe_interval = 4 * millisecond;
    bool wanted = true;
    std::deque<uint32_t> repairs{};
    std::vector<Nanos> repaired_at{};
  };

  DatagramHeader header_for(uint32_t group, Rank to, StreamName name) const {
    DatagramHeader header;
    const auto it = groups_.find(group);
    header.epoch = it == groups_.end() ? 0 : it->second.what.epoch;
    header.op = name.op;
    header.phase = name.phase;
    header.sender = static_cast<uint16_t>(self_);
    header.receiver = static_cast<uint16_t>(to);
    return header;
  }
  std::shared_ptr<Packet> next_of(Stream& stream, Nanos now, Nanos& later) {
    if (!stream.wanted) return nullptr;
    const bool repairs = !stream.repairs.empty();
    if (repairs || stream.next < stream.ranges) {
      const auto range = repairs ? stream.repairs.front() : stream.next;
      if (repairs) stream.repairs.pop_front();
      else ++stream.next;
      ++network_.counts_.data;
      network_.counts_.repairs += repairs;
      if (stream.next == stream.ranges) stream.end_at = now;
      return range_packet(stream, range, repairs);
    }
    if (now < stream.end_at) {
      later = std::min(later, stream.end_at);
      return nullptr;
    }
    // An end-of-stream datagram is repeated at growing intervals until it is confirmed, as in the UDP transport.
    if (stream.ends == 0) {
      const auto it = groups_.find(stream.group);
      if (it != groups_.end()) it->second.sink->stream_sent(stream.group, stream.what.to, stream.what.name);
    }
    if (++stream.ends < ends_sent) {
      stream.end_at = now + end_interval;
    } else {
      stream.end_at = now + stream.probe_interval;
      stream.probe_interval = std::min(2 * stream.probe_interval, probe_interval_max);
    }
    auto packet = std::make_shared<Packet>(Packet{.from = self_,
                                                  .to = stream.what.to,
                                                  .header = header_for(stream.group, stream.what.to, stream.what.name),
                                                  .payload = {}});
    packet->header.kind = DatagramKind::end;
    packet->header.deadline_us = stream.what.deadline_us;
    return packet;
  }
  std::shared_ptr<Packet> range_packet(const Stream& stream, uint32_t range, bool repaired) const {
    auto packet = std::make_shared<Packet>(Packet{.from = self_,
                                                  .to = stream.what.to,
                                                  .header = header_for(stream.group, stream.what.to, stream.what.name),
                                                  .payload = {}});
    auto& header = packet->header;
    const auto tail = std::max(8u, (stream.ranges + 99) / 100);
    header.flags =
        static_cast<uint8_t>((range + tail >= stream.ranges ? datagram_tail : 0) | (repaired ? datagram_repaired : 0));
    header.slice = static_cast<uint16_t>(range / ranges_per_slice);
    header.packet_index = range % ranges_per_slice;
    header.deadline_us = stream.what.deadline_us;
    header.contributors = stream.what.contributors.empty() ? stream.what.call : stream.what.contributors[range];
    const auto begin = range * stream.what.range_bytes;
    const auto bytes = stream.what.bytes.subspan(begin, std::min(stream.what.range_bytes, stream.what.bytes.size() - begin));
    header.payload_bytes = static_cast<uint16_t>(bytes.size());
    packet->payload.assign(bytes.begin(), bytes.end());
    return packet;
  }
  void on_repair_request(uint32_t group, const Packet& packet, Nanos now) {
    for (auto& stream : streams_) {
      if (stream.group != group || stream.what.to != packet.from ||
          stream.what.name != StreamName{packet.header.op, packet.header.phase})
        continue;
      if (packet.payload.empty()) stream.wanted = false;
      for (size_t bit = 0; bit < packet.payload.size() * 8; ++bit) {
        if ((static_cast<uint8_t>(packet.payload[bit / 8]) >> (bit % 8) & 1) == 0) continue;
        const auto range = packet.header.slice * ranges_per_slice + packet.header.packet_index + static_cast<uint32_t>(bit);
        if (range >= stream.next ||
            (stream.repaired_at[range] >= 0 && now - stream.repaired_at[range] < network_.settings_.answer_time))
          continue;
        stream.repaired_at[range] = now;
        stream.repairs.push_back(range);
      }
    }
    network_.wake(self_);
  }

  DatagramNetwork& network_;
  Rank self_;
  std::map<uint32_t, Group> groups_;
  std::vector<Stream> streams_;
  std::deque<Packet> requests_;
  size_t turn_ = 0;

 public:
  Nanos departs_at = never;  // time of the valid `depart` event; all other `depart` events are obsolete
  Nanos free_at = 0;         // time at which the outgoing port becomes free
};

DatagramNetwork::DatagramNetwork(const DatagramNetworkSettings& settings)
    : settings_(settings), cut_(settings.ranks), in_(settings.ranks), numbers_(size_t{settings.ranks} * settings.ranks) {
  for (Rank rank = 0; rank < settings.ranks; ++rank) services_.push_back(std::make_unique<Service>(*this, rank));
}

DatagramNetwork::~DatagramNetwork() = default;

DatagramService& DatagramNetwork::at(Rank rank) { return *services_[rank]; }

Nanos DatagramNetwork::time_of(size_t bytes) const {
  return static_cast<Nanos>(static_cast<double>(bytes + packet_overhead) / settings_.bytes_per_second *
                            static_cast<double>(second));
}

void DatagramNetwork::wake(Rank rank) { depart_at(rank, std::max(now_, services_[rank]->free_at)); }

void DatagramNetwork::depart_at(Rank rank, Nanos at) {
  auto& service = *services_[rank];
  if (service.departs_at <= at) return;
  service.departs_at = at;
  schedule({.kind = Event::Kind::depart, .at = at, .rank = rank});
}

void DatagramNetwork::depart(Rank rank, Nanos now) {
  auto& service = *services_[rank];
  if (service.departs_at != now) return;  // obsolete: depart_at() has scheduled an earlier event meanwhile
  service.departs_at = never;
  Nanos later = never;
  const auto packet = service.next(now, later);
  if (packet == nullptr) {
    if (later != never) depart_at(rank, later);
    return;
  }
  const auto bytes = packet->payload.size() + datagram_header_bytes;
  service.free_at = now + time_of(bytes);
  depart_at(rank, service.free_at);
  ++counts_.sent;
  const auto number = numbers_[size_t{packet->from} * settings_.ranks + packet->to]++;
  packet->header.flow_seq = number;
  if (cut_[packet->from] || cut_[packet->to] || (settings_.loses && settings_.loses(packet->from, packet->to, number))) {
    ++counts_.lost;
    return;
  }
  schedule({.kind = Event::Kind::arrive, .at = service.free_at + settings_.delay, .packet = packet});
}

void DatagramNetwork::arrive(const std::shared_ptr<Packet>& packet, Nanos now) {
  auto& port = in_[packet->to];
  const auto bytes = packet->payload.size() + datagram_header_bytes;
  if (port.queued + bytes > settings_.queue_bytes) {
    ++counts_.overflowed;
    return;
  }
  port.queued += bytes;
  port.free_at = std::max(port.free_at, now) + time_of(bytes);
  schedule({.kind = Event::Kind::deliver, .at = port.free_at, .packet = packet});
}

void DatagramNetwork::deliver(const std::shared_ptr<Packet>& packet, Nanos now) {
  in_[packet->to].queued -= packet->payload.size() + datagram_header_bytes;
  if (cut_[packet->to]) {
    ++counts_.lost;
    return;
  }
  ++counts_.delivered;
  services_[packet->to]->received(*packet, now);
}

void DatagramNetwork::run_until(Nanos now) {
  while (!events_.empty() && events_.top().at <= now) {
    const auto event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.at);
    switch (event.kind) {
      case Event::Kind::depart: depart(event.rank, event.at); break;
      case Event::Kind::arrive: arrive(event.packet, now_); break;
      case Event::Kind::deliver: deliver(event.packet, now_); break;
    }
  }
  now_ = std::max(now_, now);
}

}  // namespace unisono::sim
