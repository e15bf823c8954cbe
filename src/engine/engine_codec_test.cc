// Encoded collectives: digests of results, bytes on the wire, and reports. Also the rank that an error names if ranks differ.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "engine/codec_test_support.h"
#include "kernels/dispatch.h"

namespace unisono {
namespace {

using Kind = StepCodec::Kind;
using Metadata = StepCodec::Metadata;
using Spikes = StepCodec::Spikes;
using test::all_reduce;
using test::both;
using test::digest;
using test::golden;
using test::Outcome;
using test::step;
using test::Vectors;

uint32_t digest(uint32_t world, size_t count, const CallOptions& options) {
  TestCluster cluster(world);
  return digest(all_reduce(cluster, golden(world, count), options));
}

constexpr auto two_step = ScheduleKind::two_step, one_shot = ScheduleKind::one_shot, hierarchical = ScheduleKind::hierarchical;
const StepCodec int4_f16 = step(4, 128, Metadata::f16);

TEST(EngineCodec, gives_the_specified_bits) {
  auto exact = Codec::of(int4_f16);
  EXPECT_EQ(digest(3, 1000, {.schedule = two_step, .codec = exact}), 0x0a076d5cu);
  exact.own_exact = true;
  EXPECT_EQ(digest(3, 1000, {.schedule = two_step, .codec = exact}), 0x290e6915u);
  const auto int8 = step(8, 32, Metadata::bf16), int4 = step(4, 32, Metadata::bf16);
  EXPECT_EQ(digest(4, 1000, {.schedule = two_step, .codec = both(int8, int4)}), 0x0d47e5cbu);
  EXPECT_EQ(digest(4, 1000, {.schedule = two_step, .codec = both(int4, int8)}), 0xe173d6a7u);
  EXPECT_EQ(digest(3, 1000,
                   {.schedule = two_step, .codec = both(step(3, 64, Metadata::f16, Spikes::on), step(5, 128, Metadata::f32))}),
            0xe8d8fbe5u);
  EXPECT_EQ(digest(3, 5, {.schedule = two_step, .codec = Codec::of(int4_f16)}), 0x9d0641c5u);
  EXPECT_EQ(digest(4, 1000, {.op = ReduceOp::avg, .schedule = two_step, .codec = Codec::of(step(8, 128, Metadata::f16))}),
            0x71f4029eu);
  EXPECT_EQ(digest(2, 1000, {.schedule = one_shot, .codec = Codec::of(step(5, 128, Metadata::f16))}), 0x4df9c637u);
  EXPECT_EQ(digest(4, 1000, {.schedule = hierarchical, .codec = Codec::of(int4_f16)}), 0x8561cf50u);
  EXPECT_EQ(digest(4, 1000, {.schedule = hierarchical, .codec = Codec{.reduce = {}, .across = int4_f16, .gather = {}}}),
            0xd82fbb2du);
  const auto int6 = step(6, 128, Metadata::f16);
  EXPECT_EQ(digest(6, 1000, {.schedule = hierarchical, .codec = Codec{.reduce = int4_f16, .across = int6, .gather = int6}}),
            0x5ff9a7cdu);
}

TEST(EngineCodec, slicing_does_not_change_the_bits) {
  const auto codec = Codec::of(step(5, 64, Metadata::bf16, Spikes::on));
  for (const uint32_t world : {2u, 3u, 5u, 7u}) {
    for (const auto schedule : {one_shot, two_step}) {
      const auto whole = digest(world, 3001, {.schedule = schedule, .codec = codec});
      for (const uint64_t slice_bytes : {64, 1000, 4096}) {
        EXPECT_EQ(digest(world, 3001, {.schedule = schedule, .slice_bytes = slice_bytes, .codec = codec}), whole)
            << world << " ranks, slices of " << slice_bytes;
      }
    }
  }
}

TEST(EngineCodec, arrival_order_and_slicing_do_not_change_the_bits) {
  const uint64_t seed = 41;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto codec = both(step(6, 64, Metadata::bf16), step(3, 128, Metadata::f16, Spikes::on));
  const size_t count = 2900;
  for (const uint32_t world : {1u, 2u, 3u, 5u, 6u, 7u, 8u}) {
    for (const auto schedule : {one_shot, two_step, hierarchical}) {
      const auto in_order = digest(world, count, {.schedule = schedule, .codec = codec});
      for (const uint64_t slice_elements : {size_t{128}, size_t{1280}, count}) {
        TestCluster late(world, {.seed = seed * world + slice_elements, .delay = 0.3, .reorder = 0.5});
        const CallOptions options{.schedule = schedule, .slice_bytes = slice_elements * sizeof(float), .codec = codec};
        EXPECT_EQ(digest(all_reduce(late, golden(world, count), options)), in_order)
            << world << " ranks, " << name(schedule) << ", slices of " << slice_elements << " elements";
      }
    }
  }
}

TEST(EngineCodec, sends_as_many_bytes_as_the_report_says) {
  const auto payloads = [](uint32_t world, size_t count, const CallOptions& options) {
    TestCluster cluster(world);
    std::vector<uint64_t> sent;
    for (const auto& report : all_reduce(cluster, golden(world, count), options).reports) {
      sent.push_back(report.sent_payload);
      EXPECT_GE(report.sent_bytes, report.sent_payload + report.sent_messages * sizeof(FrameHeader));
      EXPECT_LE(report.sent_bytes, report.sent_payload + report.sent_messages * (sizeof(FrameHeader) + 8));
    }
    return sent;
  };
  using Sent = std::vector<uint64_t>;
  EXPECT_EQ(payloads(3, 1000, {.schedule = two_step, .codec = Codec::of(int4_f16)}), (Sent{736, 736, 656}));
  EXPECT_EQ(payloads(4, 1000, {.schedule = two_step, .codec = both(step(8, 32, Metadata::bf16), step(4, 32, Metadata::bf16))}),
            (Sent{1320, 1320, 1320, 1308}));
  EXPECT_EQ(payloads(4, 1u << 20, {.schedule = two_step, .codec = Codec::of(int4_f16)}),
            (Sent{835'584, 835'584, 835'584, 835'584}));
}

TEST(EngineCodec, counts_the_encodings_in_series) {
  const auto report = [](uint32_t world, const CallOptions& options) {
    TestCluster cluster(world);
    return all_reduce(cluster, golden(world, 5000), options).reports[0];
  };
  EXPECT_EQ(report(4, {.schedule = two_step, .codec = Codec::quantized(4)}).passes, 2u);
  EXPECT_EQ(report(4, {.schedule = one_shot, .codec = Codec::quantized(4)}).passes, 1u);
  EXPECT_EQ(report(4, {.schedule = hierarchical, .codec = Codec::quantized(4)}).passes, 3u);
  EXPECT_EQ(report(6, {.schedule = hierarchical, .codec = Codec{.reduce = {}, .across = int4_f16, .gather = int4_f16}}).passes,
            2u);
  EXPECT_EQ(report(4, {.schedule = hierarchical, .codec = Codec{.reduce = {}, .across = int4_f16, .gather = {}}}).passes, 1u);
  const auto two = report(4, {.schedule = two_step, .codec = Codec::quantized(4)});
  EXPECT_EQ(two.codec, Codec::quantized(4));
  EXPECT_EQ(two.codec_note, "");
  EXPECT_NEAR(two.bits_per_element(), 4.25, 0.01);
}

TEST(EngineCodec, is_not_used_where_it_cannot_be_used_or_does_not_pay) {
  const auto note = [](uint32_t world, Vectors values, const CallOptions& options) {
    TestCluster cluster(world);
    const auto exact = all_reduce(cluster, values, {.op = options.op});
    const auto outcome = all_reduce(cluster, values, options);
    for (size_t r = 0; r < values.size(); ++r) EXPECT_EQ(outcome.values[r], exact.values[r]);
    EXPECT_TRUE(outcome.reports[0].codec.is_plain());
    EXPECT_EQ(outcome.reports[0].passes, 0u);
    return outcome.reports[0].codec_note;
  };
  const auto codec = Codec::quantized(8);
  EXPECT_EQ(note(1, golden(1, 5000), {.codec = codec}), "one rank");
  EXPECT_EQ(note(4, golden(4, 1023), {.codec = codec}), "fewer than 1024 elements");
  EXPECT_EQ(note(4, golden(4, 5000), {.op = ReduceOp::max, .schedule = two_step, .codec = codec}),
            "only sums and averages are encoded");
  EXPECT_EQ(note(2, golden(2, 100'000), {.codec = codec}), "plain is predicted to be about as fast");  // both ranks on one host
}

TEST(EngineCodec, automatic_codecs_are_used_over_thin_links) {
  TestCluster cluster(4, {}, {}, 1);
  const auto outcome = all_reduce(cluster, golden(4, 1u << 20), {.codec = Codec::quantized(4)});
  EXPECT_EQ(outcome.reports[0].codec, Codec::quantized(4));
  EXPECT_EQ(outcome.reports[0].schedule, "two_step");
  digest(outcome);
}

TEST(EngineCodec, refuses_a_schedule_that_would_encode_sums_on_every_hop) {
  TestCluster cluster(4);
  auto values = golden(4, 5000);
  const Tensor tensor{std::span<float>(values[0])};
  const auto done = cluster.submit(
      0, all_reduce_call(cluster.caller(0), tensor, tensor, {.schedule = ScheduleKind::ring, .codec = Codec::quantized(4)}));
  EXPECT_EQ(done->status.code(), Code::unsupported);
  EXPECT_NE(done->status.message().find("encodes sums again on every hop; there are one_shot, two_step"), std::string::npos)
      << done->status.message();
}

// Runs an all-reduce in which every rank has its own options. Returns the status of each rank.
std::vector<Status> statuses(const std::vector<CallOptions>& options, size_t count = 5000) {
  const auto world = static_cast<uint32_t>(options.size());
  TestCluster cluster(world);
  auto values = golden(world, count);
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < world; ++r) {
    const Tensor tensor{std::span<float>(values[r])};
    done.push_back(cluster.submit(r, all_reduce_call(cluster.caller(r), tensor, tensor, options[r])));
  }
  cluster.finish(done);
  std::vector<Status> result;
  for (const auto& completion : done) result.push_back(completion->status);
  return result;
}

TEST(EngineCodec, names_ranks_whose_codecs_differ) {
  const auto with = [](Codec codec) { return CallOptions{.schedule = two_step, .codec = codec}; };
  const auto int4 = with(Codec::quantized(4));
  const struct {
    CallOptions other;
    const char* text;
  } cases[] = {{with(Codec::quantized(8)), "int8:group=128"},
               {with(Codec::quantized(4, 32)), "int4:group=32"},
               {with(Codec::of(step(4, 128, Metadata::f16))), "metadata=f16"},
               {with(Codec::of(step(4, 128, Metadata::bf16, Spikes::on))), "spikes=on"},
               {with(both(step(4, 128, Metadata::bf16), step(5, 128, Metadata::bf16))), "int5:group=128"},
               {with(Codec::of({.kind = Kind::bf16})), "codecs differ"}};
  for (const auto& c : cases) {
    const auto status = statuses({int4, int4, c.other});
    bool named = false;
    for (const auto& s : status) {
      EXPECT_EQ(s.code(), Code::invalid) << s.to_string();
      named |= s.message().find(c.text) != std::string::npos &&
               s.message().find("int4:group=128,metadata=bf16") != std::string::npos &&
               s.message().find("rank ") != std::string::npos;
    }
    EXPECT_TRUE(named) << c.text << ": " << status[0].to_string() << " | " << status[2].to_string();
  }
  for (const auto& s : statuses({int4, with({})})) EXPECT_NE(s.message().find("codec"), std::string::npos) << s.to_string();
  auto exact = Codec::quantized(4);
  exact.own_exact = true;
  for (const auto& s : statuses({int4, with(exact)})) EXPECT_NE(s.message().find("codec"), std::string::npos) << s.to_string();
}

TEST(EngineCodec, poisons_only_the_quantization_group_of_a_nan) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const auto schedule : {one_shot, two_step, hierarchical}) {
      TestCluster cluster(4);
      auto values = golden(4, 2000);
      values[2][700] = bad;
      const auto outcome = all_reduce(cluster, std::move(values), {.schedule = schedule, .codec = Codec::quantized(6)});
      digest(outcome);
      for (size_t i = 0; i < 2000; ++i) EXPECT_EQ(std::isnan(outcome.values[0][i]), i / 128 == 700 / 128) << i;
    }
  }
}

TEST(EngineCodec, results_of_all_sizes_are_equal_on_all_ranks) {
  for (const uint32_t world : {2u, 3u, 4u, 5u, 6u, 8u}) {
    for (const size_t count :
         {size_t{0}, size_t{1}, size_t{world - 1}, size_t{128} * world - 1, size_t{128} * world, size_t{128} * world + 1}) {
      for (const auto schedule : {one_shot, two_step, hierarchical}) {
        TestCluster cluster(world);
        const auto values = golden(world, count);
        const auto outcome = all_reduce(cluster, values, {.schedule = schedule, .codec = Codec::quantized(8)});
        digest(outcome);
        for (size_t i = 0; i < count; ++i) {
          float sum = 0;
          for (const auto& v : values) sum += v[i];
          ASSERT_NEAR(outcome.values[0][i], sum, 0.07f * static_cast<float>(world))
              << world << " ranks, " << count << " elements, " << i;
        }
      }
    }
  }
}

TEST(EngineCodec, sixteen_bit_tensors_are_summed_in_fp32_and_rounded_once) {
  for (const auto dtype : {DType::f16, DType::bf16}) {
    for (const auto schedule : {one_shot, two_step, hierarchical}) {
      const uint32_t world = 4;
      const size_t count = 3000;
      TestCluster cluster(world);
      Vectors wide;
      std::vector<std::vector<uint16_t>> values(world, std::vector<uint16_t>(count));
      for (Rank r = 0; r < world; ++r) {
        wide.push_back(gold(count, r + 1));
        kernels::convert(dtype, values[r].data(), DType::f32, wide[r].data(), count);
        kernels::convert(DType::f32, wide[r].data(), dtype, values[r].data(), count);
      }
      // The expected values come from fp32 tensors, with the same type of scales.
      auto codec = Codec::of(step(7, 128, dtype == DType::f16 ? Metadata::f16 : Metadata::bf16));
      const auto exact = all_reduce(cluster, wide, {.schedule = schedule, .codec = codec});
      std::vector<std::shared_ptr<Completion>> done;
      for (Rank r = 0; r < world; ++r) {
        const Tensor tensor{values[r].data(), count, dtype};
        done.push_back(
            cluster.submit(r, all_reduce_call(cluster.caller(r), tensor, tensor, {.schedule = schedule, .codec = codec})));
      }
      cluster.finish(done);
      std::vector<uint16_t> wanted(count);
      kernels::convert(dtype, wanted.data(), DType::f32, exact.values[0].data(), count);
      for (Rank r = 0; r < world; ++r) {
        ASSERT_TRUE(done[r]->status.ok()) << done[r]->status.to_string();
        EXPECT_EQ(values[r], wanted) << name(dtype) << " " << name(schedule);
      }
    }
  }
}

TEST(EngineCodec, a_finite_sum_of_sixteen_bit_values_stays_finite) {
  TestCluster cluster(2);
  std::vector<std::vector<uint16_t>> values(2, std::vector<uint16_t>(64, 0x7BFF));  // 0x7BFF is 65504, the largest finite f16
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < 2; ++r) {
    const Tensor tensor{values[r].data(), 64, DType::f16};
    done.push_back(cluster.submit(
        r, all_reduce_call(cluster.caller(r), tensor, tensor, {.schedule = one_shot, .codec = Codec::quantized(8)})));
  }
  cluster.finish(done);
  for (const auto value : values[0]) EXPECT_EQ(value, 0x7BFF);
  EXPECT_EQ(done[0]->report.saturated, 64u);
}

