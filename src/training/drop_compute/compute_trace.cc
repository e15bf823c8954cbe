#include "training/drop_compute/compute_trace.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <tuple>

#include "base/concat.h"
#include "base/random.h"

namespace unisono {
namespace {

// The longest time that is allowed, 36 years. With this limit, the sum of a few times fits 64 bits, and the sum over a trace
// fits 128 bits.
constexpr int64_t time_most_ns = (int64_t{1} << 60) - 1;
constexpr uint64_t times_most = uint64_t{1} << 32;

Status bad_trace(const std::string& what) { return {Code::invalid, what}; }

struct Row {
  uint64_t step = 0, rank = 0;
  size_t line = 0;
  int64_t wall = 0;
  size_t first_end = 0;  // index in Rows::ends_ at which the row's end times begin
};

// Holds the lines of a file, in the order of the file.
class Rows {
 public:
  Status read(size_t line, std::string_view text);
  Result<ComputeTrace> trace();

 private:
  Status read_head(std::string_view text);
  std::string field_name(size_t field) const {
    return field < 3 ? std::array{"step", "rank", "wall_ns"}[field] : concat("end_", field - 2, "_ns");
  }
  template <typename Number>
  Status number(std::string_view field, size_t which, Number& value) const;
  Status sort();

  std::string head_;
  size_t micro_batches_ = 0;
  std::vector<Row> rows_;
  std::vector<int64_t> ends_;
};

Status Rows::read_head(std::string_view text) {
  const auto fields = static_cast<size_t>(std::count(text.begin(), text.end(), ',')) + 1;
  if (fields > 3 && fields <= times_most) head_ = ComputeTrace::head(static_cast<uint32_t>(fields - 3));
  if (head_.empty() || text != head_)
    return bad_trace("the first line is not step,rank,wall_ns,end_1_ns,…, with a number for each end");
  micro_batches_ = fields - 3;
  return {};
}

template <typename Number>
Status Rows::number(std::string_view field, size_t which, Number& value) const {
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  const auto names = field_name(which) + " \"" + std::string(field.substr(0, 40)) + "\"";
  if (error == std::errc::result_out_of_range) return bad_trace(names + " is too large");
  if (error != std::errc() || end != field.data() + field.size()) return bad_trace(names + " is not a valid whole number");
  if constexpr (std::is_signed_v<Number>) {
    if (value < 0) return bad_trace(names + " is negative");
    if (value > time_most_ns) return bad_trace(names + " is too large");
  }
  return {};
}

// Parses one line. A file may consist of the concatenated files of several ranks, so its head line may be repeated.
Status Rows::read(size_t line, std::string_view text) {
  if (head_.empty()) return read_head(text);
  if (text == head_) return {};
  const auto fields = static_cast<size_t>(std::count(text.begin(), text.end(), ',')) + 1;
  if (fields < 3 + micro_batches_)
    return bad_trace(concat("truncated_trace: line ", line, " has ", fields, " fields of ", 3 + micro_batches_));
  if (fields > 3 + micro_batches_)
    return bad_trace(concat("line ", line, " has ", fields, " fields, more than the first line's ", 3 + micro_batches_));
  Row row{.line = line, .first_end = ends_.size()};
  int64_t time = 0;
  for (size_t field = 0; field < fields; ++field) {
    const auto word = text.substr(0, text.find(','));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (word.empty()) return bad_trace(concat("truncated_trace: line ", line, ": ", field_name(field), " is missing"));
    const int64_t before = time;
    const auto status =
        field < 2 ? number(word, field, field == 0 ? row.step : row.rank) : number(word, field, field == 2 ? row.wall : time);
    if (!status.ok()) return bad_trace(concat("line ", line, ": ", status.message()));
    if (time < before)
      return bad_trace(
          concat("line ", line, ": ", field_name(field), " is ", time, ", before the end of the one before it, ", before));
    if (field > 2) ends_.push_back(time);
  }
  rows_.push_back(row);
  return {};
}

// Sorts the rows by step and rank.
Status Rows::sort() {
  std::sort(rows_.begin(), rows_.end(),
            [](const Row& a, const Row& b) { return std::tie(a.step, a.rank, a.line) < std::tie(b.step, b.rank, b.line); });
  const auto twice = std::adjacent_find(rows_.begin(), rows_.end(),
                                        [](const Row& a, const Row& b) { return a.step == b.step && a.rank == b.rank; });
  if (twice == rows_.end()) return {};
  return bad_trace(
      concat("line ", twice[1].line, " repeats step ", twice->step, " of rank ", twice->rank, " from line ", twice->line));
}

Result<ComputeTrace> Rows::trace() {
  if (head_.empty()) return bad_trace("too_few_steps: the trace is empty");
  if (auto status = sort(); !status.ok()) return status;
  std::vector<uint64_t> ranks;
  for (const auto& row : rows_) ranks.push_back(row.rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  ComputeTrace trace{.workers = static_cast<uint32_t>(ranks.size()), .micro_batches = static_cast<uint32_t>(micro_batches_)};
  for (auto row = rows_.begin(); row != rows_.end();) {
    const auto next = std::find_if(row, rows_.end(), [&](const Row& other) { return other.step != row->step; });
    const bool complete = static_cast<size_t>(next - row) == ranks.size();
    for (; row != next; ++row) {
      if (!complete) continue;
      const auto first = ends_.begin() + static_cast<std::ptrdiff_t>(row->first_end);
      trace.ends.insert(trace.ends.end(), first, first + trace.micro_batches);
      trace.walls.push_back(row->wall);
    }
  }
  if (trace.walls.empty())
    return bad_trace(concat("too_few_steps: in ", rows_.size(), " lines, no step has lines of all ", ranks.size(), " ranks"));
  if (auto status = trace.check(); !status.ok()) return status;
  return trace;
}

}  // namespace

int64_t ComputeTrace::compute_ns(size_t step) const {
  int64_t last = 0;
  for (size_t worker = 0; worker < workers; ++worker) last = std::max(last, ends_of(step, worker).back());
  return last;
}

// The sums are integers and there is only one division. Therefore the result does not depend on the order of steps and workers.
double ComputeTrace::other_ns() const {
  Wide wall = 0, compute = 0;
  for (const int64_t each : walls) wall += static_cast<Wide>(each);
  for (size_t step = 0; step < steps(); ++step) compute += static_cast<Wide>(compute_ns(step)) * workers;
  return wall <= compute ? 0 : static_cast<double>(wall - compute) / static_cast<double>(walls.size());
}

int64_t ComputeTrace::micro_batch_ns() const {
  if (ends.empty()) return 0;
  Wide sum = 0;
  for (size_t last = micro_batches - 1; last < ends.size(); last += micro_batches) sum += static_cast<Wide>(ends[last]);
  return static_cast<int64_t>((2 * sum + ends.size()) / (2 * ends.size()));
}

uint64_t ComputeTrace::hash() const {
  uint64_t hash = mix64(workers);
  const auto add = [&hash](uint64_t value) { hash = mix64(hash ^ value); };
  add(micro_batches);
  add(walls.size());
  for (const int64_t each : ends) add(static_cast<uint64_t>(each));
  for (const int64_t each : walls) add(static_cast<uint64_t>(each));
  return hash;
}

Status ComputeTrace::check() const {
  if (workers == 0 || micro_batches == 0 || walls.empty())
    return bad_trace(concat("too_few_steps: a trace of ", steps(), " steps of ", workers, " workers with ", micro_batches,
                            " micro-batches each"));
  if (walls.size() % workers != 0 || ends.size() / micro_batches != walls.size() || ends.size() % micro_batches != 0) {
    return bad_trace(concat("truncated_trace: ", ends.size(), " ends and ", walls.size(), " steps' times of ", workers,
                            " workers with ", micro_batches, " micro-batches each"));
  }
  if (ends.size() >= times_most)
    return bad_trace(concat("a trace of ", ends.size(), " times; at most ", times_most - 1, " are allowed"));
  for (size_t row = 0; row < walls.size(); ++row) {
    const auto position_text = [&] { return concat("step ", row / workers, " of worker ", row % workers, " of the trace"); };
    if (walls[row] < 0 || walls[row] > time_most_ns) return bad_trace(concat(position_text(), " took ", walls[row], " ns"));
    int64_t before = 0;
    for (size_t end = row * micro_batches; end < (row + 1) * micro_batches; before = ends[end++]) {
      if (ends[end] >= before && ends[end] <= time_most_ns) continue;
      return bad_trace(concat(position_text(), " has a micro-batch that ends at ", ends[end], " ns, after one at ", before));
    }
  }
  return {};
}

std::string ComputeTrace::head(uint32_t micro_batches) {
  std::string text = "step,rank,wall_ns";
  for (uint32_t m = 1; m <= micro_batches; ++m) text += concat(",end_", m, "_ns");
  return text;
}

Result<ComputeTrace> ComputeTrace::parse(std::string_view text) {
  Rows rows;
  for (size_t line = 1; !text.empty(); ++line) {
    auto words = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(words.size() + 1, text.size()));
    if (words.ends_with('\r')) words.remove_suffix(1);
    if (words.empty()) continue;
    if (auto status = rows.read(line, words); !status.ok()) return status;
  }
  return rows.trace();
}

}  // namespace unisono
