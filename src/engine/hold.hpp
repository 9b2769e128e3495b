// Holding an event against a box's row.
#pragma once

#include "lines.hpp"

namespace hitbox {
namespace {

constexpr u32 MOST_ROWS = 160;  // of a tile that are looked at one by one

// What rows are held against: the event's keys, the glances of their places (a byte an attribute, padded to 64), and
// the attributes where an end with the same glance leaves doubt, a bit each.
struct Held {
  const i64 *low, *high;
  const u8 *low_glance, *high_glance;
  const u64* unsure;
};

static inline bool key_fails(const Bitmap& map, const Held& event, const Row& row, u32 i, u32 a) {
  return (row.lows[i] == event.high_glance[a] && row_key(map, row, i, a, false) > event.high[a]) ||
         (row.highs[i] == event.low_glance[a] && row_key(map, row, i, a, true) < event.low[a]);
}

// What glances tell: whether the box fails, or else the attributes where its keys must tell (a bit each).
struct Glance {
  bool fails;
  u64 ties;
};

static inline Glance glance_at(const Bitmap& map, const Held& event, const Row& row) {
  u64 mask = row_mask(map.attributes, row.head);
#if defined(__AVX512VBMI2__)
  __m512i low = _mm512_maskz_expand_epi8(mask, _mm512_loadu_si512(row.lows));
  __m512i high = _mm512_maskz_expand_epi8(mask, _mm512_loadu_si512(row.highs));
  __m512i event_low = _mm512_loadu_si512(event.low_glance), event_high = _mm512_loadu_si512(event.high_glance);
  __m512i beyond = _mm512_or_si512(_mm512_subs_epu8(event_low, high), _mm512_subs_epu8(low, event_high));
  u64 fails = _mm512_mask_test_epi8_mask(mask, beyond, beyond);
  u64 ties = _mm512_mask_cmpeq_epu8_mask(mask, high, event_low) | _mm512_mask_cmpeq_epu8_mask(mask, low, event_high);
#else
  u64 fails = 0, ties = 0;
  u32 i = 0;
  for (u64 bits = mask; bits; bits &= bits - 1, ++i) {
    u32 a = u32(__builtin_ctzll(bits));
    fails |= u64(row.highs[i] < event.low_glance[a]) | u64(row.lows[i] > event.high_glance[a]);
    ties |= u64(row.highs[i] == event.low_glance[a] || row.lows[i] == event.high_glance[a]) << a;
  }
#endif
  return {fails != 0, ties & *event.unsure};
}

static inline bool holds_wide(const Bitmap& map, const Held& event, const Row& row) {
  bool fails = false;
  for (u32 i = 0; i < row.size && !fails; ++i) {
    u32 a = row_attribute(row, i);
    fails = row.highs[i] < event.low_glance[a] || row.lows[i] > event.high_glance[a] ||
            (bit(event.unsure, a) && key_fails(map, event, row, i, a));
  }
  return !fails;
}

// Of the boxes at some positions of a tile keeps those that hold the event, in any order; returns how many. What each
// box comes to is hard to foretell, so there is no branch on it: glances first, keys of those that are close later.
static inline u32 keep_by_rows(const Bitmap& map, const Held& event, u32 tile, u32 size, u16* position) {
  const u8* rows = row_at(map, size_t(tile) * TILE);
  auto row_of = [&](u32 at) { return open_row(map, rows + size_t(at) * map.row_bytes); };
  u32 kept = 0, close = 0;
  if (map.attributes > MASKED) {
    for (u32 i = 0; i < size; ++i) {
      u16 at = position[i];
      position[kept] = at;
      kept += holds_wide(map, event, row_of(at));
    }
    return kept;
  }
  u16 tied[MOST_ROWS];
  u64 ties[MOST_ROWS];
  for (u32 i = 0; i < size; ++i) {
    u16 at = position[i];
    Glance seen = glance_at(map, event, row_of(at));
    position[kept] = tied[close] = at;
    ties[close] = seen.ties;
    kept += !seen.fails & !seen.ties;
    close += !seen.fails & (seen.ties != 0);
  }
  for (u32 i = 0; i < close; ++i) {
    Row row = row_of(tied[i]);
    u64 mask = row_mask(map.attributes, row.head);
    bool fails = false;
    for (u64 bits = ties[i]; bits; bits &= bits - 1) {
      u32 a = u32(__builtin_ctzll(bits)), which = u32(__builtin_popcountll(mask & ((1ull << a) - 1)));
      fails |= key_fails(map, event, row, which, a);
    }
    position[kept] = tied[i];
    kept += !fails;
  }
  return kept;
}

// Whether one constraint of a box, on this attribute, excludes the event.
static inline bool fails_on(const Bitmap& map, const Held& event, const u8* at, u32 attribute) {
  Row row = open_row(map, at);
  u32 i = 0;
  if (map.attributes <= MASKED) {
    i = u32(__builtin_popcountll(row_mask(map.attributes, row.head) & ((1ull << attribute) - 1)));
  } else {
    while (row_attribute(row, i) != attribute) ++i;
  }
  return row.highs[i] < event.low_glance[attribute] || row.lows[i] > event.high_glance[attribute] ||
         key_fails(map, event, row, i, attribute);
}

}  // namespace
}  // namespace hitbox
