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

TEST(DeliveryReport, says_what_is_missing_and_from_whom) {
  EXPECT_EQ(report().to_string(),
            "lossy: ranges 5 full, 3 short, 0 empty, worth 2.50 ranks; contributions 1200 us, rank 2 soft: 2 of 8 missing, 1 "
            "repaired, 4 late"
            "; the sum leans towards ranks of which more arrived (1.60 times)");
}

TEST(DeliveryReport, says_nothing_of_streams_that_are_whole) {
  auto whole = report();
  whole.contribute.streams[2] = whole.contribute.streams[1];
  whole.outcome = Status(Code::late, "rank 7");
  EXPECT_EQ(whole.to_string(),
            "lossy: ranges 5 full, 3 short, 0 empty, worth 2.50 ranks; contributions 1200 us; " + whole.outcome.to_string());
}

TEST(DeliveryReport, says_what_delivery_it_was_and_why) {
  DeliveryReport none{.used = Delivery::reliable, .note = "no link carries datagrams"};
  EXPECT_EQ(none.to_string(), "reliable (no link carries datagrams)");
  auto repaired = report();
  repaired.used = Delivery::reliable;
  EXPECT_EQ(repaired.to_string().substr(0, 23), "reliable: ranges 5 full");
  repaired.note = "too much is lost";
  EXPECT_EQ(repaired.to_string().substr(0, 42), "reliable (too much is lost): ranges 5 full");
}

TEST(DeliveryReport, compares_the_shares_that_senders_delivered) {
  EXPECT_DOUBLE_EQ(report().share_ratio(), 1.6);  // all of rank 1, 5 of 8 of rank 2
  EXPECT_DOUBLE_EQ(DeliveryReport().share_ratio(), 1);
  auto silent = report();
  silent.contribute.streams[2].missing = 7;
  EXPECT_TRUE(std::isinf(silent.share_ratio()));
}

}  // namespace
}  // namespace unisono
