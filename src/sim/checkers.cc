#include "sim/checkers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/concat.h"
#include "codecs/error_bound.h"
#include "kernels/dispatch.h"
#include "schedules/make.h"

namespace unisono::sim {
namespace {

using Bytes = std::vector<std::byte>;

Bytes input_of(const Call& call, Rank rank, uint32_t world) {
  const auto count = call.collective == Collective::broadcast ? call.count : call.input_elements(rank, world);
  Bytes input(count * element_bytes(call.dtype));
  fill_values(call.fill(rank), 0, count, input.data());
  return input;
}

// The inputs of a call, and their reduction in rank order, which the scalar reference computes. Each call is reduced only once,
// because the reduction takes most of the time of a check.
struct Reduced {
  std::vector<Bytes> inputs;  // input of each rank
  Bytes result;
};

Reduced reduce_all(const Call& call, uint32_t world) {
  Reduced r;
  if (!call.reduces()) return r;
  std::vector<const void*> sources;
  for (Rank rank = 0; rank < world; ++rank) r.inputs.push_back(input_of(call, rank, world));
  for (const auto& input : r.inputs) sources.push_back(input.data());
  r.result.resize(r.inputs[0].size());
  const auto divisor = call.options.op == ReduceOp::avg ? world : 1;
  kernels::reduce_reference({.dtype = call.dtype,
                             .op = call.options.op,
                             .sources = sources,
                             .destination = r.result.data(),
                             .count = r.result.size() / element_bytes(call.dtype),
                             .divisor = divisor});
  return r;
}

void append(Bytes& to, const Bytes& from, size_t first, size_t count, size_t size) {
  to.insert(to.end(), from.begin() + static_cast<ptrdiff_t>(first * size),
            from.begin() + static_cast<ptrdiff_t>((first + count) * size));
}

size_t elements_before(const Call& call, Rank rank) {
  size_t before = 0;
  for (Rank r = 0; r < rank; ++r) before += call.block(r);
  return before;
}

// Returns the output that a rank must have after a collective that adds no values.
Bytes moved(const Call& call, Rank rank, uint32_t world) {
  const auto size = element_bytes(call.dtype);
  Bytes expected;
  switch (call.collective) {
    case Collective::broadcast: return input_of(call, call.root, world);
    case Collective::send: return rank == call.destination ? input_of(call, call.root, world) : Bytes();
    case Collective::all_gather:
    case Collective::gather:
      if (call.collective == Collective::gather && rank != call.root) return {};
      for (Rank r = 0; r < world; ++r) append(expected, input_of(call, r, world), 0, call.block(r), size);
      return expected;
    case Collective::scatter:
      append(expected, input_of(call, call.root, world), elements_before(call, rank), call.block(rank), size);
      return expected;
    case Collective::all_to_all:
      for (Rank from = 0; from < world; ++from) {
        size_t first = 0;
        for (Rank to = 0; to < rank; ++to) first += call.pair_count(from, to);
        append(expected, input_of(call, from, world), first, call.pair_count(from, rank), size);
      }
      return expected;
    default: return expected;
  }
}

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-52;
    case DType::f32: return 0x1p-23;
    case DType::f16: return 0x1p-10;
    default: return 0x1p-7;
  }
}

// A sum of n values, added in any order, has an error below n * epsilon * sum(|x|). See Higham, Accuracy and Stability of
// Numerical Algorithms, §4.2. A product has an error below n * epsilon * |product|. `bound` has n + 2 instead of n, because the
// final rounding and the division add to the error.
bool is_within_rounding_bound(const Call& call, const std::byte* got, const std::vector<Bytes>& inputs, size_t index) {
  const auto offset = index * element_bytes(call.dtype);
  const auto world = static_cast<double>(inputs.size());
  double sum = 0, magnitude = 0, product = 1;
  for (const auto& input : inputs) {
    const auto x = as_double(call.dtype, input.data() + offset);
    sum += x, magnitude += std::abs(x), product *= x;
  }
  const auto value = as_double(call.dtype, got);
  const auto bound = (world + 2) * epsilon(call.dtype);
  switch (call.options.op) {
    case ReduceOp::sum: return std::abs(value - sum) <= bound * magnitude + 1e-7;
    case ReduceOp::avg: return std::abs(value - sum / world) <= bound * magnitude / world + 1e-7;
    case ReduceOp::prod: return std::abs(value - product) <= bound * std::abs(product) + 1e-6 || std::abs(product) > 6e4;
    default: return true;
  }
}

