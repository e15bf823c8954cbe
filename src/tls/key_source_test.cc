#include "tls/key_source.h"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "testing/temporary_folder.h"

namespace unisono {
namespace {

struct KeyFile : testing::Test {
  KeySource write(const std::string& text, mode_t mode) {
    const auto path = folder.path() + "/key";
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return {.file = path, .name = "UNISONO_KEY_FILE"};
  }
  test::TemporaryFolder folder;
  SecretKey key = *SecretKey::draw();
};

TEST_F(KeyFile, a_file_of_its_owner_is_read) {
  for (const mode_t mode : {0600, 0400, 0440}) {
    const auto read = load_key(write(key.hex() + "\n", mode));
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_TRUE(**read == key);
  }
}

TEST_F(KeyFile, a_file_that_others_can_read_or_write_is_refused) {
  for (const mode_t mode : {0644, 0604, 0602}) {
    const auto read = load_key(write(key.hex(), mode));
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.status().code(), Code::invalid);
    EXPECT_NE(read.status().message().find("can be read or written by all users"), std::string::npos);
    EXPECT_EQ(read.status().message().find(key.hex().substr(0, 8)), std::string::npos);
  }
}

TEST_F(KeyFile, what_is_no_key_is_refused_by_the_files_name) {
  for (const auto& text : {std::string(), key.hex() + key.hex(), std::string(100'000, 'a'), key.hex().substr(1)}) {
    const auto read = load_key(write(text, 0600));
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.status().code(), Code::invalid);
    EXPECT_NE(read.status().message().find("UNISONO_KEY_FILE: " + folder.path() + "/key"), std::string::npos);
  }
  EXPECT_EQ(load_key({.file = folder.path() + "/none", .name = "n"}).status().code(), Code::unavailable);
  EXPECT_EQ(load_key({.file = folder.path(), .name = "n"}).status().code(), Code::invalid);
}

TEST_F(KeyFile, digits_in_the_place_of_a_path_are_refused_and_not_shown) {
  const auto read = load_key({.file = key.hex(), .name = "UNISONO_KEY_FILE"});
  EXPECT_EQ(read.status().code(), Code::invalid);
  EXPECT_NE(read.status().message().find("UNISONO_KEY_FILE is the key itself"), std::string::npos);
  EXPECT_EQ(read.status().message().find(key.hex()), std::string::npos);
}

TEST_F(KeyFile, a_descriptor_can_be_read_again_and_again) {
  const KeySource source{.descriptor = make_key_descriptor(key), .name = "UNISONO_KEY_FD"};
  ASSERT_GE(source.descriptor, 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(**load_key(source) == key);
  ::close(source.descriptor);
  EXPECT_EQ(load_key(source).status().code(), Code::unavailable);
  EXPECT_NE(load_key(source).status().message().find("may have closed it"), std::string::npos);
}

TEST_F(KeyFile, without_a_source_there_is_no_key) {
  const auto read = load_key({});
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE(*read);
}

}  // namespace
}  // namespace unisono
