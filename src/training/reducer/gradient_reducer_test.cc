// Compressed gradients between ranks of real groups. Numbers of checks refer to docs/design/methods/arc_top_k.md, "Checked
// values".
#include "unisono/training.h"

#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cmath>

#include "base/concat.h"
#include "testing/group_of_threads.h"
#include "training/reducer/gradient_reducer_test_support.h"
#include "training/reducer/reduction_pipeline.h"

namespace unisono {
namespace {

using test::arc;
using test::in_group;
using test::kept_by;
using test::Ledger;
using test::model;
using test::normals;
using test::ReducerRank;
using test::Values;

// Check 16 of docs/design/methods/arc_top_k.md, between ranks: values in fp32, in 16 bits, and in few bits. All N ranks enter
// their averages into the ledger, so it has N times the average.
TEST(GradientReducer, loses_no_value_with_any_codec) {
  for (const char* options : {"ratio=0.2", "ratio=0.2,values=bf16,values_schedule=two_step",
                              "values=f16,values_schedule=two_step", "ratio=0.1,values=int8,values_schedule=two_step",
                              "ratio=0.3,values=int4,values_schedule=two_step", "ratio=0.2,rank=1,sketch=bf16", "refresh=16"}) {
    for (const uint32_t world : {2u, 3u, 4u}) {
      Ledger ledger;
      in_group(world, [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(arc(options)).ok());
        for (uint64_t step = 0; step < 40; ++step) {
          rank.fill(step);
          ledger.give(rank);
          const auto report = rank.step();
          ASSERT_TRUE(report.ok()) << report.status().to_string();
          ASSERT_TRUE(report->applied);
          ledger.deliver(rank);
        }
        ledger.keep(rank);
      });
      SCOPED_TRACE(concat(options, ", ", world, " ranks"));
      ledger.expect_balanced();
    }
  }
}

// Check 10 of docs/design/methods/arc_top_k.md with the default schedule, and part of check 20. All ranks get equal bits. There
// are two all-reduces per bucket, and the payload is as the rule predicts.
TEST(GradientReducer, gives_all_ranks_the_same_bits_in_two_all_reduces_per_bucket) {
  for (const uint32_t world : {2u, 3u, 5u, 8u}) {
    std::vector<std::vector<Values>> got(world);
    in_group(world, [&](Group& group) {
      ReducerRank rank(group);
      ASSERT_TRUE(rank.make(arc("feedback=ef21m")).ok());
      for (uint64_t step = 0; step < 10; ++step) {
        const auto report = rank.step(step);
        ASSERT_TRUE(report.ok()) << report.status().to_string();
        EXPECT_EQ(report->costs.collectives, step == 0 ? 2u : 4u);
        EXPECT_EQ(report->compressed, step == 0 ? 0u : 3u);
        if (step > 0) {
          // First bucket: 64 sketches of 4 numbers, a flag, 13 rows of 32. Second: 40 + 31 sketches, a flag, 8 rows of 50, 7
          // rows of 65, and the 33 elements of the dense tensor.
          EXPECT_EQ(report->costs.payload_elements, 64u * 4 + 1 + 13 * 32 + (40 + 31) * 4 + 1 + 8 * 50 + 7 * 65 + 33);
          EXPECT_TRUE(report->captured > 0 && report->captured < 1) << report->captured;
        }
        EXPECT_GT(report->output_norm, 0);
      }
      got[group.rank()] = rank.values;
    });
    for (const auto& each : got) EXPECT_EQ(each, got[0]);
  }
}

TEST(GradientReducer, averages_uncompressed_before_start_and_does_nothing_on_one_rank) {
  std::array<ReducerRank*, 2> ranks{};
  std::barrier both(2);
  in_group(2, [&](Group& group) {
    ReducerRank rank(group);
    ranks[group.rank()] = &rank;
    ASSERT_TRUE(rank.make(arc("start=3")).ok());
    for (uint64_t step = 0; step < 5; ++step) {
      rank.fill(step);
      both.arrive_and_wait();
      Values mean(rank.values[0]);
      for (size_t k = 0; k < mean.size(); ++k) mean[k] = (ranks[0]->values[0][k] + ranks[1]->values[0][k]) / 2;
      both.arrive_and_wait();
      const auto report = rank.step();
      ASSERT_TRUE(report.ok());
      EXPECT_EQ(rank.values[0] == mean, step < 3);
      EXPECT_EQ(report->compressed > 0, step >= 3);
      EXPECT_EQ(report->state_bytes > 0, step >= 3);
    }
  });
  in_group(1, [](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc()).ok());
    rank.fill(1);
    const auto before = rank.values;
    ASSERT_TRUE(rank.step().ok());
    EXPECT_EQ(rank.values, before);
  });
}

