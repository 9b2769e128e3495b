// Laying out a bitmap segment: order, directory, lines, lists, summaries. About one microsecond a box.
#include <algorithm>

#include "build.hpp"

namespace hitbox {
namespace {

struct Layout {
  const Boxes& boxes;
  const Options& options;
  const std::vector<Cells>& cells;
  BitmapArrays& out;
  std::vector<u32> order;           // boxes by block
  std::vector<size_t> block_begin;  // [blocks + 1] into order
  std::vector<u16> counts;          // [attributes][CELLS][LANES] ends of the tile at hand
  std::vector<u32> cursor;          // the same as write positions

  u32 attributes() const { return options.attributes; }

  void order_boxes() {
    size_t start[LEVELS + 1] = {};
    for (size_t i = 0; i < boxes.count; ++i) ++start[LEVELS - boxes.priority[i]];
    for (u32 l = 0; l < LEVELS; ++l) start[l + 1] += start[l];
    size_t next[LEVELS];
    std::copy(start, start + LEVELS, next);
    order.resize(boxes.count);
    for (size_t i = 0; i < boxes.count; ++i) order[next[LEVELS - 1 - boxes.priority[i]]++] = u32(i);
    out.level_end.make(LEVELS);
    for (u32 l = 0; l < LEVELS; ++l) {
      cluster(boxes, cells, out.grid, attributes(), options.block, order.data() + start[l], start[l + 1] - start[l]);
      for (size_t at = start[l]; at < start[l + 1]; at += options.block) block_begin.push_back(at);
      out.level_end[l] = u32(block_begin.size());
    }
    out.blocks = u32(block_begin.size());
    block_begin.push_back(boxes.count);
  }

  size_t begin_of(u32 block) const { return block_begin[std::min(block, out.blocks)]; }

  template <class Take>
  void each_constraint(u32 block, Take take) const {
    for (size_t i = begin_of(block); i < begin_of(block + 1); ++i)
      for (i64 at = boxes.offsets[order[i]]; at < boxes.offsets[order[i] + 1]; ++at)
        take(u32(i - block_begin[block]), size_t(at), cells[size_t(at)]);
  }

  // Counts constraints, hands out groups and list space.
  void make_directory() {
    u32 m = attributes(), tiles = tiles_of(out.blocks);
    out.directory.make((size_t(tiles) * m + 1) * 2);
    out.listed.make(m, 0);
    u32 groups = 0, base = 0;
    std::vector<u32> used(m);
    for (u32 t = 0; t < tiles; ++t) {
      std::fill(used.begin(), used.end(), 0);
      for (size_t i = begin_of(t * LANES); i < begin_of((t + 1) * LANES); ++i) {
        if (i + 8 < order.size()) __builtin_prefetch(cells.data() + boxes.offsets[order[i + 8]]);
        for (i64 at = boxes.offsets[order[i]]; at < boxes.offsets[order[i] + 1]; ++at)
          ++used[cells[size_t(at)].attribute];
      }
      for (u32 a = 0; a < m; ++a) {
        u32* entry = out.directory.data() + (size_t(t) * m + a) * 2;
        bool lined = used[a] >= options.lines * LANES;
        entry[0] = lined ? ++groups : 0;
        entry[1] = base;
        out.listed[a] |= !lined && used[a];
        base += 2 * used[a] + (!lined && used[a] ? LANE_ENDS : 0);
      }
    }
    out.directory[size_t(tiles) * m * 2] = 0;
    out.directory[size_t(tiles) * m * 2 + 1] = base;
    out.order.make(size_t(tiles) * m, NO_ATTRIBUTE);
    out.lines.make(size_t(groups) * CELLS * LANES * WORDS);
    out.entries.make(size_t(base) + 16);
    std::memset(out.entries.data() + base, 0, 64);
    out.exact.make(out.grid.any_lossy ? base : 0);
  }

  void make_tables() {
    size_t all = size_t(attributes()) * CELLS;
    u32 m = attributes();
    out.summary_words = (out.blocks + 511) / 512 * 8;
    out.members = u32(boxes.count);
    out.population.make(all, 0);
    out.edges.make(all, 0);
    out.summary.make(all * out.summary_words, 0);
    out.numbers.make(size_t(out.blocks) * STRIDE);
    out.alive.make(size_t(tiles_of(out.blocks)) * LANES * WORDS, 0);
    out.position.make(boxes.count);
    out.narrowest.make(m, CELLS);
    for (const Cells& c : cells) {
      u8& least = out.narrowest[c.attribute];
      least = std::min(least, u8(c.high - c.low + 1));
    }
    make_row_table();
    counts.resize(all * LANES);
    cursor.resize(all * LANES);
  }

