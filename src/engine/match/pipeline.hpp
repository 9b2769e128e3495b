// Matches one event against one bitmap segment: narrows the blocks by the summaries, ANDs their lines, filters what is
// left by rows or lists, and writes box numbers, in a pipeline with prefetching. Blocks of higher levels come first, so a
// limit stops early.
#pragma once

#include "match/interval.hpp"
#include "match/point.hpp"

namespace hitbox {
namespace {

constexpr u32 OPEN_TILES = 4;   // tiles whose lines are known at a time
constexpr u32 QUEUE_SIZE = 16;  // tiles between two stages of the pipeline
constexpr u32 MAX_GROWTH = 64;  // most that a result is expected to grow, as a factor
static_assert(OPEN_TILES > PrefetchDistance::LINES);
static_assert(QUEUE_SIZE > 2 * PrefetchDistance::STAGE + PrefetchDistance::FINAL_ROWS);

// Writes the wanted matches of a segment, higher levels first. From the first tile with different levels on, matches are
// collected per level until the end. Once `limit` matches of a level or above are found, only higher levels are wanted.
struct PriorityWriter {
  const Bitmap& map;
  const MatchLimits& limits;
  Result& out;
  u32 bottom, end;             // the lowest level and the end of the blocks that are still wanted
  double expected_growth = 1;  // expected final size of the result as a multiple of its current size
  bool by_level = false;
  Scratch<i32> level_numbers[LEVELS];
  size_t found[LEVELS] = {};

  PriorityWriter(const Bitmap& m, const MatchLimits& w, Result& o)
      : map(m), limits(w), out(o), bottom(w.bottom), end(m.blocks) {
    if (!w.limit) end = 0;
  }

  void boxes(u32 tile, const u32* position, u32 size) {
    const size_t first = size_t(tile) * TILE;
    const u32 level = map.tile_level[tile];
    if (level != MIXED)
      return write(level, size, [&](i32* to) {
        for (u32 i = 0; i < size; ++i) to[i] = i32(map.numbers[first + position[i]]);
      });
    by_level = true;
    for (u32 i = 0; i < size; ++i)
      write(level_at(map, first + position[i]), 1, [&](i32* to) { *to = i32(map.numbers[first + position[i]]); });
  }

  template <class Prefetch>
  void tile(u32 level, Numbers numbers, const u64* remaining, Prefetch prefetch_more) {
    u32 size = count<TILE_WORDS>(remaining);
    write(level, size, [&](i32* to) { expand<TILE_WORDS, true>(remaining, size, numbers, to, prefetch_more); });
  }

  void mixed(u32 block, const u64* line) {
    by_level = true;
    i32 all[BLOCK + 32];
    expand<WORDS, true>(line, count(line), map.numbers.from(size_t(block) * BLOCK), all, NoPrefetch{});
    each_level(level_ends_of(map, block), line, [&](u32 level, u32 from, u32 to) {
      write(level, to - from, [&](i32* here) { copy_padded(here, all + from, to - from); });
    });
  }

  void finish() {
    for (u32 l = LEVELS; l-- > 0;) {
      const Scratch<i32>& one = level_numbers[l];
      if (!one.size) continue;
      std::memcpy(append_space(l, one.size), one.data, one.size * sizeof(i32));
    }
  }

 private:
  // Appends space for matches of a level to the result.
  i32* append_space(u32 level, size_t size) {
    reserve(out, size, expected_growth);
    return hitbox::append_space(out, size, u8(level));
  }

  template <class Fill>
  void write(u32 level, u32 size, Fill fill) {
    if (!size || level < bottom || level > limits.top) return;
    if (!by_level) {
      fill(append_space(level, size));
    } else {
      Scratch<i32>& here = level_numbers[level];
      if (here.size + size > here.capacity) here.need(size_t(double(here.size + size) * expected_growth) + size);
      fill(here.data + here.size);
      here.size += size;
    }
    if (limits.limit != SIZE_MAX) raise_bottom(level, size);
  }

