#include "kernels/sketch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/random.h"
#include "kernels/dispatch.h"

namespace unisono::kernels {
namespace {

std::vector<float> values(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> result(count);
  for (auto& v : result) v = static_cast<float>(random.unit() - 0.5);
  return result;
}

struct Outcome {
  std::vector<float> values, sketch;
};

// `shift` floats into their memory, so at any alignment of floats.
Outcome sketched(void (*function)(const SketchTask&), size_t rows, size_t columns, uint32_t rank, int residual, size_t shift) {
  auto matrix = values(rows * columns + shift, 1);
  const auto left = values(rows * columns + shift, 2), directions = values(rank * columns + shift, 3);
  std::vector<float> sketch(rows * rank, 77);
  function({.values = matrix.data() + shift, .residual = residual > 0 ? left.data() + shift : nullptr, .difference = residual == 2, .rows = rows, .columns = columns, .directions = directions.data() + shift, .rank = rank, .scale = 0.5f, .sketch = sketch.data()});
  return {matrix, sketch};
}

TEST(Sketch, on_every_target_is_that_of_the_reference_but_for_rounding) {
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (const size_t rows : {0, 1, 2, 3, 8}) {
      for (const size_t columns : {1, 7, 16, 33, 200, 1027}) {
        for (const uint32_t rank : {0u, 1u, 2u, 3u, 4u, 5u, 8u, 9u}) {
          for (const int residual : {0, 1, 2}) {  // none, added, subtracted
            const auto got = sketched(sketch, rows, columns, rank, residual, columns % 5), expected = sketched(sketch_reference, rows, columns, rank, residual, columns % 5);
            ASSERT_EQ(got.values, expected.values) << target << " " << rows << " x " << columns;  // to the bit
            for (size_t i = 0; i < got.sketch.size(); ++i) {
              ASSERT_NEAR(got.sketch[i], expected.sketch[i], 1e-6 * std::sqrt(static_cast<double>(columns)) + 1e-7) << target << " " << rows << " x " << columns << ", rank " << rank;
            }
          }
        }
      }
    }
  }
  force_target("");
}

TEST(Sketch, takes_the_residual_of_a_cleared_row_for_zeros) {
  const std::vector<float> zeros(33);
  const uint8_t cleared[] = {0, 1, 1, 0, 1};
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (const bool difference : {false, true}) {
      auto matrix = values(5 * 33, 1), expected = matrix;
      auto left = values(5 * 33, 2);
      const auto directions = values(3 * 33, 3);
      std::vector<float> got(15), wanted(15);
      sketch({.values = matrix.data(), .residual = left.data(), .difference = difference, .cleared = cleared, .zeros = zeros.data(), .rows = 5, .columns = 33, .directions = directions.data(), .rank = 3, .sketch = got.data()});
      for (const size_t row : {1, 2, 4}) std::fill_n(left.begin() + static_cast<std::ptrdiff_t>(row * 33), 33, 0.0f);
      sketch({.values = expected.data(), .residual = left.data(), .difference = difference, .rows = 5, .columns = 33, .directions = directions.data(), .rank = 3, .sketch = wanted.data()});
      EXPECT_EQ(matrix, expected) << target;
      EXPECT_EQ(got, wanted) << target;
    }
  }
  force_target("");
}

TEST(PutAside, moves_everything_and_tells_the_energy_of_the_rows_that_count) {
  const uint8_t flags[] = {0, 1, 1, 0, 0};
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (const size_t columns : {0, 1, 7, 31, 32, 33, 64, 1027, 20'000}) {
      for (const size_t shift : {0, 1, 15}) {
        for (const bool far : {false, true}) {
          const size_t count = 5 * columns;
          auto from = values(count + shift, 1);
          const auto before = from;
          std::vector<float> to(count + 3, 5);  // at another alignment
          const auto* const uncounted = shift == 1 ? nullptr : flags;
          const double squares = put_aside({.values = from.data() + shift, .kept = to.data() + 2, .rows = 5, .columns = columns, .uncounted = uncounted, .far = far});
          double expected = 0;
          for (size_t i = 0; i < count; ++i) {
            if (uncounted == nullptr || flags[i / columns] == 0) expected += double{before[shift + i]} * before[shift + i];
            ASSERT_EQ(to[2 + i], before[shift + i]) << target << " " << columns << " " << shift;
            ASSERT_EQ(from[shift + i], 0);
          }
          EXPECT_EQ(to[1], 5);
          EXPECT_EQ(to[count + 2], 5);
          for (size_t i = 0; i < shift; ++i) EXPECT_EQ(from[i], before[i]);
          EXPECT_NEAR(squares, expected, 1e-5 * expected) << target << " " << columns;
        }
      }
    }
  }
  force_target("");
}

TEST(Sketch, of_what_is_no_number_is_no_number) {
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (const size_t place : {0, 40, 99}) {
      for (const float bad : {INFINITY, -INFINITY, NAN}) {
        auto matrix = values(300, 1);
        const auto directions = values(400, 2);
        matrix[100 + place] = bad;
        std::vector<float> out(12);
        sketch({.values = matrix.data(), .rows = 3, .columns = 100, .directions = directions.data(), .rank = 4, .sketch = out.data()});
        for (size_t i = 0; i < 12; ++i) EXPECT_EQ(std::isfinite(out[i]), i / 4 != 1) << target;
      }
    }
  }
  force_target("");
}

// Not with sanitizers: what they add to the kernels keeps functions from being inlined, and is not what users run.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// What processors tell of the upper halves of vector registers: bit 2 those of 256 bits, bit 6 those of 512. Nothing: they do not tell.
uint32_t upper_halves_in_use() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(0xD, 1, &a, &b, &c, &d) == 0 || (a & 4) == 0) return 0;
  asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
  return a & 0x44;
}

TEST(Sketch, leaves_no_upper_halves_of_registers_in_use_that_would_slow_down_its_caller) {
  auto matrix = values(8 * 1000, 1);
  const auto left = values(8 * 1000, 2), directions = values(9 * 1000, 3);
  std::vector<float> out(8 * 9);
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (const size_t rows : {7, 8}) {
      for (uint32_t rank = 0; rank <= 9; ++rank) {
        for (const int residual : {0, 1, 2}) {
          const SketchTask task{.values = matrix.data(), .residual = residual > 0 ? left.data() : nullptr, .difference = residual == 2, .rows = rows, .columns = 1000, .directions = directions.data(), .rank = rank, .sketch = out.data()};
          if (__builtin_cpu_supports("avx")) asm volatile("vzeroupper");
          sketch(task);
          ASSERT_EQ(upper_halves_in_use(), 0u) << target << ", rank " << rank << ", residual " << residual;
        }
      }
    }
  }
  force_target("");
}
#endif

}  // namespace
}  // namespace unisono::kernels
