// The output of `unisono-lab bench compress`: a table, JSON lines, a picture. Pure.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "cli/bench/bench_plan.h"
#include "cli/common/plot.h"
#include "lab/compressors/compress_method.h"

namespace unisono::cli {

struct CompressRow {
  Method method = Method::dense;
  Codec codec{};               // of its values
  uint64_t payload_bytes = 0;  // of a rank and step
  uint64_t sent_bytes = 0;     // likewise, mean over ranks
  uint32_t collectives = 0;
  std::array<Timing, phase_count> phases{};
  Timing total;
  double captured = 0, error = 0;       // of the last step, relative to the energy of the mean
  bool alike = true;                    // all ranks ended with the same bits
  std::vector<std::string> treatments;  // by tensor
  std::string label() const;            // "arc", "arc int8"
};

// "# data: …", what becomes of each tensor, and the names of the columns.
std::string compress_head(const CompressPlan& plan, const std::vector<CompressRow>& rows);
std::string compress_row(const CompressRow& row, const std::vector<CompressRow>& rows);
std::string compress_json(const CompressPlan& plan, const CompressRow& row, const std::vector<CompressRow>& rows);
// Time by phases; error against bytes.
std::vector<Panel> compress_panels(const std::vector<CompressRow>& rows);

}  // namespace unisono::cli
