#include "sim/udp/socket_network.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/concat.h"
#include "sim/udp/packet_overhead.h"
#include "transports/udp/udp_endpoint.h"

namespace unisono::sim {
namespace {

// A socket refuses to send while more bytes than this wait for its outgoing port.
constexpr uint64_t send_buffer_bytes = 1u << 20;
constexpr uint16_t first_port = 10'000;

// Returns the model without its dead and slow peers. The network uses cut_off() and slow_down() instead of them.
LossModel model_of_ranges(const LossModel& model) {
  auto law = model;
  law.dead.clear();
  law.slow.clear();
  return law;
}

// Returns the model for all other datagrams: repairs, and datagrams without a range. Their losses depend neither on earlier
// datagrams nor on other receivers.
LossModel model_of_datagrams(const LossModel& model) {
  auto law = model_of_ranges(model);
  law.granularity = LossModel::Granularity::datagram;
  if (law.kind == LossModel::Kind::joint || law.kind == LossModel::Kind::chain) law.kind = LossModel::Kind::iid;
  return law;
}

bool is_per_range(const LossModel& model) {
  return model.kind == LossModel::Kind::joint || model.kind == LossModel::Kind::chain ||
         model.granularity == LossModel::Granularity::shard;
}

}  // namespace

DatagramFates DatagramFates::operator-(const DatagramFates& earlier) const {
  return {.sent = sent - earlier.sent,
          .delivered = delivered - earlier.delivered,
          .lost = lost - earlier.lost,
          .overflowed = overflowed - earlier.overflowed,
          .cut = cut - earlier.cut,
          .unread = unread - earlier.unread};
}

DatagramFates DatagramFates::operator+(const DatagramFates& other) const { return *this - (DatagramFates() - other); }

class SocketNetwork::Socket final : public DatagramSocket {
 public:
  Socket(SocketNetwork& network, PeerIndex process) : network_(network), process_(process), address_(address_of(process)) {}
  SendOutcome send(std::span<const OutDatagram> batch) override { return network_.send(process_, batch); }
  ReceiveOutcome receive(DatagramInbox& inbox, size_t datagrams_max) override {
    return network_.receive(process_, inbox, datagrams_max);
  }
  int wait_handle() const override { return -1; }
  uint64_t own_drops() const override { return network_.processes_[process_].own_drops; }
  const TcpAddress& address() const override { return address_; }

 private:
  SocketNetwork& network_;
  PeerIndex process_;
  TcpAddress address_;
};

SocketNetwork::SocketNetwork(const SocketNetworkSettings& settings, EventQueue& event_queue)
    : settings_(settings),
      event_queue_(event_queue),
      loss_is_per_range_(is_per_range(settings.loss)),
      by_number_(model_of_datagrams(settings.loss), mix64(settings.seed), {.world = settings.processes, .ranges = 1}),
      by_range_(model_of_ranges(settings.loss), mix64(settings.seed ^ 1),
                {.world = settings.processes, .ranges = settings.ranges}),
      random_(mix64(settings.seed ^ 2)),
      processes_(settings.processes),
      numbers_(size_t{settings.processes} * settings.processes) {
  for (PeerIndex process = 0; process < settings.processes; ++process) addresses_.push_back(address_of(process));
}

SocketNetwork::~SocketNetwork() = default;

TcpAddress SocketNetwork::address_of(PeerIndex process) {
  return *parse_udp_endpoint(concat("udp://10.0.0.1:", first_port + process));
}

std::unique_ptr<DatagramSocket> SocketNetwork::make_socket(PeerIndex process) {
  return std::make_unique<Socket>(*this, process);
}

Nanos SocketNetwork::time_of(size_t bytes, double slowness) const {
  return static_cast<Nanos>(static_cast<double>(bytes + packet_overhead) * slowness / settings_.bytes_per_second *
                            static_cast<double>(second));
}

uint64_t SocketNetwork::bytes_in(Nanos time, double slowness) const {
  return time <= 0 ? 0 : static_cast<uint64_t>(static_cast<double>(time) * 1e-9 * settings_.bytes_per_second / slowness);
}

void SocketNetwork::count(int8_t phase, uint64_t DatagramFates::*fate) {
  ++(all_.*fate);
  if (phase >= 0) ++(data_[static_cast<size_t>(phase)].*fate);
}

uint64_t SocketNetwork::allocate() {
  if (free_.empty()) {
    datagrams_.emplace_back();
    return datagrams_.size() - 1;
  }
  const auto index = free_.back();
  free_.pop_back();
  return index;
}

SendOutcome SocketNetwork::send(PeerIndex from, std::span<const OutDatagram> batch) {
  const auto& port = processes_[from];
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto& out = batch[i];
    if (datagram_header_bytes + out.payload.size() > settings_.datagram_bytes_max)
      return {.taken = i, .stop = SendStop::too_long, .error = 0};
    if (bytes_in(port.out_free_at - event_queue_.now(), port.slowness) > send_buffer_bytes)
      return {.taken = i, .stop = SendStop::would_block, .error = 0};
    carry(from, out.to->port() - first_port, out);
  }
  return {.taken = batch.size(), .stop = SendStop::none, .error = 0};
}

