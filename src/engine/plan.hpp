// What one event asks of a bitmap segment: which lines to AND, most selective first, and which lists to hold it
// against. A point reads one line an attribute; an interval reads the lines of all its cells, or, where it spans most
// of them, the lists of the cells outside. Both have the same four functions, so that the loops above them are
// compiled once for each and the point's stay lean.
#pragma once

#include "lines.hpp"

namespace hitbox {
namespace {

struct PointList {
  u16 at;  // attribute * CELLS + cell
  u16 lossy;
  u32 place;
};

struct Span {
  u16 attribute;
  u8 low, high;     // cells of the event's ends
  u8 first, last;   // lists to read: [first, low] and [high, last]
  u8 low_lossy, high_lossy;
  u32 low_place, high_place;
};

// Plans of many events over one segment: row e of each array belongs to event e.
template <class Line_, class List_>
struct Plans {
  u32 width;
  Scratch<Line_> lines;
  Scratch<List_> lists;
  Scratch<u16> line_count, list_count;

  Plans(u32 attributes, size_t events)
      : width(attributes), lines(attributes * events), lists(attributes * events), line_count(events), list_count(events) {}
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

static inline void list_range(const Bitmap& map, const Directory* entry, u32 first, u32 last, u32& from, u32& to) {
  if (entry->group) {
    const u16* offsets = map.offsets + size_t(entry->group) * (CELLS + 1);
    from = entry->base + offsets[first];
    to = entry->base + offsets[last + 1];
  } else {
    from = entry->base;
    to = entry[1].base;
  }
}

struct PointPlans : Plans<u16, PointList> {
  using Plans::Plans;

  // False where no box of the segment can match; `blocks` is narrowed to those that may.
  bool make(const Bitmap& map, const i64* low, const i64*, size_t event, u64* blocks) {
    Ranking ranking;
    u32 lists_used = 0;
    for (u32 a = 0; a < map.attributes; ++a) {
      u32 cell = cell_of(map.starts + size_t(a) * CELLS, low[a]), at = a * CELLS + cell;
      u32 population = map.population[at];
      if (!population) return false;
      if (population < map.members) ranking.push(at, population, map.members);
      if (map.edges[at] || map.listed[a])
        lists[event * width + lists_used++] = {u16(at), map.lossy[at], place_of(map, a, cell, low[a])};
    }
    u32 lines_used = 0;
    ranking.each([&](u16 at) {
      lines[event * width + lines_used++] = at;
      narrow(blocks, map.summary + size_t(at) * map.summary_words, map.summary_words);
    });
    line_count[event] = u16(lines_used);
    list_count[event] = u16(lists_used);
    return true;
  }

  void prefetch(const Bitmap& map, u32 block, size_t event) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    u32 some = line_count.data[event] < 12 ? line_count.data[event] : 12;
    for (u32 i = 0; i < some; ++i) {
      u32 at = lines.data[event * width + i];
      __builtin_prefetch(map.lines + (size_t(directory[at / CELLS].group) * CELLS + at % CELLS) * WORDS);
    }
  }

  Line gather(const Bitmap& map, u32 block, size_t event) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    const u16* line = lines.data + event * width;
    Line held = load(map.alive + size_t(block) * WORDS);
    for (u32 i = 0, all = line_count.data[event]; i < all; ++i) {
      held = held & load(map.lines + (size_t(directory[line[i] / CELLS].group) * CELLS + line[i] % CELLS) * WORDS);
      if (i % 2 && empty(held)) break;
    }
    return held;
  }

  void prefetch_lists(const Bitmap& map, u32 block, size_t event, bool entries) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    for (u32 i = 0, all = list_count.data[event]; i < all; ++i) {
      u32 at = lists.data[event * width + i].at;
      const Directory* entry = directory + at / CELLS;
      const u16* offset = map.offsets + size_t(entry->group) * (CELLS + 1) + at % CELLS;
      if (entries) __builtin_prefetch(map.entries + entry->base + *offset);
      else __builtin_prefetch(offset);
    }
  }

  void settle(const Bitmap& map, u32 block, size_t event, const i64* low, const i64*, u64* held) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    for (u32 i = 0, all = list_count.data[event]; i < all; ++i) {
      PointList list = lists.data[event * width + i];
      u32 a = list.at / CELLS, cell = list.at % CELLS, from, to;
      list_range(map, directory + a, cell, cell, from, to);
      if (from == to) continue;
      bool lossy = list.lossy;
      clear_failing(map, from, to, Against{list.place, list.place, lossy, lossy, low[a], low[a]}, held);
    }
  }
};

struct IntervalPlans : Plans<u16, Span> {
  using Plans::Plans;
  static constexpr u32 WIDE = 20;  // cells from which lists of the outside are cheaper than lines of the inside

