// Text forms of DropOptions, and every invalid value.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "unisono/drop_compute.h"

namespace unisono {
namespace {

std::string complaint(const std::string& text) {
  const auto parsed = DropOptions::parse(text);
  return parsed.ok() ? "" : parsed.status().message();
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(DropOptionsText, round_trips_through_text) {
  for (const std::string text : {"off", "auto", "0.25", "auto:rule=before",
                                 "auto:lag=2,min_computed=3,normalize=computed,tail=discard,warmup=1,calibration=20,min_"
                                 "calibration=5,objective=total,search=grid,slack=0,"
                                 "max_drop=0.3,min_gain=0.05,recalibrate=never,window=10",
                                 "auto:rule=at,recalibrate=500"}) {
    const auto options = DropOptions::parse(text);
    ASSERT_TRUE(options.ok()) << options.status().to_string();
    EXPECT_EQ(options->to_string(), text);
  }
}

TEST(DropOptionsText, a_threshold_not_above_zero_means_off) {
  for (const std::string text : {"0", "-1", "0.0"}) EXPECT_EQ(DropOptions::parse(text)->threshold, DropOptions::Threshold::off);
}

TEST(DropOptionsText, names_the_invalid_option) {
  for (const std::string text : {"", "soon", "nan", "inf", "1e9", "1s"})
    EXPECT_TRUE(contains(complaint(text), "invalid_threshold")) << text << ": " << complaint(text);
  EXPECT_TRUE(contains(complaint("auto:rule=later"), "none of after, before, at"));
  EXPECT_TRUE(contains(complaint("auto:rules=after"), "\"rules\" is none of rule, lag"));
  EXPECT_TRUE(contains(complaint("auto:"), "is not an option"));
  EXPECT_TRUE(contains(complaint("auto:lag=-1"), "lag=-1"));
  EXPECT_TRUE(contains(complaint("auto:rule=before,lag=1"), "lag is for the rule after"));
  EXPECT_TRUE(contains(complaint("auto:rule=at,min_computed=2"), "min_computed is not for the rule at"));
  EXPECT_TRUE(contains(complaint("auto:max_drop=1.5"), "max_drop"));
  EXPECT_TRUE(contains(complaint("auto:slack=1"), "slack"));
  EXPECT_TRUE(contains(complaint("auto:min_gain=nan"), "min_gain"));
  EXPECT_TRUE(contains(complaint("auto:calibration=5"), "too_few_steps"));
  EXPECT_TRUE(contains(complaint("auto:recalibrate=sometimes"), "recalibrate"));
  EXPECT_TRUE(contains(complaint("auto:window=0"), "window"));
}

TEST(DropOptionsText, the_number_of_micro_batches_limits_the_options) {
  DropOptions options;
  EXPECT_TRUE(options.check(1).ok());
  EXPECT_FALSE(options.check(0).ok());
  options.min_computed = 3;
  EXPECT_FALSE(options.check(2).ok());
  options.min_computed = 1;
  options.replay = {2, 3};
  EXPECT_FALSE(options.check(2).ok());
  options.replay.clear();
  options.threshold = DropOptions::Threshold::fixed;
  options.seconds = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(contains(options.check(2).message(), "invalid_threshold"));
}

}  // namespace
}  // namespace unisono
