// What one event asks of a bitmap segment: which lines to AND, most selective first, and which lists to hold it
// against. A point reads one line an attribute; an interval reads lines of its cells, no further apart than the
// narrowest box is wide, or, where that would be too many, the lists of the cells outside. Both have the same
// functions, so that the loops above them are compiled once for each and the point's stay lean.
#pragma once

#include "lines.hpp"

namespace hitbox {
namespace {

// | sure: lines decide, where a block has them 1 | lossy 1 | place 22 |, small so that a batch's plans stay in cache
struct PointList {
  u32 bits;

  u32 place() const { return bits & 0x3FFFFF; }
  u32 cell() const { return place() >> 16; }
  bool lossy() const { return bits >> 22 & 1; }
  bool sure() const { return bits >> 23 & 1; }
};

struct Span {
  u8 low, high;    // cells of the event's ends
  u8 first, last;  // lists to read: [first, low] and [high, last]
  u8 low_lossy, high_lossy;
  u8 sure;         // lines decide, where a block has them
  u8 stride;       // so many cells apart, lines miss no box
  u32 low_place, high_place;
};

// Plans of many events over one segment: row e of each array belongs to event e.
template <class List>
struct Plans {
  u32 width, words;
  Scratch<u16> lines;       // what to AND, in order
  Scratch<u16> line_count;
  Scratch<List> lists;      // [attribute]
  Scratch<u64> needs;       // bits: attributes whose lists must be read

  Plans(u32 attributes, size_t events)
      : width(attributes), words((attributes + 63) / 64), lines(attributes * events), line_count(events),
        lists(attributes * events), needs(words * events) {}

  void prefetch_plan(size_t event) const {
    fetch(lines.data + event * width);
    fetch(lists.data + event * width);
    fetch(needs.data + event * words);
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
};

constexpr u32 FEW = 16;  // boxes of a line up to which it pays to find out which lists can matter at all

static inline const u8* mask_of(const Bitmap& map, u32 block, u32 position) {
  return map.masks + (size_t(block) * STRIDE + position) * map.mask_bytes;
}

static inline void prefetch_masks(const Bitmap& map, u32 block, const u64* line) {
  for (u32 w = 0; w < WORDS; ++w)
    for (u64 bits = line[w]; bits; bits &= bits - 1) fetch(mask_of(map, block, w * 64 + u32(__builtin_ctzll(bits))));
}

// The attributes that some of few boxes of a line constrain, as far as masks tell.
static inline u64 constrained(const Bitmap& map, u32 block, const u64* line) {
  if (!map.mask_bytes) return ~0ull;
  u64 all = 0;
  for (u32 w = 0; w < WORDS; ++w)
    for (u64 bits = line[w]; bits; bits &= bits - 1) {
      u64 mask;
      std::memcpy(&mask, mask_of(map, block, w * 64 + u32(__builtin_ctzll(bits))), 8);
      all |= mask;
    }
  return all;
}

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

struct PointPlans : Plans<PointList> {
  using Plans::Plans;

  // False where no box of the segment can match; `blocks` is narrowed to those that may.
  bool make(const Bitmap& map, const i64* low, const i64*, size_t event, u64* blocks) {
    Ranking ranking;
    clear_needs(event);
    for (u32 a = 0; a < map.attributes; ++a) {
      u32 cell = cell_of(map.starts + size_t(a) * CELLS, low[a]), at = a * CELLS + cell;
      u32 population = map.population[at];
      if (!population) return false;
      if (population < map.members) ranking.push(at, population, map.members);
      if (!map.edges[at] && !map.listed[a]) continue;
      u32 flags = u32(map.lossy[at]) << 22 | u32(!map.edges[at]) << 23;
      lists[event * width + a] = {place_of(map, a, cell, low[a]) | flags};
      need(event, a);
    }
    u32 used = 0;
    ranking.each([&](u16 at) {
      lines[event * width + used++] = at;
      narrow(blocks, map.summary + size_t(at) * map.summary_words, map.summary_words);
    });
    line_count[event] = u16(used);
    return true;
  }

