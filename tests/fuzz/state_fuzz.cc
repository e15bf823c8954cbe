// Fuzzes the messages between joiners and donors (peers that send their state to joiners). Each message is either refused, or
// decoded and then encoded to the same bytes. A donor must not grant more slots than it has. A joiner must end with a complete
// state, or with the reason why it has none.
#include <memory>
#include <numeric>
#include <optional>

#include "elastic/state/state_donor.h"
#include "elastic/state/state_loader.h"
#include "elastic_input.h"
#include "wire/digest.h"

namespace unisono::elastic_fuzz {
namespace {

constexpr uint32_t serve_slots = 2;

void decode_all(ByteView bytes) {
  const auto message = decode_state(bytes);
  if (message.ok()) check_same(encode(*message).view(), bytes);
}

std::vector<size_t> chunk_bytes() { return {1024, 1024, 752}; }

// A state that all peers have, until the vector of the donor changes.
struct State {
  explicit State(int64_t step) : copy(0, chunk_bytes()) {
    std::vector<StateBlob> blobs(2);
    blobs[0] = {.name = "a", .bytes = SharedBuffer::copy(Bytes(100))};
    blobs[1] = {.name = "b", .bytes = {}};
    UNISONO_CHECK(copy.set_blobs(std::move(blobs)).ok());
    advance(step);
  }
  void advance(int64_t step) {
    std::vector<SharedBuffer> chunks;
    std::vector<uint64_t> digests;
    for (const auto bytes : chunk_bytes()) {
      chunks.push_back(SharedBuffer::copy(Bytes(bytes, static_cast<std::byte>(step))));
      digests.push_back(digest64(chunks.back().view()));
    }
    copy.finished(step, std::move(chunks), std::move(digests));
  }

  StateCopy copy;
};

struct Fixture {
  explicit Fixture(Input& choices)
      : input(choices), own(1), others(1), donor({.schema = 0, .serve_slots = serve_slots, .times = {}}, own.copy) {
    begin_loading();
  }

  std::vector<StateSource> sources() {
    std::vector<StateSource> all;
    for (const auto& peer : input.peers())
      all.push_back({peer, input.below(4) == 3 ? input.number() : others.copy.state_digest()});
    return all;
  }
  void begin_loading() {
    loader = std::make_unique<StateLoader>(StateLoaderOptions{.self = peer_id(0), .chunk_bytes = chunk_bytes(), .times = {}},
                                           sources(), now);
  }

  void deliver(ByteView bytes) {
    const auto message = decode_state(bytes);
    if (!message.ok()) return;
    const auto from = input.any_peer();
    // Sometimes the donor receives messages that are meant for the joiner, and the other way round.
    if (for_donor(*message) != (input.byte() == 0xff)) (void)donor.message(from, *message, now);
    else (void)loader->message(from, *message, now);
  }
  void act() {
    switch (input.below(10)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: {
        const auto message = make_state_message(input, others.copy);
        UNISONO_CHECK(decode_state(message.view()).ok());
        decode_all(message.view());
        deliver(message.view());
        break;
      }
      case 5: deliver(input.bytes()); break;
      case 6: now += input.step(now, std::min(donor.next_deadline(), loader->next_deadline())); break;
      case 7: {
        const auto peer = input.any_peer();
        donor.peer_gone(peer);
        loader->peer_gone(peer, now);
        break;
      }
      case 8: loader->donors_changed(sources(), now); break;
      default: own_changes();
    }
    if (input.flag()) {
      wake(donor, now, [this] { check_output(); });
      wake(*loader, now, [this] { check_output(); });
    }
    check_output();
    if (loader->ended()) begin_loading();
  }
  void own_changes() {
    switch (input.below(6)) {
      case 0:
      case 1: own.advance(++step); break;
      case 2: others.advance(++step); break;
      case 3: donor.set_bandwidth(input.real()); break;
      case 4:
        if (input.below(8) == 7) donor.leave();
        break;
      default: break;
    }
  }
  void check_output() {
    for (const auto& send : donor.take_sends()) decode_own(send, false);
    for (const auto& send : loader->take_sends()) decode_own(send, true);
    UNISONO_CHECK(donor.serving() <= serve_slots);
    if (!own.copy.empty() && donor.serving() > 0) UNISONO_CHECK(own.copy.held());
    if (auto outcome = loader->take_outcome()) {
      UNISONO_CHECK(loader->ended() && loader->next_deadline() == never);
      const auto sizes = chunk_bytes();
      if (outcome->ok()) UNISONO_CHECK((*outcome)->values.size() == std::accumulate(sizes.begin(), sizes.end(), size_t{0}));
    }
  }
  static void decode_own(const StateSend& send, bool to_donor) {
    const auto whole = send.message.whole();
    const auto message = decode_state(whole.view());
    UNISONO_CHECK(message.ok() && for_donor(*message) == to_donor);
  }

  Input& input;
  Nanos now = fuzz_start;
  int64_t step = 1;
  State own, others;
  StateDonor donor;
  std::unique_ptr<StateLoader> loader;
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
