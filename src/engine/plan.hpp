// What one event asks of a bitmap segment: which lines to AND and which lists to hold it against. A point reads one
// line an attribute; an interval reads lines of its cells, no further apart than the narrowest box is wide, or, where
// that would be too many, the lists of the cells outside. Both have the same functions, so that the loops above them
// are compiled once for each and the point's stay lean.
#pragma once

#include "hold.hpp"

namespace hitbox {
namespace {

constexpr u32 EARLY = 4;  // lines of a block that are looked at before it is known where the rest are

// A tile that an event visits, and in which lanes.
struct Visit {
  u32 tile, lanes;
};

template <class Take>
static inline void each_lane(Visit visit, Take take) {
  for (u32 lanes = visit.lanes; lanes; lanes &= lanes - 1) take(u32(__builtin_ctz(lanes)));
}

// | open: every box reaches into the cell 1 | sure: lines decide, where a tile has them 1 | place 22 |
struct PointList {
  u32 bits;

  u32 cell() const { return bits >> 16 & 63; }
  int top() const { return int(bits >> 12 & 15); }
  bool sure() const { return bits >> 22 & 1; }
  bool open() const { return bits >> 23 & 1; }
};

struct Span {
  u8 low, high;          // cells of the event's ends
  u8 low_top, high_top;  // and the tops of their codes
  u8 sure;               // lines decide, where a tile has them
  u8 wide;               // lists of the cells outside are cheaper than lines of those inside
  u8 stride;             // so many cells apart, lines miss no box
};

static inline int top_of_cell(u32 cell) { return int(cell / (CELLS / TOPS)); }

// Plans of many events over one segment: row e of each array belongs to event e.
template <class List, u32 SIDES>
struct Plans {
  u32 width, words, padded;
  Scratch<List> lists;  // [attribute]
  Scratch<u64> needs;   // bits: attributes whose lists must be read
  Scratch<u64> unsure;  // bits: attributes where an end with the event's glance leaves doubt
  Scratch<u8> glances;  // [side][attribute, padded]

  Plans(u32 attributes, size_t events)
      : width(attributes), words((attributes + 63) / 64), padded(words * 64), lists(attributes * events),
        needs(words * events), unsure(words * events), glances(events * SIDES * padded) {}

  void prefetch_plan(size_t event) const {
    fetch(lists.data + event * width);
    fetch(needs.data + event * words);
    fetch(unsure.data + event * words);
    fetch(glances.data + event * SIDES * padded);
  }

  void start(size_t event) {
    std::memset(needs.data + event * words, 0, words * 8);
    std::memset(unsure.data + event * words, 0, words * 8);
  }

  u8* glances_of(size_t event, u32 side) const { return glances.data + (event * SIDES + side) * padded; }

  Held held_of(size_t event, const i64* low, const i64* high) const {
    return {low, high, glances_of(event, 0), glances_of(event, SIDES - 1), unsure.data + event * words};
  }

  template <class Take>
  void each_need(size_t event, Take take) const {
    for (u32 w = 0; w < words; ++w)
      for (u64 bits = needs.data[event * words + w]; bits; bits &= bits - 1) {
        u32 a = w * 64 + u32(__builtin_ctzll(bits));
        take(a, lists.data[event * width + a]);
      }
  }
};

static inline void set_bit(u64* bits, u32 at) { bits[at >> 6] |= 1ull << (at & 63); }

// Orders up to MAX_ATTRIBUTES items by how full their cell is: a counting sort over 32 shares.
struct Ranking {
  u16 item[MAX_ATTRIBUTES];
  u8 rank[MAX_ATTRIBUTES];
  u32 size = 0;