  void prefetch(const Bitmap& map, u32 block, size_t event) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    for (u32 i = 0, all = line_count.data[event]; i < all && i < 48; ++i) {
      u32 at = lines.data[event * width + i];
      fetch(line_of(map, directory[at / CELLS].group, at % CELLS));
    }
  }

  Line gather(const Bitmap& map, u32 block, size_t event) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    const u16* line = lines.data + event * width;
    Line held = load(map.alive + size_t(block) * WORDS);
    u32 i = 0, all = line_count.data[event];
    for (; i + 2 <= all; i += 2) {
      held = held & load(line_of(map, directory[line[i] / CELLS].group, line[i] % CELLS)) &
             load(line_of(map, directory[line[i + 1] / CELLS].group, line[i + 1] % CELLS));
      if (empty(held)) return held;
    }
    if (i < all) held = held & load(line_of(map, directory[line[i] / CELLS].group, line[i] % CELLS));
    return held;
  }

  // What `doubtful` will look at.
  void prefetch_doubtful(const Bitmap& map, u32 block, size_t event, const u64* held) const {
    if (count(held) > FEW) return;
    if (map.mask_bytes) return prefetch_masks(map, block, held);
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    each_list(event, ~0ull, [&](u32 a, const PointList& list) {
      if (list.sure()) return;
      const u64* line = line_of(map, directory[a].group, list.cell());
      fetch(line - WORDS);
      fetch(line + WORDS);
    });
  }

  // Before `settle`: which attributes' lists can tell the boxes of the line apart (all where they are many).
  // Masks alone narrow it well; lines beside the cell do too, but only where they are in cache (`resident`) or fetched.
  u64 doubtful(const Bitmap& map, u32 block, size_t event, const u64* held, bool resident) const {
    if (count(held) > FEW || words > 1) return ~0ull;
    u64 mask = constrained(map, block, held);
    if (map.mask_bytes && !resident) return mask;
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    Line line = load(held);
    u64 found = 0;
    each_list(event, mask, [&](u32 a, const PointList& list) {
      u32 group = directory[a].group;
      bool settled = group && (list.sure() || all_cover(line_of(map, group, list.cell()), list.cell(), line));
      found |= u64(!settled) << a;
    });
    return found;
  }

  void prefetch_lists(const Bitmap& map, u32 block, size_t event, u64 mask) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    each_list(event, mask, [&](u32 a, const PointList& list) {
      if (list.sure() && directory[a].group) return;
      u32 from, to;
      list_range(map, directory + a, list.cell(), list.cell(), from, to);
      fetch(map.entries + from);
      fetch(map.entries + to);
    });
  }

  void settle(const Bitmap& map, u32 block, size_t event, u64 mask, const i64* low, const i64*, u64* held) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    const Line members = load(held);
    Failed failed;
    u32 size = 0;
    each_list(event, mask, [&](u32 a, const PointList& list) {
      if (list.sure() && directory[a].group) return;
      u32 from, to;
      list_range(map, directory + a, list.cell(), list.cell(), from, to);
      Against ends{list.place(), list.place(), list.lossy(), list.lossy(), low + a, low + a};
      size = find_failing(map, from, to, ends, members, failed, size, held);
    });
    clear_failed(failed, size, held);
  }
};

struct IntervalPlans : Plans<Span> {
  using Plans::Plans;
  static constexpr u32 WIDE = 20;  // cells from which lists of the outside are cheaper than lines of the inside

