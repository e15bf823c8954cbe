// Options, checkpoints, times and failures of MoshpitSgd. moshpit_stepper_test.cc tests the training itself.
#include "unisono/moshpit_sgd.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "training/moshpit_sgd/averager_test_support.h"
#include "training/moshpit_sgd/moshpit_stepper.h"

namespace unisono {
namespace {

using internal::MoshpitStart;
using internal::MoshpitStepper;
using test::SharedAverager;
using test::SharedAveragingSteps;

class MoshpitSgdOfOne : public testing::Test {
 protected:
  std::unique_ptr<MoshpitStepper> make(const MoshpitSgdOptions& options, const MoshpitStart& start = {}) {
    auto made = MoshpitStepper::make(std::make_unique<SharedAverager>(averaging_steps_, peer_++), start, views_, options);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return made.ok() ? std::move(*made) : nullptr;
  }
  SharedAveragingSteps averaging_steps_;
  uint32_t peer_ = 0;
  std::vector<float> values_{1, 2, 3};
  std::vector<std::span<float>> views_{values_};
};

const MoshpitSgdOptions nesterov_options{.local_steps = 1, .average = MoshpitSgdOptions::Average::pseudo_gradients};

TEST(MoshpitSgdOptions, round_trip_through_text) {
  for (const char* text :
       {"", "local_steps=4", "samples=1000", "average=pseudo_gradients", "average=pseudo_gradients,outer=sgd,rate=0.5",
        "average=pseudo_gradients,rate=0.4,momentum=0.8,overlap=off"}) {
    const auto options = MoshpitSgdOptions::parse(text);
    ASSERT_TRUE(options.ok()) << options.status().to_string();
    EXPECT_EQ(options->to_string(), text);
  }
}

TEST(MoshpitSgdOptions, names_the_invalid_option) {
  const std::pair<const char*, const char*> cases[] = {{"local_steps=0", "local_steps"},
                                                       {"local_steps=-1", "local_steps"},
                                                       {"rate=0.5", "pseudo_gradients"},
                                                       {"average=pseudo_gradients,rate=0", "rate=0"},
                                                       {"average=pseudo_gradients,rate=nan", "rate"},
                                                       {"average=pseudo_gradients,momentum=1", "momentum=1"},
                                                       {"average=pseudo_gradients,momentum=-0.5", "momentum"},
                                                       {"average=pseudo_gradients,outer=sgd,momentum=0.9", "outer=nesterov"},
                                                       {"average=gradients", "none of parameters, pseudo_gradients"},
                                                       {"outer=adam", "none of sgd, nesterov"},
                                                       {"tau=8", "none of local_steps"},
                                                       {"overlap", "is not an option"}};
  for (const auto& [text, part] : cases) {
    const auto options = MoshpitSgdOptions::parse(text);
    ASSERT_FALSE(options.ok()) << text;
    EXPECT_EQ(options.status().code(), Code::invalid);
    EXPECT_NE(options.status().message().find(part), std::string::npos) << options.status().message();
  }
  EXPECT_TRUE(MoshpitSgdOptions::parse("local_steps=0,samples=64").ok());
}

TEST_F(MoshpitSgdOfOne, values_of_another_run_are_refused) {
  auto made = MoshpitStepper::make(std::make_unique<SharedAverager>(averaging_steps_, 0), {.loaded = true, .values = {1, 2}},
                                   views_, {});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::invalid);
  EXPECT_EQ(values_, (std::vector<float>{1, 2, 3}));
}

TEST_F(MoshpitSgdOfOne, other_sizes_than_in_make_are_refused) {
  const auto sgd = make({});
  std::vector<float> other(2), third(1);
  const std::vector<std::span<float>> shorter{other}, more{other, third};
  for (const auto& wrong : {shorter, more}) {
    EXPECT_EQ(sgd->after_step(wrong, 1).status().code(), Code::invalid);
    EXPECT_EQ(sgd->drain(wrong, Milliseconds{0}).status().code(), Code::invalid);
    EXPECT_EQ(sgd->finish(wrong).status().code(), Code::invalid);
  }
  EXPECT_EQ(sgd->steps(), 0u);
}

TEST_F(MoshpitSgdOfOne, a_refused_averaging_step_returns_its_error_and_keeps_the_values) {
  const auto sgd = make({.local_steps = 2});
  averaging_steps_.refusal = Status(Code::unavailable, "SHUTTING_DOWN: the run was left");
  EXPECT_TRUE(sgd->after_step(views_, 1).ok());
  for (int k = 0; k < 2; ++k) EXPECT_EQ(sgd->after_step(views_, 1).status(), averaging_steps_.refusal);
  EXPECT_EQ(values_, (std::vector<float>{1, 2, 3}));
  averaging_steps_.refusal = {};
  ASSERT_TRUE(sgd->after_step(views_, 1).ok());
  EXPECT_EQ(averaging_steps_.entries.at(0).weight, 4) << "no sample was forgotten";
}

TEST_F(MoshpitSgdOfOne, a_failed_averaging_step_changes_nothing_and_keeps_its_samples) {
  auto options = nesterov_options;
  options.overlap = false;
  const auto sgd = make(options);
  averaging_steps_.failure = Status(Code::unavailable, "SHUTTING_DOWN");
  EXPECT_EQ(sgd->after_step(views_, 3).status(), averaging_steps_.failure);
  EXPECT_EQ(values_, (std::vector<float>{1, 2, 3}));
  averaging_steps_.failure = {};
  ASSERT_TRUE(sgd->after_step(views_, 4).ok());
  const auto other = make(nesterov_options);
  ASSERT_TRUE(sgd->finish(views_).ok());
  EXPECT_EQ(sgd->report().alone, 2u);
}

TEST_F(MoshpitSgdOfOne, drain_waits_no_longer_than_its_timeout) {
  const auto sgd = make(nesterov_options);
  EXPECT_EQ(sgd->drain(views_, Milliseconds{5})->averaging, nullptr) << "there is none";
  ASSERT_TRUE(sgd->after_step(views_, 1)->began);
  EXPECT_EQ(sgd->drain(views_, Milliseconds{5}).status().code(), Code::late);
  EXPECT_NE(sgd->drain(views_, Milliseconds{0})->averaging, nullptr);
}

TEST_F(MoshpitSgdOfOne, finish_ends_the_running_averaging_step_and_makes_one_more) {
  const auto sgd = make({.local_steps = 2});
  for (int k = 0; k < 3; ++k) ASSERT_TRUE(sgd->after_step(views_, 1).ok());
  const auto done = sgd->finish(views_);
  ASSERT_TRUE(done.ok());
  EXPECT_TRUE(done->began);
  ASSERT_NE(done->averaging, nullptr);
  EXPECT_EQ(done->averaging->step, 1u);
  EXPECT_EQ(sgd->report().averaging_steps, 2u);
}

TEST_F(MoshpitSgdOfOne, an_abandoned_averaging_step_keeps_its_samples) {
  const auto sgd = make(nesterov_options);
  ASSERT_TRUE(sgd->after_step(views_, 6)->began);
  sgd->abandon();
  sgd->abandon();
  ASSERT_TRUE(sgd->after_step(views_, 1)->began);
  EXPECT_EQ(averaging_steps_.entries.at(0).weight, 7);
}

TEST_F(MoshpitSgdOfOne, waiting_for_averaging_steps_is_not_useful_time) {
  averaging_steps_.averaging_time = 3 * second;
  auto options = nesterov_options;
  options.overlap = false;
  const auto sgd = make(options);
  EXPECT_EQ(sgd->report().useful_share(), 1);
  averaging_steps_.now += 9 * second;
  EXPECT_DOUBLE_EQ(sgd->after_step(views_, 1)->waited_s, 3);
  const auto report = sgd->report();
  EXPECT_DOUBLE_EQ(report.total_s, 12);
  EXPECT_DOUBLE_EQ(report.waited_s, 3);
  EXPECT_DOUBLE_EQ(report.averaging_s, 3);
  EXPECT_DOUBLE_EQ(report.useful_share(), 0.75);
  EXPECT_NE(report.to_string().find("useful 75.0 % of 12.0 s"), std::string::npos) << report.to_string();
}

TEST_F(MoshpitSgdOfOne, blobs_of_the_user_go_with_the_averaging_step) {
  const auto sgd = make(nesterov_options);
  int asked = 0;
  sgd->give_state([&] { return ++asked, MoshpitSgd::Blobs{{"adam", {std::byte{7}}}}; });
  EXPECT_EQ(asked, 0);
  ASSERT_TRUE(sgd->after_step(views_, 1)->began);
  EXPECT_EQ(asked, 1);
  const auto& blobs = averaging_steps_.entries.at(0).blobs;
  ASSERT_EQ(blobs.size(), 2u);
  EXPECT_EQ(blobs[0], (std::pair{std::string("adam"), std::vector<std::byte>{std::byte{7}}}));
  EXPECT_EQ(blobs[1].first, MoshpitStepper::blob_name);
}

TEST_F(MoshpitSgdOfOne, continues_bit_for_bit_from_saved_state) {
  SharedAveragingSteps& averaging_steps = averaging_steps_;
  auto a = make(nesterov_options), b = make(nesterov_options);
  std::vector<float> other{3, 5, 7};
  const std::vector<std::span<float>> other_views{other};
  const auto averaging = [&](MoshpitStepper& first) {
    values_[0] += 1, other[1] -= 2;
    ASSERT_TRUE(first.after_step(views_, 2).ok() && b->after_step(other_views, 3).ok());
    averaging_steps.close(2);
    ASSERT_TRUE(first.drain(views_, Milliseconds{0}).ok() && b->drain(other_views, Milliseconds{0}).ok());
  };
  averaging(*a), averaging(*a);
  const auto saved = a->save();
  auto again = make(nesterov_options);
  ASSERT_TRUE(again->load(saved).ok());
  EXPECT_EQ(again->steps(), 2u);
  averaging(*again);
  EXPECT_EQ(values_, other);
  ASSERT_TRUE(again->after_step(views_, 1).ok());
  EXPECT_EQ(again->load(saved).code(), Code::invalid) << "during an averaging step";
}

TEST_F(MoshpitSgdOfOne, truncated_changed_and_foreign_state_is_refused) {
  const auto saved = make(nesterov_options)->save();
  const auto sgd = make(nesterov_options);
  for (size_t bytes = 0; bytes < saved.size(); ++bytes)
    EXPECT_EQ(sgd->load(std::span(saved).first(bytes)).code(), Code::corrupt) << bytes;
  for (size_t at = 0; at < saved.size(); ++at) {
    auto changed = saved;
    changed[at] ^= std::byte{0x10};
    EXPECT_EQ(sgd->load(changed).code(), Code::corrupt) << at;
  }
  EXPECT_EQ(make({})->load(saved).code(), Code::invalid);
  EXPECT_TRUE(sgd->load(saved).ok());
}

}  // namespace
}  // namespace unisono
