// Compares every target of this machine with the scalar reference, bit for bit. Two arenas are filled with the same random
// bytes. The reference works on one, and the target on the other. Afterwards the whole arenas must be equal. That reveals wrong
// results, changed sources, and changed bytes beside the destination.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/concat.h"
#include "base/random.h"
#include "kernels/dispatch.h"
#include "kernels/kernel_table.h"

namespace unisono::kernels {
namespace {

constexpr uint64_t seed = 20240607;
constexpr DType all_dtypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8,  DType::i16,
                                DType::i32, DType::i64, DType::u8,  DType::u16,  DType::u32, DType::u64};
constexpr ReduceOp all_ops[] = {ReduceOp::sum,  ReduceOp::avg,  ReduceOp::min, ReduceOp::max,
                                ReduceOp::prod, ReduceOp::band, ReduceOp::bor, ReduceOp::bxor};

bool defined(DType dtype, ReduceOp op) { return !is_floating(dtype) || op < ReduceOp::band; }

// Random bits nearly always give huge or tiny numbers, and their sums involve no rounding. So three of four elements are
// ordinary numbers, or special values that kernels often get wrong.
template <typename Word>
Word interesting(Random& random, int exponent_bits, int mantissa_bits) {
  const Word sign = static_cast<Word>(Word(random.below(2)) << (exponent_bits + mantissa_bits));
  const Word mantissa = static_cast<Word>(random.next() & ((Word(1) << mantissa_bits) - 1));
  const Word exponent_max = static_cast<Word>((Word(1) << exponent_bits) - 1);
  const Word bias = exponent_max >> 1;
  const auto make = [&](Word exponent, Word m) { return static_cast<Word>(sign | (exponent << mantissa_bits) | m); };
  switch (random.below(16)) {
    case 0: return make(0, 0);  // zeros of both signs
    case 1:
      return make(0, mantissa);  // subnormal
    // infinity, or a number near it
    case 2: return random.chance(0.5) ? make(exponent_max, 0) : make(exponent_max - 1, mantissa);
    case 3: return random.chance(0.3) ? make(exponent_max, mantissa) : make(bias, 0);  // NaN or 1.0
    case 4:
    case 5:
    case 6: return static_cast<Word>(random.next());
    default: return make(static_cast<Word>(bias - 3 + random.below(7)), mantissa);
  }
}

void fill(Random& random, DType dtype, std::byte* at, size_t count) {
  const auto each = [&](auto make) {
    for (size_t i = 0; i < count; ++i) {
      const auto word = make();
      std::memcpy(at + i * sizeof(word), &word, sizeof(word));
    }
  };
  if (dtype == DType::f32) return each([&] { return interesting<uint32_t>(random, 8, 23); });
  if (dtype == DType::f64) return each([&] { return interesting<uint64_t>(random, 11, 52); });
  if (dtype == DType::f16) return each([&] { return interesting<uint16_t>(random, 5, 10); });
  if (dtype == DType::bf16) return each([&] { return interesting<uint16_t>(random, 8, 7); });
  for (size_t i = 0; i < count * element_bytes(dtype); ++i) at[i] = static_cast<std::byte>(random.next() >> 56);
}

struct Case {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  size_t source_count = 1;
  size_t count = 0;
  int aliased = -1;  // index of the source that is also the destination; -1: none
  bool with_copy = false;
  uint32_t divisor = 1;
  size_t alignment = 0;  // alignment of the first buffer; that of the others is random

