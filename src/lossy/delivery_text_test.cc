#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/concat.h"
#include "base/random.h"
#include "unisono/delivery.h"

namespace unisono {
namespace {

using std::chrono::microseconds;

TEST(DeliveryText, an_empty_text_gives_the_defaults) {
  const auto parsed = DeliveryOptions::parse("");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, DeliveryOptions());
  EXPECT_EQ(DeliveryOptions().to_string(), "");
}

TEST(DeliveryText, parse_reads_every_option) {
  const std::string text =
      "loss_budget=0.2,estimator=count,on_empty=own,deadline=20ms,deadline_max=10s,loss_off=0.5,staging=64M";
  const auto parsed = DeliveryOptions::parse(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  const DeliveryOptions expected{.loss_budget = 0.2,
                                 .estimator = Estimator::count,
                                 .on_empty = OnEmpty::own,
                                 .deadline = microseconds(20'000),
                                 .deadline_max = microseconds(10'000'000),
                                 .loss_off = 0.5,
                                 .staging_bytes_max = 64u << 20};
  EXPECT_EQ(*parsed, expected);
  EXPECT_EQ(parsed->to_string(), text);
}

TEST(DeliveryText, times_and_sizes_accept_units_and_fractions) {
  const auto parsed = DeliveryOptions::parse("deadline=1.5ms,deadline_max=2500us,staging=1048577");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->deadline, microseconds(1500));
  EXPECT_EQ(parsed->deadline_max, microseconds(2500));
  EXPECT_EQ(parsed->staging_bytes_max, (1u << 20) + 1);
  EXPECT_EQ(parsed->to_string(), "deadline=1500us,deadline_max=2500us,staging=1048577");
}

TEST(DeliveryText, parse_reads_what_to_string_writes) {
  constexpr uint64_t seed = 70;
  SCOPED_TRACE(concat("seed ", seed));
  Random random(seed);
  for (int i = 0; i < 500; ++i) {
    DeliveryOptions options{.loss_budget = random.unit(),
                            .estimator = static_cast<Estimator>(random.below(5)),
                            .on_empty = static_cast<OnEmpty>(random.below(5)),
                            .deadline = microseconds(random.chance(0.3) ? 0 : 100 + random.below(1'000'000)),
                            .deadline_max = microseconds(1'000'100 + random.below(1'000'000'000)),
                            .loss_off = random.unit(),
                            .staging_bytes_max = (1u << 20) + random.below(uint64_t{1} << (21 + random.below(20)))};
    const auto again = DeliveryOptions::parse(options.to_string());
    ASSERT_TRUE(again.ok()) << options.to_string() << ": " << again.status().to_string();
    ASSERT_EQ(*again, options) << options.to_string();
  }
}

void expect_wrong(const char* text, const char* part) {
  const auto parsed = DeliveryOptions::parse(text);
  ASSERT_FALSE(parsed.ok()) << text;
  EXPECT_EQ(parsed.status().code(), Code::invalid);
  EXPECT_EQ(parsed.status().message().find("bad_option: "), 0u);
  EXPECT_NE(parsed.status().message().find(part), std::string::npos) << parsed.status().to_string();
}

TEST(DeliveryText, errors_name_the_wrong_option) {
  expect_wrong("loss=0.1", "none of loss_budget, estimator");
  expect_wrong("lossy", "look like loss_budget=0.1");
  expect_wrong("loss_budget=0.1,", "look like");
  expect_wrong("loss_budget=many", "loss_budget=many");
  expect_wrong("loss_budget=1.01", "loss_budget=1.01");
  expect_wrong("loss_budget=-0.1", "loss_budget=-0.1");
  expect_wrong("loss_budget=nan", "loss_budget=nan");
  expect_wrong("loss_off=2", "loss_off=2");
  expect_wrong("estimator=mean", "none of stratified, count");
  expect_wrong("on_empty=keep", "none of auto, hold, own, zero, fail");
  expect_wrong("deadline=20", "deadline=20: expected a value such as 20ms");
  expect_wrong("deadline=20m", "deadline=20m");
  expect_wrong("deadline=ms", "deadline=");
  expect_wrong("deadline=-1ms", "deadline=-1ms");
  expect_wrong("deadline=1.2.3ms", "deadline=1.2.3");
  expect_wrong("deadline=1us", "deadline=1us");
  expect_wrong("deadline=40s", "deadline_max=30s");
  expect_wrong("deadline_max=0us", "deadline_max=0us");
  expect_wrong("deadline_max=99999999s", "30 days");
  expect_wrong("deadline_max=99999999999999999999999s", "too large");
  expect_wrong("staging=1K", "staging=1024 is less than 1M");
  expect_wrong("staging=256MB", "256MB");
}

TEST(DeliveryText, check_refuses_values_that_no_text_can_express) {
  DeliveryOptions options;
  options.estimator = static_cast<Estimator>(9);
  EXPECT_EQ(options.check().code(), Code::invalid);
  EXPECT_EQ(options.to_string(), "");
  options = {};
  options.deadline = microseconds(-1);
  EXPECT_EQ(options.check().code(), Code::invalid);
  options = {};
  options.loss_budget = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(options.check().code(), Code::invalid);
}

}  // namespace
}  // namespace unisono
