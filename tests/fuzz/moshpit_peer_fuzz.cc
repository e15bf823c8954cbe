// Fuzzes a complete peer of an elastic run with arbitrary messages, links that break, and steps of time. The peer must not
// exceed its limits. It must always have a deadline, and it must end each averaging step. The messages that it sends must be
// valid.
#include <cmath>
#include <memory>
#include <set>

#include "elastic/peer/moshpit_peer.h"
#include "elastic/state/state_messages.h"
#include "elastic/wire/elastic_message.h"
#include "elastic_input.h"
#include "unisono/codec_facts.h"

namespace unisono::elastic_fuzz {
namespace {

constexpr uint64_t elements = 700;  // These are three chunks.
constexpr uint32_t groups_max = 40;

StepCodec codec_of(Input& input) {
  StepCodec codec;
  codec.kind = static_cast<StepCodec::Kind>(input.below(8) % codec_count);
  return codec;
}

MoshpitSettings settings_of(Input& input) {
  MoshpitSettings settings{
      .self = peer_id(0), .run_id = "run", .name = "self", .addresses = {address_of(0)}, .times = {}, .elements = elements};
  settings.found = input.below(4) != 3;
  if (!settings.found) settings.seeds = {address_of(1), address_of(2)};
  settings.role = static_cast<ElasticRole>(input.below(8) % 3);
  settings.max_group = 4;
  settings.min_peers = 1 + input.below(3);
  settings.max_peers = 5;
  settings.commit = static_cast<CommitRule>(input.below(4) == 3);
  settings.contribute = codec_of(input);
  settings.result = codec_of(input);
  settings.seed = 3;
  return settings;
}

// A port that checks that each message is valid and then drops it. It remembers the groups in these messages.
struct Port final : ElasticPort {
  void know(const PeerId&, const std::vector<std::string>&, bool) override {}
  void close(const PeerId&) override {}
  bool credit(const PeerId&) override { return has_credit; }
  void send(const PeerId& to, SharedMessage message) override {
    UNISONO_CHECK(to != peer_id(0));
    look(message.whole());
  }
  void send_to_address(const std::string& address, SharedBuffer message) override {
    UNISONO_CHECK(!address.empty());
    look(message);
  }

  void look(const SharedBuffer& message) {
    UNISONO_CHECK(message.size() > 0);
    switch (static_cast<ElasticChannel>(message.data()[0])) {
      case ElasticChannel::roster: UNISONO_CHECK(decode_roster_message(message.view()).ok()); break;
      case ElasticChannel::formation: UNISONO_CHECK(decode_formation(message.view()).ok()); break;
      case ElasticChannel::state: UNISONO_CHECK(decode_state(message.view()).ok()); break;
      case ElasticChannel::round: {
        RoundMessage read;
        const auto id = round_group(message.view());
        UNISONO_CHECK(id.has_value());
        format.group = *id;
        UNISONO_CHECK(read_round_message(format, message.view(), read).ok());
        break;
      }
      default: UNISONO_CHECK(false);
    }
  }

  RoundFormat format;
  bool has_credit = true;
};

struct Fixture {
  explicit Fixture(Input& choices)
      : input(choices), settings(settings_of(choices)), others(0, chunk_bytes()), peer(settings, port) {
    port.format = {.members = round_members_max,
                   .table = ChunkTable(elements, settings.max_group),
                   .contribute = wire_codec(settings.contribute, DType::f32, DType::f32, false),
                   .result = wire_codec(settings.result, DType::f32, DType::f32, false)};
    const ChunkValues values(ChunkTable(elements, 4), all(0));
    others.finished(0, values.buffers(), values.digests());
    std::vector<PeerId> ids;
    for (uint32_t i = 0; i < 4; ++i) ids.push_back(peer_id(i));
    auto made = unisono::make_layout({.run = "run", .version = 1, .max_group = 4, .dims = {}}, ids);
    UNISONO_CHECK(made.ok());
    layout = std::move(*made);
    UNISONO_CHECK(peer.start(now).ok());
    if (input.flag()) introduce_peers();
    begin_step();
  }

  static std::vector<size_t> chunk_bytes() {
    const ChunkTable table(elements, 4);
    std::vector<size_t> bytes;
    for (uint32_t chunk = 0; chunk < table.chunks(); ++chunk) bytes.push_back(table.count(chunk) * sizeof(float));
    return bytes;
  }

