#include "job.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/concat.h"

namespace unisono::bench {
namespace {

constexpr const char* collective_names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"};
constexpr const char* element_names[] = {"f32", "bf16", "f16"};

// Returns the integer that one rank contributes. For 16-bit elements, it has one of only 7 values, so that the sum over up to
// 64 ranks has at most 8 bits.
int contribution(Element element, uint32_t rank, size_t index) {
  const auto mixed = static_cast<uint32_t>(index * 31 + rank * 257 + (index >> 9));
  return element == Element::f32 ? static_cast<int>(mixed % 1023) - 511 : static_cast<int>(mixed % 7) - 3;
}

int total(Element element, uint32_t world_size, size_t index) {
  int sum = 0;
  for (uint32_t rank = 0; rank < world_size; ++rank) sum += contribution(element, rank, index);
  return sum;
}

// Converts an integer to the element type and returns the bits. The integer must have at most 8 significant bits (24 for f32),
// so that it is not rounded.
uint32_t bits_of(Element element, int value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (element == Element::f32) return bits;
  if (element == Element::bf16 || value == 0) return bits >> 16;
  const uint32_t exponent = ((bits >> 23) & 0xff) - 127 + 15;
  return (bits >> 31) << 15 | exponent << 10 | (bits >> 13 & 0x3ff);
}

float value_of(Element element, uint32_t bits) {
  if (element == Element::f32) return std::bit_cast<float>(bits);
  if (element == Element::bf16) return std::bit_cast<float>(bits << 16);
  const uint32_t exponent = bits >> 10 & 0x1f, sign = bits >> 15 << 31;
  if (exponent == 0) return (sign != 0 ? -1.0f : 1.0f) * static_cast<float>(bits & 0x3ff) / 16777216.0f;
  return std::bit_cast<float>(sign | (exponent == 31 ? 255 : exponent - 15 + 127) << 23 | (bits & 0x3ff) << 13);
}

void store(Element element, std::byte* memory, size_t index, int value) {
  const uint32_t bits = bits_of(element, value);
  if (element == Element::f32) std::memcpy(memory + index * 4, &bits, 4);
  else std::memcpy(memory + index * 2, &bits, 2);  // little endian
}

uint32_t load(Element element, const std::byte* memory, size_t index) {
  uint32_t bits = 0;
  if (element == Element::f32) std::memcpy(&bits, memory + index * 4, 4);
  else std::memcpy(&bits, memory + index * 2, 2);
  return bits;
}

// These return the number of elements in the input of a rank, and in its output.
size_t input_elements(const Job& job, uint32_t world_size) {
  return job.collective == Collective::all_gather ? job.elements() / world_size : job.elements();
}
size_t output_elements(const Job& job, uint32_t world_size) {
  return job.collective == Collective::reduce_scatter ? job.elements() / world_size : job.elements();
}

int expected(const Job& job, const RankOfWorld& self, size_t index) {
  const size_t block = job.elements() / self.world_size;
  switch (job.collective) {
    case Collective::all_reduce: return total(job.element, self.world_size, index);
    case Collective::reduce_scatter: return total(job.element, self.world_size, self.rank * block + index);
    case Collective::all_gather: return contribution(job.element, static_cast<uint32_t>(index / block), index % block);
    case Collective::all_to_all:
      return contribution(job.element, static_cast<uint32_t>(index / block), self.rank * block + index % block);
    case Collective::broadcast: return contribution(job.element, broadcast_root, index);
  }
  return 0;
}

template <size_t count>
std::optional<size_t> find(const char* const (&names)[count], const std::string& word) {
  for (size_t i = 0; i < count; ++i) {
    if (word == names[i]) return i;
  }
  return std::nullopt;
}

// Parses text[begin, end), which must consist of digits.
std::optional<size_t> number(const std::string& text, size_t begin, size_t end) {
  if (begin == end || end - begin > 18) return std::nullopt;
  for (size_t i = begin; i < end; ++i) {
    if (text[i] < '0' || text[i] > '9') return std::nullopt;
  }
  return std::strtoull(text.substr(begin, end - begin).c_str(), nullptr, 10);
}

std::optional<Job> parse_entry(const std::string& entry) {
  Job job;
  const size_t equals = std::min(entry.find('='), entry.size());
  if (equals < entry.size()) job.algorithm = entry.substr(equals + 1);
  size_t at = 0;
  for (size_t slash; (slash = entry.find('/', at)) < equals; at = slash + 1) {
    const std::string word = entry.substr(at, slash - at);
    if (const auto collective = find(collective_names, word)) job.collective = static_cast<Collective>(*collective);
    else if (const auto element = find(element_names, word)) job.element = static_cast<Element>(*element);
    else return std::nullopt;
  }
  const size_t cross = entry.find('x', at);
  if (cross < equals) {
    const auto parts = number(entry, at, cross);
    if (!parts || *parts == 0 || *parts > 1024 || job.collective != Collective::all_reduce) return std::nullopt;
    job.parts = static_cast<uint32_t>(*parts);
    at = cross + 1;
  }
  const auto bytes = number(entry, at, equals);
  if (!bytes || *bytes == 0 || *bytes % sizeof(float) != 0) return std::nullopt;
  job.bytes = *bytes;
  return job;
}

}  // namespace

const char* name(Collective collective) { return collective_names[static_cast<size_t>(collective)]; }
const char* name(Element element) { return element_names[static_cast<size_t>(element)]; }

Result<std::vector<Job>> parse_plan(const std::string& plan) {
  std::vector<Job> jobs;
  for (size_t at = 0; at <= plan.size();) {
    const size_t end = std::min(plan.find(',', at), plan.size());
    const std::string entry = plan.substr(at, end - at);
    const auto job = parse_entry(entry);
    if (!job) {
      return Status(Code::invalid, "--plan: \"" + entry +
                                       "\" is not [COLLECTIVE/][ELEMENT/][PARTSx]BYTES[=ALGORITHM] with BYTES a "
                                       "multiple of 4, and PARTS for all_reduce only");
    }
    jobs.push_back(*job);
    at = end + 1;
  }
  return jobs;
}

void fill(const Job& job, const RankOfWorld& self, const Buffers& buffers) {
  std::memset(buffers.output, 0xff, job.buffer_bytes());  // Bytes of 0xff are NaN in every type.
  for (uint32_t part = 0; part < job.parts; ++part) {
    auto* memory = buffers.input + part * job.bytes;
    for (size_t i = 0; i < input_elements(job, self.world_size); ++i) {
      store(job.element, memory, i, contribution(job.element, self.rank, i + part));
    }
  }
}

void fill_for_timing(const Job& job, const RankOfWorld& self, const Buffers& buffers) {
  const int others = static_cast<int>(self.world_size - 1);
  for (size_t i = 0; i < job.parts * input_elements(job, self.world_size); ++i) {
    const auto value = static_cast<int>(i % 3);
    store(job.element, buffers.input, i, self.rank == 0 ? -others * value : value);
  }
}

void renew_input(const Job& job, const RankOfWorld& self, const Buffers& buffers) {
  const bool is_written_by_calls =
      job.collective == Collective::all_reduce || (job.collective == Collective::broadcast && self.rank != broadcast_root);
  if (is_written_by_calls) return;
  const size_t bytes = job.parts * input_elements(job, self.world_size) * element_bytes(job.element);
  for (size_t i = 0; i < bytes; i += 64) {
    auto* line = reinterpret_cast<volatile std::byte*>(buffers.input + i);
    *line = *line;
  }
}

Status verify(const Job& job, const RankOfWorld& self, const Buffers& buffers, const Tolerance& tolerance) {
  for (uint32_t part = 0; part < job.parts; ++part) {
    const auto* memory = buffers.output + part * job.bytes;
    for (size_t i = 0; i < output_elements(job, self.world_size); ++i) {
      // Part p has the same contributions as part 0, but they are shifted by p elements. Thus the check notices if a library
      // mixes up two parts.
      const uint32_t got = load(job.element, memory, i), wanted = bits_of(job.element, expected(job, self, i + part));
      if (got == wanted ||
          std::fabs(value_of(job.element, got) * tolerance.times - value_of(job.element, wanted)) < tolerance.error)
        continue;
      return {Code::internal,
              concat(name(job.collective), " of ", job.bytes, " bytes is wrong on rank ", self.rank, ", element ", i, ": ",
                     value_of(job.element, got), " instead of ", value_of(job.element, wanted))};
    }
  }
  return {};
}

}  // namespace unisono::bench
