#include <gtest/gtest.h>

#include <cmath>

#include "unisono/delivery.h"

namespace unisono {
namespace {

DeliveryReport report() {
  DeliveryReport report{.full_ranges = 5, .short_ranges = 3, .effective_contributors = 2.5};
  report.contribute = {.ran = true,
                       .duration_us = 1200,
                       .streams = {{},
                                   {.expected = 8, .end = DeliveryReport::End::complete},
                                   {.expected = 8, .missing = 2, .repaired = 1, .late = 4, .end = DeliveryReport::End::soft}}};
  return report;
}

TEST(DeliveryReport, names_the_missing_data_and_its_sender) {
  EXPECT_EQ(report().to_string(),
            "lossy: ranges 5 full, 3 short, 0 empty, 2.50 effective contributors; contributions 1200 us, rank 2 soft: 2 of 8 "
            "missing, 1 "
            "repaired, 4 late"
            "; unequal loss: the best-connected rank weighs 1.60 times as much as the worst");
}

TEST(DeliveryReport, omits_complete_streams) {
  auto whole = report();
  whole.contribute.streams[2] = whole.contribute.streams[1];
  whole.outcome = Status(Code::late, "rank 7");
  EXPECT_EQ(whole.to_string(), "lossy: ranges 5 full, 3 short, 0 empty, 2.50 effective contributors; contributions 1200 us; " +
                                   whole.outcome.to_string());
}

TEST(DeliveryReport, names_the_delivery_mode_and_its_reason) {
  DeliveryReport none{.used = Delivery::reliable, .note = "no link carries datagrams"};
  EXPECT_EQ(none.to_string(), "reliable (no link carries datagrams)");
  auto repaired = report();
  repaired.used = Delivery::reliable;
  EXPECT_EQ(repaired.to_string().substr(0, 23), "reliable: ranges 5 full");
  repaired.note = "too much is lost";
  EXPECT_EQ(repaired.to_string().substr(0, 42), "reliable (too much is lost): ranges 5 full");
}

TEST(DeliveryReport, compares_the_shares_that_senders_delivered) {
  EXPECT_DOUBLE_EQ(report().share_ratio(), 1.6);  // rank 1 delivered everything, rank 2 only 5 of 8: 1 / (5/8)
  EXPECT_DOUBLE_EQ(DeliveryReport().share_ratio(), 1);
  auto silent = report();
  silent.contribute.streams[2].missing = 7;
  EXPECT_TRUE(std::isinf(silent.share_ratio()));
}

}  // namespace
}  // namespace unisono
