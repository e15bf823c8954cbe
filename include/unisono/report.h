// Report of one operation: contributors, traffic, time and the ranks that were late.
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
  std::string_view operation = "none";  // static text, like the schedule's name; for example all_reduce
  uint64_t number = 0;                  // in its group: by call order, CallOptions::id, or message count of this tag
  std::string_view schedule = "none";   // "two_step", "ring", … or "none" if nothing moved
  uint32_t world_size = 0;              // members of the group
  uint32_t contributors = 0;            // ranks whose data is in the result; world_size unless the result is partial
  uint64_t sent_bytes = 0;              // on the wire or in shared memory, headers included
  uint64_t received_bytes = 0;          // likewise
  uint64_t sent_messages = 0;
  uint64_t received_messages = 0;
  int64_t total_us = 0;  // start to finish
  int64_t wait_us = 0;   // from the start to the last rank's first message: time lost to late ranks
  // Sums, conversions, encoding, and copies to and from shared memory. Excludes parts that are too short to be timed.
  int64_t compute_us = 0;
  int64_t transfer_us = 0;        // the rest
  int32_t last_rank = -1;         // the rank whose first message came last; -1: this rank waited for none
  Codec codec{};                  // the codec used
  std::string_view codec_note{};  // why it differs from the requested codec; static text, empty if it does not
  uint32_t passes = 0;            // encodings per element, one after the other
  uint64_t sent_payload = 0;      // share of sent_bytes: elements and their scales, without headers
  uint64_t sent_elements = 0;     // elements in sent_payload
  uint64_t saturated = 0;         // at this rank: elements beyond the scale type's range, or results beyond the tensor type's
  uint64_t nonfinite_groups = 0;  // at this rank: groups of elements that became NaN, as one was NaN or infinite
  int64_t encode_us = 0;          // share of compute_us: encoding this rank's contribution
  int64_t sum_us = 0;             // share of compute_us: decoding and adding encoded contributions, and encoding their sum
  int64_t decode_us = 0;          // share of compute_us: decoding results
  // CallOptions::measure_error: energy of (result - exact sum) over energy of the exact sum; -1: not measured.
  double measured_error = -1;

  std::shared_ptr<const DeliveryReport> delivery{};  // of a call that asked for lossy or automatic delivery, else null

  // Payload bits per element sent; an element that was sent twice counts twice.
  double bits_per_element() const {
    return sent_elements == 0 ? 0 : 8.0 * static_cast<double>(sent_payload) / static_cast<double>(sent_elements);
  }

  // measured_error in decibels. Infinite: no error. NaN: not measured.
  UNISONO_EXPORT double snr_db() const;

  // One line for logs.
  UNISONO_EXPORT std::string to_string() const;
};

}  // namespace unisono
