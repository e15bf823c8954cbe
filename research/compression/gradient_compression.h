// Which gradients are sent smaller, and by what: what --compress and --baseline say.
//
// --compress is the library's own: GradientReducer, as Compression::parse reads it. --baseline is other people's methods, which
// the tree has for comparison only (src/baselines), with the same words for what they have in common.
#pragma once

#include <cstdint>
#include <string>

#include "unisono/compression.h"
#include "unisono/status.h"

namespace language_model {

struct GradientCompression {
  // reducer: the library's. top_k: each rank's own largest elements, by all-gather. power_sgd: two factors of low rank, as many
  // bytes as the rows and sketches that the same options keep. Both with EF14.
  enum class By : uint8_t { nothing, reducer, top_k, power_sgd };
  By by = By::nothing;
  unisono::Compression options = {};  // of top_k and power_sgd: ratio, rank, round, seed, start, max_payload and min_elements

  // "arc:ratio=0.1,adaptive=on", "top-k:ratio=0.1": what has its default is left out; empty: nothing.
  std::string to_string() const;
};

// text: "arc:ratio=0.2,rank=4"; empty: nothing. feedback: short for its feedback=; empty: as the text says. The optimizer is
// Adam, so adaptive is on. invalid (bad_option): names what is wrong; feedback without a text, or another than the text's.
unisono::Result<GradientCompression> parse_compress(const std::string& text, const std::string& feedback);
// text: "top-k:ratio=0.1" or "power-sgd:ratio=0.2,rank=4"; empty: nothing. invalid: names what is wrong.
unisono::Result<GradientCompression> parse_baseline(const std::string& text);

}  // namespace language_model
