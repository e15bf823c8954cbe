// Options that are refused before any socket or file is opened, and the possible forms of seeds.
#include "elastic/seeds/elastic_options.h"

#include <gtest/gtest.h>

#include <fstream>

#include "testing/temporary_folder.h"

namespace unisono {

namespace {

ElasticOptions good() {
  ElasticOptions options;
  options.run_id = "run";
  options.found = true;
  options.tensor_elements = {10, 20};
  return options;
}

std::string refusal(const ElasticOptions& options) {
  const auto status = check_elastic_options(options);
  return status.ok() ? "" : status.message();
}

}  // namespace

TEST(ElasticOptions, valid_options_are_accepted) { EXPECT_EQ(refusal(good()), ""); }

TEST(ElasticOptions, every_grid_is_accepted) {
  for (const auto grid : {ElasticOptions::Grid::fitted, ElasticOptions::Grid::published, ElasticOptions::Grid::chunk_keys}) {
    auto options = good();
    options.grid = grid;
    EXPECT_EQ(refusal(options), "");
  }
}

TEST(ElasticOptions, a_run_without_name_is_refused) {
  auto options = good();
  options.run_id.clear();
  EXPECT_NE(refusal(options).find("run_id"), std::string::npos);
}

TEST(ElasticOptions, a_process_without_seeds_that_does_not_found_is_refused) {
  auto options = good();
  options.found = false;
  EXPECT_NE(refusal(options).find("seeds"), std::string::npos);
}

TEST(ElasticOptions, groups_of_fewer_than_four_or_more_than_128_are_refused) {
  auto options = good();
  options.max_group = 3;
  EXPECT_NE(refusal(options).find("4 to 128"), std::string::npos);
  options.max_group = 129;
  EXPECT_NE(refusal(options).find("4 to 128"), std::string::npos);
}

TEST(ElasticOptions, codecs_that_do_not_exist_are_refused) {
  auto options = good();
  options.result = {.kind = StepCodec::Kind::quantize, .bits = 9};
  EXPECT_NE(refusal(options).find("result"), std::string::npos);
}

TEST(ElasticOptions, sizes_beyond_any_memory_are_refused) {
  auto options = good();
  options.tensor_elements = {uint64_t{1} << 63, uint64_t{1} << 63};
  EXPECT_NE(refusal(options).find("tensor_elements"), std::string::npos);
}

TEST(ElasticOptions, whatever_peers_must_agree_on_is_in_the_schema) {
  const auto base = schema_hash(good());
  const auto differs = [&](auto change) {
    auto options = good();
    change(options);
    return schema_hash(options) != base;
  };
  EXPECT_TRUE(differs([](auto& o) { o.tensor_elements = {20, 10}; }));
  EXPECT_TRUE(differs([](auto& o) { o.max_group = 16; }));
  EXPECT_TRUE(differs([](auto& o) { o.rounds = 3; }));
  EXPECT_TRUE(differs([](auto& o) { o.result.kind = StepCodec::Kind::bf16; }));
  EXPECT_TRUE(differs([](auto& o) { o.commit = ElasticOptions::Commit::per_result; }));
  EXPECT_TRUE(differs([](auto& o) { o.grid = ElasticOptions::Grid::published; }));
  EXPECT_TRUE(differs([](auto& o) { o.grid = ElasticOptions::Grid::chunk_keys; }));
  auto published = good(), keys = good();
  published.grid = ElasticOptions::Grid::published;
  keys.grid = ElasticOptions::Grid::chunk_keys;
  EXPECT_NE(schema_hash(published), schema_hash(keys));
  EXPECT_FALSE(differs([](auto& o) { o.name = "somebody"; }));
}

TEST(ElasticOptions, seeds_are_read_in_every_form) {
  EXPECT_EQ(parse_seed("tcp://10.0.0.1:4040")->host, "10.0.0.1");
  EXPECT_EQ(parse_seed("[::1]:4040")->host, "::1");
  EXPECT_EQ(parse_seed("node-3.example:1")->port, 1);
  for (const char* text : {"", "host", "host:", "host:0", "host:65536", "host:1x", ":5", "::1:5"})
    EXPECT_FALSE(parse_seed(text).ok()) << text;
}

TEST(ElasticOptions, only_addresses_stay_what_they_are) {
  EXPECT_TRUE(all_seeds_are_addresses(std::vector<std::string>{"10.0.0.1:1", "tcp://[::1]:1"}));
  EXPECT_TRUE(all_seeds_are_addresses(std::vector<std::string>{}));
  for (const char* text : {"host.example:1", "file:/seeds", "dht:10.0.0.1:1"})
    EXPECT_FALSE(all_seeds_are_addresses(std::vector<std::string>{"10.0.0.1:1", text})) << text;
}

TEST(ElasticOptions, a_file_names_seeds_one_per_line) {
  test::TemporaryFolder folder;
  const auto path = folder.path() + "/seeds";
  std::ofstream(path) << "# comment\n127.0.0.1:4040\n\n  [::1]:4041  # another\n127.0.0.1:4040\n";
  const auto seeds = resolve_seeds(std::vector<std::string>{"file:" + path, "127.0.0.1:4042"});
  ASSERT_TRUE(seeds.ok()) << seeds.status().to_string();
  EXPECT_EQ(seeds->addresses, (std::vector<std::string>{"tcp://127.0.0.1:4040", "tcp://[::1]:4041", "tcp://127.0.0.1:4042"}));
}

TEST(ElasticOptions, a_missing_seed_file_may_appear_later) {
  const auto seeds = resolve_seeds(std::vector<std::string>{"file:/nonexistent/seeds"});
  ASSERT_TRUE(seeds.ok());
  EXPECT_TRUE(seeds->addresses.empty());
  ASSERT_EQ(seeds->failures.size(), 1u);
  EXPECT_NE(seeds->failures[0].find("/nonexistent/seeds"), std::string::npos);
}

TEST(ElasticOptions, the_error_names_an_invalid_line_of_a_seed_file) {
  test::TemporaryFolder folder;
  const auto path = folder.path() + "/seeds";
  std::ofstream(path) << "127.0.0.1:4040\nnonsense\n";
  const auto seeds = resolve_seeds(std::vector<std::string>{"file:" + path});
  ASSERT_FALSE(seeds.ok());
  EXPECT_NE(seeds.status().message().find("line 2"), std::string::npos);
}

}  // namespace unisono
