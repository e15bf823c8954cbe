#include "group/api/calls.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

constexpr Caller caller{.self = 1, .world = 3, .timeout = second};
float data[12];
const Tensor six{data, 6, DType::f32};

void expect_invalid(const Result<OperationRequest>& request, const std::string& expected_text) {
  ASSERT_FALSE(request.ok());
  EXPECT_EQ(request.status().code(), Code::invalid);
  EXPECT_NE(request.status().message().find(expected_text), std::string::npos) << request.status().to_string();
}

TEST(Calls, all_reduce_requires_equal_sizes_and_types) {
  EXPECT_TRUE(all_reduce_call(caller, six, six, {}).ok());
  expect_invalid(all_reduce_call(caller, six, {data, 5, DType::f32}, {}), "output has 5 elements, expected 6");
  expect_invalid(all_reduce_call(caller, six, {data, 6, DType::i32}, {}), "input is f32, output is i32");
}

TEST(Calls, data_is_needed_unless_there_are_no_elements) {
  expect_invalid(all_reduce_call(caller, {nullptr, 3, DType::f32}, {nullptr, 3, DType::f32}, {}), "no data");
  EXPECT_TRUE(all_reduce_call(caller, {nullptr, 0, DType::f32}, {nullptr, 0, DType::f32}, {}).ok());
}

TEST(Calls, bit_operations_take_integers_only) {
  expect_invalid(all_reduce_call(caller, six, six, {.op = ReduceOp::bxor}), "takes integers");
  EXPECT_TRUE(all_reduce_call(caller, {data, 6, DType::u8}, {data, 6, DType::u8}, {.op = ReduceOp::bxor}).ok());
}

TEST(Calls, sizes_that_overflow_are_refused) {
  const ConstTensor huge{data, SIZE_MAX / 2, DType::f32};
  expect_invalid(all_reduce_call(caller, huge, {data, SIZE_MAX / 2, DType::f32}, {}), "more than memory");
  const std::vector<size_t> counts{SIZE_MAX, SIZE_MAX, 6};
  expect_invalid(all_gather_call({.self = 2, .world = 3}, six, six, counts, false, {}), "overflow");
}

TEST(Calls, blocks_must_fit_the_tensors) {
  const Tensor two{data, 2, DType::f32};
  EXPECT_TRUE(reduce_scatter_call(caller, six, two, {}, false, {}).ok());
  expect_invalid(reduce_scatter_call(caller, six, {data, 3, DType::f32}, {}, false, {}), "input has 6 elements, expected 9");
  expect_invalid(reduce_scatter_call(caller, {data, 7, DType::f32}, {data, 7, DType::f32}, {}, true, {}), "equal blocks");
  const std::vector<size_t> counts{1, 2, 3}, short_counts{1, 2};
  EXPECT_TRUE(reduce_scatter_call(caller, six, two, counts, false, {}).ok());
  expect_invalid(reduce_scatter_call(caller, six, two, short_counts, false, {}), "2 entries for 3 ranks");
  EXPECT_TRUE(all_gather_call(caller, two, six, {}, false, {}).ok());
  expect_invalid(all_gather_call(caller, two, {data, 5, DType::f32}, {}, false, {}), "output has 5");
}

