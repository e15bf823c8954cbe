#include "job.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/concat.h"

namespace unisono::bench {
namespace {

struct Memory {
  explicit Memory(const Job& job) : input(job.buffer_bytes()), output(job.buffer_bytes()) {}
  Buffers buffers(const Job& job) { return {input.data(), job.in_place() ? input.data() : output.data()}; }
  std::vector<std::byte> input, output;
};

// Returns the values (fp32) that rank 1 of 2 must have after a correct call. They are computed from the values that fill()
// wrote, by each collective's definition.
std::vector<float> right_result(const Job& job) {
  const size_t count = job.elements(), block = count / 2;
  std::vector<float> given[2];
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Memory memory(job);
    fill(job, {rank, 2}, memory.buffers(job));
    given[rank].resize(count);
    std::memcpy(given[rank].data(), memory.input.data(), job.bytes);
  }
  std::vector<float> result(count);
  for (size_t i = 0; i < count; ++i) {
    switch (job.collective) {
      case Collective::all_reduce: result[i] = given[0][i] + given[1][i]; break;
      case Collective::reduce_scatter: result[i] = i < block ? given[0][block + i] + given[1][block + i] : 0; break;
      case Collective::all_gather: result[i] = given[i / block][i % block]; break;
      case Collective::all_to_all: result[i] = given[i / block][block + i % block]; break;
      case Collective::broadcast: result[i] = given[0][i]; break;
    }
  }
  return result;
}

constexpr Collective every_collective[] = {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                           Collective::all_to_all, Collective::broadcast};

TEST(Job, right_results_pass_and_one_wrong_value_anywhere_is_detected) {
  for (const auto collective : every_collective) {
    const Job job{.collective = collective, .bytes = 64};
    const auto right = right_result(job);
    const size_t results = collective == Collective::reduce_scatter ? 8 : 16;
    Memory memory(job);
    const auto buffers = memory.buffers(job);
    std::memcpy(buffers.output, right.data(), job.bytes);
    EXPECT_TRUE(verify(job, {1, 2}, buffers).ok()) << name(collective) << ": " << verify(job, {1, 2}, buffers).to_string();
    for (size_t i = 0; i < results; ++i) {
      auto wrong = right;
      wrong[i] += 0.0625f;
      std::memcpy(buffers.output, wrong.data(), job.bytes);
      const auto status = verify(job, {1, 2}, buffers);
      EXPECT_EQ(status.code(), Code::internal) << name(collective);
      EXPECT_NE(status.message().find(concat("element ", i)), std::string::npos) << status.to_string();
    }
  }
}

TEST(Job, a_call_that_did_nothing_is_detected) {
  for (const auto collective : every_collective) {
    for (const auto element : {Element::f32, Element::bf16, Element::f16}) {
      const Job job{.collective = collective, .element = element, .bytes = 4096};
      Memory memory(job);
      fill(job, {1, 2}, memory.buffers(job));
      EXPECT_EQ(verify(job, {1, 2}, memory.buffers(job)).code(), Code::internal) << name(collective) << " " << name(element);
    }
  }
}

TEST(Job, swapped_parts_are_detected) {
  const Job job{.parts = 2, .bytes = 64};
  Memory memory(job);
  fill(job, {0, 1}, memory.buffers(job));
  EXPECT_TRUE(verify(job, {0, 1}, memory.buffers(job)).ok());
  std::swap_ranges(memory.input.begin(), memory.input.begin() + 64, memory.input.begin() + 64);
  EXPECT_EQ(verify(job, {0, 1}, memory.buffers(job)).code(), Code::internal);
}

// In a world of one, the result is the rank's own contribution. Its bits must be those of -3 to 3 in each format.
TEST(Job, sixteen_bit_contributions_are_whole_numbers_to_the_bit) {
  constexpr uint16_t bf16[] = {0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040};
  constexpr uint16_t f16[] = {0xc200, 0xc000, 0xbc00, 0x0000, 0x3c00, 0x4000, 0x4200};
  for (const auto element : {Element::bf16, Element::f16}) {
    const Job job{.element = element, .bytes = 4096};
    Memory memory(job);
    fill(job, {0, 1}, memory.buffers(job));
    EXPECT_TRUE(verify(job, {0, 1}, memory.buffers(job)).ok());
    const uint16_t* right = element == Element::bf16 ? bf16 : f16;
    for (size_t i = 0; i < 500; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, memory.input.data() + 2 * i, 2);
      EXPECT_EQ(bits, right[i * 31 % 7]) << name(element) << ", element " << i;
    }
  }
}

