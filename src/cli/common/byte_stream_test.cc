// Tests that streams transfer all bytes, and that errors name the stream, the position and the reason.
#include "cli/common/byte_stream.h"

#include <array>
#include <csignal>

#include "base/concat.h"
#include "cli/codec/codec_test_support.h"

namespace unisono::cli {
namespace {

std::string text_of(const Status& status) { return status.to_string(); }

TEST(ByteStream, all_pieces_but_the_last_are_full) {
  const std::vector<std::byte> bytes(10, std::byte{7});
  const MemoryFile file(bytes);
  auto source = ByteSource::open(file.path());
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(source->bytes_left(), 10u);
  std::array<std::byte, 4> piece;
  for (const size_t expected : {4u, 4u, 2u, 0u}) EXPECT_EQ(*source->read(piece), expected);
  EXPECT_EQ(source->taken(), 10u);
  EXPECT_EQ(source->bytes_left(), std::nullopt);
}

TEST(ByteStream, files_that_cannot_be_opened_are_named) {
  EXPECT_EQ(text_of(ByteSource::open("/nonexistent/x").status()),
            "unavailable: cannot read /nonexistent/x: No such file or directory");
  const auto source = ByteSource::open("/dev/null");
  EXPECT_EQ(text_of(ByteSink::open("/nonexistent/x", *source).status()),
            "unavailable: cannot write /nonexistent/x: No such file or directory");
  auto folder = ByteSource::open("/");
  std::array<std::byte, 4> piece;
  EXPECT_EQ(text_of(folder->read(piece).status()), "unavailable: cannot read /: Is a directory");
}

TEST(ByteStream, a_full_disk_is_an_error) {
  const auto source = ByteSource::open("/dev/null");
  auto sink = ByteSink::open("/dev/full", *source);
  ASSERT_TRUE(sink.ok());
  EXPECT_EQ(text_of(sink->write("words")), "unavailable: cannot write /dev/full after 0 bytes: No space left on device");
  EXPECT_FALSE(sink->has_lost_its_reader());
}

TEST(ByteStream, a_file_is_not_written_over_while_it_is_read) {
  const std::vector<std::byte> bytes(10, std::byte{7});
  const MemoryFile file(bytes);
  const auto source = ByteSource::open(file.path());
  EXPECT_EQ(ByteSink::open(file.path(), *source).status().code(), Code::invalid);
  EXPECT_EQ(source->bytes_left(), 10u);
}

TEST(ByteStream, writing_a_file_replaces_its_contents) {
  const std::vector<std::byte> bytes(10, std::byte{7});
  const MemoryFile file(bytes);
  const auto nothing = ByteSource::open("/dev/null");
  auto sink = ByteSink::open(file.path(), *nothing);
  ASSERT_TRUE(sink.ok());
  EXPECT_TRUE(sink->write("new").ok());
  EXPECT_TRUE(sink->close().ok());
  EXPECT_EQ(ByteSource::open(file.path())->bytes_left(), 3u);
}

TEST(ByteStream, a_closed_reader_is_an_error_and_no_signal) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  ASSERT_TRUE(make_pipe(pipe));
  const auto source = ByteSource::open("/dev/null");
  auto sink = ByteSink::open(concat("/proc/self/fd/", pipe.write.get()), *source);
  ASSERT_TRUE(sink.ok());
  pipe.read.reset();
  EXPECT_EQ(sink->write("words").code(), Code::unavailable);
  EXPECT_TRUE(sink->has_lost_its_reader());
}

TEST(ByteStream, a_non_blocking_pipe_is_waited_for) {
  Pipe pipe;
  ASSERT_TRUE(make_pipe(pipe));
  const auto source = ByteSource::open("/dev/null");
  auto reader = ByteSource::open(concat("/proc/self/fd/", pipe.read.get()));
  auto sink = ByteSink::open(concat("/proc/self/fd/", pipe.write.get()), *source);
  ASSERT_TRUE(reader.ok() && sink.ok());
  ASSERT_TRUE(set_nonblocking(reader->fd()));
  ASSERT_TRUE(sink->write("a word").ok());
  ASSERT_TRUE(sink->close().ok());
  pipe.write.reset();
  std::array<std::byte, 16> piece;
  EXPECT_EQ(*reader->read(piece), 6u);
}

}  // namespace
}  // namespace unisono::cli
