// Laying out a bitmap segment: order, directory, lines, lists, summaries. About one microsecond a box.
#include <algorithm>
#include <stdexcept>

#include "build/build.hpp"
#include "format/row.hpp"

namespace hitbox {
namespace {

constexpr const char* TOO_MANY = "too many constraints for one segment, more than 2^31: use several indexes";

// Places of a constraint's two ends.
struct Ends {
  u32 low, high;
};

struct Layout {
  const Boxes& boxes;
  const Options& options;
  const std::vector<Cells>& cells;
  BitmapArrays& out;
  Watch& watch;
  std::vector<u32> order;           // boxes by block
  std::vector<size_t> block_begin;  // [blocks + 1] into order
  std::vector<u16> counts;          // [attributes][CELLS] ends of the tile at hand
  std::vector<u32> cursor;          // the same as write positions
  std::vector<Ends> ends;           // of the box at hand
  std::vector<u8> more, scratch;    // rows of large boxes, and one of them

  u32 attributes() const { return options.attributes; }

  void order_boxes() {
    size_t start[LEVELS + 1] = {};
    for (size_t i = 0; i < boxes.count; ++i) ++start[LEVELS - boxes.priority[i]];
    for (u32 l = 0; l < LEVELS; ++l) start[l + 1] += start[l];
    size_t next[LEVELS];
    std::copy(start, start + LEVELS, next);
    order.resize(boxes.count);
    for (size_t i = 0; i < boxes.count; ++i) order[next[LEVELS - 1 - boxes.priority[i]]++] = u32(i);
    out.bands.make(2 * LEVELS, 0);
    for (u32 l = 0, end; l < LEVELS; l = end) {
      end = band_end(start, l);
      u32 first = u32(block_begin.size());
      cluster(boxes, cells, out.grid, attributes(), options.block, order.data() + start[l], start[end] - start[l],
              watch);
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

  // Levels, counted from the most urgent, that share blocks with the l-th: [l, end), and no fewer boxes are left over
  // than a band has.
  u32 band_end(const size_t* start, u32 l) const {
    u32 end = l + 1;
    while (end < LEVELS && (start[end] - start[l] < options.band || start[LEVELS] - start[end] < options.band)) ++end;
    return end;
  }

  // Most urgent boxes first in each block. Neighbours still look alike.
  void order_levels() {
    out.level_ends.make(size_t(out.blocks) * LEVEL_ENDS, 0xFFFF);
    out.tile_level.make(tiles_of(out.blocks));
    for (u32 block = 0; block < out.blocks; ++block) {
      u32 *mine = order.data() + block_begin[block], size = u32(block_begin[block + 1] - block_begin[block]);
      u32 sorted[BLOCK], next[LEVELS + 1] = {};
      for (u32 i = 0; i < size; ++i) ++next[LEVELS - boxes.priority[mine[i]]];
      for (u32 l = 0; l < LEVELS; ++l) next[l + 1] += next[l];
      for (u32 i = 0; i < size; ++i) sorted[next[LEVELS - 1 - boxes.priority[mine[i]]]++] = mine[i];
      std::copy(sorted, sorted + size, mine);
      note_work(watch, size);
      std::copy(next, next + LEVELS, out.level_ends.data() + size_t(block) * LEVEL_ENDS);
      u8 highest = boxes.priority[mine[0]], lowest = boxes.priority[mine[size - 1]];
      u8& tile = out.tile_level[block / LANES];
      if (block % LANES == 0) tile = highest;
      if (tile != highest || tile != lowest) tile = MIXED;
    }
  }

  size_t begin_of(u32 block) const { return block_begin[std::min(block, out.blocks)]; }

  // Counts constraints, hands out groups and list space.
  void make_directory() {
    u32 m = attributes(), tiles = tiles_of(out.blocks);
    out.directory.make((size_t(tiles) * m + 1) * 2);
    u32 words = (m + 63) / 64;
    out.bare.make(size_t(tiles) * words, 0);
    u32 groups = 0;
    u64 base = 0;
    std::vector<u32> used(m);
    for (u32 t = 0; t < tiles; ++t) {
      std::fill(used.begin(), used.end(), 0);
      note_work(watch, TILE + m);
      for (size_t i = begin_of(t * LANES); i < begin_of((t + 1) * LANES); ++i) {
        if (i + 8 < order.size()) __builtin_prefetch(cells.data() + boxes.offsets[order[i + 8]]);
        for (i64 at = boxes.offsets[order[i]]; at < boxes.offsets[order[i] + 1]; ++at)
          ++used[cells[size_t(at)].attribute];
      }
      for (u32 a = 0; a < m; ++a) {
        u32* entry = out.directory.data() + (size_t(t) * m + a) * 2;
        bool lined = used[a] >= options.lines * LANES;
        entry[0] = lined ? ++groups : 0;
        entry[1] = u32(base);
        if (!lined && used[a]) out.bare[size_t(t) * words + a / 64] |= 1ull << (a & 63);
        base += 2 * used[a] + (lined ? CELLS : 0);
      }
    }
    if (base > UINT32_MAX) throw std::length_error(TOO_MANY);
    out.directory[size_t(tiles) * m * 2] = 0;
    out.directory[size_t(tiles) * m * 2 + 1] = u32(base);
    out.order.make(size_t(tiles) * m, NO_ATTRIBUTE);
    out.lines.make(size_t(groups) * CELLS * TILE_WORDS);
    out.entries.make(base + 32);
    std::memset(out.entries.data() + base, 0, 64);
  }

  void make_tables() {
    size_t all = size_t(attributes()) * CELLS;
    u32 m = attributes();
    out.summary_words = (out.blocks + 511) / 512 * 8;
    out.members = u32(boxes.count);
    out.population.make(all, 0);
    out.edges.make(all, 0);
    out.summary.make(all * out.summary_words, 0);
    i64 most = *std::max_element(boxes.numbers, boxes.numbers + boxes.count);
    out.number_bytes = most >> 24 ? 4 : most >> 16 ? 3 : most >> 8 ? 2 : 1;
    out.numbers.make(size_t(out.blocks) * BLOCK * out.number_bytes + 64, 0);
    out.alive.make(size_t(tiles_of(out.blocks)) * TILE_WORDS, 0);
    out.position.make(boxes.count);
    out.narrowest.make(m, CELLS);
    for (const Cells& c : cells) {
      u8& least = out.narrowest[c.attribute];
      least = std::min(least, u8(c.high - c.low + 1));
    }
    counts.resize(all);
    cursor.resize(all);
  }

  // Rows have as much room as makes them and the rows of larger boxes, which stand elsewhere, smallest in all.
  void make_rows() {
    std::vector<size_t> sizes;
    for (size_t i = 0; i < boxes.count; ++i) {
      if (boxes.size(i) >= sizes.size()) sizes.resize(boxes.size(i) + 1);
      ++sizes[boxes.size(i)];
    }
    out.keyed = out.grid.lossy;
    size_t elsewhere = 0, least = SIZE_MAX;
    for (u32 room = std::max<u32>(1, u32(sizes.size()) - 1); room; --room) {
      size_t bytes = boxes.count * row_bytes(room) + elsewhere;
      if (bytes < least) {
        least = bytes;
        out.room = room;
      }
      if (room < sizes.size()) elsewhere += sizes[room] * (row_bytes(room) + 3);
    }
    out.row_bytes = row_bytes(out.room);
    ends.resize(sizes.size());
    out.rows.make(size_t(out.blocks) * BLOCK * out.row_bytes + 64);
    std::memset(out.rows.data() + out.rows.size - 64, 0, 64);
  }

  u32 row_bytes(u32 room) const { return row_bytes_for(attributes(), room, out.keyed); }

  void fetch_box(u32 box) const {
    i64 at = boxes.offsets[box];
    __builtin_prefetch(cells.data() + at);
    for (i64 ahead : {0, 8}) {
      __builtin_prefetch(boxes.low + at + ahead);
      __builtin_prefetch(boxes.high + at + ahead);
    }
  }

  // Calls take(position in tile, box) for the boxes of a tile.
  template <class Take>
  void each_box(u32 tile, Take take) const {
    for (u32 lane = 0; lane < LANES; ++lane) {
      size_t from = begin_of(tile * LANES + lane), to = begin_of(tile * LANES + lane + 1);
      for (size_t i = from; i < to; ++i) take(lane * BLOCK + u32(i - from), order[i], i);
    }
  }

  // Where each list of the tile begins.
  void make_lists(u32 tile) {
    u32 m = attributes();
    const u32* directory = out.directory.data() + size_t(tile) * m * 2;
    std::fill(counts.begin(), counts.end(), 0);
    each_box(tile, [&](u32, u32 box, size_t i) {
      if (i + 8 < order.size()) __builtin_prefetch(cells.data() + boxes.offsets[order[i + 8]]);
      for (i64 at = boxes.offsets[box]; at < boxes.offsets[box + 1]; ++at) {
        const Cells& c = cells[size_t(at)];
        ++counts[size_t(c.attribute) * CELLS + c.low];
        ++counts[size_t(c.attribute) * CELLS + c.high];
      }
    });
    for (u32 a = 0; a < m; ++a) {
      u32 group = directory[a * 2], base = directory[a * 2 + 1], sum = CELLS;
      u32* mine = cursor.data() + size_t(a) * CELLS;
      if (!group) mine[0] = base;
      else
        for (u32 c = 0; c < CELLS; ++c) {
          mine[c] = base + sum;
          sum += counts[size_t(a) * CELLS + c];
          out.entries[base + c] = u16(sum);
        }
    }
  }

  void put(u32 group, u32 a, u32 place, u32 side, u32 position) {
    u32 where = cursor[size_t(a) * CELLS + (group ? cell_at(place) : 0)]++;
    u32 top = u32(group ? top_at(place) : bare_top_at(place));
    out.entries[where] = u16(top << 12 | side | position);
  }

  void keep_more() {
    out.more.make(more.size() + 64);
    std::memset(out.more.data() + more.size(), 0, 64);
    if (!more.empty()) std::memcpy(out.more.data(), more.data(), more.size());
  }

  void find_ends(u32 box) {
    for (i64 at = boxes.offsets[box], i = 0; at < boxes.offsets[box + 1]; ++at, ++i) {
      Cells c = cells[size_t(at)];
      const i64* starts = out.grid.starts.data() + size_t(c.attribute) * CELLS;
      const u8* shift = out.grid.shift.data() + size_t(c.attribute) * CELLS;
      ends[size_t(i)].low = place_of(starts, shift, c.low, boxes.low[at]);
      ends[size_t(i)].high = place_of(starts, shift, c.high, boxes.high[at]);
      size_t low = size_t(c.attribute) * CELLS + c.low, high = size_t(c.attribute) * CELLS + c.high;
      out.edges[low] += boxes.low[at] != starts[c.low];
      out.edges[high] += boxes.high[at] != out.grid.last(high);
    }
  }

  void write_row(size_t position, u32 box) {
    u8* row = out.rows.data() + position * out.row_bytes;
    u32 size = boxes.size(box), head = row_head_bytes(attributes(), 0);
    if (size <= out.room) return write_row(row, out.room, box);
    if (more.size() / 4 > UINT32_MAX) throw std::length_error(TOO_MANY);
    u32 offset = u32(more.size() / 4);
    more.resize(more.size() + (row_bytes(size) + 3) / 4 * 4);
    scratch.assign(row_bytes(size) + 8, 0);
    write_row(scratch.data(), size, box);
    std::memcpy(more.data() + size_t(offset) * 4, scratch.data(), row_bytes(size));
    std::memcpy(row, scratch.data(), head);
    std::memcpy(row + head, &offset, 4);
  }

  void write_row(u8* row, u32 room, u32 box) {
    u32 size = boxes.size(box);
    size_t from = size_t(boxes.offsets[box]);
    u8* lows = row + row_head_bytes(attributes(), room);
    if (attributes() <= MASKED) {
      u64 mask = 0;
      for (u32 i = 0; i < size; ++i) mask |= 1ull << cells[from + i].attribute;
      std::memcpy(row, &mask, row_head_bytes(attributes(), 0));
    } else {
      u16 count = u16(size);
      std::memcpy(row, &count, 2);
      for (u32 i = 0; i < size; ++i) std::memcpy(row + 2 + 2 * i, &cells[from + i].attribute, 2);
    }
    for (u32 i = 0; i < size; ++i) {
      lows[i] = u8(ends[i].low >> REST);
      lows[room + i] = u8(ends[i].high >> REST);
    }
    u8* rest = lows + 2 * room;
    for (u32 i = 0; i < size; ++i) {
      if (out.keyed) {
        std::memcpy(rest + 16 * i, boxes.low + from + i, 8);
        std::memcpy(rest + 16 * i + 8, boxes.high + from + i, 8);
        continue;
      }
      constexpr u32 bits = (1u << REST) - 1;
      u64 two = (ends[i].low & bits) | u64(ends[i].high & bits) << REST;  // 28 bits: every second starts within a byte
      if (i % 2) two = two << 4 | (rest[28 * i / 8] & 15);
      std::memcpy(rest + 28 * i / 8, &two, 4);
    }
  }

  static void toggle(u64* line, u32 p) { line[p >> 6] ^= 1ull << (p & 63); }

  u64* line(u32 group, u32 cell, u32 lane) {
    return out.lines.data() + ((size_t(group - 1) * CELLS + cell) * LANES + lane) * WORDS;
  }

  void place(u32 position, size_t at, u32 box) {
    u32 number = u32(boxes.numbers[box]);  // its first bytes come first
    std::memcpy(out.numbers.data() + at * out.number_bytes, &number, out.number_bytes);
    out.position[box] = u32(at);
    out.alive[at / 64] |= 1ull << (position & 63);
  }

  void fill(u32 tile) {
    u32 m = attributes();
    const u32* directory = out.directory.data() + size_t(tile) * m * 2;
    size_t first = size_t(tile) * TILE;
    for (u32 a = 0; a < m; ++a)
      if (directory[2 * a]) std::memset(line(directory[2 * a], 0, 0), 0, CELLS * TILE_WORDS * 8);
    const size_t positions = std::min<size_t>(TILE, size_t(out.blocks) * BLOCK - first);
    std::memset(out.rows.data() + first * out.row_bytes, 0, positions * out.row_bytes);
    each_box(tile, [&](u32 position, u32 box, size_t i) {
      if (i + 8 < order.size()) fetch_box(order[i + 8]);
      place(position, first + position, box);
      find_ends(box);
      write_row(first + position, box);
      for (u32 k = 0; k < boxes.size(box); ++k) {
        Cells c = cells[size_t(boxes.offsets[box]) + k];
        u32 group = directory[2 * c.attribute];
        put(group, c.attribute, ends[k].low, 0, position);
        put(group, c.attribute, ends[k].high, UPPER, position);
        if (!group) continue;
        u64* lines = line(group, 0, 0);
        toggle(lines, position);
        toggle(lines + c.low * TILE_WORDS, position);
        if (c.high + 1u < CELLS) toggle(lines + (c.high + 1) * TILE_WORDS, position);
      }
    });
    const u64* members = out.alive.data() + size_t(tile) * TILE_WORDS;
    for (u32 a = 0; a < m; ++a)
      if (directory[2 * a])
        for (u32 w = 0; w < TILE_WORDS; ++w) line(directory[2 * a], 0, 0)[w] ^= members[w];
  }

  void mark_summary(size_t at, u32 block, u32 count) {
    out.population[at] += count;
    if (count) out.summary[at * out.summary_words + block / 64] |= 1ull << (block & 63);
  }

  // Running XOR over the cells turns toggles into lines. Returns how many bits are set.
  u32 finish_lines(u32 tile, u32 a, u32 group) {
    u32 set = 0;
    u64* at = line(group, 0, 0);
    for (u32 i = 0; i < CELLS * LANES; ++i, at += WORDS) {
      u32 cell = i / LANES, block = tile * LANES + i % LANES, count = 0;
      if (cell)
        for (u32 w = 0; w < WORDS; ++w) at[w] ^= at[i64(w) - i64(TILE_WORDS)];
      for (u32 w = 0; w < WORDS; ++w) count += u32(__builtin_popcountll(at[w]));
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
        telling.emplace_back(finish_lines(tile, a, entry[0]), u16(a));
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

BitmapArrays build_bitmap(const Boxes& boxes, const Options& options, Watch& watch) {
  BitmapArrays out;
  out.grid = make_grid(boxes, options.attributes, watch);
  auto cells = find_cells(boxes, out.grid, watch);
  Layout layout{boxes, options, cells, out, watch, {}, {}, {}, {}, {}, {}, {}};
  layout.order_boxes();
  layout.order_levels();
  layout.make_directory();
  layout.make_tables();
  layout.make_rows();
  for (u32 tile = 0; tile < tiles_of(out.blocks); ++tile) {
    layout.make_lists(tile);
    layout.fill(tile);
    layout.finish(tile);
    note_work(watch, 16 * TILE + 16 * options.attributes);
  }
  layout.keep_more();
  return out;
}

}  // namespace hitbox
