// What one event asks of a bitmap segment: which lines to AND and which lists to hold it against. A point reads one
// line an attribute; an interval reads lines of its cells, no further apart than the narrowest box is wide, or, where
// that would be too many, the lists of the cells outside. Both have the same functions, so that the loops above them
// are compiled once for each and the point's stay lean.
#pragma once

#include "row.hpp"

namespace hitbox {
namespace {

constexpr u32 EARLY = 4;  // lines of a block that are looked at before it is known where the rest are
constexpr u32 FEW = 16;  // boxes of a line up to which their rows are read to find out which lists can matter

// | open: every box reaches into the cell 1 | sure: lines decide, where a tile has them 1 | lossy 1 | place 22 |
struct PointList {
  u32 bits;

  u32 place() const { return bits & 0x3FFFFF; }
  u32 cell() const { return bits >> 16 & 63; }
  bool lossy() const { return bits >> 22 & 1; }
  bool sure() const { return bits >> 23 & 1; }
  bool open() const { return bits >> 24 & 1; }
};

struct Span {
  u8 low, high;  // cells of the event's ends
  u8 low_lossy, high_lossy;
  u8 sure;       // lines decide, where a tile has them
  u8 wide;       // lists of the cells outside are cheaper than lines of those inside
  u8 stride;     // so many cells apart, lines miss no box
  u32 low_place, high_place;
};

// Plans of many events over one segment: row e of each array belongs to event e.
template <class List, class Cells>
struct Plans {
  u32 width, words;
  Scratch<List> lists;  // [attribute]
  Scratch<u64> needs;   // bits: attributes whose lists must be read
  Scratch<Cells> cells;

  Plans(u32 attributes, size_t events)
      : width(attributes), words((attributes + 63) / 64), lists(attributes * events), needs(words * events),
        cells(events) {}

  void prefetch_plan(size_t event) const {
    fetch(lists.data + event * width);
    fetch(needs.data + event * words);
    fetch(cells.data + event);
  }

  void clear_needs(size_t event) { std::memset(needs.data + event * words, 0, words * 8); }
  void need(size_t event, u32 a) { needs[event * words + a / 64] |= 1ull << (a & 63); }

  // Calls take(attribute, list) for each list that the event needs among the attributes in `mask`.
  template <class Take>
  void each_list(size_t event, u64 mask, Take take) const {
    for (u32 w = 0; w < words; ++w)
      for (u64 bits = needs.data[event * words + w] & mask; bits; bits &= bits - 1) {
        u32 a = w * 64 + u32(__builtin_ctzll(bits));
        take(a, lists.data[event * width + a]);
      }
  }



  bool few(const Bitmap& map, const u64* held) const { return map.row_cells && count(held) <= FEW; }

  // What `doubtful` will look at.
  void prefetch_rows(const Bitmap& map, u32 block, const u64* held) const {
    if (!few(map, held)) return;
    u32 last = row_bytes(map.attributes, map.row_cells) - 1;
    each_bit(held, [&](u32 position) {
      const u8* row = row_of(map, block, position);
      fetch(row);
      fetch(row + last);
    });
  }

  // Before `settle`: which attributes' lists can tell the boxes of the line apart; ~0, all of them, where they are
  // many. Boxes that fail for sure are cleared.
  u64 doubtful(const Bitmap& map, u32 block, size_t event, u64* held) const {
    if (!few(map, held)) return ~0ull;
    u64 doubts = 0;
    each_bit(held, [&](u32 position) {
      u64 found = hold_row(map, cells.data[event], row_of(map, block, position));
      if (found == ~0ull) clear(held, position);
      else doubts |= found;
    });
    return doubts;
  }
};

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

struct PointPlans : Plans<PointList, PointCells> {
  using Plans::Plans;
  using Source = const u64*;  // an attribute's line of lane 0