TEST(EngineCodec, fp32_tensors_are_sent_as_narrower_elements) {
  for (const auto kind : {Kind::f16, Kind::bf16}) {
    const DType dtype = kind == Kind::f16 ? DType::f16 : DType::bf16;
    const auto narrowed = [&](std::vector<float> values) {
      std::vector<uint16_t> bits(values.size());
      kernels::convert(dtype, bits.data(), DType::f32, values.data(), values.size());
      kernels::convert(DType::f32, values.data(), dtype, bits.data(), bits.size());
      return values;
    };
    TestCluster cluster(3);
    const auto values = golden(3, 2000);
    const auto outcome = all_reduce(cluster, values, {.schedule = two_step, .codec = Codec::of({.kind = kind})});
    std::vector<float> sum(2000);
    for (const auto& v : values) {
      const auto sent = narrowed(v);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = &v == &values[0] ? sent[i] : sum[i] + sent[i];
    }
    EXPECT_EQ(outcome.values[0], narrowed(sum));
    EXPECT_EQ(outcome.reports[0].passes, 2u);
    EXPECT_DOUBLE_EQ(outcome.reports[0].bits_per_element(), 16);
    digest(outcome);
  }
}

// With all ranks' encoding errors added, the result (times the world size for avg) must equal the exact sum of the inputs.
TEST(EngineCodec, encoding_errors_are_reported_and_add_up) {
  for (const auto op : {ReduceOp::sum, ReduceOp::avg}) {
    for (const auto schedule : {one_shot, two_step, hierarchical}) {
      for (const bool own_exact : {false, true}) {
        const uint32_t world = 4;
        const size_t count = 2500;
        TestCluster cluster(world);
        const auto inputs = golden(world, count);
        Vectors errors(world, std::vector<float>(count, 1e9f));
        auto codec = Codec::quantized(4);
        codec.own_exact = own_exact;
        const auto outcome = all_reduce(cluster, inputs, {.op = op, .schedule = schedule, .codec = codec}, &errors);
        const double scale = op == ReduceOp::avg ? world : 1;
        for (size_t i = 0; i < count; ++i) {
          double sum = 0, error = 0;
          for (Rank r = 0; r < world; ++r) sum += inputs[r][i], error += errors[r][i];
          ASSERT_NEAR(sum, outcome.values[0][i] * scale + error, 1e-4) << name(schedule) << " " << i;
        }
      }
    }
  }
}

