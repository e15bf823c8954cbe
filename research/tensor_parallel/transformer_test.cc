#include "research/tensor_parallel/transformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <vector>

#include "research/tensor_parallel/measure.h"
#include "research/tensor_parallel/test_group.h"
#include "research/tensor_parallel/weights.h"

namespace tensor_parallel {
namespace {

constexpr WeightOptions weights{.seed = 11, .outlier = 20};
constexpr Shape small{.blocks = 3, .weight_sets = 2, .hidden = 96, .heads = 12, .inner = 132, .context = 41};

class Nobody final : public Reducer {
 public:
  unisono::Result<unisono::Report> sum(std::span<float>) override { return unisono::Report{}; }
};

std::vector<float> forward(Transformer& model, size_t first, size_t tokens, Reducer& reducer) {
  const auto hidden = model.forward(embeddings(model.shape(), weights, first, tokens), reducer);
  EXPECT_TRUE(hidden.ok()) << hidden.status().to_string();
  return hidden.ok() ? std::vector<float>(hidden->begin(), hidden->end()) : std::vector<float>();
}

std::vector<float> unsharded(size_t tokens) {
  Transformer model(small, weights, {});
  Nobody nobody;
  return forward(model, 0, tokens, nobody);
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST(Weights, parts_of_a_matrix_add_up_to_the_matrix) {
  const Slice whole{.matrix = 3, .columns_total = 1100, .rows = 6, .columns = 1100, .outlier = 20};
  std::vector<float> all(6 * 1100);
  fill(weights.seed, whole, all.data(), 1100);
  Slice part = whole;
  part.first_row = 2;
  part.rows = 3;
  part.first_column = 500;
  part.columns = 100;
  std::vector<float> some(3 * 100);
  fill(weights.seed, part, some.data(), 100);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t i = 0; i < 100; ++i) ASSERT_EQ(some[row * 100 + i], all[(2 + row) * 1100 + 500 + i]) << row << " " << i;
  }
}

TEST(Weights, have_the_deviation_asked_for_and_large_outlier_channels) {
  constexpr size_t rows = 400;
  const Slice slice{.matrix = 1, .columns_total = 1024, .rows = rows, .columns = 1024, .deviation = 0.5f, .outlier = 20};
  std::vector<float> values(rows * 1024);
  fill(weights.seed, slice, values.data(), 1024);
  double plain = 0, outliers = 0, mean = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    (is_outlier(i % 1024) ? outliers : plain) += static_cast<double>(values[i]) * values[i];
    if (!is_outlier(i % 1024)) mean += values[i];
  }
  EXPECT_NEAR(std::sqrt(plain / (rows * 1022)), 0.5, 0.01);
  EXPECT_NEAR(std::sqrt(outliers / (rows * 2)), 10, 1);
  EXPECT_NEAR(mean / (rows * 1022), 0, 0.01);
}

TEST(Transformer, one_of_several_ranks_each_with_its_heads_and_columns_gives_the_same_as_one_alone) {
  const auto expected = unsharded(37);
  for (const uint32_t ranks : {1u, 2u, 3u, 4u}) {
    with_group(ranks, [&](unisono::Group& group) {
      Transformer model(small, weights, {.index = group.rank(), .count = ranks});
      const auto reducer = make_reducer(group, parse_setting("exact").value());
      EXPECT_LT(largest_difference(forward(model, 0, 37, *reducer), expected), 2e-5f) << ranks << " ranks";
    });
  }
}

TEST(Transformer, hidden_states_have_the_size_of_what_a_norm_leaves) {
  const auto hidden = unsharded(16);
  double sum = 0;
  for (const float value : hidden) sum += static_cast<double>(value) * value;
  const double mean_square = sum / static_cast<double>(hidden.size());
  EXPECT_GT(mean_square, 0.05);
  EXPECT_LT(mean_square, 2);
}

TEST(Transformer, tokens_one_at_a_time_give_the_same_as_all_at_once) {
  const auto expected = unsharded(41);
  Transformer model(small, weights, {});
  Nobody nobody;
  auto hidden = forward(model, 0, 35, nobody);
  for (size_t token = 35; token < 41; ++token) {
    const auto one = forward(model, token, 1, nobody);
    hidden.insert(hidden.end(), one.begin(), one.end());
  }
  EXPECT_LT(largest_difference(hidden, expected), 2e-5f);
}

TEST(Transformer, clear_cache_discards_earlier_tokens) {
  Transformer model(small, weights, {});
  Nobody nobody;
  const auto first = forward(model, 0, 20, nobody);
  (void)forward(model, 20, 5, nobody);
  model.clear_cache();
  EXPECT_EQ(forward(model, 0, 20, nobody), first);
}

TEST(Transformer, later_tokens_do_not_change_earlier_ones) {
  const auto few = unsharded(8);
  const auto many = unsharded(33);
  EXPECT_LT(largest_difference(few, {many.begin(), many.begin() + static_cast<std::ptrdiff_t>(few.size())}), 2e-5f);
}

TEST(Transformer, refuses_more_tokens_than_the_cache_holds) {
  Transformer model(small, weights, {});
  Nobody nobody;
  (void)forward(model, 0, 40, nobody);
  const auto row = embeddings(small, weights, 40, 2);
  EXPECT_EQ(model.forward(row, nobody).status().code(), unisono::Code::invalid);
  EXPECT_EQ(model.forward(std::span(row).first(5), nobody).status().code(), unisono::Code::invalid);
}

TEST(Shape, names_the_size_that_cannot_be_split) {
  EXPECT_TRUE(small.validate(4).ok());
  EXPECT_NE(small.validate(5).message().find("--heads 12: cannot be split over 5 ranks"), std::string::npos);
  Shape odd = small;
  odd.inner = 131;
  EXPECT_NE(odd.validate(2).message().find("--inner 131"), std::string::npos);
  odd = small;
  odd.heads = 0;
  EXPECT_FALSE(odd.validate(1).ok());
  odd = small;
  odd.weight_sets = 4;
  EXPECT_FALSE(odd.validate(1).ok());
}

}  // namespace
}  // namespace tensor_parallel
