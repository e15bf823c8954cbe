#include "group_call.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace unisono::testing {
namespace {

size_t total(const std::vector<size_t>& counts) { return std::accumulate(counts.begin(), counts.end(), size_t{0}); }

bool is_one_of(const std::string& word, std::initializer_list<const char*> words) {
  for (const auto* other : words) {
    if (word == other) return true;
  }
  return false;
}

}  // namespace

size_t uneven_count(size_t count, uint32_t rank) { return rank % 3 == 1 ? 0 : count + rank * 3; }

Call::Call(Group group, CallPlan plan)
    : group_(std::move(group)), plan_(std::move(plan)), rank_(group_.rank()), world_(group_.world_size()) {
  prepare();
}

Call::~Call() {
  if (work_) (void)work_.wait();
}

// Allocates the buffers and fills the input. Only notes which result is expected, and leaves its computation to the comparison.
// That keeps the process small. When a process is killed, the kernel frees all of its memory first, so a large process would
// die later.
void Call::prepare() {
  const auto size = element_bytes(plan_.dtype);
  const auto make = [&](size_t elements) { return std::make_unique<Buffer>(elements * size, plan_.offset); };
  if (is_one_of(plan_.collective, {"all_reduce", "reduce", "broadcast", "send", "recv", "barrier"})) {
    input_ = make(plan_.count);
    output_ = make(plan_.count);
    const bool rooted = plan_.collective == "broadcast" || plan_.collective == "send" || plan_.collective == "recv";
    const uint32_t source = plan_.collective == "send" ? rank_ : rooted ? plan_.root : rank_;
    const bool is_source = plan_.collective != "recv" && (plan_.collective != "broadcast" || rank_ == plan_.root);
    if (is_source) fill(plan_.dtype, input_->data(), plan_.count, source, plan_.seed);
    has_result_ = !is_one_of(plan_.collective, {"send", "barrier"}) && (plan_.collective != "reduce" || rank_ == plan_.root);
    if (has_result_ && rooted) pieces_ = {{source, plan_.count}};
    else if (has_result_) reduced_count_ = plan_.count;
  } else {
    prepare_blocks();
  }
  input_hash_ = hash_of(input_->data(), input_->bytes());
  if (!plan_.feedback) return;
  left_over_.resize(input_->bytes() / sizeof(float));
  plan_.options.encode_error = left_over_.data();
  plan_.options.error_feedback = true;
}

void Call::prepare_blocks() {
  const auto size = element_bytes(plan_.dtype);
  std::vector<size_t> blocks;
  for (uint32_t rank = 0; rank < world_; ++rank) blocks.push_back(plan_.uneven ? uneven_count(plan_.count, rank) : plan_.count);
  const auto begin = [&](uint32_t rank) { return std::accumulate(blocks.begin(), blocks.begin() + rank, size_t{0}); };
  const auto make = [&](size_t elements) { return std::make_unique<Buffer>(elements * size, plan_.offset); };
  if (plan_.uneven) send_counts_ = recv_counts_ = blocks;
  const auto& c = plan_.collective;
  if (c == "reduce_scatter") {
    input_ = make(total(blocks));
    output_ = make(blocks[rank_]);
    fill(plan_.dtype, input_->data(), total(blocks), rank_, plan_.seed);
    reduced_begin_ = begin(rank_);
    reduced_count_ = blocks[rank_];
    if (plan_.in_place) result_at_ = begin(rank_) * size;
  } else if (c == "all_gather" || c == "gather") {
    input_ = make(plan_.in_place ? total(blocks) : blocks[rank_]);
    has_result_ = c == "all_gather" || rank_ == plan_.root;
    output_ = make(has_result_ ? total(blocks) : 0);
    fill(plan_.dtype, input_->data() + (plan_.in_place ? begin(rank_) * size : 0), blocks[rank_], rank_, plan_.seed);
    for (uint32_t rank = 0; rank < world_; ++rank) pieces_.emplace_back(rank, blocks[rank]);
  } else if (c == "scatter") {
    input_ = make(rank_ == plan_.root ? total(blocks) : 0);
    output_ = make(blocks[rank_]);
    for (uint32_t rank = 0; rank < world_ && rank_ == plan_.root; ++rank) {
      fill(plan_.dtype, input_->data() + begin(rank) * size, blocks[rank], pair_source(plan_.root, rank), plan_.seed);
    }
    pieces_ = {{pair_source(plan_.root, rank_), blocks[rank_]}};
  } else {
    // all_to_all: the block that `from` sends to `to` has blocks[to] elements. If blocks are uneven, it has `from` more.
    const auto pair_count = [&](uint32_t from, uint32_t to) { return plan_.uneven ? blocks[to] + from : blocks[to]; };
    std::vector<size_t> sends, receives;
    for (uint32_t rank = 0; rank < world_; ++rank) {
      sends.push_back(pair_count(rank_, rank));
      receives.push_back(pair_count(rank, rank_) + (rank + 1 == plan_.more_from ? 1 : 0));
      pieces_.emplace_back(pair_source(rank, rank_), receives.back());
    }
    input_ = make(total(sends));
    output_ = make(total(receives));
    auto* at = input_->data();
    for (uint32_t rank = 0; rank < world_; ++rank) {
      fill(plan_.dtype, at, sends[rank], pair_source(rank_, rank), plan_.seed);
      at += sends[rank] * size;
    }
    if (plan_.uneven || plan_.more_from > 0) send_counts_ = sends, recv_counts_ = receives;
  }
}

