#include "tls/secret_key.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

const std::string digits = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";

TEST(SecretKey, reads_what_it_writes) {
  const auto drawn = *SecretKey::draw();
  EXPECT_EQ(drawn.hex().size(), 64u);
  EXPECT_TRUE(*SecretKey::from_hex(" " + drawn.hex() + "\n") == drawn);
  EXPECT_FALSE(*SecretKey::draw() == drawn);
}

TEST(SecretKey, refuses_other_texts_and_does_not_repeat_them) {
  for (const auto& text :
       {std::string(), digits.substr(1), digits + "00", "zz" + digits.substr(2), digits + " x", std::string("   ")}) {
    const auto key = SecretKey::from_hex(text);
    ASSERT_FALSE(key.ok());
    EXPECT_EQ(key.status().code(), Code::invalid);
    EXPECT_EQ(key.status().message().find("0405060708"), std::string::npos);
    EXPECT_NE(key.status().message().find("64 hexadecimal digits"), std::string::npos);
  }
}

TEST(SecretKey, derives_other_bytes_for_each_purpose) {
  const auto key = *SecretKey::from_hex(digits);
  EXPECT_EQ(key.derive("a"), key.derive("a"));
  EXPECT_NE(key.derive("a"), key.derive("b"));
  const std::byte rest[] = {std::byte{1}};
  EXPECT_NE(key.derive("a"), key.derive("a", rest));
  // HMAC-SHA256 with the key 00…1f of "a" and one byte 0, as computed by another program.
  const auto bytes = key.derive("a");
  std::string hex;
  for (const auto each : bytes)
    hex += "0123456789abcdef"[static_cast<int>(each) >> 4], hex += "0123456789abcdef"[static_cast<int>(each) & 15];
  EXPECT_EQ(hex, "519698be516611df1a4e02f8591804d8065dfcb7cd513e5ee6048b36b89f35bf");
}

}  // namespace
}  // namespace unisono
