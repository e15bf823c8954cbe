#include "lab/compressors/compress_options.h"

#include <gtest/gtest.h>

namespace unisono::lab {

using cli::make_app;
using cli::parse_arguments;

namespace {

Result<CompressPlan> plan_of(const std::vector<std::string>& words) {
  CompressOptions options;
  const auto app = make_app(compress_text);
  add_compress_options(*app, options);
  EXPECT_EQ(parse_arguments(*app, words), std::nullopt);
  return make_compress_plan(options);
}

// Expects an error message that contains each of `parts`, such as the option and its allowed values.
void expect_refusal(const std::vector<std::string>& words, const std::vector<std::string>& parts) {
  const auto message = plan_of(words).status().message();
  for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
}

TEST(CompressOptions, all_methods_are_compared_by_default) {
  const auto plan = plan_of({});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->methods, (std::vector{Method::dense, Method::arc, Method::random_k, Method::top_k, Method::power_sgd}));
  EXPECT_EQ(plan->rule.ratio_ppm, 200'000u);
  EXPECT_EQ(plan->rule.rank, 4u);
  EXPECT_EQ(plan->power_rank, 0u);
  EXPECT_TRUE(plan->feedback);
  EXPECT_TRUE(plan->codec.is_plain());
  EXPECT_EQ(plan->steps, 20u);
  EXPECT_FALSE(plan->limits.any());
}

TEST(CompressOptions, options_are_read) {
  const auto plan = plan_of(
      {"--method",   "arc,dense", "--shape", "64x3x3,512", "--ratio", "0.07",     "--rank",  "2", "--power-sgd-rank", "9",
       "--feedback", "none",      "--codec", "int4",       "--data",  "rank-one", "--noise", "0", "--seed",           "7",
       "--steps",    "3",         "-w",      "0",          "-T",      "5s",       "--rate",  "1G"});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->methods, (std::vector{Method::arc, Method::dense}));
  EXPECT_EQ(plan->gradients.shapes, (std::vector<TensorShape>{{64, 3, 3}, {512}}));
  EXPECT_EQ(plan->rule.ratio_ppm, 70'000u);
  EXPECT_EQ(plan->rule.rank, 2u);
  EXPECT_EQ(plan->power_rank, 9u);
  EXPECT_FALSE(plan->feedback);
  EXPECT_EQ(plan->codec, Codec::quantized(4));
  EXPECT_EQ(plan->gradients.model, GradientModel::rank_one);
  EXPECT_EQ(plan->gradients.noise, 0);
  EXPECT_EQ(plan->seed, 7u);
  EXPECT_EQ(plan->gradients.seed, 7u);
  EXPECT_EQ(plan->steps, 3u);
  EXPECT_EQ(plan->warmup, 0u);
  EXPECT_EQ(plan->timeout, Milliseconds(5'000));
  EXPECT_EQ(plan->limits.bits_per_second, 1'000'000'000u);
}

TEST(CompressOptions, a_wrong_method_is_named_with_the_known_ones) {
  expect_refusal({"--method", "dense,power-sgd"},
                 {"--method 'power-sgd'", "dense, arc, random-k, top-k, power_sgd", "did you mean 'power_sgd'?"});
  expect_refusal({"--method", "arc,dense,arc"}, {"--method names arc twice"});
  expect_refusal({"--method", "arc,"}, {"--method ''"});
}

TEST(CompressOptions, a_wrong_shape_is_named) {
  for (const std::string word : {"4096x", "x", "0x4", "axb", "70000x70000", "-4", "18446744073709551615x2"})
    expect_refusal({"--shape=" + word}, {"--shape '" + word + "'", "4096x4096"});
  expect_refusal({"--shape", "4,"}, {"--shape ''"});
  EXPECT_EQ(plan_of({"--shape", "65536x65536"})->gradients.elements(), uint64_t{1} << 32);
}

TEST(CompressOptions, a_wrong_size_is_named_with_its_range) {
  for (const auto* ratio : {"0", "-0.1", "1.01", "nan"})
    expect_refusal({std::string("--ratio=") + ratio}, {"--ratio", "above 0 and at most 1"});
  expect_refusal({"--rank", "0"}, {"--rank 0", "1 to 65536"});
  expect_refusal({"--power-sgd-rank", "0"}, {"--power-sgd-rank '0'", "or auto"});
  expect_refusal({"--power-sgd-rank", "many"}, {"--power-sgd-rank 'many'", "or auto"});
  expect_refusal({"--steps", "0"}, {"--steps 0", "at least one step"});
  expect_refusal({"-T", "0"}, {"-T 0"});
  expect_refusal({"--feedback", "ef21"}, {"--feedback 'ef21'", "ef14, none"});
}

TEST(CompressOptions, wrong_gradient_options_are_named) {
  expect_refusal({"--data", "uniform"}, {"--data 'uniform'", "gaussian, decay, rank-one"});
  expect_refusal({"--noise=-1"}, {"--noise -1", "0 or more"});
  expect_refusal({"--gradients", "x", "--data", "decay"}, {"--gradients", "leave out --data and --noise"});
  expect_refusal({"--gradients", "x", "--noise", "0.5"}, {"--gradients", "leave out --data and --noise"});
}

TEST(CompressOptions, a_codec_needs_a_method_that_takes_one) {
  expect_refusal({"--codec", "int9"}, {"--codec int9"});
  expect_refusal({"--codec", "int8", "--method", "top-k,power_sgd"}, {"--codec int8", "dense, arc and random-k take one"});
  EXPECT_TRUE(plan_of({"--codec", "int8", "--method", "top-k,arc"}).ok());
}

TEST(CompressOptions, emulated_links_contradict_several_hosts_as_for_bench) {
  expect_refusal({"--rate", "1G", "--hosts", "a,b"}, {"not for --hosts"});
}

}  // namespace
}  // namespace unisono::lab