// Returns the largest permitted error of one element of an encoded call. The inputs of the call are between -8 and 8.
double encoding_bound(const Call& call, const Codec& codec, uint32_t world) {
  if (!call.reduces()) return encoding_error_bound(codec.gather, call.dtype, 8);
  const double bound = sum_error_bound(codec, call.dtype, 8, world);
  return call.options.op == ReduceOp::avg ? bound / world : bound;
}

struct Expected {
  Bytes moved;                       // empty if the call reduces
  std::span<const std::byte> bytes;  // the expected bytes; they lie in `moved` or in Reduced::result
  size_t first = 0;                  // index of the element in the reduction with which `bytes` begins
};

Expected expected_of(const Call& call, Rank rank, uint32_t world, const Reduced& reduced) {
  Expected e;
  if (!call.reduces()) {
    e.moved = moved(call, rank, world);
    e.bytes = e.moved;
    return e;
  }
  if (call.collective == Collective::reduce && rank != call.root) return e;
  e.bytes = reduced.result;
  if (call.collective != Collective::reduce_scatter) return e;
  const auto size = element_bytes(call.dtype);
  e.first = elements_before(call, rank);
  e.bytes = e.bytes.subspan(e.first * size, call.block(rank) * size);
  return e;
}

// Returns the part of the output whose values the collective defines.
std::span<const std::byte> defined_output(const Call& call, Rank rank, const Part& part, size_t bytes) {
  const std::span<const std::byte> all(part.result);
  if (call.collective == Collective::reduce_scatter && part.memory.in_place)
    return all.subspan(elements_before(call, rank) * element_bytes(call.dtype), bytes);
  return all.first(std::min(bytes, all.size()));
}

// Returns whether every bit of the output is defined. The order of additions matters only for floating-point values that are
// not small whole numbers, and only direct schedules, which add in rank order, define this order.
bool is_defined_to_the_bit(const Call& call, const Part& part, uint32_t world) {
  // A single rank adds nothing, so its NaNs keep their payload. The reference would replace them.
  if (world == 1) return call.values != Values::special;
  if (!call.reduces() || !is_floating(call.dtype) || call.values == Values::exact) return true;
  // The pointer is null if the schedule is relayed or fitted to the links: the table contains no such names.
  const auto* const schedule = find_schedule(part.completion->report.schedule);
  return schedule != nullptr && schedule->is_direct(world_max);
}

std::string where(const Program& program, size_t call, Rank rank) {
  return concat("call ", call, " (", program.calls[call].to_string(), "), rank ", rank);
}

