// The engine over in-memory links: every collective computes the right values, and every failure ends with an error that names
// its cause.
#include "engine/engine.h"

#include <cstring>
#include <functional>

#include "base/random.h"
#include "engine/engine_test_support.h"

namespace unisono {
namespace {

using test::element;
using test::expect_nothing_held;
using test::expect_ok;
using test::in;
using test::Ints;
using test::out;
using test::sums;
using test::test_values;

constexpr size_t counts[] = {0, 1, 5, 1000, 20011};

TEST(Engine, all_reduce_sums_with_every_schedule_in_and_out_of_place_in_any_order_of_frames) {
  for (const uint32_t world : {1u, 2u, 3u, 4u, 7u}) {
    for (const auto kind : {ScheduleKind::ring, ScheduleKind::two_step, ScheduleKind::halving_doubling,
                            ScheduleKind::hierarchical, ScheduleKind::one_shot}) {
      for (const auto count : counts) {
        TestCluster cluster(world, {.seed = count + world, .delay = 0.1, .reorder = 0.3});
        const CallOptions options{.order = Order::any, .schedule = kind, .slice_bytes = 4096};
        std::vector<Ints> given(world), got(world);
        std::vector<std::shared_ptr<Completion>> done;
        for (Rank r = 0; r < world; ++r) {
          given[r] = test_values(r, count);
          got[r] = r % 2 == 0 ? given[r] : Ints(count, -1);
          done.push_back(cluster.submit(
              r,
              all_reduce_call(cluster.caller(r), r % 2 == 0 ? ConstTensor(out(got[r])) : in(given[r]), out(got[r]), options)));
        }
        cluster.finish(done);
        expect_ok(done);
        for (Rank r = 0; r < world; ++r)
          ASSERT_EQ(got[r], sums(world, count)) << name(kind) << " world " << world << " count " << count << " rank " << r;
        expect_nothing_held(cluster);
      }
    }
  }
}

// The transport gives memory back only if it is asked for it.
TEST(Engine, operations_ask_for_the_memory_of_their_messages_when_nothing_else_is_left) {
  for (const uint32_t world : {2u, 3u, 4u}) {
    for (const auto kind : {ScheduleKind::ring, ScheduleKind::two_step, ScheduleKind::halving_doubling,
                            ScheduleKind::hierarchical, ScheduleKind::one_shot}) {
      for (const bool in_place : {false, true}) {
        TestCluster cluster(world, {.seed = world, .reorder = 0.3, .keeps_memory = true});
        std::vector<Ints> given(world), got(world);
        std::vector<std::shared_ptr<Completion>> done;
        for (Rank r = 0; r < world; ++r) {
          given[r] = test_values(r, 5000);
          got[r] = in_place ? given[r] : Ints(5000, -1);
          done.push_back(
              cluster.submit(r, all_reduce_call(cluster.caller(r), in_place ? ConstTensor(out(got[r])) : in(given[r]),
                                                out(got[r]), {.schedule = kind, .slice_bytes = 4096})));
        }
        cluster.finish(done);
        expect_ok(done);
        for (Rank r = 0; r < world; ++r)
          ASSERT_EQ(got[r], sums(world, 5000)) << name(kind) << " world " << world << " rank " << r;
        expect_nothing_held(cluster);
      }
    }
  }
}

TEST(Engine, before_a_rank_sleeps_it_asks_for_the_memory_of_its_messages_although_it_also_waits_for_others) {
  TestCluster cluster(3, {.keeps_memory = true});
  const auto given = test_values(0, 3000);
  Ints got(3000);
  cluster.submit(0, all_reduce_call(cluster.caller(0), in(given), out(got), {.schedule = ScheduleKind::two_step}));
  cluster.settle();
  ASSERT_EQ(cluster.transport(0).kept_sends(), 2u);
  cluster.engine(0).prepare_to_sleep();
  cluster.settle();
  EXPECT_EQ(cluster.transport(0).kept_sends(), 0u);
}

TEST(Engine, a_report_names_the_links_that_were_connected_anew_during_its_operation) {
  TestCluster cluster(3);
  int32_t value = 0;
  const auto waits = cluster.submit(
      0, message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, 2, {.timeout = Milliseconds(50)}), 1);
  cluster.engine(0).noticed(2, EventKind::reconnected, "reconnected to it after 0.3 s: connection reset by peer");
  cluster.engine(0).noticed(1, EventKind::smaller_datagrams, "datagrams to it are now 1200 bytes");
  const std::string both = "reconnected to it after 0.3 s: connection reset by peer; rank 1";
  cluster.engine(0).noticed(1, EventKind::reconnected, "reconnected to it after 0.1 s");
  const auto note = cluster.engine(0).report(*waits, cluster.now()).link_note;
  EXPECT_EQ(note.find("rank 2 ("), 0u) << note;
  EXPECT_NE(note.find(both), std::string::npos) << note;
  EXPECT_EQ(note.find("datagrams"), std::string::npos) << note;
  cluster.advance(50 * millisecond);
  cluster.settle();
  ASSERT_TRUE(waits->done);
  EXPECT_EQ(waits->report.link_note, note);
  const auto next = cluster.submit(
      0, message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, 2, {.timeout = Milliseconds(50)}), 2);
  EXPECT_EQ(cluster.engine(0).report(*next, cluster.now()).link_note, "") << "a slot is used again";
}