// Rank 2 is alone in its host group, so it sends nothing inside that group. Its values must still be rounded, as in larger host
// groups.
TEST(EngineCodec, a_rank_alone_on_its_host_encodes_as_a_host_group_does) {
  const size_t count = 1000;
  const auto coarse = step(2, 32, Metadata::bf16), fine = step(8, 128, Metadata::f32);
  TestCluster cluster(3);  // ranks 0 and 1 form one host group, rank 2 another
  Vectors values(3, std::vector<float>(count));
  values[2] = gold(count, 3);
  auto wanted = values[2];
  for (const auto& each : {coarse, fine}) {
    const auto codec = wire_codec(each, DType::f32, DType::f32, false);
    std::vector<std::byte> message(codec.message_bytes(count));
    kernels::BlockCounts counts;
    encode({.codec = codec, .elements = wanted.data(), .count = count, .message = message.data(), .decoded = wanted.data()},
           counts);
  }
  const auto outcome =
      all_reduce(cluster, values, {.schedule = hierarchical, .codec = Codec{.reduce = coarse, .across = fine, .gather = {}}});
  digest(outcome);
  EXPECT_EQ(outcome.values[0], wanted);
  // Even if host groups exchange plain sums, every rank must have the same bits.
  digest(
      all_reduce(cluster, values, {.schedule = hierarchical, .codec = Codec{.reduce = coarse, .across = {}, .gather = fine}}));
}