void check_part(const Program& program, size_t index, Rank rank, const Part& part, const Reduced& reduced,
                std::vector<std::string>& problems) {
  const auto& call = program.calls[index];
  const auto world = program.groups[call.group].world();
  const auto expected = expected_of(call, rank, world, reduced);
  const auto got = defined_output(call, rank, part, expected.bytes.size());
  const auto size = element_bytes(call.dtype);
  if (got.size() != expected.bytes.size())
    return problems.push_back(where(program, index, rank) + ": the output has the wrong size");
  if (const auto& codec = part.completion->report.codec; !codec.is_plain()) {
    for (size_t i = 0; call.values == Values::exact && i < got.size() / size; ++i) {
      const double value = as_double(call.dtype, got.data() + i * size),
                   wanted = as_double(call.dtype, expected.bytes.data() + i * size);
      if (std::abs(value - wanted) <= encoding_bound(call, codec, world)) continue;
      return problems.push_back(concat(where(program, index, rank), ", ", codec.to_string(), ": element ", i, " is ", value,
                                       ", expected about ", wanted));
    }
    return;
  }
  const bool exact = is_defined_to_the_bit(call, part, world);
  const bool rough = call.reduces() && is_floating(call.dtype) && call.values == Values::rough;
  if (exact && !rough && std::equal(got.begin(), got.end(), expected.bytes.begin())) return;
  for (size_t i = 0; i < got.size() / size; ++i) {
    const bool equal = std::memcmp(got.data() + i * size, expected.bytes.data() + i * size, size) == 0;
    if ((exact && !equal) ||
        (rough && !is_within_rounding_bound(call, got.data() + i * size, reduced.inputs, expected.first + i))) {
      return problems.push_back(concat(where(program, index, rank), ", ", part.completion->report.schedule, ": element ", i,
                                       " is ", as_double(call.dtype, got.data() + i * size), ", expected ",
                                       as_double(call.dtype, expected.bytes.data() + i * size)));
    }
  }
}

}  // namespace

void check_values(const Program& program, size_t index, const std::vector<Part>& parts, std::vector<std::string>& problems) {
  const auto& call = program.calls[index];
  const auto reduced = reduce_all(call, program.groups[call.group].world());
  const Part* first = nullptr;
  for (Rank rank = 0; rank < parts.size(); ++rank) {
    const auto& part = parts[rank];
    if (!part.done || !part.status().ok() || part.mistake != Mistake::none) continue;
    check_part(program, index, rank, part, reduced, problems);
    if (call.collective != Collective::all_reduce && call.collective != Collective::all_gather) continue;
    if (first == nullptr) first = &part;
    else if (part.result != first->result)
      problems.push_back(where(program, index, rank) + ": holds other bits than another rank");
  }
}

std::vector<Rank> ranks_named(std::string message) {
  static constexpr std::string_view aborted = " aborted the operation: ";
  for (size_t at; (at = message.find(aborted)) != std::string::npos;) message.erase(0, at + aborted.size());
  std::vector<Rank> ranks;
  for (size_t at = 0; (at = message.find("rank ", at)) != std::string::npos;) {
    at += 5;
    if (at < message.size() && message[at] >= '0' && message[at] <= '9')
      ranks.push_back(static_cast<Rank>(std::stoul(message.substr(at))));
  }
  return ranks;
}

namespace {

// Checks that the error names at least one rank to blame. A rank is to blame if it is faulty, if it made the call very late, or
// if it did not make the call.
void check_blame(const Run& run, size_t index, Rank rank, const FaultPlan& plan, std::vector<std::string>& problems) {
  const auto& program = run.program();
  const auto& call = program.calls[index];
  const auto& group = program.groups[call.group];
  const auto& parts = run.parts()[index];
  const auto& status = parts[rank].status();
  if (is_faulty(plan, group.members[rank])) return;  // this rank may be cut off, so it cannot know which rank is to blame
  auto first_call = parts[rank].submitted_at;
  for (const auto& part : parts) first_call = part.submitted ? std::min(first_call, part.submitted_at) : first_call;
  const auto too_late = first_call + call.options.timeout.count() * millisecond / 2;
  const auto named = ranks_named(status.message());
  const bool right = std::any_of(named.begin(), named.end(), [&](Rank r) {
    return r < group.world() && (is_faulty(plan, group.members[r]) || !parts[r].submitted || parts[r].submitted_at > too_late);
  });
  if (!right) problems.push_back(where(program, index, rank) + ": blames no faulty rank: " + status.to_string());
}

Nanos deadline_of(const Call& call, const Part& part) { return part.submitted_at + call.options.timeout.count() * millisecond; }

void check_error(const Run& run, size_t index, Rank rank, const ErrorRules& rules, std::vector<std::string>& problems) {
  const auto& part = run.parts()[index][rank];
  const auto code = part.status().code();
  const auto text = where(run.program(), index, rank) + ": " + part.status().to_string();
  if (rules.all_must_succeed) return problems.push_back(text + " although nothing was wrong");
  const bool named = code == Code::late || (rules.wrong_program ? code == Code::invalid : code == Code::peer_lost);
  if (!named) return problems.push_back("unexpected error: " + text);
  if (!rules.wrong_program && !rules.any_rank_may_fail) return check_blame(run, index, rank, rules.plan, problems);
  if (ranks_named(part.status().message()).empty() && run.program().groups[0].world() > 1)
    problems.push_back("names no rank: " + text);
}

}  // namespace