// Part of check 28 of docs/design/methods/arc_top_k.md: Inf or NaN on one rank, in a compressed tensor or in a dense one.
TEST(GradientReducer, skips_a_step_on_all_ranks_if_one_has_nonfinite_values) {
  for (const uint32_t tensor : {1u, 2u, 4u}) {
    for (const bool poison : {false, true}) {
      in_group(3, [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(arc(poison ? "nonfinite=poison" : "")).ok());
        for (uint64_t step = 0; step < 8; ++step) {
          rank.fill(step);
          if (step == 5 && group.rank() == 1) rank.values[tensor][7] = poison ? NAN : INFINITY;
          auto before = kept_by(rank);
          const auto report = rank.step();
          ASSERT_TRUE(report.ok());
          EXPECT_EQ(report->applied, step != 5);
          if (step == 5) {
            EXPECT_EQ(std::isnan(rank.values[tensor][0]), poison);
            // The bucket with the bad value keeps its old residuals.
            const char* name = tensor == 4 ? "e" : "a";
            EXPECT_EQ(kept_by(rank)[name].residual, before[name].residual);
          }
        }
      });
    }
  }
}

// step_skipped() concerns only the buckets of the last step. Another bucket keeps its residuals, because the averages of its
// own last step were used.
TEST(GradientReducer, undoes_the_last_step_only) {
  Ledger ledger;
  in_group(2, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc()).ok());
    for (uint64_t step = 0; step < 9; ++step) {
      rank.fill(step);
      if (step % 3 == 2) {
        for (const size_t i : {0, 1, 2, 3}) std::fill(rank.values[i].begin(), rank.values[i].end(), 0.0f);
        ledger.give(rank);
        ASSERT_TRUE(rank.reduce({4, 3}).ok() && rank.reducer->finish().ok());
        rank.reducer->step_skipped();
        rank.reducer->step_skipped();  // the second call does nothing
      } else {
        ledger.give(rank);
        ASSERT_TRUE(rank.step().ok());
        ledger.deliver(rank);
      }
    }
    ledger.keep(rank);
  });
  ledger.expect_balanced();
}

TEST(GradientReducer, undoes_a_skipped_step_and_sends_all_residuals_when_flushed) {
  Ledger ledger;
  in_group(3, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc()).ok());
    for (uint64_t step = 0; step < 12; ++step) {
      rank.fill(step);
      // step_skipped() keeps no residual of dense tensors. So in a skipped step, the dense tensor's gradient is zeros here.
      if (step % 3 == 1) std::fill(rank.values[1].begin(), rank.values[1].end(), 0.0f);
      ledger.give(rank);
      if (step == 11) rank.reducer->flush();
      ASSERT_TRUE(rank.step().ok());
      if (step % 3 == 1) rank.reducer->step_skipped();
      else ledger.deliver(rank);
    }
    const auto store = kept_by(rank);
    for (const auto& [name, state] : store) EXPECT_TRUE(state.residual.empty()) << name;
    ledger.keep(rank);
  });
  ledger.expect_balanced();
}

// Part of check 28 of docs/design/methods/arc_top_k.md: buckets and ratio change during a run.
TEST(GradientReducer, keeps_residuals_by_name_when_buckets_or_ratio_change) {
  Ledger ledger;
  in_group(2, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc("schedule=0.5@4/0.1@9")).ok());
    for (uint64_t step = 0; step < 14; ++step) {
      rank.fill(step);
      ledger.give(rank);
      if (step % 3 == 0) {
        ASSERT_TRUE(rank.reduce({0, 1, 2, 3, 4}).ok());
      } else if (step % 3 == 1) {
        for (const uint32_t i : {4u, 2u, 1u, 0u}) ASSERT_TRUE(rank.reduce({i}).ok());
      } else {
        ASSERT_TRUE(rank.reduce({2, 4}).ok() && rank.reduce({1, 0}).ok());
      }
      const auto report = rank.reducer->finish();
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      EXPECT_EQ(report->ratio, step < 4 ? 0.2 : step < 9 ? 0.5 : 0.1);
      ledger.deliver(rank);
    }
    ledger.keep(rank);
  });
  ledger.expect_balanced();
}

