// Builds a bitmap segment (bitmap.hpp): order of boxes, directory, lines, lists, rows, summaries. About 1 µs per box.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "build/row_writer.hpp"

namespace hitbox {
namespace {

struct Layout {
  const Boxes& boxes;
  const BitmapOptions& options;
  const Grid& grid;
  const std::vector<Cells>& cells;
  BitmapArrays& out;
  InterruptCheck& interrupt;
  RowWriter<BitmapArrays> rows;
  std::vector<u32> order;           // boxes by block
  std::vector<size_t> block_begin;  // [blocks + 1] into order
  std::vector<u16> counts;          // [attributes][CELLS] bounds per list of the current tile
  std::vector<u32> cursor;          // the same lists' write positions
  std::vector<u64> cell_lines;      // if compact: the lines of the current tile, one per cell
  u32 first_group = 1;              // of the current tile

  u32 attributes() const { return options.attributes; }

  void order_boxes() {
    size_t start[LEVELS + 1] = {};
    for (size_t i = 0; i < boxes.count; ++i) ++start[LEVELS - boxes.priority[i]];
    for (u32 l = 0; l < LEVELS; ++l) start[l + 1] += start[l];
    size_t next[LEVELS];
    std::copy(start, start + LEVELS, next);
    order.resize(boxes.count);
    for (size_t i = 0; i < boxes.count; ++i) order[next[LEVELS - 1 - boxes.priority[i]]++] = u32(i);
    out.bands.allocate(2 * LEVELS, 0);
    for (u32 l = 0, end; l < LEVELS; l = end) {
      end = band_end(start, l);
      u32 first = u32(block_begin.size());
      cluster(boxes, cells, grid, attributes(), options.block, order.data() + start[l], start[end] - start[l],
              interrupt);
      for (size_t at = start[l]; at < start[end]; at += options.block) block_begin.push_back(at);
      for (u32 i = l; i < end; ++i) {
        if (start[i] == start[i + 1]) continue;
        out.bands[2 * (LEVELS - 1 - i)] = first;
        out.bands[2 * (LEVELS - 1 - i) + 1] = u32(block_begin.size());
      }
    }
    out.blocks = u32(block_begin.size());
    block_begin.push_back(boxes.count);
  }

  // Levels [l, end), counted from the highest, share blocks. Extends the band until it and the rest are large enough.
  u32 band_end(const size_t* start, u32 l) const {
    u32 end = l + 1;
    while (end < LEVELS && (start[end] - start[l] < options.band || start[LEVELS] - start[end] < options.band)) ++end;
    return end;
  }

  // Sorts the boxes of each block by descending level; the sort is stable.
  void order_levels() {
    out.level_ends.allocate(size_t(out.blocks) * LEVEL_ENDS, 0xFFFF);
    out.tile_level.allocate(tiles_of(out.blocks));
    for (u32 block = 0; block < out.blocks; ++block) {
      u32 *own = order.data() + block_begin[block], size = u32(block_begin[block + 1] - block_begin[block]);
      u32 sorted[BLOCK], next[LEVELS + 1] = {};
      for (u32 i = 0; i < size; ++i) ++next[LEVELS - boxes.priority[own[i]]];
      for (u32 l = 0; l < LEVELS; ++l) next[l + 1] += next[l];
      for (u32 i = 0; i < size; ++i) sorted[next[LEVELS - 1 - boxes.priority[own[i]]]++] = own[i];
      std::copy(sorted, sorted + size, own);
      report_work(interrupt, size);
      std::copy(next, next + LEVELS, out.level_ends.data() + size_t(block) * LEVEL_ENDS);
      u8 highest = boxes.priority[own[0]], lowest = boxes.priority[own[size - 1]];
      u8& tile = out.tile_level[block / LANES];
      if (block % LANES == 0) tile = highest;
      if (tile != highest || tile != lowest) tile = MIXED;
    }
  }

  size_t block_start(u32 block) const { return block_begin[std::min(block, out.blocks)]; }

