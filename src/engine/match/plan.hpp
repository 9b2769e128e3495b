// What one event asks of a bitmap segment: which lines to AND and which lists to hold it against. Points (point.hpp)
// and intervals (interval.hpp) have the same functions, so that the loops above them are compiled once for each and the
// point's stay lean. Here is what they share, and how a tile is settled once its lines are gathered.
#pragma once

#include "match/row_test.hpp"

namespace hitbox {
namespace {

constexpr u32 MOST_LISTS = 64;  // of a tile that wait to be read

// A tile that an event visits, and in which lanes.
struct Visit {
  u32 tile, lanes;
};

template <class Take>
static inline void each_lane(Visit visit, Take take) {
  for (u32 lanes = visit.lanes; lanes; lanes &= lanes - 1) take(u32(__builtin_ctz(lanes)));
}

// Plans of many events over one segment: row e of each array belongs to event e. A point has one side, an interval two.
template <u32 SIDES>
struct Plans {
  u32 width, words, padded;
  Scratch<u32> places;  // [side][attribute]
  Scratch<u8> glances;  // [side][attribute, padded]
  Scratch<u64> needs;   // bits: attributes whose lists must be read, besides those without lines in a tile
  Scratch<u64> unsure;  // bits: attributes where an end with the event's glance leaves doubt
  Scratch<u16> few;     // boxes of a tile up to which their rows are read, not lists

  Plans(u32 attributes, size_t events)
      : width(attributes), words((attributes + 63) / 64), padded(words * 64), places(events * SIDES * attributes),
        glances(events * SIDES * padded), needs(words * events), unsure(words * events), few(events) {}

  void prefetch_plan(size_t event) const {
    fetch(places_of(event, 0));
    fetch(glances_of(event, 0));
    fetch(unsure.data + event * words);
    fetch(few.data + event);
  }

  void start(size_t event) {
    std::memset(needs.data + event * words, 0, words * 8);
    std::memset(unsure.data + event * words, 0, words * 8);
  }

  u32* places_of(size_t event, u32 side) const { return places.data + (event * SIDES + side) * width; }
  u8* glances_of(size_t event, u32 side) const { return glances.data + (event * SIDES + side) * padded; }

  void put(size_t event, u32 side, u32 a, u32 place) {
    places_of(event, side)[a] = place;
    glances_of(event, side)[a] = u8(place >> REST);
  }

  Against<SIDES> against(const i64* low, const i64* high) const {
    return {low, high, places.data, glances.data, unsure.data, width, padded};
  }

