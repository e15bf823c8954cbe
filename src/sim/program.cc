#include "sim/program.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/concat.h"
#include "schedules/make.h"
#include "unisono/codec_facts.h"

namespace unisono::sim {
namespace {

constexpr uint64_t slice_choices[] = {0, 0, 64, 256, 1000, 4096, 65536};

template <typename T, size_t n>
T pick(const T (&choices)[n], Random& random) {
  return choices[random.below(n)];
}

size_t random_count(size_t most, Random& random) {
  constexpr size_t odd[] = {0, 1, 2, 3, 7, 15, 16, 17, 63, 64, 65, 255, 257, 1023};
  return random.chance(0.4) ? std::min(most, pick(odd, random)) : random.below(most + 1);
}

SimGroup random_subgroup(uint32_t processes, uint32_t number, Random& random) {
  SimGroup group{.number = number, .members = {}, .host_groups = {}};
  std::vector<PeerIndex> all(processes);
  std::iota(all.begin(), all.end(), 0u);
  const auto size = 1 + random.below(processes);
  for (uint64_t i = 0; i < size; ++i) {
    std::swap(all[i], all[i + random.below(processes - i)]);
    group.members.push_back(all[i]);
  }
  return group;
}

void random_host_groups(SimGroup& group, Random& random) {
  const auto hosts = 1 + random.below(group.world());
  for (Rank r = 0; r < group.world(); ++r) group.host_groups.push_back(static_cast<uint32_t>(random.below(hosts)));
}

ScheduleKind random_schedule(Collective collective, Order order, uint32_t world, Random& random) {
  const auto kinds = kinds_of(collective);
  const bool sizes_known =
      collective != Collective::gather && collective != Collective::scatter && collective != Collective::all_to_all;
  if (kinds.empty() || !sizes_known || random.chance(0.3)) return ScheduleKind::automatic;
  const auto kind = kinds[random.below(kinds.size())];
  const bool possible = order == Order::any || is_direct(collective, kind, world);
  return possible ? kind : ScheduleKind::automatic;
}

// Adds a random codec to the call. The codec is drawn from its own random generator, so it does not change the rest of the
// program.
void add_codec(Call& call, Random random) {
  const auto collective = call.collective;
  if (!takes_codec(collective) || !random.chance(0.4)) return;
  const auto schedule = call.options.schedule;
  const bool encodes_once = !adds(collective) || schedule == ScheduleKind::automatic ||
                            schedule == ScheduleKind::hierarchical || is_direct(collective, schedule, world_max);
  if (!encodes_once) return;
  const auto step = [&] {
    StepCodec s{.kind =
                    random.chance(0.7) ? StepCodec::Kind::quantize : static_cast<StepCodec::Kind>(random.below(codec_count))};
    if (!facts_of(s.kind).has_options) return s;
    s.bits = static_cast<uint8_t>(2 + random.below(7));
    s.group = static_cast<uint16_t>(32u << random.below(4));
    s.metadata = static_cast<StepCodec::Metadata>(random.below(4));
    s.spikes = static_cast<StepCodec::Spikes>(random.below(3));
    return s;
  };
  auto& codec = call.options.codec.emplace(Codec::of(step()));
  if (random.chance(0.3)) codec.gather = step();
  if (random.chance(0.3)) codec.across = step();
  codec.own_exact = random.chance(0.2);
  codec.poison = random.chance(0.2);
}

Call random_call(const Program& program, const ProgramRequest& q, Random& random) {
  constexpr Collective collectives[] = {Collective::all_reduce,     Collective::all_reduce, Collective::all_reduce,
                                        Collective::reduce_scatter, Collective::all_gather, Collective::broadcast,
                                        Collective::reduce,         Collective::gather,     Collective::scatter,
                                        Collective::all_to_all,     Collective::barrier,    Collective::send};
  Call call;
  call.group = random.chance(0.7) ? 0 : random.below(program.groups.size());
  const auto world = program.groups[call.group].world();
  call.collective = pick(collectives, random);
  if (call.is_message() && world < 2) call.collective = Collective::all_reduce;
  call.dtype = random.chance(0.3) ? DType::f32 : static_cast<DType>(random.below(dtype_count));
  call.values = static_cast<Values>(random.below(3));
  call.options.op = static_cast<ReduceOp>(random.below(is_floating(call.dtype) ? 5 : reduce_op_count));
  const bool blocks = !call.reduces() && call.collective != Collective::broadcast && !call.is_message();
  call.count =
      random_count(blocks || call.collective == Collective::reduce_scatter ? q.elements_max / 4 : q.elements_max, random);
  if (call.collective == Collective::barrier) call.count = 0;
  if (has_blocks(call.collective) && random.chance(0.5)) {
    for (Rank r = 0; r < world; ++r) call.counts.push_back(random_count(q.elements_max / 4, random));
  }
  call.root = static_cast<Rank>(random.below(world));
  if (call.is_message()) call.destination = static_cast<Rank>((call.root + 1 + random.below(world - 1)) % world);
  call.tag = static_cast<uint32_t>(random.below(3));
  call.seed = random.next();
  call.options.order = call.reduces() ? static_cast<Order>(random.below(3)) : Order::automatic;
  const bool free_order = !is_floating(call.dtype) || !call.reduces();
  call.options.schedule = random_schedule(call.collective, free_order ? Order::any : call.options.order, world, random);
  if (call.is_message()) call.options.schedule = ScheduleKind::automatic;
  call.options.slice_bytes = pick(slice_choices, random);
  call.options.timeout = Milliseconds(q.timeout / millisecond);
  add_codec(call, Random(mix64(call.seed)));
  return call;
}

// Returns whether the collective allows input and output to be the same buffer.
bool may_be_in_place(const Call& call, Rank rank) {
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
    case Collective::all_gather: return true;
    case Collective::reduce: return rank == call.root;
    case Collective::all_to_all: return call.counts.empty();
    default: return false;
  }
}

size_t sum_of(const std::vector<size_t>& counts, size_t even, uint32_t world) {
  return counts.empty() ? even * world : std::accumulate(counts.begin(), counts.end(), size_t{0});
}

}  // namespace