void check_errors(const Run& run, const Cluster& cluster, const ErrorRules& rules, std::vector<std::string>& problems) {
  const auto& program = run.program();
  for (size_t index = 0; index < program.calls.size(); ++index) {
    const auto& group = program.groups[program.calls[index].group];
    for (Rank rank = 0; rank < group.world(); ++rank) {
      const auto& part = run.parts()[index][rank];
      const auto process = group.members[rank];
      if (!part.submitted || !cluster.alive(process)) continue;
      if (!part.done) {
        problems.push_back(where(program, index, rank) + ": never ended");
        continue;
      }
      const bool slept = std::any_of(rules.plan.faults.begin(), rules.plan.faults.end(),
                                     [&](const Fault& f) { return f.kind == FaultKind::stop && f.process == process; });
      if (!slept && part.ended_at > deadline_of(program.calls[index], part) + lateness_max) {
        problems.push_back(concat(where(program, index, rank), ": ended ",
                                  (part.ended_at - deadline_of(program.calls[index], part)) / millisecond,
                                  " ms after its deadline"));
      }
      if (!part.status().ok()) check_error(run, index, rank, rules, problems);
    }
  }
}

void check_mistakes(const Run& run, std::vector<std::string>& problems) {
  const auto& program = run.program();
  for (const auto& deviation : program.deviations) {
    const auto& call = program.calls[deviation.call];
    if (deviation.mistake == Mistake::none || deviation.mistake == Mistake::missing) continue;
    // In these calls, some ranks may finish before they notice the deviation: senders, and ranks whose blocks have the right
    // sizes. In a gather or scatter with uneven blocks, the deviating rank's own block may have the right size.
    const bool may_be_right = deviation.mistake == Mistake::size && call.is_rooted() && !call.counts.empty();
    if (call.is_message() || may_be_right || (call.collective == Collective::all_to_all && !call.counts.empty())) continue;
    const auto& parts = run.parts()[deviation.call];
    for (Rank rank = 0; rank < parts.size() && parts.size() > 1; ++rank) {
      if (parts[rank].done && parts[rank].status().ok())
        problems.push_back(concat(where(program, deviation.call, rank), ": reports ok although rank ",
                                  program.groups[call.group].rank_of(deviation.process), " called something else"));
    }
  }
}

void check_nothing_held(Cluster& cluster, std::vector<std::string>& problems) {
  const auto held = cluster.network().held();
  for (PeerIndex process = 0; process < cluster.size(); ++process) {
    if (!cluster.alive(process)) continue;
    const auto text = concat("process ", process);
    auto& engine = cluster.engine(process);
    if (engine.active() != 0) problems.push_back(concat(text, " still has ", engine.active(), " operations"));
    if (engine.held_bytes() != 0) problems.push_back(concat(text, " still holds ", engine.held_bytes(), " bytes of its pool"));
    if (!held[process].empty()) problems.push_back(text + " still has " + held[process]);
  }
  for (const auto& violation : cluster.network().violations())
    problems.push_back("violation of the transport's rules: " + violation);
}

}  // namespace unisono::sim
