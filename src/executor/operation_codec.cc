// Encoded messages: how the value of a lane is encoded, kept, passed on and added.
//
// The message of a lane is encoded once, when the first send needs it. It is kept until the value of the lane changes or the
// lane finishes. If this rank also adds the value to a sum, it adds the encoded value, so that all ranks add the same values. A
// message that arrived encoded is passed on unchanged. If only readers of one slot get a message, it is encoded in this slot,
// and is not kept.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/concat.h"
#include "executor/operation.h"

namespace unisono {

void Operation::choose_codecs() {
  const auto& q = setup_.request;
  const DType working = widened_ ? DType::f32 : q.dtype;
  const auto& codec = setup_.codec;
  const StepCodec* const steps[] = {&codec.reduce, &codec.across, &codec.gather};
  size_t unit = 0;
  coded_ = !codec.is_plain();
  for (size_t i = 0; i < codecs_.size() && coded_; ++i) {
    codecs_[i] = wire_codec(*steps[i], q.dtype, working, codec.poison);
    if (i != static_cast<size_t>(MessageStep::across) || plan_->across_round != UINT32_MAX)
      unit = std::max(unit, codecs_[i].unit());
  }
  unit_elements_ = coded_ ? std::max<size_t>(32, unit) : 0;
  if (coded_) slice_elements_ = std::max(slice_elements_ / unit_elements_, size_t{1}) * unit_elements_;
}

// Returns how many times an element is encoded between the input and the result.
uint32_t Operation::passes() const {
  uint32_t passes = 0;
  for (const auto step : {MessageStep::reduce, MessageStep::across, MessageStep::gather}) {
    const bool used = step == MessageStep::reduce   ? plan_->gather_round > 0
                      : step == MessageStep::across ? plan_->across_round != UINT32_MAX
                                                    : plan_->has_gather();
    passes += used && !codecs_[static_cast<size_t>(step)].is_plain();
  }
  return passes;
}

// Returns where this rank stores the encoding error of the lane. Returns null if this rank does not store it.
float* Operation::error_of(const Lane& lane) const {
  const auto& q = setup_.request;
  const auto* const input = chunk_memory_[lane.chunk].input;
  if (q.encode_error == nullptr || input == nullptr) return nullptr;
  return q.encode_error + (input - static_cast<const std::byte*>(q.input) + static_cast<std::ptrdiff_t>(lane_offset(lane))) /
                              static_cast<std::ptrdiff_t>(sizeof(float));
}

// Says how to store the next part of the lane's error. The first part overwrites the old error, and later parts are added to
// it. Call it each time before a part is stored.
ErrorUse Operation::begin_error(Lane& lane) const {
  if (!lanes_begin_errors_ || std::exchange(lane.has_error, true)) return ErrorUse::added;
  return setup_.request.error_feedback ? ErrorUse::carried : ErrorUse::set;
}

// In a hierarchical schedule, a rank may be alone on its host. Its own value then serves as the sum of its host group. Before
// this value is encoded, it passes through the codec that larger host groups use internally.
static bool is_alone(MessageStep step, bool has_output, const WireCodec& inside) {
  return step == MessageStep::across && !has_output && !inside.is_plain();
}

void Operation::encode(uint32_t index, const Stage& stage, std::byte* message) {
  auto& lane = lanes_[index];
  const bool all_alike = setup_.request.collective == Collective::all_gather;
  const auto step = plan_->step_of(stage.round);
  port_->encode({.codec = codec_of(stage),
                 .dtype = widened_ ? DType::f32 : setup_.request.dtype,
                 .elements = value(lane),
                 .count = lane.elements,
                 .message = message,
                 .before = is_alone(step, lane.has_output, codecs_[0]) ? &codecs_[0] : nullptr,
                 .decoded = all_alike ? output(lane) : nullptr,
                 .error = error_of(lane),
                 .use = begin_error(lane)},
                encoding_);
  lane.has_output |= all_alike;
}

const std::byte* Operation::message_of(uint32_t index, const Stage& stage) {
  const auto& lane = lanes_[index];
  if (!is_encoded(stage) || lane.elements == 0) return value(lane);
  auto& message = messages_[index];
  if (message.data == nullptr) {
    const auto bytes = message_bytes(lane, stage);
    auto* const memory = port_->stage(bytes);
    message = {.data = memory, .bytes = bytes, .staged = true};
    encode(index, stage, memory);
  }
  return message.data;
}

// Keeps the message. If it is a zero-copy view, it is copied, so that its memory can be returned to the transport.
void Operation::keep_message(uint32_t index, const Piece& piece) {
  drop_message(index);
  messages_[index] = piece.handle != 0 ? copied(piece) : piece;
}

void Operation::drop_message(uint32_t index) {
  if (!coded_ || messages_[index].data == nullptr) return;
  port_->release(messages_[index]);
  messages_[index] = {};
}

// Returns true if the lane sends in a stage that is at least `stages_ahead` stages after the current one.
bool Operation::sends_later(const Lane& lane, uint32_t stages_ahead) const {
  for (auto s = lane.stage + stages_ahead; s < plan_->chunks[lane.chunk].stage_end; ++s) {
    if (!plan_->sends(plan_->stages[s]).empty()) return true;
  }
  return false;
}

bool Operation::decode_lane(uint32_t index) {
  auto& lane = lanes_[index];
  const auto& stage = plan_->stages[lane.stage];
  const auto& piece = arrivals_.piece(lane.arrivals + stage.recv_before);
  drop_message(index);
  lane.combined = true;
  if (lane.elements > 0) {
    const DecodeTask task{.codec = codec_of(stage),
                          .message = piece.data,
                          .dtype = widened_ ? DType::f32 : setup_.request.dtype,
                          .elements = output(lane),
                          .count = lane.elements};
    lane.computing = !port_->decode(task, encoding_, index);
    if (lane.computing) return false;
  }
  after_combine(index);
  return true;
}

// Does what reduce_lane() does, but for encoded messages or an encoded result.
bool Operation::fold_lane(uint32_t index, bool completes) {
  auto& lane = lanes_[index];
  const auto& q = setup_.request;
  const auto& stage = plan_->stages[lane.stage];
  const auto ranks = plan_->receives(stage);
  const auto sends = plan_->sends(stage);
  // If this rank sent its encoded value in this stage, the encoded value is added to the sum. Otherwise `own` is null, and
  // fold() encodes the exact value.
  const auto sent = index + static_cast<uint32_t>(lanes_.size());
  if (!sends.empty() && is_encoded(stage)) {
    UNISONO_CHECK(messages_[index].data != nullptr);
    std::swap(messages_[index], messages_[sent]);
  }
  drop_message(index);
  const auto* const own = messages_[sent].data;
  sources_.clear();
  bool own_added = value(lane) == nullptr;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!own_added && ranks[i] > setup_.self) sources_.push_back(own), own_added = true;
    sources_.push_back(arrivals_.piece(lane.arrivals + stage.recv_before + i).data);
  }
  if (!own_added) sources_.push_back(own);
  lane.combined = true;
  const bool has_result = completes && plan_->has_gather();
  FoldTask task{.from = codec_of(stage),
                .messages = sources_,
                .own = value(lane),
                .own_before = is_encoded(stage) && is_alone(plan_->step_of(stage.round), lane.has_output, codecs_[0])
                                  ? &codecs_[0]
                                  : nullptr,
                .own_exact = setup_.codec.own_exact && plan_->direct && sends.empty(),
                .dtype = widened_ ? DType::f32 : q.dtype,
                .count = lane.elements,
                .divisor = completes && q.op == ReduceOp::avg ? setup_.world : 1,
                .to = has_result ? &codecs_[static_cast<size_t>(MessageStep::gather)] : nullptr,
                .output = output(lane),
                .error = error_of(lane),
                .use = begin_error(lane),
                // Several ranks may compute and encode the same sum. Only the lowest of these ranks stores the error.
                .sum_error = sends.empty() || setup_.self < ranks.front()};
  const auto slot = acquire_result(index);
  const bool only_slot =
      slot && slot_readers_.size() == plan_->sends(plan_->stages[lane.stage + 1]).size() && !sends_later(lane, 2);
  const bool encoded = has_result && !task.to->is_plain();
  if (encoded && only_slot) {
    task.message = slot.data;
  } else if (encoded && sends_later(lane, 1)) {
    const auto bytes = task.to->message_bytes(lane.elements);
    task.message = port_->stage(bytes);
    messages_[index] = {.data = task.message, .bytes = bytes, .staged = true};
  }
  if (slot) slots_.push_back({index, slot, encoded && only_slot});
  lane.computing = !port_->fold(task, encoding_, index);
  if (lane.computing) return false;
  after_combine(index);
  return true;
}

