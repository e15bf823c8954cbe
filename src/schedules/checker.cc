#include "schedules/checker.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "base/concat.h"
#include "schedules/collective_facts.h"

namespace unisono {
namespace {

constexpr uint32_t round_max = 65'535;  // frames store the round in 16 bits
constexpr uint32_t none = 0xFFFF'FFFF;

// One step of one rank for one chunk.
struct Item {
  uint32_t round;
  Rank rank;
  Rank peer;
  Op op;
};

// A send that a rank has made for the current chunk. The sends of each rank form a linked list, in which the newest send is
// first.
struct Sent {
  Rank to;
  uint32_t round;
  uint32_t next;
};

class Checker {
 public:
  explicit Checker(const CheckRequest& request)
      : collective_(request.collective),
        root_(request.root),
        schedules_(request.schedules),
        world_(static_cast<uint32_t>(request.schedules.size())),
        words_((world_ + 63) / 64) {}

  Result<Proof> run();

 private:
  using Word = uint64_t;
  using Items = std::span<const Item>;

  Status check_shape() const;
  Status check_steps(Rank rank);
  void distribute();
  Status check_chunk(uint32_t chunk, Items items);
  Status send_all(Items group);
  Status receive_all(Items group);
  Status receive(const Item& item, bool first);
  Status merge(const Item& item);
  void check_overwrite(const Item& item);
  Status commit(Items group);
  Status complete(Rank rank, uint32_t round);
  Status finish_chunk();
  Status check_claims() const;
  Status fail(Rank rank, uint32_t round, const std::string& what) const;
  Status fail(const std::string& what) const;

  bool reduces() const;
  Rank source() const;  // the rank that has the current chunk at first, in collectives that only copy
  bool starts_with(Rank rank) const;
  bool must_end_with(Rank rank) const;
  bool is_barrier() const { return collective_ == Collective::barrier; }
  void prepare(Rank rank);
  Word* value(Rank rank) { return &values_[size_t{rank} * words_]; }
  Word* next_value(Rank rank) { return &next_values_[size_t{rank} * words_]; }
  Word* sources(Rank rank) { return &sources_[size_t{rank} * words_]; }
  uint32_t* clock(Rank rank) { return &clocks_[size_t{rank} * world_]; }
  uint32_t* next_clock(Rank rank) { return &next_clocks_[size_t{rank} * world_]; }
  bool empty(const Word* set) const {
    return std::all_of(set, set + words_, [](Word w) { return w == 0; });
  }
  bool equal(const Word* a, const Word* b) const { return std::equal(a, a + words_, b); }
  bool contains(const Word* outer, const Word* inner) const;
  bool overlap(const Word* a, const Word* b) const;

  const Collective collective_;
  const Rank root_;
  const std::span<const Schedule> schedules_;
  const uint32_t world_;
  const uint32_t words_;

  std::vector<Item> items_;  // sorted by chunk, then round, then rank
  // items_[item_begin_[c]] is the first item of chunk c. The last entry is the number of items.
  std::vector<uint64_t> item_begin_;

  // The state of each rank for the current chunk. A rank's state is valid only if prepared_for_[rank] is the number of this
  // chunk. The vectors next_… hold the state after the current round.
  uint32_t chunk_ = 0;
  std::vector<uint32_t> prepared_for_;
  std::vector<Word> values_, next_values_;
  std::vector<Word> full_;
  std::vector<Word> sources_;  // by rank: the ranks whose values this rank adds in the current round, including itself
  // Vector clocks. If clocks_[rank][other] is n, the value that `rank` holds depends on rounds 0 to n - 1 of rank `other`.
  std::vector<uint32_t> clocks_, next_clocks_;
  std::vector<uint32_t> last_sent_;  // by rank: index in sent_ of the newest send
  std::vector<Sent> sent_;
  std::vector<uint32_t> reduced_in_;  // by rank: the round of its last reduction, or `none`

