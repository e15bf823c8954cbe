#include "cli/common/records.h"

#include <gtest/gtest.h>

namespace unisono::cli {
namespace {

std::string_view text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

TEST(Records, a_stream_cut_anywhere_gives_the_same_records) {
  std::string stream(agent_greeting);
  append_record(stream, RecordKind::hello, 0, encode(Hello{"0.1", "a", 7, 29500}));
  append_output(stream, 3, 2, std::string("bytes\0\n\xff", 8));
  append_record(stream, RecordKind::done, 0, {});
  for (size_t step = 1; step <= stream.size(); ++step) {
    RecordReader reader(true);
    std::vector<Record> records;
    for (size_t at = 0; at < stream.size(); at += step) {
      reader.push(std::string_view(stream).substr(at, step));
      for (auto next = reader.next(); next.ok() && next->has_value(); next = reader.next()) records.push_back(**next);
    }
    ASSERT_EQ(records.size(), 3u) << "step " << step;
    Hello hello;
    ASSERT_TRUE(decode(records[0].payload, hello));
    EXPECT_EQ(hello.port, 29500u);
    EXPECT_EQ(records[1].rank, 3u);
    EXPECT_EQ(text_of(records[1].payload), std::string("\2bytes\0\n\xff", 9));
    EXPECT_EQ(records[2].kind, RecordKind::done);
  }
}

TEST(Records, output_of_a_login_shell_is_kept_apart) {
  std::string stream = "Welcome to host b!\nunisono\n" + std::string(agent_greeting);
  append_record(stream, RecordKind::done, 0, {});
  RecordReader reader(true);
  for (const char letter : stream) reader.push({&letter, 1});
  const auto next = reader.next();
  ASSERT_TRUE(next.ok() && next->has_value());
  EXPECT_EQ((*next)->kind, RecordKind::done);
  EXPECT_EQ(reader.preamble(), "Welcome to host b!\nunisono\n");
}

TEST(Records, an_endless_preamble_takes_bounded_memory) {
  RecordReader reader(true);
  for (int i = 0; i < 1000; ++i) reader.push(std::string(1000, 'x'));
  EXPECT_LE(reader.preamble().size(), 4096u);
  EXPECT_FALSE(reader.next()->has_value());
}

TEST(Records, an_unknown_kind_is_corrupt) {
  RecordReader reader(false);
  reader.push(std::string(9, '\x7f'));
  EXPECT_EQ(reader.next().status().code(), Code::corrupt);
}

TEST(Records, an_oversized_record_is_corrupt) {
  RecordReader reader(false);
  reader.push(std::string("\x05\0\0\0\0\xff\xff\xff\x7f", 9));
  EXPECT_EQ(reader.next().status().code(), Code::corrupt);
}

TEST(Records, a_start_order_survives_any_bytes) {
  const StartOrder order{{"./a b", "", "it's\n\xff"}, {"X=1", "Y="}, "/tmp/x y", 4, 2, true, false, std::string(64, 'a')};
  StartOrder back;
  ASSERT_TRUE(decode(encode(order), back));
  EXPECT_EQ(back.program, order.program);
  EXPECT_EQ(back.environment, order.environment);
  EXPECT_EQ(back.directory, order.directory);
  EXPECT_EQ(back.first_rank, 4u);
  EXPECT_TRUE(back.keep_port);
  EXPECT_FALSE(back.pin);
  EXPECT_EQ(back.key, order.key);
}

TEST(Records, every_truncation_of_a_payload_is_refused) {
  const auto start = encode(StartOrder{{"p"}, {"A=1"}, "/", 0, 1, false, true, {}});
  const auto ended = encode(Ended{true, false, 9, 12345});
  for (size_t size = 0; size < start.size(); ++size) {
    StartOrder order;
    EXPECT_FALSE(decode(ByteView(start).first(size), order)) << size;
  }
  for (size_t size = 0; size < ended.size(); ++size) {
    Ended out;
    EXPECT_FALSE(decode(ByteView(ended).first(size), out)) << size;
  }
}

}  // namespace
}  // namespace unisono::cli
