#include "wire/checksum.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace unisono {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr auto table = make_table();

#if defined(__x86_64__)
uint64_t word_at(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, 8);
  return word;
}

// Updates the CRC `wide` with the remaining bytes of a message, and returns it.
__attribute__((target("sse4.2"))) uint32_t finish_sse42(const std::byte* data, size_t bytes, uint64_t wide) {
  for (; bytes >= 8; bytes -= 8, data += 8) wide = _mm_crc32_u64(wide, word_at(data));
  auto crc = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes, ++data) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*data));
  return crc;
}

// The processor can start a crc32 instruction in every cycle, but the result of the instruction comes some cycles later. So the
// CRCs of three parts of a block are computed side by side. Then the three CRCs are joined into one. For this, the tables of
// Shift say how a CRC changes when part_bytes zero bytes follow. Three parts of 448 bytes fill most of an Ethernet packet.
constexpr size_t part_bytes = 448;
using Shift = std::array<std::array<uint32_t, 256>, 4>;

constexpr Shift make_shift() {
  std::array<uint32_t, 32> of_bits{};
  for (uint32_t bit = 0; bit < 32; ++bit) {
    uint32_t crc = uint32_t{1} << bit;
    for (size_t i = 0; i < part_bytes; ++i) crc = (crc >> 8) ^ table[crc & 0xFF];
    of_bits[bit] = crc;
  }
  Shift shift{};
  for (uint32_t byte = 0; byte < 4; ++byte) {
    for (uint32_t value = 0; value < 256; ++value) {
      for (uint32_t bit = 0; bit < 8; ++bit) shift[byte][value] ^= (value >> bit & 1) != 0 ? of_bits[8 * byte + bit] : 0;
    }
  }
  return shift;
}
constexpr Shift shift = make_shift();

// Returns the CRC of a message that is followed by part_bytes zero bytes. `crc` is the CRC of the message without them.
uint32_t shifted(uint64_t crc) {
  return shift[0][crc & 0xFF] ^ shift[1][crc >> 8 & 0xFF] ^ shift[2][crc >> 16 & 0xFF] ^ shift[3][crc >> 24 & 0xFF];
}

__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const void* from, size_t bytes, uint32_t crc) {
  const auto* data = static_cast<const std::byte*>(from);
  uint64_t wide = crc;
  for (; bytes >= 3 * part_bytes; bytes -= 3 * part_bytes, data += 3 * part_bytes) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < part_bytes; i += 8) {
      wide = _mm_crc32_u64(wide, word_at(data + i));
      second = _mm_crc32_u64(second, word_at(data + part_bytes + i));
      third = _mm_crc32_u64(third, word_at(data + 2 * part_bytes + i));
    }
    wide = shifted(shifted(wide) ^ second) ^ third;
  }
  return finish_sse42(data, bytes, wide);
}

// Factors for folding (Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel, 2009).
// The method treats a message as a polynomial. Only the remainder of this polynomial modulo the CRC polynomial matters. moved()
// moves 128 bits forward by `distance` bits: it multiplies each half of them by a power of x, and adds the two products. The
// order of the bits is mirrored, as everywhere in CRC-32C.
struct alignas(64) Fold {
  uint64_t factors[8];  // two factors, for the low and the high half of 128 bits; they are repeated four times to fill 512 bits
  constexpr explicit Fold(uint32_t distance) : factors{} {
    for (size_t i = 0; i < 8; ++i) factors[i] = factor(i % 2 == 0 ? distance + 32 : distance - 32);
  }
  static constexpr uint64_t factor(uint32_t power) {
    uint32_t crc = 0x80000000u;  // the polynomial x^0; the order of the bits is mirrored
    for (; power > 0; --power) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0u);
    return uint64_t{crc} << 1;
  }
};
constexpr Fold over_128(128), over_512(512), over_2048(2048);

#define UNISONO_FOLDING __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

UNISONO_FOLDING inline __m128i moved(__m128i bits, __m128i factors, __m128i to) {
  return _mm_ternarylogic_epi64(_mm_clmulepi64_si128(bits, factors, 0x00), _mm_clmulepi64_si128(bits, factors, 0x11), to,
                                0x96);  // this truth table means: exclusive or of the three operands
}

UNISONO_FOLDING inline __m512i moved(__m512i bits, __m512i factors, __m512i to) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(bits, factors, 0x00), _mm512_clmulepi64_epi128(bits, factors, 0x11),
                                   to, 0x96);
}

UNISONO_FOLDING uint32_t crc32c_folded(const void* from, size_t bytes, uint32_t crc) {
  const auto* data = static_cast<const std::byte*>(from);
  constexpr size_t block = 256;
  if (bytes < block) return finish_sse42(data, bytes, crc);
  __m512i a = _mm512_xor_si512(_mm512_loadu_si512(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  __m512i b = _mm512_loadu_si512(data + 64), c = _mm512_loadu_si512(data + 128), d = _mm512_loadu_si512(data + 192);
  data += block, bytes -= block;
  const __m512i wide = _mm512_load_si512(&over_2048), narrow = _mm512_load_si512(&over_512);
  for (; bytes >= block; bytes -= block, data += block) {
    a = moved(a, wide, _mm512_loadu_si512(data));
    b = moved(b, wide, _mm512_loadu_si512(data + 64));
    c = moved(c, wide, _mm512_loadu_si512(data + 128));
    d = moved(d, wide, _mm512_loadu_si512(data + 192));
  }
  a = moved(moved(moved(a, narrow, b), narrow, c), narrow, d);
  for (; bytes >= 64; bytes -= 64, data += 64) a = moved(a, narrow, _mm512_loadu_si512(data));
  alignas(64) __m128i parts[4];
  _mm512_store_si512(parts, a);
  const __m128i last = _mm_load_si128(reinterpret_cast<const __m128i*>(&over_128));
  const __m128i sum = moved(moved(moved(parts[0], last, parts[1]), last, parts[2]), last, parts[3]);
  const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(sum)),
             high = static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_unpackhi_epi64(sum, sum)));
  return finish_sse42(data, bytes, _mm_crc32_u64(_mm_crc32_u64(0, low), high));
}
#endif

uint32_t crc32c_by_table(const void* data, size_t bytes, uint32_t crc) {
  const auto* at = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ table[(crc ^ at[i]) & 0xFF];
  return crc;
}

struct Runnable {
  std::array<ChecksumKernel, 3> kernels{};
  size_t count = 0;
};

const Runnable& runnable() {
  static const Runnable result = [] {
    Runnable found;
#if defined(__x86_64__)
    const bool sse42 = __builtin_cpu_supports("sse4.2") != 0;
    const bool folds = sse42 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                       __builtin_cpu_supports("vpclmulqdq") != 0;
    if (folds) found.kernels[found.count++] = {"vpclmulqdq", crc32c_folded};
    if (sse42) found.kernels[found.count++] = {"sse4.2", crc32c_sse42};
#endif
    found.kernels[found.count++] = {"table", crc32c_by_table};
    return found;
  }();
  return result;
}

}  // namespace

std::span<const ChecksumKernel> runnable_checksums() { return std::span(runnable().kernels).first(runnable().count); }

uint32_t crc32c(const void* data, size_t bytes, uint32_t seed) { return ~runnable().kernels[0].update(data, bytes, ~seed); }

}  // namespace unisono