  std::string to_string() const {
    return concat(name(dtype), " ", name(op), " sources ", source_count, " count ", count, " aliased ", aliased, " copy ",
                  with_copy ? 1 : 0, " divisor ", divisor, " alignment ", alignment);
  }
};

// The offsets of a case's buffers in their arena. Both arenas use the same offsets. Buffers are at least 64 bytes apart.
struct Layout {
  std::vector<size_t> sources;
  size_t destination = 0, copy = 0, bytes = 0;
};

Layout lay_out(const Case& c, Random& random) {
  Layout layout;
  const size_t bytes = c.count * element_bytes(c.dtype);
  size_t alignment = c.alignment;
  const auto place = [&] {
    const size_t at = layout.bytes + 64 + alignment;
    alignment = random.below(16);
    layout.bytes = (at + bytes + 63) / 64 * 64;
    return at;
  };
  for (size_t s = 0; s < c.source_count; ++s) layout.sources.push_back(place());
  layout.destination = c.aliased >= 0 ? layout.sources[static_cast<size_t>(c.aliased)] : place();
  layout.copy = place();
  layout.bytes += 64;
  return layout;
}

template <typename Function>
void run(const Case& c, const Layout& layout, Bytes& arena, Function function) {
  std::vector<const void*> sources;
  for (const size_t at : layout.sources) sources.push_back(arena.data() + at);
  function(Reduction{.dtype = c.dtype,
                     .op = c.op,
                     .sources = sources,
                     .destination = arena.data() + layout.destination,
                     .copy = c.with_copy ? arena.data() + layout.copy : nullptr,
                     .count = c.count,
                     .divisor = c.divisor});
}

void check_equal_to_reference(const Case& c, Random& random) {
  const auto layout = lay_out(c, random);
  Bytes expected(layout.bytes);
  for (auto& byte : expected) byte = static_cast<std::byte>(random.next() >> 56);
  for (const size_t at : layout.sources) fill(random, c.dtype, expected.data() + at, c.count);
  Bytes actual = expected;
  run(c, layout, expected, reduce_reference);
  run(c, layout, actual, reduce);
  if (expected == actual) return;
  size_t at = 0;
  while (expected[at] == actual[at]) ++at;
  FAIL() << c.to_string() << ": first difference at byte "
         << static_cast<int64_t>(at) - static_cast<int64_t>(layout.destination) << " of the destination";
}

class EachTarget : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    RecordProperty("seed", std::to_string(seed));
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    ASSERT_TRUE(force_target(GetParam()));
  }
  void TearDown() override { ASSERT_TRUE(force_target("")); }

  template <typename Function>
  void for_each_type_and_op(Function function) {
    for (const auto dtype : all_dtypes) {
      for (const auto op : all_ops) {
        if (defined(dtype, op)) function(dtype, op);
        if (HasFatalFailure()) return;
      }
    }
  }
  Random random_{seed};
};

TEST_P(EachTarget, reduces_every_small_count_like_the_reference) {
  for_each_type_and_op([&](DType dtype, ReduceOp op) {
    for (size_t count = 0; count <= 130; ++count) {
      for (size_t source_count = 1; source_count <= 4; ++source_count) {
        const uint32_t divisors[] = {1, 2, 3, 7};
        check_equal_to_reference({.dtype = dtype,
                                  .op = op,
                                  .source_count = source_count,
                                  .count = count,
                                  .aliased = static_cast<int>(random_.below(source_count + 1)) - 1,
                                  .with_copy = random_.chance(0.5),
                                  .divisor = divisors[random_.below(4)],
                                  .alignment = random_.below(16)},
                                 random_);
        if (HasFatalFailure()) return;
      }
    }
  });
}

