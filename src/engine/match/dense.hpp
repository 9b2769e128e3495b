// Matches one event against a dense segment, tile by tile: ANDs the lines, clears the boxes that lists exclude, compares
// those in the event's own parts by their rows. Boxes of higher levels come first, so a limit stops early.
#pragma once

#include "match/row_test.hpp"

namespace hitbox {
namespace {

constexpr u32 MAX_SPAN_LINES = 8;  // intervals over more cells than this read lists instead of lines

// What an event reads of one attribute, the same in every tile.
struct DenseStep {
  u32 attribute, list;
  u32 first_line, last_line;   // index into `lines`: ORed
  u32 low_part, high_part;     // of the event's ends
  u32 low_cell, high_cell;     // their cells
  bool by_lists;               // there is no line: lists have to exclude boxes that end in other cells
  bool inner_high, inner_low;  // bounds inside low_cell, high_cell may exclude boxes
};

// The bounds of one attribute that exclude the event in a tile, and those next to them that the row decides.
struct DenseRuns {
  const u16 *high, *high_end;  // high bounds below the event; the ties follow
  const u16 *low, *low_end;    // low bounds above the event; the ties precede
  u32 high_ties, low_ties;
};

// A box that its part does not decide.
struct DenseTie {
  u32 position, attribute;
};

// Prefetches what the next tile reads, a little at a time, while the current tile is processed.
struct SpanPrefetcher {
  struct Span {
    const char *at, *end;
  };
  Scratch<Span> spans;
  size_t next = 0;

  void clear() { next = spans.size = 0; }
  void add(const void* from, const void* to) {
    if (from < to) spans.push({static_cast<const char*>(from), static_cast<const char*>(to)});
  }
  void step() {
    if (next == spans.size) return;
    Span& span = spans.data[next];
    prefetch_outer(span.at);
    span.at += 64;
    next += span.at >= span.end;
  }
};

struct DenseMatcher {
  const Dense& map;
  const i64 *low, *high;
  const bool counting;
  Scratch<u32> qkeys;  // [2][attributes]
  Scratch<DenseStep> steps;
  Scratch<u32> lines;
  Scratch<DenseTie> ties;
  SpanPrefetcher prefetcher;
  // Positions have 16 bits, so this is safe for any. Bits beyond the tile are 0.
  alignas(64) u64 remaining[(1u << 16) / 64];

  DenseMatcher(const Dense& m, const i64* l, const i64* h, bool only_count)
      : map(m), low(l), high(h), counting(only_count), qkeys(2 * size_t(m.attributes)), steps(m.attributes) {
    std::memset(remaining, 0, sizeof remaining);
    for (u32 a = 0; a < map.attributes; ++a)
      if (map.list_at[a] != NO_LIST) plan(a);
  }

  EncodedEvent event() const { return {low, high, qkeys.data, qkeys.data + map.attributes, nullptr, nullptr, nullptr}; }

  void plan(u32 a) {
    const i64* starts = map.starts + size_t(a) * CELLS;
    const u8* shift = map.shift + size_t(a) * CELLS;
    const u8* edges = map.edges + size_t(a) * CELLS;
    const u32* line = map.line_at + size_t(a) * CELLS;
    const u32 from = cell_of(starts, low[a]), to = low[a] == high[a] ? from : cell_of(starts, high[a]);
    const u32 low_qkey = quantize(starts, shift, from, low[a]), high_qkey = quantize(starts, shift, to, high[a]);
    const u32 first = u32(lines.size);
    bool every = false, by_lists = false;
    for (u32 c = from; c <= to; ++c) {
      if (line[c] == EVERY_BOX) {
        if (c > from && c < to) return;  // every box overlaps a cell inside the event
        every = true;
      } else if (line[c] == NO_LINE) {
        by_lists = true;
      } else if (c == from || line[c] != line[c - 1]) {
        lines.push(line[c]);
      }
    }
    const bool inner_high = edges[from] & INNER_HIGH, inner_low = edges[to] & INNER_LOW;
    if (every && !inner_high && !inner_low) {
      lines.size = first;
      return;
    }
    by_lists = !every && (by_lists || lines.size - first > MAX_SPAN_LINES);
    if (every || by_lists) lines.size = first;
    qkeys[a] = low_qkey;
    qkeys[map.attributes + a] = high_qkey;
    steps.push({a, map.list_at[a], first, u32(lines.size), part_at(low_qkey), part_at(high_qkey), from, to, by_lists,
                inner_high, inner_low});
  }