// A faulty rank may send any payload with a valid header.
TEST(EngineCodec, damaged_truncated_and_foreign_messages_end_the_call_and_name_their_sender) {
  const size_t count = 2000;
  const auto codec = wire_codec(Codec::quantized(4).reduce, DType::f32, DType::f32, false);
  const CallOptions options{.schedule = one_shot, .slice_bytes = 1u << 20, .codec = Codec::quantized(4)};
  const auto values = gold(count, 2);
  std::vector<std::byte> sound(codec.message_bytes(count));
  kernels::BlockCounts counts;
  encode({.codec = codec, .elements = values.data(), .count = count, .message = sound.data()}, counts);
  const auto outcome_of = [&](std::vector<std::byte> payload, uint8_t kind) {
    TestCluster cluster(2);
    auto own = gold(count, 1);
    const Tensor tensor{std::span<float>(own)};
    auto request = all_reduce_call(cluster.caller(0), tensor, tensor, options);
    const auto descriptor = describe(*request, one_shot, options.slice_bytes, 2);
    const auto done = cluster.submit(0, std::move(request));
    const FrameHeader header{.codec = kind,
                             .epoch = 7,
                             .group = 1,
                             .sender = 1,
                             .amount = descriptor.amount,
                             .descriptor = descriptor.bits,
                             .payload_bytes = static_cast<uint32_t>(payload.size())};
    cluster.engine(0).received(1, header, {payload.data(), payload.size(), 0});
    cluster.settle();
    return done->done ? done->status : Status(Code::late, "still running");
  };
  auto damaged = sound;
  // makes a group's minimum infinite
  damaged[damaged.size() - 1] = std::byte{0x7F}, damaged[damaged.size() - 2] = std::byte{0x80};
  auto cut = sound;
  cut.resize(cut.size() - 1);
  EXPECT_EQ(outcome_of(sound, 1).code(), Code::ok);
  EXPECT_EQ(outcome_of(damaged, 1).code(), Code::corrupt);
  EXPECT_EQ(outcome_of(cut, 1).code(), Code::corrupt);
  EXPECT_EQ(outcome_of({}, 1).code(), Code::invalid);  // an empty slice
  EXPECT_EQ(outcome_of(std::vector<std::byte>(sound.size()), 1).code(), Code::invalid);
  EXPECT_EQ(outcome_of(sound, 0).code(), Code::invalid);
  EXPECT_EQ(outcome_of(sound, 77).code(), Code::invalid);
  for (const auto& status : {outcome_of(damaged, 1), outcome_of(cut, 1), outcome_of({}, 1), outcome_of(sound, 77)}) {
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.to_string();
  }
}