TEST(Calls, a_list_of_equal_sizes_counts_as_no_list) {
  const Tensor two{data, 2, DType::f32};
  const std::vector<size_t> equal{2, 2, 2}, uneven{2, 1, 3}, threes{3, 2, 1}, ones{1, 1, 1};
  const auto is_plain = [](const Result<OperationRequest>& call) {
    return call.ok() && call->send_counts.empty() && call->recv_counts.empty() && call->count == 2;
  };
  EXPECT_TRUE(is_plain(reduce_scatter_call(caller, six, two, equal, false, {})));
  EXPECT_TRUE(is_plain(reduce_scatter_call(caller, six, six, equal, true, {})));
  EXPECT_TRUE(is_plain(all_gather_call(caller, two, six, equal, false, {})));
  EXPECT_TRUE(is_plain(gather_call(caller, two, six, 1, equal, {})));
  EXPECT_TRUE(is_plain(scatter_call(caller, six, two, 1, equal, {})));
  EXPECT_TRUE(is_plain(all_to_all_call(caller, six, six, equal, equal, {}))) << "in place, too";
  const Tensor three{data + 6, 3, DType::f32}, other{data + 6, 6, DType::f32};
  const auto one_way = all_to_all_call(caller, six, other, equal, uneven, {});
  expect_invalid(one_way, "the block for this rank itself");
  const auto not_all = all_to_all_call({.self = 0, .world = 3}, six, other, equal, uneven, {});
  ASSERT_TRUE(not_all.ok()) << not_all.status().to_string();
  EXPECT_EQ(not_all->send_counts, equal);
  EXPECT_EQ(not_all->recv_counts, uneven);
  expect_invalid(all_to_all_call(caller, six, three, equal, ones, {}), "the block for this rank itself");
  expect_invalid(all_to_all_call({.self = 1, .world = 3}, six, six, threes, threes, {}), "in place");
}

TEST(Calls, only_root_needs_an_output_or_counts) {
  EXPECT_TRUE(reduce_call(caller, six, {}, 0, {}).ok());
  expect_invalid(reduce_call(caller, six, {}, 1, {}), "output");
  EXPECT_TRUE(gather_call(caller, six, {}, 0, {}, {}).ok());
  expect_invalid(gather_call(caller, six, six, 1, {}, {}), "output has 6 elements, expected 18");
  EXPECT_TRUE(scatter_call(caller, {}, six, 0, {}, {}).ok());
  expect_invalid(scatter_call(caller, six, six, 1, {}, {}), "input has 6 elements, expected 18");
}

TEST(Calls, ranks_ids_and_slices_are_bounded) {
  expect_invalid(broadcast_call(caller, six, 3, {}), "rank 3 is not in this group of 3");
  expect_invalid(message_call(caller, Collective::send, six, {}, 1, {}), "itself");
  expect_invalid(barrier_call(caller, {.id = uint64_t{1} << 56}), "id");
  expect_invalid(barrier_call(caller, {.slice_bytes = 1}), "slice_bytes");
  expect_invalid(message_call(caller, Collective::send, six, {}, 2, {.agreement = 1}), "takes no agreement");
  expect_invalid(all_to_all_call(caller, six, six, {}, {}, {.agreement = 1}), "takes no agreement");
  expect_invalid(gather_call(caller, six, six, 1, {}, {.agreement = 1}), "takes no agreement");
  expect_invalid(scatter_call(caller, six, six, 1, {}, {.agreement = 1}), "takes no agreement");
  expect_invalid(barrier_call(caller, {.timeout = Milliseconds(-1)}), "timeout is -1 ms");
  expect_invalid(barrier_call(caller, {.timeout = Milliseconds::max()}), "timeout is 9223372036854775807 ms");
  EXPECT_EQ(barrier_call(caller, {.timeout = Milliseconds(timeout_max / millisecond)})->timeout, timeout_max);
}

TEST(Calls, all_to_all_requires_both_lists_or_none) {
  const std::vector<size_t> send{1, 2, 3}, recv{3, 2, 1}, other{3, 1, 2};
  EXPECT_TRUE(all_to_all_call(caller, six, {data + 6, 6, DType::f32}, send, recv, {}).ok());
  expect_invalid(all_to_all_call(caller, six, six, send, {}, {}), "both");
  expect_invalid(all_to_all_call(caller, six, six, send, recv, {}), "in place");
  expect_invalid(all_to_all_call(caller, six, {data + 6, 6, DType::f32}, send, other, {}), "this rank itself");
  EXPECT_TRUE(all_to_all_call(caller, six, six, {}, {}, {}).ok());
}

TEST(Calls, the_timeout_of_the_call_overrides_the_one_of_the_group) {
  EXPECT_EQ(barrier_call(caller, {})->timeout, second);
  EXPECT_EQ(barrier_call(caller, {.timeout = Milliseconds(5)})->timeout, 5 * millisecond);
}

