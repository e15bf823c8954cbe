#include "cli/common/mixer.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace unisono::cli {
namespace {

std::string all(Mixer& mixer, Stream stream = Stream::out) { return mixer.pending(stream); }

TEST(Mixer, lines_of_different_ranks_are_never_torn) {
  Mixer mixer({.world_size = 2});
  mixer.push(0, Stream::out, "he");
  mixer.push(1, Stream::out, "wor");
  mixer.push(0, Stream::out, "llo\nag");
  mixer.push(1, Stream::out, "ld\n");
  mixer.push(0, Stream::out, "ain\n");
  EXPECT_EQ(all(mixer), "[0] hello\n[1] world\n[0] again\n");
}

TEST(Mixer, the_two_streams_stay_apart) {
  Mixer mixer({.world_size = 1});
  mixer.push(0, Stream::out, "data");
  mixer.push(0, Stream::error, "warning\n");
  mixer.push(0, Stream::out, "\n");
  EXPECT_EQ(all(mixer), "[0] data\n");
  EXPECT_EQ(all(mixer, Stream::error), "[0] warning\n");
}

TEST(Mixer, an_unfinished_line_leaves_when_its_rank_ends) {
  Mixer mixer({.world_size = 2});
  mixer.push(1, Stream::out, "no end");
  EXPECT_EQ(all(mixer), "");
  mixer.finish(1);
  EXPECT_EQ(all(mixer), "[1] no end\n");
  mixer.finish(1);
  EXPECT_EQ(all(mixer), "[1] no end\n");
}

TEST(Mixer, empty_lines_and_binary_bytes_pass) {
  Mixer mixer({.world_size = 1});
  mixer.push(0, Stream::out, std::string("\n\0\xff\x80\r\x1b\n", 7));
  EXPECT_EQ(all(mixer), std::string("[0] \n[0] \0\xff\x80\r\x1b\n", 16 - 1));
}

TEST(Mixer, without_prefix_the_bytes_are_the_ranks_own) {
  Mixer mixer({.world_size = 1, .prefix = false});
  mixer.push(0, Stream::out, "a\r1%\r2%\nb\n");
  EXPECT_EQ(all(mixer), "a\r1%\r2%\nb\n");
}

TEST(Mixer, a_long_line_stays_whole_and_an_endless_one_is_cut) {
  Mixer mixer({.world_size = 1});
  const std::string line(200'000, 'x');
  mixer.push(0, Stream::out, line + "\n");
  EXPECT_EQ(all(mixer), "[0] " + line + "\n");
  mixer.pending(Stream::out).clear();
  mixer.push(0, Stream::out, std::string(line_bytes_max + 5, 'y'));
  mixer.finish(0);
  EXPECT_EQ(all(mixer), "[0] " + std::string(line_bytes_max, 'y') + "\n[0] yyyyy\n");
}

TEST(Mixer, cuts_at_any_position_give_the_same_lines) {
  const uint64_t seed = 7;
  SCOPED_TRACE(seed);
  Random random(seed);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += random.chance(0.1) ? '\n' : static_cast<char>('a' + random.below(26));
  Mixer whole({.world_size = 1});
  whole.push(0, Stream::out, text);
  Mixer cut({.world_size = 1});
  for (size_t at = 0; at < text.size();) {
    const auto size = 1 + random.below(30);
    cut.push(0, Stream::out, std::string_view(text).substr(at, size));
    at += size;
  }
  whole.finish(0);
  cut.finish(0);
  EXPECT_EQ(all(cut), all(whole));
}

TEST(Mixer, on_a_terminal_rank_0s_progress_is_live_and_gives_way_to_lines) {
  Mixer mixer({.world_size = 2, .out_is_terminal = true});
  mixer.push(0, Stream::out, "\r10%");
  EXPECT_EQ(all(mixer), "[0] 10%");
  mixer.push(0, Stream::out, "\r20%");
  mixer.push(1, Stream::out, "hello\n");
  EXPECT_EQ(all(mixer), "[0] 10%\r\x1b[K[0] 20%\r\x1b[K[1] hello\n");
  mixer.push(0, Stream::out, "\rdone\n");
  EXPECT_TRUE(all(mixer).ends_with("[1] hello\n[0] done\n"));
}

TEST(Mixer, on_a_terminal_a_rewritten_line_may_come_in_pieces) {
  Mixer mixer({.world_size = 1, .out_is_terminal = true});
  mixer.push(0, Stream::out, "\r10%");
  mixer.push(0, Stream::out, " eta 5");
  EXPECT_TRUE(all(mixer).ends_with("\r\x1b[K[0] 10% eta 5"));
  mixer.push(0, Stream::out, "\r");
  mixer.push(0, Stream::out, "20%");
  EXPECT_TRUE(all(mixer).ends_with("\r\x1b[K[0] 20%"));
}

TEST(Mixer, on_a_terminal_other_ranks_rewritten_lines_show_their_last_state) {
  Mixer mixer({.world_size = 2, .out_is_terminal = true});
  mixer.push(1, Stream::out, "1%\r2%\r3%");
  EXPECT_EQ(all(mixer), "");
  mixer.push(1, Stream::out, "\r\n");
  EXPECT_EQ(all(mixer), "[1] 3%\n");
}

TEST(Mixer, colours_are_for_terminals_only) {
  Mixer mixer({.world_size = 1, .colour = true, .out_is_terminal = true, .error_is_terminal = false});
  mixer.push(0, Stream::out, "a\n");
  mixer.push(0, Stream::error, "b\n");
  EXPECT_EQ(all(mixer), "\x1b[36m[0]\x1b[0m a\n");
  EXPECT_EQ(all(mixer, Stream::error), "[0] b\n");
}

TEST(Mixer, a_rank_out_of_range_is_ignored) {
  Mixer mixer({.world_size = 1});
  mixer.push(7, Stream::out, "x\n");
  EXPECT_EQ(all(mixer), "");
}

}  // namespace
}  // namespace unisono::cli