// Checks that the sender encoded the frame with the codec that this rank expects. Also checks the payload, if it has arrived.
Status Operation::check_codec(Rank from, const FrameHeader& header, const Message& message, const std::byte* payload) const {
  const auto& stage = plan_->stages[message.stage];
  const auto elements = lanes_[message.lane].elements;
  const auto who = [&] { return concat(label(), ": rank ", from, " "); };
  static constexpr WireCodec plain;
  const auto& codec = coded_ ? codec_of(stage) : plain;
  const std::span<const std::byte> bytes{payload, payload == nullptr ? 0 : header.payload_bytes};
  const auto codecs_differ = [&](const std::string& sent, const std::string& expected) {
    return Status(Code::invalid,
                  concat(who(), "sends ", sent, "; rank ", setup_.self, " expects ", expected, ": codecs differ"));
  };
  if (header.codec != static_cast<uint8_t>(codec.kind))
    return codecs_differ(describe_message(header.codec, bytes), codec.is_plain() ? "plain elements" : to_string(codec));
  if (!codec.quantizes() || elements == 0 || payload == nullptr) return {};
  auto status = check_message(codec, bytes, elements);
  if (status.ok()) return status;
  if (status.code() == Code::invalid)
    return codecs_differ(describe_message(header.codec, bytes), concat(to_string(codec), ", ", elements, " elements"));
  return {status.code(), who() + "sent " + status.message()};
}

}  // namespace unisono
