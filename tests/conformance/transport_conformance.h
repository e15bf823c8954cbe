// One suite for every transport: what src/transports/transport.h promises, each promise as a test.
//
// A transport's own _test.cc gives a factory type and says
//   INSTANTIATE_TYPED_TEST_SUITE_P(TcpV4, TransportConformance, testing::Types<TcpV4<2>, TcpV4<3>, TcpV4<5>>);
// where `static std::unique_ptr<Cluster> TcpV4<k>::make()` gives k transports of this process, all linked with each other.
// The bodies are plain inline functions over a Cluster, so that each is compiled once per test file and not once per type.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "transport_cluster.h"
#include "transport_promises_data.h"
#include "transport_promises_life.h"

namespace unisono::conformance {

template <typename Factory>
class TransportConformance : public testing::Test {
 protected:
  void SetUp() override {
    RecordProperty("seed", std::to_string(test_seed()));
    cluster = Factory::make();
    ASSERT_NE(cluster, nullptr) << "the transports did not come together";
  }
  std::unique_ptr<Cluster> cluster;
};
TYPED_TEST_SUITE_P(TransportConformance);

#define UNISONO_PROMISE(promise)                                  \
  TYPED_TEST_P(TransportConformance, promise) {                   \
    SCOPED_TRACE("seed " + std::to_string(test_seed()));          \
    unisono::conformance::promise(*this->cluster);                \
  }

UNISONO_PROMISE(frames_of_every_size_are_placed_intact)
UNISONO_PROMISE(frames_of_every_size_are_lent_intact)
UNISONO_PROMISE(unaligned_payloads_arrive_intact)
UNISONO_PROMISE(headers_arrive_as_they_were_sent)
UNISONO_PROMISE(many_frames_obey_flow_control)
UNISONO_PROMISE(everyone_sends_to_everyone)
UNISONO_PROMISE(the_sink_may_answer_from_inside_an_upcall)
UNISONO_PROMISE(frames_without_payload_need_no_room)
UNISONO_PROMISE(a_slot_reaches_several_peers)
UNISONO_PROMISE(an_abandoned_slot_is_free_again)
UNISONO_PROMISE(lent_views_stay_intact_and_are_released_in_any_order)
UNISONO_PROMISE(a_cancelled_send_leaves_its_memory_and_the_link_alone)
UNISONO_PROMISE(a_cancelled_placement_is_not_touched)
UNISONO_PROMISE(a_dead_peer_is_lost_once_with_its_label)
UNISONO_PROMISE(sends_to_a_lost_peer_vanish)
UNISONO_PROMISE(pending_sends_are_reported_before_lost)
UNISONO_PROMISE(who_closes_hears_nothing_more)
UNISONO_PROMISE(frames_sent_before_close_arrive)
UNISONO_PROMISE(counters_of_both_sides_agree)
UNISONO_PROMISE(a_sleeper_is_woken_by_a_frame)
UNISONO_PROMISE(a_sleeper_is_woken_by_room)
UNISONO_PROMISE(a_frame_that_is_there_prevents_sleep)
UNISONO_PROMISE(a_second_link_to_a_peer_is_refused)
UNISONO_PROMISE(every_link_describes_itself)

REGISTER_TYPED_TEST_SUITE_P(TransportConformance, frames_of_every_size_are_placed_intact,
                            frames_of_every_size_are_lent_intact, unaligned_payloads_arrive_intact,
                            headers_arrive_as_they_were_sent, many_frames_obey_flow_control, everyone_sends_to_everyone,
                            the_sink_may_answer_from_inside_an_upcall, frames_without_payload_need_no_room,
                            a_slot_reaches_several_peers, an_abandoned_slot_is_free_again,
                            lent_views_stay_intact_and_are_released_in_any_order,
                            a_cancelled_send_leaves_its_memory_and_the_link_alone, a_cancelled_placement_is_not_touched,
                            a_dead_peer_is_lost_once_with_its_label, sends_to_a_lost_peer_vanish,
                            pending_sends_are_reported_before_lost, who_closes_hears_nothing_more,
                            frames_sent_before_close_arrive, counters_of_both_sides_agree, a_sleeper_is_woken_by_a_frame,
                            a_sleeper_is_woken_by_room, a_frame_that_is_there_prevents_sleep,
                            a_second_link_to_a_peer_is_refused, every_link_describes_itself);

}  // namespace unisono::conformance
