#include "lab/compressors/compress_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/common/byte_stream.h"
#include "cli/common/option_values.h"
#include "cli/common/text.h"
#include "compressors/counter_random.h"

namespace unisono::lab {

using cli::ByteSource;
using cli::of_option;
using cli::parse_count;
using cli::split_list;

namespace {

constexpr uint64_t elements_max = uint64_t{1} << 32;
constexpr std::pair<const char*, GradientModel> models[] = {
    {"gaussian", GradientModel::gaussian}, {"decay", GradientModel::decay}, {"rank-one", GradientModel::rank_one}};

// The random numbers of a tensor have these parts: the shared matrix, two shared vectors, and the noise. Rank r takes its noise
// from part of_noise + r.
enum Part : uint64_t { of_matrix = 0, of_rows = 1, of_columns = 2, of_noise = 16 };

void draw(uint64_t seed, uint64_t part, uint32_t tensor, std::span<float> out) {
  RandomStream{.seed = seed, .step = part, .tensor = tensor, .purpose = RandomStream::Purpose::test_data}.normals(0, out);
}

Status read_file(const std::string& path, std::span<float> out) {
  auto source = of_option("--gradients", ByteSource::open(path));
  if (!source.ok()) return source.status();
  const auto got = of_option("--gradients", source->read(std::as_writable_bytes(out)));
  if (!got.ok()) return got.status();
  std::byte more[1];
  const auto rest = source->read(more);
  if (rest.ok() && *got == out.size_bytes() && *rest == 0) return {};
  const auto size = *got < out.size_bytes() ? fmt::format("has {} bytes", *got) : "has more bytes";
  return {Code::invalid, fmt::format("--gradients {} {}; the tensors of --shape have {} elements of fp32, {} bytes", path, size,
                                     out.size(), out.size_bytes())};
}

}  // namespace

Result<std::vector<TensorShape>> parse_shapes(std::string_view text) {
  std::vector<TensorShape> shapes;
  const auto refuse = [](const std::string& word) {
    return Status(Code::invalid, fmt::format("--shape '{}': expected whole numbers with an x between them, such as 4096x4096 "
                                             "or 512, at most 2^32 elements; commas between tensors",
                                             word));
  };
  for (const auto& word : split_list(text)) {
    TensorShape shape;
    uint64_t elements = 1;
    for (size_t at = 0; at <= word.size();) {
      const auto end = std::min(word.find('x', at), word.size());
      const auto dimension = parse_count(std::string_view(word).substr(at, end - at), elements_max);
      if (!dimension.ok() || *dimension == 0 || *dimension > elements_max / elements) return refuse(word);
      elements *= *dimension;
      shape.push_back(*dimension);
      at = end + 1;
    }
    shapes.push_back(std::move(shape));
  }
  if (shapes.empty()) return refuse("");
  return shapes;
}

std::string shape_text(const TensorShape& shape) { return fmt::format("{}", fmt::join(shape, "x")); }

std::vector<std::string> gradient_model_names() {
  std::vector<std::string> names;
  for (const auto& [name, model] : models) names.emplace_back(name);
  return names;
}

Result<GradientModel> parse_gradient_model(std::string_view text) {
  for (const auto& [name, model] : models) {
    if (text == name) return model;
  }
  return Status(Code::invalid, fmt::format("--data '{}' is none of {}", text, fmt::join(gradient_model_names(), ", ")));
}

const char* name(GradientModel model) { return models[static_cast<size_t>(model)].first; }

uint64_t GradientPlan::elements() const {
  uint64_t sum = 0;
  for (const auto& shape : shapes) sum += matrix_of(shape).elements();
  return sum;
}

std::vector<GroupTensor> GradientPlan::tensors() const {
  std::vector<GroupTensor> all;
  for (const auto& shape : shapes) all.push_back({.number = static_cast<uint32_t>(all.size()), .shape = shape});
  return all;
}

void Gradients::make_tensor(const GradientPlan& plan, uint32_t rank, uint32_t tensor, std::span<float> shared,
                            std::span<float> noise) {
  const auto [rows, columns] = matrix_of(plan.shapes[tensor]);
  tensors_.push_back({rows, columns});
  std::vector<float> left(rows, 1), right;
  if (plan.model == GradientModel::rank_one) {
    right.resize(columns);
    draw(plan.seed, of_rows, tensor, left);
    draw(plan.seed, of_columns, tensor, right);
  } else {
    draw(plan.seed, of_matrix, tensor, shared);
    for (size_t i = 0; plan.model == GradientModel::decay && i < rows; ++i)
      left[i] = static_cast<float>(1 / std::sqrt(static_cast<double>(i + 1)));
  }
  draw(plan.seed, of_noise + rank, tensor, noise);
  for (size_t i = 0; i < rows; ++i) {
    float* const row = shared.data() + i * columns;
    double squares = 0;
    for (size_t k = 0; k < columns; ++k) {
      row[k] = left[i] * (right.empty() ? row[k] : right[k]);
      squares += double{row[k]} * row[k];
    }
    noise_scale_.push_back(static_cast<float>(plan.noise * std::sqrt(squares / static_cast<double>(columns))));
  }
}

Result<Gradients> Gradients::make(const GradientPlan& plan, uint32_t rank) {
  Gradients made;
  made.shared_.resize(plan.elements());
  if (!plan.file.empty()) {
    auto path = plan.file;
    if (const auto at = path.find("{rank}"); at != std::string::npos) path.replace(at, 6, std::to_string(rank));
    if (auto status = read_file(path, made.shared_); !status.ok()) return status;
    return made;
  }
  made.noise_.resize(plan.elements());
  size_t first = 0;
  for (uint32_t tensor = 0; tensor < plan.shapes.size(); ++tensor) {
    const auto elements = matrix_of(plan.shapes[tensor]).elements();
    made.make_tensor(plan, rank, tensor, std::span(made.shared_).subspan(first, elements),
                     std::span(made.noise_).subspan(first, elements));
    first += elements;
  }
  return made;
}

// The noise consists of the same numbers in each step, but begins at another of them. To draw new noise would take longer than
// most methods do.
void Gradients::fill(uint64_t step, std::span<float> out) const {
  std::copy(shared_.begin(), shared_.end(), out.begin());
  if (noise_.empty()) return;
  size_t from = step % noise_.size() * 7919 % noise_.size(), row = 0, at = 0;
  for (const auto& [rows, columns] : tensors_) {
    for (size_t i = 0; i < rows; ++i, ++row) {
      for (size_t k = 0; k < columns; ++k, ++at) {
        out[at] += noise_scale_[row] * noise_[from];
        if (++from == noise_.size()) from = 0;
      }
    }
  }
}

}  // namespace unisono::lab
