// A job is one entry of a plan: the collective, the bytes that it takes on each rank, and the result that they must hold
// afterwards.
//
// Sizes mean the same for every collective, as in nccl-tests: `bytes` is the larger of a rank's two buffers. It is the whole
// tensor of all_reduce and broadcast, the input of reduce_scatter, the output of all_gather, either buffer of all_to_all;
// where there are blocks, each has bytes / world size. all_reduce and broadcast work in place, the others from input to output.
// The numbers are small integers, exact in every element type and in any order of additions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "unisono/status.h"

namespace unisono::bench {

enum class Collective : uint8_t { all_reduce = 0, reduce_scatter = 1, all_gather = 2, all_to_all = 3, broadcast = 4 };
enum class Element : uint8_t { f32 = 0, bf16 = 1, f16 = 2 };

const char* name(Collective collective);
const char* name(Element element);

constexpr size_t element_bytes(Element element) { return element == Element::f32 ? 4 : 2; }

// One entry of the plan: "65536", "all_gather/65536", "bf16/65536", "8x65536=ring+any" (eight operations of that size at once).
struct Job {
  Collective collective = Collective::all_reduce;
  Element element = Element::f32;
  uint32_t parts = 1;  // operations in flight at once; more than one for all_reduce only
  size_t bytes = 0;    // of each of them
  std::string algorithm = {};

  bool in_place() const { return collective == Collective::all_reduce || collective == Collective::broadcast; }
  size_t elements() const { return bytes / element_bytes(element); }
  size_t buffer_bytes() const { return bytes * parts; }  // what a rank's input and output each have room for
};

inline constexpr uint32_t broadcast_root = 0;

// Entries divided by commas; invalid names the entry that cannot be read.
Result<std::vector<Job>> parse_plan(const std::string& plan);

// Input and output of one rank, buffer_bytes() each, one and the same where the job works in place.
struct Buffers {
  std::byte* input = nullptr;
  std::byte* output = nullptr;
};

struct Place {
  uint32_t rank = 0;
  uint32_t world_size = 1;
};

// Writes this rank's contribution, and into an output of its own bytes that no right result has.
void fill(const Job& job, const Place& place, const Buffers& buffers);
// Contributions that sum to zero: in place, the first call leaves zeros, and zeros stay however many calls follow.
void fill_for_timing(const Job& job, const Place& place, const Buffers& buffers);
// Writes the input once more with the same values, as a caller with new data for every call would. Does nothing for a call that
// leaves its result in the input, because the call itself has written it.
void renew_input(const Job& job, const Place& place, const Buffers& buffers);
// A result passes if |result * times - sum| < error.
struct Tolerance {
  double error = 0;  // 0: the result must equal the sum to the bit
  double times = 1;
};
// Call after every rank has called fill() and the collective has run once. Returns ok, or internal with the first wrong element
// of the output.
Status verify(const Job& job, const Place& place, const Buffers& buffers, const Tolerance& tolerance = {});

}  // namespace unisono::bench
