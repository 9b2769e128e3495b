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
  std::vector<u16> counts;          // [attributes][CELLS] ends of the block at hand
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

  // Counts constraints, hands out groups and list space.
  void make_directory() {
    u32 m = attributes();
    out.directory.make((size_t(out.blocks) * m + 1) * 2);
    out.listed.make(m, 0);
    u32 groups = 1, base = 0;
    std::vector<u32> used(m);
    for (u32 b = 0; b < out.blocks; ++b) {
      std::fill(used.begin(), used.end(), 0);
      for (size_t i = block_begin[b]; i < block_begin[b + 1]; ++i) {
        if (i + 8 < order.size()) __builtin_prefetch(cells.data() + boxes.offsets[order[i + 8]]);
        for (i64 at = boxes.offsets[order[i]]; at < boxes.offsets[order[i] + 1]; ++at)
          ++used[cells[size_t(at)].attribute];
      }
      for (u32 a = 0; a < m; ++a) {
        u32* entry = out.directory.data() + (size_t(b) * m + a) * 2;
        entry[0] = used[a] >= options.lines ? groups++ : 0;
        entry[1] = base;
        out.listed[a] |= !entry[0] && used[a];
        base += 2 * used[a];
      }
    }
    out.directory[size_t(out.blocks) * m * 2] = 0;
    out.directory[size_t(out.blocks) * m * 2 + 1] = base;
    out.lines.make(size_t(groups) * CELLS * WORDS);
    std::memset(out.lines.data(), 0xFF, CELLS * WORDS * 8);
    out.entries.make(size_t(base) + 16);
    std::memset(out.entries.data() + base, 0, 64);
    out.exact.make(out.grid.any_lossy ? base : 0);
  }

  void make_tables() {
    size_t all = size_t(attributes()) * CELLS;
    out.summary_words = (out.blocks + 511) / 512 * 8;
    out.members = u32(boxes.count);
    out.population.make(all, 0);
    out.edges.make(all, 0);
    out.summary.make(all * out.summary_words, 0);
    out.numbers.make(size_t(out.blocks) * STRIDE);
    out.alive.make(size_t(out.blocks) * WORDS, 0);
    u32 m = attributes();
    bool sparse = double(cells.size()) * 3 < double(boxes.count) * m && m <= 64;
    out.mask_bytes = sparse ? (m + 7) / 8 : 0;
    out.masks.make(sparse ? size_t(out.blocks) * STRIDE * out.mask_bytes + 8 : 0, 0);
    out.position.make(boxes.count);
    out.narrowest.make(m, CELLS);
    for (const Cells& c : cells) {
      u8& least = out.narrowest[c.attribute];
      least = std::min(least, u8(c.high - c.low + 1));
    }
    counts.resize(all);
    cursor.resize(all);
  }

  void place_members(u32 b) {
    u32 size = u32(block_begin[b + 1] - block_begin[b]);
    for (u32 p = 0; p < STRIDE; ++p) {
      size_t at = size_t(b) * STRIDE + p;
      if (p >= size) {
        out.numbers[at] = 0;
        continue;
      }
      u32 box = order[block_begin[b] + p];
      out.numbers[at] = u32(boxes.numbers[box]);
      out.position[box] = u32(at);
      out.alive[at / 64] |= 1ull << (p & 63);
    }
  }

  // Where the list of each (attribute, cell) of the block begins.
  void make_lists(u32 b) {
    u32 m = attributes();
    std::fill(counts.begin(), counts.end(), 0);
    for (size_t i = block_begin[b]; i < block_begin[b + 1]; ++i)
      for (i64 at = boxes.offsets[order[i]]; at < boxes.offsets[order[i] + 1]; ++at) {
        Cells c = cells[size_t(at)];
        ++counts[c.attribute * CELLS + c.low];
        ++counts[c.attribute * CELLS + c.high];
      }
    for (u32 a = 0; a < m; ++a) {
      const u32* entry = out.directory.data() + (size_t(b) * m + a) * 2;
      if (entry[1] == entry[3] && !entry[0]) continue;
      u32 sum = 0;
      for (u32 c = 0; c < CELLS; ++c) {
        cursor[a * CELLS + c] = entry[1] + sum;
        sum += counts[a * CELLS + c];
      }
    }
  }

  void put(u32 a, u32 cell, i64 key, u32 side, u32 p) {
    size_t at = size_t(a) * CELLS + cell;
    u32 code = code_of(out.grid.starts[at], out.grid.shift[at], key);
    u32 where = cursor[at]++;
    out.entries[where] = cell << 26 | code << 10 | side | p;
    if (out.exact.size) out.exact[where] = key;
    out.edges[at] += side ? key != out.grid.last(at) : key != out.grid.starts[at];
  }

  static void toggle(u64* line, u32 p) { line[p >> 6] ^= 1ull << (p & 63); }

  void fill(u32 b) {
    u32 m = attributes();
    const u32* directory = out.directory.data() + size_t(b) * m * 2;
    const u64* members = out.alive.data() + size_t(b) * WORDS;
    for (u32 a = 0; a < m; ++a)
      if (u32 group = directory[2 * a]) {
        u64* lines = out.lines.data() + size_t(group) * CELLS * WORDS;
        std::memset(lines, 0, CELLS * WORDS * 8);
        std::memcpy(lines, members, WORDS * 8);
      }
    for (size_t i = block_begin[b]; i < block_begin[b + 1]; ++i) {
      u32 p = u32(i - block_begin[b]);
      for (i64 at = boxes.offsets[order[i]]; at < boxes.offsets[order[i] + 1]; ++at) {
        Cells c = cells[size_t(at)];
        if (out.mask_bytes)
          out.masks[(size_t(b) * STRIDE + p) * out.mask_bytes + c.attribute / 8] |= u8(1u << (c.attribute & 7));
        put(c.attribute, c.low, boxes.low[at], 0, p);
        put(c.attribute, c.high, boxes.high[at], UPPER, p);
        u32 group = directory[2 * c.attribute];
        if (!group) continue;
        u64* lines = out.lines.data() + size_t(group) * CELLS * WORDS;
        toggle(lines, p);
        toggle(lines + c.low * WORDS, p);
        if (c.high + 1u < CELLS) toggle(lines + (c.high + 1) * WORDS, p);
      }
    }
  }

  // Running XOR over the cells turns toggles into lines; counts and summaries follow.
  void finish(u32 b) {
    u32 m = attributes(), size = u32(block_begin[b + 1] - block_begin[b]);
    for (u32 a = 0; a < m; ++a) {
      u32 group = out.directory[(size_t(b) * m + a) * 2];
      u64* line = out.lines.data() + size_t(group) * CELLS * WORDS;
      for (u32 c = 0; c < CELLS; ++c, line += WORDS) {
        size_t at = size_t(a) * CELLS + c;
        u32 count = size;
        if (group) {
          if (c)
            for (u32 w = 0; w < WORDS; ++w) line[w] ^= line[i64(w) - i64(WORDS)];
          line[WORDS - 1] &= ~0ull >> 16;  // without the head of the line before
          count = 0;
          for (u32 w = 0; w < WORDS; ++w) count += u32(__builtin_popcountll(line[w]));
        }
        out.population[at] += count;
        if (group) {
          // After the lists are written, cursors stand at their ends.
          u32 size_here = counts[at], base = out.directory[(size_t(b) * m + a) * 2 + 1];
          u64 head = (cursor[at] - base - size_here) | u64(std::min(size_here, LONG_LIST)) << 10;
          line[WORDS - 1] |= head << 48;
        }
        if (count) out.summary[at * out.summary_words + b / 64] |= 1ull << (b & 63);
      }
    }
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
  for (u32 b = 0; b < out.blocks; ++b) {
    layout.place_members(b);
    layout.make_lists(b);
    layout.fill(b);
    layout.finish(b);
  }
  return out;
}

}  // namespace hitbox
