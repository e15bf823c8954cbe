#include "schedules/choose.h"

#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "base/random.h"
#include "schedules/test_support.h"

namespace unisono {
namespace {

using enum ScheduleKind;

ChooseRequest on_one_host(uint64_t bytes, const std::vector<uint32_t>& host_groups) {
  return {.bytes = bytes,
          .world = static_cast<uint32_t>(host_groups.size()),
          .host_groups = host_groups,
          .inside = shared_memory_profile(static_cast<uint32_t>(host_groups.size())),
          .between = network_tcp_profile(1)};
}

std::vector<uint32_t> hosts(uint32_t count, uint32_t ranks_each) {
  std::vector<uint32_t> host_groups;
  for (uint32_t rank = 0; rank < count * ranks_each; ++rank) host_groups.push_back(rank / ranks_each);
  return host_groups;
}

Choice must_choose(const ChooseRequest& request) {
  auto choice = choose(request);
  EXPECT_TRUE(choice.ok()) << choice.status().to_string();
  return choice.ok() ? *choice : Choice{};
}

TEST(Choose, small_tensors_take_one_round_and_large_ones_few_bytes) {
  const auto host_groups = hosts(1, 4);
  EXPECT_EQ(must_choose(on_one_host(64, host_groups)).kind, one_shot);
  EXPECT_EQ(must_choose(on_one_host(64 << 20, host_groups)).kind, two_step);
}

TEST(Choose, medium_tensors_on_many_hosts_take_few_system_calls) {
  const auto host_groups = hosts(64, 1);
  auto request = on_one_host(64 << 10, host_groups);
  EXPECT_EQ(must_choose(request).kind, halving_doubling);
}

TEST(Choose, large_tensors_avoid_slow_links) {
  const auto host_groups = hosts(4, 8);
  auto request = on_one_host(64 << 20, host_groups);
  request.inside = shared_memory_profile(8);
  request.between = network_tcp_profile(8);
  const auto choice = must_choose(request);
  EXPECT_EQ(choice.kind, hierarchical) << choice.reason;
  EXPECT_NE(choice.inner, automatic);
  EXPECT_NE(choice.outer, automatic);
}

TEST(Choose, in_rank_order_only_direct_schedules_are_chosen) {
  for (const auto collective : test::scheduled_collectives) {
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{1} << 10, uint64_t{1} << 16, uint64_t{1} << 26}) {
      for (const auto& host_groups : {hosts(1, 3), hosts(16, 1), hosts(4, 4)}) {
        auto request = on_one_host(bytes, host_groups);
        request.collective = collective;
        request.order = Order::in_rank_order;
        const auto choice = must_choose(request);
        const auto made = make_schedule({.collective = collective,
                                         .kind = choice.kind,
                                         .world = request.world,
                                         .host_groups = host_groups,
                                         .inner = choice.inner,
                                         .outer = choice.outer});
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        // A barrier adds nothing. But Schedule::direct follows the same rule for barriers.
        EXPECT_TRUE(made->direct) << choice.reason;
      }
    }
  }
}

// Returns a request with links whose only costs are latency and bytes. Cores cost nothing.
ChooseRequest on_thin_links(double latency_us, double bytes_per_us, const std::vector<uint32_t>& host_groups) {
  const LinkProfile link{.latency_us = latency_us,
                         .bytes_per_us = bytes_per_us,
                         .per_message_cpu_us = 0,
                         .per_batch_cpu_us = 0,
                         .reduce_bytes_per_us = 1e12,
                         .slice_bytes = 1e9,
                         .switch_us = 0,
                         .cores = 64};
  return {.world = static_cast<uint32_t>(host_groups.size()),
          .host_groups = host_groups,
          .order = Order::in_rank_order,
          .inside = link,
          .between = link};
}

ChooseRequest::Encoded encoded_to(double reduce, double gather) {
  return {.reduce = reduce, .across = reduce, .gather = gather, .encode_bytes_per_us = 1e12, .decode_bytes_per_us = 1e12};
}

