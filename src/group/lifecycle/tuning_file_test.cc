#include "group/lifecycle/tuning_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "testing/temporary_folder.h"

namespace unisono {
namespace {

TEST(TuningFile, valid_file_is_read) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() + "/tuning";
  std::ofstream(path) << "unisono tuning 1\nstreams 4\n";
  const auto tuning = read_tuning(path);
  ASSERT_TRUE(tuning.ok()) << tuning.status().to_string();
  EXPECT_EQ(tuning->streams_per_link, 4u);
}

TEST(TuningFile, an_unusable_file_is_named_with_the_reason) {
  const test::TemporaryFolder folder;
  const auto message = [](const std::string& path) {
    const auto tuning = read_tuning(path);
    EXPECT_EQ(tuning.status().code(), Code::invalid);
    return tuning.status().message();
  };
  const auto path = folder.path() + "/tuning";
  EXPECT_EQ(message(path), "the tuning file '" + path + "' cannot be read: No such file or directory");
  EXPECT_EQ(message(folder.path()), "the tuning file '" + folder.path() + "' cannot be read: Is a directory");
  std::ofstream(path) << "unisono tuning 1\nstreams many\n";
  EXPECT_EQ(message(path), "the tuning file '" + path + "': line 2: expected 'streams N' with 1 to 16");
  std::ofstream(path) << std::string(100'000, 'x');
  EXPECT_NE(message(path).find("are more than the 65536"), std::string::npos);
}

}  // namespace
}  // namespace unisono
