// How an operation starts and ends. This covers memory, lanes, local copies, 16-bit values, and the release of all resources.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/concat.h"
#include "executor/block_balance.h"
#include "executor/operation.h"
#include "schedules/collective_facts.h"

namespace unisono {
namespace {

size_t total_elements(const OperationRequest& q, uint32_t world) {
  if (q.collective != Collective::reduce_scatter) return q.count;
  if (q.send_counts.empty()) return q.count * world;
  size_t total = 0;
  for (const auto c : q.send_counts) total += c;
  return total;
}

}  // namespace

void Operation::start(Port& port, Nanos now) {
  plan_ = setup_.plan;
  port_ = &port;
  started_ = now_ = now;
  ended_ = last_first_arrival_ = now;
  first_send_ = last_receive_ = 0;
  becomes_next_at_ = never;
  done_ = running_ = prepared_ = copied_local_ = failure_is_ours_ = widened_ = answered_ = inquiring_ = inquiry_due_ =
      lanes_begin_errors_ = disputed_ = description_due_ = false;
  status_ = {};
  counts_ = {};
  ranks_heard_ = 0;
  last_rank_ = UINT32_MAX;
  descriptor_ = describe(setup_.request, plan_->kind, setup_.slice_bytes, setup_.world);
  balance_ = setup_.request.collective == Collective::all_to_all && setup_.world > 1
                 ? balance_share(setup_.request, setup_.self, setup_.world)
                 : 0;
  share_ = balance_ << amount_bits;
  ready_.clear();
  items_.clear();
  slots_.clear();
  encoding_ = {};
  widen();
  prepare_memory();
  // A window must hold at least two slices. A grant is due only when half of the window is used, so a smaller window would
  // never open again.
  const auto senders = plan_->partners.size() - plan_->only_confirming;
  const auto share = setup_.limits.staging_bytes / std::max<size_t>(1, senders);
  setup_.limits.window_bytes = std::max<uint64_t>({setup_.limits.window_bytes, share, 2 * slice_elements_ * element_size_});
  make_lanes();
  if (plan_->relayed) begin_relay();
  prepared_ = true;
  if (lanes_left_ == 0) return finish({});
  for (uint32_t lane = 0; lane < lanes_.size() && (setup_.already_sent || setup_.already_confirmed); ++lane) {
    if (plan_->is_last(lanes_[lane].chunk)) continue;
    if (plan_->is_confirmation(lanes_[lane].chunk) ? setup_.already_confirmed : setup_.already_sent)
      count_as_sent(lane, plan_->stages[lanes_[lane].stage]);
  }
  for (const auto rank : plan_->partners) {
    const auto grant = flows_[rank].first_grant(setup_.limits);
    if (grant > 0) port_->grant(rank, grant);
  }
  uint32_t slices = 0;
  for (const auto index : plan_->order) slices = std::max(slices, slice_count(index));
  for (uint32_t slice = 0; slice < slices; ++slice) {
    for (const auto index : plan_->order) {
      if (slice < slice_count(index) && !plan_->answers_all(index)) make_ready(first_lane_[index] + slice);
    }
  }
  run(now);
  if (!done_) copy_local();
}

// A schedule that is not direct sends partial sums, so 16-bit values would be rounded on each hop. The operation therefore
// works on a copy in fp32, and rounds once at the end.
void Operation::widen() {
  auto& q = setup_.request;
  const bool small_float = q.dtype == DType::f16 || q.dtype == DType::bf16;
  widened_ = small_float && adds(q.collective) && !plan_->direct && setup_.world > 1;
  if (!widened_) return;
  const auto elements = total_elements(q, setup_.world);
  wide_.resize(elements * sizeof(float));
  kernels::convert(DType::f32, wide_.data(), q.dtype, q.input, elements);
}

// Returns the request with which the lanes work. Its values may be widened to fp32. Its input may be a copy, because blocks
// that arrive would overwrite the original.
static OperationRequest working_request(const OperationRequest& q, bool widened, std::vector<std::byte>& wide, uint32_t world) {
  auto w = q;
  if (widened) {
    w.dtype = DType::f32;
    w.input = w.output = wide.data();
    w.in_place_blocks = q.collective == Collective::reduce_scatter;
  } else if (q.collective == Collective::all_to_all && q.input == q.output && world > 1) {
    const auto bytes = q.count * world * element_bytes(q.dtype);
    wide.resize(bytes);
    if (bytes > 0) std::memcpy(wide.data(), q.input, bytes);
    w.input = wide.data();
  }
  return w;
}

// Prepares encode_error. If encoding is the first thing that happens to every element of the input, the lanes initialise it.
// Otherwise this function does.
void Operation::begin_errors() {
  auto& q = setup_.request;
  if (q.encode_error == nullptr) return;
  lanes_begin_errors_ =
      coded_ && !codecs_[0].is_plain() && plan_->direct && plan_->across_round == UINT32_MAX && setup_.world > 1;
  if (lanes_begin_errors_) return;
  const auto elements = total_elements(q, setup_.world);
  if (q.error_feedback) {
    if (q.input != q.output) wide_.resize(elements * sizeof(float));
    void* const sum = q.input == q.output ? q.output : wide_.data();
    const void* const sources[] = {q.input, q.encode_error};
    kernels::reduce({.sources = sources, .destination = sum, .count = elements});
    q.input = sum;
  }
  std::fill_n(q.encode_error, elements, 0.0f);
}

void Operation::prepare_memory() {
  element_size_ = element_bytes(widened_ ? DType::f32 : setup_.request.dtype);
  slice_elements_ = std::max<size_t>(1, setup_.slice_bytes / element_size_);
  choose_codecs();
  begin_errors();
  const auto request = working_request(setup_.request, widened_, wide_, setup_.world);
  chunk_memory_.clear();
  size_t scratch_bytes = 0;
  for (uint32_t i = 0; i < plan_->chunks.size(); ++i) {
    const auto& chunk = plan_->chunks[i];
    // The confirmation has no elements.
    chunk_memory_.push_back(plan_->is_confirmation(i) ? ChunkMemory{}
                                                      : chunk_memory_of(request, chunk.chunk, plan_->partition(unit_elements_),
                                                                        setup_.self, setup_.world));
    if (chunk.recv_count > 0 && chunk_memory_.back().output == nullptr)
      scratch_bytes += chunk_memory_.back().elements * element_size_;
  }
  if (plan_->relayed) {
    scratch_.resize(chunk_memory_[0].elements * element_size_ * setup_.world);
    chunk_memory_[0].output = scratch_.data();
  } else if (scratch_bytes > 0) {
    scratch_.resize(scratch_bytes);
    size_t at = 0;
    for (size_t i = 0; i < chunk_memory_.size(); ++i) {
      if (plan_->chunks[i].recv_count == 0 || chunk_memory_[i].output != nullptr) continue;
      chunk_memory_[i].output = scratch_.data() + at;
      at += chunk_memory_[i].elements * element_size_;
    }
  }
}

void Operation::make_lanes() {
  lanes_.clear();
  first_lane_.clear();
  flows_.assign(setup_.world, Flow{});
  size_t entries = 0;
  for (uint32_t i = 0; i < plan_->chunks.size(); ++i) {
    const auto& chunk = plan_->chunks[i];
    first_lane_.push_back(static_cast<uint32_t>(lanes_.size()));
    size_t left = chunk_memory_[i].elements;
    for (uint32_t slice = 0; slice == 0 || left > 0; ++slice) {
      const auto elements = std::min(left, slice_elements_);
      lanes_.push_back({.chunk = i,
                        .slice = slice,
                        .stage = chunk.stage_begin,
                        .arrivals = static_cast<uint32_t>(entries),
                        .elements = static_cast<uint32_t>(elements)});
      left -= elements;
      entries += chunk.recv_count;
    }
    const auto& first = lanes_[first_lane_.back()];
    const auto& last = lanes_.back();
    for (auto s = chunk.stage_begin; s < chunk.stage_end; ++s) {
      const auto bytes = last.slice * uint64_t{message_bytes(first, plan_->stages[s])} + message_bytes(last, plan_->stages[s]);
      for (const auto rank : plan_->sends(plan_->stages[s])) flows_[rank].send_total += bytes;
      for (const auto rank : plan_->receives(plan_->stages[s])) flows_[rank].recv_total += bytes;
    }
  }
  first_lane_.push_back(static_cast<uint32_t>(lanes_.size()));
  for (const auto rank : plan_->partners) flows_[rank].open(setup_.limits);
  arrivals_.reset(entries);
  messages_.assign(coded_ ? 2 * lanes_.size() : 0, {});
  lanes_left_ = lanes_.size();
  in_transit_ = {};
  oldest_ = 0;
}

// Starts the root's answer to all ranks, when all of them have been heard. Returns true if the lane is ready.
bool Operation::confirm_if_all_heard() {
  if (plan_->last_confirmation < 0 || ranks_heard_ + 1 < setup_.world) return false;
  const auto lane = first_lane_[static_cast<size_t>(plan_->last_confirmation)];
  if (lanes_[lane].entered || !plan_->answers_all(lanes_[lane].chunk)) return false;
  make_ready(lane);
  return lanes_[lane].ready;
}

// For the fast path: the messages of the stage to slot readers were sent before the lane enters the stage. This function counts
// them.
void Operation::count_as_sent(uint32_t index, const Stage& stage) {
  auto& lane = lanes_[index];
  lane.committed = true;
  for (const auto to : plan_->sends(stage)) {
    if (port_->slot_bytes(to) == 0) continue;
    count_send(flows_[to], lane, stage);
  }
}

void Operation::count_send(Flow& flow, const Lane& lane, const Stage& stage) {
  const auto bytes = message_bytes(lane, stage);
  flow.send_used += bytes;
  ++flow.sent_messages;
  counts_.sent_payload +=
      bytes > 0 && is_encoded(stage) && codec_of(stage).quantizes() ? bytes - quantized_header_bytes : bytes;
  counts_.sent_elements += lane.elements * stage.blocks;
  counts_.sent_bytes += bytes + sizeof(FrameHeader);
  if (counts_.sent_messages++ == 0) first_send_ = now_;
}

// Copies the blocks that a rank keeps for itself, because schedules do not contain them. The copy is made once, after this rank
// has sent its first messages.
void Operation::copy_local() {
  if (std::exchange(copied_local_, true)) return;
  const auto& q = setup_.request;
  const bool blocks = has_blocks(q.collective);
  if (!blocks && setup_.world > 1) return;
  const uint32_t chunk = q.collective == Collective::all_to_all ? setup_.self * setup_.world + setup_.self
                         : blocks                               ? setup_.self
                                                                : 0;
  if (plan_->find(chunk) >= 0) return;
  const auto memory = chunk_memory_of(q, chunk, {.chunks = blocks ? setup_.world : 1}, setup_.self, setup_.world);
  if (!memory.wanted || memory.input == nullptr || memory.output == nullptr || memory.input == memory.output) return;
  port_->copy_now(memory.output, memory.input, memory.elements * element_bytes(q.dtype));
}

void Operation::narrow() {
  if (!widened_) return;
  const auto& q = setup_.request;
  if (q.collective == Collective::reduce && setup_.self != q.root) return;
  const bool scatter = q.collective == Collective::reduce_scatter;
  const auto chunk = setup_.self;
  if (!scatter && coded_)
    return unisono::narrow(q.dtype, q.output, reinterpret_cast<const float*>(wide_.data()), q.count, setup_.codec.poison,
                           encoding_);
  if (!scatter) return kernels::convert(q.dtype, q.output, DType::f32, wide_.data(), q.count);
  auto wide = q;
  wide.dtype = DType::f32;
  wide.input = wide.output = wide_.data();
  wide.in_place_blocks = true;
  const auto from = chunk_memory_of(wide, chunk, {.chunks = setup_.world}, setup_.self, setup_.world);
  const auto to = chunk_memory_of(q, chunk, {.chunks = setup_.world}, setup_.self, setup_.world);
  kernels::convert(q.dtype, to.output, DType::f32, from.output, from.elements);
}

void Operation::finish(Status status) {
  if (done_) return;
  if (status.ok()) {
    narrow();
    copy_local();
  }
  status_ = std::move(status);
  done_ = true;
  ended_ = port_ == nullptr ? now_ : std::max(now_, port_->time_since(now_));
}

void Operation::fail_here(Status why) {
  if (done_) return;
  failure_is_ours_ = true;
  fail(std::move(why), now_);
}

void Operation::fail_and_notify(Status why, Nanos now) {
  now_ = now;
  fail_here(std::move(why));
}

void Operation::fail(Status why, Nanos now) {
  if (done_) return;
  now_ = now;
  release_all();
  finish(std::move(why));
}

void Operation::release_all() {
  for (auto& outgoing : slots_) port_->abandon(outgoing.slot);
  slots_.clear();
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    if (arrivals_.state(i) != ArrivalMap::State::held) continue;
    port_->release(arrivals_.piece(i));
    arrivals_.used(i);
  }
}

