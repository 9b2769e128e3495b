// Plans of point events: per attribute one line and one list, those of the event's cell.
#pragma once

#include "match/plan.hpp"

namespace hitbox {
namespace {

struct PointPlans : Plans<1> {
  struct Opened {
    const u64* lines;  // of cell 0, lane 0
    u32 attribute;
  };
  Scratch<Opened> opened;
  Scratch<u64> full;  // bits: attributes where every box overlaps the event's cell

  PointPlans(u32 attributes, size_t events) : Plans(attributes, events), full(words * events) {}

  using Source = const u64*;               // an attribute's line for lane 0
  static constexpr u32 ROWS_PER_LIST = 4;  // a list costs about as much as this many rows
  static constexpr bool STAGED = false;

  // Makes an event's plan and narrows `blocks` to those that may match. Returns false if no box can.
  bool make(const Bitmap& map, const i64* low, const i64*, size_t event, u64* blocks) {
    start(event);
    u64* all = full.data + event * words;
    std::memset(all, 0, words * 8);
    u32 rows = 0;
    for (u32 a = 0; a < map.attributes; ++a) {
      const i64* starts = map.starts + size_t(a) * CELLS;
      u32 cell = cell_of(starts, low[a]), at = a * CELLS + cell;
      u32 population = map.population[at];
      if (!population) return false;
      if (population == map.members) set_bit(all, a);
      else narrow(blocks, map.summary + size_t(at) * map.summary_words, map.summary_words);
      put(event, 0, a, quantize(starts, map.shift + size_t(a) * CELLS, cell, low[a]));
      if (map.edges[at]) set_bit(ambiguous.data + event * words, a);
      else if (population == map.members || has_own_line(map, starts, cell))
        continue;  // lines decide, if there are any
      set_bit(list_attributes.data + event * words, a);
      rows += map.compact ? MAX_ROW_TESTS : ROWS_PER_LIST;
    }
    row_limit[event] = u16(rows < MAX_ROW_TESTS ? rows : MAX_ROW_TESTS);
    return true;
  }

  // Finds the lines that the event reads in a tile.
  u32 open(const Bitmap& map, u32 tile, size_t event, Source* sources) const {
    return map.compact ? open<true>(map, tile, event, sources) : open<false>(map, tile, event, sources);
  }

  template <bool COMPACT>
  u32 open(const Bitmap& map, u32 tile, size_t event, Source* sources) const {
    u32 size = 0;
    const Directory* directory = directory_of(map, tile);
    const u16* order = map.order + size_t(tile) * map.attributes;
    const u32* qkey = qkeys_of(event, 0);
    const u64* all = full.data + event * words;
    for (u32 i = 0; i < map.attributes && order[i] != NO_ATTRIBUTE; ++i) {
      u32 a = order[i];
      sources[size] = line_of<COMPACT>(map, directory[a].group, cell_at(qkey[a]));
      size += !bit(all, a);
    }
    return size;
  }

  static void prefetch_line(Source source, u32 lane) { prefetch_outer(source + lane * WORDS); }

  static Line intersect(const Source* sources, u32 size, u32 lane, Line remaining) {
    u32 i = 0;
    for (; i + 2 <= size; i += 2) {
      remaining = remaining & load(sources[i] + lane * WORDS) & load(sources[i + 1] + lane * WORDS);
      if (empty(remaining)) return remaining;
    }
    if (i < size) remaining = remaining & load(sources[i] + lane * WORDS);
    return remaining;
  }

  // Finds the lines of a tile once for all events that visit it.
  void open_tile(const Bitmap& map, u32 tile) {
    const Directory* directory = directory_of(map, tile);
    const u16* order = map.order + size_t(tile) * map.attributes;
    opened.size = 0;
    for (u32 i = 0; i < map.attributes && order[i] != NO_ATTRIBUTE; ++i)
      opened.push({line_of(map, directory[order[i]].group, 0, 0), order[i]});
  }

  // ANDs the lines of all lanes that the event visits in the open tile. Returns the number of boxes left.
  u32 intersect_tile(const Bitmap& map, Visit visit, size_t event, u64* remaining) const {
    const u32 shift = 2 + map.compact;
    switch (__builtin_popcount(visit.lanes)) {
      case 1: return intersect_lanes<1>(visit, event, shift, remaining);
      case 2: return intersect_lanes<2>(visit, event, shift, remaining);
      case 3: return intersect_lanes<3>(visit, event, shift, remaining);
      default: return intersect_lanes<4>(visit, event, shift, remaining);
    }
  }

  // `shift` turns a prefix into the number of a line.
  template <u32 LANE_COUNT>
  u32 intersect_lanes(Visit visit, size_t event, u32 shift, u64* remaining) const {
    const u8* mine = prefixes_of(event, 0);
    u32 at[LANE_COUNT], n = 0;
    Line line[LANE_COUNT];
    each_lane(visit, [&](u32 lane) { at[n++] = lane * WORDS; });
    for (n = 0; n < LANE_COUNT; ++n) line[n] = load(remaining + at[n]);
    for (const Opened *one = opened.data, *end = one + opened.size; one < end; ++one) {
      const u64* cell = one->lines + (mine[one->attribute] >> shift) * TILE_WORDS;
      for (n = 0; n < LANE_COUNT; ++n) line[n] = line[n] & load(cell + at[n]);
    }
    for (n = 0; n < LANE_COUNT; ++n) store(remaining + at[n], line[n]);
    return count<TILE_WORDS>(remaining);
  }

  // Calls callback(attribute, directory entry, cell, top bounds) for each list that may exclude the event.
  template <class Callback>
  void each_list(const Bitmap& map, u32 tile, size_t event, Callback callback) const {
    const Directory* directory = directory_of(map, tile);
    each_list_attribute(map, tile, event, [&](u32 a) {
      u32 qkey = qkeys_of(event, 0)[a];
      int top = directory[a].group ? top_at(qkey) : bare_top_at(qkey);
      callback(a, directory + a, cell_at(qkey), TopBounds{top, top});
    });
  }
};

}  // namespace
}  // namespace hitbox
