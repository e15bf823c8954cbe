#include "cli/bench/bench_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cli/common/text.h"

namespace unisono::cli {
namespace {

constexpr CollectiveFacts table[] = {
    {Collective::all_reduce, "all_reduce", true, false, false, true, true},
    {Collective::reduce_scatter, "reduce_scatter", true, false, true, true, true},
    {Collective::all_gather, "all_gather", false, false, true, true, true},
    {Collective::broadcast, "broadcast", false, true, false, true, false},
    {Collective::reduce, "reduce", true, true, false, true, true},
    {Collective::gather, "gather", false, true, true, false, true},
    {Collective::scatter, "scatter", false, true, true, false, true},
    {Collective::all_to_all, "all_to_all", false, false, true, true, true},
    {Collective::send_recv, "send_recv", false, false, false, false, true},
    {Collective::barrier, "barrier", false, false, false, false, true},
};

template <typename T>
struct Name {
  std::string_view text;
  T value;
};

constexpr Name<DType> dtypes[] = {
    {"f32", DType::f32},       {"float32", DType::f32}, {"float", DType::f32},   {"f64", DType::f64},   {"float64", DType::f64},
    {"double", DType::f64},    {"f16", DType::f16},     {"float16", DType::f16}, {"half", DType::f16},  {"bf16", DType::bf16},
    {"bfloat16", DType::bf16}, {"i8", DType::i8},       {"int8", DType::i8},     {"i16", DType::i16},   {"int16", DType::i16},
    {"i32", DType::i32},       {"int32", DType::i32},   {"i64", DType::i64},     {"int64", DType::i64}, {"u8", DType::u8},
    {"uint8", DType::u8},      {"u16", DType::u16},     {"uint16", DType::u16},  {"u32", DType::u32},   {"uint32", DType::u32},
    {"u64", DType::u64},       {"uint64", DType::u64},
};
constexpr Name<ReduceOp> operations[] = {{"sum", ReduceOp::sum}, {"avg", ReduceOp::avg},   {"min", ReduceOp::min},
                                         {"max", ReduceOp::max}, {"prod", ReduceOp::prod}, {"band", ReduceOp::band},
                                         {"bor", ReduceOp::bor}, {"bxor", ReduceOp::bxor}};
constexpr Name<Order> orders[] = {{"auto", Order::automatic}, {"strict", Order::in_rank_order}, {"any", Order::any}};

std::string with_underscores(std::string_view text) {
  std::string out(text);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

Status unknown(std::string_view what, std::string_view text, const std::vector<std::string>& names) {
  const auto meant = nearest_name(text, names);
  if (!meant.empty()) return Status(Code::invalid, fmt::format("there is no {} '{}'; did you mean '{}'?", what, text, meant));
  return Status(Code::invalid, fmt::format("there is no {} '{}'; there are {}", what, text, fmt::join(names, ", ")));
}

template <typename T, size_t count>
Result<T> find_name(std::string_view what, std::string_view text, const Name<T> (&names)[count]) {
  std::vector<std::string> all;
  for (const auto& name : names) {
    if (name.text == with_underscores(text)) return name.value;
    all.emplace_back(name.text);
  }
  return unknown(what, text, all);
}

// Returns one name for each value: the first of its names in the table.
template <typename T, size_t count>
std::vector<std::string> first_names(const Name<T> (&names)[count]) {
  std::vector<std::string> all;
  for (size_t i = 0; i < count; ++i) {
    if (i == 0 || names[i].value != names[i - 1].value) all.emplace_back(names[i].text);
  }
  return all;
}

constexpr size_t sizes_max = 4096;

// Parses the value of --sizes, such as "1K,64K".
Result<std::vector<uint64_t>> parse_size_list(std::string_view list) {
  std::vector<uint64_t> sizes;
  for (const auto& word : split_list(list)) {
    const auto size = parse_bytes(word);
    if (!size.ok()) return Status(Code::invalid, "--sizes: " + size.status().message());
    sizes.push_back(*size);
  }
  if (sizes.size() > sizes_max)
    return Status(Code::invalid, fmt::format("--sizes has {} sizes; at most {}", sizes.size(), sizes_max));
  return sizes;
}

}  // namespace

const CollectiveFacts& facts_of(Collective collective) { return table[static_cast<size_t>(collective)]; }

Result<Collective> parse_collective(std::string_view text) {
  std::vector<std::string> names;
  for (const auto& facts : table) {
    auto compact = std::string(facts.name);
    std::erase(compact, '_');
    // `compact` is the name without separators; "allreduce" is a common spelling
    if (facts.name == with_underscores(text) || compact == text) return facts.collective;
    names.emplace_back(facts.name);
  }
  return unknown("collective", text, names);
}

Result<DType> parse_dtype(std::string_view text) { return find_name("element type", text, dtypes); }
Result<ReduceOp> parse_reduce_op(std::string_view text) { return find_name("operation", text, operations); }
Result<ScheduleKind> parse_schedule(std::string_view text) {
  const auto* const facts = find_schedule(with_underscores(text));
  return facts != nullptr ? Result<ScheduleKind>(facts->kind) : unknown("schedule", text, schedule_names());
}
Result<Order> parse_order(std::string_view text) { return find_name("order", text, orders); }

std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const auto& facts : table) {
    names.emplace_back(facts.name);
    std::replace(names.back().begin(), names.back().end(), '_', '-');
  }
  return names;
}
std::vector<std::string> dtype_names() { return first_names(dtypes); }
std::vector<std::string> reduce_op_names() { return first_names(operations); }
std::vector<std::string> schedule_names() { return {schedule_words.begin(), schedule_words.end()}; }
std::vector<std::string> order_names() { return first_names(orders); }

