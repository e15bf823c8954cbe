// Formats the output of `unisono-lab bench compress`: a table, JSON lines, plots. Performs no I/O.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "cli/bench/bench_plan.h"
#include "cli/common/plot.h"
#include "lab/compressors/compress_method.h"

namespace unisono::lab {

struct CompressRow {
  Method method = Method::dense;
  Codec codec{};               // codec that encodes the values of the method
  uint64_t payload_bytes = 0;  // how many bytes a rank passes to collectives in one step
  uint64_t sent_bytes = 0;     // how many bytes a rank sends in one step; mean over the ranks
  uint32_t collectives = 0;
  std::array<cli::Timing, phase_count> phases{};
  cli::Timing total;
  // captured: the energy (sum of squares) of the last step's result. error: the energy of its error. Both are divided by the
  // energy of the exact mean.
  double captured = 0, error = 0;
  bool alike = true;                    // all ranks have bit-identical results
  std::vector<std::string> treatments;  // by tensor: what CompressMethod::treatment() returned
  std::string label() const;            // returns the method and its codec, such as "arc" or "arc int8"
};

// Returns the lines above the table: "# data: …", how each tensor is compressed, and the names of the columns.
std::string compress_head(const CompressPlan& plan, const std::vector<CompressRow>& rows);
std::string compress_row(const CompressRow& row, const std::vector<CompressRow>& rows);
std::string compress_json(const CompressPlan& plan, const CompressRow& row, const std::vector<CompressRow>& rows);
// Returns two plots: one shows how long each phase takes, the other shows the error against the bytes sent.
std::vector<cli::Panel> compress_panels(const std::vector<CompressRow>& rows);

}  // namespace unisono::lab