  // Tells the tested peer about three other peers, and about a layout of all four.
  void introduce_peers() {
    RosterMessage message{.run = fnv1a64("run"), .body = LayoutPush{std::make_shared<const Layout>(layout)}, .claims = {}};
    for (uint32_t i = 1; i < 4; ++i) {
      PeerClaim claim;
      claim.entry = {.id = peer_id(i), .incarnation = 1, .status = PeerStatus::alive, .facts = {}};
      claim.entry.facts.counter = 1;
      claim.entry.facts.addresses = {address_of(i)};
      claim.entry.facts.state_digest = input.flag() ? others.state_digest() : 0;
      message.claims.push_back(claim);
    }
    message.layout_version = layout.version;
    message.layout_digest = layout.digest;
    peer.received(peer_id(1), SharedBuffer::copy(encode(message)), now);
    if (settings.found) return;
    message.body = RosterWelcome{.sum = 0, .last = true, .parts = {}};
    peer.received(peer_id(1), SharedBuffer::copy(encode(message)), now);
  }

  static SharedBuffer all(float value) {
    const std::vector<float> values(elements, value);
    return SharedBuffer::copy(std::as_bytes(std::span(values)));
  }
  void begin_step() {
    StepInput step{.values = settings.role == ElasticRole::reducer ? SharedBuffer{} : all(1)};
    step.weight = std::min(std::abs(input.real()), contribution_weight_max);
    step.keep_contributed = input.flag();
    (void)peer.begin_step(std::move(step), now);
  }

  const Layout& known_layout() const {
    return peer.keeper().newest_layout() != nullptr ? *peer.keeper().newest_layout() : layout;
  }

  SharedBuffer make_message() {
    switch (input.below(8)) {
      case 0:
      case 1: return SharedBuffer::copy(encode(make_roster_message(input, fnv1a64("run"), &known_layout())));
      case 2:
      case 3: return SharedBuffer::copy(encode(make_formation(input, known_layout())));
      case 4:
      case 5: {
        auto format = port.format;
        format.members = 2 + input.below(3);
        if (input.below(4) == 3 || format.group == GroupId{}) format.group = {input.below(4), 9};
        return make_round_message(input, format);
      }
      case 6: return make_state_message(input, others);
      default: {
        ByteWriter writer;
        writer.write(static_cast<uint8_t>(input.below(6)));
        for (const auto byte : input.bytes()) writer.write(byte);
        return SharedBuffer::copy(writer.view());
      }
    }
  }

  void act() {
    const auto from = [&] { return peer_id(1 + input.below(peers_known - 1)); };
    switch (input.below(16)) {
      case 10:
      case 11: now += input.step(now, peer.next_deadline()); break;
      case 12: peer.link_lost(from(), {Code::peer_lost, "lost"}, input.below(4) == 3, now); break;
      case 13:
        port.has_credit = !port.has_credit;
        if (port.has_credit) peer.credit(from(), now);
        break;
      case 14: peer.address_failed(address_of(input.below(peers_known)), {Code::unavailable, "refused"}, now); break;
      case 15: own_changes(); break;
      default: {
        const auto message = make_message();
        const auto sender = input.byte() >= 0xf0 ? input.any_peer() : from();
        if (sender != peer_id(0)) peer.received(sender, message, now);
      }
    }
    if (input.flag()) wake(peer, now, [this] { check_output(); });
    check_output();
  }
  void own_changes() {
    switch (input.below(8)) {
      case 0: peer.set_blobs({{"a", std::vector<std::byte>(10)}}); break;
      case 1: peer.cancel_step(now); break;
      case 2:
        if (input.below(8) == 7) peer.leave(now);
        break;
      case 3:
        if (settings.role != ElasticRole::reducer) peer.offer_values(all(2), now);
        break;
      default: begin_step();
    }
  }
  void check_output() {
    (void)peer.take_state();
    if (const auto done = peer.take_step()) {
      UNISONO_CHECK(done->values.elements() == (settings.role == ElasticRole::reducer ? 0 : elements));
      UNISONO_CHECK(!done->report.to_string().empty());
    }
    UNISONO_CHECK(peer.groups_kept() <= groups_max);
    // The limit is large enough for two groups, and for messages whose group has not formed yet.
    UNISONO_CHECK(peer.held_bytes() <= 3 * (2 * elements * sizeof(float) + (size_t{2} << 20)));
    UNISONO_CHECK(!peer.status(now).phase.empty());
  }

  Input& input;
  Nanos now = fuzz_start;
  MoshpitSettings settings;
  StateCopy others;  // a state that other peers may offer
  Layout layout;
  Port port;
  MoshpitPeer peer;
};

}  // namespace
}  // namespace unisono::elastic_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono::elastic_fuzz;
  Input input(data, size);
  Fixture fixture(input);
  while (input.more()) fixture.act();
  return 0;
}
