// Fuzzes roster messages and layouts. Each is either refused, or decoded and then encoded to the same bytes. A RosterKeeper
// that receives them must not exceed its limits, and must not wake up for ever.
#include <cmath>
#include <string>

#include "elastic/layout/record_holders.h"
#include "elastic/roster/roster_keeper.h"
#include "elastic_input.h"
#include "wire/digest.h"

namespace unisono::elastic_fuzz {
namespace {

constexpr uint32_t peers_max = 4;  // The input has more peers than this, so the limit matters.

void decode_all(ByteView bytes) {
  if (const auto message = decode_roster_message(bytes); message.ok()) check_same(encode(*message), bytes);
  ByteReader reader(bytes);
  Layout layout;
  if (!read_layout(reader, layout).ok()) return;
  ByteWriter again;
  write_layout(again, layout);
  check_same(again.view(), bytes.first(bytes.size() - reader.left()));
  const auto grid = grid_of(layout);
  UNISONO_CHECK(grid.ok() && layout.rank_of(layout.peers.back()) + 1 == layout.peers.size());
}

// Appends the digest of the layout's bytes, because mutations would hardly find it.
Bytes with_digest(ByteView bytes) {
  ByteWriter writer;
  for (const auto byte : bytes) writer.write(byte);
  writer.write(digest64(bytes));
  return std::move(writer).take();
}

struct Fixture {
  explicit Fixture(Input& choices) : input(choices), options(make_options()), keeper(options, make_entry()) {
    UNISONO_CHECK(keeper.start(now).ok());
  }

  KeeperOptions make_options() {
    KeeperOptions made{.run_id = "run", .times = {}, .seeds = {}, .dims = {}};
    made.found = input.flag();
    if (!made.found) made.seeds = {address_of(1), address_of(2)};
    made.min_peers = 1 + input.below(3);
    made.max_peers = peers_max;
    made.max_group = 4;
    made.seed = 3;
    return made;
  }
  PeerEntry make_entry() {
    PeerEntry entry;
    entry.id = peer_id(0);
    entry.facts.name = "self";
    entry.facts.addresses = {address_of(0)};
    entry.facts.role = static_cast<ElasticRole>(input.below(3));
    return entry;
  }

  void deliver(const RosterMessage& message) {
    const auto bytes = encode(message);
    const auto decoded = decode_roster_message(bytes);
    UNISONO_CHECK(decoded.ok() && *decoded == message);
    keeper.message(input.any_peer(), *decoded, now);
  }
  void deliver(ByteView bytes) {
    if (const auto decoded = decode_roster_message(bytes); decoded.ok()) keeper.message(input.any_peer(), *decoded, now);
  }
  void act() {
    switch (input.below(10)) {
      case 0:
      case 1:
      case 2: deliver(make_roster_message(input, fnv1a64("run"), keeper.newest_layout())); break;
      case 3: deliver(input.bytes()); break;
      case 4:
      case 5: now += input.step(now, keeper.next_deadline()); break;
      case 6: keeper.link_lost(input.any_peer(), now); break;
      case 7: keeper.known_dead(input.any_peer(), "refused", now); break;
      case 8: keeper.address_unreachable(address_of(input.below(peers_known)), "refused", input.below(2) == 1, now); break;
      default: self_changes();
    }
    if (input.flag()) wake(keeper, now, [this] { check_output(); });
    check_output();
  }
  void self_changes() {
    switch (input.below(7)) {
      case 0: keeper.set_alive(now); break;
      case 1: keeper.set_bandwidth(std::abs(input.real()), now); break;
      case 2: keeper.set_registered(input.number() % steps_max, now); break;
      case 3: keeper.set_finished(static_cast<int64_t>(input.number() % steps_max), input.number(), now); break;
      case 4: (void)keeper.adopt_layout(make_layout(input), now); break;
      case 5: keeper.set_seeds({address_of(input.below(peers_known)), address_of(input.below(peers_known))}, now); break;
      default: keeper.leave(now);
    }
  }
  // Checks that the messages of the keeper itself are valid.
  void check_output() {
    for (const auto& send : keeper.take_sends()) {
      UNISONO_CHECK(send.to != peer_id(0) && (send.to == PeerId{}) == !send.address.empty());
      const auto decoded = decode_roster_message(encode(send.message));
      UNISONO_CHECK(decoded.ok() && *decoded == send.message);
    }
    (void)keeper.take_events();
    (void)keeper.take_layout_change();
    UNISONO_CHECK(keeper.roster().present().size() <= peers_max && keeper.roster().size() <= 2 * peers_max);
    UNISONO_CHECK(keeper.roster().find(peer_id(0)) != nullptr);
  }

  Input& input;
  Nanos now = fuzz_start;
  KeeperOptions options;
  RosterKeeper keeper;
};

}  // namespace
}  // namespace unisono::elastic_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono;
  using namespace unisono::elastic_fuzz;
  const ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
  decode_all(bytes);
  decode_all(with_digest(bytes));
  Input input(data, size);
  Fixture fixture(input);
  while (input.more()) fixture.act();
  return 0;
}
