#include "node/topology.h"

#include <cmath>
#include <span>
#include <string>

namespace unisono {
namespace {

enum ProfileFlags : uint8_t { measured = 1, copied_by_cores = 2, shares_payloads = 4 };

void write(ByteWriter& writer, const LinkProfile& link, bool is_measured) {
  for (const double field : {link.latency_us, link.bytes_per_us, link.host_bytes_per_us, link.per_message_cpu_us,
                             link.per_batch_cpu_us, link.reduce_bytes_per_us, link.slice_bytes, link.switch_us}) {
    writer.write(field);
  }
  uint8_t flags = is_measured ? measured : 0;
  if (link.copied_by_cores) flags |= copied_by_cores;
  if (link.shares_payloads) flags |= shares_payloads;
  writer.write(link.cores).write(link.islands_sharing).write(flags);
}

bool positive(double field) { return std::isfinite(field) && field > 0; }
bool not_negative(double field) { return std::isfinite(field) && field >= 0; }

// Nothing that a cost could be computed from is missing.
bool is_sound(const LinkProfile& link) {
  return not_negative(link.latency_us) && positive(link.bytes_per_us) && not_negative(link.host_bytes_per_us) && not_negative(link.per_message_cpu_us) &&
         not_negative(link.per_batch_cpu_us) && positive(link.reduce_bytes_per_us) && positive(link.slice_bytes) && not_negative(link.switch_us) && link.cores > 0 && link.islands_sharing > 0;
}

LinkProfile read(ByteReader& reader, bool& is_measured) {
  LinkProfile link;
  for (auto* field : {&link.latency_us, &link.bytes_per_us, &link.host_bytes_per_us, &link.per_message_cpu_us,
                      &link.per_batch_cpu_us, &link.reduce_bytes_per_us, &link.slice_bytes, &link.switch_us}) {
    *field = reader.read<double>();
  }
  link.cores = reader.read<uint32_t>();
  link.islands_sharing = reader.read<uint32_t>();
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
  bool sound = is_sound(topology.inside) && is_sound(topology.between);
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
