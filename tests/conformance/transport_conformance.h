// One suite for every transport: each promise of src/transports/transport.h is a test.
//
// A transport's own _test.cc registers the suite:
//   [[maybe_unused]] const bool tcp_v4 = test_transport("TcpV4", [](size_t count) { return …; });
// The function returns `count` transports of this process, all linked with each other, or null. The suite then runs for 2, 3
// and 5 of them as TcpV4_2.*, TcpV4_3.*, TcpV4_5.*. It is registered at run time: as typed tests, the same suite took a minute
// per transport to compile under the sanitizers.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "transport_cluster.h"
#include "transport_promises_data.h"
#include "transport_promises_life.h"
#include "transport_promises_memory.h"
#include "transport_promises_sleep.h"

namespace unisono::conformance {

#define UNISONO_TRANSPORT_PROMISES(X)                      \
  X(frames_of_every_size_are_placed_intact)                \
  X(frames_of_every_size_come_intact_as_views)             \
  X(next_shows_the_frame_that_arrives)                     \
  X(unaligned_payloads_arrive_intact)                      \
  X(headers_arrive_as_they_were_sent)                      \
  X(many_frames_obey_flow_control)                         \
  X(everyone_sends_to_everyone)                            \
  X(the_sink_may_answer_from_inside_an_upcall)             \
  X(frames_without_payload_and_failures_need_no_credit)    \
  X(a_slot_reaches_several_peers)                          \
  X(copies_reach_several_peers_or_nobody)                  \
  X(an_abandoned_slot_is_free_again)                       \
  X(views_stay_intact_and_are_released_in_any_order)       \
  X(a_cancelled_send_leaves_its_memory_and_the_link_alone) \
  X(a_cancelled_placement_is_not_touched)                  \
  X(a_dead_peer_is_lost_once_with_its_label)               \
  X(sends_to_a_lost_peer_vanish)                           \
  X(pending_sends_are_reported_before_lost)                \
  X(no_upcall_follows_close)                               \
  X(frames_sent_before_close_arrive)                       \
  X(counters_of_both_sides_agree)                          \
  X(a_sleeper_is_woken_by_a_frame)                         \
  X(a_sleeper_is_woken_by_credit)                          \
  X(sleepers_are_woken_by_copies)                          \
  X(a_sleeper_is_woken_by_what_is_taken)                   \
  X(a_frame_that_is_there_prevents_sleep)                  \
  X(a_second_link_to_a_peer_is_refused)                    \
  X(every_link_describes_itself)

using MakeCluster = std::function<std::unique_ptr<Cluster>(size_t count)>;

class TransportPromise final : public testing::Test {
 public:
  TransportPromise(MakeCluster make, size_t count, void (*promise)(Cluster&))
      : make_(std::move(make)), count_(count), promise_(promise) {}
  void TestBody() override {
    RecordProperty("seed", std::to_string(test_seed()));
    SCOPED_TRACE("seed " + std::to_string(test_seed()));
    const auto cluster = make_(count_);
    ASSERT_NE(cluster, nullptr) << "the transports did not connect";
    promise_(*cluster);
  }

 private:
  MakeCluster make_;
  size_t count_;
  void (*promise_)(Cluster&);
};

inline bool test_transport(const std::string& name, const MakeCluster& make) {
  struct Named {
    const char* name;
    void (*promise)(Cluster&);
  };
#define UNISONO_NAMED(promise) Named{#promise, &promise},
  static constexpr Named promises[] = {UNISONO_TRANSPORT_PROMISES(UNISONO_NAMED)};
#undef UNISONO_NAMED
  for (const size_t count : {2, 3, 5}) {
    const auto suite = name + "_" + std::to_string(count);
    for (const auto& each : promises) {
      testing::RegisterTest(suite.c_str(), each.name, nullptr, nullptr, __FILE__, __LINE__,
                            [=]() -> testing::Test* { return new TransportPromise(make, count, each.promise); });
    }
  }
  return true;
}

// The same suite as typed tests, for factories with `static std::unique_ptr<Cluster> make()`. It costs compile time: prefer the
// above.
template <typename Factory>
class TransportConformance : public testing::Test {};
TYPED_TEST_SUITE_P(TransportConformance);
TYPED_TEST_P(TransportConformance, keeps_every_promise){
#define UNISONO_KEPT(promise)                                                                        \
  {                                                                                                  \
    SCOPED_TRACE(#promise);                                                                          \
    TransportPromise([](size_t) { return TypeParam::make(); }, 0, &conformance::promise).TestBody(); \
  }
    UNISONO_TRANSPORT_PROMISES(UNISONO_KEPT)
#undef UNISONO_KEPT
} REGISTER_TYPED_TEST_SUITE_P(TransportConformance, keeps_every_promise);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);

}  // namespace unisono::conformance
