// Fuzzes how groups form in an elastic run. Each message is either refused, or decoded and then encoded to the same bytes.
// Coordinators and seekers must not exceed their limits, wake up for ever, or return an invalid group.
#include <memory>
#include <set>

#include "elastic/formation/group_coordinator.h"
#include "elastic/formation/group_seeker.h"
#include "elastic/layout/layout_book.h"
#include "elastic_input.h"

namespace unisono::elastic_fuzz {
namespace {

constexpr uint64_t schema = 0;

void decode_all(ByteView bytes) {
  if (const auto message = decode_formation(bytes); message.ok()) check_same(encode(*message), bytes);
}

class View final : public FormationView {
 public:
  const Layout* find_layout(uint64_t version, uint64_t digest) const override { return book.find(version, digest); }
  const Layout* layout_for(uint64_t step) const override { return book.in_effect(step); }
  bool gone(const PeerId& peer) const override { return dead.contains(peer); }
  std::vector<PeerId> coordinators(std::string_view key, const SlotName&) const override {
    std::vector<PeerId> living;
    for (uint32_t i = 0; i < peers_known; ++i) {
      if (!gone(peer_id(i))) living.push_back(peer_id(i));
    }
    return record_holders(key, living);
  }
  uint64_t steps_opened() const override { return opened; }

  LayoutBook book;
  std::set<PeerId> dead;
  uint64_t opened = 0;
};

// One process with a coordinator and a seeker. Both receive messages from the input, and messages from each other.
struct Fixture {
  explicit Fixture(Input& choices)
      : input(choices),
        coordinator(
            {.self = peer_id(0), .run = "run", .times = {}, .max_group = 4, .chunk_count = 3, .schema = schema, .seed = 3},
            view),
        seeker({.self = peer_id(0), .run = "run", .times = {}}, view) {
    std::vector<PeerId> peers;
    for (uint32_t i = 0; i < 5; ++i) peers.push_back(peer_id(i));
    auto made = unisono::make_layout({.run = "run", .version = 1, .max_group = 4, .dims = {}}, peers);
    UNISONO_CHECK(made.ok());
    view.book.add(std::make_shared<const Layout>(std::move(*made)));
  }

  const Layout& layout() const { return *view.book.newest(); }

  void deliver(const PeerId& from, const FormationMessage& message) {
    const auto decoded = decode_formation(encode(message));
    UNISONO_CHECK(decoded.ok() && *decoded == message);
    if (for_coordinator(message)) coordinator.message(from, message, now);
    else seeker.message(from, message, now);
  }
  void deliver(ByteView bytes) {
    if (const auto decoded = decode_formation(bytes); decoded.ok()) deliver(input.any_peer(), *decoded);
  }
  // Returns the coordinator that the seeker has asked, or any peer. The seeker must ignore the answers of other peers.
  PeerId sender() { return input.flag() ? coordinator_of_quest : input.any_peer(); }

  void act() {
    switch (input.below(10)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const auto message = make_formation(input, layout());
        deliver(sender(), message);
        break;
      }
      case 4: deliver(input.bytes()); break;
      case 5:
      case 6: now += input.step(now, std::min(coordinator.next_deadline(), seeker.next_deadline())); break;
      case 7: seek(); break;
      case 8: {
        const auto peer = input.any_peer();
        if (peer != peer_id(0)) view.dead.insert(peer);
        coordinator.peer_gone(peer, now);
        seeker.peer_gone(peer, now);
        break;
      }
      default: seeker.unknown_group({input.below(4), 9}, input.any_peer(), now);
    }
    if (input.flag()) {
      wake(coordinator, now, [this] { check_output(); });
      wake(seeker, now, [this] { check_output(); });
    }
    check_output();
  }
  void seek() {
    auto request = seek_request(layout(), peer_id(0), input.number() % steps_max, input.number_below(rounds_max));
    request.weighted = input.flag();
    request.bandwidth = input.real();
    request.missing = input.peers();
    switch (input.below(3)) {
      case 0: seeker.stop(now); break;
      case 1:
        if (!seeker.seeking()) seeker.pre_register(request, now);
        break;
      default: seeker.seek(request, now);
    }
  }

  void carry(const std::vector<FormationSend>& sends) {
    for (const auto& send : sends) {
      const auto decoded = decode_formation(encode(send.message));
      UNISONO_CHECK(decoded.ok() && *decoded == send.message);
      if (std::holds_alternative<formation::Register>(send.message)) coordinator_of_quest = send.to;
      if (send.to == peer_id(0)) deliver(peer_id(0), send.message);
    }
  }
  void check_output() {
    // The exchange between the coordinator and the seeker must end. It would go on for ever if every answer caused another one.
    for (int turns = 0;; ++turns) {
      auto sends = coordinator.take_sends();
      auto more = seeker.take_sends();
      if (sends.empty() && more.empty()) break;
      UNISONO_CHECK(turns < 100);
      carry(sends);
      carry(more);
      take_layouts();
    }
    take_layouts();
    if (const auto opened = coordinator.take_opened()) view.opened = std::max(view.opened, *opened + 1);
    if (const auto opened = seeker.take_opened()) view.opened = std::max(view.opened, *opened + 1);
    if (const auto outcome = seeker.take_outcome()) {
      UNISONO_CHECK(!seeker.seeking());
      if (const auto* group = std::get_if<GroupDescriptor>(&*outcome)) {
        UNISONO_CHECK(group->schema == schema && group->rank_of(peer_id(0)) < group->members.size());
        UNISONO_CHECK(group->members.size() == group->chunk_counts.size());
      }
    }
    (void)seeker.take_declines();
    UNISONO_CHECK(coordinator.open_slots() <= slots_open_max && coordinator.closed_slots() <= closed_max);
  }
  void take_layouts() {
    for (auto& one : coordinator.take_layouts()) view.book.add(std::make_shared<const Layout>(std::move(one)));
  }

  Input& input;
  Nanos now = fuzz_start;
  View view;
  GroupCoordinator coordinator;
  GroupSeeker seeker;
  PeerId coordinator_of_quest = peer_id(1);
};

}  // namespace
}  // namespace unisono::elastic_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono;
  using namespace unisono::elastic_fuzz;
  decode_all({reinterpret_cast<const std::byte*>(data), size});
  Input input(data, size);
  Fixture fixture(input);
  while (input.more()) fixture.act();
  return 0;
}
