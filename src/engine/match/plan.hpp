// What one event asks of a bitmap segment: which lines to AND and which lists to hold it against. Points (point.hpp)
// and intervals (interval.hpp) have the same functions, so that the loops above them are compiled once for each and the
// point's stay lean. Here is what they share, and how a tile is settled once its lines are gathered.
#pragma once

#include "match/row_test.hpp"

namespace hitbox {
namespace {

constexpr u32 MAX_PENDING_LISTS = 64;  // of a tile that wait to be read

// A tile that an event visits, and in which lanes.
struct Visit {
  u32 tile, lanes;
};

template <class Callback>
static inline void each_lane(Visit visit, Callback callback) {
  for (u32 lanes = visit.lanes; lanes; lanes &= lanes - 1) callback(u32(__builtin_ctz(lanes)));
}

// Plans of many events over one segment: row e of each array belongs to event e. A point has one side, an interval two.
template <u32 SIDES>
struct Plans {
  u32 width, words, padded;
  Scratch<u32> qkeys;  // [side][attribute]
  Scratch<u8> prefixes;  // [side][attribute, padded]
  Scratch<u64> list_attributes;   // bits: attributes whose lists must be read, besides those without lines in a tile
  Scratch<u64> ambiguous;  // bits: attributes where an end with the event's glance leaves doubt
  Scratch<u16> row_limit;     // boxes of a tile up to which their rows are read, not lists

  Plans(u32 attributes, size_t events)
      : width(attributes), words((attributes + 63) / 64), padded(words * 64), qkeys(events * SIDES * attributes),
        prefixes(events * SIDES * padded), list_attributes(words * events), ambiguous(words * events), row_limit(events) {}

  void prefetch_plan(size_t event) const {
    prefetch(qkeys_of(event, 0));
    prefetch(prefixes_of(event, 0));
    prefetch(ambiguous.data + event * words);
    prefetch(row_limit.data + event);
  }

  void start(size_t event) {
    std::memset(list_attributes.data + event * words, 0, words * 8);
    std::memset(ambiguous.data + event * words, 0, words * 8);
  }

  u32* qkeys_of(size_t event, u32 side) const { return qkeys.data + (event * SIDES + side) * width; }
  u8* prefixes_of(size_t event, u32 side) const { return prefixes.data + (event * SIDES + side) * padded; }

  void put(size_t event, u32 side, u32 a, u32 qkey) {
    qkeys_of(event, side)[a] = qkey;
    prefixes_of(event, side)[a] = u8(qkey >> SUFFIX_BITS);
  }

  EncodedEvents<SIDES> encoded(const i64* low, const i64* high) const {
    return {low, high, qkeys.data, prefixes.data, ambiguous.data, width, padded};
  }

  // Calls take(attribute) for each whose lists in a tile may exclude the event.
  template <class Callback>
  void each_list_attribute(const Bitmap& map, u32 tile, size_t event, Callback callback) const {
    for (u32 w = 0; w < words; ++w)
      for (u64 bits = list_attributes.data[event * words + w] | map.bare[size_t(tile) * words + w]; bits; bits &= bits - 1)
        callback(w * 64 + u32(__builtin_ctzll(bits)));
  }
};

static inline void set_bit(u64* bits, u32 at) { bits[at >> 6] |= 1ull << (at & 63); }

static inline void narrow(u64* blocks, const u64* summary, u32 words) {
  for (u32 w = 0; w < words; ++w) blocks[w] &= summary[w];
}

// Calls take(visit) for each tile among the 64 blocks of a word.
template <class Callback>
static inline void each_visit(u32 word, u64 blocks, Callback callback) {
  for (u32 tile = word * 64 / LANES; blocks; blocks >>= LANES, ++tile)
    if (u32 lanes = u32(blocks & ((1u << LANES) - 1))) callback(Visit{tile, lanes});
}

// The blocks that live in levels [bottom, top], before any attribute is looked at.
static inline void init_blocks(const Bitmap& map, const MatchLimits& limits, u64* blocks) {
  auto [from, to] = blocks_of(map, limits.top, limits.bottom);
  for (u32 w = 0; w < map.summary_words; ++w) {
    u64 word = ~0ull;
    u32 begin = w * 64;
    if (begin + 64 <= from || begin >= to) word = 0;
    else {
      if (begin < from) word &= ~0ull << (from - begin);
      if (begin + 64 > to) word &= ~0ull >> (begin + 64 - to);
    }
    blocks[w] = word;
  }
}

// A tile with boxes that its lines did not exclude. Few of them are listed, and kept or dropped by their rows; many
// stay bits, and are cleared by the lists, and by the rows of those that lists leave in doubt on some attribute.
struct TileCandidates {
  alignas(64) u64 remaining[TILE_WORDS];
  u32 tile, size;
  u32 event;
  u32 list_count = 0;
  List lists[MAX_PENDING_LISTS];
  Undecided undecided;

