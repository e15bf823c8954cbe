// The calls of the simulated processes: a random program, equal on all of them, or one in which a process makes a wrong call.
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
  std::vector<PeerIndex> members;     // by rank
  std::vector<uint32_t> host_groups;  // by rank
  uint32_t world() const { return static_cast<uint32_t>(members.size()); }
  // UINT32_MAX if the process is not a member.
  Rank rank_of(PeerIndex process) const;
};

// One call, as all members make it.
struct Call {
  size_t group = 0;                                // index into Program::groups
  Collective collective = Collective::all_reduce;  // send stands for a message from root to destination
  DType dtype = DType::f32;
  Values values = Values::exact;
  size_t count = 0;            // elements of the tensor or of an even block
  std::vector<size_t> counts;  // per rank, if uneven; all_to_all: see pair_count
  Rank root = 0, destination = 0;
  uint32_t tag = 0;
  uint64_t seed = 0;  // of the inputs
  CallOptions options;

  bool is_message() const { return collective == Collective::send; }
  bool is_rooted() const { return unisono::is_rooted(collective); }
  bool reduces() const { return adds(collective); }
  bool concerns(Rank rank) const { return !is_message() || rank == root || rank == destination; }
  size_t block(Rank rank) const { return counts.empty() ? count : counts[rank]; }
  // all_to_all: elements from one rank to another.
  size_t pair_count(Rank from, Rank to) const { return counts.empty() ? count : (counts[from] * 3 + counts[to] * 5) % 700; }
  size_t input_elements(Rank rank, uint32_t world) const;
  size_t output_elements(Rank rank, uint32_t world) const;
  Fill fill(Rank rank) const;
  std::string to_string() const;
};

// How a process deviates from the call that the others make.
enum class Slip : uint8_t { none, size, dtype, op, collective, root, missing };

struct Memory {  // of one call on one rank
  GuardedBuffer input, output;
  bool in_place = false;
  std::vector<size_t> send_counts, recv_counts;
};
Memory make_memory(const Call& call, Rank rank, uint32_t world, Random& random);
// The request for this rank; the memory must outlive the operation.
Result<OperationRequest> make_request(const Call& call, Rank rank, uint32_t world, Memory& memory);

struct Deviation {
  PeerIndex process = 0;
  size_t call = 0;
  Slip slip = Slip::none;
};

struct Program {
  std::vector<SimGroup> groups;  // the first contains all processes
  std::vector<Call> calls;
  std::vector<std::vector<size_t>> order;  // by process: indices into calls, in call order
  size_t in_flight_max = SIZE_MAX;         // limit of unfinished calls; beyond it, a process waits for older ones
  Nanos think_max = 0;                     // limit of the pause between two calls
  std::vector<Deviation> deviations;

  Slip slip_of(PeerIndex process, size_t call) const;
};

struct ProgramRequest {
  uint32_t processes = 4;
  size_t calls_max = 12;
  size_t elements_max = 5000;
  Nanos timeout = second;
};
Program random_program(const ProgramRequest& request, Random& random);
// One process makes a different call, or calls in another order. Every call concerns all processes.
void make_wrong(Program& program, Random& random);
// A single call of all processes.
Program single_call(uint32_t processes, const Call& call);
// Applies a slip to a call, as a programmer would have written it.
Call slipped(const Call& call, Slip slip, uint32_t world);

}  // namespace unisono::sim