  // Leaves the boxes of a tile that match, among the positions [from, to) of the segment.
  void match_tile(u32 tile, size_t from, size_t to) {
    const u32 words = words_of(map, tile);
    std::memcpy(remaining, map.alive + size_t(tile) * map.tile_words, words * 8);
    if (words < map.tile_words) std::memset(remaining + words, 0, (map.tile_words - words) * 8);
    keep_range(size_t(tile) * map.tile_words * 64, from, to);
    prefetch_next(tile + 1);
    for (size_t i = 0; i < steps.size; ++i) intersect(tile, steps[i], words);
    for (size_t i = 0; i < steps.size; ++i) clear_by_list(tile, steps[i]);
    resolve_ties(tile);
  }

  // The parts of the event in the lists of a tile, which prefetch_next reads.
  void prefetch_parts(u32 tile) const {
    if (tile >= tiles_of(map)) return;
    for (size_t i = 0; i < steps.size; ++i) {
      const DenseList list = list_of(map, tile, steps.data[i].list);
      prefetch(list.high_starts + steps.data[i].low_part);
      prefetch(list.low_starts + steps.data[i].high_part);
    }
  }

  void prefetch_next(u32 tile) {
    prefetcher.clear();
    prefetch_parts(tile + 1);
    if (tile >= tiles_of(map)) return;
    const u32 words = words_of(map, tile);
    for (size_t i = 0; i < steps.size; ++i)
      for (u32 at = steps[i].first_line; at < steps[i].last_line; ++at) {
        const u64* line = line_of(map, tile, lines[at]);
        prefetcher.add(line, line + words);
      }
    for (size_t i = 0; i < steps.size; ++i) {
      const DenseRuns runs = runs_of(tile, steps[i]);
      prefetcher.add(runs.high, runs.high_end + runs.high_ties);
      prefetcher.add(runs.low - runs.low_ties, runs.low_end);
    }
  }

 private:
  void keep_range(size_t first, size_t from, size_t to) {
    const size_t end = first + size_t(map.tile_words) * 64;
    if (from > first) {
      const size_t before = from < end ? from - first : end - first;
      std::memset(remaining, 0, before / 64 * 8);
      if (before % 64) remaining[before / 64] &= ~0ull << before % 64;
    }
    if (to < end) {
      const size_t after = to > first ? to - first : 0;
      if (after % 64) remaining[after / 64] &= ~(~0ull << after % 64);
      const size_t word = (after + 63) / 64;
      std::memset(remaining + word, 0, (map.tile_words - word) * 8);
    }
  }

  void intersect(u32 tile, const DenseStep& step, u32 words) {
    const u32 size = step.last_line - step.first_line;
    if (!size) return;
    const u64* source[MAX_SPAN_LINES];
    for (u32 i = 0; i < size; ++i) source[i] = line_of(map, tile, lines[step.first_line + i]);
    if (size == 1) {
      for (u32 w = 0; w < words; w += WORDS) {
        if (counting) prefetcher.step();  // there will be no numbers to write meanwhile
        store(remaining + w, load(remaining + w) & load(source[0] + w));
      }
      return;
    }
    for (u32 w = 0; w < words; w += WORDS) {
      Line any = load(source[0] + w);
      for (u32 i = 1; i < size; ++i) any = any | load(source[i] + w);
      store(remaining + w, load(remaining + w) & any);
    }
  }

  DenseRuns runs_of(u32 tile, const DenseStep& step) const {
    const DenseList list = list_of(map, tile, step.list);
    const u32 cell_begin = step.low_cell * TOP_VALUES, cell_end = (step.high_cell + 1) * TOP_VALUES;
    DenseRuns runs;
    runs.high = list.highs + (step.by_lists ? 0 : list.high_starts[cell_begin]);
    runs.high_end = list.highs + list.high_starts[step.inner_high ? step.low_part : cell_begin];
    runs.high_ties = step.inner_high ? list.high_starts[step.low_part + 1] - list.high_starts[step.low_part] : 0;
    runs.low = list.lows + list.low_starts[step.inner_low ? step.high_part + 1 : cell_end];
    runs.low_end = list.lows + list.low_starts[step.by_lists ? PARTS : cell_end];
    runs.low_ties = step.inner_low ? list.low_starts[step.high_part + 1] - list.low_starts[step.high_part] : 0;
    return runs;
  }

  void clear_by_list(u32 tile, const DenseStep& step) {
    const DenseRuns runs = runs_of(tile, step);
    clear_all(runs.high, runs.high_end);
    clear_all(runs.low, runs.low_end);
    find_ties(tile, runs.high_end, runs.high_ties, step.attribute);
    find_ties(tile, runs.low - runs.low_ties, runs.low_ties, step.attribute);
  }

