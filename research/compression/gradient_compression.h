// Selects the method that compresses gradients.
//
// The option --compress selects the library's GradientReducer and takes the options of Compression::parse. The option
// --baseline selects one of the other methods, which serve for comparison (src/lab/compressors, src/compressors). Options that
// both have are spelled in the same way.
#pragma once

#include <cstdint>
#include <string>

#include "unisono/compression.h"
#include "unisono/status.h"

namespace language_model {

struct GradientCompression {
  // - reducer: the library's GradientReducer.
  // - top_k: Every rank sends its largest elements to all others (an all-gather).
  // - power_sgd: The gradient is sent as two low-rank factors. If the options are the same, the factors have as many bytes as
  //   the rows and sketches that ARC-Top-K sends.
  //
  // top_k and power_sgd use error feedback (EF14).
  enum class By : uint8_t { nothing, reducer, top_k, power_sgd };
  By by = By::nothing;
  // top_k and power_sgd use only ratio, rank, round, seed, start, max_payload and min_elements, and ignore the other options.
  unisono::Compression options = {};

  // Returns a text like "arc:ratio=0.1,adaptive=on" or "top-k:ratio=0.1". The text leaves out all options that have their
  // default values. It is empty for `nothing`.
  std::string to_string() const;
};

// Parses the value of --compress, for example "arc:ratio=0.2,rank=4". An empty text means no compression. `feedback` is the
// value of --feedback, and means the same as feedback= in the text; if it is empty, the text decides. The result always has
// `adaptive` on, because the optimizer is Adam.
//
// Returns invalid, with the name of the option, if an option is wrong. It is also an error to give `feedback` without a text,
// or a `feedback` that contradicts the text.
unisono::Result<GradientCompression> parse_compress(const std::string& text, const std::string& feedback);
// Parses the value of --baseline, for example "top-k:ratio=0.1" or "power-sgd:ratio=0.2,rank=4". An empty text means no
// compression. Returns invalid, with the name of the option, if an option is wrong.
unisono::Result<GradientCompression> parse_baseline(const std::string& text);

}  // namespace language_model
