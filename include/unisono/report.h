// Report describes one operation: who contributed, how many bytes were sent, how long it took, and which rank arrived last.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "unisono/codec.h"
#include "unisono/delivery.h"
#include "unisono/export.h"

namespace unisono {

struct Report {
  std::string_view operation = "none";  // name of the operation, for example all_reduce; static text
  // CallOptions::id, or the position of the operation in the group's order of calls. Messages are counted separately, for each
  // tag and pair of ranks.
  uint64_t number = 0;
  std::string_view schedule = "none";  // "two_step", "ring", …; "none" if no data moved; static text
  uint32_t world_size = 0;             // number of members of the group
  // Number of ranks whose data is in the result. After a lossy or failed call it can be smaller than world_size.
  uint32_t contributors = 0;
  uint64_t sent_bytes = 0;      // bytes sent on the wire or in shared memory, including headers
  uint64_t received_bytes = 0;  // bytes received, including headers
  uint64_t sent_messages = 0;
  uint64_t received_messages = 0;
  int64_t total_us = 0;  // time from start to end
  // Time from the start until the first message of the last rank arrived. This time was lost because ranks were late.
  int64_t wait_us = 0;
  // The time that sums, conversions, encoding, and copies to and from shared memory took. Parts that are too short to be timed
  // do not count.
  int64_t compute_us = 0;
  int64_t transfer_us = 0;        // total_us minus wait_us and compute_us
  int32_t last_rank = -1;         // the rank whose first message came last; -1: this rank waited for no other rank
  Codec codec{};                  // the codec that was used
  std::string_view codec_note{};  // says why `codec` differs from the requested codec; static text; empty if it does not differ
  uint32_t passes = 0;            // how many times an element is encoded on its way through the ranks
  uint64_t sent_payload = 0;      // the part of sent_bytes that holds elements and their scales, without headers
  uint64_t sent_elements = 0;     // number of elements in sent_payload
  // Number of elements at this rank that were too large for the type of the scale, and of results that were too large for the
  // tensor's type.
  uint64_t saturated = 0;
  uint64_t nonfinite_groups = 0;  // number of codec groups at this rank that became NaN because an element was NaN or infinite
  int64_t encode_us = 0;          // the part of compute_us in which this rank encoded its contribution
  int64_t sum_us = 0;     // the part of compute_us in which this rank decoded and added contributions, and encoded their sum
  int64_t decode_us = 0;  // the part of compute_us in which this rank decoded results
  // Set with CallOptions::measure_error: energy(result - exact sum) / energy(exact sum). -1: it was not measured.
  double measured_error = -1;

  // Says which links between hosts broke and were connected anew while the operation ran. Empty: none.
  std::string link_note{};

  std::shared_ptr<const DeliveryReport> delivery{};  // set for calls with lossy or automatic delivery, otherwise null

  // Returns the number of payload bits per sent element. If an element was sent twice, it counts twice.
  double bits_per_element() const {
    return sent_elements == 0 ? 0 : 8.0 * static_cast<double>(sent_payload) / static_cast<double>(sent_elements);
  }

  // Returns the signal-to-noise ratio, which is measured_error in decibels. Infinite: there was no error. NaN: it was not
  // measured.
  UNISONO_EXPORT double snr_db() const;

  // Returns one line of text for logs.
  UNISONO_EXPORT std::string to_string() const;
};

}  // namespace unisono
