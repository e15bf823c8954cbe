// The method that compresses gradients: what --compress and --baseline say.
//
// --compress is the library's GradientReducer, with options as Compression::parse reads them. --baseline names methods to
// compare with (src/lab/compressors, src/compressors); common options have the same names.
#pragma once

#include <cstdint>
#include <string>

#include "unisono/compression.h"
#include "unisono/status.h"

namespace language_model {

struct GradientCompression {
  // reducer: the library's GradientReducer. top_k: an all-gather of each rank's own largest elements. power_sgd: two factors of
  // low rank, with as many bytes as the rows and sketches of ARC-Top-K with the same options. Both use EF14.
  enum class By : uint8_t { nothing, reducer, top_k, power_sgd };
  By by = By::nothing;
  unisono::Compression options = {};  // of top_k and power_sgd: ratio, rank, round, seed, start, max_payload and min_elements

  // "arc:ratio=0.1,adaptive=on", "top-k:ratio=0.1": what has its default is left out; empty: nothing.
  std::string to_string() const;
};

// text: "arc:ratio=0.2,rank=4"; empty: nothing. feedback: short for feedback= in the text; empty: as the text says. adaptive is
// on, because the optimizer is Adam. invalid (bad_option): names the wrong option; also feedback without a text, or one that
// contradicts it.
unisono::Result<GradientCompression> parse_compress(const std::string& text, const std::string& feedback);
// text: "top-k:ratio=0.1" or "power-sgd:ratio=0.2,rank=4"; empty: nothing. invalid: names the wrong option.
unisono::Result<GradientCompression> parse_baseline(const std::string& text);

}  // namespace language_model
