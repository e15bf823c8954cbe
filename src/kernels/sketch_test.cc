#include "kernels/sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  std::vector<float> values, moved, sketch;
  double squares = 0;
};

constexpr size_t behind = 3;  // floats behind `moved` that the kernel must not change

enum class Kind { alone, added, subtracted, moves, adds_and_moves, moves_streaming, adds_and_moves_streaming };
constexpr Kind kinds[] = {Kind::alone,
                          Kind::added,
                          Kind::subtracted,
                          Kind::moves,
                          Kind::adds_and_moves,
                          Kind::moves_streaming,
                          Kind::adds_and_moves_streaming};
bool has_residual(Kind kind) { return kind != Kind::alone && kind != Kind::moves && kind != Kind::moves_streaming; }

// The buffers begin `shift` floats into their memory, because any alignment of floats is allowed.
Outcome sketched(double (*function)(const SketchTask&), size_t rows, size_t columns, uint32_t rank, Kind kind, size_t shift) {
  using enum Kind;
  auto matrix = values(rows * columns + shift, 1);
  const auto residuals = values(rows * columns + shift, 2), directions = values(rank * columns + shift, 3);
  std::vector<float> sketch(rows * rank, 77), moved(2 * shift + rows * columns + behind, 5);
  const double squares = function({.values = matrix.data() + shift,
                                   .residual = has_residual(kind) ? residuals.data() + shift : nullptr,
                                   .difference = kind == subtracted,
                                   .moved = kind >= Kind::moves ? moved.data() + 2 * shift : nullptr,
                                   .far = kind >= moves_streaming,
                                   .rows = rows,
                                   .columns = columns,
                                   .directions = directions.data() + shift,
                                   .rank = rank,
                                   .scale = 0.5f,
                                   .sketch = sketch.data()});
  return {matrix, moved, sketch, squares};
}

TEST(Sketch, equals_the_reference_up_to_rounding_on_every_target) {
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (const size_t rows : {0, 1, 2, 3, 8}) {
      for (const size_t columns : {0, 1, 7, 16, 33, 200, 1024, 1027}) {
        for (const uint32_t rank : {0u, 1u, 2u, 3u, 4u, 5u, 8u, 9u}) {
          for (const auto kind : kinds) {
            const size_t shift = (columns + rows) % 5;
            const auto got = sketched(sketch, rows, columns, rank, kind, shift),
                       expected = sketched(sketch_reference, rows, columns, rank, kind, shift);
            ASSERT_EQ(got.values, expected.values)
                << target << " " << rows << " x " << columns << " " << static_cast<int>(kind);  // equal in every bit
            ASSERT_EQ(got.moved, expected.moved) << target << " " << rows << " x " << columns << " " << static_cast<int>(kind);
            ASSERT_NEAR(got.squares, expected.squares, 1e-5 * expected.squares);
            for (size_t i = 0; i < got.sketch.size(); ++i) {
              ASSERT_NEAR(got.sketch[i], expected.sketch[i], 1e-6 * std::sqrt(static_cast<double>(columns)) + 1e-7)
                  << target << " " << rows << " x " << columns << ", rank " << rank;
            }
          }
        }
      }
    }
  }
  force_target("");
}

TEST(Sketch, treats_the_residual_of_a_cleared_row_as_zeros) {
  const std::vector<float> zeros(33);
  const uint8_t cleared[] = {0, 1, 1, 0, 1};
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (const int kind : {0, 1, 2}) {  // residual added, subtracted, moved
      const bool difference = kind == 1;
      auto matrix = values(5 * 33, 1), expected = matrix;
      auto residuals = values(5 * 33, 2);
      const auto directions = values(3 * 33, 3);
      std::vector<float> got(15), wanted(15), moved(5 * 33), expected_moved(5 * 33);
      const double squares = sketch({.values = matrix.data(),
                                     .residual = residuals.data(),
                                     .difference = difference,
                                     .moved = kind == 2 ? moved.data() : nullptr,
                                     .cleared = cleared,
                                     .zeros = zeros.data(),
                                     .rows = 5,
                                     .columns = 33,
                                     .directions = directions.data(),
                                     .rank = 3,
                                     .sketch = got.data()});
      for (const size_t row : {1, 2, 4}) std::fill_n(residuals.begin() + static_cast<std::ptrdiff_t>(row * 33), 33, 0.0f);
      const double expected_squares = sketch({.values = expected.data(),
                                              .residual = residuals.data(),
                                              .difference = difference,
                                              .moved = kind == 2 ? expected_moved.data() : nullptr,
                                              .rows = 5,
                                              .columns = 33,
                                              .directions = directions.data(),
                                              .rank = 3,
                                              .sketch = wanted.data()});
      EXPECT_EQ(matrix, expected) << target;
      EXPECT_EQ(moved, expected_moved) << target;
      EXPECT_EQ(squares, expected_squares) << target;
      EXPECT_EQ(got, wanted) << target;
    }
  }
  force_target("");
}

