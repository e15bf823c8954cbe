// How gradients are made smaller on their way: which method, how much is sent, and what becomes of the rest.
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
  // dense: everything is averaged. arc_top_k: the rows of each tensor whose average is longest, by a sketch that all ranks
  // share. random_k: random rows, the same on all ranks. power_sgd: the average as the product of two factors of `rank`
  // columns.
  enum class Method : uint8_t { dense = 0, arc_top_k = 1, random_k = 2, power_sgd = 3 };
  // The fate of values that are not sent. ef14: they are added to this rank's next gradient; for any optimizer. With methods
  // that send rows they are the other rows. With power_sgd they are the difference between this rank's gradient and the result,
  // and ef21 and ef21m are refused. ef21, ef21m: each rank sends the difference between its gradient (ef21m: its running mean)
  // and the copy of it that the others hold; for SGD.
  enum class Feedback : uint8_t { none = 0, ef14 = 1, ef21 = 2, ef21m = 3 };
  // A step in which some rank has a gradient that is not finite is skipped by all. poison: that bucket's gradients become NaN
  // on all of them, for a loss scaler to see.
  enum class OnNonfinite : uint8_t { skip = 0, poison = 1 };
  struct RatioFrom {
    uint64_t step = 0;
    double ratio = 0;
    friend bool operator==(const RatioFrom&, const RatioFrom&) = default;
  };

  Method method = Method::arc_top_k;
  double ratio = 0.2;       // kept share of a tensor's rows, (0, 1], in millionths
  uint32_t rank = 4;        // numbers in the sketch of a row; of power_sgd: columns of the factors
  bool round_down = false;  // the number of kept rows, at least 1; else it is rounded up
  uint64_t seed = 0;        // of what is random, with the step and the tensor
  Feedback feedback = Feedback::ef14;
  float eta = 0.1f;                 // of ef21m: a gradient's weight in the running mean, (0, 1]
  uint64_t start_step = 1000;       // the first step that is compressed; those before are averaged whole
  std::vector<RatioFrom> schedule;  // the ratio from these steps on, ascending; before the first one `ratio`
  double max_payload = 0.9;         // a tensor whose rows and sketch, or factors, are more than this share of it is averaged
                                    // whole, (0, 1]
  uint64_t min_elements = 1024;     // likewise one that has fewer
  bool auto_off = true;  // whole where compression does not pay: by what links and memory are measured to do, and in the run by
                         // the step's time
  Codec values;          // that rows travel with; what it loses goes to this rank's next gradient
  ScheduleKind values_schedule =
      ScheduleKind::automatic;  // of the all-reduce of rows. Named: their codec is used wherever it can be; else where it pays
  Codec sketch;                 // that the sketch travels with: it can only change which rows are chosen
  uint32_t refresh_every = 0;   // each row is sent at least once in so many steps; 0: no promise
  bool absorb_codec_error = true;  // false: what `values` loses is lost
  OnNonfinite on_nonfinite = OnNonfinite::skip;
  bool adaptive_optimizer =
      false;  // Adam or one of its kin will use the averages: for a warning. Need not be equal on all ranks, as all else
  friend bool operator==(const Compression&, const Compression&) = default;

  // "dense", "arc", "random-k" or "power_sgd", then ":" and options, separated by commas: ratio, rank, round (up, down), seed,
  // feedback (none, ef14, ef21, ef21m), eta, start, schedule (0.5@2000/0.2@3000: ratios and the steps they begin at),
  // max_payload, min_elements, auto_off (on, off), values and sketch (a codec without options of its own), values_schedule
  // (auto, ring, two_step, …), refresh, absorb (on, off), nonfinite (skip, poison), adaptive (on, off). power_sgd takes rank,
  // seed, feedback, start, max_payload, min_elements, auto_off, values_schedule, nonfinite and adaptive. invalid (bad_option):
  // names the part that is wrong and what is allowed.
  UNISONO_EXPORT static Result<Compression> parse(std::string_view text);
  // Text in the form that parse() reads, without options that have their default (codec options too).
  UNISONO_EXPORT std::string to_string() const;
  // invalid (bad_option): the first thing that is wrong.
  UNISONO_EXPORT Status check() const;
};

}  // namespace unisono
