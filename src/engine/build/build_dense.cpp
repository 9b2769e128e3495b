// Builds a dense segment (format/dense.hpp), and decides whether boxes belong into one.
#include <algorithm>
#include <numeric>

#include "build/row_writer.hpp"

namespace hitbox {
namespace {

constexpr u32 MIN_OUTSIDE = 64;  // a cell has a line if at least one in so many boxes does not overlap it

// When a dense segment is chosen. Below these numbers of boxes its tables are too large. The share was measured: with
// ranges of one width, both kinds take the same time where about 2% of the boxes match an average event, of which the
// sample makes 15%, because its events fall where boxes look.
constexpr size_t MIN_DENSE_BOXES = 1 << 14, MIN_BOXES_PER_ATTRIBUTE = 256;
constexpr size_t SAMPLED_BOXES = 512, SAMPLED_EVENTS = 128;
constexpr double MIN_MATCHING_SHARE = 0.15;

// A constraint of the current tile.
struct Constraint {
  u16 position;
  Ends ends;
};

struct DenseLayout {
  const Boxes& boxes;
  const BitmapOptions& options;
  const Grid& grid;
  const std::vector<Cells>& cells;
  DenseArrays& out;
  InterruptCheck& interrupt;
  RowWriter<DenseArrays> rows;
  std::vector<u32> order;                        // boxes by position
  std::vector<std::vector<Constraint>> columns;  // [attributes] constraints of the current tile
  std::vector<u64> cell_lines;                   // [CELLS][words] of one attribute in the current tile

  u32 attributes() const { return options.attributes; }

  // Highest level first; the sort is stable.
  void order_boxes() {
    out.level_ends.allocate(LEVELS, 0);
    for (size_t i = 0; i < boxes.count; ++i) ++out.level_ends[LEVELS - 1 - boxes.priority[i]];
    std::partial_sum(out.level_ends.data(), out.level_ends.data() + LEVELS, out.level_ends.data());
    u32 next[LEVELS] = {};
    std::copy(out.level_ends.data(), out.level_ends.data() + LEVELS - 1, next + 1);
    order.resize(boxes.count);
    out.position.allocate(boxes.count);
    for (size_t i = 0; i < boxes.count; ++i) {
      u32 at = next[LEVELS - 1 - boxes.priority[i]]++;
      order[at] = u32(i);
      out.position[i] = at;
    }
    report_work(interrupt, boxes.count);
  }

  void make_sizes() {
    out.members = u32(boxes.count);
    const u32 words = words_of(out), tiles = (words + MAX_TILE_WORDS - 1) / MAX_TILE_WORDS;
    out.tile_words = ((words + tiles - 1) / tiles + WORDS - 1) / WORDS * WORDS;
  }

  void make_numbers() {
    bool in_order = true;
    for (size_t at = 0; boxes.numbers && at < order.size(); ++at)
      in_order &= boxes.numbers[order[at]] == boxes.numbers[order[0]] + i64(at);
    out.first_number = boxes.numbers && in_order ? u32(boxes.numbers[order[0]]) : 0;
    out.number_bytes = in_order ? 0 : number_bytes_for(boxes);
    out.numbers.allocate(boxes.count * out.number_bytes + BYTE_PADDING, 0);
    for (size_t at = 0; at < order.size() && !in_order; ++at) {
      u32 number = u32(boxes.numbers[order[at]]);  // little-endian: the low bytes come first
      std::memcpy(out.numbers.data() + at * out.number_bytes, &number, out.number_bytes);
    }
    out.alive.allocate(words_of(out), 0);
    for (size_t at = 0; at < boxes.count; ++at) out.alive[at / 64] |= 1ull << (at & 63);
    report_work(interrupt, boxes.count);
  }

  // Chooses the cells that have lines. Cells that the same boxes overlap share a line.
  void make_tables() {
    const u32 m = attributes();
    std::vector<u32> lows(size_t(m) * CELLS), highs(lows.size());
    out.edges.allocate(lows.size(), 0);
    for (size_t at = size_t(boxes.offsets[0]); at < cells.size(); ++at) {
      const Cells c = cells[at];
      const size_t low = size_t(c.attribute) * CELLS + c.low, high = size_t(c.attribute) * CELLS + c.high;
      ++lows[low];
      ++highs[high];
      if (boxes.low[at] != grid.starts[low]) out.edges[low] |= INNER_LOW;
      if (boxes.high[at] != grid.last(high)) out.edges[high] |= INNER_HIGH;
      report_work(interrupt, 1);
    }
    out.line_at.allocate(lows.size(), NO_LINE);
    out.list_at.allocate(m, NO_LIST);
    for (u32 a = 0; a < m; ++a) {
      const u32 *low = lows.data() + size_t(a) * CELLS, *high = highs.data() + size_t(a) * CELLS;
      const u32 constrained = std::accumulate(low, low + CELLS, 0u);
      u32* line = out.line_at.data() + size_t(a) * CELLS;
      if (constrained) out.list_at[a] = u16(out.list_count++);
      const bool has_lines = u64(constrained) * BLOCK >= u64(options.lines) * boxes.count;
      u32 overlapping = 0, none = NO_LINE;  // the line of cells that no constraint overlaps
      for (u32 c = 0; c < CELLS; ++c) {
        const bool same = c && !high[c - 1] && !low[c];
        overlapping += low[c] - (c ? high[c - 1] : 0);
        const u32 outside = constrained - overlapping;
        if (!outside) line[c] = EVERY_BOX;
        else if (!has_lines || u64(outside) * MIN_OUTSIDE < boxes.count) line[c] = NO_LINE;
        else if (same) line[c] = line[c - 1];
        else if (!overlapping && none != NO_LINE) line[c] = none;
        else line[c] = out.line_count++;
        if (!overlapping) none = line[c];
      }
    }
    const size_t lists = size_t(tiles_of(out)) * out.list_count,
                 constraints = size_t(boxes.offsets[boxes.count] - boxes.offsets[0]);
    if (2 * constraints > UINT32_MAX) throw std::length_error(TOO_MANY_CONSTRAINTS);
    out.list_begin.allocate(lists + 1, 0);
    out.part_starts.allocate(lists * PART_STARTS);
    out.entries.allocate(2 * constraints);
    out.lines.allocate(size_t(words_of(out)) * out.line_count);
    columns.resize(m);
  }

