#include "sim/loss_model.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/loss_model_test_support.h"

namespace unisono::sim {
namespace {

TEST(LossModel, text_is_parsed_to_an_equal_model) {
  for (const char* text :
       {"none", "iid:0.1", "iid:0", "iid:1", "gilbert_elliott:p=0.1,burst=8", "gilbert_elliott:p=0.1,burst=8,good=0.01,bad=0.5",
        "chain:p=0.1,recovery=0.25", "joint:p=0.1,both=0.05", "links:0>1=0.3,2>*=0.1", "links:p=0.05,*>1=1",
        "iid:0.1,granularity=shard,dead=3@100,dead=4@100-200,slow=3x0.2,slow=5x1", "none:dead=0@0", "iid:1e-06"}) {
    EXPECT_EQ(loss_model_of(text).to_string(), text);
    EXPECT_EQ(loss_model_of(loss_model_of(text).to_string()), loss_model_of(text));
  }
  EXPECT_EQ(loss_model_of("0.1"), loss_model_of("iid:p=0.1"));
  EXPECT_EQ(loss_model_of("chain:recovery=0.25,p=0.1"), loss_model_of("chain:0.1,recovery=0.25"));
  EXPECT_EQ(loss_model_of("links"), loss_model_of("links:p=0"));
}

TEST(LossModel, a_parsed_model_has_the_values_of_the_text) {
  const auto model =
      loss_model_of("gilbert_elliott:p=0.1,burst=8,good=0.01,bad=0.5,dead=3@100-200,slow=2x0.25,granularity=shard");
  EXPECT_EQ(model.kind, LossModel::Kind::gilbert_elliott);
  EXPECT_EQ(model.loss, .1);
  EXPECT_EQ(model.burst, 8);
  EXPECT_EQ(model.good, .01);
  EXPECT_EQ(model.bad, .5);
  EXPECT_EQ(model.granularity, LossModel::Granularity::shard);
  EXPECT_EQ(model.dead, (std::vector<LossModel::Outage>{{3, 100, 200}}));
  EXPECT_EQ(model.slow, (std::vector<LossModel::Slow>{{2, .25}}));
  EXPECT_EQ(loss_model_of("none:dead=3@100").dead[0].to, LossModel::no_end);
}

TEST(LossModel, errors_of_wrong_models_name_the_wrong_part) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "\"\" is neither a loss from 0 to 1 nor one of none, iid, gilbert_elliott, chain, joint, links"},
      {"uniform:0.1", "\"uniform\""},
      {"1.1", "p=1.1: not a number from 0 to 1"},
      {"-0.1", "p=-0.1"},
      {"nan", "p=nan"},
      {"inf", "p=inf"},
      {"1e400", "\"1e400\""},
      {"iid", "iid: p= is missing"},
      {"iid:", "p=: not a number"},
      {"iid:0.1x", "p=0.1x"},
      {"iid:p=", "p=: not a number"},
      {"iid:0.1,p=0.2", "p=0.2: is given twice"},
      {"iid:0.1,0.2", "\"0.2\" is none of p, granularity, dead, slow"},
      {"iid:0.1,burst=2", "\"burst=2\" is none of p, "},
      {"none:0.1", "\"0.1\" is none of granularity"},
      {"gilbert_elliott:p=0.1", "burst= is missing"},
      {"gilbert_elliott:p=0.1,burst=0.5", "burst=0.5: not a number from 1 to 1e9"},
      {"gilbert_elliott:p=0.9,burst=2", "burst=2: bursts must be longer for so much loss: at least 9"},
      {"gilbert_elliott:p=1,burst=2", "less than bad=1"},
      {"gilbert_elliott:p=0.1,burst=8,good=0.2", "at least good=0.2"},
      {"gilbert_elliott:p=0.5,burst=8,bad=0.5", "less than bad=0.5"},
      {"chain:p=0.1", "recovery= is missing"},
      {"chain:p=0.1,recovery=0", "recovery=0: what was lost would never arrive again"},
      {"chain:p=1,recovery=0.5", "p=1: a chain that recovers"},
      {"chain:p=0.8,recovery=0.5", "recovery=0.5: at most 0.2"},
      {"joint:p=0.1,both=0.001", "both=0.001: it must lie between 0.01"},
      {"joint:p=0.1,both=0.2", "both=0.2"},
      {"joint:p=1,both=1", "p=1: it must be less than 1"},
      {"links:0>0=0.1", "0>0=0.1: a rank has no link to itself"},
      {"links:0>1", "0>1: expected a link such as 0>1=0.3"},
      {"links:0>=0.1", "0>=0.1: expected a link"},
      {"links:a>1=0.1", "a>1=0.1"},
      {"links:0>1=2", "0>1=2"},
      {"links:0>-1=0.1", "0>-1=0.1"},
      {"links:0>1=0.1,0>1=0.2", "0>1=0.2: is given twice"},
      {"iid:0.1,granularity=byte", "granularity=byte: expected datagram or shard"},
      {"iid:0.1,dead=3", "dead=3: expected an outage such as 3@100"},
      {"iid:0.1,dead=3@", "dead=3@"},
      {"iid:0.1,dead=3@5-2", "dead=3@5-2"},
      {"iid:0.1,dead=@5", "dead=@5"},
      {"iid:0.1,dead=4294967296@5", "dead=4294967296@5"},
      {"iid:0.1,slow=3", "slow=3: expected 3x0.2"},
      {"iid:0.1,slow=3x2", "slow=3x2"},
      {"iid:0.1,", "\"\" is none of p"},
  };
  for (const auto& [text, says] : wrong) {
    const auto read = LossModel::parse(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.status().code(), Code::invalid);
    EXPECT_NE(read.status().message().find("bad_loss_model"), std::string::npos) << read.status().message();
    EXPECT_NE(read.status().message().find(says), std::string::npos) << text << ": " << read.status().message();
  }
}