TEST(Calls, only_sums_of_floats_by_two_step_may_be_lossy) {
  const CallOptions lossy{.delivery = Delivery::lossy};
  EXPECT_TRUE(all_reduce_call(caller, six, six, lossy).ok());
  auto options = lossy;
  options.op = ReduceOp::max;
  expect_invalid(all_reduce_call(caller, six, six, options), "only sums and averages of f32, f16 and bf16");
  expect_invalid(all_reduce_call(caller, {data, 6, DType::i32}, {data, 6, DType::i32}, lossy),
                 "only sums and averages of f32, f16 and bf16");
  options = lossy;
  options.schedule = ScheduleKind::ring;
  expect_invalid(all_reduce_call(caller, six, six, options), "only two_step can be lossy");
  options = lossy;
  options.id = 7;
  expect_invalid(all_reduce_call(caller, six, six, options), "have no id");
  options = lossy;
  options.encode_error = data;
  options.error_feedback = true;
  expect_invalid(
      all_reduce_call(caller, six, six, options),
      "delivery: lossy calls have no encode_error and no error_feedback, because nobody knows the error of a message "
      "that is lost");
  options = lossy;
  options.lossy.on_empty = OnEmpty::hold;
  expect_invalid(all_reduce_call(caller, six, six, options), "sharded step");
  options = lossy;
  options.lossy.loss_budget = 1.5;
  expect_invalid(all_reduce_call(caller, six, six, options), "loss_budget");
  options = lossy;
  options.lossy.estimator = Estimator::zero_fill;
  expect_invalid(all_reduce_call(caller, six, six, options), "for simulations");
  options = lossy;
  options.codec = *Codec::parse("int8/int4");
  expect_invalid(all_reduce_call(caller, six, six, options), "one codec for both steps");
  expect_invalid(broadcast_call(caller, six, 0, lossy), "only all_reduce, reduce_shards and gather_shards can be lossy");
  expect_invalid(all_gather_call(caller, six, {data, 12, DType::f32}, {}, false, lossy),
                 "only all_reduce, reduce_shards and gather_shards can be lossy");
  expect_invalid(barrier_call(caller, lossy), "only all_reduce, reduce_shards and gather_shards can be lossy");
}

TEST(Calls, automatic_sums_that_cannot_be_lossy_are_reliable_and_report_the_reason) {
  const CallOptions automatic{.delivery = Delivery::automatic};
  const auto why = [](DType dtype, const CallOptions& options) {
    const auto request = all_reduce_call(caller, {data, 6, dtype}, {data, 6, dtype}, options);
    EXPECT_TRUE(request.ok()) << request.status().to_string();
    return request.ok() ? std::string(request->reliable_because) : "refused";
  };
  EXPECT_EQ(why(DType::f32, automatic), "");
  EXPECT_EQ(why(DType::i32, automatic), "only sums and averages of f32, f16 and bf16 tensors can be lossy");
  auto options = automatic;
  options.op = ReduceOp::max;
  EXPECT_EQ(why(DType::f32, options), "only sums and averages of f32, f16 and bf16 tensors can be lossy");
  options = automatic;
  options.schedule = ScheduleKind::ring;
  EXPECT_NE(why(DType::f32, options).find("only two_step"), std::string::npos);
  options = automatic;
  options.id = 7;
  EXPECT_NE(why(DType::f32, options).find("no id"), std::string::npos);
  options = automatic;
  options.codec = *Codec::parse("int8/int4");
  EXPECT_NE(why(DType::f32, options).find("one codec"), std::string::npos);
  EXPECT_EQ(why(DType::i32, {}), "");
}

TEST(Calls, automatic_calls_check_their_options_as_lossy_calls_do) {
  CallOptions options{.delivery = Delivery::automatic, .lossy = {.loss_budget = 1.5}};
  expect_invalid(all_reduce_call(caller, six, six, options), "loss_budget");
  options.lossy = {.estimator = Estimator::zero_fill};
  expect_invalid(all_reduce_call(caller, six, six, options), "for simulations");
  expect_invalid(broadcast_call(caller, six, 0, options), "only all_reduce, reduce_shards and gather_shards can be lossy");
}

}  // namespace
}  // namespace unisono
