#include <gtest/gtest.h>

#include <cmath>

#include "unisono/compression.h"

namespace unisono {
namespace {

TEST(CompressionText, round_trips_through_text) {
  for (const char* text : {"dense", "arc", "random-k:ratio=0.1",
                           "arc:ratio=0.25,rank=8,round=down,seed=7,feedback=ef21m,eta=0.5,start=0,schedule=0.5@2000/"
                           "0.2@3000,max_payload=0.5,min_elements=0,auto_off=off,values=int8,values_schedule=two_step,sketch="
                           "bf16,refresh=32,absorb=off,nonfinite=poison,adaptive=on"}) {
    const auto read = Compression::parse(text);
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(read->to_string(), text);
    EXPECT_EQ(*Compression::parse(read->to_string()), *read);
  }
  for (const char* text : {"power_sgd",
                           "power_sgd:rank=2,seed=7,feedback=none,start=0,max_payload=0.5,min_elements=0,auto_off=off,"
                           "values_schedule=ring,nonfinite=poison,adaptive=on"}) {
    const auto read = Compression::parse(text);
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(read->method, Compression::Method::power_sgd);
    EXPECT_EQ(read->to_string(), text);
  }
  const auto read = Compression::parse("arc:ratio=0.25,schedule=0.5@2000/0.2@3000,values=int8/int4");
  EXPECT_EQ(read->ratio, 0.25);
  EXPECT_EQ(read->schedule[1].step, 3000u);
  EXPECT_EQ(read->values.gather.bits, 4);
  EXPECT_EQ(read->feedback, Compression::Feedback::ef14);
}

TEST(CompressionText, names_the_invalid_option) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "method"},
      {"ark", "dense, arc, random-k, power_sgd"},
      {"arc:", "is not an option"},
      {"arc:ratio", "\"ratio\" is not an option"},
      {"arc:ration=1", "ratio, rank"},
      {"arc:ratio=0", "not in (0, 1]"},
      {"arc:ratio=1.01", "not in (0, 1]"},
      {"arc:ratio=nan", "not in (0, 1]"},
      {"arc:ratio=x", "ratio=x"},
      {"arc:rank=0", "rank 0"},
      {"arc:rank=-1", "rank=-1"},
      {"arc:eta=0", "eta"},
      {"arc:feedback=ef15", "none, ef14, ef21, ef21m"},
      {"arc:values=int9", "int2"},
      {"arc:max_payload=0", "max_payload"},
      {"arc:auto_off=yes", "off, on"},
      {"arc:schedule=0.5", "0.5@2000"},
      {"arc:schedule=0.5@3/0.2@3", "ascend"},
      {"arc:schedule=2@3", "not in (0, 1]"},
      {"power_sgd:rank=0", "factors of rank 0"},
      {"power_sgd:ratio=0.1", "ratio does not go with power_sgd"},
      {"power_sgd:schedule=0.5@20", "schedule does not go with power_sgd"},
      {"power_sgd:round=down", "round does not go with power_sgd"},
      {"power_sgd:refresh=8", "refresh does not go with power_sgd"},
      {"power_sgd:values=int8", "values does not go with power_sgd"},
      {"power_sgd:sketch=bf16", "sketch does not go with power_sgd"},
      {"power_sgd:absorb=off", "absorb does not go with power_sgd"},
      {"power_sgd:feedback=ef21", "feedback=ef21 does not go with power_sgd"},
      {"power_sgd:feedback=ef21m,eta=0.2", "eta does not go with power_sgd"},
  };
  for (const auto& [text, says] : wrong) {
    const auto read = Compression::parse(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.status().code(), Code::invalid);
    EXPECT_NE(read.status().message().find("bad_option"), std::string::npos) << read.status().message();
    EXPECT_NE(read.status().message().find(says), std::string::npos) << text << ": " << read.status().message();
  }
  Compression none;
  none.ratio = NAN;
  EXPECT_FALSE(none.check().ok());
}

}  // namespace
}  // namespace unisono
