// A job is one entry of a plan. It has a collective, a number of bytes on each rank, and a result that is known in advance.
//
// As in nccl-tests, `bytes` is the size of the larger one of a rank's two buffers:
// - all_reduce and broadcast: the whole tensor
// - reduce_scatter: the input; all_gather: the output; all_to_all: input or output, which have the same size
//
// A block has bytes / world size. all_reduce and broadcast work in place; the other collectives read the input and write the
// output. The values are small integers. They are exact in every element type, and in any order of additions.
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

// One entry of the plan, such as "65536", "all_gather/65536", "bf16/65536", or "8x65536=ring+any" (eight operations at once).
struct Job {
  Collective collective = Collective::all_reduce;
  Element element = Element::f32;
  uint32_t parts = 1;  // number of operations that run at the same time; it may be more than 1 only for all_reduce
  size_t bytes = 0;    // bytes of each operation
  std::string algorithm = {};

  bool in_place() const { return collective == Collective::all_reduce || collective == Collective::broadcast; }
  size_t elements() const { return bytes / element_bytes(element); }
  size_t buffer_bytes() const { return bytes * parts; }  // bytes of the input of a rank, and also of its output
};

inline constexpr uint32_t broadcast_root = 0;

// Parses entries that are separated by commas. If an entry is wrong, returns invalid with its text.
Result<std::vector<Job>> parse_plan(const std::string& plan);

// The input and the output of one rank. Each has buffer_bytes() bytes. If the job works in place, both are the same memory.
struct Buffers {
  std::byte* input = nullptr;
  std::byte* output = nullptr;
};

struct RankOfWorld {
  uint32_t rank = 0;
  uint32_t world_size = 1;
};

// Writes the contribution of this rank to the input. If the output is separate memory, fills it with bytes that no correct
// result contains.
void fill(const Job& job, const RankOfWorld& self, const Buffers& buffers);
// Writes contributions whose sum is zero. A call that works in place then leaves zeros, and so do all further calls.
void fill_for_timing(const Job& job, const RankOfWorld& self, const Buffers& buffers);
// Writes the same values to the input again, as if the caller had new data for every call. Does nothing if the collective works
// in place, because it has then just written the input itself.
void renew_input(const Job& job, const RankOfWorld& self, const Buffers& buffers);
// A result passes the check if |result * times - sum| < error.
struct Tolerance {
  double error = 0;  // 0: the result must be exactly equal to the sum
  double times = 1;
};
// Checks the result. Every rank must have called fill(), and then the collective must have run once. If the result is wrong,
// returns internal, with the first element of the output that is wrong.
Status verify(const Job& job, const RankOfWorld& self, const Buffers& buffers, const Tolerance& tolerance = {});

}  // namespace unisono::bench