  void push(u32 value, u32 population, u32 members) {
    item[size] = u16(value);
    rank[size++] = u8(u64(population) * 31 / members);
  }
  template <class Take>
  void each(Take take) const {
    u16 start[33] = {}, sorted[MAX_ATTRIBUTES];
    for (u32 i = 0; i < size; ++i) ++start[rank[i] + 1];
    for (u32 r = 0; r < 32; ++r) start[r + 1] = u16(start[r + 1] + start[r]);
    for (u32 i = 0; i < size; ++i) sorted[start[rank[i]]++] = item[i];
    for (u32 i = 0; i < size; ++i) take(sorted[i]);
  }
};

static inline void narrow(u64* blocks, const u64* summary, u32 words) {
  for (u32 w = 0; w < words; ++w) blocks[w] &= summary[w];
}

// The blocks that live in levels [bottom, top], before any attribute is looked at.
static inline void start_blocks(const Bitmap& map, const Wanted& wanted, u64* blocks) {
  u32 from = first_block(map, wanted.top), to = last_block(map, wanted.bottom);
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

struct PointPlans : Plans<PointList, 1> {
  struct Opened {
    const u64* lines;  // of cell 0, lane 0
    u32 attribute;
  };
  Scratch<Opened> opened;

  using Plans::Plans;
  using Source = const u64*;  // an attribute's line of lane 0
  static constexpr u32 FEW = 64;  // boxes of a tile up to which their rows are read, not lists
  static constexpr bool STAGED = false;

  // False where no box of the segment can match; `blocks` is narrowed to those that may.
  bool make(const Bitmap& map, const i64* low, const i64*, size_t event, u64* blocks) {
    start(event);
    for (u32 a = 0; a < map.attributes; ++a) {
      const i64* starts = map.starts + size_t(a) * CELLS;
      u32 cell = cell_of(starts, low[a]), at = a * CELLS + cell;
      u32 population = map.population[at];
      if (!population) return false;
      bool open = population == map.members, sure = !map.edges[at];
      if (!open) narrow(blocks, map.summary + size_t(at) * map.summary_words, map.summary_words);
      u32 place = place_of(starts, map.shift + size_t(a) * CELLS, cell, low[a]);
      lists[event * width + a] = {place | u32(sure) << 22 | u32(open) << 23};
      glances_of(event, 0)[a] = u8(place >> REST);
      if (!sure || map.listed[a]) set_bit(needs.data + event * words, a);
      if (!sure) set_bit(unsure.data + event * words, a);
    }
    return true;
  }

  // Where the lines are that the event reads in a tile: first a few (most blocks die of them), then the rest.
  u32 open(const Bitmap& map, u32 tile, size_t event, bool rest, Source* sources) const {
    u32 size = 0, split = map.attributes < EARLY ? map.attributes : EARLY;
    const Directory* directory = directory_of(map, tile);
    const u16* order = map.order + size_t(tile) * map.attributes;
    for (u32 i = rest ? split : 0; i < (rest ? map.attributes : split) && order[i] != NO_ATTRIBUTE; ++i) {
      PointList list = lists.data[event * width + order[i]];
      sources[size] = line_of(map, directory[order[i]].group, list.cell(), 0);
      size += !list.open();
    }
    return size;
  }

  static void prefetch(const Source* sources, u32 size, u32 lane) {
    for (u32 i = 0; i < size; ++i) fetch(sources[i] + lane * WORDS);
  }

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
    each_need(event, [&](u32 a, PointList list) {
      bool lined = directory[a].group;
      if (list.sure() && lined) return;
      int top = lined ? list.top() : top_of_cell(list.cell());
      take(a, directory + a, list.cell(), Tops{top, top});
    });
  }
};

struct IntervalPlans : Plans<Span, 2> {
  Scratch<u16> order;  // [attribute] those whose lines tell something, most telling first
  Scratch<u16> used;   // how many


  static constexpr u32 FEW = MOST_ROWS;  // an interval reads two lists an attribute
  static constexpr bool STAGED = true;  // an attribute has many lines: where few boxes are left their rows are cheaper
  static constexpr u32 WIDE = 20;     // lines from which lists of the outside are cheaper
  static constexpr u32 FETCHED = 40;  // lines of a block that are fetched early

  struct Source {
    const u64 *first, *last;  // lines of lane 0
    size_t step;
  };
  Scratch<Source> sources;

  IntervalPlans(u32 attributes, size_t events)
      : Plans(attributes, events), order(attributes * events), used(events), sources(attributes) {}

