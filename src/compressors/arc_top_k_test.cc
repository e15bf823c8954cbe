// Tests of ARC-Top-K that need no engine. Numbers of checks refer to docs/design/methods/arc_top_k.md, "Checked values".
#include "compressors/arc_top_k.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "compressors/compressor_test_support.h"
#include "compressors/row_selection.h"

namespace unisono {
namespace {

using namespace test;
using Rows = std::vector<uint32_t>;

// Checks 4 and 5 of docs/design/methods/arc_top_k.md: chosen rows and their fingerprints.
TEST(ArcTopK, chooses_the_documented_rows) {
  const auto x = normals(42, 0, 7, 72);
  Alone four(arc_options(250'000, 4, 42), 5, 12, 6), one(arc_options(250'000, 1, 42), 5, 12, 6),
      other(arc_options(250'000, 4, 42), 6, 12, 6);
  EXPECT_EQ(four.chosen(3, x), (Rows{1, 3, 10}));
  EXPECT_EQ(four.compressor().fingerprint(), 0x5278A13BA99B7128u);
  EXPECT_EQ(four.chosen(4, x), (Rows{3, 4, 10}));
  EXPECT_EQ(four.compressor().fingerprint(), 0x6EB4CB2A958931EAu);
  EXPECT_EQ(one.chosen(3, x), (Rows{1, 5, 10}));
  EXPECT_EQ(other.chosen(3, x), (Rows{3, 4, 10}));
  auto options = arc_options(250'000, 4, 42);
  options.exact = true;
  EXPECT_EQ(Alone(options, 5, 12, 6).chosen(3, x), (Rows{3, 4, 10}));
  options.exact = false, options.random = true;
  EXPECT_EQ(Alone(options, 5, 12, 6).chosen(3, x), (Rows{0, 2, 11}));
}

// Check 6 of docs/design/methods/arc_top_k.md. Another step, tensor number or seed must give another sketch.
TEST(ArcTopK, the_sketch_of_the_mean_is_the_mean_of_the_sketches) {
  constexpr size_t ranks = 8, rows = 300, columns = 200;
  const auto sketch = [&](Values values, uint64_t seed, uint64_t step, uint32_t number) {
    Alone rank(arc_options(100'000, 4, seed), number, rows, columns);
    const CompressorInput inputs[] = {{.values = values.data()}};
    const auto out = rank.compressor().begin(step, inputs);
    EXPECT_EQ(out.size(), rows * 4 + 1);
    EXPECT_EQ(out.back(), 0);
    return Values(out.begin(), out.end() - 1);
  };
  Values mean(rows * columns), mean_of_sketches(rows * 4);
  for (uint32_t r = 0; r < ranks; ++r) {
    const auto x = normals(1, r, 0, rows * columns);
    for (size_t i = 0; i < x.size(); ++i) mean[i] += x[i] / ranks;
    const auto s = sketch(x, 9, 5, 3);
    for (size_t i = 0; i < s.size(); ++i) mean_of_sketches[i] += s[i] / ranks;
  }
  const auto expected = sketch(mean, 9, 5, 3);
  auto difference = expected;
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= mean_of_sketches[i];
  EXPECT_LT(std::sqrt(squared(difference) / squared(expected)), 1e-5);
  EXPECT_NE(sketch(mean, 9, 6, 3), expected);
  EXPECT_NE(sketch(mean, 9, 5, 4), expected);
  EXPECT_NE(sketch(mean, 8, 5, 3), expected);
}

// First part of check 9 of docs/design/methods/arc_top_k.md: if all rows are kept, the tensor is sent whole.
TEST(ArcTopK, equals_the_dense_mean_if_all_rows_are_kept) {
  const auto x = normals(1, 2, 3, 4096);
  Alone all(arc_options(1'000'000, 4, 1), 0, 64, 64);
  EXPECT_EQ(all.run(0, x), x);
  EXPECT_EQ(all.compressor().decisions()[0].treatment, Treatment::dense);
}

// Check 11 of docs/design/methods/arc_top_k.md. For a matrix u v', the length of a row's sketch is proportional to the length
// of the row.
TEST(ArcTopK, every_sketch_of_a_rank_one_matrix_finds_the_longest_rows) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto u = normals(seed, 0, 0, 40), v = normals(seed, 1, 0, 30);
    Values x;
    for (const float a : u) {
      for (const float b : v) x.push_back(a * b);
    }
    auto options = arc_options(200'000, 1, seed);
    options.exact = true;
    const auto expected = Alone(options, 1, 40, 30).chosen(0, x);
    options.exact = false;
    for (const uint32_t rank : {1u, 2u, 4u, 8u}) {
      options.rule.rank = rank;
      Alone arc(options, 1, 40, 30);
      for (uint64_t step = 0; step < 5; ++step) EXPECT_EQ(arc.chosen(step, x), expected) << "rank " << rank;
    }
  }
}

// Check 12 of docs/design/methods/arc_top_k.md: one row of a 2 x 2 matrix is kept. The expected loss depends on the rank of the
// sketch.
TEST(ArcTopK, loses_the_predicted_share_of_two_orthogonal_rows) {
  const Values x{std::sqrt(3.0f), 0, 0, 1};
  for (const auto& [rank, error] : {std::pair{1u, .416667}, {2u, .375}, {4u, .328125}}) {
    EXPECT_NEAR(Alone(arc_options(500'000, rank, 12), 0, 2, 2).mean_error(200'000, x), error, .0025) << "rank " << rank;
  }
}

// Check 13 of docs/design/methods/arc_top_k.md. Here the loss exceeds 1 - K/m, so that is no bound, although it is sometimes
// taken for one.
TEST(ArcTopK, loses_more_than_its_share_where_one_sketch_serves_all_rows) {
  const auto length = static_cast<float>(std::sqrt(.85)), c = length * std::sqrt(.75f), s = length / 2;
  const Values x{1, 0, c, s, c, -s};
  // The tolerance .0004 is four standard deviations of the mean over 400,000 draws.
  for (const auto& [rank, error] : {std::pair{1u, .67061}, {2u, .66870}}) {
    EXPECT_NEAR(Alone(arc_options(333'333, rank, 13), 0, 3, 2).mean_error(400'000, x), error, .0004) << "rank " << rank;
  }
}

// Check 14 of docs/design/methods/arc_top_k.md: mean losses of four 128 x 256 matrices, by method.
TEST(LongArcTopK, loses_the_documented_share_of_four_matrices) {
  constexpr size_t rows = 128, columns = 256, kept = 26;
  const auto z = normals(11, 0, 1, rows * columns), u = normals(11, 0, 2, rows), v = normals(11, 0, 3, columns);
  const auto scaled = [&](double power) {
    Values x(z);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(x[i] * std::pow(static_cast<double>(i / columns + 1), power));
    return x;
  };
  Values product(rows * columns);
  for (size_t i = 0; i < product.size(); ++i) product[i] = u[i / columns] * v[i % columns];
  struct Row {
    Values x;
    double exact, entries, by_rank[4];
  };
  const Row table[] = {{z, .77338, .34471, {.79527, .79473, .79374, .79280}},
                       {scaled(-.5), .29814, .16313, {.48420, .40308, .34885, .32278}},
                       {scaled(-1), .01967, .01064, {.07643, .03361, .02438, .02156}},
                       {product, .35172, .14777, {.35172, .35172, .35172, .35172}}};
  for (const auto& [x, exact, entries, by_rank] : table) {
    auto options = arc_options(200'000, 4, 11);
    options.exact = true;
    EXPECT_NEAR(Alone(options, 9, rows, columns).error(1, x), exact, .0001);
    Rows largest;
    select_entries(x, kept * columns, largest);
    double captured = 0;
    for (const auto i : largest) captured += double{x[i]} * x[i];
    EXPECT_NEAR(1 - captured / squared(x), entries, .0001);
    for (size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(Alone(arc_options(200'000, 1u << i, 11), 9, rows, columns).mean_error(1000, x), by_rank[i], .0005)
          << "rank " << (1u << i) << ", exact " << exact;
  }
}

// Check 15 of docs/design/methods/arc_top_k.md: the proven bound 1 - (K/m)^2 r/(r+2).
TEST(ArcTopK, loses_no_more_than_the_bound) {
  constexpr uint64_t draws = 1000;
  for (uint32_t i = 0; i < 50; ++i) {
    const uint64_t rows = 2 + i % 13, columns = 1 + i % 7;
    const uint32_t rank = 1 + i % 5, share = 100'000 + 800'000 * (i % 9) / 9;
    auto options = arc_options(share, rank, i);
    const double part = static_cast<double>(kept_rows(options.rule, rows)) / static_cast<double>(rows);
    auto x = normals(15, i, 0, rows * columns);
    for (size_t k = 0; k < x.size(); ++k)
      x[k] *= static_cast<float>(std::pow(static_cast<double>(k / columns + 1), -.25 * (i % 4)));
    Alone arc(options, 0, rows, columns);
    double sum = 0, squares = 0;
    for (uint64_t step = 0; step < draws; ++step) {
      const double error = arc.error(step, x);
      sum += error;
      squares += error * error;
    }
    const double mean = sum / draws, deviation = std::sqrt(std::max(0.0, squares / draws - mean * mean) / draws);
    EXPECT_LE(mean, 1 - part * part * rank / (rank + 2.0) + 4 * deviation + 1e-12)
        << rows << " x " << columns << ", rank " << rank;
    options.exact = true;
    EXPECT_LE(Alone(options, 0, rows, columns).error(0, x), 1 - part + 1e-6);
  }
}

struct Ranks {
  std::vector<std::unique_ptr<Compressor>> compressors;
  std::vector<std::vector<Values>> tensors;  // tensors[r][i] is tensor i of rank r

  Ranks(const ArcOptions& options, size_t count, const std::vector<GroupTensor>& group) : tensors(count) {
    for (size_t r = 0; r < count; ++r) {
      compressors.push_back(*make_arc_top_k(options, 3, group));
      for (const auto& tensor : group)
        tensors[r].push_back(normals(100 + r, 0, tensor.number, matrix_of(tensor.shape).elements()));
    }
  }
  // Runs one step on all ranks. Returns one text per rank: "ok", or an error such as "choose: …" or "accept: …".
  std::vector<std::string> run(uint64_t step, const std::vector<std::vector<Values>>* residuals = nullptr) {
    std::vector<std::span<float>> buffers;
    for (size_t r = 0; r < tensors.size(); ++r) {
      std::vector<CompressorInput> inputs;
      for (size_t i = 0; i < tensors[r].size(); ++i)
        inputs.push_back(
            {.values = tensors[r][i].data(), .residual = residuals != nullptr ? (*residuals)[r][i].data() : nullptr});
      buffers.push_back(compressors[r]->begin(step, inputs));
    }
    average(buffers);
    std::vector<std::string> says(tensors.size());
    buffers.clear();
    for (size_t r = 0; r < tensors.size(); ++r) {
      std::vector<const float*> values;
      for (const auto& tensor : tensors[r]) values.push_back(tensor.data());
      const auto chosen = compressors[r]->choose();
      if (chosen.ok()) buffers.push_back(compressors[r]->pack(values));
      else says[r] = "choose: " + chosen.message();
    }
    if (buffers.size() < tensors.size()) return says;
    average(buffers);
    for (size_t r = 0; r < tensors.size(); ++r) {
      std::vector<float*> outputs;
      for (size_t i = 0; i < tensors[r].size(); ++i) outputs.push_back(tensors[r][i].data());
      const auto status = compressors[r]->accept();
      says[r] = status.ok() ? "ok" : "accept: " + status.message();
      if (!status.ok()) continue;
      for (size_t i = 0; i < tensors[r].size(); ++i) {
        if (compressors[r]->decisions()[i].treatment == Treatment::compressed)
          std::fill(tensors[r][i].begin(), tensors[r][i].end(), 0.0f);
      }
      compressors[r]->unpack(outputs);
    }
    return says;
  }
};

const std::vector<GroupTensor> mixed{{.number = 4, .shape = {40, 50}},
                                     {.number = 1, .shape = {33}},
                                     {.number = 7, .shape = {0, 5}},
                                     {.number = 2, .shape = {31, 5, 13}}};

TEST(ArcTopK, gives_all_ranks_the_mean_of_the_chosen_rows) {
  for (const bool random : {false, true}) {
    auto options = arc_options(150'000, 3, 5);
    options.random = random;
    Ranks ranks(options, 3, mixed);
    const auto before = ranks.tensors;
    for (const auto& said : ranks.run(8)) EXPECT_EQ(said, "ok");
    for (size_t r = 1; r < 3; ++r) {
      EXPECT_EQ(ranks.tensors[r], ranks.tensors[0]);
      EXPECT_EQ(ranks.compressors[r]->fingerprint(), ranks.compressors[0]->fingerprint());
    }
    for (size_t i = 0; i < mixed.size(); ++i) {
      const auto& decision = ranks.compressors[0]->decisions()[i];
      const auto rows = ranks.compressors[0]->rows(i);
      EXPECT_EQ(rows.size(), decision.kept);
      for (size_t k = 0; k < before[0][i].size(); ++k) {
        const bool sent = decision.treatment == Treatment::dense ||
                          std::binary_search(rows.begin(), rows.end(), static_cast<uint32_t>(k / decision.matrix.columns));
        const float mean = (before[0][i][k] + before[1][i][k] + before[2][i][k]) / 3;
        EXPECT_EQ(ranks.tensors[0][i][k], sent ? mean : 0) << "tensor " << i << ", element " << k;
      }
    }
  }
}

// Rows are chosen by the mean of values plus residuals, not by the values of any one rank.
TEST(ArcTopK, chooses_by_the_mean_of_compensated_tensors) {
  Ranks ranks(arc_options(100'000, 4, 2), 2, {{.number = 0, .shape = {10, 8}}});
  std::vector<std::vector<Values>> residuals(2, {Values(80)});
  for (auto& tensors : ranks.tensors) std::fill(tensors[0].begin(), tensors[0].end(), 0.0f);
  for (size_t c = 0; c < 8; ++c) {
    ranks.tensors[0][0][3 * 8 + c] = 100,
                                // row 3 is the longest on each rank, but cancels out in the mean
        ranks.tensors[1][0][3 * 8 + c] = -100;
    residuals[0][0][6 * 8 + c] = residuals[1][0][6 * 8 + c] = 1;
  }
  for (const auto& said : ranks.run(0, &residuals)) EXPECT_EQ(said, "ok");
  EXPECT_EQ(Rows(ranks.compressors[0]->rows(0).begin(), ranks.compressors[0]->rows(0).end()), Rows{6});
  for (size_t k = 0; k < 80; ++k) EXPECT_EQ(ranks.tensors[0][0][k], k / 8 == 6 ? 1 : 0);
}

// Part of check 28 of docs/design/methods/arc_top_k.md: one rank has a value that is not finite. All ranks get the same error,
// whichever tensor holds the value.
TEST(ArcTopK, nonfinite_values_on_one_rank_are_reported_to_all) {
  for (const bool random : {false, true}) {
    for (const size_t tensor : {0, 1, 3}) {
      for (const float bad : {INFINITY, -INFINITY, NAN}) {
        for (const size_t at : {0, 5, 32}) {
          auto options = arc_options(150'000, 3, 5);
          options.random = random;
          Ranks ranks(options, 3, mixed);
          ranks.tensors[1][tensor][at] = bad;
          const auto said = ranks.run(8);
          for (const auto& text : said) {
            EXPECT_EQ(text, said[0]);
            EXPECT_NE(text.find(random ? "accept: nonfinite" : "choose: nonfinite"), std::string::npos) << text;
          }
        }
      }
    }
  }
}

TEST(ArcTopK, the_nonfinite_flag_is_cleared_in_the_next_step) {
  Ranks ranks(arc_options(150'000, 3, 5), 2, mixed);
  const auto good = ranks.tensors;
  ranks.tensors[0][0][1] = NAN;
  EXPECT_NE(ranks.run(1)[1], "ok");
  ranks.tensors = good;
  EXPECT_EQ(ranks.run(2)[1], "ok");
}

// Part of check 10 of docs/design/methods/arc_top_k.md: of equal scores, the lower rows win.
TEST(ArcTopK, sends_the_first_rows_of_zeros) {
  Alone arc(arc_options(200'000, 4, 1), 0, 20, 6);
  EXPECT_EQ(arc.chosen(7, Values(120)), (Rows{0, 1, 2, 3}));
}

TEST(ArcTopK, empty_and_dense_groups_need_at_most_one_all_reduce) {
  Ranks nothing({}, 2, {});
  EXPECT_EQ(nothing.run(0)[0], "ok");
  Ranks dense({}, 2, {{.number = 0, .shape = {5}}, {.number = 1, .shape = {2, 3}}});
  const auto before = dense.tensors;
  const CompressorInput inputs[] = {{.values = dense.tensors[0][0].data()}, {.values = dense.tensors[0][1].data()}};
  EXPECT_TRUE(dense.compressors[0]->begin(0, inputs).empty());
  EXPECT_EQ(dense.run(0)[1], "ok");
  EXPECT_EQ(dense.tensors[1][0][4], (before[0][0][4] + before[1][0][4]) / 2);
}

// Part of check 27 of docs/design/methods/arc_top_k.md: the compressor does not touch the generator of std::rand().
TEST(ArcTopK, does_not_touch_the_programs_random_generators) {
  const auto numbers = [](bool compresses) {
    std::srand(5);
    if (compresses) Alone(arc_options(250'000, 4, 42), 5, 12, 6).mean_error(100, normals(42, 0, 7, 72));
    return std::array{std::rand(), std::rand()};
  };
  EXPECT_EQ(numbers(true), numbers(false));
}

TEST(ArcTopK, refuses_invalid_options) {
  for (const auto& options : {arc_options(0, 4, 0), arc_options(1'000'001, 4, 0), arc_options(1, 0, 0)}) {
    const auto made = make_arc_top_k(options, 0, {});
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), Code::invalid);
    EXPECT_NE(made.status().message().find("bad_option"), std::string::npos);
  }
  EXPECT_FALSE(make_arc_top_k(arc_options(1, 1, 0), 0, {{.number = 1, .shape = {uint64_t{1} << 33, 2}}}).ok());
}

}  // namespace
}  // namespace unisono
