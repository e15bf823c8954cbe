#include "executor/request.h"

#include <algorithm>
#include <numeric>

#include "base/concat.h"
#include "base/random.h"
#include "schedules/collective_facts.h"

namespace unisono {
namespace {

// chunk boundaries are multiples of this many bytes, so that kernels work on whole cache lines
constexpr size_t unit_bytes = 64;

// Returns the number of units before a chunk. Without shares, all chunks have equal sizes. If some units are left over, each of
// the first chunks gets one of them.
size_t units_before(size_t units, uint32_t chunk, const Partition& partition) {
  if (partition.shares.empty()) {
    const size_t base = units / partition.chunks, extra = units % partition.chunks;
    return base * chunk + std::min<size_t>(chunk, extra);
  }
  const auto& shares = partition.shares;
  const auto before = std::accumulate(shares.begin(), shares.begin() + chunk, uint64_t{0});
  const auto all = std::accumulate(shares.begin() + chunk, shares.end(), before);
  return units / all * before + units % all * before / all;
}

// Returns the number of elements before a chunk.
size_t partition_begin(size_t count, size_t element_size, uint32_t chunk, const Partition& partition) {
  const size_t unit = partition.unit_elements != 0 ? partition.unit_elements : unit_bytes / element_size;
  return std::min(count, units_before((count + unit - 1) / unit, chunk, partition) * unit);
}

const std::byte* at(const void* base, size_t elements, DType dtype) {
  return base == nullptr ? nullptr : static_cast<const std::byte*>(base) + elements * element_bytes(dtype);
}
std::byte* at(void* base, size_t elements, DType dtype) {
  return base == nullptr ? nullptr : static_cast<std::byte*>(base) + elements * element_bytes(dtype);
}

size_t block_count(const std::vector<size_t>& counts, size_t even, Rank rank) { return counts.empty() ? even : counts[rank]; }

size_t block_begin(const std::vector<size_t>& counts, size_t even, Rank rank) {
  if (counts.empty()) return even * rank;
  size_t begin = 0;
  for (Rank r = 0; r < rank; ++r) begin += counts[r];
  return begin;
}

ChunkMemory part_of_tensor(const OperationRequest& q, uint32_t chunk, const Partition& partition, Rank self) {
  const auto size = element_bytes(q.dtype);
  const auto begin = partition_begin(q.count, size, chunk, partition);
  const auto end = partition_begin(q.count, size, chunk + 1, partition);
  ChunkMemory memory{at(q.input, begin, q.dtype), at(q.output, begin, q.dtype), end - begin, true};
  if (q.collective == Collective::broadcast && self != q.root) memory.input = nullptr;
  if (q.collective == Collective::reduce && self != q.root) {
    memory.output = nullptr;
    memory.wanted = false;
    // If there is only one chunk, no rank owns it: each rank on the way to the root adds to it.
    memory.owned = partition.chunks > 1 && chunk == self;
  }
  if (q.collective == Collective::send) memory.output = nullptr, memory.wanted = false;
  if (q.collective == Collective::recv) memory.input = nullptr;
  return memory;
}

ChunkMemory block_of_rank(const OperationRequest& q, uint32_t chunk, Rank self) {
  ChunkMemory memory;
  switch (q.collective) {
    case Collective::reduce_scatter:
      memory.elements = block_count(q.send_counts, q.count, chunk);
      memory.input = at(q.input, block_begin(q.send_counts, q.count, chunk), q.dtype);
      memory.wanted = chunk == self;
      if (q.in_place_blocks) memory.output = at(q.output, block_begin(q.send_counts, q.count, chunk), q.dtype);
      else if (memory.wanted) memory.output = at(q.output, 0, q.dtype);
      break;
    case Collective::all_gather: {
      const auto begin = block_begin(q.recv_counts, q.count, chunk);
      memory.elements = block_count(q.recv_counts, q.count, chunk);
      memory.output = at(q.output, begin, q.dtype);
      memory.wanted = true;
      if (chunk == self) memory.input = q.in_place_blocks ? memory.output : at(q.input, 0, q.dtype);
      break;
    }
    case Collective::gather:
      memory.elements = chunk == self && self != q.root ? q.count : block_count(q.recv_counts, q.count, chunk);
      memory.wanted = self == q.root;
      if (chunk == self) memory.input = at(q.input, 0, q.dtype);
      if (memory.wanted) memory.output = at(q.output, block_begin(q.recv_counts, q.count, chunk), q.dtype);
      break;
    case Collective::scatter:
      memory.elements = chunk == self && self != q.root ? q.count : block_count(q.send_counts, q.count, chunk);
      memory.wanted = chunk == self;
      if (self == q.root) memory.input = at(q.input, block_begin(q.send_counts, q.count, chunk), q.dtype);
      if (memory.wanted) memory.output = at(q.output, 0, q.dtype);
      break;
    default: break;
  }
  return memory;
}

ChunkMemory block_of_pair(const OperationRequest& q, uint32_t chunk, Rank self, uint32_t world) {
  const Rank source = chunk / world, destination = chunk % world;
  ChunkMemory memory;
  if (source == self) {
    memory.elements = block_count(q.send_counts, q.count, destination);
    memory.input = at(q.input, block_begin(q.send_counts, q.count, destination), q.dtype);
  }
  if (destination == self) {
    memory.elements = block_count(q.recv_counts, q.count, source);
    memory.output = at(q.output, block_begin(q.recv_counts, q.count, source), q.dtype);
    memory.wanted = true;
  }
  return memory;
}

// Returns the block sizes that all ranks know. The collective must not have a different size for each pair of ranks.
const std::vector<size_t>& common_counts(const OperationRequest& q) {
  return q.collective == Collective::reduce_scatter ? q.send_counts : q.recv_counts;
}

// Returns the number of elements of all blocks together. All ranks must know this number.
uint64_t whole_elements(const OperationRequest& q, uint32_t world) {
  const bool blocks = (q.collective == Collective::reduce_scatter || q.collective == Collective::all_gather) &&
                      q.delivery == Delivery::reliable;
  return blocks ? block_begin(common_counts(q), q.count, world) : q.count;
}

}  // namespace

CallDescriptor describe(const OperationRequest& q, ScheduleKind schedule, uint64_t slice_bytes, uint32_t world) {
  const bool point_to_point = q.collective == Collective::send || q.collective == Collective::recv;
  const auto collective = point_to_point ? Collective::send : q.collective;
  uint64_t rest = point_to_point ? 0 : q.root;
  rest = mix64(rest ^ mix64(slice_bytes));
  uint64_t amount = sizes_per_pair(q.collective) ? 0 : whole_elements(q, world);
  if (!sizes_per_pair(q.collective)) {
    for (const auto c : common_counts(q)) rest = mix64(rest ^ c);
  }
  if (!q.codec->is_plain()) rest = mix64(rest ^ (uint64_t{q.codec->own_exact} << 1 | uint64_t{q.codec->poison}) ^ 0xC0DEC);
  if (q.agreement != 0) {
    rest = mix64(rest ^ q.agreement);
    amount |= mix64(~q.agreement) >> amount_bits << amount_bits;
  }
  const auto op = adds(q.collective) ? q.op : ReduceOp::sum;
  const uint32_t bits = static_cast<uint32_t>(collective) << 28 | static_cast<uint32_t>(q.dtype) << 24 |
                        static_cast<uint32_t>(op) << 20 | static_cast<uint32_t>(schedule) << 16 |
                        static_cast<uint32_t>(rest & 0xFFFF);
  return {bits, amount};
}

std::string to_string(const CallDescriptor& d, bool receives) {
  const auto collective = static_cast<Collective>(d.bits >> 28);
  const std::string schedule = std::string(name(static_cast<ScheduleKind>(d.bits >> 16 & 15))) + ")";
  if (collective == Collective::barrier) return concat(name(collective), "(", schedule);
  return concat(receives && collective == Collective::send ? name(Collective::recv) : name(collective), "(",
                name(static_cast<DType>(d.bits >> 24 & 15)),
                adds(collective) ? concat(" ", name(static_cast<ReduceOp>(d.bits >> 20 & 15))) : "",
                sizes_per_pair(collective) ? "" : concat(", ", elements_in(d.amount), " elements"), ", ", schedule);
}

bool differ_visibly(const CallDescriptor& a, const CallDescriptor& b) {
  if (a.bits >> 16 != b.bits >> 16) return true;
  return !sizes_per_pair(static_cast<Collective>(a.bits >> 28)) && elements_in(a.amount) != elements_in(b.amount);
}

uint64_t schedule_bytes(const OperationRequest& q, uint32_t world) {
  return sizes_per_pair(q.collective)
             ? 0
             : whole_elements(q, world) *
                   element_bytes(q.dtype);  // the schedule must not depend on sizes that only some ranks know
}

uint64_t tensor_bytes(const OperationRequest& q, uint32_t world, Rank self) {
  if (!sizes_per_pair(q.collective)) return schedule_bytes(q, world);
  const bool rooted = q.collective != Collective::all_to_all;
  if (rooted && self != q.root) return q.count * element_bytes(q.dtype);
  const auto sent = block_begin(q.send_counts, q.count, world), received = block_begin(q.recv_counts, q.count, world);
  return (rooted ? q.collective == Collective::gather ? received : sent : std::max(sent, received)) * element_bytes(q.dtype);
}

uint64_t memory_bytes(const OperationRequest& q, uint32_t world, Rank self) {
  const auto size = element_bytes(q.dtype);
  const auto sent = block_begin(q.send_counts, q.count, world), received = block_begin(q.recv_counts, q.count, world);
  const auto kept = [&](const std::vector<size_t>& counts) {
    return q.in_place_blocks ? 0 : block_count(counts, q.count, self);
  };
  switch (q.collective) {
    case Collective::reduce_scatter: return (sent + kept(q.send_counts)) * size;
    case Collective::all_gather: return (received + kept(q.recv_counts)) * size;
    case Collective::all_to_all: return (sent + received) * size;
    case Collective::gather: return (self == q.root ? received + kept(q.recv_counts) : q.count) * size;
    case Collective::scatter: return (self == q.root ? sent + kept(q.send_counts) : q.count) * size;
    default: return q.count * size * (q.input != nullptr && q.output != nullptr && q.input != q.output ? 2 : 1);
  }
}

ChunkMemory chunk_memory_of(const OperationRequest& q, uint32_t chunk, const Partition& partition, Rank self, uint32_t world) {
  switch (q.collective) {
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::gather:
    case Collective::scatter: return block_of_rank(q, chunk, self);
    case Collective::all_to_all: return block_of_pair(q, chunk, self, world);
    default: return part_of_tensor(q, chunk, partition, self);
  }
}

}  // namespace unisono