  // Counts constraints per tile and attribute, and assigns line groups and list space.
  void make_directory() {
    u32 m = attributes(), tiles = tiles_of(out.blocks);
    out.directory.allocate((size_t(tiles) * m + 1) * 2);
    u32 words = (m + 63) / 64;
    out.bare.allocate(size_t(tiles) * words, 0);
    u32 groups = 0;
    u64 base = 0;
    std::vector<u32> used(m);
    for (u32 t = 0; t < tiles; ++t) {
      std::fill(used.begin(), used.end(), 0);
      report_work(interrupt, TILE + m);
      for (size_t i = block_start(t * LANES); i < block_start((t + 1) * LANES); ++i) {
        if (i + PrefetchDistance::BUILD_BOXES < order.size())
          __builtin_prefetch(cells.data() + boxes.offsets[order[i + PrefetchDistance::BUILD_BOXES]]);
        for (i64 at = boxes.offsets[order[i]]; at < boxes.offsets[order[i] + 1]; ++at)
          ++used[cells[size_t(at)].attribute];
      }
      for (u32 a = 0; a < m; ++a) {
        u32* entry = out.directory.data() + (size_t(t) * m + a) * 2;
        bool has_lines = used[a] >= options.lines * LANES;
        entry[0] = has_lines ? ++groups : 0;
        entry[1] = u32(base);
        if (!has_lines && used[a]) out.bare[size_t(t) * words + a / 64] |= 1ull << (a & 63);
        if (!has_lines) base += 2 * used[a];
        else if (!options.compact) base += 2 * used[a] + CELLS;
      }
    }
    if (base > UINT32_MAX) throw std::length_error(TOO_MANY_CONSTRAINTS);
    out.directory[size_t(tiles) * m * 2] = 0;
    out.directory[size_t(tiles) * m * 2 + 1] = u32(base);
    out.order.allocate(size_t(tiles) * m, NO_ATTRIBUTE);
    out.lines.allocate(size_t(groups) * lines_per_group(out) * TILE_WORDS);
    out.entries.allocate(base + ENTRY_PADDING);
    std::memset(out.entries.data() + base, 0, ENTRY_PADDING * sizeof(u16));
  }

  void make_tables() {
    size_t all = size_t(attributes()) * CELLS;
    u32 m = attributes();
    out.summary_words = (out.blocks + 511) / 512 * 8;
    out.members = u32(boxes.count);
    out.population.allocate(all, 0);
    out.edges.allocate(all, 0);
    out.summary.allocate(all * out.summary_words, 0);
    make_numbers();
    out.alive.allocate(size_t(tiles_of(out.blocks)) * TILE_WORDS, 0);
    out.position.allocate(boxes.count);
    out.narrowest.allocate(m, CELLS);
    for (const Cells& c : cells) {
      u8& least = out.narrowest[c.attribute];
      least = std::min(least, u8(c.high - c.low + 1));
    }
    counts.resize(all);
    cursor.resize(all);
  }

  void make_numbers() {
    out.number_bytes = number_bytes_for(boxes);
    out.numbers.allocate(number_array_bytes(out.blocks, out.number_bytes) + BYTE_PADDING, 0);
    for (u32 block = 0; !boxes.numbers && block < out.blocks; ++block) {
      u32 first = u32(block_begin[block]);
      std::memcpy(out.numbers.data() + size_t(block) * 4, &first, 4);
    }
  }

  void prefetch_box(u32 box) const {
    i64 at = boxes.offsets[box];
    __builtin_prefetch(cells.data() + at);
    for (i64 ahead : {0, 8}) {
      __builtin_prefetch(boxes.low + at + ahead);
      __builtin_prefetch(boxes.high + at + ahead);
    }
  }

  // Calls callback(position in tile, box, index in order) for the boxes of a tile.
  template <class Callback>
  void each_box(u32 tile, Callback callback) const {
    for (u32 lane = 0; lane < LANES; ++lane) {
      size_t from = block_start(tile * LANES + lane), to = block_start(tile * LANES + lane + 1);
      for (size_t i = from; i < to; ++i) callback(lane * BLOCK + u32(i - from), order[i], i);
    }
  }

  // Computes where each list of the tile begins.
  void make_lists(u32 tile) {
    u32 m = attributes();
    const u32* directory = out.directory.data() + size_t(tile) * m * 2;
    if (!options.compact) count_bounds(tile);
    for (u32 a = 0; a < m; ++a) {
      u32 group = directory[a * 2], base = directory[a * 2 + 1], sum = CELLS;
      u32* own = cursor.data() + size_t(a) * CELLS;
      if (!group) own[0] = base;
      else if (!options.compact)
        for (u32 c = 0; c < CELLS; ++c) {
          own[c] = base + sum;
          sum += counts[size_t(a) * CELLS + c];
          out.entries[base + c] = u16(sum);
        }
    }
  }

