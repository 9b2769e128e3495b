// Plans of interval events. Per attribute they OR the lines of every n-th cell that the event overlaps, where n is the
// width of the narrowest box; if these are too many, they read the lists of the cells outside the event instead.
#pragma once

#include "match/plan.hpp"

namespace hitbox {
namespace {

// How an event reads the cells of an attribute.
struct CellSpan {
  u8 wide;    // 1: read lists of cells outside, not lines of cells inside
  u8 stride;  // with lines this many cells apart no box is missed
};

// Sorts up to MAX_ATTRIBUTES items by the share of boxes that overlap their cell: a counting sort with 32 buckets.
struct FillRanking {
  u16 item[MAX_ATTRIBUTES];
  u8 rank[MAX_ATTRIBUTES];
  u32 size = 0;

  void push(u32 value, u32 population, u32 members) {
    item[size] = u16(value);
    rank[size++] = u8(u64(population) * 31 / members);
  }
  template <class Callback>
  void each(Callback callback) const {
    u16 start[33] = {}, sorted[MAX_ATTRIBUTES];
    for (u32 i = 0; i < size; ++i) ++start[rank[i] + 1];
    for (u32 r = 0; r < 32; ++r) start[r + 1] = u16(start[r + 1] + start[r]);
    for (u32 i = 0; i < size; ++i) sorted[start[rank[i]]++] = item[i];
    for (u32 i = 0; i < size; ++i) callback(sorted[i]);
  }
};

struct IntervalPlans : Plans<2> {
  Scratch<CellSpan> spans;  // [attribute]
  Scratch<u16> order;       // [attribute] those whose lines exclude boxes, most selective first
  Scratch<u16> used;        // size of `order`

  static constexpr bool STAGED = true;        // lines are read in two stages: after the first, rows may be cheaper
  static constexpr u32 FIRST_ATTRIBUTES = 4;  // attributes in the first stage
  static constexpr u32 WIDE_SPAN = 20;        // from this many lines on, lists of the cells outside are cheaper

  struct Source {
    const u64 *first, *last;  // lines for lane 0
    size_t step;
  };
  Scratch<Source> sources;

  IntervalPlans(u32 attributes, size_t events)
      : Plans(attributes, events), spans(attributes * events), order(attributes * events), used(events),
        sources(attributes) {}

  bool make(const Bitmap& map, const i64* low, const i64* high, size_t event, u64* blocks) {
    FillRanking ranking;
    start(event);
    for (u32 a = 0; a < map.attributes; ++a) {
      const i64* starts = map.starts + size_t(a) * CELLS;
      u32 from = cell_of(starts, low[a]), to = cell_of(starts, high[a]), most = 0, inner = 0;
      for (u32 c = from; c <= to; ++c) {
        u32 population = map.population[a * CELLS + c];
        if (population > most) most = population;
        if (c > from && c < to && population > inner) inner = population;
      }
      if (!most) return false;
      u32 stride = map.narrowest[a], i = a * CELLS + from, j = a * CELLS + to;
      bool full = most == map.members, wide = !full && !map.compact && to - from >= WIDE_SPAN * stride;
      bool covered = inner == map.members;  // every box overlaps a cell inside the event
      bool own_lines = (from % 2 == 0 || has_own_line(map, starts, from)) && (to % 2 || has_own_line(map, starts, to));
      bool exact = covered || (!map.edges[i] && !map.edges[j] && !wide && own_lines);
      const u8* shift = map.shift + size_t(a) * CELLS;
      put(event, 0, a, quantize(starts, shift, from, low[a]));
      put(event, 1, a, quantize(starts, shift, to, high[a]));
      spans[event * width + a] = {wide, u8(stride)};
      if (!exact) set_bit(list_attributes.data + event * words, a);  // exact: lines decide, in tiles that have them
      if (map.edges[i] || map.edges[j]) set_bit(ambiguous.data + event * words, a);
      if (!full) narrow_span(map, a, from, to, stride, blocks);
      if (!full && !wide) ranking.push(a, most, map.members);
    }
    used[event] = 0;
    row_limit[event] = MAX_ROW_TESTS;  // intervals read two lists per attribute
    ranking.each([&](u16 a) { order[event * width + used[event]++] = a; });
    return true;
  }