TEST(EngineCodec, reduce_scatter_and_all_gather_use_their_own_codecs) {
  const uint32_t world = 3;
  const size_t block = 700;
  TestCluster cluster(world);
  const auto inputs = golden(world, block * world);
  const auto codec = Codec::of(step(8, 64, Metadata::bf16));
  Vectors parts(world, std::vector<float>(block)), gathered(world, std::vector<float>(block * world));
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < world; ++r) {
    const ConstTensor input{std::span<const float>(inputs[r])};
    done.push_back(cluster.submit(r, reduce_scatter_call(cluster.caller(r), input, std::span<float>(parts[r]), {}, false,
                                                         {.schedule = ScheduleKind::direct, .codec = codec})));
  }
  cluster.finish(done);
  for (const auto& completion : done) {
    ASSERT_TRUE(completion->status.ok()) << completion->status.to_string();
    EXPECT_EQ(completion->report.passes, 1u);
  }
  for (Rank r = 0; r < world; ++r) {
    for (size_t i = 0; i < block; ++i) {
      float sum = 0;
      for (const auto& input : inputs) sum += input[r * block + i];
      ASSERT_NEAR(parts[r][i], sum, 0.25f);
    }
  }
  for (const auto schedule : {ScheduleKind::direct, ScheduleKind::ring, ScheduleKind::halving_doubling}) {
    done.clear();
    for (Rank r = 0; r < world; ++r) {
      const ConstTensor input{std::span<const float>(parts[r])};
      done.push_back(cluster.submit(r, all_gather_call(cluster.caller(r), input, std::span<float>(gathered[r]), {}, false,
                                                       {.schedule = schedule, .codec = codec})));
    }
    cluster.finish(done);
    for (Rank r = 0; r < world; ++r) {
      ASSERT_TRUE(done[r]->status.ok()) << done[r]->status.to_string();
      EXPECT_EQ(done[r]->report.passes, 1u);
      // a rank decodes its own block too, so all ranks have the same bits
      EXPECT_EQ(gathered[r], gathered[0]) << name(schedule);
    }
    for (size_t i = 0; i < block * world; ++i) ASSERT_NEAR(gathered[0][i], parts[i / block][i % block], 0.3f);
  }
}