void Operation::cancelled() {
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    if (arrivals_.state(i) != ArrivalMap::State::receiving) continue;
    if (arrivals_.piece(i).staged) port_->release(arrivals_.piece(i));
    arrivals_.used(i);
  }
  for (uint32_t lane = 0; lane < messages_.size(); ++lane) drop_message(lane);
}

std::string Operation::label() const { return concat(name(setup_.request.collective), " ", setup_.number); }

Report Operation::report(Nanos now) const {
  auto report = counts_;
  report.operation = name(setup_.request.collective);
  report.number = setup_.number;
  report.schedule = plan_->chunks.empty()   ? "none"
                    : plan_->relayed        ? "one_shot_relayed"
                    : !plan_->fitted        ? name(plan_->kind)
                    : plan_->shares.empty() ? "ring_fitted"
                                            : "two_step_fitted";
  report.codec = setup_.codec;
  report.codec_note = setup_.codec_note;
  report.passes = coded_ ? passes() : 0;
  report.saturated = encoding_.saturated;
  report.nonfinite_groups = encoding_.nonfinite_groups;
  report.world_size = setup_.world;
  report.contributors = finished_ok() ? setup_.world : 0;
  const auto end = done_ ? ended_ : now;
  report.total_us = (end - started_) / microsecond;
  report.wait_us = (last_first_arrival_ - started_) / microsecond;
  report.transfer_us = std::max<int64_t>(0, report.total_us - report.wait_us - report.compute_us);
  report.last_rank = last_rank_ == UINT32_MAX ? -1 : static_cast<int32_t>(last_rank_);
  return report;
}

}  // namespace unisono
