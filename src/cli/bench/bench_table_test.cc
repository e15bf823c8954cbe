#include "cli/bench/bench_table.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace unisono::cli {
namespace {

BenchFacts facts() {
  BenchFacts out;
  out.host = {"h", "CPU", 2, "6.1", "cubic", {{"lo", 65536}}};
  out.data = {.collective = Collective::all_reduce, .dtype = DType::f32, .op = ReduceOp::sum, .world_size = 4};
  out.speeds.inside_hosts = {.measured = true, .latency_us = 0.5, .bytes_per_us = 9'000};
  out.members = {{0, "a", 1, "self"}, {1, "a", 2, "shm pid 2"}, {2, "a", 3, "shm pid 3"}, {3, "b", 4, "tcp 10.0.0.2:1 (eth0)"}};
  return out;
}

Measurement measurement(uint64_t wrong) {
  Measurement out;
  out.extent = {.block_count = 250'000, .tensor_count = 250'000, .bytes = 1'000'000};
  out.timing = {.mean_us = 500, .p50_us = 490, .p99_us = 700, .min_us = 400, .max_us = 800};
  out.checked = true;
  out.wire_bytes = 1'500'064;
  out.contributors = 4;
  out.wrong = wrong;
  return out;
}

TEST(BenchTable, bandwidths_follow_nccl_tests) {
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(measurement(0)), 2.0);
  EXPECT_DOUBLE_EQ(bus_bandwidth(facts(), measurement(0)), 3.0);
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(Measurement{}), 0);
}

TEST(BenchTable, the_head_names_what_the_numbers_depend_on_and_is_all_comment) {
  const auto head = table_head(facts()) + row_head(facts());
  for (const char* part :
       {"all_reduce", "world size 4", "CPU", "kernel 6.1", "cubic", "lo 65536", "ranks: a x3, b x1",
        "inside hosts shm x2; between hosts tcp x1", "wire", "contrib",
        "inside hosts 0.5 us, 9 GB/s; between hosts 0 us, 0 GB/s (not measured)", "algbw", "busbw", "#wrong", "p99"}) {
    EXPECT_NE(head.find(part), std::string::npos) << part;
  }
  for (size_t at = 0; at < head.size(); at = head.find('\n', at) + 1) EXPECT_EQ(head[at], '#');
}

TEST(BenchTable, a_row_has_both_halves_or_dashes) {
  const auto row = table_row(facts(), {.out_of_place = measurement(0), .in_place = std::nullopt});
  for (const char* part :
       {" 1000000 ", " 250000 ", " 500.0 ", " 490.0 ", " 700.0 ", " 2.00 ", " 3.00 ", " -1 ", " - ", " 1500064 ", " 4\n"}) {
    EXPECT_NE(row.find(part), std::string::npos) << part << row;
  }
}

TEST(BenchTable, a_row_shows_the_more_bytes_and_the_fewer_contributors_of_its_halves) {
  auto partial = measurement(0);
  partial.wire_bytes = 10;
  partial.contributors = 3;
  const auto row = table_row(facts(), {.out_of_place = measurement(0), .in_place = partial});
  EXPECT_NE(row.find(" 1500064       3\n"), std::string::npos) << row;
}

TEST(BenchTable, lossy_delivery_has_a_column_of_missing_contributions) {
  auto lossy = facts();
  lossy.call.delivery = Delivery::lossy;
  lossy.call.lossy.loss_budget = 0.2;
  auto measured = measurement(0);
  measured.missing = 0.01234;
  auto report = std::make_shared<DeliveryReport>();
  measured.report.delivery = report;
  const auto head = table_head(lossy) + row_head(lossy);
  for (const char* part : {"# delivery lossy:loss_budget=0.2; missing", " missing  delivery", "(%)"})
    EXPECT_NE(head.find(part), std::string::npos) << head;
  EXPECT_NE(table_row(lossy, {.out_of_place = measured, .in_place = measured}).find("    1.234  lossy\n"), std::string::npos);
  const auto json = nlohmann::json::parse(json_row(lossy, measured, false));
  EXPECT_EQ(json["asked_delivery"], "lossy:loss_budget=0.2");
  EXPECT_EQ(json["delivery"], "lossy");
  EXPECT_DOUBLE_EQ(json["missing"], 0.01234);
  report->used = Delivery::reliable;
  report->note = "too much is lost";
  measured.missing = 0;
  EXPECT_NE(
      table_row(lossy, {.out_of_place = measured, .in_place = std::nullopt}).find("    0.000  reliable: too much is lost\n"),
      std::string::npos);
  EXPECT_EQ(row_head(facts()).find("missing"), std::string::npos);
}

TEST(BenchTable, the_head_describes_the_emulated_links) {
  EXPECT_EQ(table_head(facts()).find("on request"), std::string::npos);
  auto slow = facts();
  slow.impairment = "100 Mbit/s";
  EXPECT_NE(table_head(slow).find("# on request: 100 Mbit/s\n"), std::string::npos);
}

TEST(BenchTable, late_packets_of_emulated_links_give_a_warning) {
  LinkTally tally{.counts = {.packets = 1000, .lost = 10, .overflowed = 3}, .latest = 400 * microsecond, .late_packets = 9};
  EXPECT_EQ(table_links(tally),
            "# links: 1000 packets, 10 lost on request (1.00 %), 3 dropped at full queues; at most 400 us late\n");
  tally.late_packets = 100;
  EXPECT_NE(table_links(tally).find("10.0 % of the packets were more than 1 ms late"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(json_links(tally))["lost"], 10);
}

TEST(BenchTable, the_foot_says_whether_all_values_were_right) {
  EXPECT_NE(table_foot(facts(), {{measurement(0), measurement(0)}}).find("0 OK\n"), std::string::npos);
  EXPECT_NE(table_foot(facts(), {{measurement(0), measurement(3)}}).find("3 FAILED\n"), std::string::npos);
  EXPECT_NE(table_foot(facts(), {}).find("N/A"), std::string::npos);
  EXPECT_NE(table_foot(facts(), {{measurement(0), std::nullopt}}).find("Avg bus bandwidth    : 3\n"), std::string::npos);
}

TEST(BenchTable, json_lines_parse_and_hold_the_numbers) {
  const auto row = nlohmann::json::parse(json_row(facts(), measurement(3), true));
  EXPECT_EQ(row["kind"], "row");
  EXPECT_EQ(row["wrong"], 3);
  EXPECT_EQ(row["in_place"], true);
  EXPECT_EQ(row["wire_bytes"], 1'500'064);
  EXPECT_EQ(row["contributors"], 4);
  EXPECT_DOUBLE_EQ(row["busbw_gbs"], 3.0);
  auto strange = facts();
  strange.host.processor = "bad \xff utf-8 \"quoted\"";
  const auto environment = nlohmann::json::parse(json_facts(strange));
  EXPECT_EQ(environment["mtu"]["lo"], 65536);
  EXPECT_EQ(environment["links"], "inside hosts shm x2; between hosts tcp x1");
  EXPECT_EQ(environment["link_of_rank"].size(), 4u);
  EXPECT_EQ(environment["hosts"][3], "b");
}

}  // namespace
}  // namespace unisono::cli
