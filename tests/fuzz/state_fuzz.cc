// Arbitrary messages between joiners and donors. Each is refused or understood, and an understood one encodes to the same
// bytes. A donor gives no more slots than it has. A joiner ends with a whole state or with the reason why there is none.
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

// A state that all peers have, until the donor's vector changes.
struct State {
  explicit State(int64_t step) : copy(0, chunk_bytes()) {
    std::vector<StateBlob> blobs(2);
    blobs[0] = {.name = "a", .bytes = SharedBuffer::copy(Bytes(100))};
    blobs[1] = {.name = "b", .bytes = {}};
    UNISONO_CHECK(copy.set_blobs(std::move(blobs)).ok());
    go_on(step);
  }
  void go_on(int64_t step) {
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

struct Desk {
  explicit Desk(Input& choices)
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

  void hear(ByteView bytes) {
    const auto message = decode_state(bytes);
    if (!message.ok()) return;
    const auto from = input.any_peer();
    // Now and then each machine gets messages that are for the other one.
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
        hear(message.view());
        break;
      }
      case 5: hear(input.bytes()); break;
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
      wake(donor, now, [this] { attend(); });
      wake(*loader, now, [this] { attend(); });
    }
    attend();
    if (loader->ended()) begin_loading();
  }
  void own_changes() {
    switch (input.below(6)) {
      case 0:
      case 1: own.go_on(++step); break;
      case 2: others.go_on(++step); break;
      case 3: donor.set_bandwidth(input.real()); break;
      case 4:
        if (input.below(8) == 7) donor.leave();
        break;
      default: break;
    }
  }
  void attend() {
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
  Desk desk(input);
  while (input.more()) desk.act();
  return 0;
}
