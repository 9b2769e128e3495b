// Tests events against the rows of boxes (format/row.hpp).
#pragma once

#include "match/lines.hpp"

namespace hitbox {
namespace {

constexpr u32 MAX_ROW_TESTS = 160;  // boxes per tile that are tested by row

// An event as rows are compared with it: keys, quantized keys, prefixes (padded to 64 attributes), and one bit per
// attribute where equal prefixes do not decide.
struct EncodedEvent {
  const i64 *low, *high;
  const u32 *low_qkey, *high_qkey;
  const u8 *low_prefix, *high_prefix;
  const u64* ambiguous;
};

// The same for many events. A point has one side: its high bound is its low bound.
template <u32 SIDES>
struct EncodedEvents {
  const i64 *low, *high;
  const u32* qkeys;
  const u8* prefixes;
  const u64* ambiguous;
  u32 attributes, padded, stride;  // of the segment; of the events, which may have more attributes

  EncodedEvent of(size_t event) const {
    const u32* qkey = qkeys + event * SIDES * attributes;
    const u8* prefix = prefixes + event * SIDES * padded;
    return {low + event * stride,
            high + event * stride,
            qkey,
            qkey + (SIDES - 1) * attributes,
            prefix,
            prefix + (SIDES - 1) * padded,
            ambiguous + event * (padded / 64)};
  }
};

// Whether a box's i-th constraint, which is on attribute a, excludes the event. Exact.
template <class Segment>
static inline bool key_fails(const Segment& map, const EncodedEvent& event, const Row& row, u32 i, u32 a) {
  int above, below;
  if (map.keyed) {
    above = row_key(map, row, i, a, false) > event.high[a];
    below = row_key(map, row, i, a, true) < event.low[a];
  } else {
    above = row_qkey(row, i, false) > event.high_qkey[a];
    below = row_qkey(row, i, true) < event.low_qkey[a];
  }
  return above | below;
}

// What prefixes tell: the box fails, or else the attributes (one bit each) where the suffixes decide.
struct PrefixTest {
  bool fails;
  u64 ties;
};

#if defined(__AVX2__) && !defined(__AVX512VBMI2__)
// Moves chosen bytes to the front: what vpcompressb does on processors that have it.
struct ByteCompressor {
  alignas(64) u8 order[256][8]{};  // [which of 8 bytes]: their places, then 0x80, which shuffles to 0
  alignas(64) u8 moves[32]{};      // from 16 - n: moves bytes up by n places

  constexpr ByteCompressor() {
    for (u32 chosen = 0; chosen < 256; ++chosen) {
      u32 n = 0;
      for (u32 i = 0; i < 8; ++i)
        if (chosen >> i & 1) order[chosen][n++] = u8(i);
      while (n < 8) order[chosen][n++] = 0x80;
    }
    for (u32 i = 0; i < 32; ++i) moves[i] = i < 16 ? 0x80 : u8(i - 16);
  }

  // The bytes that `mask` chooses, at most 16.
  __m128i operator()(const u8* bytes, u64 mask) const {
    __m128i found = _mm_setzero_si128();
    for (u32 n = 0; mask;) {
      u32 first = u32(__builtin_ctzll(mask)) & ~7u, chosen = u32(mask >> first & 255);
      __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + first));
      __m128i some = _mm_shuffle_epi8(eight, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(order[chosen])));
      __m128i move = _mm_loadu_si128(reinterpret_cast<const __m128i*>(moves + 16 - n));
      found = _mm_or_si128(found, _mm_shuffle_epi8(_mm_move_epi64(some), move));
      n += u32(__builtin_popcount(chosen));
      mask &= ~(255ull << first);
    }
    return found;
  }
};
static constexpr ByteCompressor COMPRESS_BYTES;
#endif

#if defined(__AVX512VBMI2__)
static inline __m128i first_chosen(const u8* bytes, u64 mask) {
  return _mm512_castsi512_si128(_mm512_maskz_compress_epi8(mask, _mm512_loadu_si512(bytes)));
}
#elif defined(__AVX2__)
static inline __m128i first_chosen(const u8* bytes, u64 mask) { return COMPRESS_BYTES(bytes, mask); }
#endif

