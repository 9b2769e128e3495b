// One event over one bitmap segment: narrow the blocks by the summaries; AND their lines; settle the survivors by their
// rows or lists; write out numbers; all in a pipeline that prefetches. Urgent blocks come first: a limit stops early.
#pragma once

#include "match/interval.hpp"
#include "match/point.hpp"

namespace hitbox {
namespace {

constexpr u32 AHEAD = 3;
constexpr u32 FAR = 6;
constexpr u32 TILES = 4;  // whose lines are known at a time, more than AHEAD
constexpr u32 DELAY = 6;
constexpr u32 LAST = 2;
constexpr u32 RING = 16;  // more than twice DELAY and LAST
constexpr u32 SOME = 4;    // lines of numbers that are asked for at a time
constexpr u32 GUESS = 64;  // times as many matches as by now are foreseen at most

// Writes out the matches of a segment that are wanted, most urgent first. From the first tile on where levels differ,
// each level gathers apart until all have come. Once `limit` matches are as urgent as some level, only what is more
// urgent is still of use.
struct Urgent {
  const Bitmap& map;
  const Wanted& wanted;
  Result& out;
  u32 bottom, end;   // levels and blocks that are still of use
  double whole = 1;  // how much all visits are, over those made
  bool by_level = false;
  Scratch<i32> level_numbers[LEVELS];
  size_t found[LEVELS] = {};

  Urgent(const Bitmap& m, const Wanted& w, Result& o) : map(m), wanted(w), out(o), bottom(w.bottom), end(m.blocks) {
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

  template <class Meanwhile>
  void tile(u32 level, Numbers numbers, const u64* held, Meanwhile meanwhile) {
    u32 size = count<TILE_WORDS>(held);
    write(level, size, [&](i32* to) { expand<TILE_WORDS, true>(held, size, numbers, to, meanwhile); });
  }

  void mixed(u32 block, const u64* line) {
    by_level = true;
    i32 all[BLOCK + 32];
    expand<WORDS, true>(line, count(line), map.numbers.from(size_t(block) * BLOCK), all, Idle{});
    each_level(level_ends_of(map, block), line, [&](u32 level, u32 from, u32 to) {
      write(level, to - from, [&](i32* here) { copy_loosely(here, all + from, to - from); });
    });
  }

  void finish() {
    for (u32 l = LEVELS; l-- > 0;) {
      const Scratch<i32>& one = level_numbers[l];
      if (!one.size) continue;
      std::memcpy(room(l, one.size), one.data, one.size * sizeof(i32));
    }
  }

 private:
  // Room for some more matches of a level at the end of the result.
  i32* room(u32 level, size_t size) {
    reserve(out, size, whole);
    out.ordered &= !out.size || out.levels[out.size - 1] >= level;
    std::memset(out.levels + out.size, int(level), size);
    out.size += size;
    return out.numbers + out.size - size;
  }

  template <class Fill>
  void write(u32 level, u32 size, Fill fill) {
    if (!size || level < bottom || level > wanted.top) return;
    if (!by_level) {
      fill(room(level, size));
    } else {
      Scratch<i32>& here = level_numbers[level];
      if (here.size + size > here.capacity) here.need(size_t(double(here.size + size) * whole) + size);
      fill(here.data + here.size);
      here.size += size;
    }
    if (wanted.limit != SIZE_MAX) raise(level, size);
  }

  void raise(u32 level, u32 size) {
    found[level] += size;
    size_t sum = 0;
    for (u32 l = wanted.top + 1; l-- > bottom;) {
      sum += found[l];
      if (sum < wanted.limit) continue;
      bottom = l + 1;
      end = bottom > wanted.top ? 0 : blocks_of(map, wanted.top, bottom).to;
    }
  }
};

using CacheLine = u8[64];

// What is still to be fetched, in turn.
template <class T>
struct Rest {
  const T *next = nullptr, *end = nullptr;

  bool some() const { return next < end; }
  const T& take() { return *next++; }
};

// A survivor that waits, and its boxes where they are few.
struct Queued : Survivor {
  bool few;
  u32 box[MOST_ROWS + 16];
};

// Tiles pass through stages, so that each finds in cache what the one before asked for: what says where lines are is
// fetched FAR tiles early, lines AHEAD tiles early; a surviving tile waits DELAY others for its rows, or for what says
// where its lists are, DELAY more for the lists, and LAST more for the rows that these ask for. Memory should neither
// idle while lists are read and numbers written, which takes longest, nor be asked for all at once: in between it is
// asked for some of the lines, lists and numbers that come next.
template <class P>
struct Pipeline {
  const Bitmap& map;
  const i64 *low, *high;
  Urgent& out;
  P plans;
  Scratch<typename P::Source> sources;  // [TILES][attributes]
  u32 sizes[TILES];
  Queued ring[RING];
  u32 pushed = 0, looked = 0, listed = 0, settled = 0;
  Visit opened{};                  // the latest tile,
  Rest<typename P::Source> lines;  // whose lines are yet to be fetched
  Rest<List> lists;                // the same of the survivor that was looked at last
  Rest<CacheLine> numbers;         // and of the one whose lists are read