TEST(EngineCodec, all_to_all_keeps_its_own_block_exactly) {
  const uint32_t world = 3;
  TestCluster cluster(world);
  const std::vector<std::vector<size_t>> sizes{{10, 0, 500}, {300, 7, 1}, {64, 129, 1000}};  // sizes[from][to]
  Vectors inputs, outputs;
  std::vector<std::vector<size_t>> received(world);
  for (Rank r = 0; r < world; ++r) {
    size_t total = 0;
    for (Rank s = 0; s < world; ++s) received[r].push_back(sizes[s][r]), total += sizes[s][r];
    outputs.emplace_back(total);
    inputs.push_back(gold(sizes[r][0] + sizes[r][1] + sizes[r][2], r + 1));
  }
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < world; ++r) {
    const ConstTensor input{std::span<const float>(inputs[r])};
    done.push_back(cluster.submit(r, all_to_all_call(cluster.caller(r), input, std::span<float>(outputs[r]), sizes[r],
                                                     received[r], {.codec = Codec::quantized(8, 32)})));
  }
  cluster.finish(done);
  for (Rank to = 0; to < world; ++to) {
    ASSERT_TRUE(done[to]->status.ok()) << done[to]->status.to_string();
    size_t at = 0;
    for (Rank from = 0; from < world; ++from) {
      size_t begin = 0;
      for (Rank before = 0; before < to; ++before) begin += sizes[from][before];
      for (size_t i = 0; i < sizes[from][to]; ++i, ++at) {
        ASSERT_NEAR(outputs[to][at], inputs[from][begin + i], from == to ? 0 : 0.08f);
      }
    }
  }
}

TEST(EngineCodec, a_collective_without_codecs_refuses_one) {
  const Caller caller{0, 4, second};
  std::vector<float> values(8);
  const Tensor tensor{std::span<float>(values)};
  const auto refused = broadcast_call(caller, tensor, 0, {.codec = Codec::quantized(8)});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "takes no codec but plain, not int8");
  const auto wrong = all_reduce_call(caller, tensor, tensor, {.codec = Codec::quantized(9)});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.status().message(), "codec: 9 bits; needed: 2 to 8");
}

}  // namespace
}  // namespace unisono
