// Calls with lossy or automatic delivery, in groups whose links carry no datagrams, so that all run reliably.
#include "engine/test_cluster.h"

namespace unisono {
namespace {

std::vector<std::shared_ptr<Completion>> sums(TestCluster& cluster, std::vector<std::vector<float>>& values,
                                              const CallOptions& options) {
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < cluster.world(); ++r) {
    const Tensor tensor{std::span<float>(values[r])};
    done.push_back(cluster.submit(r, all_reduce_call(cluster.caller(r), ConstTensor(tensor), tensor, options), options.id));
  }
  cluster.finish(done);
  return done;
}

TEST(EngineDelivery, automatic_calls_without_datagrams_are_reliable_and_name_the_link) {
  TestCluster cluster(3);
  std::vector<std::vector<float>> values(3, std::vector<float>(1000, 2));
  for (int again = 0; again < 2; ++again) {
    for (const auto& completion : sums(cluster, values, {.op = ReduceOp::avg, .delivery = Delivery::automatic})) {
      ASSERT_TRUE(completion->status.ok()) << completion->status.to_string();
      ASSERT_NE(completion->report.delivery, nullptr);
      const auto& delivery = *completion->report.delivery;
      EXPECT_EQ(delivery.used, Delivery::reliable);
      EXPECT_EQ(delivery.note, "not all links between ranks carry datagrams; those of the transport \"udp\" do");
      EXPECT_FALSE(delivery.contribute.ran || delivery.result.ran);
      EXPECT_EQ(delivery.effective_contributors, 3);
      EXPECT_EQ(delivery.to_string(), "reliable (" + delivery.note + ")");
      EXPECT_EQ(completion->report.contributors, 3u);
      EXPECT_NE(completion->report.to_string().find(", reliable: " + delivery.note), std::string::npos)
          << completion->report.to_string();
    }
    EXPECT_EQ(values[1], std::vector<float>(1000, 2));
  }
  // A later ordinary call must not report the earlier call's delivery.
  for (const auto& completion : sums(cluster, values, {})) EXPECT_EQ(completion->report.delivery, nullptr);
}

TEST(EngineDelivery, a_link_without_datagrams_is_named) {
  TestCluster cluster(3);
  for (Rank r = 0; r < 3; ++r) cluster.engine(r).set_datagrams(DatagramSecret{});
  std::vector<std::shared_ptr<Completion>> done;
  std::vector<float> values[] = {{1}, {2}, {3}};
  for (Rank r = 0; r < 3; ++r) {
    auto& group = cluster.make_group(r, 2, cluster.all());
    const Tensor tensor{std::span<float>(values[r])};
    done.push_back(cluster.submit(
        r, group, all_reduce_call(cluster.caller(r), ConstTensor(tensor), tensor, {.delivery = Delivery::automatic})));
  }
  cluster.finish(done);
  EXPECT_TRUE(done[0]->status.ok()) << done[0]->status.to_string();
  EXPECT_EQ(values[0], std::vector<float>{6});
  EXPECT_EQ(done[0]->report.delivery->note, "the link to rank 1 (process 1) carries no datagrams; the transport \"udp\" does");
  EXPECT_EQ(done[2]->report.delivery->note, "the link to rank 0 (process 0) carries no datagrams; the transport \"udp\" does");
}

TEST(EngineDelivery, automatic_calls_that_cannot_be_lossy_report_the_reason) {
  TestCluster cluster(2);
  std::vector<std::vector<float>> values{{1, 5}, {3, 4}};
  for (const auto& completion : sums(cluster, values, {.op = ReduceOp::max, .delivery = Delivery::automatic})) {
    ASSERT_TRUE(completion->status.ok()) << completion->status.to_string();
    EXPECT_EQ(completion->report.delivery->note, "only sums and averages of f32, f16 and bf16 tensors can be lossy");
  }
  EXPECT_EQ(values[0], (std::vector<float>{3, 5}));
  for (const auto& completion : sums(cluster, values, {.id = 7, .delivery = Delivery::automatic})) {
    ASSERT_TRUE(completion->status.ok()) << completion->status.to_string();
    EXPECT_EQ(completion->report.number, 7u);
    EXPECT_EQ(completion->report.delivery->used, Delivery::reliable);
  }
}

TEST(EngineDelivery, lossy_calls_without_datagrams_are_refused) {
  TestCluster cluster(2);
  std::vector<std::vector<float>> values(2, std::vector<float>(10));
  for (const auto& completion : sums(cluster, values, {.delivery = Delivery::lossy})) {
    EXPECT_EQ(completion->status.code(), Code::unsupported);
    EXPECT_NE(completion->status.message().find("transport \"udp\""), std::string::npos) << completion->status.message();
  }
}

TEST(EngineDelivery, a_group_of_one_delivers_nothing_and_reports_nothing) {
  TestCluster cluster(1);
  std::vector<std::vector<float>> values{{7}};
  for (const auto delivery : {Delivery::lossy, Delivery::automatic}) {
    for (const auto& completion : sums(cluster, values, {.delivery = delivery})) {
      EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
      EXPECT_EQ(completion->report.delivery, nullptr);
    }
  }
  EXPECT_EQ(values[0][0], 7);
}

}  // namespace
}  // namespace unisono