static inline PrefixTest test_prefixes(const EncodedEvent& event, const Row& row, u64 mask) {
#if defined(__AVX2__)
  if (row.size <= 16) {  // a short row lies in one cache line more often than 64 bytes do
    auto same = [](__m128i x, __m128i y) { return u32(_mm_movemask_epi8(_mm_cmpeq_epi8(x, y))); };
    __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row.lows));
    __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row.highs));
    __m128i event_low = first_chosen(event.low_prefix, mask), event_high = event_low;
    if (event.high_prefix != event.low_prefix) event_high = first_chosen(event.high_prefix, mask);
    __m128i beyond = _mm_or_si128(_mm_subs_epu8(event_low, high), _mm_subs_epu8(low, event_high));
    u32 used = (1u << row.size) - 1, level = (same(high, event_low) | same(low, event_high)) & used;
    bool outside = (same(beyond, _mm_setzero_si128()) & used) != used;
    // Rarely any is level, and depositing bits is slow on some processors.
    return {outside, level ? _pdep_u64(level, mask) & *event.ambiguous : 0};
  }
#endif
#if defined(__AVX512VBMI2__)
  __m512i low = _mm512_loadu_si512(row.lows), high = _mm512_loadu_si512(row.highs);
  __m512i event_low = _mm512_maskz_compress_epi8(mask, _mm512_loadu_si512(event.low_prefix));
  __m512i event_high = _mm512_maskz_compress_epi8(mask, _mm512_loadu_si512(event.high_prefix));
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
    fails |= u64(row.highs[i] < event.low_prefix[a]) | u64(row.lows[i] > event.high_prefix[a]);
    ties |= u64(row.highs[i] == event.low_prefix[a] || row.lows[i] == event.high_prefix[a]) << a;
  }
#endif
  return {fails != 0, ties & *event.ambiguous};
}

static inline bool wide_row_matches(const Bitmap& map, const EncodedEvent& event, const Row& row) {
  bool fails = false;
  for (u32 i = 0; i < row.size && !fails; ++i) {
    u32 a = row_attribute(row, i);
    bool tied = row.highs[i] == event.low_prefix[a] || row.lows[i] == event.high_prefix[a];
    fails = row.highs[i] < event.low_prefix[a] || row.lows[i] > event.high_prefix[a] ||
            (tied && bit(event.ambiguous, a) && key_fails(map, event, row, i, a));
  }
  return !fails;
}

// Filters up to MAX_ROW_TESTS boxes of a tile, each with its event, | event | position in tile 11 |. Keeps those that
// match, in any order, and returns their number. Outcomes are hard to predict, so there is no branch on them: first all
// prefixes are tested, then the suffixes of the ties.
template <u32 SIDES>
static inline u32 filter_by_rows(const Bitmap& map, u32 tile, u32 size, u32* box, EncodedEvents<SIDES> events) {
  assert(size <= MAX_ROW_TESTS);
  const RowShape shape = shape_of(map);
  const u8* rows = row_at(map, size_t(tile) * TILE);
  auto row_of = [=](u32 one) { return open_row(shape, rows + size_t(one & POSITION) * shape.bytes); };
  u32 kept = 0, close = 0;
  if (!shape.masked) {
    for (u32 i = 0; i < size; ++i) {
      u32 one = box[i];
      box[kept] = one;
      kept += wide_row_matches(map, events.of(one >> 11), row_of(one));
    }
    return kept;
  }
  u32 tied[MAX_ROW_TESTS];
  u64 ties[MAX_ROW_TESTS];
  for (u32 i = 0; i < size; ++i) {
    u32 one = box[i];
    Row row = row_of(one);
    PrefixTest seen = test_prefixes(events.of(one >> 11), row, row_mask(shape, row.head));
    box[kept] = tied[close] = one;
    ties[close] = seen.ties;
    kept += !seen.fails & !seen.ties;
    close += !seen.fails & (seen.ties != 0);
  }
  for (u32 i = 0; i < close; ++i) {
    EncodedEvent event = events.of(tied[i] >> 11);
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

// Whether a box's constraint on this attribute excludes the event.
template <class Segment>
static inline bool constraint_fails(const Segment& map, const EncodedEvent& event, const u8* at, u32 attribute) {
  const RowShape shape = shape_of(map);
  Row row = open_row(shape, at);
  u32 i = 0;
  if (shape.masked) i = u32(__builtin_popcountll(row_mask(shape, row.head) & ((1ull << attribute) - 1)));
  else
    while (i < row.size && row_attribute(row, i) != attribute) ++i;
  assert(i < row.size);
  return key_fails(map, event, row, i, attribute);
}

}  // namespace
}  // namespace hitbox
