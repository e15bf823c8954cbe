// Loads the state of an elastic run into a joining process, from several donors at once. A state machine: messages and time go
// in, messages come out. It always ends, with the state or with the reason why there is none.
//
// Donors are ordered by ascending mix64(own pid64 XOR donor pid64), so that joiners spread over them. Those that announce the
// most frequent state come first. Others are asked only if they announced theirs after another averaging step: with short
// averaging steps, rosters lag behind.
//
// Parts come from any donor of the same state, and each is checked by its digest. A donor that answers sooner is asked for
// more. If a donor dies, the others send its pending parts. If no other donor has the same state, the missing parts come from
// another state (`mixed`). Finished parts are never loaded again, and each blob comes from one state only.
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
#include "elastic/state/state_assembly.h"
#include "elastic/state/state_donor.h"
#include "elastic/state/state_messages.h"
#include "elastic/wire/elastic_times.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// A live peer, from the roster.
struct StateSource {
  PeerId id;
  uint64_t state = 0;  // digest of the state that it offers; 0: none
  int64_t step = -1;   // the averaging step of that state; it may have a newer one by now
};

struct StateLoaderOptions {
  PeerId self;
  uint64_t schema = 0;
  std::vector<size_t> chunk_bytes;  // by the schema, hence equal at all donors
  uint32_t donors_at_once = 4;
  ElasticTimes times;
  Nanos patience = 30 * second;         // how long to wait without a sign of any donor
  Nanos busy_patience = 3600 * second;  // how long to wait while donors are busy with other joiners and send nothing
};

struct LoadedState {
  int64_t step = -1;  // of the state that the last parts belong to
  Bytes values;       // all chunks
  std::vector<LoadedBlob> blobs;
  bool mixed = false;
  uint32_t donors = 0;  // donors that sent a part
  uint64_t bytes = 0;   // received in parts, repeated ones included
};

struct StateProgress {
  uint32_t parts = 0, parts_all = 0;  // parts_all is 0 until a donor was found
  uint64_t bytes = 0, bytes_all = 0;
  uint32_t serving = 0;  // donors that serve this process now
};

struct StateLoaderCounters {
  uint64_t malformed = 0;  // messages
  uint64_t damaged = 0;    // parts that did not match the manifest
  uint64_t repeated = 0;   // parts that came twice
  uint64_t busy = 0, refused = 0, stalled = 0, switched = 0;
};

class StateLoader {
 public:
  StateLoader(const StateLoaderOptions& options, std::vector<StateSource> donors, Nanos now);

  // Takes a message for which for_donor() is false. Error: corrupt, counted and without effect, for a message that no correct
  // donor sends.
  Status message(const PeerId& from, const StateMessage& message, Nanos now);
  // The roster changed: `donors` are all present ones. A donor that is no longer listed is not asked any more.
  void donors_changed(std::vector<StateSource> donors, Nanos now);
  // The link to the donor was lost. It is tried again after a while, as long as it is listed.
  void peer_gone(const PeerId& peer, Nanos now);
  void woke(Nanos now);
  Nanos next_deadline() const;
  std::vector<StateSend> take_sends() { return std::exchange(sends_, {}); }

  StateProgress progress() const;
  // Once: the state, or unavailable with a message that begins with STATE_UNAVAILABLE.
  std::optional<Result<LoadedState>> take_outcome() { return std::exchange(outcome_, std::nullopt); }
  bool ended() const { return ended_; }
  const StateLoaderCounters& counters() const { return counters_; }

 private:
  // resting: busy, silent or lost; it is asked again later. useless: it is never asked again.
  enum class Stage : uint8_t { fresh, asked, offered, serving, resting, useless };
  struct Donor {
    uint64_t listed = 0;  // the state that the roster says it has
    int64_t listed_step = -1;
    uint64_t state = 0;  // the state that it is known to have
    Stage stage = Stage::fresh;
    Nanos heard = 0;      // asked, offered, serving: last sign of life, or time of the question
    Nanos told = 0;       // serving: when something was last sent to it
    Nanos again = 0;      // resting: when to ask again
    bool busy = false;    // resting: it has the wanted state and will give it later
    bool denied = false;  // it does not have the state that is being loaded
    StateManifest offer;
    std::vector<uint32_t> wanted;  // parts requested from it; at most window
    size_t window = 2;
    uint32_t strikes = 0;  // damaged parts and manifests that it sent
    bool gave = false;
  };

  Status on(const PeerId& from, Donor& donor, const StateOffer& offer, Nanos now);
  void on(Donor& donor, const StateBusy& busy, Nanos now);
  void on(Donor& donor, const StateRefused& refused, Nanos now);
  Status on(const PeerId& from, Donor& donor, const StatePart& part, Nanos now);

  void plan(Nanos now);
  void ask_donors(Nanos now);
  std::optional<PeerId> next_to_ask(uint32_t active, Nanos now) const;
  bool may_have(const Donor& donor, uint64_t state, int64_t step) const;
  void choose(Nanos now);
  void drop_state_without_donors();
  void request_parts(Nanos now);
  std::optional<uint32_t> next_part(const Donor& donor);
  std::optional<uint32_t> part_to_repeat(const Donor& donor) const;
  void check_silence(Nanos now);
  void check_patience(Nanos now);

  void say(const PeerId& to, const StateMessage& message) { sends_.push_back({to, encode(message)}); }
  void rest(Donor& donor, Nanos again, bool busy);
  void take_back(Donor& donor);
  void strike(const PeerId& id, Donor& donor);
  void sort_donors();
  uint32_t active() const;
  bool waits_for(const Donor& donor) const;
  void finish();
  void fail(const std::string& why);

  StateLoaderOptions options_;
  StateAssembly assembly_;
  bool chosen_ = false;  // the assembly's state is the one to request
  std::map<PeerId, Donor> donors_;
  std::vector<PeerId> order_;      // in which donors are asked
  uint64_t popular_ = 0;           // the state that most donors have; 0: no two have the same
  int64_t popular_step_ = -1;      // the averaging step of popular_; without one, that of the first donor in order
  uint32_t guesses_ = 0;           // donors asked although the roster does not say that they have the wanted state
  std::vector<uint8_t> asked_of_;  // by part: how many donors it is requested from now; at most 2
  uint32_t first_open_ = 0;        // all earlier parts have arrived or are requested
  Random random_;
  Nanos began_ = 0, sign_ = 0, progress_ = 0;  // start; last sign of any donor; last new part
  Nanos nobody_since_ = never;
  Nanos planned_ = 0;  // deadlines up to this time have been handled
  uint64_t received_bytes_ = 0;
  std::vector<StateSend> sends_;
  std::optional<Result<LoadedState>> outcome_;
  bool ended_ = false;
  StateLoaderCounters counters_;
};

}  // namespace unisono