  void raise_bottom(u32 level, u32 size) {
    found[level] += size;
    size_t sum = 0;
    for (u32 l = limits.top + 1; l-- > bottom;) {
      sum += found[l];
      if (sum < limits.limit) continue;
      bottom = l + 1;
      end = bottom > limits.top ? 0 : blocks_of(map, limits.top, bottom).to;
    }
  }
};

using CacheLine = u8[64];

// Items that are still to be prefetched.
template <class T>
struct PrefetchList {
  const T *next = nullptr, *end = nullptr;

  bool pending() const { return next < end; }
  const T& next_item() { return *next++; }
};

// A tile in the pipeline, with its boxes listed if they are filtered by rows.
struct QueuedTile : TileCandidates {
  bool by_rows;
  u32 box[MAX_ROW_TESTS + 16];
};

// Tiles pass through stages, each of which prefetches for the next (PrefetchDistance):
//
//   open           locate the lines; their directory was prefetched before
//   intersect      AND the lines; tiles with boxes left enter the queue
//   locate_lists   find the lists to read; their table was prefetched when the tile entered the queue
//   apply_lists    clear the boxes that lists exclude; prefetch the rows of undecided ones
//                  (if rows_decide: instead, prefetch the rows of all boxes, then clear those that they exclude)
//   emit           test rows; write numbers
//
// Reading lists and writing numbers take longest. Memory should neither idle meanwhile nor get all requests at once, so
// these steps call prefetch_some() for a few of the lines, lists and numbers that come next.
template <class P>
struct Pipeline {
  const Bitmap& map;
  const i64 *low, *high;
  PriorityWriter& out;
  P plans;
  Scratch<typename P::Source> sources;  // [TILES][attributes]
  u32 sizes[OPEN_TILES];
  QueuedTile queue[QUEUE_SIZE];
  u32 enqueued = 0, located = 0, applied = 0, emitted = 0;
  Visit opened_visit{};                    // the tile that was opened last
  PrefetchList<typename P::Source> lines;  // of that tile
  PrefetchList<List> lists;                // of the tile whose lists were located last
  PrefetchList<CacheLine> numbers;         // of the tile whose lists are being applied

  Pipeline(const Bitmap& m, const i64* l, const i64* h, PriorityWriter& o)
      : map(m), low(l), high(h), out(o), plans(m.attributes, 1), sources(size_t(OPEN_TILES) * m.attributes) {}

  EncodedEvent event() const { return plans.encoded(low, high).of(0); }

  typename P::Source* sources_of(u32 i) { return sources.data + size_t(i % OPEN_TILES) * map.attributes; }

  void prefetch_directory(u32 tile) const {
    const char* at = reinterpret_cast<const char*>(directory_of(map, tile));
    for (u32 byte = 0; byte < map.attributes * sizeof(Directory); byte += 64) prefetch(at + byte);
    for (u32 a = 0; a < map.attributes; a += 32) prefetch(map.order + size_t(tile) * map.attributes + a);
    prefetch(map.alive + size_t(tile) * TILE_WORDS);
  }

  void open(u32 i, Visit visit) {
    prefetch_remaining_lines();
    sizes[i % OPEN_TILES] = plans.open(map, visit.tile, 0, sources_of(i));
    lines = {sources_of(i), sources_of(i) + sizes[i % OPEN_TILES]};
    opened_visit = visit;
  }

  void prefetch_next_lines() {
    const auto& source = lines.next_item();
    each_lane(opened_visit, [&](u32 lane) { P::prefetch_line(source, lane); });
  }

  void prefetch_remaining_lines() {
    while (lines.pending()) prefetch_next_lines();
  }

  void prefetch_some() {
    if (lines.pending()) prefetch_next_lines();
    if (lists.pending()) prefetch_list(map, lists.next_item());
    for (u32 i = 0; i < PrefetchDistance::NUMBERS && numbers.pending(); ++i) prefetch_outer(numbers.next_item());
  }

  void intersect(u32 i, Visit visit) {
    QueuedTile& one = queue[enqueued % QUEUE_SIZE];
    one.start(map, visit, 0);
    intersect(i, visit, one);
    if constexpr (P::STAGED)
      if (one.size > MAX_ROW_TESTS) {
        sizes[i % OPEN_TILES] = plans.open(map, visit.tile, 0, true, sources_of(i));
        intersect(i, visit, one);
      }
    one.by_rows = one.size <= plans.row_limit[0];
    if (one.size) enqueue(one);
  }