  // All that live in the lanes of a visit.
  void start(const Bitmap& map, Visit visit, u32 of_event) {
    tile = visit.tile;
    event = of_event;
    std::memset(remaining, 0, sizeof remaining);
    const u64* alive = map.alive + size_t(tile) * TILE_WORDS;
    each_lane(visit, [&](u32 lane) { store(remaining + lane * WORDS, load(alive + lane * WORDS)); });
  }
};

static inline void prefetch_row(const Bitmap& map, size_t position) {
  const u8* row = row_at(map, position);
  prefetch(row);
  prefetch(row + map.row_bytes - 1);
}

// Lists the boxes that are left of a tile, with the event, and fetches what will be asked of them; returns how many.
static inline u32 list_boxes(const Bitmap& map, const TileCandidates& one, u32* box) {
  u32 size = list_bits<TILE_WORDS>(one.remaining, one.event << 11, box);
  size_t first = size_t(one.tile) * TILE;
  for (u32 i = 0; i < size; ++i) {
    size_t at = first + (box[i] & POSITION);
    prefetch_row(map, at);
    prefetch(map.numbers.from(at).first);
  }
  return size;
}

template <class P>
static inline void prefetch_tables(const P& plans, const Bitmap& map, const TileCandidates& one) {
  plans.each_list(map, one.tile, one.event,
                  [&](u32, const Directory* at, u32 cell, TopBounds) { prefetch(map.entries + at->base + cell); });
}

static inline void prefetch_list(const Bitmap& map, const List& list) {
  for (u32 at = list.from; at < list.to + 31; at += 32) prefetch_outer(map.entries + at);
}

static inline void resolve_undecided(const Bitmap& map, const EncodedEvent& event, TileCandidates& one) {
  for (u32 i = 0; i < one.undecided.size; ++i) {
    u32 position = one.undecided.box[i] & POSITION;
    const u8* row = row_at(map, size_t(one.tile) * TILE + position);
    if (bit(one.remaining, position) && constraint_fails(map, event, row, one.undecided.box[i] >> 11)) clear(one.remaining, position);
  }
  one.undecided.size = 0;
}

// Clears whom the lists that wait exclude; calls meanwhile() before each. Rows of boxes in doubt are fetched, and
// looked at when `settle` comes to them.
template <class Prefetch>
static inline void clear_by_lists(const Bitmap& map, const EncodedEvent& event, TileCandidates& one, Prefetch prefetch_more) {
  FailedEntries failed;
  for (const List *list = one.lists, *end = list + one.list_count; list < end; ++list) {
    prefetch_more();
    if (failed.size + list->to - list->from > FailedEntries::CAPACITY) failed.clear_from(one.remaining);
    find_failed(map, *list, one.remaining, failed, one.undecided, [&] { resolve_undecided(map, event, one); });
  }
  failed.clear_from(one.remaining);
  one.list_count = 0;
  for (u32 i = 0; i < one.undecided.size; ++i)
    prefetch_row(map, size_t(one.tile) * TILE + (one.undecided.box[i] & POSITION));
}

// Notes the lists that a tile's boxes must be held against; should they be too many to wait, some are read at once.
template <class P>
static inline void find_lists(const P& plans, const Bitmap& map, const EncodedEvent& event, TileCandidates& one) {
  plans.each_list(map, one.tile, one.event, [&](u32 a, const Directory* entry, u32 cell, TopBounds tops) {
    if (one.list_count == MAX_PENDING_LISTS) clear_by_lists(map, event, one, NoPrefetch{});
    List& list = one.lists[one.list_count++];
    list_of(map, entry, cell, list.from, list.to);
    list.attribute = a;
    list.event = tops;
  });
}

// Boxes of a block are in order of level. Calls take(level, from, to) for each level that boxes of its line have: they
// are [from, to) of the boxes in it. `ends` tells how many boxes of the block are of level 9, of 8 or more, ...
template <class Callback>
static inline void each_level(const u16* ends, const u64* line, Callback callback) {
  u32 before[WORDS + 1] = {}, from = 0;
  for (u32 w = 0; w < WORDS; ++w) before[w + 1] = before[w] + u32(__builtin_popcountll(line[w]));
  for (u32 l = 0; l < LEVELS && from < before[WORDS]; ++l) {
    u32 w = ends[l] / 64, to = before[w];
    if (w < WORDS) to += u32(__builtin_popcountll(line[w] & ((1ull << ends[l] % 64) - 1)));
    if (to > from) callback(LEVELS - 1 - l, from, to);
    from = to;
  }
}

// Hands out the boxes of a tile that hold the event, once its lists are read: emit.tile(level, numbers of the tile,
// lines, meanwhile), or where levels differ emit.mixed(block, line).
template <class Emit, class Prefetch>
static inline void emit_matches(const Bitmap& map, const EncodedEvent& event, TileCandidates& one, Emit& emit, Prefetch prefetch_more) {
  resolve_undecided(map, event, one);
  u32 level = map.tile_level[one.tile];
  if (level != MIXED) return emit.tile(level, map.numbers.from(size_t(one.tile) * TILE), one.remaining, prefetch_more);
  for (u32 lane = 0; lane < LANES; ++lane) {
    prefetch_more();
    const u64* line = one.remaining + lane * WORDS;
    if (empty(load(line))) continue;  // the last tile may have fewer blocks than lanes
    emit.mixed(one.tile * LANES + lane, line);
  }
}

}  // namespace
}  // namespace hitbox