TEST(Engine, sums_in_rank_order_do_not_depend_on_schedule_slices_or_order_of_frames) {
  constexpr uint32_t world = 5;
  constexpr size_t count = 3001;
  std::vector<float> expected;
  for (const uint64_t slice : {64u, 4096u, 1u << 20}) {
    for (const auto kind : {ScheduleKind::one_shot, ScheduleKind::two_step}) {
      TestCluster cluster(world, {.seed = slice, .reorder = 0.5});
      std::vector<std::vector<float>> values(world, std::vector<float>(count));
      std::vector<std::shared_ptr<Completion>> done;
      for (Rank r = 0; r < world; ++r) {
        unisono::Random random(r);
        for (auto& v : values[r]) v = static_cast<float>(random.unit() * 2 - 1) * static_cast<float>(1 << random.below(20));
      }
      if (expected.empty()) {
        expected = values[0];
        for (Rank r = 1; r < world; ++r) {
          for (size_t i = 0; i < count; ++i) expected[i] += values[r][i];
        }
      }
      for (Rank r = 0; r < world; ++r) {
        const Tensor tensor{std::span<float>(values[r])};
        done.push_back(
            cluster.submit(r, all_reduce_call(cluster.caller(r), tensor, tensor,
                                              {.order = Order::in_rank_order, .schedule = kind, .slice_bytes = slice})));
      }
      cluster.finish(done);
      expect_ok(done);
      for (Rank r = 0; r < world; ++r)
        ASSERT_EQ(std::memcmp(values[r].data(), expected.data(), count * sizeof(float)), 0) << name(kind) << " rank " << r;
    }
  }
}

TEST(Engine, reduce_scatter_and_all_gather_work_with_even_and_uneven_blocks) {
  for (const uint32_t world : {1u, 2u, 3u, 5u}) {
    for (const bool uneven : {false, true}) {
      for (const bool in_place : {false, true}) {
        std::vector<size_t> sizes(world, 501);
        if (uneven)
          for (Rank r = 0; r < world; ++r) sizes[r] = r * 333 % 700;
        const auto total = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
        TestCluster cluster(world, {.seed = world, .reorder = 0.3});
        std::vector<Ints> whole(world), block(world);
        std::vector<std::shared_ptr<Completion>> done;
        const Counts given = uneven ? Counts(sizes) : Counts();
        for (Rank r = 0; r < world; ++r) {
          whole[r] = test_values(r, total);
          block[r].resize(sizes[r]);
          done.push_back(
              cluster.submit(r, reduce_scatter_call(cluster.caller(r), in(whole[r]), in_place ? out(whole[r]) : out(block[r]),
                                                    given, in_place, {.slice_bytes = 512})));
        }
        cluster.finish(done);
        expect_ok(done);
        const auto expected = sums(world, total);
        size_t begin = 0;
        for (Rank r = 0; r < world; begin += sizes[r++]) {
          const auto* got = in_place ? whole[r].data() + begin : block[r].data();
          ASSERT_TRUE(std::equal(got, got + sizes[r], expected.begin() + static_cast<ptrdiff_t>(begin))) << "rank " << r;
          block[r].assign(got, got + sizes[r]);
        }
        done.clear();
        std::vector<Ints> all(world, Ints(total, -1));
        begin = 0;
        for (Rank r = 0; r < world; begin += sizes[r++]) {
          if (in_place) std::copy(block[r].begin(), block[r].end(), all[r].begin() + static_cast<ptrdiff_t>(begin));
          done.push_back(cluster.submit(r, all_gather_call(cluster.caller(r), in_place ? in(all[r]) : in(block[r]), out(all[r]),
                                                           given, in_place, {.slice_bytes = 512})));
        }
        cluster.finish(done);
        expect_ok(done);
        for (Rank r = 0; r < world; ++r) ASSERT_EQ(all[r], expected) << "rank " << r;
        expect_nothing_held(cluster);
      }
    }
  }
}