// Part of check 28 of docs/design/methods/arc_top_k.md: a run that is saved and loaded.
TEST(GradientReducer, continues_bit_for_bit_from_a_checkpoint) {
  for (const char* feedback : {"feedback=ef14", "feedback=ef21m"}) {
    in_group(2, [&](Group& group) {
      ReducerRank rank(group), later(group);
      ASSERT_TRUE(rank.make(arc(feedback)).ok());
      for (uint64_t step = 0; step < 10; ++step) ASSERT_TRUE(rank.step(step).ok());
      const auto saved = rank.reducer->save();
      ASSERT_TRUE(later.make(arc(feedback)).ok());
      ASSERT_TRUE(later.reducer->load(saved).ok());
      EXPECT_EQ(later.reducer->step(), 10u);
      for (uint64_t step = 10; step < 60; ++step) {
        ASSERT_TRUE(rank.step(step).ok() && later.step(step).ok());
        ASSERT_EQ(rank.values, later.values);
      }
      ReducerRank other(group);
      ASSERT_TRUE(other.make(arc("seed=5")).ok());
      EXPECT_NE(other.reducer->load(saved).message().find("config_mismatch"), std::string::npos);
      ASSERT_TRUE(other.make(arc(feedback), {{"a", {40, 51}}}).ok());
      EXPECT_NE(other.reducer->load(saved).message().find("state_shape_mismatch"), std::string::npos);
      EXPECT_EQ(other.reducer->load(ByteView(saved).first(saved.size() / 2)).code(), Code::corrupt);
    });
  }
}

// Part of check 28 of docs/design/methods/arc_top_k.md: one rank has another seed, ratio, codec, start or shape.
TEST(GradientReducer, reports_differing_options_or_parameters_on_all_ranks) {
  for (const char* options : {"seed=1", "ratio=0.3", "values=int8", "start=1"}) {
    in_group(3, [&](Group& group) {
      ReducerRank rank(group);
      const auto status = rank.make(arc(group.rank() == 1 ? options : ""));
      EXPECT_EQ(status.code(), Code::invalid);
      EXPECT_TRUE(status.message().starts_with("config_mismatch: options of compression differ: rank ")) << status.to_string();
      EXPECT_NE(status.message().find(options), std::string::npos) << status.to_string();
      EXPECT_NE(status.message().find(concat("rank ", group.rank(), " has ")), std::string::npos) << status.to_string();
    });
  }
  in_group(2, [](Group& group) {
    auto parameters = model;
    if (group.rank() == 1) parameters[0].shape = {50, 40};
    const auto text = ReducerRank(group).make(arc(), parameters).message();
    EXPECT_TRUE(text.starts_with("config_mismatch: parameters differ: rank ")) << text;
    EXPECT_NE(text.find(" of shape 50 40"), std::string::npos) << text;
  });
}

TEST(GradientReducer, reports_differing_buckets_and_keeps_the_gradients) {
  Ledger ledger;
  in_group(2, [&](Group& group) {
    ReducerRank rank(group);
    ASSERT_TRUE(rank.make(arc()).ok());
    for (uint64_t step = 0; step < 6; ++step) {
      rank.fill(step);
      ledger.give(rank);
      if (step == 3) {
        ASSERT_TRUE((group.rank() == 0 ? rank.reduce({0, 1}) : rank.reduce({0})).ok());
        ASSERT_TRUE((group.rank() == 0 ? rank.reduce({2, 4}) : rank.reduce({1, 2, 4})).ok());
        const auto report = rank.reducer->finish();
        ASSERT_FALSE(report.ok());
        EXPECT_NE(report.status().message().find("config_mismatch"), std::string::npos) << report.status().to_string();
      } else {
        ASSERT_TRUE(rank.step().ok());
        ledger.deliver(rank);
      }
    }
    ledger.keep(rank);
  });
  ledger.expect_balanced();
}

// Check 28 of docs/design/methods/arc_top_k.md: a flipped bit in the sketch would make ranks choose different rows. To get this
// effect, rank 2 chooses rows at random with another seed. Another seed for sketches would not do: all ranks choose rows by the
// same averaged sketch.
TEST(ReductionPipeline, reports_differing_rows_and_delivers_nothing) {
  in_group(3, [](Group& group) {
    FeedbackStore store;
    auto compressor = make_arc_top_k({.rule = {.min_elements = 0}, .seed = group.rank() == 2 ? 9u : 8u, .random = true}, 0,
                                     {{.number = 0, .shape = {60, 20}}});
    Bucket bucket;
    bucket.feedback = *ErrorFeedback::make({}, *std::move(compressor), {"w"}, store);
    auto gradient = normals(3, 0, group.rank(), 1200);
    const auto before = gradient;
    bucket.gradients = {gradient.data()};
    std::vector<uint32_t> all{0, 1, 2};
    ReductionPipeline pipeline(*group.split(all), {});
    pipeline.begin_step(0, 1);
    pipeline.submit(bucket);
    pipeline.finish();
    EXPECT_EQ(bucket.status.code(), Code::invalid);
    EXPECT_NE(bucket.status.message().find("index_mismatch"), std::string::npos) << bucket.status.to_string();
    EXPECT_EQ(gradient, Values(1200));
    bucket.feedback->abandon();
    EXPECT_EQ(store.at("w").residual, before);
  });
}

