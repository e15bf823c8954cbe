// In a build without OpenDHT, the error text for "dht:" seeds tells how to build with it.
#include <gtest/gtest.h>

#include <fstream>

#include "elastic/seeds/seed_dht.h"
#include "testing/temporary_folder.h"
#include "unisono/elastic.h"

namespace unisono {

namespace {

std::string refusal(const std::string& seed) {
  ElasticOptions options;
  options.run_id = "run";
  options.seeds = {seed};
  options.tensor_elements = {100};
  options.interface = "127.0.0.1";
  const auto run = Elastic::join(options);
  EXPECT_FALSE(run.ok());
  EXPECT_EQ(run.status().code(), Code::unsupported);
  return run.status().message();
}

}  // namespace

TEST(SeedDhtNone, the_error_for_a_dht_seed_names_the_missing_build_option) {
  const auto text = refusal("dht:bootstrap.example:4222");
  EXPECT_NE(text.find("dht:bootstrap.example:4222"), std::string::npos) << text;
  EXPECT_NE(text.find("-DUNISONO_OPENDHT=ON"), std::string::npos) << text;
}

TEST(SeedDhtNone, a_dht_seed_in_a_file_is_refused) {
  test::TemporaryFolder folder;
  std::ofstream(folder.path() + "/seeds") << "dht:bootstrap.example\n";
  EXPECT_NE(refusal("file:" + folder.path() + "/seeds").find("line 1"), std::string::npos);
}

TEST(SeedDhtNone, make_is_unsupported) {
  EXPECT_FALSE(SeedDht::built_in());
  EXPECT_EQ(SeedDht::make({}).status().code(), Code::unsupported);
}

}  // namespace unisono