Rank SimGroup::rank_of(PeerIndex process) const {
  const auto at = std::find(members.begin(), members.end(), process);
  return at == members.end() ? UINT32_MAX : static_cast<Rank>(at - members.begin());
}

size_t Call::input_elements(Rank rank, uint32_t world) const {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce: return count;
    case Collective::broadcast:
    case Collective::send: return rank == root ? count : 0;
    case Collective::reduce_scatter: return sum_of(counts, count, world);
    case Collective::all_gather:
    case Collective::gather: return block(rank);
    case Collective::scatter: return rank == root ? sum_of(counts, count, world) : 0;
    case Collective::all_to_all: {
      size_t total = 0;
      for (Rank to = 0; to < world; ++to) total += pair_count(rank, to);
      return total;
    }
    default: return 0;
  }
}

size_t Call::output_elements(Rank rank, uint32_t world) const {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::broadcast: return count;
    case Collective::send: return rank == destination ? count : 0;
    case Collective::reduce: return rank == root ? count : 0;
    case Collective::reduce_scatter:
    case Collective::scatter: return block(rank);
    case Collective::all_gather: return sum_of(counts, count, world);
    case Collective::gather: return rank == root ? sum_of(counts, count, world) : 0;
    case Collective::all_to_all: {
      size_t total = 0;
      for (Rank from = 0; from < world; ++from) total += pair_count(from, rank);
      return total;
    }
    default: return 0;
  }
}

Fill Call::fill(Rank rank) const {
  return {.dtype = dtype,
          .values = values,
          .product = options.op == ReduceOp::prod && reduces(),
          .seed = mix64(seed ^ mix64(rank + 1))};
}

std::string Call::to_string() const {
  std::string text =
      concat(name(collective), " of group ", group, ", ", count, counts.empty() ? "" : " (uneven)", " ", name(dtype));
  if (reduces()) text += std::string(" ") + name(options.op);
  if (is_rooted() || is_message()) text += concat(", root ", root);
  if (is_message()) text += concat(" to ", destination, " tag ", tag);
  text += concat(", ", name(options.schedule), ", slices of ", options.slice_bytes);
  if (options.codec) text += ", " + options.codec->to_string();
  return options.id == 0 ? text : concat(text, ", id ", options.id);
}

