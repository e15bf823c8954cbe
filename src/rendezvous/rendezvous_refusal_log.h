// What a rendezvous server keeps of peers that have not shown its key: a bounded number of texts, for the log and for errors.
//
// Such a peer can make up whatever it says, and can come as often as it likes. So the texts are cut and contain no control
// characters, and only some of them are reported or kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "rendezvous/rendezvous_messages.h"

namespace unisono::rendezvous {

// Says who a process is that sent this hello in clear, such as "rank 3 (host b)". It is a claim.
std::string claim_of(const Hello& hello);

class RefusalLog {
 public:
  // At most so many texts are reported in one period. Later ones are counted.
  static constexpr uint32_t reports_max = 4;
  static constexpr Nanos period = 10 * second;
  // At most so many texts are kept for summary().
  static constexpr size_t kept_max = 4;

  // Adds a refusal. Returns the text to report now, or nothing if too many were reported lately.
  std::optional<std::string> add(const std::string& text, Nanos now);
  // Returns a text like "; not authenticated: [rank 3 (host b): authentication failed: …] and 5 more". Returns an empty text if
  // there was no refusal.
  std::string summary() const;

 private:
  std::vector<std::string> kept_;
  uint64_t count_ = 0;  // all refusals
  Nanos period_begin_ = 0;
  uint32_t reported_ = 0;  // in this period
  uint64_t left_out_ = 0;  // since the last report
};

}  // namespace unisono::rendezvous
