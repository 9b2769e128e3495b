// CRC-32C checksums of snapshots. Uses the processor's instruction if there is one; the result is the same everywhere.
//
// The instruction takes 8 bytes per cycle but has a latency of 3 cycles, so three streams run in parallel. Their
// checksums are combined by shifting each over the bytes that follow it: a multiplication modulo the polynomial.
#pragma once

#include <array>

#include "base/common.hpp"

#if HITBOX_X86
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace hitbox {
namespace checksum {

constexpr u32 POLYNOMIAL = 0x82F63B78;  // bit 31 is the coefficient of 1

inline u32 multiply(u32 a, u32 b) {
  u32 product = 0;
  for (u32 bit = 1u << 31; bit; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
  }
  return product;
}

// The factor that shifts a checksum over this many bytes.
inline u32 shift_over(u64 bytes) {
  u32 power = 1u << 31, base = 1u << 23;  // 1, and x to the 8th
  for (; bytes; bytes >>= 1, base = multiply(base, base))
    if (bytes & 1) power = multiply(power, base);
  return power;
}

constexpr std::array<std::array<u32, 256>, 8> make_tables() {
  std::array<std::array<u32, 256>, 8> tables{};
  for (u32 i = 0; i < 256; ++i) {
    u32 crc = i;
    for (u32 bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
    tables[0][i] = crc;
  }
  for (u32 t = 1; t < 8; ++t)
    for (u32 i = 0; i < 256; ++i) tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 255];
  return tables;
}

inline u64 load_word(const u8* at) {
  u64 word;
  std::memcpy(&word, at, 8);
  return word;
}

// The functions below work on a state: the bitwise complement of a checksum.
inline u32 portable(u32 state, const u8* at, size_t size) {
  static constexpr auto tables = make_tables();
  for (; size >= 8; at += 8, size -= 8) {
    u64 word = load_word(at) ^ state;
    state = 0;
    for (u32 i = 0; i < 8; ++i) state ^= tables[7 - i][word >> 8 * i & 255];
  }
  for (; size; ++at, --size) state = state >> 8 ^ tables[0][(state ^ *at) & 255];
  return state;
}

#if HITBOX_X86 || defined(__ARM_FEATURE_CRC32)
#define HITBOX_CRC_INSTRUCTION 1
#if HITBOX_X86
#define HITBOX_CRC_TARGET __attribute__((target("sse4.2")))
HITBOX_CRC_TARGET inline u32 crc_step(u32 state, u64 word) { return u32(_mm_crc32_u64(state, word)); }
HITBOX_CRC_TARGET inline u32 crc_step(u32 state, u8 byte) { return _mm_crc32_u8(state, byte); }
inline bool has_instruction() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2");
}
#else
#define HITBOX_CRC_TARGET
inline u32 crc_step(u32 state, u64 word) { return __crc32cd(state, word); }
inline u32 crc_step(u32 state, u8 byte) { return __crc32cb(state, byte); }
inline bool has_instruction() { return true; }
#endif

HITBOX_CRC_TARGET inline u32 by_instruction(u32 state, const u8* at, size_t size) {
  constexpr size_t STREAM = size_t(16) << 10;
  static const u32 over_one = shift_over(STREAM), over_two = shift_over(2 * STREAM);
  for (; size >= 3 * STREAM; at += 3 * STREAM, size -= 3 * STREAM) {
    u32 first = state, second = 0, third = 0;
    for (const u8 *here = at, *end = at + STREAM; here < end; here += 8) {
      first = crc_step(first, load_word(here));
      second = crc_step(second, load_word(here + STREAM));
      third = crc_step(third, load_word(here + 2 * STREAM));
    }
    state = multiply(over_two, first) ^ multiply(over_one, second) ^ third;
  }
  for (; size >= 8; at += 8, size -= 8) state = crc_step(state, load_word(at));
  for (; size; ++at, --size) state = crc_step(state, *at);
  return state;
}
#endif

// The checksum of data whose first part has the checksum `before` and whose rest is given.
inline u32 crc32c(const u8* at, size_t size, u32 before = 0, bool force_portable = false) {
#if HITBOX_CRC_INSTRUCTION
  static const bool has_crc_instruction = has_instruction();
  if (has_crc_instruction && !force_portable) return ~by_instruction(~before, at, size);
#endif
  (void)force_portable;
  return ~portable(~before, at, size);
}

// The checksum of two concatenated parts, from their checksums.
inline u32 join(u32 first, u32 second, u64 second_size) { return multiply(shift_over(second_size), first) ^ second; }

}  // namespace checksum
}  // namespace hitbox
