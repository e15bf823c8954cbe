#include "training/reducer/feedback_checkpoint.h"

#include <algorithm>

#include "base/hash.h"
#include "training/reducer/training_test_support.h"

namespace unisono {
namespace {

using namespace test;

FeedbackCheckpoint example() {
  FeedbackCheckpoint checkpoint{.world = 4, .rank = 2, .options = 77, .step = uint64_t{1} << 40, .store = {}};
  checkpoint.store["layer.0/weight"] = {.elements = 3, .residual = {1, -0.0f, 1e-42f}};
  checkpoint.store["b"] = {.elements = 2, .momentum = {1, 2}, .known = {3, 4}, .mean = {5, 6}, .warm = {7, 8, 9}};
  checkpoint.store[""] = {};
  return checkpoint;
}

// Part of check 28 of docs/design/methods/arc_top_k.md: steps after loading are equal bit by bit.
TEST(FeedbackCheckpoint, continues_after_loading_as_if_never_stopped) {
  for (const auto kind : {Feedback::ef14, Feedback::ef21m}) {
    const FeedbackOptions feedback{.kind = kind};
    Trainers on(3, arc_options(200'000, 4, 3), feedback, 2, 20, 9);
    const auto fill = [](Trainers& ranks, uint64_t step) {
      for (size_t r = 0; r < 3; ++r) ranks.gradients[r] = normals(1, step, static_cast<uint32_t>(r), 180);
    };
    for (uint64_t step = 0; step < 20; ++step) fill(on, step), on.step(step);
    on.settle();
    Trainers later(3, arc_options(200'000, 4, 3), feedback, 2, 20, 9);
    for (uint32_t r = 0; r < 3; ++r) {
      const auto loaded = decode_checkpoint(encode({.world = 3, .rank = r, .options = 1, .step = 20, .store = on.stores[r]}));
      ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
      EXPECT_TRUE(check(*loaded, 3, r, 1).ok());
      later.state(r) = loaded->store.at("w");
    }
    for (uint64_t step = 20; step < 70; ++step) {
      fill(on, step), fill(later, step);
      ASSERT_EQ(on.step(step), later.step(step));
    }
  }
}

TEST(FeedbackCheckpoint, keeps_every_bit) {
  const auto bytes = encode(example());
  const auto back = decode_checkpoint(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(encode(*back), bytes);
  EXPECT_EQ(back->store.at("b").known, (Values{3, 4}));
  EXPECT_EQ(back->store.at("b").warm, (Values{7, 8, 9}));
  EXPECT_EQ(back->step, uint64_t{1} << 40);
}

TEST(FeedbackCheckpoint, refuses_truncated_or_changed_bytes) {
  const auto bytes = encode(example());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(decode_checkpoint(ByteView(bytes).first(size)).status().code(), Code::corrupt) << size;
  for (size_t at = 0; at < bytes.size(); ++at) {
    auto changed = bytes;
    changed[at] ^= std::byte{1};
    EXPECT_EQ(decode_checkpoint(changed).status().code(), Code::corrupt) << at;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_checkpoint(longer).ok());
}

// A forged checkpoint: its hash is right, but it claims more elements than it has bytes.
TEST(FeedbackCheckpoint, forged_sizes_allocate_nothing) {
  auto checkpoint = example();
  checkpoint.store["b"].elements = uint64_t{1} << 62;
  const auto lied = decode_checkpoint(encode(checkpoint));
  ASSERT_FALSE(lied.ok());
  EXPECT_NE(lied.status().message().find("ends in tensor"), std::string::npos) << lied.status().message();
}

// Appends a valid hash to the body of a checkpoint.
Bytes sealed(Bytes body) {
  ByteWriter end;
  end.write(hash_of(body));
  body.insert(body.end(), end.view().begin(), end.view().end());
  return body;
}

TEST(FeedbackCheckpoint, names_each_forged_field) {
  const auto whole = encode(example());
  const Bytes body(whole.begin(), whole.end() - 8);
  EXPECT_TRUE(decode_checkpoint(sealed(body)).ok());
  const auto says = [](const Bytes& made) { return decode_checkpoint(sealed(made)).status().message(); };
  auto changed = body;
  changed.push_back(std::byte{0});
  EXPECT_NE(says(changed).find("has 1 bytes too many"), std::string::npos);
  changed = body;
  changed[4] = std::byte{1};
  EXPECT_NE(says(changed).find("has version 1; this build reads version 2"), std::string::npos);
  changed = body;
  changed[32] = std::byte{4};  // claims four tensors; there are three
  EXPECT_NE(says(changed).find("ends in tensor 3 of 4"), std::string::npos) << says(changed);
  changed[39] = std::byte{0xFF};
  EXPECT_NE(says(changed).find("ends in tensor 3"), std::string::npos) << says(changed);
  auto twice = encode({.world = 1, .store = {{"a", {}}, {"b", {}}}});
  twice.resize(twice.size() - 8);
  *(std::find(twice.rbegin(), twice.rend(), std::byte{'b'})) = std::byte{'a'};
  EXPECT_NE(says(twice).find("has a tensor twice"), std::string::npos) << says(twice);
}

TEST(FeedbackCheckpoint, names_another_world_rank_or_configuration) {
  const auto checkpoint = example();
  EXPECT_TRUE(check(checkpoint, 4, 2, 77).ok());
  EXPECT_EQ(check(checkpoint, 5, 2, 77).message(),
            "roster_changed: the checkpoint of error feedback was written by a world of 4, and this is a world of 5");
  EXPECT_EQ(check(checkpoint, 4, 1, 77).message(),
            "roster_changed: the checkpoint of error feedback was written by rank 2, and this is rank 1");
  EXPECT_NE(check(checkpoint, 4, 2, 78).message().find("config_mismatch"), std::string::npos);
}

TEST(FeedbackCheckpoint, every_option_is_in_the_digest) {
  const ArcOptions arc;
  const FeedbackOptions feedback;
  std::vector<ArcOptions> others(9, arc);
  others[0].rule.ratio_ppm++;
  others[1].rule.rounding = Rounding::down;
  others[2].rule.rank++;
  others[3].rule.max_payload_ppm++;
  others[4].rule.min_elements++;
  others[5].seed++;
  others[6].refresh_every++;
  others[7].random = true;
  others[8].exact = true;
  for (const auto& other : others) EXPECT_NE(digest(other, feedback), digest(arc, feedback));
  EXPECT_NE(digest(arc, {.kind = Feedback::ef21m}), digest(arc, feedback));
  EXPECT_NE(digest(arc, {.kind = Feedback::ef21m, .eta = .2f}), digest(arc, {.kind = Feedback::ef21m}));
  EXPECT_EQ(digest(arc, {.kind = Feedback::ef14, .eta = .2f}), digest(arc, feedback));  // EF14 does not use eta
}

}  // namespace
}  // namespace unisono