TEST(Job, timed_contributions_sum_to_zero) {
  for (const auto element : {Element::f32, Element::bf16, Element::f16}) {
    const Job job{.element = element, .bytes = 64};
    Memory first(job), second(job);
    fill_for_timing(job, {0, 2}, first.buffers(job));
    fill_for_timing(job, {1, 2}, second.buffers(job));
    const size_t bytes = element_bytes(element);
    for (size_t i = 0; i < job.elements(); ++i) {
      const auto difference = std::to_integer<int>(first.input[(i + 1) * bytes - 1] ^ second.input[(i + 1) * bytes - 1]);
      EXPECT_EQ(difference, i % 3 == 0 ? 0 : 0x80) << "the signs differ, and nothing else: element " << i;
      EXPECT_EQ(std::memcmp(&first.input[i * bytes], &second.input[i * bytes], bytes - 1), 0);
    }
  }
}

TEST(Job, renewed_input_holds_the_same_values) {
  for (const auto collective : every_collective) {
    const Job job{.collective = collective, .bytes = 4096};
    for (uint32_t rank = 0; rank < 2; ++rank) {
      Memory memory(job);
      fill(job, {rank, 2}, memory.buffers(job));
      const auto input = memory.input, output = memory.output;
      renew_input(job, {rank, 2}, memory.buffers(job));
      EXPECT_EQ(memory.input, input) << name(collective);
      EXPECT_EQ(memory.output, output) << name(collective);
    }
  }
}

// Each turn makes one page of the input read-only. renew_input() must then crash, so it writes to every page.
TEST(JobDeathTest, an_input_is_written_on_every_page) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  constexpr size_t pages = 3;
  const Job job{.collective = Collective::all_gather, .bytes = 2 * pages * page};
  auto* memory =
      static_cast<std::byte*>(::mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  std::vector<std::byte> output(job.bytes);
  const Buffers buffers{.input = memory, .output = output.data()};
  renew_input(job, {0, 2}, buffers);
  for (size_t i = 0; i < pages; ++i) {
    ASSERT_EQ(::mprotect(memory + i * page, page, PROT_READ), 0);
    EXPECT_DEATH(renew_input(job, {0, 2}, buffers), "") << "page " << i;
    ASSERT_EQ(::mprotect(memory + i * page, page, PROT_READ | PROT_WRITE), 0);
  }
  ::munmap(memory, pages * page);
}

TEST(Plan, names_collectives_elements_parts_sizes_and_algorithms) {
  const auto jobs = parse_plan("1024,all_gather/65536=ring+any,bf16/8x4096,reduce_scatter/f16/12");
  ASSERT_TRUE(jobs.ok()) << jobs.status().to_string();
  ASSERT_EQ(jobs->size(), 4u);
  EXPECT_EQ((*jobs)[0].bytes, 1024u);
  EXPECT_EQ((*jobs)[1].collective, Collective::all_gather);
  EXPECT_EQ((*jobs)[1].algorithm, "ring+any");
  EXPECT_EQ((*jobs)[2].element, Element::bf16);
  EXPECT_EQ((*jobs)[2].parts, 8u);
  EXPECT_EQ((*jobs)[2].buffer_bytes(), 32768u);
  EXPECT_EQ((*jobs)[3].collective, Collective::reduce_scatter);
  EXPECT_EQ((*jobs)[3].elements(), 6u);
}

TEST(Plan, bad_entries_are_refused) {
  for (const char* plan : {"", "0", "x", "1024,", "=ring", "1022", "1024x", "-4", "+4", "0x4", "8x", "2000x4", "gather/1024",
                           "f64/1024", "bf16", "bf16/", "all_gather/2x1024", "99999999999999999999"}) {
    const auto jobs = parse_plan(plan);
    EXPECT_EQ(jobs.status().code(), Code::invalid) << "plan \"" << plan << "\"";
  }
}

}  // namespace
}  // namespace unisono::bench
