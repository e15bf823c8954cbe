// Fuzzes the messages of a round and of its verdict. Each is either refused, or decoded and then encoded to the same bytes. The
// round must end in time and account for all chunks. It must not hold more bytes than its members may send.
#include <cmath>
#include <cstring>
#include <memory>

#include "elastic/round/moshpit_round.h"
#include "elastic_input.h"
#include "unisono/codec_facts.h"

namespace unisono::elastic_fuzz {
namespace {

constexpr uint32_t members = 3;
constexpr size_t elements = 700;  // These are three chunks, of 256, 256 and 188 elements.

RoundFormat format_of(Input& input) {
  StepCodec codec;
  codec.kind = static_cast<StepCodec::Kind>(input.below(codec_count));
  const auto wire = wire_codec(codec, DType::f32, DType::f32, false);
  return {.group = {7, 9}, .members = members, .table = ChunkTable(elements, 4), .contribute = wire, .result = wire};
}

Bytes encode_again(const RoundFormat& format, const RoundMessage& message, ByteView bytes) {
  SharedBuffer again;
  if (const auto* contribution = std::get_if<Contribution>(&message)) {
    again = contribution_message(format, *contribution);
    UNISONO_CHECK(again.size() == bytes.size());
    std::memcpy(again.data() + contribution_head_bytes, bytes.data() + contribution_head_bytes,
                bytes.size() - contribution_head_bytes);
  } else if (const auto* result = std::get_if<ChunkResult>(&message)) {
    again = result_message(format, *result);
    UNISONO_CHECK(again.size() == bytes.size());
    std::memcpy(again.data() + result_head_bytes, bytes.data() + result_head_bytes, bytes.size() - result_head_bytes);
  } else {
    again = round_message(format.group, message);
  }
  return bytes_of(again.view());
}

// Returns whether the bytes are a message of this group.
bool decode(const RoundFormat& format, ByteView bytes) {
  (void)round_group(bytes);
  RoundMessage message;
  if (!read_round_message(format, bytes, message).ok()) return false;
  check_same(encode_again(format, message, bytes), bytes);
  return true;
}

// Returns a message that begins like a message of this group, because mutations would hardly find such a beginning.
SharedBuffer with_head(Input& input, const RoundFormat& format) {
  ByteWriter writer;
  writer.write(ElasticChannel::round).write(static_cast<uint8_t>(input.below(9))).write(input.byte()).write(input.byte());
  writer.write(static_cast<uint32_t>(input.number())).write(format.group.low).write(format.group.high);
  for (const auto byte : input.bytes()) writer.write(byte);
  auto bytes = std::move(writer).take();
  if (input.flag()) bytes.resize(bytes.size() + input.below(2) * 1024);
  return SharedBuffer::copy(bytes);
}

struct Port final : RoundPort {
  explicit Port(Input& choices) : input(choices) {}
  void send(uint32_t rank, SharedMessage message, bool) override {
    UNISONO_CHECK(rank < members);
    UNISONO_CHECK(decode(format, message.whole().view()));
  }
  bool credit(uint32_t) const override { return has_credit; }
  Input& input;
  RoundFormat format;
  bool has_credit = true;
};

struct Fixture {
  explicit Fixture(Input& choices) : input(choices), port(choices), states(3) {
    port.format = format_of(input);
    const std::vector<float> ones(elements, 1.0f);
    values = ChunkValues(port.format.table, SharedBuffer::copy(std::as_bytes(std::span(ones))));
    RoundRequest request{.id = port.format.group,
                         .self = input.below(members),
                         .members = std::vector<RoundMember>(members),
                         .chunk_counts = {1, 1, 1},
                         .table = port.format.table,
                         .times = {},
                         .contribute_timeout = 5 * second,
                         .round_timeout = 30 * second,
                         .commit = static_cast<CommitRule>(input.below(2)),
                         .contribute_codec = port.format.contribute,
                         .result_codec = port.format.result,
                         .line_complete = input.flag(),
                         .values = &values,
                         .states = states};
    for (auto& member : request.members)
      member = {.position = input.below(3), .role = ElasticRole::peer, .in_layout = input.flag()};
    request.members[0].role = input.flag() ? ElasticRole::reducer : ElasticRole::peer;
    if (request.self == 0 && request.members[0].role == ElasticRole::reducer) request.values = nullptr, request.states = {};
    self = request.self;
    auto made = MoshpitRound::make(std::move(request), port);
    UNISONO_CHECK(made.ok());
    round = std::move(*made);
    round->start(now);
  }