  Pipeline(const Bitmap& m, const i64* l, const i64* h, Urgent& o)
      : map(m), low(l), high(h), out(o), plans(m.attributes, 1), sources(size_t(TILES) * m.attributes) {}

  Held held() const { return plans.against(low, high).of(0); }

  typename P::Source* sources_of(u32 i) { return sources.data + size_t(i % TILES) * map.attributes; }

  void prefetch_directory(u32 tile) const {
    const char* at = reinterpret_cast<const char*>(directory_of(map, tile));
    for (u32 byte = 0; byte < map.attributes * sizeof(Directory); byte += 64) fetch(at + byte);
    for (u32 a = 0; a < map.attributes; a += 32) fetch(map.order + size_t(tile) * map.attributes + a);
    fetch(map.alive + size_t(tile) * TILE_WORDS);
  }

  void open(u32 i, Visit visit) {
    fetch_rest();
    sizes[i % TILES] = plans.open(map, visit.tile, 0, sources_of(i));
    lines = {sources_of(i), sources_of(i) + sizes[i % TILES]};
    opened = visit;
  }

  void fetch_lines() {
    const auto& source = lines.take();
    each_lane(opened, [&](u32 lane) { P::prefetch(source, lane); });
  }

  void fetch_rest() {
    while (lines.some()) fetch_lines();
  }

  void fetch_some() {
    if (lines.some()) fetch_lines();
    if (lists.some()) fetch_list(map, lists.take());
    for (u32 i = 0; i < SOME && numbers.some(); ++i) fetch_outer(numbers.take());
  }

  void gather(u32 i, Visit visit) {
    Queued& one = ring[pushed % RING];
    one.start(map, visit, 0);
    gather(i, visit, one);
    if constexpr (P::STAGED)
      if (one.size > MOST_ROWS) {
        sizes[i % TILES] = plans.open(map, visit.tile, 0, true, sources_of(i));
        gather(i, visit, one);
      }
    one.few = one.size <= plans.few[0];
    if (one.size) push(one);
  }

  void gather(u32 i, Visit visit, Queued& one) {
    each_lane(visit, [&](u32 lane) {
      u64* line = one.held + lane * WORDS;
      store(line, P::gather(sources_of(i), sizes[i % TILES], lane, load(line)));
    });
    one.size = count<TILE_WORDS>(one.held);
  }

  void push(Queued& one) {
    ++pushed;
    if (one.few) list_boxes(map, one, one.box);
    else prefetch_tables(plans, map, one);
    if (pushed - looked > DELAY) look();
    if (looked - listed > DELAY) read();
    if (listed - settled > LAST) settle();
  }

  void look() {
    Queued& one = ring[looked++ % RING];
    if (one.few) return;
    while (lists.some()) fetch_list(map, lists.take());
    find_lists(plans, map, held(), one);
    lists = {one.lists, one.lists + one.list_count};
  }

  void read() {
    Queued& one = ring[listed++ % RING];
    if (one.few) return;
    const Numbers all = map.numbers.from(size_t(one.tile) * TILE);
    const CacheLine* first = reinterpret_cast<const CacheLine*>(all.first);
    numbers = {first, first + TILE * all.bytes / sizeof(CacheLine)};
    clear_by_lists(map, held(), one, [&] { fetch_some(); });
  }

  void settle() {
    Queued& one = ring[settled++ % RING];
    if (!one.few) return hitbox::settle(map, held(), one, out, [&] { fetch_some(); });
    u32 kept = keep_by_rows(map, one.tile, one.size, one.box, plans.against(low, high));
    out.boxes(one.tile, one.box, kept);
  }

  bool wanted(u32 tile) const { return tile * LANES < out.end; }

  void run(const Visit* list, u32 size) {
    for (u32 i = 0; i < size && i < FAR; ++i) prefetch_directory(list[i].tile);
    for (u32 i = 0; i < size && i < AHEAD; ++i) open(i, list[i]);
    for (u32 i = 0; i < size && wanted(list[i].tile); ++i) {
      if (i + FAR < size) prefetch_directory(list[i + FAR].tile);
      if (i + AHEAD < size) open(i + AHEAD, list[i + AHEAD]);
      else fetch_rest();
      out.whole = size > GUESS * (settled + 1) ? GUESS : double(size) / (settled + 1);
      gather(i, list[i]);
    }
    auto some = [&](u32 from, u32 to) { return from < to && wanted(ring[from % RING].tile); };
    while (some(looked, pushed)) look();
    while (some(listed, looked)) read();
    while (some(settled, listed)) settle();
  }
};

template <class P>
void match_bitmap(const Bitmap& map, const i64* low, const i64* high, const Wanted& wanted, Result& out) {
  Scratch<u64> blocks(map.summary_words);
  start_blocks(map, wanted, blocks.data);
  Urgent urgent(map, wanted, out);
  Pipeline<P> pipeline(map, low, high, urgent);
  if (!pipeline.plans.make(map, low, high, 0, blocks.data)) return;
  Scratch<Visit> list(tiles_of(map.blocks));
  for (u32 w = 0; w < map.summary_words; ++w)
    each_visit(w, blocks[w], [&](Visit visit) { list.data[list.size++] = visit; });
  pipeline.run(list.data, u32(list.size));
  urgent.finish();
}

}  // namespace
}  // namespace hitbox
