// Loads the state of an elastic run into a joining process, from several donors at once. It is a state machine: messages and
// time go in, messages come out. It always ends, with the state or with the reason why there is none.
//
// The loader prefers the state that most donors announce, and asks the donors of that state first. It asks donors in the order
// of mix64(own pid64 XOR donor pid64), so that joiners spread over the donors. If a donor announces another state, perhaps only
// its roster entry is old. Therefore, if it announced that state after another averaging step, the loader asks this donor, too.
//
// Parts come from all donors that have the same state, and each part is checked by its digest. Donors that answer sooner get
// more requests. If a donor dies, other donors send the parts that it still had to send. If no donor has the chosen state any
// more, the missing parts come from another state, and the result is `mixed`. Finished parts are never loaded again. All of a
// blob comes from one state.
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

// A live peer that may have a state, according to the roster.
struct StateSource {
  PeerId id;
  uint64_t state = 0;  // digest of the state that it offers; 0: it offers none
  int64_t step = -1;   // averaging step of that state; the peer may have a newer state by now
};

struct StateLoaderOptions {
  PeerId self;
  uint64_t schema = 0;
  // The size of each chunk. The sizes follow from the schema, so all donors have the same ones.
  std::vector<size_t> chunk_bytes;
  uint32_t donors_at_once = 4;
  ElasticTimes times;
  Nanos no_answer_timeout = 30 * second;  // how long to wait while no donor answers
  // How long to wait for a new part while the donors answer that they are busy.
  Nanos no_progress_timeout = 3600 * second;
};

struct LoadedState {
  int64_t step = -1;  // averaging step of the state that was loaded last
  Bytes values;       // all chunks of the vector
  std::vector<LoadedBlob> blobs;
  bool mixed = false;
  uint32_t donors = 0;  // number of donors that sent a part
  uint64_t bytes = 0;   // size of all parts that were received, repeated ones included
};

struct StateProgress {
  uint32_t parts = 0, parts_all = 0;  // parts_all is 0 until a state was chosen
  uint64_t bytes = 0, bytes_all = 0;
  uint32_t serving = 0;  // so many donors serve this process now
};

struct StateLoaderCounters {
  uint64_t malformed = 0;  // messages that no correct donor sends
  uint64_t damaged = 0;    // parts that do not match the manifest
  uint64_t repeated = 0;   // parts that arrived again
  uint64_t busy = 0, refused = 0, stalled = 0, switched = 0;
};

class StateLoader {
 public:
  StateLoader(const StateLoaderOptions& options, std::vector<StateSource> donors, Nanos now);

  // Handles a message for which for_donor() is false. If no correct donor sends such a message, it is only counted, and the
  // result is the error corrupt.
  Status message(const PeerId& from, const StateMessage& message, Nanos now);
  // Call when the roster changes, with all present donors. A donor that is not listed gets no more requests.
  void donors_changed(std::vector<StateSource> donors, Nanos now);
  // Call when the link to the donor is lost. If the donor stays listed, the loader asks it again after a while.
  void peer_gone(const PeerId& peer, Nanos now);
  void woke(Nanos now);
  Nanos next_deadline() const;
  std::vector<StateSend> take_sends() { return std::exchange(sends_, {}); }

  StateProgress progress() const;
  // Returns the outcome once: the state, or the error unavailable with a text that begins with STATE_UNAVAILABLE.
  std::optional<Result<LoadedState>> take_outcome() { return std::exchange(outcome_, std::nullopt); }
  bool ended() const { return ended_; }
  const StateLoaderCounters& counters() const { return counters_; }

 private:
  // A donor in the stage `resting` was busy, silent or lost, and will be asked again. A `useless` donor will never be asked
  // again.
  enum class Stage : uint8_t { fresh, asked, offered, serving, resting, useless };
  struct Donor {
    uint64_t listed = 0;  // digest of the donor's state, according to the roster
    int64_t listed_step = -1;
    // Digest of the donor's state, according to its last offer. If it has made no offer, according to the roster.
    uint64_t state = 0;
    Stage stage = Stage::fresh;
    // In the stages `asked`, `offered` and `serving`: the donor has been silent since this time.
    Nanos received_at = 0;
    Nanos sent_at = 0;  // in the stage `serving`: when the donor was last sent a message
    Nanos again = 0;    // in the stage `resting`: when to ask the donor again
    // In the stage `resting`: the donor has said that it is busy, and will serve this process later.
    bool busy = false;
    bool denied = false;  // true: the donor does not have the chosen state
    StateManifest offer;
    std::vector<uint32_t> wanted;  // parts that were requested from this donor but have not arrived; at most `window`
    size_t window = 2;
    uint32_t strikes = 0;  // so many damaged parts and manifests came from this donor
    bool sent_part = false;
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
  void check_timeouts(Nanos now);

  void send(const PeerId& to, const StateMessage& message) { sends_.push_back({to, encode(message)}); }
  void rest(Donor& donor, Nanos again, bool busy);
  void cancel_requests(Donor& donor);
  void strike(const PeerId& id, Donor& donor);
  void sort_donors();
  uint32_t active() const;
  bool waits_for(const Donor& donor) const;
  void finish();
  void fail(const std::string& why);

  StateLoaderOptions options_;
  StateAssembly assembly_;
  bool chosen_ = false;  // true: a state is chosen; its manifest is in assembly_, and its parts are requested
  std::map<PeerId, Donor> donors_;
  std::vector<PeerId> order_;       // donors are asked in this order
  uint64_t most_common_state_ = 0;  // digest of the state that most donors have; 0: no two donors have the same one
  // Averaging step of most_common_state_. If no two donors have the same state, this is the step of the first donor in order_.
  int64_t most_common_step_ = -1;
  // So many donors were asked although their roster entries name another state.
  uint32_t speculative_asks_ = 0;
  // For each part: from how many donors (at most 2) it is requested now.
  std::vector<uint8_t> asked_of_;
  uint32_t first_open_ = 0;  // every part with a lower number has arrived or is requested
  Random random_;
  Nanos began_ = 0;
  Nanos last_message_at_ = 0;   // when a donor last sent a message or a sign of life
  Nanos last_progress_at_ = 0;  // when a new part last arrived
  Nanos no_donor_since_ = never;
  Nanos planned_at_ = 0;  // all deadlines up to this time were handled
  uint64_t received_bytes_ = 0;
  std::vector<StateSend> sends_;
  std::optional<Result<LoadedState>> outcome_;
  bool ended_ = false;
  StateLoaderCounters counters_;
};

}  // namespace unisono
