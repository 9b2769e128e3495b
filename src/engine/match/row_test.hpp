// Holding an event against a box's row.
#pragma once

#include "match/lines.hpp"

namespace hitbox {
namespace {

constexpr u32 MOST_ROWS = 160;  // of a tile that are looked at one by one

// What rows are held against: the event's places (and keys, where rows hold keys), their glances (a byte an attribute,
// padded to 64), and the attributes where an end with the same glance leaves doubt, a bit each.
struct Held {
  const i64 *low, *high;
  const u32 *low_place, *high_place;
  const u8 *low_glance, *high_glance;
  const u64* unsure;
};

// The same of many events. A point has one side: its high end is its low one.
template <u32 SIDES>
struct Against {
  const i64 *low, *high;
  const u32* places;
  const u8* glances;
  const u64* unsure;
  u32 attributes, padded;

  Held of(size_t event) const {
    const u32* place = places + event * SIDES * attributes;
    const u8* glance = glances + event * SIDES * padded;
    return {low + event * attributes, high + event * attributes,
            place, place + (SIDES - 1) * attributes,
            glance, glance + (SIDES - 1) * padded,
            unsure + event * (padded / 64)};
  }
};

// Exactly: whether a box's i-th constraint, which is on attribute a, excludes the event.
static inline bool key_fails(const Bitmap& map, const Held& event, const Row& row, u32 i, u32 a) {
  int above, below;
  if (map.keyed) {
    above = row_key(map, row, i, a, false) > event.high[a];
    below = row_key(map, row, i, a, true) < event.low[a];
  } else {
    above = row_place(row, i, false) > event.high_place[a];
    below = row_place(row, i, true) < event.low_place[a];
  }
  return above | below;
}

// What glances tell: whether the box fails, or else the attributes where its keys must tell (a bit each).
struct Glance {
  bool fails;
  u64 ties;
};

static inline Glance glance_at(const Held& event, const Row& row, u64 mask) {
#if defined(__AVX512VBMI2__)
  __m512i low = _mm512_loadu_si512(row.lows), high = _mm512_loadu_si512(row.highs);
  __m512i event_low = _mm512_maskz_compress_epi8(mask, _mm512_loadu_si512(event.low_glance));
  __m512i event_high = _mm512_maskz_compress_epi8(mask, _mm512_loadu_si512(event.high_glance));
  __mmask64 used = _bzhi_u64(~0ull, row.size);
  __m512i beyond = _mm512_or_si512(_mm512_subs_epu8(event_low, high), _mm512_subs_epu8(low, event_high));
  u64 fails = _mm512_mask_test_epi8_mask(used, beyond, beyond);
  u64 level = _mm512_cmpeq_epu8_mask(high, event_low) | _mm512_cmpeq_epu8_mask(low, event_high);
  u64 ties = _pdep_u64(level, mask);
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
    bool tied = row.highs[i] == event.low_glance[a] || row.lows[i] == event.high_glance[a];
    fails = row.highs[i] < event.low_glance[a] || row.lows[i] > event.high_glance[a] ||
            (tied && bit(event.unsure, a) && key_fails(map, event, row, i, a));
  }
  return !fails;
}

// Of at most MOST_ROWS boxes of a tile, each with an event, | event | position in tile 11 |, keeps those that hold it,
// in any order; returns how many. What each box comes to is hard to foretell, so there is no branch on it: glances
// first, keys of those that are close later.
template <u32 SIDES>
static inline u32 keep_by_rows(const Bitmap& map, u32 tile, u32 size, u32* box, Against<SIDES> against) {
  const RowShape shape = shape_of(map);
  const u8* rows = row_at(map, size_t(tile) * TILE);
  auto row_of = [=](u32 one) { return open_row(shape, rows + size_t(one & POSITION) * shape.bytes); };
  u32 kept = 0, close = 0;
  if (!shape.masked) {
    for (u32 i = 0; i < size; ++i) {
      u32 one = box[i];
      box[kept] = one;
      kept += holds_wide(map, against.of(one >> 11), row_of(one));
    }
    return kept;
  }
  u32 tied[MOST_ROWS];
  u64 ties[MOST_ROWS];
  for (u32 i = 0; i < size; ++i) {
    u32 one = box[i];
    Row row = row_of(one);
    Glance seen = glance_at(against.of(one >> 11), row, row_mask(shape, row.head));
    box[kept] = tied[close] = one;
    ties[close] = seen.ties;
    kept += !seen.fails & !seen.ties;
    close += !seen.fails & (seen.ties != 0);
  }
  for (u32 i = 0; i < close; ++i) {
    Held event = against.of(tied[i] >> 11);
    Row row = row_of(tied[i]);
    u64 mask = row_mask(shape, row.head);
    bool fails = false;
    for (u64 bits = ties[i]; bits; bits &= bits - 1) {
      u32 a = u32(__builtin_ctzll(bits)), which = u32(__builtin_popcountll(mask & ((1ull << a) - 1)));
      fails |= key_fails(map, event, row, which, a);
    }
    box[kept] = tied[i];
    kept += !fails;
  }
  return kept;
}

// Whether one constraint of a box, on this attribute, excludes the event.
static inline bool fails_on(const Bitmap& map, const Held& event, const u8* at, u32 attribute) {
  const RowShape shape = shape_of(map);
  Row row = open_row(shape, at);
  u32 i = 0;
  if (shape.masked) i = u32(__builtin_popcountll(row_mask(shape, row.head) & ((1ull << attribute) - 1)));
  else
    while (i < row.size && row_attribute(row, i) != attribute) ++i;
  return key_fails(map, event, row, i, attribute);
}

}  // namespace
}  // namespace hitbox