Memory make_memory(const Call& call, Rank rank, uint32_t world, Random& random) {
  Memory m;
  const auto size = element_bytes(call.dtype);
  const auto in = call.input_elements(rank, world), out = call.output_elements(rank, world);
  m.in_place = may_be_in_place(call, rank) && random.chance(0.5);
  const auto shift = [&] { return random.chance(0.5) ? 0 : random.below(64); };
  if (call.collective == Collective::broadcast) {
    m.output = GuardedBuffer(out * size, shift());
    if (rank == call.root) fill_values(call.fill(rank), 0, out, m.output.data());
    return m;
  }
  if (!m.in_place) m.input = GuardedBuffer(in * size, shift());
  m.output = GuardedBuffer((m.in_place ? std::max(in, out) : out) * size, shift());
  auto* given = m.in_place ? m.output.data() : m.input.data();
  if (m.in_place && call.collective == Collective::all_gather) {
    for (Rank r = 0; r < rank; ++r) given += call.block(r) * size;
  }
  if (in > 0) fill_values(call.fill(rank), 0, in, given);
  if (call.collective == Collective::all_to_all && !call.counts.empty()) {
    for (Rank r = 0; r < world; ++r)
      m.send_counts.push_back(call.pair_count(rank, r)), m.recv_counts.push_back(call.pair_count(r, rank));
  }
  return m;
}

Result<OperationRequest> make_request(const Call& call, Rank rank, uint32_t world, Memory& m) {
  const Caller caller{rank, world, second};
  const auto in_count = call.input_elements(rank, world), out_count = call.output_elements(rank, world);
  const auto& o = call.options;
  auto* in_data = m.in_place ? m.output.data() : m.input.data();
  const ConstTensor in{in_data, in_count, call.dtype};
  const Tensor out{m.output.data(), out_count, call.dtype};
  const Tensor whole{m.output.data(), m.output.bytes() / element_bytes(call.dtype), call.dtype};
  switch (call.collective) {
    case Collective::all_reduce: return all_reduce_call(caller, in, out, o);
    case Collective::reduce_scatter:
      return reduce_scatter_call(caller, in, m.in_place ? whole : out, call.counts, m.in_place, o);
    case Collective::all_gather:
      return all_gather_call(caller, m.in_place ? ConstTensor(whole) : in, out, call.counts, m.in_place, o);
    case Collective::broadcast: return broadcast_call(caller, whole, call.root, o);
    case Collective::reduce: return reduce_call(caller, in, rank == call.root ? out : Tensor(), call.root, o);
    case Collective::gather:
      return gather_call(caller, in, rank == call.root ? out : Tensor(), call.root,
                         rank == call.root ? Counts(call.counts) : Counts(), o);
    case Collective::scatter:
      return scatter_call(caller, rank == call.root ? in : ConstTensor(), out, call.root,
                          rank == call.root ? Counts(call.counts) : Counts(), o);
    case Collective::all_to_all: return all_to_all_call(caller, in, out, m.send_counts, m.recv_counts, o);
    case Collective::barrier: return barrier_call(caller, o);
    default: break;
  }
  const bool sends = rank == call.root;
  return message_call(caller, sends ? Collective::send : Collective::recv, in, out, sends ? call.destination : call.root, o);
}

Mistake Program::mistake_of(PeerIndex process, size_t call) const {
  for (const auto& d : deviations) {
    if (d.process == process && d.call == call) return d.mistake;
  }
  return Mistake::none;
}

Program single_call(uint32_t processes, const Call& call) {
  Program program;
  SimGroup all{.number = 1, .members = std::vector<PeerIndex>(processes), .host_groups = {}};
  std::iota(all.members.begin(), all.members.end(), 0u);
  all.host_groups.resize(processes);
  std::iota(all.host_groups.begin(), all.host_groups.end(), 0u);
  program.groups.push_back(std::move(all));
  program.calls.push_back(call);
  program.order.assign(processes, {0});
  return program;
}