  void intersect(u32 i, Visit visit, QueuedTile& one) {
    each_lane(visit, [&](u32 lane) {
      u64* line = one.remaining + lane * WORDS;
      store(line, P::intersect(sources_of(i), sizes[i % OPEN_TILES], lane, load(line)));
    });
    one.size = count<TILE_WORDS>(one.remaining);
  }

  void enqueue(QueuedTile& one) {
    ++enqueued;
    assert(enqueued - emitted < QUEUE_SIZE);
    if (one.by_rows) list_boxes(map, one, one.box);
    else if (!plans.rows_decide(map, 0)) prefetch_tables(plans, map, one);
    if (enqueued - located > PrefetchDistance::STAGE) locate_lists();
    if (located - applied > PrefetchDistance::STAGE) apply_lists();
    if (applied - emitted > PrefetchDistance::FINAL_ROWS) emit();
  }

  void locate_lists() {
    QueuedTile& one = queue[located++ % QUEUE_SIZE];
    if (one.by_rows) return;
    if (plans.rows_decide(map, 0)) return prefetch_rows(map, one);
    while (lists.pending()) prefetch_list(map, lists.next_item());
    find_lists(plans, map, event(), one);
    lists = {one.lists, one.lists + one.list_count};
  }

  void apply_lists() {
    QueuedTile& one = queue[applied++ % QUEUE_SIZE];
    if (one.by_rows) return;
    const Numbers all = map.numbers.from(size_t(one.tile) * TILE);
    const CacheLine* first = reinterpret_cast<const CacheLine*>(all.first);
    numbers = {first, first + TILE * all.bytes / sizeof(CacheLine)};
    if (plans.rows_decide(map, 0)) clear_by_rows(map, plans.encoded(low, high), one);
    else clear_by_lists(map, event(), one, [&] { prefetch_some(); });
  }

  void emit() {
    QueuedTile& one = queue[emitted++ % QUEUE_SIZE];
    if (!one.by_rows) return emit_matches(map, event(), one, out, [&] { prefetch_some(); });
    u32 kept = filter_by_rows(map, one.tile, one.size, one.box, plans.encoded(low, high));
    out.boxes(one.tile, one.box, kept);
  }

  bool still_wanted(u32 tile) const { return tile * LANES < out.end; }

  void run(const Visit* list, u32 size) {
    for (u32 i = 0; i < size && i < PrefetchDistance::DIRECTORY; ++i) prefetch_directory(list[i].tile);
    for (u32 i = 0; i < size && i < PrefetchDistance::LINES; ++i) open(i, list[i]);
    for (u32 i = 0; i < size && still_wanted(list[i].tile); ++i) {
      if (i + PrefetchDistance::DIRECTORY < size) prefetch_directory(list[i + PrefetchDistance::DIRECTORY].tile);
      if (i + PrefetchDistance::LINES < size) open(i + PrefetchDistance::LINES, list[i + PrefetchDistance::LINES]);
      else prefetch_remaining_lines();
      out.expected_growth = size > MAX_GROWTH * (emitted + 1) ? MAX_GROWTH : double(size) / (emitted + 1);
      intersect(i, list[i]);
    }
    auto pending = [&](u32 from, u32 to) { return from < to && still_wanted(queue[from % QUEUE_SIZE].tile); };
    while (pending(located, enqueued)) locate_lists();
    while (pending(applied, located)) apply_lists();
    while (pending(emitted, applied)) emit();
  }
};

template <class P>
void match_bitmap(const Bitmap& map, const i64* low, const i64* high, const MatchLimits& limits, Result& out) {
  Scratch<u64> blocks(map.summary_words);
  init_blocks(map, limits, blocks.data);
  PriorityWriter writer(map, limits, out);
  Pipeline<P> pipeline(map, low, high, writer);
  if (!pipeline.plans.make(map, low, high, 0, blocks.data)) return;
  Scratch<Visit> list(tiles_of(map.blocks));
  for (u32 w = 0; w < map.summary_words; ++w)
    each_visit(w, blocks[w], [&](Visit visit) { list.data[list.size++] = visit; });
  pipeline.run(list.data, u32(list.size));
  writer.finish();
}

}  // namespace
}  // namespace hitbox