// Let alpha be the latency, beta the rate, B the encoded bytes, and N = 4 the number of ranks.
// one_shot takes alpha + (N-1) B / beta, and two_step takes 2 alpha + 2 (N-1)/N B / beta.
// They are equal for B = alpha beta N / ((N-1)(N-2)), which is 3916 or 19'583 bytes here.
TEST(Choose, encoded_elements_go_in_one_shot_as_long_as_that_is_shorter) {
  const auto host_groups = hosts(4, 1);
  const std::tuple<double, double, double> cases[] = {{50, 117.5, 3916}, {25, 1175, 19'583}};
  for (const auto& [latency, rate, border] : cases) {
    for (const double fraction : {0.5, 0.1328125}) {
      auto request = on_thin_links(latency, rate, host_groups);
      request.encoded = encoded_to(fraction, fraction);
      request.bytes = static_cast<uint64_t>(0.995 * border / fraction);
      EXPECT_EQ(must_choose(request).kind, one_shot) << must_choose(request).reason;
      request.bytes = static_cast<uint64_t>(1.005 * border / fraction);
      EXPECT_EQ(must_choose(request).kind, two_step) << must_choose(request).reason;
    }
  }
  const std::vector<uint32_t> two{0, 1};
  auto pair = on_thin_links(50, 117.5, two);
  pair.encoded = encoded_to(0.25, 0.25);
  pair.bytes = 1u << 30;
  EXPECT_EQ(must_choose(pair).kind, one_shot);
}

TEST(Choose, encoded_elements_cost_what_their_bytes_and_their_encoding_cost) {
  const auto host_groups = hosts(4, 1);
  auto request = on_thin_links(50, 117.5, host_groups);
  request.bytes = 8u << 20;
  request.encoded = encoded_to(0.265625, 0.265625);  // 8.5 bits per fp32 element
  const double wire = 2 * 50 + 1.5 * 0.265625 * (8 << 20) / 117.5;
  EXPECT_NEAR(must_choose(request).predicted_us, wire, wire * 1e-3);
  request.encoded = encoded_to(0.5, 0.25);
  EXPECT_NEAR(must_choose(request).predicted_us, 2 * 50 + 1.5 * 0.375 * (8 << 20) / 117.5, wire * 1e-3);
  // The tensor is one slice, so encoding and sending do not overlap. A rank encodes 1 + 1/N = 1.25 tensors and decodes 2
  // tensors.
  request.encoded->encode_bytes_per_us = 1000;
  request.encoded->decode_bytes_per_us = 2000;
  EXPECT_NEAR(must_choose(request).predicted_us,
              2 * 50 + 1.5 * 0.375 * (8 << 20) / 117.5 + (8 << 20) * (1.25 / 1000 + 2.0 / 2000), wire * 1e-3);
}

TEST(Choose, encoded_elements_go_in_slices_that_are_large_enough_on_the_wire) {
  const auto host_groups = hosts(4, 1);
  auto request = on_one_host(32u << 20, host_groups);
  EXPECT_EQ(must_choose(request).slice_bytes, 256u << 10);
  for (const auto& [fraction, slice] : {std::pair{0.5, 512u << 10}, std::pair{0.2656, 986'987u}, std::pair{0.0703, 1u << 20}}) {
    request.encoded = encoded_to(fraction, fraction);
    request.kind = two_step;
    request.bytes = 32u << 20;
    EXPECT_EQ(must_choose(request).slice_bytes, slice);
    request.bytes = 12u << 20;  // eight slices in each rank's share of 3 MiB
    EXPECT_EQ(must_choose(request).slice_bytes, 384u << 10);
    request.bytes = 1u << 20;  // never smaller than without encoding
    EXPECT_EQ(must_choose(request).slice_bytes, 256u << 10);
  }
  const auto together = hosts(1, 4);
  request.host_groups = together;
  request.bytes = 32u << 20;
  EXPECT_EQ(must_choose(request).slice_bytes, 256u << 10);
}

// Low rates are tested, too: on a busy machine, measurements give low rates.
TEST(Choose, encoding_does_not_pay_inside_a_host_however_slow_it_is) {
  const auto host_groups = hosts(1, 2);
  for (const double rate : {500.0, 5'000.0, 50'000.0}) {
    for (const uint64_t bytes : {uint64_t{1} << 14, uint64_t{1} << 20, uint64_t{1} << 26}) {
      for (const auto& inside : {shared_memory_profile(2), loopback_tcp_profile(2)}) {
        auto request = on_one_host(bytes, host_groups);
        request.inside = inside;
        request.inside.bytes_per_us = rate;
        const auto plain = must_choose(request).predicted_us;
        request.encoded = ChooseRequest::Encoded{.reduce = 0.1328125, .across = 0.1328125, .gather = 0.1328125};
        EXPECT_GT(must_choose(request).predicted_us, 0.95 * plain) << rate << ", " << bytes;
      }
    }
  }
}

TEST(Choose, encoded_calls_consider_only_schedules_that_encode_once_per_step) {
  for (const auto& host_groups : {hosts(1, 4), hosts(4, 1), hosts(2, 4), hosts(4, 4)}) {
    for (const uint64_t bytes : {uint64_t{1} << 12, uint64_t{1} << 20, uint64_t{1} << 27}) {
      auto request = on_one_host(bytes, host_groups);
      request.encoded = encoded_to(0.25, 0.25);
      const auto choice = must_choose(request);
      EXPECT_TRUE(choice.kind == one_shot || choice.kind == two_step || choice.kind == hierarchical) << choice.reason;
      if (choice.kind != hierarchical) continue;
      EXPECT_EQ(choice.inner, two_step);
      EXPECT_EQ(choice.outer, host_groups.back() == 1 ? one_shot : two_step);
    }
  }
  const auto four = hosts(4, 1);
  auto ring_wanted = on_one_host(1 << 20, four);
  ring_wanted.encoded = encoded_to(0.25, 0.25);
  ring_wanted.kind = ring;
  EXPECT_EQ(choose(ring_wanted).status().code(), Code::unsupported);
}

TEST(Choose, chosen_schedules_can_be_made) {
  constexpr uint64_t seed = 90'210;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  for (int i = 0; i < 3'000; ++i) {
    const auto host_groups = hosts(1 + static_cast<uint32_t>(random.below(6)), 1 + static_cast<uint32_t>(random.below(6)));
    auto request = on_one_host(random.next() >> random.below(64), host_groups);
    request.collective = test::scheduled_collectives[random.below(9)];
    request.is_16_bit_float = random.chance(0.5);
    request.order = random.chance(0.5) ? Order::any : Order::automatic;
    request.inside = random.chance(0.5) ? shared_memory_profile(2) : loopback_tcp_profile(4);
    const auto choice = must_choose(request);
    ASSERT_TRUE(make_schedule({.collective = request.collective,
                               .kind = choice.kind,
                               .world = request.world,
                               .host_groups = host_groups,
                               .inner = choice.inner,
                               .outer = choice.outer})
                    .ok())
        << choice.reason;
    ASSERT_TRUE(std::isfinite(choice.predicted_us));
    ASSERT_GT(choice.slice_bytes, 0u);
  }
}

TEST(Choose, prefers_direct_schedules_for_16_bit_floats) {
  const auto host_groups = hosts(64, 1);
  auto request = on_one_host(1 << 20, host_groups);
  request.is_16_bit_float = true;
  const auto choice = must_choose(request);
  EXPECT_EQ(choice.kind, two_step) << choice.reason;
  request.is_16_bit_float = false;
  const auto wide = must_choose(request);
  const auto time_of = [](const Choice& c, ScheduleKind kind) {
    for (const auto& candidate : c.candidates)
      if (candidate.kind == kind) return candidate.predicted_us;
    return 0.0;
  };
  EXPECT_DOUBLE_EQ(time_of(choice, two_step), time_of(wide, two_step));
  // Kinds that are not direct work on an fp32 copy. It has twice the bytes and costs two further passes.
  request.bytes *= 2;
  EXPECT_DOUBLE_EQ(time_of(choice, ring), time_of(must_choose(request), ring) +
                                              2 * static_cast<double>(request.bytes) / request.inside.reduce_bytes_per_us);
}

// Relaying pays with many ranks whose messages are expensive.
TEST(Choose, relays_short_sums_if_messages_are_expensive) {
  const auto request_of = [](const std::vector<uint32_t>& host_groups, uint64_t bytes) {
    return ChooseRequest{.bytes = bytes,
                         .world = static_cast<uint32_t>(host_groups.size()),
                         .host_groups = host_groups,
                         .order = Order::in_rank_order,
                         .inside = loopback_tcp_profile(2),
                         .between = network_tcp_profile(2)};
  };
  const auto one_host = hosts(1, 16), pair = hosts(1, 2), many = hosts(100, 1), mixed = hosts(8, 2);
  const auto choice = must_choose(request_of(one_host, 1024));
  EXPECT_EQ(choice.kind, one_shot);
  EXPECT_TRUE(choice.relayed) << choice.reason;
  EXPECT_NE(choice.reason.find("one_shot relayed"), std::string::npos) << choice.reason;
  EXPECT_TRUE(must_choose(request_of(many, 1024)).relayed);
  EXPECT_FALSE(must_choose(request_of(pair, 1024)).relayed);
  EXPECT_FALSE(must_choose(request_of(mixed, 1024)).relayed) << "host groups of several ranks";
  EXPECT_FALSE(must_choose(request_of(one_host, 64u << 10)).relayed) << "a MiB at each";
  EXPECT_FALSE(must_choose(request_of(one_host, 0)).relayed);
  auto other = request_of(one_host, 1024);
  other.kind = one_shot;
  EXPECT_FALSE(must_choose(other).relayed) << "that kind was requested";
  other = request_of(one_host, 1024);
  other.encoded = encoded_to(0.25, 0.25);
  EXPECT_FALSE(must_choose(other).relayed);
  other = request_of(one_host, 1024);
  other.inside = shared_memory_profile(2);
  EXPECT_FALSE(must_choose(other).relayed) << must_choose(other).reason;
}

TEST(Choose, uses_a_requested_kind_and_says_so) {
  const auto host_groups = hosts(1, 4);
  auto request = on_one_host(64, host_groups);
  request.kind = ring;
  const auto choice = must_choose(request);
  EXPECT_EQ(choice.kind, ring);
  EXPECT_NE(choice.reason.find("ring"), std::string::npos);
  EXPECT_NE(choice.reason.find("as requested; next one_shot"), std::string::npos) << choice.reason;
}

TEST(Choose, uses_requested_kinds_inside_and_between_host_groups) {
  const auto host_groups = hosts(2, 2);
  auto request = on_one_host(1 << 20, host_groups);
  request.kind = hierarchical;
  request.inner = tree;
  request.outer = ring;
  request.slice_bytes = 12'345;
  const auto choice = must_choose(request);
  EXPECT_EQ(choice.inner, tree);
  EXPECT_EQ(choice.outer, ring);
  EXPECT_EQ(choice.slice_bytes, 12'345u);
}

TEST(Choose, uses_requested_hierarchical_on_a_single_host_group) {
  const auto host_groups = hosts(1, 4);
  auto request = on_one_host(64, host_groups);
  request.kind = hierarchical;
  EXPECT_EQ(must_choose(request).kind, hierarchical);
  request.order = Order::in_rank_order;  // allows only a direct kind inside
  const auto inner = must_choose(request).inner;
  EXPECT_TRUE(inner == two_step || inner == direct);
}

TEST(Choose, refuses_a_requested_kind_that_does_not_exist) {
  const auto host_groups = hosts(1, 4);
  auto request = on_one_host(64, host_groups);
  request.kind = tree;
  const auto choice = choose(request);
  EXPECT_EQ(choice.status().code(), Code::unsupported);
  EXPECT_NE(choice.status().message().find("one_shot, two_step, halving_doubling, ring"), std::string::npos)
      << choice.status().message();
}

TEST(Choose, refuses_a_requested_kind_that_cannot_add_in_rank_order) {
  const auto host_groups = hosts(1, 4);
  auto request = on_one_host(64, host_groups);
  request.order = Order::in_rank_order;
  request.kind = ring;
  const auto choice = choose(request);
  EXPECT_EQ(choice.status().code(), Code::unsupported);
  // The text lists hierarchical: on a single host group, it is a two_step, which can add in rank order.
  EXPECT_EQ(choice.status().message(),
            "ring all_reduce: passes partial sums on, so cannot add in rank order; there are one_shot, two_step, hierarchical");
}

TEST(Choose, refuses_send_an_empty_world_and_host_groups_of_another_world) {
  const auto host_groups = hosts(1, 4);
  auto request = on_one_host(64, host_groups);
  request.collective = Collective::send;
  EXPECT_EQ(choose(request).status().code(), Code::unsupported);
  request.collective = Collective::all_reduce;
  request.world = 0;
  EXPECT_EQ(choose(request).status().code(), Code::invalid);
  request.world = 5;
  EXPECT_EQ(choose(request).status().code(), Code::invalid);
}

TEST(Choose, refuses_an_invalid_link_profile) {
  const auto host_groups = hosts(1, 4);
  const auto good = on_one_host(64, host_groups);
  for (const double rate : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    auto request = good;
    request.inside.bytes_per_us = rate;
    EXPECT_EQ(choose(request).status().code(), Code::invalid) << rate;
    request = good;
    request.between.slice_bytes = rate;
    EXPECT_EQ(choose(request).status().code(), Code::invalid) << rate;
  }
  auto request = good;
  request.inside.cores = 0;
  EXPECT_EQ(choose(request).status().code(), Code::invalid);
  request = good;
  request.inside.latency_us = std::nan("");
  EXPECT_EQ(choose(request).status().code(), Code::invalid);
}

TEST(Choose, breaks_ties_by_the_order_of_kinds) {
  const auto host_groups = hosts(1, 2);  // with two ranks, all kinds of reduce_scatter are the same schedule
  auto request = on_one_host(64 << 20, host_groups);
  request.collective = Collective::reduce_scatter;
  const auto choice = must_choose(request);
  EXPECT_EQ(choice.kind, direct) << choice.reason;
}

TEST(Choose, adds_both_tensors_at_once_on_two_ranks_that_share_memory_unless_they_are_large) {
  // In one_shot, a rank reads its own tensor twice, to send it and to add it. A two_step writes as many bytes and reads fewer,
  // but it takes two rounds.
  for (const uint64_t bytes : {uint64_t{1} << 10, uint64_t{64} << 10}) {
    EXPECT_EQ(must_choose(on_one_host(bytes, hosts(1, 2))).kind, one_shot) << bytes;
  }
  for (const uint64_t bytes : {uint64_t{4} << 20, uint64_t{64} << 20}) {
    EXPECT_EQ(must_choose(on_one_host(bytes, hosts(1, 2))).kind, two_step) << bytes;
  }
}

// In shared memory, a message is expensive if its receiver must first be scheduled. A payload is cheap if several ranks of one
// core read it. Both were measured on two cores.
TEST(Choose, sends_everything_to_everyone_at_once_where_ranks_share_cores_and_memory) {
  for (const uint32_t ranks : {4u, 8u, 16u}) {
    const auto host_groups = hosts(1, ranks);
    const auto chosen = [&](Collective collective, uint64_t bytes) {
      auto request = on_one_host(bytes, host_groups);
      request.collective = collective;
      request.inside = shared_memory_profile(2);
      return must_choose(request).kind;
    };
    EXPECT_EQ(chosen(Collective::all_reduce, 1 << 10), one_shot) << ranks;
    EXPECT_EQ(chosen(Collective::all_reduce, 64 << 10), one_shot) << ranks;
    EXPECT_EQ(chosen(Collective::all_reduce, 4 << 20), two_step) << ranks;
    EXPECT_EQ(chosen(Collective::broadcast, 64 << 10), direct) << ranks;
  }
}

TEST(Choose, accepts_tensors_of_zero_bytes_and_of_the_largest_size) {
  const auto host_groups = hosts(2, 3);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, ~uint64_t{0}}) {
    auto request = on_one_host(bytes, host_groups);
    request.is_16_bit_float = true;
    EXPECT_NE(must_choose(request).kind, automatic);
  }
}

TEST(Choose, a_world_of_one_costs_nothing) {
  const auto host_groups = hosts(1, 1);
  const auto choice = must_choose(on_one_host(1 << 20, host_groups));
  EXPECT_EQ(choice.predicted_us, 0);
  EXPECT_TRUE(make_schedule({.kind = choice.kind, .world = 1})->steps.empty());
}

TEST(Choose, lists_every_kind_with_its_prediction) {
  const auto host_groups = hosts(1, 4);
  const auto choice = must_choose(on_one_host(1 << 20, host_groups));
  ASSERT_EQ(choice.candidate_count, kinds_of(Collective::all_reduce).size());
  for (uint32_t i = 0; i < choice.candidate_count; ++i) EXPECT_GT(choice.candidates[i].predicted_us, 0);
  EXPECT_NE(choice.candidates[4].excluded, nullptr);  // hierarchical, excluded because there is one host group
}

}  // namespace
}  // namespace unisono