TEST(Engine, rooted_collectives_work_from_every_root) {
  for (const uint32_t world : {1u, 2u, 5u}) {
    for (Rank root = 0; root < world; ++root) {
      for (const auto kind : {ScheduleKind::tree, ScheduleKind::direct}) {
        TestCluster cluster(world, {.seed = root, .reorder = 0.3});
        constexpr size_t count = 1003;
        std::vector<Ints> a(world), b(world), c(world);
        std::vector<std::shared_ptr<Completion>> done;
        for (Rank r = 0; r < world; ++r) {
          a[r] = r == root ? test_values(root, count) : Ints(count, -1);
          b[r] = test_values(r, count);
          c[r].resize(r == root ? count : 0);
          const CallOptions options{.order = Order::any, .schedule = kind, .slice_bytes = 512};
          done.push_back(cluster.submit(r, broadcast_call(cluster.caller(r), out(a[r]), root, options)));
          done.push_back(cluster.submit(r, reduce_call(cluster.caller(r), in(b[r]), out(c[r]), root, options)));
        }
        cluster.finish(done);
        expect_ok(done);
        for (Rank r = 0; r < world; ++r) ASSERT_EQ(a[r], test_values(root, count));
        ASSERT_EQ(c[root], sums(world, count));
      }
    }
  }
}

TEST(Engine, averages_are_divided_exactly_once_with_every_schedule_of_a_reduce) {
  constexpr uint32_t world = 5, root = 2;
  constexpr size_t count = 1003;
  for (const auto kind :
       {ScheduleKind::direct, ScheduleKind::two_step, ScheduleKind::tree, ScheduleKind::halving_doubling, ScheduleKind::ring}) {
    TestCluster cluster(world);
    std::vector<Ints> given(world), got(world);
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < world; ++r) {
      given[r] = test_values(r, count);
      got[r].resize(count);
      done.push_back(cluster.submit(r, reduce_call(cluster.caller(r), in(given[r]), out(got[r]), root,
                                                   {.op = ReduceOp::avg, .order = Order::any, .schedule = kind})));
    }
    cluster.finish(done);
    expect_ok(done);
    auto expected = sums(world, count);
    for (auto& value : expected) value /= static_cast<int32_t>(world);
    ASSERT_EQ(got[root], expected) << name(kind);
  }
}

TEST(Engine, gather_and_scatter_work_with_block_sizes_that_only_the_root_knows) {
  constexpr uint32_t world = 4;
  const std::vector<size_t> sizes{3, 0, 1000, 17};
  const auto total = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  for (Rank root = 0; root < world; ++root) {
    TestCluster cluster(world);
    std::vector<Ints> block(world), back(world);
    Ints whole(total, -1);
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < world; ++r) {
      block[r] = test_values(r, sizes[r]);
      done.push_back(cluster.submit(r, gather_call(cluster.caller(r), in(block[r]), r == root ? out(whole) : Tensor(), root,
                                                   r == root ? Counts(sizes) : Counts(), {.slice_bytes = 256})));
    }
    cluster.finish(done);
    expect_ok(done);
    done.clear();
    for (Rank r = 0; r < world; ++r) {
      back[r].resize(sizes[r]);
      done.push_back(cluster.submit(r, scatter_call(cluster.caller(r), r == root ? in(whole) : ConstTensor(), out(back[r]),
                                                    root, r == root ? Counts(sizes) : Counts(), {.slice_bytes = 256})));
    }
    cluster.finish(done);
    expect_ok(done);
    EXPECT_EQ(back, block) << "root " << root;
  }
}

// A rank's own blocks may all have one size while other ranks' blocks differ. The rank need not know that.
TEST(Engine, all_to_all_works_in_place_and_with_sizes_per_pair) {
  constexpr uint32_t world = 3;
  const auto mixed = [](Rank from, Rank to) -> size_t { return (from * 5 + to * 3) % 7 * 100; };
  const auto alike_for_one = [](Rank from, Rank to) -> size_t {
    return from == 0 || to == 0 ? 200 : (from * 2 + to) % 4 * 100;
  };
  for (const auto& size : {std::function<size_t(Rank, Rank)>(mixed), std::function<size_t(Rank, Rank)>(alike_for_one)}) {
    TestCluster cluster(world, {.seed = 3, .reorder = 0.3});
    constexpr size_t block = 700;
    std::vector<Ints> data(world), uneven_in(world), uneven_out(world);
    std::vector<std::vector<size_t>> send(world), recv(world);
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < world; ++r) {
      data[r] = test_values(r, block * world);
      for (Rank p = 0; p < world; ++p) send[r].push_back(size(r, p)), recv[r].push_back(size(p, r));
      uneven_in[r] = test_values(r, std::accumulate(send[r].begin(), send[r].end(), size_t{0}));
      uneven_out[r].resize(std::accumulate(recv[r].begin(), recv[r].end(), size_t{0}));
      done.push_back(
          cluster.submit(r, all_to_all_call(cluster.caller(r), in(data[r]), out(data[r]), {}, {}, {.slice_bytes = 512})));
      done.push_back(cluster.submit(
          r, all_to_all_call(cluster.caller(r), in(uneven_in[r]), out(uneven_out[r]), send[r], recv[r], {.slice_bytes = 512})));
    }
    cluster.finish(done);
    expect_ok(done);
    for (Rank r = 0; r < world; ++r) {
      Ints expected, uneven;
      for (Rank p = 0; p < world; ++p) {
        const auto even_block = test_values(p, block, block * r);
        expected.insert(expected.end(), even_block.begin(), even_block.end());
        const auto begin = std::accumulate(send[p].begin(), send[p].begin() + r, size_t{0});
        const auto piece = test_values(p, recv[r][p], begin);
        uneven.insert(uneven.end(), piece.begin(), piece.end());
      }
      EXPECT_EQ(data[r], expected) << "rank " << r;
      EXPECT_EQ(uneven_out[r], uneven) << "rank " << r;
    }
  }
}

