#include "cli/common/text.h"

#include <gtest/gtest.h>

#include <csignal>

namespace unisono::cli {
namespace {

TEST(Text, sizes_are_powers_of_1024) {
  EXPECT_EQ(parse_bytes("64M").value(), 64u << 20);
  EXPECT_EQ(parse_bytes("1k").value(), 1024u);
  EXPECT_EQ(parse_bytes("1.5GiB").value(), 3u << 29);
  EXPECT_EQ(parse_bytes("0").value(), 0u);
  EXPECT_EQ(parse_bytes("7B").value(), 7u);
  EXPECT_EQ(parse_bytes("8T").value(), 8ull << 40);
}

TEST(Text, a_malformed_size_is_refused_and_named) {
  for (const char* text : {"", "M", "-1", "1X", "1MM", "nan", "inf", "1e5", "99999999999T", "1..2", " 1"}) {
    const auto parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.status().message().find(text), std::string::npos);
  }
}

TEST(Text, times_have_units_and_a_bare_number_means_seconds) {
  EXPECT_EQ(parse_duration("5s").value(), 5 * second);
  EXPECT_EQ(parse_duration("200ms").value(), 200 * millisecond);
  EXPECT_EQ(parse_duration("0").value(), 0);
  EXPECT_EQ(parse_duration("0.5").value(), 500 * millisecond);
  EXPECT_EQ(parse_duration("2m").value(), 120 * second);
  EXPECT_EQ(parse_duration("30ns").value(), 30);
  EXPECT_EQ(parse_duration("8.2").value(), 8'200 * millisecond) << "to the nearest nanosecond, not cut";
  for (const char* text : {"", "s", "-5s", "5 s", "5d", "nan", "9999999999h"}) EXPECT_FALSE(parse_duration(text).ok()) << text;
}

TEST(Text, counts_are_whole_and_bounded) {
  EXPECT_EQ(parse_count("64", 4096).value(), 64u);
  for (const char* text : {"", "-1", "1.5", "4097", "99999999999999999999", "4x", " 4"})
    EXPECT_FALSE(parse_count(text, 4096).ok()) << text;
}

TEST(Text, ranks_are_listed_and_long_runs_are_joined) {
  EXPECT_EQ(format_ranks(std::vector<uint32_t>{3}), "rank 3");
  EXPECT_EQ(format_ranks(std::vector<uint32_t>{0, 1, 3}), "ranks 0, 1, 3");
  EXPECT_EQ(format_ranks(std::vector<uint32_t>{0, 1, 2, 4, 6, 7, 8, 9}), "ranks 0-2, 4, 6-9");
}

TEST(Text, durations_and_bytes_read_naturally) {
  EXPECT_EQ(format_duration(1'240 * millisecond), "1.24 s");
  EXPECT_EQ(format_duration(5 * second), "5 s");
  EXPECT_EQ(format_duration(85 * millisecond), "85 ms");
  EXPECT_EQ(format_bytes(64 << 10), "64 KiB");
  EXPECT_EQ(format_bytes(100), "100 B");
}

TEST(Text, signals_have_their_names) {
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(SIGRTMIN + 2), "SIGRTMIN+2");
  EXPECT_EQ(signal_name(200), "signal 200");
}

TEST(Text, a_typing_error_finds_its_name_and_nonsense_finds_none) {
  const std::vector<std::string> names{"launch", "bench", "rendezvous"};
  EXPECT_EQ(nearest_name("lauch", names), "launch");
  EXPECT_EQ(nearest_name("bnech", names), "bench");
  EXPECT_EQ(nearest_name("rendevous", names), "rendezvous");
  EXPECT_EQ(nearest_name("frobnicate", names), "");
  EXPECT_EQ(nearest_name("", names), "");
}

TEST(Text, quoting_and_splitting_are_inverse) {
  for (const std::string word :
       {"plain", "", "two words", "it's", "a\\b", "$HOME `x` \"y\"", "*?[", "new\nline", "--x=1;2", "!"}) {
    const auto words = split_words(shell_quote(word));
    ASSERT_TRUE(words.ok()) << word;
    ASSERT_EQ(words->size(), 1u) << word;
    EXPECT_EQ((*words)[0], word);
  }
}

TEST(Text, commands_split_as_a_shell_splits_them) {
  const auto words = split_words(" ssh -o 'Batch Mode=yes'  \"a \\\" b\" c\\ d ''");
  ASSERT_TRUE(words.ok());
  EXPECT_EQ(*words, (std::vector<std::string>{"ssh", "-o", "Batch Mode=yes", "a \" b", "c d", ""}));
  EXPECT_FALSE(split_words("ssh 'open").ok());
  EXPECT_TRUE(split_words("  ")->empty());
}

TEST(Text, a_list_is_split_at_its_commas) {
  EXPECT_EQ(split_list("a,bc,,d"), (std::vector<std::string>{"a", "bc", "", "d"}));
  EXPECT_EQ(split_list("a,"), (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(split_list(""), std::vector<std::string>{""});
}

}  // namespace
}  // namespace unisono::cli
