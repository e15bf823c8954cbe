// What happened in one operation: who contributed, what it cost, who was waited for.
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
  std::string_view operation = "none";  // "all_reduce"; static text, as the schedule's name
  uint64_t number = 0;  // of the operation in its group: by order of calls, CallOptions::id, or of messages with this tag
  std::string_view schedule = "none";  // "two_step", "ring", … or "none" where nothing moved
  uint32_t world_size = 0;             // members of the group
  uint32_t contributors = 0;           // ranks whose data is in the result; world_size unless the result is partial
  uint64_t sent_bytes = 0;             // on the wire or in shared memory, headers included
  uint64_t received_bytes = 0;         // likewise
  uint64_t sent_messages = 0;
  uint64_t received_messages = 0;
  int64_t total_us = 0;  // start to finish
  int64_t wait_us = 0;   // start to the first message of the last rank to send one: time lost to late ranks
  int64_t compute_us =
      0;  // sums, conversions, encoding, and copies in and out of shared memory; what is too short to be timed is not in it
  int64_t transfer_us = 0;        // the rest
  int32_t last_rank = -1;         // the rank whose first message came last; -1 if none was awaited
  Codec codec{};                  // that was used
  std::string_view codec_note{};  // why it is not the one that was asked for; static text, empty if it is
  uint32_t passes = 0;            // encodings that an element went through, one after the other
  uint64_t sent_payload = 0;      // of sent_bytes: elements and their scales, without any headers
  uint64_t sent_elements = 0;     // that those were
  uint64_t saturated = 0;  // elements that were too large for the scales' type, or results for the tensor's, at this rank
  uint64_t nonfinite_groups = 0;  // groups of elements that became NaN, because a NaN or an infinity was in them, at this rank
  int64_t encode_us = 0;          // of compute_us: encoding what this rank gives
  int64_t sum_us = 0;             // likewise: decoding and adding contributions that came encoded, and encoding their sum
  int64_t decode_us = 0;          // likewise: decoding results
  double measured_error =
      -1;  // CallOptions::measure_error: energy of (result - exact sum) over energy of the exact sum; -1: not measured

  std::shared_ptr<const DeliveryReport> delivery{};  // of a call that was asked to be lossy or automatic, else null

  // On the wire, each time that one was sent.
  double bits_per_element() const {
    return sent_elements == 0 ? 0 : 8.0 * static_cast<double>(sent_payload) / static_cast<double>(sent_elements);
  }

  // measured_error in decibels: infinite where nothing was lost; NaN: not measured.
  UNISONO_EXPORT double snr_db() const;

  // One line for logs.
  UNISONO_EXPORT std::string to_string() const;
};

}  // namespace unisono