  void count_bounds(u32 tile) {
    std::fill(counts.begin(), counts.end(), 0);
    each_box(tile, [&](u32, u32 box, size_t i) {
      if (i + PrefetchDistance::BUILD_BOXES < order.size())
        __builtin_prefetch(cells.data() + boxes.offsets[order[i + PrefetchDistance::BUILD_BOXES]]);
      for (i64 at = boxes.offsets[box]; at < boxes.offsets[box + 1]; ++at) {
        const Cells& c = cells[size_t(at)];
        ++counts[size_t(c.attribute) * CELLS + c.low];
        ++counts[size_t(c.attribute) * CELLS + c.high];
      }
    });
  }

  void add_entry(u32 group, u32 a, u32 set_number, u32 side, u32 position) {
    u32 slot = cursor[size_t(a) * CELLS + (group ? cell_at(set_number) : 0)]++;
    u32 top = u32(group ? top_at(set_number) : bare_top_at(set_number));
    out.entries[slot] = u16(top << 12 | side | position);
  }

  void find_ends(u32 box) {
    for (i64 at = boxes.offsets[box], i = 0; at < boxes.offsets[box + 1]; ++at, ++i) {
      Cells c = cells[size_t(at)];
      const i64* starts = grid.starts.data() + size_t(c.attribute) * CELLS;
      const u8* shift = grid.shift.data() + size_t(c.attribute) * CELLS;
      rows.ends[size_t(i)].low = quantize(starts, shift, c.low, boxes.low[at]);
      rows.ends[size_t(i)].high = quantize(starts, shift, c.high, boxes.high[at]);
      size_t low = size_t(c.attribute) * CELLS + c.low, high = size_t(c.attribute) * CELLS + c.high;
      out.edges[low] += boxes.low[at] != starts[c.low];
      out.edges[high] += boxes.high[at] != grid.last(high);
    }
  }

  static void toggle(u64* line, u32 p) { line[p >> 6] ^= 1ull << (p & 63); }

  // The lines of a group of the current tile, one per cell and lane. If compact, finish_lines joins those of two cells.
  u64* lines_of(u32 group) {
    if (!options.compact) return out.lines.data() + size_t(group - 1) * CELLS * TILE_WORDS;
    return cell_lines.data() + size_t(group - first_group) * CELLS * TILE_WORDS;
  }

  // Empties the lines of a tile.
  void start_lines(const u32* directory) {
    u32 groups = 0;
    for (u32 a = 0; a < attributes(); ++a)
      if (directory[2 * a] && !groups++) first_group = directory[2 * a];
    if (options.compact) cell_lines.resize(std::max(cell_lines.size(), size_t(groups) * CELLS * TILE_WORDS));
    if (groups) std::memset(lines_of(first_group), 0, size_t(groups) * CELLS * TILE_WORDS * 8);
  }

  void set_number(u32 position, size_t at, u32 box) {
    if (boxes.numbers) {
      u32 number = u32(boxes.numbers[box]);  // little-endian: the low bytes come first
      std::memcpy(out.numbers.data() + at * out.number_bytes, &number, out.number_bytes);
    }
    out.position[box] = u32(at);
    out.alive[at / 64] |= 1ull << (position & 63);
  }

  void fill(u32 tile) {
    u32 m = attributes();
    const u32* directory = out.directory.data() + size_t(tile) * m * 2;
    size_t first = size_t(tile) * TILE;
    start_lines(directory);
    const size_t positions = std::min<size_t>(TILE, size_t(out.blocks) * BLOCK - first);
    std::memset(out.rows.data() + first * out.row_bytes, 0, positions * out.row_bytes);
    each_box(tile, [&](u32 position, u32 box, size_t i) {
      if (i + PrefetchDistance::BUILD_BOXES < order.size()) prefetch_box(order[i + PrefetchDistance::BUILD_BOXES]);
      set_number(position, first + position, box);
      find_ends(box);
      rows.write(first + position, box);
      for (u32 k = 0; k < boxes.size(box); ++k) {
        Cells c = cells[size_t(boxes.offsets[box]) + k];
        u32 group = directory[2 * c.attribute];
        if (!group || !options.compact) {
          add_entry(group, c.attribute, rows.ends[k].low, 0, position);
          add_entry(group, c.attribute, rows.ends[k].high, UPPER, position);
        }
        if (!group) continue;
        u64* lines = lines_of(group);
        toggle(lines, position);
        toggle(lines + c.low * TILE_WORDS, position);
        if (c.high + 1u < CELLS) toggle(lines + (c.high + 1) * TILE_WORDS, position);
      }
    });
    const u64* members = out.alive.data() + size_t(tile) * TILE_WORDS;
    for (u32 a = 0; a < m; ++a)
      if (directory[2 * a])
        for (u32 w = 0; w < TILE_WORDS; ++w) lines_of(directory[2 * a])[w] ^= members[w];
  }