  // False where no box of the segment can match; `blocks` is narrowed to those that may.
  bool make(const Bitmap& map, const i64* low, const i64*, size_t event, u64* blocks) {
    clear_needs(event);
    for (u32 a = 0; a < map.attributes; ++a) {
      u32 cell = cell_of(map.starts + size_t(a) * CELLS, low[a]), at = a * CELLS + cell;
      u32 population = map.population[at];
      if (!population) return false;
      bool open = population == map.members, sure = !map.edges[at];
      if (!open) narrow(blocks, map.summary + size_t(at) * map.summary_words, map.summary_words);
      u32 flags = u32(map.lossy[at]) << 22 | u32(sure) << 23 | u32(open) << 24;
      lists[event * width + a] = {place_of(map, a, cell, low[a]) | flags};
      if (!sure || map.listed[a]) need(event, a);
      if (a >= ROW_ATTRIBUTES) continue;
      PointCells& mine = cells[event];
      mine.at[a] = u8(cell);
      mine.unsure = (a ? mine.unsure : 0) | u64(!sure) << a;
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

  void prefetch_lists(const Bitmap& map, u32 block, size_t event, u64 mask) const {
    const Directory* directory = directory_of(map, block / LANES);
    each_list(event, mask, [&](u32 a, const PointList& list) {
      if (list.sure() && directory[a].group) return;
      u32 from, to;
      list_of(map, directory + a, list.cell(), block % LANES, from, to);
      fetch(map.entries + from);
      fetch(map.entries + to);
    });
  }

  void settle(const Bitmap& map, u32 block, size_t event, u64 mask, const i64* low, const i64*, u64* held) const {
    const Directory* directory = directory_of(map, block / LANES);
    const Line members = load(held);
    Failed failed;
    u32 size = 0;
    each_list(event, mask, [&](u32 a, const PointList& list) {
      if (list.sure() && directory[a].group) return;
      u32 from, to;
      list_of(map, directory + a, list.cell(), block % LANES, from, to);
      Against ends{list.place(), list.place(), list.lossy(), list.lossy(), low + a, low + a};
      size = find_failing(map, from, to, ends, members, failed, size, held);
    });
    clear_failed(failed, size, held);
  }
};

struct IntervalPlans : Plans<Span, SpanCells> {
  Scratch<u16> order;  // [attribute] those whose lines tell something, most telling first
  Scratch<u16> used;   // how many

  IntervalPlans(u32 attributes, size_t events) : Plans(attributes, events), order(attributes * events), used(events) {}

  static constexpr u32 WIDE = 20;     // lines from which lists of the outside are cheaper
  static constexpr u32 FETCHED = 40;  // lines of a block that are fetched early

  struct Source {
    const u64 *first, *last;  // lines of lane 0
    size_t step;
  };

  bool make(const Bitmap& map, const i64* low, const i64* high, size_t event, u64* blocks) {
    Ranking ranking;
    clear_needs(event);
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
      span = {u8(from), u8(to), map.lossy[i], map.lossy[j], sure, wide, u8(stride),
              place_of(map, a, from, low[a]), place_of(map, a, to, high[a])};
      if (!sure || map.listed[a]) need(event, a);
      if (!full) narrow_span(map, a, from, to, stride, blocks);
      if (!full && !wide) ranking.push(a, most, map.members);
      if (a >= ROW_ATTRIBUTES) continue;
      SpanCells& mine = cells[event];
      mine.first[a] = u8(from);
      mine.last[a] = u8(to);
      mine.unsure = (a ? mine.unsure : 0) | u64(map.edges[i] || map.edges[j]) << a;
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

  void prefetch_lists(const Bitmap& map, u32 block, size_t event, u64 mask) const {
    const Directory* directory = directory_of(map, block / LANES);
    each_list(event, mask, [&](u32 a, const Span& span) {
      if (span.sure && directory[a].group) return;
      u32 from, to;
      for (u8 cell : {span.low, span.high}) {
        list_of(map, directory + a, cell, block % LANES, from, to);
        fetch(map.entries + from);
      }
    });
  }

  // Ends that matter lie in the cells of the event's ends; where lines were left out (`wide`), outside as well.
  void settle(const Bitmap& map, u32 block, size_t event, u64 mask, const i64* low, const i64* high, u64* held) const {
    const Directory* directory = directory_of(map, block / LANES);
    const Line members = load(held);
    Failed failed;
    u32 size = 0;
    each_list(event, mask, [&](u32 a, const Span& span) {
      if (span.sure && directory[a].group) return;
      Against ends{span.low_place, span.high_place, bool(span.low_lossy), bool(span.high_lossy), low + a, high + a};
      auto read = [&](u32 first, u32 last) {
        for (u32 cell = first; cell <= last; ++cell) {
          u32 from, to;
          list_of(map, directory + a, cell, block % LANES, from, to);
          size = find_failing(map, from, to, ends, members, failed, size, held);
        }
      };
      if (!directory[a].group) return read(0, 0);
      if (span.low == span.high) return read(span.low, span.low);
      bool outside = span.wide && (mask == ~0ull || map.row_cells < map.largest);  // where no row has looked
      read(outside ? 0 : span.low, span.low);
      read(span.high, outside ? CELLS - 1 : span.high);
    });
    clear_failed(failed, size, held);
  }
};

}  // namespace
}  // namespace hitbox
