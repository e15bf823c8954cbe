#include "training/settings/same_settings.h"

#include <gtest/gtest.h>

#include "base/concat.h"
#include "testing/group_of_threads.h"

namespace unisono::internal {
namespace {

using test::in_group;

void expect_text(Group& group, std::span<const Setting> settings, const std::string& end) {
  const auto status = check_same_settings(group, settings);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_TRUE(status.message().ends_with(end)) << status.message();
  EXPECT_TRUE(check_same_settings(group, {}).ok()) << "the group is usable";
}

TEST(SameSettings, equal_settings_are_accepted) {
  in_group(3, [](Group& group) {
    EXPECT_TRUE(check_same_settings(group, std::vector<Setting>{{"options", {"seed=5"}}, {"parameters", {"a", "b"}}}).ok());
  });
}

TEST(SameSettings, both_values_are_named_on_every_rank) {
  in_group(3, [](Group& group) {
    const bool odd = group.rank() == 1;
    const std::vector<Setting> settings{{"parameters", {"a", "b"}}, {"options", {odd ? "seed=6" : "seed=5"}}};
    expect_text(group, settings,
                odd ? ") has seed=5, rank 1 has seed=6; give all ranks the same"
                    : concat(") has seed=6, rank ", group.rank(), " has seed=5; give all ranks the same"));
    EXPECT_TRUE(check_same_settings(group, settings)
                    .message()
                    .starts_with(odd ? "config_mismatch: options differ: rank 0 (host "
                                     : "config_mismatch: options differ: rank 1 (host "));
  });
}

TEST(SameSettings, of_many_values_the_first_that_differs_is_named) {
  in_group(2, [](Group& group) {
    const bool odd = group.rank() == 1;
    std::vector<std::string> values{"a[2,3]", odd ? "b[41]" : "b[40]", "c[1]"};
    expect_text(group, std::vector<Setting>{{"parameters", values}},
                odd ? ") has b[40], rank 1 has b[41]; give all ranks the same"
                    : ") has b[41], rank 0 has b[40]; give all ranks the same");
    values = {"a[2,3]"};
    if (odd) values.push_back("b[7]");
    expect_text(group, std::vector<Setting>{{"parameters", values}},
                odd ? ") has nothing, rank 1 has b[7]; give all ranks the same"
                    : ") has b[7], rank 0 has nothing; give all ranks the same");
  });
}

}  // namespace
}  // namespace unisono::internal