  void mark_summary(size_t at, u32 block, u32 count) {
    out.population[at] += count;
    if (count) out.summary[at * out.summary_words + block / 64] |= 1ull << (block & 63);
  }

  // Turns toggle bits into lines by a running XOR over the cells; returns the number of bits set.
  u32 finish_lines(u32 tile, u32 a, u32 group) {
    u32 set = 0;
    u64* at = lines_of(group);
    for (u32 i = 0; i < CELLS * LANES; ++i, at += WORDS) {
      u32 cell = i / LANES, block = tile * LANES + i % LANES, count = 0;
      if (cell)
        for (u32 w = 0; w < WORDS; ++w) at[w] ^= at[i64(w) - i64(TILE_WORDS)];
      for (u32 w = 0; w < WORDS; ++w) count += u32(__builtin_popcountll(at[w]));
      if (block < out.blocks) mark_summary(size_t(a) * CELLS + cell, block, count);
      set += count;
    }
    if (options.compact) join_lines(group);
    return set;
  }

  void join_lines(u32 group) {
    const u64* from = lines_of(group);
    u64* to = out.lines.data() + size_t(group - 1) * lines_per_group(out) * TILE_WORDS;
    for (u32 cell = 0; cell < CELLS; cell += 2, from += 2 * TILE_WORDS)
      for (u32 w = 0; w < TILE_WORDS; ++w) *to++ = from[w] | from[TILE_WORDS + w];
  }

  void finish(u32 tile) {
    u32 m = attributes();
    std::vector<std::pair<u32, u16>> by_bits_set;  // (bits set, attribute): fewer bits are more selective
    for (u32 a = 0; a < m; ++a) {
      const u32* entry = out.directory.data() + (size_t(tile) * m + a) * 2;
      if (entry[0]) {
        by_bits_set.emplace_back(finish_lines(tile, a, entry[0]), u16(a));
        continue;
      }
      for (u32 block = tile * LANES; block < std::min((tile + 1) * LANES, out.blocks); ++block)
        for (u32 c = 0; c < CELLS; ++c)
          mark_summary(size_t(a) * CELLS + c, block, u32(block_begin[block + 1] - block_begin[block]));
    }
    std::sort(by_bits_set.begin(), by_bits_set.end());
    for (size_t i = 0; i < by_bits_set.size(); ++i) out.order[size_t(tile) * m + i] = by_bits_set[i].second;
  }
};

}  // namespace

BitmapArrays build_bitmap(const Boxes& boxes, const BitmapOptions& options, InterruptCheck& interrupt) {
  assert(boxes.count && options.block >= 1 && options.block <= BLOCK && is_valid(boxes, options.attributes));
  BitmapArrays out;
  out.compact = options.compact;
  Grid grid = make_grid(boxes, options.attributes, options.compact, interrupt);
  auto cells = find_cells(boxes, grid, interrupt);
  RowWriter<BitmapArrays> rows(boxes, options.attributes, grid, cells, out);
  Layout layout{boxes, options, grid, cells, out, interrupt, std::move(rows), {}, {}, {}, {}, {}};
  layout.order_boxes();
  layout.order_levels();
  layout.make_directory();
  layout.make_tables();
  layout.rows.allocate(size_t(out.blocks) * BLOCK);
  for (u32 tile = 0; tile < tiles_of(out.blocks); ++tile) {
    layout.make_lists(tile);
    layout.fill(tile);
    layout.finish(tile);
    report_work(interrupt, 16 * TILE + 16 * options.attributes);
  }
  layout.rows.store_overflow_rows();
  out.starts = std::move(grid.starts);
  out.shift = std::move(grid.shift);
  return out;
}

}  // namespace hitbox