  void find_ends(u32 box, u32 position) {
    u32 i = 0;
    for (i64 at = boxes.offsets[box]; at < boxes.offsets[box + 1]; ++at, ++i) {
      const Cells c = cells[size_t(at)];
      const i64* starts = grid.starts.data() + size_t(c.attribute) * CELLS;
      const u8* shift = grid.shift.data() + size_t(c.attribute) * CELLS;
      rows.ends[i] = {quantize(starts, shift, c.low, boxes.low[at]), quantize(starts, shift, c.high, boxes.high[at])};
      columns[c.attribute].push_back({u16(position), rows.ends[i]});
    }
  }

  void prefetch_box(size_t at) const {
    if (at >= order.size()) return;
    const i64 first = boxes.offsets[order[at]];
    __builtin_prefetch(cells.data() + first);
    for (i64 ahead : {0, 8}) {
      __builtin_prefetch(boxes.low + first + ahead);
      __builtin_prefetch(boxes.high + first + ahead);
    }
  }

  void fill(u32 tile) {
    const size_t first = size_t(tile) * out.tile_words * 64;
    const size_t end = std::min<size_t>(boxes.count, first + size_t(out.tile_words) * 64);
    std::memset(out.rows.data() + first * out.row_bytes, 0, (end - first) * out.row_bytes);
    for (auto& column : columns) column.clear();
    for (size_t at = first; at < end; ++at) {
      prefetch_box(at + PrefetchDistance::BUILD_BOXES);
      find_ends(order[at], u32(at - first));
      rows.write(at, order[at]);
      report_work(interrupt, 8);
    }
    for (u32 a = 0; a < attributes(); ++a) {
      if (out.list_at[a] == NO_LIST) continue;
      fill_list(tile, out.list_at[a], columns[a]);
      fill_lines(tile, a);
      report_work(interrupt, 2 * columns[a].size() + CELLS * WORDS);
    }
  }

  // A counting sort by part of the low bounds, and of the high bounds.
  void fill_list(u32 tile, u32 list, const std::vector<Constraint>& column) {
    const size_t at = size_t(tile) * out.list_count + list;
    const u32 begin = out.list_begin[at];
    out.list_begin[at + 1] = begin + 2 * u32(column.size());
    for (bool upper : {true, false}) {
      u32 next[PARTS + 1] = {};
      auto part = [&](const Constraint& one) { return part_at(upper ? one.ends.high : one.ends.low); };
      for (const Constraint& one : column) ++next[part(one) + 1];
      std::partial_sum(next, next + PARTS + 1, next);
      std::copy(next, next + PARTS + 1, out.part_starts.data() + at * PART_STARTS + (upper ? 0 : PARTS + 1));
      u16* entries = out.entries.data() + begin + (upper ? 0 : column.size());
      for (const Constraint& one : column) entries[next[part(one)]++] = one.position;
    }
  }

  // Toggles bits where intervals begin and end; a running XOR over the cells makes them lines.
  void fill_lines(u32 tile, u32 a) {
    const u32* line = out.line_at.data() + size_t(a) * CELLS;
    if (std::all_of(line, line + CELLS, [](u32 one) { return one >= NO_LINE; })) return;
    const size_t words = words_of(out, tile), first = size_t(tile) * out.tile_words;
    cell_lines.assign(CELLS * words, 0);
    std::copy(out.alive.data() + first, out.alive.data() + first + words, cell_lines.begin());
    auto toggle = [&](u32 cell, u32 position) { cell_lines[cell * words + position / 64] ^= 1ull << (position & 63); };
    for (const Constraint& one : columns[a]) {
      toggle(0, one.position);
      toggle(cell_at(one.ends.low), one.position);
      if (u32 next = cell_at(one.ends.high) + 1; next < CELLS) toggle(next, one.position);
    }
    u64* lines = out.lines.data() + first * out.line_count;
    for (u32 c = 0; c < CELLS; ++c) {
      u64* own = cell_lines.data() + c * words;
      for (size_t w = 0; c && w < words; ++w) own[w] ^= own[w - words];
      if (line[c] < NO_LINE) std::copy(own, own + words, lines + line[c] * words);
    }
  }
};

// Events are not known when boxes are built. They are assumed to fall where boxes look: each key of a drawn event lies
// inside the interval of a box.
struct BoxSample {
  const Boxes& boxes;
  std::vector<size_t> sampled;
  std::vector<std::vector<i64>> constraints;  // [attributes] of the sampled boxes
  std::vector<i64> least, most;               // [attributes] ends that are not open

