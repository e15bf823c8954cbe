// The test suite for all transports. Each promise of src/transports/transport.h is a test.
//
// The _test.cc file of each transport registers the suite:
//   [[maybe_unused]] const bool tcp_v4 = test_transport("TcpV4", [](size_t count) { return …; });
// The function returns `count` transports of this process that are all linked with each other, or null. The suite then runs
// with 2, 3 and 5 transports, as TcpV4_2.*, TcpV4_3.* and TcpV4_5.*. It is registered at run time, because typed tests would
// take a minute to compile for each transport under the sanitizers.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "base/concat.h"
#include "transport_cluster.h"
#include "transport_promises_data.h"
#include "transport_promises_life.h"
#include "transport_promises_memory.h"
#include "transport_promises_sleep.h"

namespace unisono::conformance {

#define UNISONO_TRANSPORT_PROMISES(X)                                        \
  X(frames_of_every_size_are_placed_intact)                                  \
  X(frames_of_every_size_come_intact_as_views)                               \
  X(next_shows_the_frame_that_arrives)                                       \
  X(unaligned_payloads_arrive_intact)                                        \
  X(headers_arrive_unchanged)                                                \
  X(many_frames_obey_flow_control)                                           \
  X(all_peers_send_to_all_peers)                                             \
  X(the_sink_may_answer_from_inside_an_upcall)                               \
  X(frames_without_payload_and_failures_need_no_credit)                      \
  X(a_slot_reaches_several_peers)                                            \
  X(copies_reach_all_given_peers_or_none)                                    \
  X(an_abandoned_slot_is_free_again)                                         \
  X(views_stay_intact_and_are_released_in_any_order)                         \
  X(a_cancelled_send_leaves_its_memory_and_the_link_alone)                   \
  X(a_cancelled_placement_is_not_touched)                                    \
  X(a_placement_of_another_peer_survives_a_cancel)                           \
  X(a_dead_peer_is_lost_once_with_its_label)                                 \
  X(sends_to_a_lost_peer_vanish)                                             \
  X(pending_sends_are_reported_before_lost)                                  \
  X(no_upcall_follows_close)                                                 \
  X(frames_sent_before_close_arrive)                                         \
  X(counters_of_both_sides_agree)                                            \
  X(a_sleeper_is_woken_by_a_frame)                                           \
  X(a_sleeper_is_woken_by_credit)                                            \
  X(sleepers_are_woken_by_copies)                                            \
  X(a_sleeper_is_woken_when_frames_are_taken)                                \
  X(a_waiting_frame_prevents_sleep)                                          \
  X(a_second_link_to_a_peer_is_refused)                                      \
  X(a_process_that_has_stopped_listening_keeps_its_links_and_dials_new_ones) \
  X(every_link_describes_itself)

using MakeCluster = std::function<std::unique_ptr<Cluster>(size_t count)>;

class TransportPromise final : public testing::Test {
 public:
  TransportPromise(MakeCluster make, size_t count, void (*promise)(Cluster&))
      : make_(std::move(make)), count_(count), promise_(promise) {}
  void TestBody() override {
    RecordProperty("seed", std::to_string(test_seed()));
    SCOPED_TRACE(concat("seed ", test_seed()));
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
    const auto suite = concat(name, "_", count);
    for (const auto& each : promises) {
      testing::RegisterTest(suite.c_str(), each.name, nullptr, nullptr, __FILE__, __LINE__,
                            [=]() -> testing::Test* { return new TransportPromise(make, count, each.promise); });
    }
  }
  return true;
}

// The same suite as typed tests, for factories that have `static std::unique_ptr<Cluster> make()`. If possible, use
// test_transport() instead, because it compiles faster.
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