  bool make(const Bitmap& map, const i64* low, const i64* high, size_t event, u64* blocks) {
    Ranking ranking;
    start(event);
    for (u32 a = 0; a < map.attributes; ++a) {
      Span& span = lists[event * width + a];
      const i64* starts = map.starts + size_t(a) * CELLS;
      u32 from = cell_of(starts, low[a]), to = cell_of(starts, high[a]), most = 0, inner = 0;
      for (u32 c = from; c <= to; ++c) {
        u32 population = map.population[a * CELLS + c];
        if (population > most) most = population;
        if (c > from && c < to && population > inner) inner = population;
      }
      if (!most) return false;
      u32 stride = map.narrowest[a], i = a * CELLS + from, j = a * CELLS + to;
      bool full = most == map.members, wide = !full && to - from >= WIDE * stride;
      bool covered = inner == map.members && !map.listed[a];  // every box covers a cell inside the event
      bool sure = covered || (!map.edges[i] && !map.edges[j] && !wide);
      const u8* shift = map.shift + size_t(a) * CELLS;
      u32 first = place_of(starts, shift, from, low[a]), last = place_of(starts, shift, to, high[a]);
      span = {u8(from), u8(to), u8(first >> 12 & 15), u8(last >> 12 & 15), sure, wide, u8(stride)};
      glances_of(event, 0)[a] = u8(first >> REST);
      glances_of(event, 1)[a] = u8(last >> REST);
      if (!sure || map.listed[a]) set_bit(needs.data + event * words, a);
      if (map.edges[i] || map.edges[j]) set_bit(unsure.data + event * words, a);
      if (!full) narrow_span(map, a, from, to, stride, blocks);
      if (!full && !wide) ranking.push(a, most, map.members);
    }
    used[event] = 0;
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

  // Cells of an interval differ in how full they are more than tiles do, so the order is the event's.
  u32 open(const Bitmap& map, u32 tile, size_t event, bool rest, Source* sources) const {
    u32 size = 0, all = used.data[event], split = all < EARLY ? all : EARLY;
    const Directory* directory = directory_of(map, tile);
    for (u32 i = rest ? split : 0; i < (rest ? all : split); ++i) {
      u32 a = order.data[event * width + i], group = directory[a].group;
      if (!group) continue;
      const Span& span = lists.data[event * width + a];
      sources[size++] = {line_of(map, group, span.low, 0), line_of(map, group, span.high, 0),
                         size_t(span.stride) * LANES * WORDS};
    }
    return size;
  }

  static void prefetch(const Source* sources, u32 size, u32 lane) {
    u32 fetched = 0;
    for (u32 i = 0; i < size && fetched < FETCHED; ++i) {
      for (const u64* at = sources[i].first; at < sources[i].last; at += sources[i].step, ++fetched)
        fetch(at + lane * WORDS);
      fetch(sources[i].last + lane * WORDS);
      ++fetched;
    }
  }

  static Line gather(const Source* sources, u32 size, u32 lane, Line held) {
    for (u32 i = 0; i < size && !empty(held); ++i) {
      Line any = load(sources[i].last + lane * WORDS);
      for (const u64* at = sources[i].first; at < sources[i].last; at += sources[i].step)
        any = any | load(at + lane * WORDS);
      held = held & any;
    }
    return held;
  }

  void open_tile(const Bitmap&, u32) {}

  // All lanes, as far as it takes. Returns how many boxes are left.
  u32 gather_tile(const Bitmap& map, Visit visit, size_t event, u64* held) {
    u32 size = FEW + 1;
    for (bool rest : {false, true}) {
      if (size <= FEW) break;
      u32 lines = open(map, visit.tile, event, rest, sources.data);
      each_lane(visit, [&](u32 lane) {
        u64* line = held + lane * WORDS;
        store(line, gather(sources.data, lines, lane, load(line)));
      });
      size = count<TILE_WORDS>(held);
    }
    return size;
  }

  // Ends that matter lie in the cells of the event's ends; where lines were left out (`wide`), outside as well.
  template <class Take>
  void each_list(const Bitmap& map, u32 tile, size_t event, Take take) const {
    const Directory* directory = directory_of(map, tile);
    constexpr int NONE = -1, ALL = TOPS;
    each_need(event, [&](u32 a, const Span& span) {
      const Directory* at = directory + a;
      if (!at->group) return take(a, at, 0, Tops{top_of_cell(span.low), top_of_cell(span.high)});
      if (span.sure) return;
      if (span.low == span.high) return take(a, at, span.low, Tops{span.low_top, span.high_top});
      take(a, at, span.low, Tops{span.low_top, ALL});
      take(a, at, span.high, Tops{NONE, span.high_top});
      if (!span.wide) return;
      for (u32 cell = 0; cell < span.low; ++cell) take(a, at, cell, Tops{ALL, ALL});
      for (u32 cell = span.high + 1u; cell < CELLS; ++cell) take(a, at, cell, Tops{NONE, NONE});
    });
  }
};

// What the three steps from a tile's lines to its matches share: fetch what says where lists are, fetch them, and clear
// the boxes that do not match.
static inline void prefetch_rows(const Bitmap& map, u32 tile, const u64* held) {
  size_t first = size_t(tile) * LANES * BLOCK;
  each_bit<TILE_WORDS>(held, [&](u32 position) {
    const u8* row = row_at(map, first + position);
    fetch(row);
    fetch(row + map.row_bytes - 1);
    fetch(map.numbers + first + position);
  });
}

template <class P>
static inline void prefetch_tables(const P& plans, const Bitmap& map, u32 tile, size_t event) {
  plans.each_list(map, tile, event, [&](u32, const Directory* at, u32 cell, Tops) { fetch(map.entries + at->base + cell); });
}

template <class P>
static inline void prefetch_lists(const P& plans, const Bitmap& map, u32 tile, size_t event) {
  plans.each_list(map, tile, event, [&](u32, const Directory* at, u32 cell, Tops) {
    u32 from, to;
    list_of(map, at, cell, from, to);
    fetch(map.entries + from);
    fetch(map.entries + to);
  });
}

// Clears the boxes of a tile that do not hold the event; `size` are left by the lines.
template <class P>
static inline void settle(const P& plans, const Bitmap& map, u32 tile, size_t event, const i64* low, const i64* high,
                          u32 size, u64* held) {
  Held against = plans.held_of(event, low, high);
  if (size <= P::FEW) return clear_by_rows(map, against, tile, held);
  Ties ties(map, against, tile, held);
  plans.each_list(map, tile, event, [&](u32 a, const Directory* at, u32 cell, Tops tops) {
    u32 from, to;
    list_of(map, at, cell, from, to);
    clear_failing(map, from, to, tops, held, [&](u32 position) { ties.add(a, position); });
  });
  ties.settle();
}

}  // namespace
}  // namespace hitbox