  bool make(const Bitmap& map, const i64* low, const i64* high, size_t event, u64* blocks) {
    Ranking ranking;
    clear_needs(event);
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
      u32 stride = map.narrowest[a];
      bool wide = to - from >= WIDE * stride, full = most == map.members;
      u32 i = a * CELLS + from, j = a * CELLS + to;
      bool sure = !map.edges[i] && !map.edges[j] && (full || !wide);
      lists[event * width + a] = {u8(from), u8(to), u8(wide ? 0 : from), u8(wide ? CELLS - 1 : to), map.lossy[i],
                                  map.lossy[j], sure, u8(stride), place_of(map, a, from, low[a]),
                                  place_of(map, a, to, high[a])};
      if (!sure || map.listed[a]) need(event, a);
      if (full) continue;
      if (!wide) ranking.push(a, most, map.members);
      narrow_span(map, a, from, to, stride, blocks);
    }
    u32 used = 0;
    ranking.each([&](u16 a) { lines[event * width + used++] = a; });
    line_count[event] = u16(used);
    return true;
  }

  static void narrow_span(const Bitmap& map, u32 a, u32 from, u32 to, u32 stride, u64* blocks) {
    const u64* summary = map.summary + size_t(a) * CELLS * map.summary_words;
    for (u32 w = 0; w < map.summary_words; ++w) {
      u64 any = summary[to * map.summary_words + w];
      for (u32 c = from; c < to; c += stride) any |= summary[c * map.summary_words + w];
      blocks[w] &= any;
    }
  }

  void prefetch(const Bitmap& map, u32 block, size_t event) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    u32 fetched = 0;
    for (u32 i = 0, all = line_count.data[event]; i < all && fetched < 40; ++i) {
      u32 a = lines.data[event * width + i];
      const Span& span = lists.data[event * width + a];
      const u64* line = line_of(map, directory[a].group, 0);
      for (u32 c = span.low; c < span.high; c += span.stride, ++fetched) fetch(line + c * WORDS);
      fetch(line + span.high * WORDS);
      ++fetched;
    }
  }

  Line gather(const Bitmap& map, u32 block, size_t event) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    Line held = load(map.alive + size_t(block) * WORDS);
    for (u32 i = 0, all = line_count.data[event]; i < all; ++i) {
      u32 a = lines.data[event * width + i];
      const Span& span = lists.data[event * width + a];
      const u64* line = line_of(map, directory[a].group, 0);
      Line any = load(line + span.high * WORDS);
      for (u32 c = span.low; c < span.high; c += span.stride) any = any | load(line + c * WORDS);
      held = held & any;
      if (empty(held)) break;
    }
    return held;
  }

  void prefetch_doubtful(const Bitmap& map, u32 block, size_t, const u64* held) const {
    if (map.mask_bytes && count(held) <= FEW) prefetch_masks(map, block, held);
  }

  u64 doubtful(const Bitmap& map, u32 block, size_t, const u64* held, bool) const {
    return count(held) > FEW ? ~0ull : constrained(map, block, held);
  }

  void prefetch_lists(const Bitmap& map, u32 block, size_t event, u64 mask) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    each_list(event, mask, [&](u32 a, const Span& span) {
      if (span.sure && directory[a].group) return;
      u32 from, to;
      for (u8 cell : {span.first, span.high}) {
        list_range(map, directory + a, cell, cell, from, to);
        fetch(map.entries + from);
      }
    });
  }

  void settle(const Bitmap& map, u32 block, size_t event, u64 mask, const i64* low, const i64* high, u64* held) const {
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    const Line members = load(held);
    Failed failed;
    u32 size = 0;
    each_list(event, mask, [&](u32 a, const Span& span) {
      if (span.sure && directory[a].group) return;
      Against ends{span.low_place, span.high_place, bool(span.low_lossy), bool(span.high_lossy), low + a, high + a};
      bool joined = span.low == span.high || !directory[a].group;
      u32 from, to;
      list_range(map, directory + a, span.first, joined ? span.last : span.low, from, to);
      size = find_failing(map, from, to, ends, members, failed, size, held);
      if (joined) return;
      list_range(map, directory + a, span.high, span.last, from, to);
      size = find_failing(map, from, to, ends, members, failed, size, held);
    });
    clear_failed(failed, size, held);
  }
};

}  // namespace
}  // namespace hitbox
