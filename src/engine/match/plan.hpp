// Plans: which lines and lists of a bitmap segment an event reads. Points (point.hpp) and intervals (interval.hpp) have
// the same interface, so the loops above them (pipeline.hpp, batch.hpp) are templates, compiled for each. This file has
// what both share, and the steps that follow once a tile's lines are ANDed.
#pragma once

#include "match/row_test.hpp"

namespace hitbox {
namespace {

constexpr u32 MAX_PENDING_LISTS = 64;  // lists of a tile that are located but not read yet

// A tile that an event visits, and a bit mask of the lanes.
struct Visit {
  u32 tile, lanes;
};

template <class Callback>
static inline void each_lane(Visit visit, Callback callback) {
  for (u32 lanes = visit.lanes; lanes; lanes &= lanes - 1) callback(u32(__builtin_ctz(lanes)));
}

// The plans of many events for one segment: row e of each array belongs to event e. A point has one side, an interval
// two.
template <u32 SIDES>
struct Plans {
  u32 width, words, padded;
  Scratch<u32> qkeys;            // [side][attribute]
  Scratch<u8> prefixes;          // [side][attribute, padded]
  Scratch<u64> list_attributes;  // bits: attributes whose lists must be read, besides those without lines; if compact,
                                 // those for which rows must be tested
  Scratch<u64> ambiguous;        // bits: attributes where equal prefixes do not decide
  Scratch<u16> row_limit;        // up to this many boxes per tile, rows are read instead of lists

  Plans(u32 attributes, size_t events)
      : width(attributes), words((attributes + 63) / 64), padded(words * 64), qkeys(events * SIDES * attributes),
        prefixes(events * SIDES * padded), list_attributes(words * events), ambiguous(words * events),
        row_limit(events) {}

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

  // The keys of the events lie `stride` apart.
  EncodedEvents<SIDES> encoded(const i64* low, const i64* high, u32 stride = 0) const {
    return {low, high, qkeys.data, prefixes.data, ambiguous.data, width, padded, stride};
  }

  // Calls callback(attribute) for each whose lists in a tile may exclude the event.
  template <class Callback>
  void each_list_attribute(const Bitmap& map, u32 tile, size_t event, Callback callback) const {
    for (u32 w = 0; w < words; ++w)
      for (u64 bits = list_attributes.data[event * words + w] | map.bare[size_t(tile) * words + w]; bits;
           bits &= bits - 1)
        callback(w * 64 + u32(__builtin_ctzll(bits)));
  }

  // Whether rows decide, because the lines of a compact segment do not. Otherwise its lists are few: those of attributes
  // without lines.
  bool rows_decide(const Bitmap& map, size_t event) const {
    u64 any = 0;
    for (u32 w = 0; w < words && map.compact; ++w) any |= list_attributes.data[event * words + w];
    return any != 0;
  }
};

static inline void set_bit(u64* bits, u32 at) { bits[at >> 6] |= 1ull << (at & 63); }

static inline void narrow(u64* blocks, const u64* summary, u32 words) {
  for (u32 w = 0; w < words; ++w) blocks[w] &= summary[w];
}

// Calls callback(visit) for each tile among the 64 blocks of a word.
template <class Callback>
static inline void each_visit(u32 word, u64 blocks, Callback callback) {
  for (u32 tile = word * 64 / LANES; blocks; blocks >>= LANES, ++tile)
    if (u32 lanes = u32(blocks & ((1u << LANES) - 1))) callback(Visit{tile, lanes});
}

// The blocks that contain the wanted levels, before any attribute is considered.
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

// The boxes of a tile that its lines did not exclude. If few, they are listed and filtered by their rows. If many, they
// stay a bitmap, from which lists, and rows of boxes that lists do not decide, clear those that fail.
struct TileCandidates {
  alignas(64) u64 remaining[TILE_WORDS];
  u32 tile, size;
  u32 event;
  u32 list_count = 0;
  List lists[MAX_PENDING_LISTS];
  Undecided undecided;

  // Sets the bits of all live boxes in the lanes of a visit.
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

// Lists the remaining boxes of a tile with the event, and prefetches their rows and numbers; returns their number.
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
    if (bit(one.remaining, position) && constraint_fails(map, event, row, one.undecided.box[i] >> 11))
      clear(one.remaining, position);
  }
  one.undecided.size = 0;
}

// Clears the boxes that the pending lists exclude; calls prefetch_more() before each list. Prefetches the rows of
// undecided boxes, which emit_matches resolves.
template <class Prefetch>
static inline void clear_by_lists(const Bitmap& map, const EncodedEvent& event, TileCandidates& one,
                                  Prefetch prefetch_more) {
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

// Locates the lists that an event must read in a tile. If there are more than fit, the first ones are read at once.
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

static inline void prefetch_rows(const Bitmap& map, const TileCandidates& one) {
  each_bit<TILE_WORDS>(one.remaining, [&](u32 position) { prefetch_row(map, size_t(one.tile) * TILE + position); });
}

// Clears the boxes that their rows exclude, in any number. Not inlined: it needs much of the stack, others need it rarely.
template <u32 SIDES>
[[gnu::noinline]] static void clear_by_rows(const Bitmap& map, EncodedEvents<SIDES> events, TileCandidates& one) {
  u32 box[TILE + 16], size = list_bits<TILE_WORDS>(one.remaining, one.event << 11, box);
  std::memset(one.remaining, 0, sizeof one.remaining);
  for (u32 from = 0; from < size; from += MAX_ROW_TESTS) {
    u32 some = size - from < MAX_ROW_TESTS ? size - from : MAX_ROW_TESTS;
    u32 kept = filter_by_rows(map, one.tile, some, box + from, events);
    for (u32 i = from; i < from + kept; ++i) set_bit(one.remaining, box[i] & POSITION);
  }
}

// Calls callback(level, from, to) for each level among the boxes of a line: they are the from-th to the (to - 1)-th bit
// that is set, because the boxes of a block are sorted by level. `ends` are the block's level ends.
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

// Emits the boxes of a tile that match the event, after its lists were read: emit.tile(level, numbers, lines,
// prefetch_more), or emit.mixed(block, line) if levels differ.
template <class Emit, class Prefetch>
static inline void emit_matches(const Bitmap& map, const EncodedEvent& event, TileCandidates& one, Emit& emit,
                                Prefetch prefetch_more) {
  resolve_undecided(map, event, one);
  u32 level = map.tile_level[one.tile];
  if (level != MIXED) return emit.tile(level, map.numbers.from(size_t(one.tile) * TILE), one.remaining, prefetch_more);
  for (u32 lane = 0; lane < LANES; ++lane) {
    prefetch_more();
    const u64* line = one.remaining + lane * WORDS;
    if (empty(load(line))) continue;  // also lanes without a block, in the last tile
    emit.mixed(one.tile * LANES + lane, line);
  }
}

}  // namespace
}  // namespace hitbox