double bus_factor(Collective collective, uint32_t world_size) {
  const double n = world_size;
  switch (collective) {
    case Collective::all_reduce: return 2 * (n - 1) / n;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::gather:
    case Collective::scatter: return (n - 1) / n;
    default: return 1;
  }
}

Result<std::vector<uint64_t>> parse_sizes(const SizeRange& range) {
  if (!range.list.empty()) return parse_size_list(range.list);
  const auto begin = parse_bytes(range.begin);
  if (!begin.ok()) return Status(Code::invalid, "-b: " + begin.status().message());
  const auto end = parse_bytes(range.end);
  if (!end.ok()) return Status(Code::invalid, "-e: " + end.status().message());
  const auto step = range.step.empty() ? Result<uint64_t>(uint64_t{0}) : parse_bytes(range.step);
  if (!step.ok()) return Status(Code::invalid, "-i: " + step.status().message());
  if (*end < *begin) return Status(Code::invalid, fmt::format("-e {} is below -b {}", range.end, range.begin));
  if (!range.step.empty() && *step == 0) return Status(Code::invalid, "-i 0 never reaches the end");
  if (range.step.empty() && range.factor < 2)
    return Status(Code::invalid, fmt::format("-f {} never reaches the end: at least 2", range.factor));
  std::vector<uint64_t> sizes;
  for (uint64_t size = *begin; size <= *end;
       size = range.step.empty() ? std::max<uint64_t>(1, size * range.factor) : size + *step) {
    if (sizes.size() == sizes_max)
      return Status(Code::invalid, fmt::format("-b, -e, -f and -i give more than {} sizes", sizes_max));
    sizes.push_back(size);
    if (range.step.empty() && size > *end / range.factor) break;  // the next size would exceed `end`, or overflow
  }
  return sizes;
}

Extent extent_of(Collective collective, uint64_t bytes, DType dtype, uint32_t world_size) {
  if (collective == Collective::barrier) return {};
  const bool blocks = facts_of(collective).per_rank_blocks;
  const uint64_t element = element_bytes(dtype);
  Extent extent;
  extent.block_count = bytes / element / (blocks ? world_size : 1);
  extent.tensor_count = extent.block_count * (blocks ? world_size : 1);
  extent.bytes = extent.tensor_count * element;
  return extent;
}

Timing summarise(std::vector<double>& durations_us) {
  if (durations_us.empty()) return {};
  std::sort(durations_us.begin(), durations_us.end());
  const auto count = durations_us.size();
  const auto percentile = [&](double part) {
    const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(count)));
    return durations_us[std::clamp<size_t>(rank, 1, count) - 1];
  };
  const double sum = std::accumulate(durations_us.begin(), durations_us.end(), 0.0);
  return {.mean_us = sum / static_cast<double>(count),
          .p25_us = percentile(0.25),
          .p50_us = percentile(0.5),
          .p75_us = percentile(0.75),
          .p99_us = percentile(0.99),
          .min_us = durations_us.front(),
          .max_us = durations_us.back()};
}

}  // namespace unisono::cli
