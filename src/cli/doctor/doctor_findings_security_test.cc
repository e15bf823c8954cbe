#include <gtest/gtest.h>

#include "cli/doctor/doctor_findings.h"

namespace unisono::cli {
namespace {

// Returns the facts of one rank per host, with these security facts.
ClusterFacts cluster_with(const std::vector<SecurityFacts>& security) {
  ClusterFacts cluster;
  cluster.world_size = static_cast<uint32_t>(security.size());
  for (const auto& facts : security) {
    auto& rank = cluster.ranks.emplace_back();
    rank.rank = static_cast<uint32_t>(cluster.ranks.size() - 1);
    rank.machine.host = std::string(1, static_cast<char>('a' + rank.rank));
    rank.machine.boot = rank.machine.host;
    rank.machine.network = "net";
    rank.security = facts;
  }
  return cluster;
}

std::vector<Finding> security_findings(const std::vector<SecurityFacts>& security) {
  std::vector<Finding> findings;
  find_in_security(cluster_with(security), findings);
  return findings;
}

const SecurityFacts no_key{.level = "auto"};
const SecurityFacts key_a{.level = "auto", .key_source = "UNISONO_KEY_FILE (/a)", .key_mark = "aa"};
const SecurityFacts key_b{.level = "auto", .key_source = "UNISONO_KEY_FILE (/b)", .key_mark = "bb"};

TEST(DoctorSecurity, equal_keys_and_a_single_host_without_a_key_give_no_findings) {
  EXPECT_TRUE(security_findings({key_a, key_a, key_a}).empty());
  EXPECT_TRUE(security_findings({no_key}).empty());
}

TEST(DoctorSecurity, several_hosts_without_a_key_give_a_hint_unless_security_is_off) {
  const auto findings = security_findings({no_key, no_key});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::hint);
  EXPECT_EQ(findings[0].code, "no_key");
  EXPECT_TRUE(security_findings({{.level = "off"}, {.level = "off"}}).empty());
}

TEST(DoctorSecurity, a_key_that_cannot_be_used_is_an_error_that_names_rank_and_file) {
  auto wrong = key_b;
  wrong.key_mark.clear();
  wrong.key_error = "UNISONO_KEY_FILE: /b can be read or written by all users";
  const auto findings = security_findings({key_a, wrong});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::error);
  EXPECT_EQ(findings[0].code, "bad_key");
  EXPECT_NE(findings[0].seen.find("rank 1 (host b)"), std::string::npos) << findings[0].seen;
  EXPECT_NE(findings[0].seen.find("/b can be read"), std::string::npos) << findings[0].seen;
}

TEST(DoctorSecurity, ranks_with_other_keys_or_with_none_are_named) {
  for (const auto& other : {key_b, no_key}) {
    const auto findings = security_findings({key_a, key_a, other});
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].code, "keys_differ");
    EXPECT_NE(findings[0].seen.find("rank 0 and rank 2"), std::string::npos) << findings[0].seen;
  }
}

}  // namespace
}  // namespace unisono::cli