TEST_P(EachTarget, reduces_at_every_alignment_like_the_reference) {
  for_each_type_and_op([&](DType dtype, ReduceOp op) {
    for (size_t alignment = 0; alignment < 16; ++alignment) {
      for (const size_t count : {size_t{1}, size_t{37}, 300 + random_.below(300)}) {
        for (const int aliased : {-1, 0, 1}) {
          check_equal_to_reference({.dtype = dtype,
                                    .op = op,
                                    .source_count = 2,
                                    .count = count,
                                    .aliased = aliased,
                                    .with_copy = random_.chance(0.5),
                                    .alignment = alignment},
                                   random_);
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST_P(EachTarget, reduces_any_number_of_sources_into_any_of_them) {
  for_each_type_and_op([&](DType dtype, ReduceOp op) {
    for (const size_t source_count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 70}) {
      const int step = source_count > 9 ? 23 : 1;
      for (int aliased = -1; aliased < static_cast<int>(source_count); aliased += step) {
        check_equal_to_reference({.dtype = dtype,
                                  .op = op,
                                  .source_count = source_count,
                                  .count = 1 + random_.below(400),
                                  .aliased = aliased,
                                  .with_copy = random_.chance(0.5)},
                                 random_);
        if (HasFatalFailure()) return;
      }
    }
  });
}

TEST_P(EachTarget, divides_like_the_reference) {
  for_each_type_and_op([&](DType dtype, ReduceOp op) {
    for (const uint32_t divisor : {0u, 1u, 2u, 3u, 4u, 7u, 64u, 255u, 1000u, 65'537u, 0x8000'0000u, 0xFFFF'FFFFu}) {
      check_equal_to_reference({.dtype = dtype,
                                .op = op,
                                .source_count = 1 + random_.below(3),
                                .count = 200 + random_.below(100),
                                .with_copy = true,
                                .divisor = divisor},
                               random_);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(EachTarget, reduces_a_thousand_sources_and_large_counts) {
  for (const auto dtype : all_dtypes) {
    check_equal_to_reference({.dtype = dtype, .source_count = 1025, .count = 67, .aliased = 1024}, random_);
    check_equal_to_reference({.dtype = dtype, .source_count = 2, .count = 100'003, .aliased = 0, .with_copy = true}, random_);
    if (HasFatalFailure()) return;
  }
}

TEST_P(EachTarget, sums_every_16_bit_value_with_a_few_others_like_the_reference) {
  std::vector<uint16_t> every(65536), other(65536), actual(65536), expected(65536);
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<uint16_t>(i);
  for (const auto dtype : {DType::f16, DType::bf16}) {
    for (const auto op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
      for (int round = 0; round < 8; ++round) {
        for (auto& value : other) value = static_cast<uint16_t>(random_.next());
        const void* sources[] = {every.data(), other.data()};
        const uint32_t divisor = 1 + static_cast<uint32_t>(random_.below(3));
        Reduction task{.dtype = dtype, .op = op, .sources = sources, .count = every.size(), .divisor = divisor};
        task.destination = actual.data();
        reduce(task);
        task.destination = expected.data();
        reduce_reference(task);
        ASSERT_EQ(actual, expected) << name(dtype) << " " << name(op);
      }
    }
  }
}

// Each buffer is a heap block of its exact size, so the address sanitizer reports any access beside it.
TEST_P(EachTarget, touches_nothing_beside_its_buffers) {
  for_each_type_and_op([&](DType dtype, ReduceOp op) {
    for (size_t count = 1; count <= 70; ++count) {
      const size_t bytes = count * element_bytes(dtype);
      const auto block = [&] { return std::make_unique<std::byte[]>(bytes); };
      const auto a = block(), b = block(), c = block(), copied = block();
      const void* sources[] = {a.get(), b.get(), c.get()};
      reduce({.dtype = dtype,
              .op = op,
              .sources = sources,
              .destination = c.get(),
              .copy = copied.get(),
              .count = count,
              .divisor = 3});
      ASSERT_EQ(std::memcmp(c.get(), copied.get(), bytes), 0);
    }
  });
}

struct Conversion {
  DType to, from;
};
constexpr Conversion all_conversions[] = {
    {DType::f32, DType::bf16}, {DType::bf16, DType::f32}, {DType::f32, DType::f16}, {DType::f16, DType::f32}};

TEST_P(EachTarget, converts_every_small_count_at_every_alignment_like_the_reference) {
  for (const auto [to, from] : all_conversions) {
    for (size_t count = 0; count <= 130; ++count) {
      for (size_t alignment = 0; alignment < 16; ++alignment) {
        Bytes source(alignment + count * element_bytes(from));
        fill(random_, from, source.data() + alignment, count);
        Bytes expected(64 + count * element_bytes(to) + 64, std::byte{0xA5});
        Bytes actual = expected;
        const size_t at = 32 + random_.below(16);
        convert_reference(to, expected.data() + at, from, source.data() + alignment, count);
        convert(to, actual.data() + at, from, source.data() + alignment, count);
        ASSERT_EQ(actual, expected) << name(from) << " to " << name(to) << " count " << count << " alignment " << alignment;
      }
    }
  }
}

TEST_P(EachTarget, widens_every_16_bit_value_like_the_reference) {
  std::vector<uint16_t> every(65536);
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<uint16_t>(i);
  for (const auto from : {DType::f16, DType::bf16}) {
    std::vector<uint32_t> expected(65536), actual(65536);
    convert_reference(DType::f32, expected.data(), from, every.data(), every.size());
    convert(DType::f32, actual.data(), from, every.data(), every.size());
    ASSERT_EQ(actual, expected) << name(from);
  }
}

// Rounding can go wrong near a 16-bit value, and near the midpoint of two adjacent ones. Tests values around both.
TEST_P(EachTarget, narrows_around_every_rounding_border_like_the_reference) {
  for (const auto to : {DType::f16, DType::bf16}) {
    std::vector<uint32_t> values;
    for (uint32_t high = 0; high < 65536; ++high) {
      for (const uint32_t low :
           {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x2FFFu, 0x3000u, 0x3001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
        values.push_back(high << 16 | low);
      }
      values.push_back(high << 16 | static_cast<uint32_t>(random_.below(65536)));
    }
    std::vector<uint16_t> expected(values.size()), actual(values.size());
    convert_reference(to, expected.data(), DType::f32, values.data(), values.size());
    convert(to, actual.data(), DType::f32, values.data(), values.size());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(actual[i], expected[i]) << name(to) << " of bits " << values[i];
  }
}

TEST_P(EachTarget, copies_every_size_and_alignment) {
  const size_t large = (size_t{24} << 20) + 12'345;  // above the size from which copy() uses streaming stores
  const auto check = [&](size_t bytes, size_t from_at, size_t to_at) {
    Bytes source(from_at + bytes);
    for (size_t i = 0; i < source.size(); i += 1 + i / 4096) source[i] = static_cast<std::byte>(random_.next() >> 56);
    Bytes target(to_at + bytes + 64, std::byte{0x5A});
    kernels::copy(target.data() + to_at, source.data() + from_at, bytes);
    ASSERT_EQ(std::memcmp(target.data() + to_at, source.data() + from_at, bytes), 0) << bytes;
    for (size_t i = 0; i < to_at; ++i) ASSERT_EQ(target[i], std::byte{0x5A});
    for (size_t i = to_at + bytes; i < target.size(); ++i) ASSERT_EQ(target[i], std::byte{0x5A});
  };
  for (size_t bytes = 0; bytes < 300; ++bytes) check(bytes, random_.below(70), random_.below(70));
  for (const size_t at : {0, 1, 17, 63}) check(large, 3, at);
}

// With such offsets, "rep movsb" is slow, so copy() uses its own loop (see dispatch.cc).
TEST_P(EachTarget, copies_to_destinations_shortly_after_the_source_within_a_page) {
  constexpr size_t page = 4096;
  Bytes source(4 * page);
  for (auto& byte : source) byte = static_cast<std::byte>(random_.next() >> 56);
  for (const size_t bytes : {size_t{2048}, size_t{2049}, size_t{4096}, 3 * page - 1, 3 * page}) {
    for (size_t after = 0; after < 34; ++after) {
      Bytes target(6 * page, std::byte{0x5A});
      const auto gap = (reinterpret_cast<uintptr_t>(source.data()) - reinterpret_cast<uintptr_t>(target.data())) % page;
      const size_t at = gap + after;
      auto expected = target;
      std::memcpy(expected.data() + at, source.data(), bytes);
      kernels::copy(target.data() + at, source.data(), bytes);
      ASSERT_EQ(target, expected) << bytes << " bytes, " << after << " after";
    }
  }
}

TEST(LineCopy, copies_every_small_size_and_alignment_on_every_target) {
  Random random(seed);
  for (const auto* table : runnable_tables()) {
    for (size_t bytes = 0; bytes < 400; ++bytes) {
      Bytes source(bytes + 70);
      for (auto& byte : source) byte = static_cast<std::byte>(random.next() >> 56);
      for (const auto copy : {table->stream_copy, table->line_copy}) {
        Bytes target(bytes + 200, std::byte{0x5A});
        const size_t from_at = random.below(70), to_at = random.below(70);
        Bytes expected = target;
        if (bytes > 0) std::memcpy(expected.data() + to_at, source.data() + from_at, bytes);
        copy(target.data() + to_at, source.data() + from_at, bytes);
        ASSERT_EQ(target, expected) << bytes;
      }
    }
  }
}

std::vector<const char*> target_names() { return {targets().begin(), targets().end()}; }
INSTANTIATE_TEST_SUITE_P(Kernels, EachTarget, testing::ValuesIn(target_names()),
                         [](const auto& target) { return std::string(target.param); });

TEST(Targets, are_named_best_first_and_an_unknown_one_is_refused) {
  ASSERT_FALSE(targets().empty());
  EXPECT_FALSE(force_target("no such target"));
  for (const char* target : targets()) EXPECT_TRUE(force_target(target)) << target;
  EXPECT_TRUE(force_target(""));
}

}  // namespace
}  // namespace unisono::kernels