  BoxSample(const Boxes& b, u32 attributes)
      : boxes(b), constraints(attributes), least(attributes, HIGHEST), most(attributes, LOWEST) {
    for (size_t i = 0; i < SAMPLED_BOXES; ++i) {
      const size_t from = boxes.count * i / SAMPLED_BOXES, to = boxes.count * (i + 1) / SAMPLED_BOXES;
      sampled.push_back(stratified_sample(i, from, to));
      for (i64 at = boxes.offsets[sampled[i]]; at < boxes.offsets[sampled[i] + 1]; ++at) {
        const u32 a = u32(boxes.attribute[at]);
        constraints[a].push_back(at);
        for (i64 end : {boxes.low[at], boxes.high[at]}) {
          if (end <= LOWEST || end == HIGHEST) continue;
          least[a] = std::min(least[a], end);
          most[a] = std::max(most[a], end);
        }
      }
    }
  }

  static u64 random_bits(u64 i) {  // splitmix64
    i = (i + 1) * 0x9E3779B97F4A7C15ull;
    i = (i ^ (i >> 30)) * 0xBF58476D1CE4E5B9ull;
    i = (i ^ (i >> 27)) * 0x94D049BB133111EBull;
    return i ^ (i >> 31);
  }

  void draw_event(size_t i, i64* event) const {
    for (size_t a = 0; a < constraints.size(); ++a) {
      if (constraints[a].empty()) continue;
      const u64 choice = random_bits(2 * (i * constraints.size() + a)), bits = random_bits(choice);
      const i64 at = constraints[a][choice % constraints[a].size()];
      const i64 low = std::max(boxes.low[at], std::min(least[a], boxes.high[at]));
      const i64 high = std::max(low, std::min(boxes.high[at], most[a]));
      const u64 width = u64(high) - u64(low);
      event[a] = i64(u64(low) + (width == UINT64_MAX ? bits : bits % (width + 1)));
    }
  }

  size_t count_matches(const i64* event) const {
    size_t found = 0;
    for (size_t box : sampled) {
      i64 at = boxes.offsets[box], end = boxes.offsets[box + 1];
      while (at < end && boxes.low[at] <= event[boxes.attribute[at]] && event[boxes.attribute[at]] <= boxes.high[at])
        ++at;
      found += at == end;
    }
    return found;
  }
};

}  // namespace

DenseArrays build_dense(const Boxes& boxes, const BitmapOptions& options, InterruptCheck& interrupt) {
  assert(boxes.count && is_valid(boxes, options.attributes));
  DenseArrays out;
  Grid grid = make_grid(boxes, options.attributes, false, interrupt);
  auto cells = find_cells(boxes, grid, interrupt);
  RowWriter<DenseArrays> rows(boxes, options.attributes, grid, cells, out);
  DenseLayout layout{boxes, options, grid, cells, out, interrupt, std::move(rows), {}, {}, {}};
  layout.order_boxes();
  layout.make_sizes();
  layout.make_numbers();
  layout.make_tables();
  layout.rows.allocate(boxes.count);
  for (u32 tile = 0; tile < tiles_of(out); ++tile) layout.fill(tile);
  layout.rows.store_overflow_rows();
  out.starts = std::move(grid.starts);
  out.shift = std::move(grid.shift);
  return out;
}

// A bitmap segment skips blocks, and its time grows with the boxes that are left. A dense segment reads every tile, and
// its time hardly depends on how many match. So the share of boxes that match an event decides; a sample estimates it.
bool prefers_dense(const Boxes& boxes, u32 attributes, InterruptCheck& interrupt) {
  if (boxes.count < std::max<size_t>(MIN_DENSE_BOXES, MIN_BOXES_PER_ATTRIBUTE * attributes)) return false;
  const BoxSample sample(boxes, attributes);
  std::vector<i64> event(attributes);
  size_t matches = 0;
  for (size_t i = 0; i < SAMPLED_EVENTS; ++i) {
    sample.draw_event(i, event.data());
    matches += sample.count_matches(event.data());
    report_work(interrupt, 2 * SAMPLED_BOXES);
  }
  return double(matches) >= MIN_MATCHING_SHARE * SAMPLED_BOXES * SAMPLED_EVENTS;
}

}  // namespace hitbox