  // Calls take(attribute) for each whose lists in a tile may exclude the event.
  template <class Take>
  void each_need(const Bitmap& map, u32 tile, size_t event, Take take) const {
    for (u32 w = 0; w < words; ++w)
      for (u64 bits = needs.data[event * words + w] | map.bare[size_t(tile) * words + w]; bits; bits &= bits - 1)
        take(w * 64 + u32(__builtin_ctzll(bits)));
  }
};

static inline void set_bit(u64* bits, u32 at) { bits[at >> 6] |= 1ull << (at & 63); }

static inline void narrow(u64* blocks, const u64* summary, u32 words) {
  for (u32 w = 0; w < words; ++w) blocks[w] &= summary[w];
}

// Calls take(visit) for each tile among the 64 blocks of a word.
template <class Take>
static inline void each_visit(u32 word, u64 blocks, Take take) {
  for (u32 tile = word * 64 / LANES; blocks; blocks >>= LANES, ++tile)
    if (u32 lanes = u32(blocks & ((1u << LANES) - 1))) take(Visit{tile, lanes});
}

// The blocks that live in levels [bottom, top], before any attribute is looked at.
static inline void start_blocks(const Bitmap& map, const Wanted& wanted, u64* blocks) {
  auto [from, to] = blocks_of(map, wanted.top, wanted.bottom);
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
struct Survivor {
  alignas(64) u64 held[TILE_WORDS];
  u32 tile, size;
  u32 event;
  u32 list_count = 0;
  List lists[MOST_LISTS];
  Doubts doubts;

  // All that live in the lanes of a visit.
  void start(const Bitmap& map, Visit visit, u32 of_event) {
    tile = visit.tile;
    event = of_event;
    std::memset(held, 0, sizeof held);
    const u64* alive = map.alive + size_t(tile) * TILE_WORDS;
    each_lane(visit, [&](u32 lane) { store(held + lane * WORDS, load(alive + lane * WORDS)); });
  }
};

static inline void fetch_row(const Bitmap& map, size_t position) {
  const u8* row = row_at(map, position);
  fetch(row);
  fetch(row + map.row_bytes - 1);
}

// Lists the boxes that are left of a tile, with the event, and fetches what will be asked of them; returns how many.
static inline u32 list_boxes(const Bitmap& map, const Survivor& one, u32* box) {
  u32 size = list_bits<TILE_WORDS>(one.held, one.event << 11, box);
  size_t first = size_t(one.tile) * TILE;
  for (u32 i = 0; i < size; ++i) {
    size_t at = first + (box[i] & POSITION);
    fetch_row(map, at);
    fetch(map.numbers.from(at).first);
  }
  return size;
}

template <class P>
static inline void prefetch_tables(const P& plans, const Bitmap& map, const Survivor& one) {
  plans.each_list(map, one.tile, one.event,
                  [&](u32, const Directory* at, u32 cell, Tops) { fetch(map.entries + at->base + cell); });
}

static inline void fetch_list(const Bitmap& map, const List& list) {
  for (u32 at = list.from; at < list.to + 31; at += 32) fetch_outer(map.entries + at);
}

static inline void clear_doubts(const Bitmap& map, const Held& against, Survivor& one) {
  for (u32 i = 0; i < one.doubts.size; ++i) {
    u32 position = one.doubts.box[i] & POSITION;
    const u8* row = row_at(map, size_t(one.tile) * TILE + position);
    if (bit(one.held, position) && fails_on(map, against, row, one.doubts.box[i] >> 11)) clear(one.held, position);
  }
  one.doubts.size = 0;
}

// Clears whom the lists that wait exclude; calls meanwhile() before each. Rows of boxes in doubt are fetched, and
// looked at when `settle` comes to them.
template <class Meanwhile>
static inline void clear_by_lists(const Bitmap& map, const Held& against, Survivor& one, Meanwhile meanwhile) {
  Failing failing;
  for (const List *list = one.lists, *end = list + one.list_count; list < end; ++list) {
    meanwhile();
    if (failing.size + list->to - list->from > Failing::MOST) failing.clear_from(one.held);
    find_failing(map, *list, one.held, failing, one.doubts, [&] { clear_doubts(map, against, one); });
  }
  failing.clear_from(one.held);
  one.list_count = 0;
  for (u32 i = 0; i < one.doubts.size; ++i)
    fetch_row(map, size_t(one.tile) * TILE + (one.doubts.box[i] & POSITION));
}

// Notes the lists that a tile's boxes must be held against; should they be too many to wait, some are read at once.
template <class P>
static inline void find_lists(const P& plans, const Bitmap& map, const Held& against, Survivor& one) {
  plans.each_list(map, one.tile, one.event, [&](u32 a, const Directory* entry, u32 cell, Tops tops) {
    if (one.list_count == MOST_LISTS) clear_by_lists(map, against, one, Idle{});
    List& list = one.lists[one.list_count++];
    list_of(map, entry, cell, list.from, list.to);
    list.attribute = a;
    list.event = tops;
  });
}

// Boxes of a block are in order of level. Calls take(level, from, to) for each level that boxes of its line have: they
// are [from, to) of the boxes in it. `ends` tells how many boxes of the block are of level 9, of 8 or more, ...
template <class Take>
static inline void each_level(const u16* ends, const u64* line, Take take) {
  u32 before[WORDS + 1] = {}, from = 0;
  for (u32 w = 0; w < WORDS; ++w) before[w + 1] = before[w] + u32(__builtin_popcountll(line[w]));
  for (u32 l = 0; l < LEVELS && from < before[WORDS]; ++l) {
    u32 w = ends[l] / 64, to = before[w];
    if (w < WORDS) to += u32(__builtin_popcountll(line[w] & ((1ull << ends[l] % 64) - 1)));
    if (to > from) take(LEVELS - 1 - l, from, to);
    from = to;
  }
}

// Hands out the boxes of a tile that hold the event, once its lists are read: emit.tile(level, numbers of the tile,
// lines, meanwhile), or where levels differ emit.mixed(block, line).
template <class Emit, class Meanwhile>
static inline void settle(const Bitmap& map, const Held& against, Survivor& one, Emit& emit, Meanwhile meanwhile) {
  clear_doubts(map, against, one);
  u32 level = map.tile_level[one.tile];
  if (level != MIXED) return emit.tile(level, map.numbers.from(size_t(one.tile) * TILE), one.held, meanwhile);
  for (u32 lane = 0; lane < LANES; ++lane) {
    meanwhile();
    const u64* line = one.held + lane * WORDS;
    if (empty(load(line))) continue;  // the last tile may have fewer blocks than lanes
    emit.mixed(one.tile * LANES + lane, line);
  }
}

}  // namespace
}  // namespace hitbox
