// A box's row: which cells its ends lie in, to tell at a glance whether an event is inside, outside, or in doubt.
#pragma once

#include "lines.hpp"

namespace hitbox {
namespace {

// The cells of an event, and the attributes (bits) where a box's end in the same cell leaves doubt.
struct PointCells {
  u8 at[ROW_ATTRIBUTES];
  u64 unsure;

  const u8* low() const { return at; }
  const u8* high() const { return at; }
};

struct SpanCells {
  u8 first[ROW_ATTRIBUTES], last[ROW_ATTRIBUTES];
  u64 unsure;

  const u8* low() const { return first; }
  const u8* high() const { return last; }
};

static inline const u8* row_of(const Bitmap& map, u32 block, u32 position) {
  return map.rows + (size_t(block) * BLOCK + position) * row_bytes(map.attributes, map.row_cells);
}

static inline u64 row_mask(const Bitmap& map, const u8* row) {
  u64 mask;
  std::memcpy(&mask, row, 8);
  return mask & ~0ull >> (64 - 8 * row_mask_bytes(map.attributes));
}

static inline u32 row_cell(const u8* cells, u32 at) {
  u16 two;
  std::memcpy(&two, cells + at * 6 / 8, 2);
  return two >> (at * 6 % 8) & 63;
}

#if defined(__AVX512VBMI2__)
// Up to 64 cells of 6 bits, a byte each: a word takes the 6 bytes of its eight.
static inline __m512i spread_cells(const u8* at) {
  const __m512i words = _mm512_set_epi64(0x31302F2E2D2C2B2A, 0x2B2A292827262524, 0x2524232221201F1E, 0x1F1E1D1C1B1A1918,
                                         0x1918171615141312, 0x131211100F0E0D0C, 0x0D0C0B0A09080706, 0x0706050403020100);
  const __m512i shifts = _mm512_set1_epi64(0x2A241E18120C0600);
  __m512i moved = _mm512_permutexvar_epi8(words, _mm512_loadu_si512(at));
  return _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, moved), _mm512_set1_epi8(63));
}
#endif

// Holds an event against one box's cells: ~0 where it fails for sure, else the attributes that lists must settle.
template <class Cells>
static inline u64 hold_row(const Bitmap& map, const Cells& event, const u8* row) {
  u64 mask = row_mask(map, row), ties = 0, fails = 0, rest = 0;
  const u8* lows = row + row_mask_bytes(map.attributes);
  const u8* highs = lows + row_cell_bytes(map.row_cells);
#if defined(__AVX512VBMI2__)
  if (u32(__builtin_popcountll(mask)) <= map.row_cells) {
    __m512i low = _mm512_maskz_expand_epi8(mask, spread_cells(lows));
    __m512i high = _mm512_maskz_expand_epi8(mask, spread_cells(highs));
    __m512i event_low = _mm512_loadu_si512(event.low()), event_high = _mm512_loadu_si512(event.high());
    fails = _mm512_mask_cmplt_epu8_mask(mask, high, event_low) | _mm512_mask_cmpgt_epu8_mask(mask, low, event_high);
    ties = _mm512_mask_cmpeq_epu8_mask(mask, high, event_low) | _mm512_mask_cmpeq_epu8_mask(mask, low, event_high);
    return fails ? ~0ull : ties & event.unsure;
  }
#endif
  u32 i = 0;
  for (u64 bits = mask; bits; bits &= bits - 1, ++i) {
    if (i == map.row_cells) {
      rest = bits;  // the row has no room for these
      break;
    }
    u32 a = u32(__builtin_ctzll(bits)), low = row_cell(lows, i), high = row_cell(highs, i);
    fails |= u64(high < event.low()[a]) | u64(low > event.high()[a]);
    ties |= u64(high == event.low()[a] || low == event.high()[a]) << a;
  }
  return fails ? ~0ull : (ties & event.unsure) | rest;
}

}  // namespace
}  // namespace hitbox