Program random_program(const ProgramRequest& q, Random& random) {
  auto program = single_call(q.processes, {});
  program.calls.clear();
  program.groups[0].host_groups.clear();
  for (auto extra = random.below(3); extra > 0; --extra)
    program.groups.push_back(random_subgroup(q.processes, static_cast<uint32_t>(100 + extra), random));
  for (auto& group : program.groups) random_host_groups(group, random);
  const bool numbered = random.chance(0.4);
  bool messages = false;
  for (auto left = 1 + random.below(q.calls_max); left > 0; --left) {
    program.calls.push_back(random_call(program, q, random));
    auto& call = program.calls.back();
    messages = messages || call.is_message();
    if (numbered && !call.is_message()) call.options.id = 1 + program.calls.size() * 1000 + random.below(1000);
  }
  for (PeerIndex process = 0; process < q.processes; ++process) {
    auto& order = program.order[process];
    order.clear();
    for (size_t i = 0; i < program.calls.size(); ++i) {
      const auto& call = program.calls[i];
      const auto rank = program.groups[call.group].rank_of(process);
      if (rank != UINT32_MAX && call.concerns(rank)) order.push_back(i);
    }
    // Calls with numbers may be made in any order. Messages must keep their order, so a program with messages keeps the order
    // of all its calls.
    for (size_t i = 0; numbered && !messages && i + 1 < order.size(); ++i)
      std::swap(order[i], order[i + random.below(order.size() - i)]);
  }
  program.think_max = random.chance(0.3) ? 0 : static_cast<Nanos>(random.below(500)) * microsecond;
  // A limit on calls in flight could cause a deadlock here: a rank may wait for a message, or for a numbered call that another
  // rank makes later. At the limit, the other rank might never make that call.
  if (!numbered && !messages && random.chance(0.7)) program.in_flight_max = 1 + random.below(3);
  return program;
}

Call with_mistake(const Call& call, Mistake mistake, uint32_t world) {
  auto wrong = call;
  switch (mistake) {
    case Mistake::none:
    case Mistake::missing: break;
    case Mistake::size: ++wrong.count; break;
    case Mistake::dtype: wrong.dtype = call.dtype == DType::i32 ? DType::u8 : DType::i32; break;
    case Mistake::op: wrong.options.op = call.options.op == ReduceOp::max ? ReduceOp::sum : ReduceOp::max; break;
    case Mistake::collective:
      wrong.collective = call.collective == Collective::barrier ? Collective::all_reduce : Collective::barrier;
      break;
    case Mistake::root: wrong.root = (call.root + 1) % world; break;
  }
  if (wrong.collective == Collective::barrier)
    wrong.count = 0, wrong.counts.clear(), wrong.options.schedule = ScheduleKind::automatic;
  if (wrong.collective != call.collective) wrong.options.schedule = ScheduleKind::automatic, wrong.options.codec.reset();
  if (mistake == Mistake::size && !wrong.counts.empty()) ++wrong.counts[0];
  return wrong;
}

// Returns whether the mistake makes this call different from the correct call.
static bool changes_call(const Call& call, Mistake mistake, uint32_t world) {
  const bool barrier = call.collective == Collective::barrier;
  switch (mistake) {
    case Mistake::none: return false;
    case Mistake::size:
    case Mistake::dtype: return !barrier;
    case Mistake::op: return call.reduces();
    case Mistake::collective: return !call.is_message();
    case Mistake::root: return call.is_rooted() && world > 1;
    case Mistake::missing: return true;
  }
  return false;
}

void make_wrong(Program& program, Random& random) {
  const auto process = static_cast<PeerIndex>(random.below(program.groups[0].world()));
  auto& order = program.order[process];
  if (order.empty()) return;
  if (random.chance(0.2) && order.size() > 1) {
    const auto at = random.below(order.size() - 1);
    for (const auto each : {order[at], order[at + 1]}) program.deviations.push_back({process, each, Mistake::none});
    return std::swap(order[at], order[at + 1]);
  }
  const auto at = order[random.below(order.size())];
  auto mistake = Mistake::none;
  while (!changes_call(program.calls[at], mistake, program.groups[program.calls[at].group].world()))
    mistake = static_cast<Mistake>(1 + random.below(6));
  program.deviations.push_back({process, at, mistake});
  if (mistake == Mistake::missing) std::erase(order, at);
}

}  // namespace unisono::sim