  std::vector<uint64_t> pending_;  // by sender and receiver: group_ at the time when the message was sent; 0 if it was received
  uint64_t group_ = 0;             // number of the current group (the items of one chunk and one round)
  uint32_t completers_ = 0;
  uint32_t completed_in_ = none;  // the round in which a rank first completed the chunk
  std::vector<Word> completed_from_;
  Proof proof_;
};

bool Checker::contains(const Word* outer, const Word* inner) const {
  for (uint32_t i = 0; i < words_; ++i)
    if (inner[i] & ~outer[i]) return false;
  return true;
}

bool Checker::overlap(const Word* a, const Word* b) const {
  for (uint32_t i = 0; i < words_; ++i)
    if (a[i] & b[i]) return true;
  return false;
}

Status Checker::fail(const std::string& what) const {
  return {Code::internal, concat(name(schedules_[0].kind), " ", name(collective_), " of ", world_, " ranks: ", what)};
}

Status Checker::fail(Rank rank, uint32_t round, const std::string& what) const {
  return fail(concat("rank ", rank, ", round ", round, ", chunk ", chunk_, ": ", what));
}

bool Checker::reduces() const { return adds(collective_) || is_barrier(); }

Rank Checker::source() const {
  switch (collective_) {
    case Collective::all_gather:
    case Collective::gather: return chunk_;
    case Collective::all_to_all: return chunk_ / world_;
    default: return root_;
  }
}

bool Checker::starts_with(Rank rank) const { return reduces() || rank == source(); }

bool Checker::must_end_with(Rank rank) const {
  switch (collective_) {
    case Collective::reduce_scatter:
    case Collective::scatter: return rank == chunk_;
    case Collective::reduce:
    case Collective::gather: return rank == root_;
    case Collective::all_to_all: return rank == chunk_ % world_;
    default: return true;
  }
}

Status Checker::check_shape() const {
  if (root_ >= world_) return fail(concat("root ", root_, " is not a rank"));
  if (collective_ == Collective::send || collective_ == Collective::recv) return fail("has no schedule to check");
  const auto& first = schedules_[0];
  for (Rank rank = 1; rank < world_; ++rank) {
    const auto& other = schedules_[rank];
    if (other.kind != first.kind || other.chunk_count != first.chunk_count || other.direct != first.direct ||
        other.every_rank_completes != first.every_rank_completes)
      return fail(concat("rank ", rank, " and rank 0 differ in kind, chunk count or claims"));
  }
  const uint32_t expected = collective_ == Collective::all_to_all ? world_ * world_
                            : has_blocks(collective_)             ? world_
                                                                  : first.chunk_count;
  if (first.chunk_count == 0 || first.chunk_count != expected)
    return fail(concat(first.chunk_count, " chunks instead of ", std::max(expected, 1u)));
  return {};
}

Status Checker::check_steps(Rank rank) {
  uint32_t round = 0;
  for (const auto& step : schedules_[rank].steps) {
    chunk_ = step.chunks.begin;
    if (step.round > round_max) return fail(rank, step.round, "the round number does not fit 16 bits");
    if (step.round < round) return fail(rank, step.round, concat("comes after a step of round ", round));
    round = step.round;
    if (step.op != Op::send && step.op != Op::recv_reduce && step.op != Op::recv_copy)
      return fail(rank, round, "unknown operation");
    if (step.peer >= world_ || step.peer == rank) return fail(rank, round, concat("peer ", step.peer, " is not another rank"));
    if (step.chunks.begin >= step.chunks.end || step.chunks.end > schedules_[rank].chunk_count)
      return fail(rank, round, concat("chunk range ends at ", step.chunks.end, ", chunk count ", schedules_[rank].chunk_count));
    for (auto chunk = step.chunks.begin; chunk < step.chunks.end; ++chunk) ++item_begin_[chunk + 1];
    proof_.rounds = std::max(proof_.rounds, round + 1);
  }
  return {};
}

// Sorts the steps into items_. The function visits the rounds in order, and all ranks in each round. The steps of a rank are
// already ordered by round, so each chunk gets its items in the right order without a sort.
void Checker::distribute() {
  for (size_t chunk = 1; chunk < item_begin_.size(); ++chunk) item_begin_[chunk] += item_begin_[chunk - 1];
  items_.resize(item_begin_.back());
  std::vector<uint64_t> end(item_begin_.begin(), item_begin_.end() - 1);
  std::vector<size_t> at(world_, 0);
  for (uint32_t round = 0; round < proof_.rounds; ++round) {
    for (Rank rank = 0; rank < world_; ++rank) {
      const auto& steps = schedules_[rank].steps;
      for (; at[rank] < steps.size() && steps[at[rank]].round == round; ++at[rank]) {
        const auto& step = steps[at[rank]];
        for (auto chunk = step.chunks.begin; chunk < step.chunks.end; ++chunk)
          items_[end[chunk]++] = {round, rank, step.peer, step.op};
      }
    }
  }
}

void Checker::prepare(Rank rank) {
  if (prepared_for_[rank] == chunk_) return;
  prepared_for_[rank] = chunk_;
  std::fill_n(value(rank), words_, Word{0});
  if (starts_with(rank)) value(rank)[rank / 64] |= Word{1} << (rank % 64);
  std::fill_n(clock(rank), world_, 0u);
  last_sent_[rank] = none;
  reduced_in_[rank] = none;
}

Status Checker::send_all(Items group) {
  uint64_t sends = 0;
  uint64_t receives = 0;
  for (const auto& item : group) {
    prepare(item.rank);
    prepare(item.peer);
    if (item.op != Op::send) {
      ++receives;
      continue;
    }
    ++sends;
    if (empty(value(item.rank)))
      return fail(item.rank, item.round, concat("sends a chunk that it does not have to rank ", item.peer));
    auto& pending = pending_[size_t{item.rank} * world_ + item.peer];
    if (pending == group_) return fail(item.rank, item.round, concat("sends twice to rank ", item.peer));
    pending = group_;
    sent_.push_back({item.peer, item.round, last_sent_[item.rank]});
    last_sent_[item.rank] = static_cast<uint32_t>(sent_.size() - 1);
  }
  proof_.messages += sends;
  if (sends <= receives) return {};  // if a receive has no send, receive() finds it
  for (const auto& item : group) {
    if (item.op != Op::send) continue;
    const bool received = std::any_of(group.begin(), group.end(), [&](const Item& other) {
      return other.op != Op::send && other.rank == item.peer && other.peer == item.rank;
    });
    if (!received) return fail(item.rank, item.round, concat("its send to rank ", item.peer, " has no receive"));
  }
  return fail(group[0].rank, group[0].round, "more sends than receives");
}

// Processes the receives of one chunk and one round. In `group`, the steps of each rank are adjacent.
Status Checker::receive_all(Items group) {
  const Item* before = nullptr;  // the previous step, if it belongs to the same rank
  for (const auto& item : group) {
    if (before != nullptr && before->rank != item.rank) before = nullptr;
    const bool follows_receive = before != nullptr && before->op != Op::send;
    const bool follows_send = before != nullptr && before->op == Op::send;
    if (item.op == Op::send) {
      if (follows_receive) return fail(item.rank, item.round, "a send comes after a receive");
    } else {
      if (follows_send) proof_.same_round_safe = false;
      if (follows_receive && (before->op == Op::recv_copy || item.op == Op::recv_copy))
        return fail(item.rank, item.round, "a copy and another receive in one round: their order would matter");
      if (auto status = receive(item, !follows_receive); !status.ok()) return status;
    }
    before = &item;
  }
  return {};
}

Status Checker::receive(const Item& item, bool first) {
  auto& pending = pending_[size_t{item.peer} * world_ + item.rank];
  if (pending != group_) return fail(item.rank, item.round, concat("waits for a send that rank ", item.peer, " does not make"));
  pending = 0;  // now a second receive of the message would fail
  if (first) {
    std::copy_n(value(item.rank), words_, next_value(item.rank));
    std::copy_n(clock(item.rank), world_, next_clock(item.rank));
    std::fill_n(sources(item.rank), words_, Word{0});
    sources(item.rank)[item.rank / 64] |= Word{1} << (item.rank % 64);
  }
  if (auto status = merge(item); !status.ok()) return status;
  if (!is_barrier()) {
    check_overwrite(item);
    const auto* theirs = clock(item.peer);
    auto* ours = next_clock(item.rank);
    for (uint32_t i = 0; i < world_; ++i) ours[i] = std::max(ours[i], theirs[i]);
  }
  return {};
}

Status Checker::merge(const Item& item) {
  const auto* incoming = value(item.peer);
  auto* own = next_value(item.rank);
  const auto refuse = [&](const char* what) { return fail(item.rank, item.round, concat(what, " from rank ", item.peer)); };
  if (item.op == Op::recv_copy) {
    if (equal(incoming, own)) return refuse("copies a value that it already has");
    if (equal(own, full_.data())) return refuse("overwrites its finished chunk with an unfinished one");
    if (!contains(incoming, own)) return refuse("discards contributions by copying the value");
    std::copy_n(incoming, words_, own);
    return {};
  }
  if (empty(own)) return refuse("has no value to which it could add the value");
  if (!is_barrier() && overlap(incoming, own)) return refuse("counts contributions twice with the value");
  for (uint32_t i = 0; i < words_; ++i) own[i] |= incoming[i];
  sources(item.rank)[item.peer / 64] |= Word{1} << (item.peer % 64);

  uint32_t contributions = 0;
  for (uint32_t i = 0; i < words_; ++i) contributions += static_cast<uint32_t>(std::popcount(incoming[i]));
  if (contributions != 1 || !(incoming[item.peer / 64] >> (item.peer % 64) & 1)) proof_.direct = false;
  auto& reduced_in = reduced_in_[item.rank];
  if (reduced_in != none && reduced_in != item.round) proof_.direct = false;
  reduced_in = item.round;
  return {};
}

// Checks that a receive overwrites the chunk only if this rank's earlier sends of the chunk are complete. A send to rank D in
// round k is known to be complete if D has finished round k. Therefore the vector clock of this rank, or of the sender of the
// message, must include round k of D.
void Checker::check_overwrite(const Item& item) {
  if (!proof_.overwrite_safe) return;
  for (auto i = last_sent_[item.rank]; i != none; i = sent_[i].next) {
    if (sent_[i].round == item.round) continue;
    const auto known = std::max(clock(item.peer)[sent_[i].to], clock(item.rank)[sent_[i].to]);
    if (known <= sent_[i].round) proof_.overwrite_safe = false;
  }
}

Status Checker::commit(Items group) {
  Rank last = none;
  for (const auto& item : group) {
    if (item.op == Op::send || item.rank == last) continue;
    last = item.rank;
    const bool was_full = equal(value(item.rank), full_.data());
    std::copy_n(next_value(item.rank), words_, value(item.rank));
    std::copy_n(next_clock(item.rank), world_, clock(item.rank));
    clock(item.rank)[item.rank] = item.round + 1;
    if (item.op != Op::recv_reduce || was_full || !equal(value(item.rank), full_.data())) continue;
    if (auto status = complete(item.rank, item.round); !status.ok()) return status;
  }
  return {};
}

// Records that a rank completes the chunk, which means that its value now contains all contributions. All ranks must complete
// the chunk in the same round, by adding the values of the same ranks. A send always carries the value that its rank had before
// the round. Therefore ranks that complete the chunk in this way add the same values.
Status Checker::complete(Rank rank, uint32_t round) {
  if (++completers_ == 1) {
    completed_in_ = round;
    std::copy_n(sources(rank), words_, completed_from_.data());
    return {};
  }
  proof_.every_rank_completes = true;
  if (is_barrier()) return {};
  if (round != completed_in_)
    return fail(rank, round, concat("completes the chunk, which was completed in round ", completed_in_));
  if (!equal(sources(rank), completed_from_.data()))
    return fail(rank, round, "completes the chunk from other contributions than another rank");
  return {};
}

Status Checker::finish_chunk() {
  for (Rank rank = 0; rank < world_; ++rank) {
    if (!must_end_with(rank)) continue;
    prepare(rank);
    if (equal(value(rank), full_.data())) continue;
    Rank missing = 0;
    const auto holds = [&](Rank r) { return (value(rank)[r / 64] >> (r % 64) & 1) || !(full_[r / 64] >> (r % 64) & 1); };
    while (holds(missing)) ++missing;
    return fail(rank, proof_.rounds, concat("ends without the contribution of rank ", missing));
  }
  if (reduces() && world_ > 1 && completers_ == 0) return fail(concat("chunk ", chunk_, " is not completed by any rank"));
  return {};
}

Status Checker::check_chunk(uint32_t chunk, Items items) {
  chunk_ = chunk;
  completers_ = 0;
  sent_.clear();
  std::fill(full_.begin(), full_.end(), Word{0});
  for (Rank rank = 0; rank < world_; ++rank)
    if (starts_with(rank)) full_[rank / 64] |= Word{1} << (rank % 64);
  while (!items.empty()) {
    size_t count = 1;
    while (count < items.size() && items[count].round == items[0].round) ++count;
    const auto group = items.first(count);
    ++group_;
    if (auto status = send_all(group); !status.ok()) return status;
    if (auto status = receive_all(group); !status.ok()) return status;
    if (auto status = commit(group); !status.ok()) return status;
    items = items.subspan(count);
  }
  return finish_chunk();
}

Status Checker::check_claims() const {
  const auto& first = schedules_[0];
  const auto differ = [](const char* claim, bool claimed) {
    return std::string("claims ") + claim + " = " + (claimed ? "true" : "false") + ", which does not hold";
  };
  if (first.direct != proof_.direct) return fail(differ("direct", first.direct));
  if (first.every_rank_completes != proof_.every_rank_completes)
    return fail(differ("every_rank_completes", first.every_rank_completes));
  return {};
}

Result<Proof> Checker::run() {
  if (auto status = check_shape(); !status.ok()) return status;
  item_begin_.assign(size_t{schedules_[0].chunk_count} + 1, 0);
  for (Rank rank = 0; rank < world_; ++rank)
    if (auto status = check_steps(rank); !status.ok()) return status;
  distribute();

  const auto set_words = size_t{world_} * words_;
  const auto pairs = size_t{world_} * world_;
  prepared_for_.assign(world_, none);
  values_.resize(set_words);
  next_values_.resize(set_words);
  sources_.resize(set_words);
  full_.resize(words_);
  completed_from_.resize(words_);
  clocks_.resize(pairs);
  next_clocks_.resize(pairs);
  pending_.assign(pairs, 0);
  last_sent_.resize(world_);
  reduced_in_.resize(world_);
  for (uint32_t chunk = 0; chunk < schedules_[0].chunk_count; ++chunk) {
    const Items items(items_.data() + item_begin_[chunk], item_begin_[chunk + 1] - item_begin_[chunk]);
    if (auto status = check_chunk(chunk, items); !status.ok()) return status;
  }
  if (auto status = check_claims(); !status.ok()) return status;
  return proof_;
}

}  // namespace

Result<Proof> check_schedules(const CheckRequest& request) {
  if (request.schedules.empty()) return Status(Code::internal, "no schedules to check");
  if (request.schedules.size() > checker_world_max)
    return Status(Code::unsupported,
                  concat("the checker proves worlds up to ", checker_world_max, ", not ", request.schedules.size()));
  return Checker(request).run();
}

}  // namespace unisono
