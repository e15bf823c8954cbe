#include "engine/topology.h"

#include <cmath>
#include <span>
#include <string>

namespace unisono {
namespace {

enum ProfileFlags : uint8_t { measured = 1, copied_by_cores = 2, shares_payloads = 4 };

constexpr double LinkProfile::*numbers[] = {
    &LinkProfile::latency_us,          &LinkProfile::bytes_per_us,     &LinkProfile::host_bytes_per_us,
    &LinkProfile::per_message_cpu_us,  &LinkProfile::per_batch_cpu_us, &LinkProfile::handling_us,
    &LinkProfile::reduce_bytes_per_us, &LinkProfile::slice_bytes,      &LinkProfile::switch_us};

void write(ByteWriter& writer, const LinkProfile& link, bool is_measured) {
  for (const auto number : numbers) writer.write(link.*number);
  uint8_t flags = is_measured ? measured : 0;
  if (link.copied_by_cores) flags |= copied_by_cores;
  if (link.shares_payloads) flags |= shares_payloads;
  writer.write(link.cores).write(link.host_groups_sharing).write(flags);
}

bool not_negative(double field) { return std::isfinite(field) && field >= 0; }

LinkProfile read(ByteReader& reader, bool& is_measured) {
  LinkProfile link;
  for (const auto number : numbers) link.*number = reader.read<double>();
  link.cores = reader.read<uint32_t>();
  link.host_groups_sharing = reader.read<uint32_t>();
  const auto flags = reader.read<uint8_t>();
  is_measured = (flags & measured) != 0;
  link.copied_by_cores = (flags & copied_by_cores) != 0;
  link.shares_payloads = (flags & shares_payloads) != 0;
  return link;
}

}  // namespace

Bytes encode(const Topology& topology) {
  ByteWriter writer;
  write(writer, topology.inside, topology.inside_measured);
  write(writer, topology.between, topology.between_measured);
  writer.write(topology.links.hosts);
  for (const auto& pair : topology.links.pairs) writer.write(pair.latency_us).write(pair.bytes_per_us);
  auto bytes = std::move(writer).take();
  const auto text = topology.tuning == Tuning() ? std::string() : to_text(topology.tuning);
  const auto tuning = std::as_bytes(std::span(text));
  bytes.insert(bytes.end(), tuning.begin(), tuning.end());
  return bytes;
}

std::optional<Topology> decode_topology(ByteView bytes) {
  ByteReader reader(bytes);
  Topology topology;
  topology.inside = read(reader, topology.inside_measured);
  topology.between = read(reader, topology.between_measured);
  const auto hosts = reader.read<uint32_t>();
  if (hosts > linked_hosts_max || reader.left() < HostLinks::pair_count(hosts) * 2 * sizeof(double)) return std::nullopt;
  topology.links = HostLinks(hosts);
  bool sound = is_usable(topology.inside) && is_usable(topology.between);
  for (auto& pair : topology.links.pairs) {
    pair.latency_us = reader.read<double>();
    pair.bytes_per_us = reader.read<double>();
    sound = sound && not_negative(pair.latency_us) && not_negative(pair.bytes_per_us);
  }
  if (!reader.ok() || !sound) return std::nullopt;
  if (reader.left() == 0) return topology;
  const auto rest = bytes.last(reader.left());
  auto tuning = parse_tuning({reinterpret_cast<const char*>(rest.data()), rest.size()});
  if (!tuning) return std::nullopt;
  topology.tuning = *std::move(tuning);
  return topology;
}

}  // namespace unisono