std::vector<std::byte> Call::wanted() const {
  const auto size = element_bytes(plan_.dtype);
  if (pieces_.empty()) {
    auto all = reduced(plan_.dtype, plan_.options.op, reduced_begin_ + reduced_count_, world_, plan_.seed);
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(reduced_begin_ * size));
    return all;
  }
  std::vector<std::byte> all;
  for (const auto& [source, count] : pieces_) {
    const auto at = all.size();
    all.resize(at + count * size);
    fill(plan_.dtype, all.data() + at, count, source, plan_.seed);
  }
  return all;
}

void Call::start() {
  const auto& c = plan_.collective;
  const auto& o = plan_.options;
  const Counts sends(send_counts_), receives(recv_counts_);
  const ConstTensor input = in(*input_);
  if (c == "all_reduce") work_ = plan_.in_place ? group_.all_reduce_async(out(), o) : group_.all_reduce_async(input, out(), o);
  else if (c == "reduce") work_ = group_.reduce_async(input, out(), plan_.root, o);
  else if (c == "reduce_scatter")
    work_ = plan_.in_place ? group_.reduce_scatter_async(out(), sends, o) : group_.reduce_scatter_async(input, out(), sends, o);
  else if (c == "all_gather")
    work_ = plan_.in_place ? group_.all_gather_async(out(), receives, o) : group_.all_gather_async(input, out(), receives, o);
  else if (c == "gather") work_ = group_.gather_async(input, out(), plan_.root, rank_ == plan_.root ? receives : Counts(), o);
  else if (c == "scatter") work_ = group_.scatter_async(input, out(), plan_.root, rank_ == plan_.root ? sends : Counts(), o);
  else if (c == "all_to_all") work_ = group_.all_to_all_async(input, out(), sends, receives, o);
  else if (c == "send") work_ = group_.send_async(input, plan_.root, plan_.tag, o);
  else if (c == "recv") work_ = group_.recv_async(out(), plan_.root, plan_.tag, o);
  else if (c == "broadcast") work_ = group_.broadcast_async(in(*input_), plan_.root, o);
  else work_ = group_.barrier_async(o);
}

std::string Call::check() const {
  if (!input_->guards_hold() || !output_->guards_hold()) return "bytes outside the tensor were written";
  if (!result_in_input() && hash_of(input_->data(), input_->bytes()) != input_hash_) return "the input was written";
  if (plan_.feedback && std::all_of(left_over_.begin(), left_over_.end(), [](float each) { return each == 0; }))
    return "encoding left nothing over";
  if (!has_result_) return {};
  const auto all = wanted();
  if (result_at_ + all.size() > result().bytes()) return "the result does not fit: a mistake of the test";
  if (plan_.tolerance > 0)
    return difference_above(plan_.tolerance, result().data() + result_at_, all.data(), all.size() / sizeof(float));
  return difference(plan_.dtype, result().data() + result_at_, all.data(), all.size() / element_bytes(plan_.dtype));
}

}  // namespace unisono::testing