  // A row has room for half as many constraints again as boxes have on average, so that a few large boxes do not make
  // all rows long.
  void make_row_table() {
    for (size_t i = 0; i < boxes.count; ++i) out.largest = std::max(out.largest, boxes.size(i));
    size_t usual = cells.size() * 3 / 2 / boxes.count + 1;
    out.row_cells = attributes() > ROW_ATTRIBUTES ? 0 : u32(std::min<size_t>(out.largest, usual));
    size_t bytes = out.row_cells ? size_t(out.blocks) * BLOCK * row_bytes(attributes(), out.row_cells) + 64 : 0;
    out.rows.make(bytes, 0);
  }

  void fetch_box(u32 box) const {
    i64 at = boxes.offsets[box];
    __builtin_prefetch(cells.data() + at);
    for (i64 ahead : {0, 8}) {
      __builtin_prefetch(boxes.low + at + ahead);
      __builtin_prefetch(boxes.high + at + ahead);
    }
  }

  void place_members(u32 b) {
    u32 size = u32(block_begin[b + 1] - block_begin[b]);
    for (u32 p = 0; p < STRIDE; ++p) {
      size_t at = size_t(b) * STRIDE + p;
      if (p >= size) {
        out.numbers[at] = 0;
        continue;
      }
      size_t next = block_begin[b] + p;
      if (next + 8 < order.size()) fetch_box(order[next + 8]);
      u32 box = order[next];
      out.numbers[at] = u32(boxes.numbers[box]);
      out.position[box] = u32(at);
      out.alive[at / 64] |= 1ull << (p & 63);
      if (out.row_cells) write_row(b, p, box);
    }
  }

  void write_row(u32 b, u32 p, u32 box) {
    u8* row = out.rows.data() + (size_t(b) * BLOCK + p) * row_bytes(attributes(), out.row_cells);
    u8* lows = row + row_mask_bytes(attributes());
    u8* highs = lows + row_cell_bytes(out.row_cells);
    const Cells* c = cells.data() + boxes.offsets[box];
    u32 size = boxes.size(box), held = std::min(size, out.row_cells);
    u64 mask = 0;
    for (u32 i = 0; i < size; ++i) mask |= 1ull << c[i].attribute;
    std::memcpy(row, &mask, row_mask_bytes(attributes()));
    pack(c, held, &Cells::low, lows);
    pack(c, held, &Cells::high, highs);
  }

  // Four cells are three bytes. The last ones may reach beyond the row: what stands there is written later.
  static void pack(const Cells* c, u32 size, u8 Cells::*cell, u8* at) {
    for (u32 i = 0; i < size; i += 4, at += 3) {
      u32 bits = 0;
      for (u32 j = i; j < i + 4 && j < size; ++j) bits |= u32(c[j].*cell) << (6 * (j - i));
      std::memcpy(at, &bits, 3);
    }
  }

  // Where the ends of an attribute that lie in a cell are counted.
  size_t slot(u32 group, u32 a, u32 cell, u32 lane) const {
    return (size_t(a) * CELLS + (group ? cell : 0)) * LANES + lane;
  }

  // Where each list of the tile begins.
  void make_lists(u32 tile) {
    u32 m = attributes();
    const u32* directory = out.directory.data() + size_t(tile) * m * 2;
    std::fill(counts.begin(), counts.end(), 0);
    for (u32 lane = 0; lane < LANES; ++lane)
      each_constraint(tile * LANES + lane, [&](u32, size_t, Cells c) {
        u32 group = directory[c.attribute * 2];
        ++counts[slot(group, c.attribute, c.low, lane)];
        ++counts[slot(group, c.attribute, c.high, lane)];
      });
    for (u32 a = 0; a < m; ++a) {
      u32 group = directory[a * 2], base = directory[a * 2 + 1];
      if (base == directory[a * 2 + 3] && !group) continue;
      u32 lists = group ? CELLS * LANES : LANES, sum = group ? 0 : LANE_ENDS;
      for (u32 i = 0; i < lists; ++i) {
        cursor[size_t(a) * CELLS * LANES + i] = base + sum;
        sum += counts[size_t(a) * CELLS * LANES + i];
        if (!group) put_lane_end(base, i, sum - LANE_ENDS);
      }
    }
  }

  void put_lane_end(u32 base, u32 lane, u32 end) {
    u16 ends[LANES];
    std::memcpy(ends, out.entries.data() + base, sizeof ends);
    ends[lane] = u16(end);
    std::memcpy(out.entries.data() + base, ends, sizeof ends);
    for (u32 i = 0; out.exact.size && i < LANE_ENDS; ++i) out.exact[base + i] = 0;
  }

