#include "base/error_text.h"

#include <gtest/gtest.h>

#include "testing/descriptor_limit.h"

namespace unisono {
namespace {

TEST(ErrorText, begins_with_a_small_letter_and_names_unknown_numbers) {
  EXPECT_EQ(error_text(ECONNREFUSED), "connection refused");
  EXPECT_EQ(error_text(123456), "error 123456");
  EXPECT_EQ(descriptor_limit_text(ECONNREFUSED), "");
}

TEST(ErrorText, names_the_limit_of_descriptors_that_is_reached_and_how_to_raise_it) {
  const test::DescriptorLimit limit(3);
  EXPECT_EQ(error_text(EMFILE), limit.text());
  EXPECT_EQ(error_text(ENFILE),
            "too many open files in system (all processes of this machine together; raise the limit with sysctl fs.file-max)");
  EXPECT_TRUE(is_out_of_descriptors(EMFILE) && is_out_of_descriptors(ENFILE));
  EXPECT_FALSE(is_out_of_descriptors(ENOMEM));
}

}  // namespace
}  // namespace unisono
