#include "compressors/row_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace unisono {
namespace {

using Shape = std::vector<uint64_t>;

uint64_t kept(double share, uint64_t rows, Rounding rounding = Rounding::up) {
  return kept_rows({.ratio_ppm = *parts_per_million(share), .rounding = rounding}, rows);
}

// Check 3 of docs/design/methods/arc_top_k.md: the number of kept rows.
TEST(RowRule, counts_rows_in_integers) {
  EXPECT_EQ(kept(.2, 10), 2u);
  EXPECT_EQ(kept(.1, 4096), 410u);
  EXPECT_EQ(kept(.07, 100), 7u);  // in doubles, .07 * 100 is above 7 and would be rounded up to 8
  EXPECT_EQ(kept(.2, 3), 1u);
  EXPECT_EQ(kept(.001, 50), 1u);
  EXPECT_EQ(kept(.2, 256), 52u);
  EXPECT_EQ(kept(1, 9), 9u);
  EXPECT_EQ(kept(.1, 4096, Rounding::down), 409u);
  EXPECT_EQ(kept(.001, 50, Rounding::down), 1u);
  EXPECT_EQ(kept(.5, 0), 0u);
  EXPECT_EQ(kept(.5, uint64_t{1} << 40), uint64_t{1} << 39);
  for (const double share :
       {0.0, 1.01, -.5, 4e-7, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const auto refused = parts_per_million(share);
    ASSERT_FALSE(refused.ok()) << share;
    EXPECT_NE(refused.status().message().find("bad_option"), std::string::npos);
  }
}

TEST(RowRule, refuses_invalid_rules) {
  EXPECT_TRUE(check(RowRule{}).ok());
  EXPECT_EQ(check(RowRule{.ratio_ppm = 0}).code(), Code::invalid);
  EXPECT_EQ(check(RowRule{.ratio_ppm = 1'000'001}).code(), Code::invalid);
  EXPECT_EQ(check(RowRule{.rank = 0}).code(), Code::invalid);
}

TEST(RowRule, views_a_tensor_as_rows_of_its_first_dimension) {
  EXPECT_EQ(matrix_of(Shape{64, 3, 3, 3}), (Matrix{64, 27}));
  EXPECT_EQ(matrix_of(Shape{7}), (Matrix{7, 1}));
  EXPECT_EQ(matrix_of(Shape{}), (Matrix{1, 1}));
  EXPECT_EQ(matrix_of(Shape{0, 7}), (Matrix{0, 7}));
}

uint64_t payload(const RowRule& rule, const Shape& shape) {
  const auto decision = decide(rule, shape);
  return decision.sketch_elements(rule) + decision.value_elements();
}

// Check 22 of docs/design/methods/arc_top_k.md. The payload is kept rows x columns + rows x 4 numbers of the sketch.
TEST(RowRule, leaves_incompressible_tensors_dense) {
  const RowRule rule;
  EXPECT_EQ(decide(rule, Shape{64, 27}).treatment, Treatment::compressed);
  EXPECT_EQ(payload(rule, {64, 27}), 607u);
  EXPECT_EQ(decide(rule, Shape{10, 512}).treatment, Treatment::compressed);
  EXPECT_EQ(payload(rule, {10, 512}), 1064u);
  EXPECT_EQ(decide(rule, Shape{1000, 4}).treatment, Treatment::dense);
  EXPECT_STREQ(decide(rule, Shape{64, 1, 3, 3}).reason, "it is small");
  EXPECT_EQ(decide(rule, Shape{512}).treatment, Treatment::dense);
  EXPECT_EQ(decide(rule, Shape{0, 7}).treatment, Treatment::skipped);
  EXPECT_EQ(decide(rule, Shape{}).treatment, Treatment::dense);
  for (uint64_t m = 1; m < 200; m += 7) {
    for (uint64_t n = 1; n < 300; n += 11) EXPECT_LE(payload(rule, {m, n}), m * n) << m << " x " << n;
  }
}

std::vector<Shape> llama(uint64_t hidden, uint64_t wide, int layers) {
  std::vector<Shape> shapes{{32000, hidden}};
  for (int layer = 0; layer < layers; ++layer) {
    for (int i = 0; i < 4; ++i) shapes.push_back({hidden, hidden});
    for (int i = 0; i < 2; ++i) shapes.push_back({wide, hidden});
    shapes.push_back({hidden, wide});
    for (int i = 0; i < 2; ++i) shapes.push_back({hidden});
  }
  shapes.push_back({hidden});
  shapes.push_back({32000, hidden});
  return shapes;
}

// The shapes of ResNet-18 for CIFAR-10, whose first convolution is 3 x 3.
std::vector<Shape> resnet18() {
  std::vector<Shape> shapes{{64, 3, 3, 3}, {64}, {64}};
  uint64_t in = 64;
  for (const uint64_t out : {64u, 128u, 256u, 512u}) {
    for (int block = 0; block < 2; ++block) {
      shapes.insert(shapes.end(), {{out, in, 3, 3}, {out}, {out}, {out, out, 3, 3}, {out}, {out}});
      if (in != out) shapes.insert(shapes.end(), {{out, in, 1, 1}, {out}, {out}});
      in = out;
    }
  }
  shapes.push_back({10, 512});
  shapes.push_back({10});
  return shapes;
}

struct Layout {
  std::vector<Shape> shapes;
  uint64_t payload, elements;
};

// Checks 20 and 21 of docs/design/methods/arc_top_k.md: how many elements a step sends for each model, and how many elements
// the model has.
TEST(RowRule, gives_the_payload_of_known_models) {
  EXPECT_EQ(payload({.ratio_ppm = 100'000}, {4096, 4096}), 1'695'744u);
  const Layout layouts[] = {{llama(512, 1376, 8), 12'070'656, 58'073'600},
                            {llama(2048, 5461, 24), 270'394'096, 1'339'082'752},
                            {resnet18(), 2'280'209, 11'173'962}};
  for (const auto& [shapes, expected, elements] : layouts) {
    uint64_t sent = 0, whole = 0;
    for (const auto& shape : shapes) {
      sent += payload({.min_elements = 0}, shape);
      whole += std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
    }
    EXPECT_EQ(whole, elements);
    EXPECT_EQ(sent, expected);
  }
}

}  // namespace
}  // namespace unisono