TEST(GradientReducer, names_the_missing_rank_and_keeps_the_gradients) {
  Options hurried;
  hurried.timeout = Milliseconds(300);
  std::barrier both(2);
  in_group(
      2,
      [&](Group& group) {
        ReducerRank rank(group);
        ASSERT_TRUE(rank.make(arc()).ok());
        ASSERT_TRUE(rank.step(0).ok());
        if (group.rank() == 0) {
          rank.fill(1);
          const auto before = rank.values[4];
          const auto residual = kept_by(rank)["e"].residual;
          const auto report = rank.step();
          ASSERT_FALSE(report.ok());
          EXPECT_EQ(report.status().code(), Code::late);
          EXPECT_NE(report.status().message().find("rank 1"), std::string::npos) << report.status().to_string();
          const auto after = kept_by(rank)["e"].residual;
          for (size_t k = 0; k < after.size(); ++k) ASSERT_EQ(after[k], before[k] + residual[k]);
        }
        both.arrive_and_wait();
      },
      hurried);
}

// Compressed, the bucket sends 97 rows of 50 and 100 sketch numbers: 0.99 of its 5000 values. It needs two all-reduces instead
// of one. So compression cannot pay at any rates.
TEST(GradientReducer, sends_buckets_uncompressed_that_would_not_pay) {
  in_group(2, [](Group& group) {
    auto reducer = GradientReducer::make(group, std::vector<Parameter>{{"w", {100, 50}}},
                                         *Compression::parse("arc:start=0,min_elements=0,rank=1,ratio=0.97,max_payload=1"));
    ASSERT_TRUE(reducer.ok());
    Values values(5000, static_cast<float>(group.rank()));
    const Gradient bucket[] = {{.name = "w", .values = values.data()}};
    ASSERT_TRUE(reducer->reduce(bucket).ok());
    const auto report = reducer->finish();
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->compressed, 0u);
    EXPECT_EQ(report->costs.collectives, 1u);
    EXPECT_NE(report->off.find("1 of 1 buckets are sent whole"), std::string::npos) << report->off;
    EXPECT_EQ(values, Values(5000, 0.5f));
  });
}

TEST(GradientReducer, refuses_unknown_and_repeated_names) {
  in_group(2, [](Group& group) {
    ReducerRank rank(group);
    EXPECT_NE(rank.make(arc(), {{"a", {1}}, {"a", {2}}}).message().find("two parameters are called a"), std::string::npos);
    EXPECT_NE(rank.make(arc(), {{"", {1}}}).message().find("without a name"), std::string::npos);
    ASSERT_TRUE(rank.make(arc()).ok());
    float value = 0;
    const Gradient unknown[] = {{.name = "x", .values = &value}};
    EXPECT_NE(rank.reducer->reduce(unknown).message().find("no parameter x"), std::string::npos);
    EXPECT_NE(rank.reduce({0, 0}).message().find("was given twice"), std::string::npos);
    const Gradient null_gradient[] = {{.name = "a", .values = nullptr}};
    EXPECT_NE(rank.reducer->reduce(null_gradient).message().find("is a null pointer"), std::string::npos);
    ASSERT_TRUE(rank.reduce({0}).ok());
    EXPECT_NE(rank.reduce({0}).message().find("was given twice"), std::string::npos);
    EXPECT_TRUE(rank.reducer->finish().ok());
    EXPECT_TRUE(rank.step(1).ok());
  });
}

// Check 19 of docs/design/methods/arc_top_k.md, between ranks: a residual that grows without bound causes one warning.
TEST(GradientReducer, warns_once_of_a_residual_that_grows_without_bound) {
  in_group(2, [](Group& group) {
    // The test uses four columns. With one column the tensor would be sent whole, because 7 rows and 64 sketch numbers exceed
    // its 64 elements.
    auto made = GradientReducer::make(group, std::vector<Parameter>{{"w", {64, 4}}},
                                      *Compression::parse("arc:ratio=0.1,start=0,auto_off=off,min_elements=0,rank=1"));
    ASSERT_TRUE(made.ok());
    size_t warnings = 0;
    for (uint64_t step = 0; step < 1000; ++step) {
      Values gradient(256, 0.01f);
      std::fill(gradient.end() - 4, gradient.end(), group.rank() == 0 ? 1.0f : -1.0f);
      const Gradient bucket[] = {{.name = "w", .values = gradient.data()}};
      ASSERT_TRUE(made->reduce(bucket).ok());
      const auto report = made->finish();
      ASSERT_TRUE(report.ok());
      for (const auto& warning : report->warnings) warnings += warning.find("100 times") != warning.npos;
    }
    EXPECT_EQ(warnings, 1u);
    EXPECT_EQ(made->total().step, 1000u);
  });
}

}  // namespace
}  // namespace unisono