bool SocketNetwork::is_lost(PeerIndex from, PeerIndex to, const DatagramHeader& header) {
  const auto number = numbers_[size_t{from} * settings_.processes + to]++;
  const DatagramPosition place{
      .sender = from, .receiver = to, .step = number / 2, .phase = static_cast<uint32_t>(number % 2), .range = 0};
  const auto range = header.slice * ranges_per_slice + header.packet_index;
  const bool is_first = header.kind == DatagramKind::data && (header.flags & datagram_repaired) == 0 && header.phase <= 1 &&
                        range < settings_.ranges;
  if (!loss_is_per_range_ || !is_first) return by_number_.lost(place);
  return by_range_.lost({.sender = from, .receiver = to, .step = header.op, .phase = header.phase, .range = range});
}

void SocketNetwork::carry(PeerIndex from, PeerIndex to, const OutDatagram& out) {
  const auto& header = out.header;
  const int8_t phase = header.kind == DatagramKind::data && header.phase <= 1 ? static_cast<int8_t>(header.phase) : int8_t{-1};
  auto& port = processes_[from];
  const size_t bytes = datagram_header_bytes + out.payload.size();
  port.out_free_at = std::max(port.out_free_at, event_queue_.now()) + time_of(bytes, port.slowness);
  hash_ = mix64(hash_ ^ mix64(static_cast<uint64_t>(port.out_free_at) ^ header.tag) ^ (uint64_t{from} << 32 | to));
  count(phase, &DatagramFates::sent);
  // Losses are decided first, because a lost datagram never reaches a host that could refuse it. arrive() handles refusals.
  if (is_lost(from, to, header) || bytes > carried_bytes_max_) return count(phase, &DatagramFates::lost);
  if (port.cut || port.dead) return count(phase, &DatagramFates::cut);
  const auto index = allocate();
  auto& datagram = datagrams_[index];
  datagram.from = from;
  datagram.to = to;
  datagram.phase = phase;
  datagram.refusal = false;
  datagram.bytes.resize(bytes);
  std::memcpy(datagram.bytes.data(), &header, sizeof header);
  if (!out.payload.empty()) std::memcpy(datagram.bytes.data() + sizeof header, out.payload.data(), out.payload.size());
  const auto jitter = settings_.jitter > 0 ? static_cast<Nanos>(random_.below(static_cast<uint64_t>(settings_.jitter) + 1)) : 0;
  event_queue_.add(port.out_free_at + settings_.delay + jitter, EventKind::arrive, to, index);
}

Nanos SocketNetwork::arrive(uint64_t index) {
  auto& datagram = datagrams_[index];
  auto& port = processes_[datagram.to];
  const auto now = event_queue_.now();
  if (datagram.refusal) {
    if (!port.cut && !port.dead) port.refused.push_back(datagram.from);
    recycle(index);
    return port.cut || port.dead ? never : now;
  }
  if (port.cut || port.dead) {
    count(datagram.phase, &DatagramFates::cut);
    if (port.cut) {
      recycle(index);
      return never;
    }
    std::swap(datagram.from, datagram.to);
    datagram.refusal = true;
    event_queue_.add(now + settings_.delay, EventKind::arrive, datagram.to, index);
    return never;
  }
  const auto bytes = datagram.bytes.size();
  const auto queued = bytes_in(port.in_free_at - now, port.slowness);
  const bool is_full = queued + bytes > settings_.queue_bytes;
  if (is_full || port.inbox_bytes + bytes > settings_.queue_bytes + settings_.socket_bytes) {
    count(datagram.phase, is_full ? &DatagramFates::overflowed : &DatagramFates::unread);
    port.own_drops += !is_full;
    recycle(index);
    return never;
  }
  port.in_free_at = std::max(port.in_free_at, now) + time_of(bytes, port.slowness);
  datagram.at = port.in_free_at;
  port.inbox_bytes += bytes;
  port.inbox.push_back(index);
  count(datagram.phase, &DatagramFates::delivered);
  return datagram.at;
}

Nanos SocketNetwork::readable_at(PeerIndex process) const {
  const auto& port = processes_[process];
  if (!port.refused.empty()) return event_queue_.now();
  return port.inbox.empty() ? never : datagrams_[port.inbox.front()].at;
}

ReceiveOutcome SocketNetwork::receive(PeerIndex process, DatagramInbox& inbox, size_t datagrams_max) {
  auto& port = processes_[process];
  ReceiveOutcome outcome;
  for (const auto peer : std::exchange(port.refused, {})) inbox.refused(addresses_[peer]);
  const auto is_there = [&] { return !port.inbox.empty() && datagrams_[port.inbox.front()].at <= event_queue_.now(); };
  while (outcome.datagrams < datagrams_max && is_there()) {
    const auto index = port.inbox.front();
    port.inbox.pop_front();
    auto& datagram = datagrams_[index];
    port.inbox_bytes -= datagram.bytes.size();
    ++outcome.datagrams;
    const InDatagram arriving{datagram.bytes, &addresses_[datagram.from], datagram.at};
    inbox.arrived({&arriving, 1});
    recycle(index);
  }
  outcome.drained = !is_there();
  return outcome;
}

}  // namespace unisono::sim
