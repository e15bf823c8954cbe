// Damages a million datagrams at random; the checks must refuse all of them.
#include <algorithm>
#include <array>
#include <iostream>

#include <gtest/gtest.h>

#include "base/random.h"
#include "wire/test_support.h"

namespace unisono::datagram_test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int rounds = 100'000;
#else
constexpr int rounds = 1'050'000;
#endif
constexpr uint64_t seed = 20261123;

using Buffer = std::vector<std::byte>;

Buffer random_valid(Random& random, const DatagramGroup& group) {
  Buffer payload(random.below(200));
  for (auto& byte : payload) byte = static_cast<std::byte>(random.next());
  auto made = header(static_cast<uint16_t>(payload.size()));
  made.kind = static_cast<DatagramKind>(random.below(datagram_kind_count));
  made.flags = static_cast<uint8_t>(random.below(4));
  made.sender = static_cast<uint16_t>(random.below(5));
  made.op = static_cast<uint32_t>(random.next());
  made.packet_index = static_cast<uint32_t>(random.next());
  return sealed(made, payload, group);
}

// Makes one to three changes: a flipped bit, a changed byte, a wrong field, a cut, appended bytes, or a moved piece.
void damage(Buffer& bytes, Random& random) {
  for (uint64_t changes = 1 + random.below(3); changes > 0; --changes) {
    const size_t at = bytes.empty() ? 0 : random.below(bytes.size());
    switch (random.below(6)) {
      case 0:
        if (!bytes.empty()) bytes[at] ^= std::byte{1} << random.below(8);
        break;
      case 1:
        if (!bytes.empty()) bytes[random.below(std::min<size_t>(bytes.size(), 56))] = static_cast<std::byte>(random.next());
        break;
      case 2:
        if (bytes.size() >= 34) bytes[random.below(2) == 0 ? 32 : 20] = static_cast<std::byte>(random.below(9));
        break;
      case 3: bytes.resize(at); break;
      case 4: bytes.insert(bytes.end(), 1 + random.below(70), static_cast<std::byte>(random.next())); break;
      case 5:
        if (!bytes.empty())
          std::rotate(bytes.begin() + static_cast<ptrdiff_t>(at),
                      bytes.begin() + static_cast<ptrdiff_t>(at + (bytes.size() - at) / 2), bytes.end());
        break;
    }
  }
}

TEST(DatagramRandom, damaged_datagrams_are_refused_and_intact_ones_accepted) {
  std::cout << "seed " << seed << '\n';
  Random random(seed);
  const auto trusted = group();
  std::array<int, datagram_fault_count> seen{};
  int unchanged = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto sound = random_valid(random, trusted);
    if (round % 16 == 0) {
      ASSERT_EQ(check(sound, trusted), DatagramFault::none) << "round " << round;
    }
    auto bytes = sound;
    damage(bytes, random);
    if (bytes == sound) {
      ++unchanged;
      continue;
    }
    bytes.shrink_to_fit();  // gives up spare capacity, so that a sanitizer reports reads past the end
    const auto fault = check(bytes, trusted);
    ASSERT_NE(fault, DatagramFault::none) << "round " << round;
    ++seen[static_cast<size_t>(fault)];
  }
  // Expects that each kind of fault has occurred. Otherwise the test above proves little.
  for (const auto fault :
       {DatagramFault::too_short, DatagramFault::magic, DatagramFault::version, DatagramFault::kind, DatagramFault::run,
        DatagramFault::epoch, DatagramFault::receiver, DatagramFault::sender, DatagramFault::length, DatagramFault::tag}) {
    EXPECT_GT(seen[static_cast<size_t>(fault)], rounds / 1000) << name(fault);
  }
  EXPECT_LT(unchanged, rounds / 25);
}

TEST(DatagramRandom, any_bytes_are_either_accepted_or_refused) {
  std::cout << "seed " << seed << '\n';
  Random random(seed + 1);
  const auto trusted = group();
  for (int round = 0; round < rounds / 10; ++round) {
    Buffer bytes(random.below(120));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
    ASSERT_NE(check(bytes, trusted), DatagramFault::none) << "round " << round;
  }
}

}  // namespace
}  // namespace unisono::datagram_test