  void put(u32 group, u32 a, u32 cell, i64 key, u32 side, u32 lane, u32 p) {
    size_t at = size_t(a) * CELLS + cell;
    u32 code = code_of(out.grid.starts[at], out.grid.shift[at], key);
    u32 where = cursor[slot(group, a, cell, lane)]++;
    out.entries[where] = cell << 26 | code << 10 | side | p;
    if (out.exact.size) out.exact[where] = key;
    out.edges[at] += side ? key != out.grid.last(at) : key != out.grid.starts[at];
  }

  static void toggle(u64* line, u32 p) { line[p >> 6] ^= 1ull << (p & 63); }

  u64* line(u32 group, u32 cell, u32 lane) {
    return out.lines.data() + ((size_t(group - 1) * CELLS + cell) * LANES + lane) * WORDS;
  }

  void fill(u32 tile) {
    u32 m = attributes();
    const u32* directory = out.directory.data() + size_t(tile) * m * 2;
    const u64* members = out.alive.data() + size_t(tile) * LANES * WORDS;
    for (u32 a = 0; a < m; ++a)
      if (u32 group = directory[2 * a]) {
        std::memset(line(group, 0, 0), 0, CELLS * LANES * WORDS * 8);
        std::memcpy(line(group, 0, 0), members, LANES * WORDS * 8);
      }
    for (u32 lane = 0; lane < LANES; ++lane)
      each_constraint(tile * LANES + lane, [&](u32 p, size_t at, Cells c) {
        u32 group = directory[2 * c.attribute];
        put(group, c.attribute, c.low, boxes.low[at], 0, lane, p);
        put(group, c.attribute, c.high, boxes.high[at], UPPER, lane, p);
        if (!group) return;
        toggle(line(group, 0, lane), p);
        toggle(line(group, c.low, lane), p);
        if (c.high + 1u < CELLS) toggle(line(group, c.high + 1, lane), p);
      });
  }

  void mark_summary(size_t at, u32 block, u32 count) {
    out.population[at] += count;
    if (count) out.summary[at * out.summary_words + block / 64] |= 1ull << (block & 63);
  }

  // Running XOR over the cells turns toggles into lines. Returns how many bits are set.
  u32 finish_lines(u32 tile, u32 a, u32 group, u32 base) {
    u32 set = 0;
    u64* at = line(group, 0, 0);
    for (u32 i = 0; i < CELLS * LANES; ++i, at += WORDS) {
      u32 cell = i / LANES, lane = i % LANES, block = tile * LANES + lane, count = 0;
      if (cell)
        for (u32 w = 0; w < WORDS; ++w) at[w] ^= at[i64(w) - i64(LANES * WORDS)];
      at[WORDS - 1] &= ~0ull >> 16;  // without the head of the line before
      for (u32 w = 0; w < WORDS; ++w) count += u32(__builtin_popcountll(at[w]));
      // After the lists are written, cursors stand at their ends.
      size_t list = slot(group, a, cell, lane);
      u64 head = (cursor[list] - base) | u64(std::min<u32>(counts[list], LONG_LIST)) << 12;
      at[WORDS - 1] |= head << 48;
      if (block < out.blocks) mark_summary(size_t(a) * CELLS + cell, block, count);
      set += count;
    }
    return set;
  }

  void finish(u32 tile) {
    u32 m = attributes();
    std::vector<std::pair<u32, u16>> telling;  // bits set, attribute
    for (u32 a = 0; a < m; ++a) {
      const u32* entry = out.directory.data() + (size_t(tile) * m + a) * 2;
      if (entry[0]) {
        telling.emplace_back(finish_lines(tile, a, entry[0], entry[1]), u16(a));
        continue;
      }
      for (u32 block = tile * LANES; block < std::min((tile + 1) * LANES, out.blocks); ++block)
        for (u32 c = 0; c < CELLS; ++c)
          mark_summary(size_t(a) * CELLS + c, block, u32(block_begin[block + 1] - block_begin[block]));
    }
    std::sort(telling.begin(), telling.end());
    for (size_t i = 0; i < telling.size(); ++i) out.order[size_t(tile) * m + i] = telling[i].second;
  }
};

}  // namespace

BitmapArrays build_bitmap(const Boxes& boxes, const Options& options) {
  BitmapArrays out;
  out.grid = make_grid(boxes, options.attributes);
  auto cells = find_cells(boxes, out.grid);
  Layout layout{boxes, options, cells, out, {}, {}, {}, {}};
  layout.order_boxes();
  layout.make_directory();
  layout.make_tables();
  for (u32 tile = 0; tile < tiles_of(out.blocks); ++tile) {
    for (u32 b = tile * LANES; b < std::min((tile + 1) * LANES, out.blocks); ++b) layout.place_members(b);
    layout.make_lists(tile);
    layout.fill(tile);
    layout.finish(tile);
  }
  return out;
}

}  // namespace hitbox
