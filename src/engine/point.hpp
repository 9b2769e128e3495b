// Plans of points: one line an attribute, and the list of the event's cell.
#pragma once

#include "plan.hpp"

namespace hitbox {
namespace {

// | open: every box reaches into the cell 1 | place 22 |
struct PointList {
  u32 bits;

  u32 cell() const { return bits >> 16 & 63; }
  int top() const { return int(bits >> 12 & 15); }
  bool open() const { return bits >> 22 & 1; }
};

struct PointPlans : Plans<PointList, 1> {
  struct Opened {
    const u64* lines;  // of cell 0, lane 0
    u32 attribute;
  };
  Scratch<Opened> opened;

  using Plans::Plans;
  using Source = const u64*;  // an attribute's line of lane 0
  static constexpr u32 FEW = 4;  // rows that cost about as much as a list
  static constexpr bool STAGED = false;

  // False where no box of the segment can match; `blocks` is narrowed to those that may.
  bool make(const Bitmap& map, const i64* low, const i64*, size_t event, u64* blocks) {
    start(event);
    u32 rows = 0;
    for (u32 a = 0; a < map.attributes; ++a) {
      const i64* starts = map.starts + size_t(a) * CELLS;
      u32 cell = cell_of(starts, low[a]), at = a * CELLS + cell;
      u32 population = map.population[at];
      if (!population) return false;
      bool open = population == map.members;
      if (!open) narrow(blocks, map.summary + size_t(at) * map.summary_words, map.summary_words);
      u32 place = place_of(starts, map.shift + size_t(a) * CELLS, cell, low[a]);
      lists[event * width + a] = {place | u32(open) << 22};
      glances_of(event, 0)[a] = u8(place >> REST);
      if (!map.edges[at]) continue;  // lines decide, where a tile has them
      set_bit(needs.data + event * words, a);
      set_bit(unsure.data + event * words, a);
      rows += FEW;
    }
    few[event] = u16(rows < MOST_ROWS ? rows : MOST_ROWS);
    return true;
  }

  // Where the lines are that the event reads in a tile.
  u32 open(const Bitmap& map, u32 tile, size_t event, Source* sources) const {
    u32 size = 0;
    const Directory* directory = directory_of(map, tile);
    const u16* order = map.order + size_t(tile) * map.attributes;
    for (u32 i = 0; i < map.attributes && order[i] != NO_ATTRIBUTE; ++i) {
      PointList list = lists.data[event * width + order[i]];
      sources[size] = line_of(map, directory[order[i]].group, list.cell(), 0);
      size += !list.open();
    }
    return size;
  }

  static void prefetch(Source source, u32 lane) { fetch_outer(source + lane * WORDS); }

  static Line gather(const Source* sources, u32 size, u32 lane, Line held) {
    u32 i = 0;
    for (; i + 2 <= size; i += 2) {
      held = held & load(sources[i] + lane * WORDS) & load(sources[i + 1] + lane * WORDS);
      if (empty(held)) return held;
    }
    if (i < size) held = held & load(sources[i] + lane * WORDS);
    return held;
  }

  // Many events are about to visit the tile: where its lines are.
  void open_tile(const Bitmap& map, u32 tile) {
    const Directory* directory = directory_of(map, tile);
    const u16* order = map.order + size_t(tile) * map.attributes;
    opened.size = 0;
    for (u32 i = 0; i < map.attributes && order[i] != NO_ATTRIBUTE; ++i)
      opened.push({line_of(map, directory[order[i]].group, 0, 0), order[i]});
  }

  // ANDs the lines of all lanes that the event visits in the open tile. Returns how many boxes are left.
  u32 gather_tile(const Bitmap&, Visit visit, size_t event, u64* held) const {
    switch (__builtin_popcount(visit.lanes)) {
      case 1: return gather_lanes<1>(visit, event, held);
      case 2: return gather_lanes<2>(visit, event, held);
      case 3: return gather_lanes<3>(visit, event, held);
      default: return gather_lanes<4>(visit, event, held);
    }
  }

  template <u32 SOME>
  u32 gather_lanes(Visit visit, size_t event, u64* held) const {
    const u8* mine = glances_of(event, 0);
    u32 at[SOME], n = 0;
    Line line[SOME];
    each_lane(visit, [&](u32 lane) { at[n++] = lane * WORDS; });
    for (n = 0; n < SOME; ++n) line[n] = load(held + at[n]);
    for (const Opened *one = opened.data, *end = one + opened.size; one < end; ++one) {
      const u64* cell = one->lines + (mine[one->attribute] >> 2) * TILE_WORDS;
      for (n = 0; n < SOME; ++n) line[n] = line[n] & load(cell + at[n]);
    }
    for (n = 0; n < SOME; ++n) store(held + at[n], line[n]);
    return count<TILE_WORDS>(held);
  }

  // Calls take(attribute, directory entry, cell, tops) for each list that may exclude the event.
  template <class Take>
  void each_list(const Bitmap& map, u32 tile, size_t event, Take take) const {
    const Directory* directory = directory_of(map, tile);
    each_need(map, tile, event, [&](u32 a, PointList list) {
      bool lined = directory[a].group;
      int top = lined ? list.top() : top_of_cell(list.cell());
      take(a, directory + a, list.cell(), Tops{top, top});
    });
  }
};

}  // namespace
}  // namespace hitbox