  bool make(const Bitmap& map, const i64* low, const i64* high, size_t event, u64* blocks) {
    Ranking ranking;
    u32 used = 0;
    for (u32 a = 0; a < map.attributes; ++a) {
      if (low[a] == MISSING && high[a] == HIGHEST) continue;
      const i64* starts = map.starts + size_t(a) * CELLS;
      u32 from = cell_of(starts, low[a]), to = cell_of(starts, high[a]), most = 0, inner = 0;
      for (u32 c = from; c <= to; ++c) {
        u32 population = map.population[a * CELLS + c];
        if (population > most) most = population;
        if (c > from && c < to && population > inner) inner = population;
      }
      if (!most) return false;
      if (inner == map.members && !map.listed[a]) continue;  // every box covers a cell inside the event
      bool wide = to - from >= WIDE, full = most == map.members;
      u32 i = a * CELLS + from, j = a * CELLS + to;
      bool edges = map.edges[i] || map.edges[j] || map.listed[a];
      Span span{u16(a), u8(from), u8(to), u8(wide ? 0 : from), u8(wide ? CELLS - 1 : to), map.lossy[i], map.lossy[j],
                place_of(map, a, from, low[a]), place_of(map, a, to, high[a])};
      if (full && !edges) continue;
      lists[event * width + used] = span;
      if (!full && !wide) ranking.push(used, most, map.members);
      if (!full) narrow_span(map, a, from, to, blocks);
      ++used;
    }
    u32 lines_used = 0;
    ranking.each([&](u16 at) { lines[event * width + lines_used++] = at; });
    line_count[event] = u16(lines_used);
    list_count[event] = u16(used);
    return true;
  }

  static void narrow_span(const Bitmap& map, u32 a, u32 from, u32 to, u64* blocks) {
    const u64* summary = map.summary + (size_t(a) * CELLS + from) * map.summary_words;
    for (u32 w = 0; w < map.summary_words; ++w) {
      u64 any = 0;
      for (u32 c = from; c <= to; ++c) any |= summary[(c - from) * map.summary_words + w];
      blocks[w] &= any;
    }
  }

  void prefetch(const Bitmap& map, u32 block, size_t event) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    u32 some = line_count.data[event] < 4 ? line_count.data[event] : 4;
    for (u32 i = 0; i < some; ++i) {
      const Span& span = lists.data[event * width + lines.data[event * width + i]];
      const u64* line = map.lines + (size_t(directory[span.attribute].group) * CELLS + span.low) * WORDS;
      for (u32 c = span.low; c <= span.high; ++c, line += WORDS) __builtin_prefetch(line);
    }
  }

  Line gather(const Bitmap& map, u32 block, size_t event) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    Line held = load(map.alive + size_t(block) * WORDS);
    for (u32 i = 0, all = line_count.data[event]; i < all; ++i) {
      const Span& span = lists.data[event * width + lines.data[event * width + i]];
      const u64* line = map.lines + (size_t(directory[span.attribute].group) * CELLS + span.low) * WORDS;
      Line any = load(line);
      for (u32 c = span.low; c < span.high; ++c) any = any | load(line += WORDS);
      held = held & any;
      if (empty(held)) break;
    }
    return held;
  }

  void prefetch_lists(const Bitmap& map, u32 block, size_t event, bool entries) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    for (u32 i = 0, all = list_count.data[event]; i < all; ++i) {
      const Span& span = lists.data[event * width + i];
      const Directory* entry = directory + span.attribute;
      const u16* offset = map.offsets + size_t(entry->group) * (CELLS + 1);
      for (u8 cell : {span.first, span.high})
        if (entries) __builtin_prefetch(map.entries + entry->base + offset[cell]);
        else __builtin_prefetch(offset + cell);
    }
  }

  void settle(const Bitmap& map, u32 block, size_t event, const i64* low, const i64* high, u64* held) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    for (u32 i = 0, all = list_count.data[event]; i < all; ++i) {
      const Span& span = lists.data[event * width + i];
      u32 a = span.attribute, from, to;
      Against event_ends{span.low_place, span.high_place, bool(span.low_lossy), bool(span.high_lossy), low[a], high[a]};
      bool joined = span.low == span.high || !directory[a].group;
      list_range(map, directory + a, span.first, joined ? span.last : span.low, from, to);
      if (from < to) clear_failing(map, from, to, event_ends, held);
      if (joined) continue;
      list_range(map, directory + a, span.high, span.last, from, to);
      if (from < to) clear_failing(map, from, to, event_ends, held);
    }
  }
};

}  // namespace
}  // namespace hitbox
