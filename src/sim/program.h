// The calls that the simulated processes make. A program is random. Either all processes make the same calls, or one process
// makes a wrong call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "executor/request.h"
#include "group/api/calls.h"
#include "schedules/collective_facts.h"
#include "sim/tensors.h"

namespace unisono::sim {

struct SimGroup {
  uint32_t number = 0;
  std::vector<PeerIndex> members;     // process of each rank
  std::vector<uint32_t> host_groups;  // host group of each rank
  uint32_t world() const { return static_cast<uint32_t>(members.size()); }
  // Returns UINT32_MAX if the process is not a member.
  Rank rank_of(PeerIndex process) const;
};

// A call as it is made by all members of its group.
struct Call {
  size_t group = 0;                                // index into Program::groups
  Collective collective = Collective::all_reduce;  // `send` means a message from `root` to `destination`
  DType dtype = DType::f32;
  Values values = Values::exact;
  size_t count = 0;  // Number of elements of the tensor. If the tensor has equal blocks: number of elements of one block.
  std::vector<size_t> counts;  // number of elements of each rank, if the ranks differ; for all_to_all, see pair_count()
  Rank root = 0, destination = 0;
  uint32_t tag = 0;
  uint64_t seed = 0;  // seed of the inputs
  CallOptions options;

  bool is_message() const { return collective == Collective::send; }
  bool is_rooted() const { return unisono::is_rooted(collective); }
  bool reduces() const { return adds(collective); }
  bool concerns(Rank rank) const { return !is_message() || rank == root || rank == destination; }
  size_t block(Rank rank) const { return counts.empty() ? count : counts[rank]; }
  // For all_to_all: returns the number of elements that `from` sends to `to`.
  size_t pair_count(Rank from, Rank to) const { return counts.empty() ? count : (counts[from] * 3 + counts[to] * 5) % 700; }
  size_t input_elements(Rank rank, uint32_t world) const;
  size_t output_elements(Rank rank, uint32_t world) const;
  Fill fill(Rank rank) const;
  std::string to_string() const;
};

// Says how the call of one process differs from the call that the others make.
enum class Mistake : uint8_t { none, size, dtype, op, collective, root, missing };

struct Memory {  // buffers of one call on one rank
  GuardedBuffer input, output;
  bool in_place = false;
  std::vector<size_t> send_counts, recv_counts;
};
Memory make_memory(const Call& call, Rank rank, uint32_t world, Random& random);
// Returns the request that this rank makes. `memory` must outlive the operation.
Result<OperationRequest> make_request(const Call& call, Rank rank, uint32_t world, Memory& memory);

struct Deviation {
  PeerIndex process = 0;
  size_t call = 0;
  Mistake mistake = Mistake::none;
};

struct Program {
  std::vector<SimGroup> groups;  // the first group contains all processes
  std::vector<Call> calls;
  // For each process: the calls in the order in which it makes them, as indices into `calls`.
  std::vector<std::vector<size_t>> order;
  // A process has at most this many unfinished calls. At this limit, it waits until an older call ends.
  size_t in_flight_max = SIZE_MAX;
  Nanos think_max = 0;  // a process pauses for at most this long between two calls
  std::vector<Deviation> deviations;

  Mistake mistake_of(PeerIndex process, size_t call) const;
};

struct ProgramRequest {
  uint32_t processes = 4;
  size_t calls_max = 12;
  size_t elements_max = 5000;
  Nanos timeout = second;
};
Program random_program(const ProgramRequest& request, Random& random);
// Chooses one process at random. This process then makes one call differently or not at all, or it makes two of its calls in
// the opposite order.
void make_wrong(Program& program, Random& random);
// Returns a program with a single call that all processes make.
Program single_call(uint32_t processes, const Call& call);
// Returns the call with this mistake.
Call with_mistake(const Call& call, Mistake mistake, uint32_t world);

}  // namespace unisono::sim
