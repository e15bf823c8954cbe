// The engine over links in memory: every collective gives the right values, and failures end with a name.
#include "engine/engine.h"

#include <cstring>
#include <functional>

#include "base/random.h"
#include "engine/test_cluster.h"

namespace unisono {
namespace {

using Ints = std::vector<int32_t>;

int32_t element(Rank rank, size_t i) { return static_cast<int32_t>((i * 7 + rank * 13) % 1009) - 300; }

Ints made(Rank rank, size_t count, size_t offset = 0) {
  Ints values(count);
  for (size_t i = 0; i < count; ++i) values[i] = element(rank, offset + i);
  return values;
}

Ints sums(uint32_t world, size_t count) {
  Ints values(count);
  for (Rank r = 0; r < world; ++r) {
    for (size_t i = 0; i < count; ++i) values[i] += element(r, i);
  }
  return values;
}

ConstTensor in(const Ints& v) { return std::span<const int32_t>(v); }
Tensor out(Ints& v) { return std::span<int32_t>(v); }

void expect_ok(const std::vector<std::shared_ptr<Completion>>& done) {
  for (size_t r = 0; r < done.size(); ++r) {
    ASSERT_TRUE(done[r]->done) << "rank " << r;
    ASSERT_TRUE(done[r]->status.ok()) << "rank " << r << ": " << done[r]->status.to_string();
  }
}

void expect_nothing_held(TestCluster& cluster) {
  for (Rank r = 0; r < cluster.world(); ++r)
    EXPECT_EQ(cluster.engine(r).held_bytes() + cluster.engine(r).in_flight_bytes(), 0u) << "rank " << r;
}

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
          given[r] = made(r, count);
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

TEST(Engine, reduce_scatter_and_all_gather_with_even_and_uneven_blocks) {
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
          whole[r] = made(r, total);
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

TEST(Engine, rooted_collectives_from_every_root) {
  for (const uint32_t world : {1u, 2u, 5u}) {
    for (Rank root = 0; root < world; ++root) {
      for (const auto kind : {ScheduleKind::tree, ScheduleKind::direct}) {
        TestCluster cluster(world, {.seed = root, .reorder = 0.3});
        constexpr size_t count = 1003;
        std::vector<Ints> a(world), b(world), c(world);
        std::vector<std::shared_ptr<Completion>> done;
        for (Rank r = 0; r < world; ++r) {
          a[r] = r == root ? made(root, count) : Ints(count, -1);
          b[r] = made(r, count);
          c[r].resize(r == root ? count : 0);
          const CallOptions options{.order = Order::any, .schedule = kind, .slice_bytes = 512};
          done.push_back(cluster.submit(r, broadcast_call(cluster.caller(r), out(a[r]), root, options)));
          done.push_back(cluster.submit(r, reduce_call(cluster.caller(r), in(b[r]), out(c[r]), root, options)));
        }
        cluster.finish(done);
        expect_ok(done);
        for (Rank r = 0; r < world; ++r) ASSERT_EQ(a[r], made(root, count));
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
      given[r] = made(r, count);
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

TEST(Engine, gather_and_scatter_blocks_whose_sizes_only_root_knows) {
  constexpr uint32_t world = 4;
  const std::vector<size_t> sizes{3, 0, 1000, 17};
  const auto total = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  for (Rank root = 0; root < world; ++root) {
    TestCluster cluster(world);
    std::vector<Ints> block(world), back(world);
    Ints whole(total, -1);
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < world; ++r) {
      block[r] = made(r, sizes[r]);
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

// Where one rank's blocks are all alike, it need not know that those of the others are not.
TEST(Engine, all_to_all_in_place_and_with_sizes_per_pair) {
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
      data[r] = made(r, block * world);
      for (Rank p = 0; p < world; ++p) send[r].push_back(size(r, p)), recv[r].push_back(size(p, r));
      uneven_in[r] = made(r, std::accumulate(send[r].begin(), send[r].end(), size_t{0}));
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
        const auto even_block = made(p, block, block * r);
        expected.insert(expected.end(), even_block.begin(), even_block.end());
        const auto begin = std::accumulate(send[p].begin(), send[p].begin() + r, size_t{0});
        const auto piece = made(p, recv[r][p], begin);
        uneven.insert(uneven.end(), piece.begin(), piece.end());
      }
      EXPECT_EQ(data[r], expected) << "rank " << r;
      EXPECT_EQ(uneven_out[r], uneven) << "rank " << r;
    }
  }
}

TEST(Engine, messages_match_by_tag_in_order_whoever_comes_first) {
  TestCluster cluster(2);
  Ints big = made(0, 500'000), small = made(1, 3), got_big(big.size()), got_small(3), second(3), got_second(3);
  second = made(5, 3);
  std::vector<std::shared_ptr<Completion>> done;
  const auto message = [&](Rank r, Collective c, ConstTensor i, Tensor o, uint32_t tag) {
    done.push_back(cluster.submit(r, message_call(cluster.caller(r), c, i, o, 1 - r, tag, {}), tag));
    cluster.settle();
  };
  message(0, Collective::send, in(big), {}, 1);
  message(0, Collective::send, in(small), {}, 2);
  message(0, Collective::send, in(second), {}, 2);
  message(1, Collective::recv, {}, out(got_small), 2);
  message(1, Collective::recv, {}, out(got_second), 2);
  message(1, Collective::recv, {}, out(got_big), 1);
  cluster.finish(done);
  expect_ok(done);
  EXPECT_EQ(got_big, big);
  EXPECT_EQ(got_small, small);
  EXPECT_EQ(got_second, second);
  expect_nothing_held(cluster);
}

TEST(Engine, operations_with_numbers_match_whatever_the_order_of_calls) {
  constexpr uint32_t world = 3;
  constexpr size_t operations = 12, count = 100'003;
  TestCluster cluster(world, {.seed = 9, .reorder = 0.2});
  std::vector<std::vector<Ints>> data(world);
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < world; ++r) {
    for (size_t i = 0; i < operations; ++i) data[r].push_back(made(r + static_cast<Rank>(i), count));
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
    parent[r] = made(r, 1000);
    done.push_back(cluster.submit(r, all_reduce_call(cluster.caller(r), in(parent[r]), out(parent[r]), {})));
    if (r % 2 == 0) continue;
    auto& group = cluster.make_group(r, 99, members, {0, 0});
    sub[r] = made(r, 1000);
    done.push_back(cluster.submit(r, group, all_reduce_call({group.self, 2, second}, in(sub[r]), out(sub[r]), {})));
  }
  cluster.finish(done);
  expect_ok(done);
  for (Rank r = 0; r < 4; ++r) EXPECT_EQ(parent[r], sums(4, 1000));
  for (size_t i = 0; i < 1000; ++i) ASSERT_EQ(sub[1][i], element(1, i) + element(3, i));
  EXPECT_EQ(sub[1], sub[3]);
}

struct WrongCall {
  const char* what;
  std::function<Result<OperationRequest>(const Caller&, Ints&)> right, wrong;
  const char* says;
};

TEST(Engine, calls_that_differ_are_named_on_every_rank) {
  const auto reduce_of = [](size_t count, ReduceOp op) {
    return [=](const Caller& c, Ints& v) {
      return all_reduce_call(c, {v.data(), count, DType::i32}, {v.data(), count, DType::i32}, {.op = op});
    };
  };
  const auto agreeing_on = [](size_t count, uint64_t agreement) {
    return [=](const Caller& c, Ints& v) {
      return all_reduce_call(c, {v.data(), count, DType::i32}, {v.data(), count, DType::i32}, {.agreement = agreement});
    };
  };
  const std::vector<WrongCall> cases{
      {"agreement", agreeing_on(1000, 17), agreeing_on(1000, 18), "agree on (CallOptions::agreement)"},
      {"agreement in a short sum", agreeing_on(3, 1), agreeing_on(3, uint64_t{1} << 63), "agree on (CallOptions::agreement)"},
      {"agreement against none", agreeing_on(1000, 17), agreeing_on(1000, 0), "agree on (CallOptions::agreement)"},
      {"size", reduce_of(1000, ReduceOp::sum), reduce_of(999, ReduceOp::sum), "999 elements"},
      {"operation", reduce_of(1000, ReduceOp::sum), reduce_of(1000, ReduceOp::max), "max"},
      {"type", reduce_of(1000, ReduceOp::sum),
       [](const Caller& c, Ints& v) {
         return all_reduce_call(c, {v.data(), 1000, DType::f32}, {v.data(), 1000, DType::f32}, {});
       },
       "f32"},
      {"collective", reduce_of(1000, ReduceOp::sum), [](const Caller& c, Ints&) { return barrier_call(c, {}); }, "barrier"},
      {"empty", reduce_of(0, ReduceOp::sum), reduce_of(5, ReduceOp::sum), "elements"}};
  for (const auto& wrong : cases) {
    TestCluster cluster(3);
    std::vector<Ints> data(3, Ints(1000));
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < 3; ++r)
      done.push_back(
          cluster.submit(r, r == 1 ? wrong.wrong(cluster.caller(r), data[r]) : wrong.right(cluster.caller(r), data[r])));
    cluster.finish(done);
    for (Rank r = 0; r < 3; ++r) {
      ASSERT_TRUE(done[r]->done) << wrong.what;
      EXPECT_EQ(done[r]->status.code(), Code::invalid) << wrong.what << ": " << done[r]->status.to_string();
      EXPECT_NE(done[r]->status.message().find(wrong.says), std::string::npos)
          << wrong.what << ": " << done[r]->status.to_string();
    }
    expect_nothing_held(cluster);
  }
}

TEST(Engine, two_roots_of_one_broadcast_are_found_by_the_next_call) {
  TestCluster cluster(3);
  std::vector<Ints> data(3, Ints(1000));
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < 3; ++r)
    done.push_back(cluster.submit(r, broadcast_call(cluster.caller(r), out(data[r]), r == 1 ? 1 : 0, {})));
  cluster.finish(done);
  done.clear();
  for (Rank r = 0; r < 3; ++r) done.push_back(cluster.submit(r, barrier_call(cluster.caller(r), {})));
  cluster.finish(done);
  for (Rank r = 0; r < 2; ++r) {
    EXPECT_EQ(done[r]->status.code(), Code::invalid) << done[r]->status.to_string();
    EXPECT_NE(done[r]->status.message().find("calls differ"), std::string::npos) << done[r]->status.to_string();
  }
}

TEST(Engine, a_rank_that_does_not_call_is_named_at_the_deadline) {
  TestCluster cluster(3);
  std::vector<Ints> data(3, Ints(100'000));
  std::vector<std::shared_ptr<Completion>> done;
  for (const Rank r : {0u, 1u})
    done.push_back(
        cluster.submit(r, all_reduce_call(cluster.caller(r), in(data[r]), out(data[r]), {.timeout = Milliseconds(50)})));
  cluster.finish(done);
  for (const auto& completion : done) {
    EXPECT_EQ(completion->status.code(), Code::late) << completion->status.to_string();
    EXPECT_NE(completion->status.message().find("rank 2 (process 2) has sent nothing"), std::string::npos)
        << completion->status.to_string();
    EXPECT_LE(completion->report.total_us, 50'000 + inquiry_time / microsecond + 2'000);
  }
  for (const Rank r : {0u, 1u}) EXPECT_EQ(cluster.engine(r).held_bytes() + cluster.engine(r).in_flight_bytes(), 0u);
}

TEST(Engine, a_rank_that_dies_is_named_and_later_calls_are_refused) {
  TestCluster cluster(3);
  std::vector<Ints> data(3, Ints(100'000));
  std::vector<std::shared_ptr<Completion>> done;
  for (const Rank r : {0u, 1u})
    done.push_back(cluster.submit(r, all_reduce_call(cluster.caller(r), in(data[r]), out(data[r]), {})));
  cluster.settle();
  cluster.hub().kill(2);
  cluster.settle();
  for (const auto& completion : done) {
    ASSERT_TRUE(completion->done);
    EXPECT_EQ(completion->status.code(), Code::peer_lost);
    EXPECT_NE(completion->status.message().find("rank 2 was lost"), std::string::npos) << completion->status.to_string();
  }
  const auto refused = cluster.submit(0, barrier_call(cluster.caller(0), {}));
  EXPECT_TRUE(refused->done);
  EXPECT_EQ(refused->status.code(), Code::peer_lost);
  EXPECT_NE(refused->status.message().find("reform"), std::string::npos);
}

TEST(Engine, an_operation_reports_what_it_has_done_so_far) {
  TestCluster cluster(2);
  std::vector<Ints> data(2, Ints(1000));
  const auto reduce = [&](Rank r) {
    return cluster.submit(r, all_reduce_call(cluster.caller(r), in(data[r]), out(data[r]), {}));
  };
  auto before = std::vector{reduce(0), reduce(1)};
  cluster.finish(before);
  EXPECT_EQ(cluster.engine(0).report(*before[0], cluster.now()).received_messages, 1u);
  cluster.engine(0).reuse(std::exchange(before[0], nullptr));
  int32_t value = 0;
  const auto waits =
      cluster.submit(0, message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, 1, 1, {}), 1);
  cluster.pass(3 * millisecond);
  const auto report = cluster.engine(0).report(*waits, cluster.now());
  EXPECT_EQ(report.operation, "recv");
  EXPECT_EQ(report.received_messages, 0u);
  EXPECT_EQ(report.total_us, 3000);
}

TEST(Engine, whom_a_late_rank_waits_for_is_not_believed_from_half_a_list) {
  TestCluster cluster(3);
  Ints data(1000);
  const auto waits = cluster.submit(0, all_reduce_call(cluster.caller(0), in(data), out(data), {}));
  Bytes list = std::move(ByteWriter()
                             .write(static_cast<uint8_t>(Code::late))
                             .write_string("its deadline has passed")
                             .write(uint64_t{1})
                             .write(uint32_t{2})
                             .write(uint32_t{0}))
                   .take();
  const FrameHeader header{.kind = FrameKind::failed,
                           .epoch = 7,
                           .group = 1,
                           .operation = cluster.group(0).numbers.next() - 1,
                           .sender = 1,
                           .payload_bytes = static_cast<uint32_t>(list.size())};
  cluster.engine(0).received(1, header, {.data = list.data(), .bytes = list.size()});
  EXPECT_EQ(cluster.engine(0).counters().frames_refused, 1u);
  EXPECT_FALSE(waits->done);
}

TEST(Engine, what_a_rank_sent_before_it_left_is_enough) {
  TestCluster cluster(3);
  std::vector<Ints> data(3, Ints(1000));
  data[1] = made(1, 1000);
  const auto call = [&](Rank r) {
    return cluster.submit(r, broadcast_call(cluster.caller(r), out(data[r]), 1, {.schedule = ScheduleKind::direct}));
  };
  std::vector<std::shared_ptr<Completion>> done{call(1)};
  cluster.settle();
  cluster.hub().kill(1);
  cluster.settle();
  for (const Rank r : {0u, 2u}) done.push_back(call(r));
  cluster.finish(done);
  expect_ok(done);
  for (const Rank r : {0u, 2u}) EXPECT_EQ(data[r], made(1, 1000));
}

TEST(Engine, duplicated_and_cut_frames_are_refused_not_added_twice) {
  for (const bool duplicate : {true, false}) {
    TestCluster cluster(2, {.seed = 4, .duplicate = duplicate ? 0.5 : 0, .cut = duplicate ? 0 : 0.5});
    std::vector<Ints> data{made(0, 200'000), made(1, 200'000)};
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < 2; ++r)
      done.push_back(cluster.submit(r, all_reduce_call(cluster.caller(r), in(data[r]), out(data[r]), {.slice_bytes = 4096})));
    cluster.finish(done);
    for (Rank r = 0; r < 2; ++r) {
      ASSERT_TRUE(done[r]->done);
      if (done[r]->status.ok()) EXPECT_EQ(data[r], sums(2, 200'000));
      else EXPECT_EQ(done[r]->status.code(), Code::invalid) << done[r]->status.to_string();
    }
    EXPECT_FALSE(done[0]->status.ok() && done[1]->status.ok());
  }
}

TEST(Engine, memory_for_what_arrives_too_early_is_bounded_by_the_eager_limit) {
  TestCluster cluster(2);
  std::vector<Ints> data{made(0, 4'000'000), made(1, 4'000'000)};
  std::vector<std::shared_ptr<Completion>> done;
  done.push_back(cluster.submit(0, all_reduce_call(cluster.caller(0), in(data[0]), out(data[0]), {})));
  cluster.settle();
  EXPECT_LE(cluster.engine(1).held_bytes(), FlowLimits{}.eager_bytes + 8192);  // a grant comes with it
  done.push_back(cluster.submit(1, all_reduce_call(cluster.caller(1), in(data[1]), out(data[1]), {})));
  cluster.finish(done);
  expect_ok(done);
  EXPECT_EQ(data[0], sums(2, 4'000'000));
  expect_nothing_held(cluster);
}

}  // namespace
}  // namespace unisono
