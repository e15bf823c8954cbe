// Parsing and printing of network models.
#include <gtest/gtest.h>

#include "sim/udp/udp_model.h"

namespace unisono::sim {
namespace {

TEST(UdpModel, text_is_parsed_to_an_equal_model) {
  for (const auto* text : {"rate=1G,queue=256K,delay=50us",
                           "rate=100M,queue=64K,delay=200us,jitter=50us,datagram=8972,compute=5ms,spread=1ms,dead=3@2s,dead=3@"
                           "3s-3.5s,kill=4@2s,stop=1@1s-1.1s,slow=5x10",
                           "rate=8K,queue=3000,delay=0"}) {
    const auto model = UdpModel::parse(text);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    EXPECT_EQ(model->to_string(), text);
    EXPECT_EQ(*UdpModel::parse(model->to_string()), *model);
  }
  EXPECT_EQ(*UdpModel::parse(""), UdpModel());
  const auto model = *UdpModel::parse("queue=1M,stop=2@10ms-20ms");
  EXPECT_EQ(model.queue_bytes, 1u << 20);
  EXPECT_EQ(
      model.faults,
      (std::vector<PeerFault>{{.kind = PeerFaultKind::stop, .process = 2, .from = 10 * millisecond, .to = 20 * millisecond}}));
  EXPECT_TRUE(model.has(PeerFaultKind::stop));
  EXPECT_FALSE(model.has(PeerFaultKind::dead));
}

TEST(UdpModel, errors_name_the_wrong_part) {
  for (const auto& [text, why] : {std::pair{"rate=100", "rate=100: expected bits per second"},
                                  {"rate=1T", "rate=1T"},
                                  {"queue=1", "at least 2K"},
                                  {"delay=5", "delay=5: expected a time"},
                                  {"delay=-1ms", "delay=-1ms"},
                                  {"datagram=9000", "1200 to 8972"},
                                  {"dead=3", "dead=3: expected 3@2s"},
                                  {"dead=3@2s-1s", "dead=3@2s-1s"},
                                  {"kill=3@1s-2s", "kill=3@1s-2s: expected 3@2s"},
                                  {"stop=3@1s", "stop=3@1s: expected 3@2s-2.5s"},
                                  {"slow=5x0.5", "5x10"},
                                  {"speed=5", "\"speed=5\" is none of rate"},
                                  {"rate=1G,rate=2G", "is given twice"},
                                  {"rate=1G,,queue=64K", "\"\" is none of"}}) {
    const auto model = UdpModel::parse(text);
    ASSERT_FALSE(model.ok()) << text;
    EXPECT_EQ(model.status().code(), Code::invalid);
    EXPECT_NE(model.status().message().find(why), std::string::npos) << model.status().message();
  }
  EXPECT_EQ(UdpModel::parse("dead=4@1s")->check(4).message(), "bad_network: dead=4@1s: there are 4 ranks, from 0");
}

}  // namespace
}  // namespace unisono::sim