TEST(Sketch, is_the_same_to_the_bit_however_far_apart_its_directions_lie) {
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (const size_t columns : {1, 7, 16, 33, 200, 1024, 1027}) {
      const size_t stride = direction_stride(columns);
      for (const uint32_t rank : {1u, 4u, 5u, 8u, 9u, 17u}) {
        for (const bool streaming : {false, true}) {
          const auto residuals = values(5 * columns, 2), directions = values(rank * columns, 3);
          std::vector<float> apart(rank * stride, NAN), moved(5 * columns), together_sketch(5 * rank), apart_sketch(5 * rank),
              expected(5 * rank);  // NaN fills the gaps between directions, so a kernel that reads a gap returns NaN
          for (size_t j = 0; j < rank; ++j)
            std::copy_n(directions.begin() + static_cast<std::ptrdiff_t>(j * columns), columns,
                        apart.begin() + static_cast<std::ptrdiff_t>(j * stride));
          const auto run = [&](double (*function)(const SketchTask&), const std::vector<float>& from, size_t floats,
                               std::vector<float>& out) {
            auto matrix = values(5 * columns, 1);
            function({.values = matrix.data(),
                      .residual = residuals.data(),
                      .moved = streaming ? moved.data() : nullptr,
                      .far = streaming,
                      .rows = 5,
                      .columns = columns,
                      .directions = from.data(),
                      .stride = floats,
                      .rank = rank,
                      .sketch = out.data()});
          };
          run(sketch, directions, 0, together_sketch);
          run(sketch, apart, stride, apart_sketch);
          ASSERT_EQ(apart_sketch, together_sketch) << target << " " << columns << ", rank " << rank;
          run(sketch_reference, directions, 0, expected);
          run(sketch_reference, apart, stride, apart_sketch);
          ASSERT_EQ(apart_sketch, expected);
        }
      }
    }
  }
  force_target("");
}

TEST(Sketch, direction_stride_is_an_odd_number_of_cache_lines) {
  for (size_t columns = 1; columns < 5000; ++columns) {
    const size_t stride = direction_stride(columns);
    ASSERT_GE(stride, columns);
    ASSERT_LT(stride, columns + 32);
    ASSERT_EQ(stride % 32, 16u) << columns;  // a cache line holds 16 floats, so the number of lines is odd
  }
}

TEST(Sketch, a_nan_or_infinity_makes_the_sketch_of_its_row_not_finite) {
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (const size_t column : {0, 40, 99}) {
      for (const float bad : {INFINITY, -INFINITY, NAN}) {
        auto matrix = values(300, 1);
        const auto directions = values(400, 2);
        matrix[100 + column] = bad;
        std::vector<float> out(12);
        sketch({.values = matrix.data(),
                .rows = 3,
                .columns = 100,
                .directions = directions.data(),
                .rank = 4,
                .sketch = out.data()});
        for (size_t i = 0; i < 12; ++i) EXPECT_EQ(std::isfinite(out[i]), i / 4 != 1) << target;
      }
    }
  }
  force_target("");
}

// Builds with sanitizers and builds of the quick preset compile tests without optimisation. Their kernels do not clear the
// registers, because the compiler does so with -O2 only. Users do not run such builds.
#if defined(__x86_64__) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Returns which upper halves of vector registers are in use, as the processor reports it. Bit 2 is for 256-bit registers, bit 6
// for 512-bit registers. Returns 0 if the processor cannot report it.
uint32_t upper_halves_in_use() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(0xD, 1, &a, &b, &c, &d) == 0 || (a & 4) == 0) return 0;
  asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
  return a & 0x44;
}

TEST(Sketch, leaves_no_upper_halves_of_registers_in_use_that_would_slow_down_its_caller) {
  auto matrix = values(8 * 1008, 1);
  const auto residuals = values(8 * 1008, 2), directions = values(9 * 1008, 3);
  std::vector<float> out(8 * 9), moved(8 * 1008);
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    for (const size_t rows : {7, 8}) {
      for (uint32_t rank = 0; rank <= 9; ++rank) {
        for (const auto kind : kinds) {
          const SketchTask task{.values = matrix.data(),
                                .residual = has_residual(kind) ? residuals.data() : nullptr,
                                .difference = kind == Kind::subtracted,
                                .moved = kind >= Kind::moves ? moved.data() : nullptr,
                                .far = kind >= Kind::moves_streaming,
                                .rows = rows,
                                .columns = 1008,
                                .directions = directions.data(),
                                .rank = rank,
                                .sketch = out.data()};
          if (__builtin_cpu_supports("avx")) asm volatile("vzeroupper");
          sketch(task);
          ASSERT_EQ(upper_halves_in_use(), 0u) << target << ", rank " << rank << ", kind " << static_cast<int>(kind);
        }
      }
    }
  }
  force_target("");
}
#endif

}  // namespace
}  // namespace unisono::kernels
