// Loads the state of an elastic run into a process that joins, from several donors at once. A state machine: messages and time
// in, messages out. It always ends: with the state, or with the reason why there is none.
//
// Donors are taken in ascending order of mix64(own pid64 XOR donor pid64), so that joiners spread over them; those that name the most
// frequent state first. Parts come from any donor of the same state, each checked by its digest; who answers sooner is asked for more.
// If a donor dies, the others give what it still owed. If nobody else has the same state, what is missing comes from another
// one (`mixed`): finished parts are never loaded again, and a blob is of one state only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/random.h"
#include "collectives/chunk_bits.h"
#include "node/state_donor.h"
#include "node/state_messages.h"
#include "unisono/status.h"
#include "wire/elastic_times.h"
#include "wire/peer_id.h"

namespace unisono {

// A live peer, as the roster has it.
struct StateSource {
  PeerId id;
  uint64_t state = 0;  // digest of what it can give; 0: nothing
};

struct StateLoaderOptions {
  PeerId self;
  uint64_t schema = 0;
  std::vector<size_t> chunk_bytes;  // how the vector is cut: by the schema, so the same at donors
  uint32_t donors_at_once = 4;
  ElasticTimes times;
  Nanos patience = 30 * second;        // without a sign of any donor
  Nanos busy_patience = 3600 * second; // while donors are busy with other joiners, and give nothing
};

struct LoadedBlob {
  std::string name;
  Bytes bytes;
};
struct LoadedState {
  int64_t sweep = -1;  // of the state that the last parts were of
  Bytes values;        // all chunks
  std::vector<LoadedBlob> blobs;
  bool mixed = false;
  uint32_t donors = 0;  // that gave a part
  uint64_t bytes = 0;   // received in parts, repeated ones included
};

struct StateProgress {
  uint32_t parts = 0, parts_all = 0;  // all: 0 until a donor was found
  uint64_t bytes = 0, bytes_all = 0;
  uint32_t serving = 0;               // donors
};

struct StateLoaderCounters {
  uint64_t malformed = 0;  // messages
  uint64_t damaged = 0;    // parts that were not what the manifest says
  uint64_t repeated = 0;   // parts that came twice
  uint64_t busy = 0, refused = 0, stalled = 0, switched = 0;
};

class StateLoader {
 public:
  StateLoader(const StateLoaderOptions& options, std::vector<StateSource> donors, Nanos now);

  // A message without for_donor(). Corrupt, counted and without effect: what no donor would send.
  Status message(const PeerId& from, const StateMessage& message, Nanos now);
  // The roster changed: all that are there now. Who is not listed any more is not asked any more.
  void donors_changed(std::vector<StateSource> donors, Nanos now);
  // The link to it was lost; as long as it is listed it is tried again after a while.
  void peer_gone(const PeerId& peer, Nanos now);
  void woke(Nanos now);
  Nanos next_deadline() const;
  std::vector<StateSend> take_sends() { return std::exchange(sends_, {}); }

  StateProgress progress() const;
  // Once: the state, or unavailable with a text that begins with STATE_UNAVAILABLE.
  std::optional<Result<LoadedState>> take_outcome() { return std::exchange(outcome_, std::nullopt); }
  bool ended() const { return ended_; }
  const StateLoaderCounters& counters() const { return counters_; }

 private:
  // resting: busy, silent or lost; asked again when the time has come.
  enum class Stage : uint8_t { fresh, asked, offered, serving, resting, useless };
  struct Donor {
    uint64_t state = 0;  // what it has, as far as known
    Stage stage = Stage::fresh;
    Nanos at = 0;        // asked, offered, serving: heard last; resting: when to ask again
    Nanos said = 0;      // to it, last
    std::optional<StateManifest> offer;
    std::vector<uint32_t> wanted;  // parts that it was asked for
    size_t window = 2;
    uint32_t strikes = 0;          // damaged parts
    bool gave = false;
  };
  using Donors = std::map<PeerId, Donor>;

  StateLoaderOptions options_;
  Donors donors_;
  std::vector<PeerId> order_;
  Random random_;
  std::vector<StateSend> sends_;
  std::optional<Result<LoadedState>> outcome_;
  bool ended_ = false;
  StateLoaderCounters counters_;
};

}  // namespace unisono