  void clear_all(const u16* at, const u16* end) {
    for (; end - at >= 8; at += 8) {
      for (u32 i = 0; i < 8; ++i) clear(remaining, at[i]);
      prefetcher.step();
    }
    for (; at < end; ++at) clear(remaining, *at);
  }

  void find_ties(u32 tile, const u16* at, u32 size, u32 attribute) {
    ties.need(ties.size + size + 1);
    DenseTie* out = ties.data + ties.size;
    for (u32 i = 0; i < size; ++i) {
      *out = {at[i], attribute};
      out += bit(remaining, at[i]);
    }
    const u8* rows = row_at(map, size_t(tile) * map.tile_words * 64);
    for (const DenseTie* one = ties.data + ties.size; one < out; ++one) {
      prefetch(rows + size_t(one->position) * map.row_bytes);
      prefetch(rows + size_t(one->position + 1) * map.row_bytes - 1);
    }
    ties.size = size_t(out - ties.data);
  }

  void resolve_ties(u32 tile) {
    const size_t first = size_t(tile) * map.tile_words * 64;
    for (size_t i = 0; i < ties.size; ++i) {
      const u32 position = ties[i].position;
      if (bit(remaining, position) && constraint_fails(map, event(), row_at(map, first + position), ties[i].attribute))
        clear(remaining, position);
    }
    ties.size = 0;
  }
};

// The number of bits that are set in positions [from, to) of a tile.
static inline u32 count_range(const u64* words, u32 from, u32 to) {
  u32 sum = 0;
  for (u32 w = from / 64; w * 64 < to; ++w) {
    u64 bits = words[w];
    if (w == from / 64) bits &= ~0ull << from % 64;
    if (w == to / 64) bits &= ~(~0ull << to % 64);
    sum += u32(__builtin_popcountll(bits));
  }
  return sum;
}

static inline u32 count_tile(const u64* remaining, u32 words) {
  u32 sum = 0;
  for (u32 w = 0; w < words; w += WORDS) sum += count(remaining + w);
  return sum;
}

// Writes the numbers of the boxes of a tile whose bits are set. May overwrite 16 values after them.
template <class Prefetch>
static inline void expand_tile(const Dense& map, size_t first, const u64* remaining, u32 words, i32* out,
                               Prefetch prefetch_more) {
  if (!map.number_bytes) {
    u32* to = reinterpret_cast<u32*>(out);
    for (u32 w = 0, base = map.first_number + u32(first); w < words; ++w, base += 64) {
      prefetch_more();
      to += list_word(remaining[w], base, to);
    }
    return;
  }
  for (u32 w = 0; w < words; w += WORDS) {
    const u32 some = count(remaining + w);
    expand<WORDS, true>(remaining + w, some, map.numbers.from(first + w * 64), out, prefetch_more);
    out += some;
  }
}

static inline void match_dense(const Dense& map, const i64* low, const i64* high, const MatchLimits& limits,
                               Result& out) {
  // The positions of the wanted levels.
  const size_t from = limits.top + 1 < LEVELS ? map.level_ends[LEVELS - 2 - limits.top] : 0;
  const size_t to = map.level_ends[LEVELS - 1 - limits.bottom];
  if (from >= to || !limits.limit) return;
  DenseMatcher matcher(map, low, high, out.counting);
  const size_t tile_size = size_t(map.tile_words) * 64, begin = out.size;
  const u32 first_tile = u32(from / tile_size), end_tile = u32((to + tile_size - 1) / tile_size);
  matcher.prefetch_parts(first_tile);
  for (u32 tile = first_tile; tile < end_tile && out.size - begin < limits.limit; ++tile) {
    matcher.match_tile(tile, from, to);
    const size_t first = tile * tile_size;
    const u32 words = words_of(map, tile), found = count_tile(matcher.remaining, words);
    if (out.counting) {
      out.counted += found;
      continue;
    }
    if (!found) continue;  // there may be no memory for results yet, and expand_tile writes padding
    reserve(out, found, double(end_tile - first_tile) / (tile + 1 - first_tile));
    expand_tile(map, first, matcher.remaining, words, out.numbers + out.size, [&] { matcher.prefetcher.step(); });
    // Boxes are ordered by level.
    for (u32 l = 0, at = 0, left = found; left; ++l) {
      if (map.level_ends[l] <= first + at) continue;
      const size_t end = map.level_ends[l] - first;
      const u32 some = end >= words * 64 ? left : count_range(matcher.remaining, at, u32(end));
      append_space(out, some, u8(LEVELS - 1 - l));
      left -= some;
      at = u32(end);
    }
  }
}

}  // namespace
}  // namespace hitbox
