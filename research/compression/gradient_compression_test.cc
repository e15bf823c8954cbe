#include "research/compression/gradient_compression.h"

#include <gtest/gtest.h>

namespace language_model {
namespace {

using By = GradientCompression::By;
using Feedback = unisono::Compression::Feedback;

std::string message(const unisono::Result<GradientCompression>& result) { return result.ok() ? "" : result.status().message(); }

TEST(GradientCompression, without_options_nothing_is_compressed) {
  EXPECT_EQ(parse_compress("", "")->by, By::nothing);
  EXPECT_EQ(parse_baseline("")->by, By::nothing);
  EXPECT_EQ(parse_compress("", "")->to_string(), "");
}

TEST(GradientCompression, the_option_feedback_equals_feedback_in_the_compression_text) {
  for (const char* text : {"arc", "arc:ratio=0.1", "arc:ratio=0.1,feedback=ef21"}) {
    const auto compression = parse_compress(text, "ef21");
    ASSERT_TRUE(compression.ok()) << message(compression);
    EXPECT_EQ(compression->options.feedback, Feedback::ef21) << text;
    EXPECT_TRUE(compression->options.adaptive_optimizer);
  }
  EXPECT_EQ(parse_compress("arc:feedback=ef21m", "")->options.feedback, Feedback::ef21m);
}

TEST(GradientCompression, two_kinds_of_feedback_are_refused_and_both_are_named) {
  const auto refused = message(parse_compress("arc:feedback=ef21,ratio=0.1", "ef14"));
  EXPECT_NE(refused.find("--feedback ef14"), std::string::npos) << refused;
  EXPECT_NE(refused.find("feedback=ef21"), std::string::npos) << refused;
}

TEST(GradientCompression, feedback_alone_is_refused) {
  const auto refused = message(parse_compress("", "ef14"));
  EXPECT_NE(refused.find("needs --compress"), std::string::npos) << refused;
}

TEST(GradientCompression, malformed_text_is_refused_with_its_option) {
  for (const auto& [text, feedback, part] :
       {std::tuple{"arc:ratio=2", "", "ratio"}, {"arcs", "", "arcs"}, {"arc", "ef15", "ef15"}}) {
    const auto refused = message(parse_compress(text, feedback));
    EXPECT_NE(refused.find("--compress"), std::string::npos) << refused;
    EXPECT_NE(refused.find(part), std::string::npos) << refused;
  }
}

TEST(GradientCompression, baselines_accept_the_options_they_share_with_arc) {
  const auto top_k = parse_baseline("top-k:ratio=0.1,start=20");
  ASSERT_TRUE(top_k.ok()) << message(top_k);
  EXPECT_EQ(top_k->by, By::top_k);
  EXPECT_EQ(top_k->options.start_step, 20u);
  EXPECT_EQ(top_k->to_string(), "top-k:ratio=0.1,start=20");
  EXPECT_EQ(parse_baseline("power-sgd")->by, By::power_sgd);
  EXPECT_EQ(parse_baseline("power-sgd:rank=2")->to_string(), "power-sgd:rank=2");
}

TEST(GradientCompression, baselines_refuse_options_that_they_lack) {
  EXPECT_NE(message(parse_baseline("top_k")).find("\"top_k\" is none of top-k, power-sgd"), std::string::npos);
  EXPECT_NE(message(parse_baseline("top-k:feedback=none")).find("its feedback is ef14"), std::string::npos);
  EXPECT_NE(message(parse_baseline("power-sgd:values=int8")).find("takes ratio, rank"), std::string::npos);
  EXPECT_NE(message(parse_baseline("power-sgd:ratio=x")).find("--baseline power-sgd:ratio=x"), std::string::npos);
}

}  // namespace
}  // namespace language_model