  void act() {
    const auto rank = input.below(members);
    switch (input.below(10)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: {
        const auto message = make_round_message(input, port.format);
        UNISONO_CHECK(decode(port.format, message.view()));
        round->message(rank, message, now);
        break;
      }
      case 5: {
        const auto message = with_head(input, port.format);
        (void)decode(port.format, message.view());
        round->message(rank, message, now);
        break;
      }
      case 6: now += input.step(now, round->next_deadline()); break;
      case 7: round->member_gone(rank, static_cast<MemberLoss>(input.below(4)), now); break;
      case 8:
        port.has_credit = !port.has_credit;
        if (port.has_credit) round->credit(rank, now);
        break;
      default:
        if (input.below(8) == 7) round->abandon(now);
        if (round->ended() && input.flag()) round->release_results();
    }
    if (input.flag() && !round->over(now)) wake_round();
    check();
  }
  void wake_round() {
    int turns = 0;
    do {
      round->woke(now);
      UNISONO_CHECK(++turns < 1000);
    } while (!round->over(now) && round->next_deadline() <= now);
  }
  void check() const {
    // The limit is large enough for one chunk from each member, and for all results.
    UNISONO_CHECK(round->held_bytes() <= 6 * (256 * sizeof(float) + result_head_bytes));
    if (!round->ended()) return;
    const auto& report = round->report();
    UNISONO_CHECK(report.committed + report.kept_local + report.voided + report.undecided + report.lost == 3);
    for (const auto& state : states)
      UNISONO_CHECK(state.weight >= 0 && std::isfinite(state.weight) && state.sharers >= 1 && state.sharers <= members);
  }
  void finish() {
    if (round->ended()) return;
    now += 31 * second;
    wake_round();
    UNISONO_CHECK(round->ended());
    check();
  }

  Input& input;
  Nanos now = fuzz_start;
  Port port;
  ChunkValues values;
  std::vector<ChunkState> states;
  uint32_t self = 0;
  std::unique_ptr<MoshpitRound> round;
};

void decode_verdict(ByteView bytes, size_t chunks) {
  ByteReader reader(bytes);
  VerdictMessage message;
  if (!read_verdict(reader, chunks, message).ok()) return;
  ByteWriter again;
  write_verdict(again, message);
  check_same(again.view(), bytes.first(bytes.size() - reader.left()));
}

void fuzz_verdict(Input& input) {
  const size_t chunks = input.byte() % 70;
  Nanos now = fuzz_start;
  Verdict verdict({.members = members, .self = input.below(members), .proposer = {true, input.flag(), true}, .chunks = chunks});
  std::optional<ChunkBits> decided;
  while (input.more()) {
    const auto rank = input.below(members);
    switch (input.below(8)) {
      case 0: {
        ChunkBits mine(chunks);
        if (chunks > 0 && input.flag()) mine.set(input.byte() % chunks);
        verdict.have(mine, now);
        break;
      }
      case 1: verdict.member_gone(rank, now); break;
      case 2:
        now += input.step(now, verdict.next_deadline());
        wake(verdict, now, [] {});
        break;
      default: verdict.message(rank, make_verdict(input, input.byte() == 0xff ? chunks + 1 : chunks), now);
    }
    for (const auto& send : verdict.take_sends()) {
      UNISONO_CHECK(send.to < members);
      ByteWriter writer;
      write_verdict(writer, send.message);
      decode_verdict(writer.view(), chunks);
    }
    if (verdict.decided() == nullptr) continue;
    UNISONO_CHECK(!decided || *decided == *verdict.decided());
    decided = *verdict.decided();
  }
}

}  // namespace
}  // namespace unisono::elastic_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono::elastic_fuzz;
  Input input(data, size);
  if (input.byte() % 4 == 0) {
    decode_verdict({reinterpret_cast<const std::byte*>(data) + 1, size > 0 ? size - 1 : 0}, 70);
    fuzz_verdict(input);
    return 0;
  }
  Fixture fixture(input);
  while (input.more()) fixture.act();
  fixture.finish();
  return 0;
}