  static void narrow_span(const Bitmap& map, u32 a, u32 from, u32 to, u32 stride, u64* blocks) {
    const u64* summary = map.summary + size_t(a) * CELLS * map.summary_words;
    for (u32 w = 0; w < map.summary_words; w += WORDS) {
      Line any = load(summary + size_t(to) * map.summary_words + w);
      for (u32 c = from; c < to; c += stride) any = any | load(summary + size_t(c) * map.summary_words + w);
      store(blocks + w, load(blocks + w) & any);
    }
  }

  u32 open(const Bitmap& map, u32 tile, size_t event, Source* found) const {
    return open(map, tile, event, false, found);
  }

  // Finds the lines of the first few attributes, or of the rest. Selectivity differs more between cells than between
  // tiles, so attributes are read in the event's order, not the tile's.
  u32 open(const Bitmap& map, u32 tile, size_t event, bool rest, Source* found) const {
    u32 size = 0, all = used.data[event], split = all < FIRST_ATTRIBUTES ? all : FIRST_ATTRIBUTES;
    const Directory* directory = directory_of(map, tile);
    for (u32 i = rest ? split : 0; i < (rest ? all : split); ++i) {
      u32 a = order.data[event * width + i], group = directory[a].group;
      if (!group) continue;
      u32 low = cell_at(qkeys_of(event, 0)[a]), high = cell_at(qkeys_of(event, 1)[a]);
      found[size++] = {line_of(map, group, low, 0), line_of(map, group, high, 0),
                       size_t((spans.data[event * width + a].stride + map.compact) >> map.compact) * TILE_WORDS};
    }
    return size;
  }

  static void prefetch_line(const Source& source, u32 lane) {
    const u64* at = source.first;
    for (u32 i = 1; i < PrefetchDistance::INTERVAL_LINES && at < source.last; ++i, at += source.step)
      prefetch(at + lane * WORDS);
    prefetch(source.last + lane * WORDS);
  }

  static Line intersect(const Source* sources, u32 size, u32 lane, Line remaining) {
    for (u32 i = 0; i < size && !empty(remaining); ++i) {
      Line any = load(sources[i].last + lane * WORDS);
      for (const u64* at = sources[i].first; at < sources[i].last; at += sources[i].step)
        any = any | load(at + lane * WORDS);
      remaining = remaining & any;
    }
    return remaining;
  }

  void open_tile(const Bitmap&, u32) {}

  // Both stages, the second one only if needed. Returns the number of boxes left.
  u32 intersect_tile(const Bitmap& map, Visit visit, size_t event, u64* remaining) {
    u32 size = MAX_ROW_TESTS + 1;
    for (bool rest : {false, true}) {
      if (size <= MAX_ROW_TESTS) break;
      u32 lines = open(map, visit.tile, event, rest, sources.data);
      each_lane(visit, [&](u32 lane) {
        u64* line = remaining + lane * WORDS;
        store(line, intersect(sources.data, lines, lane, load(line)));
      });
      size = count<TILE_WORDS>(remaining);
    }
    return size;
  }

  // Bounds that may exclude the event lie in its first and last cell; if lines were skipped (`wide`), also outside.
  template <class Callback>
  void each_list(const Bitmap& map, u32 tile, size_t event, Callback callback) const {
    const Directory* directory = directory_of(map, tile);
    constexpr int NONE = -1, ALL = TOP_VALUES;
    each_list_attribute(map, tile, event, [&](u32 a) {
      const Directory* at = directory + a;
      u32 low = qkeys_of(event, 0)[a], high = qkeys_of(event, 1)[a], from = cell_at(low), to = cell_at(high);
      if (!at->group) return callback(a, at, 0, TopBounds{bare_top_at(low), bare_top_at(high)});
      if (from == to) return callback(a, at, from, TopBounds{top_at(low), top_at(high)});
      callback(a, at, from, TopBounds{top_at(low), ALL});
      callback(a, at, to, TopBounds{NONE, top_at(high)});
      if (!spans.data[event * width + a].wide) return;
      for (u32 cell = 0; cell < from; ++cell) callback(a, at, cell, TopBounds{ALL, ALL});
      for (u32 cell = to + 1; cell < CELLS; ++cell) callback(a, at, cell, TopBounds{NONE, NONE});
    });
  }
};

}  // namespace
}  // namespace hitbox
