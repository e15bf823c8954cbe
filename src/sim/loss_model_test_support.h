// Texts of loss models for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "sim/loss_model.h"

namespace unisono::sim {

inline LossModel loss_model_of(const std::string& text) {
  const auto model = LossModel::parse(text);
  EXPECT_TRUE(model.ok()) << text << ": " << model.status().to_string();
  return model.ok() ? *model : LossModel{};
}

}  // namespace unisono::sim