TEST(Engine, messages_match_by_tag_in_order_whichever_side_calls_first) {
  TestCluster cluster(2);
  Ints big = test_values(0, 500'000), small = test_values(1, 3), got_big(big.size()), got_small(3), second(3), got_second(3);
  second = test_values(5, 3);
  std::vector<std::shared_ptr<Completion>> done;
  const auto message = [&](Rank r, Collective c, ConstTensor i, Tensor o, uint32_t tag) {
    done.push_back(cluster.submit(r, message_call(cluster.caller(r), c, i, o, 1 - r, {}), tag));
    cluster.settle();
  };
  constexpr uint32_t one = 0x7FFF, other = UINT32_MAX;
  message(0, Collective::send, in(big), {}, one);
  message(0, Collective::send, in(small), {}, other);
  message(0, Collective::send, in(second), {}, other);
  message(1, Collective::recv, {}, out(got_small), other);
  message(1, Collective::recv, {}, out(got_second), other);
  message(1, Collective::recv, {}, out(got_big), one);
  cluster.finish(done);
  expect_ok(done);
  EXPECT_EQ(got_big, big);
  EXPECT_EQ(got_small, small);
  EXPECT_EQ(got_second, second);
  expect_nothing_held(cluster);
}

TEST(Engine, operations_with_ids_match_in_any_order_of_calls) {
  constexpr uint32_t world = 3;
  constexpr size_t operations = 12, count = 100'003;
  TestCluster cluster(world, {.seed = 9, .reorder = 0.2});
  std::vector<std::vector<Ints>> data(world);
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < world; ++r) {
    for (size_t i = 0; i < operations; ++i) data[r].push_back(test_values(r + static_cast<Rank>(i), count));
  }
  for (Rank r = 0; r < world; ++r) {
    for (size_t i = 0; i < operations; ++i) {
      const auto k = (i * 5 + r * 7) % operations;
      done.push_back(
          cluster.submit(r, all_reduce_call(cluster.caller(r), in(data[r][k]), out(data[r][k]), {.id = k + 1}), k + 1));
      if (i % 3 == r) cluster.settle();
    }
  }
  cluster.finish(done);
  expect_ok(done);
  for (size_t k = 0; k < operations; ++k) {
    Ints expected(count);
    for (Rank r = 0; r < world; ++r)
      for (size_t i = 0; i < count; ++i) expected[i] += element(r + static_cast<Rank>(k), i);
    for (Rank r = 0; r < world; ++r) ASSERT_EQ(data[r][k], expected) << "operation " << k << " rank " << r;
  }
  expect_nothing_held(cluster);
}

TEST(Engine, subgroups_work_beside_their_parent) {
  TestCluster cluster(4);
  const std::vector<Rank> members{3, 1};
  std::vector<Ints> parent(4), sub(4);
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < 4; ++r) {
    parent[r] = test_values(r, 1000);
    done.push_back(cluster.submit(r, all_reduce_call(cluster.caller(r), in(parent[r]), out(parent[r]), {})));
    if (r % 2 == 0) continue;
    auto& group = cluster.make_group(r, 99, members, {0, 0});
    sub[r] = test_values(r, 1000);
    done.push_back(cluster.submit(r, group, all_reduce_call({group.self, 2, second}, in(sub[r]), out(sub[r]), {})));
  }
  cluster.finish(done);
  expect_ok(done);
  for (Rank r = 0; r < 4; ++r) EXPECT_EQ(parent[r], sums(4, 1000));
  for (size_t i = 0; i < 1000; ++i) ASSERT_EQ(sub[1][i], element(1, i) + element(3, i));
  EXPECT_EQ(sub[1], sub[3]);
}

}  // namespace
}  // namespace unisono
