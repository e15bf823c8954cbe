// Options of gradient compression: a method, the share of values that is sent, and the treatment of the other values.
//
//   auto compression = unisono::Compression::parse("arc:ratio=0.2,rank=4,feedback=ef14,start=1000");
//   auto low_rank = unisono::Compression::parse("power_sgd:rank=4");
//
// Sources: ARC-Top-K (arXiv:2510.26709); PowerSGD (arXiv:1905.13727); EF21 (arXiv:2106.05203) and EF21-SGDM (arXiv:2305.15155)
// for feedback.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/codec.h"
#include "unisono/export.h"
#include "unisono/options.h"
#include "unisono/status.h"

namespace unisono {

struct Compression {
  // - dense: averages everything.
  // - arc_top_k: averages only some rows of each tensor: those whose average is longest. A sketch estimates the lengths; all
  //   ranks share it.
  // - random_k: averages random rows, the same on all ranks.
  // - power_sgd: approximates the average by a product of two factors of `rank` columns.
  enum class Method : uint8_t { dense = 0, arc_top_k = 1, random_k = 2, power_sgd = 3 };
  // Error feedback: what a rank does with the values that it does not send.
  // - ef14: the rank adds them to its next gradient; for any optimizer. With arc_top_k and random_k they are the unselected
  //   rows. With power_sgd they are this rank's gradient minus the result.
  // - ef21: the rank sends its gradient minus the copy of it that the other ranks hold; for SGD.
  // - ef21m: like ef21, but with the running mean of the gradient.
  // power_sgd accepts only ef14 and none.
  enum class Feedback : uint8_t { none = 0, ef14 = 1, ef21 = 2, ef21m = 3 };
  // The handling of a step by all ranks if a rank's gradient is not finite. skip: they skip the step. poison: they skip it, and
  // set the gradients of the affected buckets to NaN, so that a loss scaler notices.
  enum class OnNonfinite : uint8_t { skip = 0, poison = 1 };
  struct RatioFrom {
    uint64_t step = 0;
    double ratio = 0;
    friend bool operator==(const RatioFrom&, const RatioFrom&) = default;
  };

  Method method = Method::arc_top_k;
  double ratio = 0.2;       // share of a tensor's rows that is sent, in (0, 1]; rounded to millionths
  uint32_t rank = 4;        // values per row of the sketch; with power_sgd: columns of the factors
  bool round_down = false;  // true: ratio * rows is rounded down, but to at least 1; false: rounded up
  uint64_t seed = 0;        // random numbers depend on this seed, the step and the tensor
  Feedback feedback = Feedback::ef14;
  float eta = 0.1f;                 // with ef21m: weight of a new gradient in the running mean, (0, 1]
  uint64_t start_step = 1000;       // first compressed step; earlier steps average whole gradients
  std::vector<RatioFrom> schedule;  // each entry replaces `ratio` from its step on; steps ascend
  // A tensor is averaged whole if its compressed size is more than this share of its full size. In (0, 1].
  double max_payload = 0.9;
  uint64_t min_elements = 1024;  // a tensor with fewer elements is averaged whole
  // true: compression is switched off where it does not save time. Measured link and memory speeds and step times decide.
  bool auto_off = true;
  Codec values;  // codec of the rows; its error is added to this rank's next gradient
  // Schedule of the all-reduce that sends the rows. automatic: the codec `values` is used only where it saves time. Any other
  // schedule: `values` is used wherever possible.
  ScheduleKind values_schedule = ScheduleKind::automatic;
  Codec sketch;  // codec of the sketch; affects only which rows are selected
  // If not 0, each row is sent at least once in this many steps, even if other rows are longer. At most half of the rows that a
  // step sends are chosen for this reason. If a step sends few rows, some rows must therefore wait for more steps. If a step
  // sends only one row, nothing is guaranteed.
  uint32_t refresh_every = 0;
  bool absorb_codec_error = true;  // false: the error of the codec `values` is discarded
  OnNonfinite on_nonfinite = OnNonfinite::skip;
  // true: the optimizer is adaptive, like Adam; this enables a warning. Only this field may differ between ranks.
  bool adaptive_optimizer = false;
  friend bool operator==(const Compression&, const Compression&) = default;

  // Accepts "dense", "arc", "random-k" or "power_sgd", then ":" and options, separated by commas:
  // - ratio, rank, seed, eta, start, max_payload, min_elements, refresh: numbers
  // - round (up, down), feedback (none, ef14, ef21, ef21m), nonfinite (skip, poison)
  // - auto_off, absorb, adaptive (on, off)
  // - schedule: ratios and their first steps, such as 0.5@2000/0.2@3000
  // - values, sketch: a codec without options of its own
  // - values_schedule (auto, ring, two_step, …)
  // power_sgd takes rank, seed, feedback, start, max_payload, min_elements, auto_off, values_schedule, nonfinite and adaptive.
  // Returns invalid (bad_option) for any other text. The message names the wrong part and the allowed values.
  UNISONO_EXPORT static Result<Compression> parse(std::string_view text);
  // Returns text for parse(). It leaves out options with default values, and options of codecs.
  UNISONO_EXPORT std::string to_string() const;
  // Returns ok, or invalid (bad_option) with the name of the first field that is out of range.
  UNISONO_EXPORT Status check() const;
};

}  // namespace unisono