TEST(LossModel, ranks_outside_the_group_are_refused) {
  EXPECT_TRUE(loss_model_of("links:0>3=0.1,dead=3@0,slow=3x0").check(4).ok());
  for (const char* text : {"links:0>4=0.1", "links:4>*=0.1", "none:dead=4@0", "none:slow=4x0"})
    EXPECT_NE(loss_model_of(text).check(4).message().find("names rank 4, but the ranks are 0 to 3"), std::string::npos) << text;
}

// The expected value of a, for p = 0.1 and L = 8, is from check D8 of docs/design/methods/packet_loss.md.
TEST(LossModel, chain_of_bursts_has_the_specified_transitions) {
  EXPECT_NEAR(loss_model_of("gilbert_elliott:p=0.1,burst=8").fall(), .0138889, 5e-8);
  // The mean loss must be (a h_b + r h_g) / (a + r) = p.
  const auto general = loss_model_of("gilbert_elliott:p=0.1,burst=8,good=0.01,bad=0.5");
  EXPECT_NEAR((general.fall() * .5 + .125 * .01) / (general.fall() + .125), .1, 1e-12);
}

TEST(LossModel, the_last_of_several_matching_links_is_used) {
  const auto model = loss_model_of("links:p=0.05,0>*=0.1,*>2=0.2,0>2=0.3");
  EXPECT_EQ(model.link_loss(1, 0), .05);
  EXPECT_EQ(model.link_loss(0, 1), .1);
  EXPECT_EQ(model.link_loss(1, 2), .2);
  EXPECT_EQ(model.link_loss(0, 2), .3);
}

TEST(LossModel, joint_losses_combine_common_and_own_losses) {
  for (const char* text : {"joint:p=0.1,both=0.05", "joint:p=0.1,both=0.01", "joint:p=0.1,both=0.1", "joint:p=0,both=0"}) {
    const auto model = loss_model_of(text);
    const double common = model.common_loss(), own = model.own_loss();
    EXPECT_NEAR(common + (1 - common) * own, model.loss, 1e-12) << text;
    EXPECT_NEAR(common + (1 - common) * own * own, model.both, 1e-9) << text;
  }
}

}  // namespace
}  // namespace unisono::sim
