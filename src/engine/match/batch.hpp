// Many events over one bitmap segment: for 64 blocks at a time, list the events that each tile survives for, then go
// tile by tile while its lines stay in cache. Few matches are logged one by one, many as a whole line; the log is dealt
// out by event and level at the end, so that no comparison sort is needed.
#pragma once

#include "match/interval.hpp"
#include "match/point.hpp"
#include "base/watch.hpp"

namespace hitbox {
namespace {

constexpr u32 LATER = 48;   // boxes that stay queued, so that their rows have time to arrive
constexpr u32 GROUP = 8;    // visits whose lines are gathered before one is looked at: no branch waits for lines
constexpr u32 SOON = 4;     // events whose plans are fetched early
constexpr u32 WORTH = 128;  // visits of a tile from which all of it is fetched early
constexpr u32 DENSE = 12;   // matches of a block from which its line is logged, not they

// Matches of a chunk of events, not yet dealt out.
struct Log {
  struct Hit {
    u32 key, number;
  };
  struct Dense {
    u32 key;          // where levels differ, that of level 9
    Numbers numbers;  // of its block
    const u16* ends;  // of its levels, or null where they do not differ
    u64 line[WORDS];
  };
  Scratch<Hit> hits;
  Scratch<Dense> lines;
  Scratch<u32> counts;  // [events * 16] by key = event * 16 + (9 - level)

  void clear(size_t events) {
    hits.size = lines.size = 0;
    counts.need(events * 16);
    std::memset(counts.data, 0, events * 64);
  }

  static u32 key_of(size_t event, u32 level) { return u32(event) * 16 + (LEVELS - 1 - level); }

  const u32* counts_of(size_t event) const { return counts.data + event * 16; }

  size_t bytes() const { return hits.size * sizeof(Hit) + lines.size * sizeof(Dense); }

  void add(u32 key, u32 number) {
    ++counts[key];
    hits.push({key, number});
  }

  // Boxes of a tile, each with its event.
  void add_boxes(const Bitmap& map, u32 tile, const u32* box, u32 size) {
    const Numbers numbers = map.numbers.from(size_t(tile) * TILE);
    const u32 level = map.tile_level[tile];
    hits.need(hits.size + size);
    for (u32 i = 0; i < size; ++i) {
      u32 position = box[i] & POSITION, event = box[i] >> 11;
      u32 key = key_of(event, level != MIXED ? level : level_at(map, size_t(tile) * TILE + position));
      ++counts[key];
      hits.data[hits.size + i] = {key, numbers[position]};
    }
    hits.size += size;
  }

  void add_line(u32 key, Numbers numbers, const u64* line) {
    u32 some = count(line);
    if (!some) return;
    counts[key] += some;
    if (some >= DENSE) return add_dense(key, numbers, nullptr, line);
    hits.need(hits.size + some);
    each_bit(line, [&](u32 position) { hits.data[hits.size++] = {key, numbers[position]}; });
  }

  // The line of a block whose levels differ.
  void add_mixed(size_t event, Numbers numbers, const u16* ends, const u64* line) {
    if (count(line) < DENSE)
      return each_bit(line, [&](u32 at) { add(key_of(event, level_in(ends, at)), numbers[at]); });
    each_level(ends, line, [&](u32 level, u32 from, u32 to) { counts[key_of(event, level)] += to - from; });
    add_dense(key_of(event, LEVELS - 1), numbers, ends, line);
  }

  void add_dense(u32 key, Numbers numbers, const u16* ends, const u64* line) {
    lines.need(lines.size + 1);
    Dense& one = lines[lines.size++];
    one.key = key;
    one.numbers = numbers;
    one.ends = ends;
    std::memcpy(one.line, line, sizeof one.line);
  }

  // `whole` times as much as there is by then is what all events are likely to need: memory that moves while it grows
  // loses its large pages.
  void deal(size_t events, double whole, i64* ends, Result& out, Watch& watch) {
    Scratch<size_t> next(events * 16);
    size_t sum = out.size;
    for (size_t e = 0; e < events; ++e) {
      for (u32 l = 0; l < 16; ++l) {
        next[e * 16 + l] = sum;
        sum += counts[e * 16 + l];
      }
      ends[e] = i64(sum);
    }
    if (sum > out.capacity) {
      out.capacity = sum + size_t(double(sum) * (whole - 1) * 1.1);
      regrow(out.numbers, out.capacity);
    }
    for (size_t i = 0; i < lines.size; ++i) {
      const Dense& one = lines[i];
      u32 some = count(one.line);
      note_work(watch, 4 + some / 8);
      if (!one.ends) {
        expand<WORDS, false>(one.line, some, one.numbers, out.numbers + next[one.key], Idle{});
        next[one.key] += some;
        continue;
      }
      i32 all[BLOCK + 16];
      expand<WORDS, true>(one.line, some, one.numbers, all, Idle{});
      each_level(one.ends, one.line, [&](u32 level, u32 from, u32 to) {
        size_t& at = next[one.key + LEVELS - 1 - level];
        std::memcpy(out.numbers + at, all + from, (to - from) * sizeof(i32));
        at += to - from;
      });
    }
    constexpr size_t SOME = 4096;
    for (size_t from = 0; from < hits.size; from += SOME) {
      const size_t to = hits.size - from < SOME ? hits.size : from + SOME;
      for (size_t i = from; i < to; ++i) out.numbers[next[hits[i].key]++] = i32(hits[i].number);
      note_work(watch, SOME / 2);
    }
    out.size = sum;
  }
};

// The log as one event writes it.
struct LogOf {
  const Bitmap& map;
  Log& log;
  size_t event;

  void tile(u32 level, Numbers numbers, const u64* held, Idle) {
    for (u32 lane = 0; lane < LANES; ++lane)
      log.add_line(Log::key_of(event, level), numbers.from(lane * BLOCK), held + lane * WORDS);
  }
  void mixed(u32 block, const u64* line) {
    log.add_mixed(event, map.numbers.from(size_t(block) * BLOCK), level_ends_of(map, block), line);
  }
};

// Fetches the next tile's lines, lists and rows into the outer cache, spread over the visits of this one.
struct Ahead {
  struct Span {
    const char *at, *end;
  };
  Span spans[3];
  u32 first = 0, last = 0;
  size_t step_bytes = 0;

  Ahead(const Bitmap& map, u32 tile, u32 visits) {
    if (tile >= tiles_of(map.blocks) || visits < WORTH) return;
    const Directory* directory = directory_of(map, tile);
    u32 groups = 0, group = 1;
    for (u32 a = 0; a < map.attributes; ++a) {
      if (!directory[a].group) continue;
      if (!groups++) group = directory[a].group;
    }
    add(line_of(map, group, 0, 0), line_of(map, group + groups, 0, 0));
    add(map.entries + directory[0].base, map.entries + directory[map.attributes].base);
    u32 block = tile * LANES, end = block + LANES < map.blocks ? block + LANES : map.blocks;
    add(row_at(map, size_t(block) * BLOCK), row_at(map, size_t(end) * BLOCK));
    step_bytes = step_bytes / visits / 64 * 64 + 64;
  }

  void add(const void* from, const void* to) {
    spans[last++] = {static_cast<const char*>(from), static_cast<const char*>(to)};
    step_bytes += size_t(spans[last - 1].end - spans[last - 1].at);
  }

  void step() {
    for (size_t done = 0; done < step_bytes && first < last; done += 64) {
      Span& span = spans[first];
      fetch_outer(span.at);
      span.at += 64;
      first += span.at >= span.end;
    }
  }
};

template <class P>
struct Batch {
  struct Waiting {
    u16 event, lanes;
  };
  static constexpr u32 WAITING = 64 / LANES;  // tiles that events are listed for at a time

  const Bitmap& map;
  const Events& events;
  size_t from, size;
  Log& log;
  Watch& watch;
  P plans;
  Scratch<u64> blocks;       // [events][summary_words]
  Scratch<Waiting> waiting;  // [WAITING][events]
  u32 waiting_size[WAITING];
  Survivor group[GROUP];
  // Boxes of the open tile that wait for their rows: fewer than LATER + MOST_ROWS, to which a visit adds MOST_ROWS at
  // most, and 15 places that lists may write over.
  u32 box[LATER + 2 * MOST_ROWS + 16];
  u32 boxes = 0;

  Batch(const Bitmap& m, const Events& e, size_t first, size_t count, Log& l, Watch& w)
      : map(m), events(e), from(first), size(count), log(l), watch(w), plans(m.attributes, count),
        blocks(count * m.summary_words), waiting(WAITING * count) {}

  const i64* low(size_t e) const { return events.low + (from + e) * events.attributes; }
  const i64* high(size_t e) const { return events.high + (from + e) * events.attributes; }

  void run() {
    for (size_t e = 0; e < size; ++e) {
      u64* mine = blocks.data + e * map.summary_words;
      start_blocks(map, Wanted{}, mine);
      if (!plans.make(map, low(e), high(e), e, mine)) std::memset(mine, 0, map.summary_words * 8);
      note_work(watch, map.attributes * (1 + map.summary_words / 64));
    }
    for (u32 w = 0; w * 64 < map.blocks; ++w) {
      enlist(w);
      size_t visits = 0;
      for (u32 t = 0; t < WAITING; ++t) {
        if (!waiting_size[t]) continue;
        visit(w * WAITING + t, waiting.data + t * size, waiting_size[t]);
        visits += waiting_size[t];
      }
      note_work(watch, size / 4 + 4 * visits);
    }
  }

  void enlist(u32 w) {
    std::memset(waiting_size, 0, sizeof waiting_size);
    for (size_t e = 0; e < size; ++e)
      each_visit(w, blocks[e * map.summary_words + w], [&](Visit visit) {
        u32 t = visit.tile % WAITING;
        waiting[t * size + waiting_size[t]++] = {u16(e), u16(visit.lanes)};
      });
  }

  void visit(u32 tile, const Waiting* list, u32 waiting_events) {
    Ahead ahead(map, tile + 1, waiting_events);
    plans.open_tile(map, tile);
    for (u32 i = 0; i < waiting_events; i += GROUP) {
      u32 some = waiting_events - i < GROUP ? waiting_events - i : GROUP;
      for (u32 j = 0; j < some; ++j) {
        if (i + j + SOON < waiting_events) plans.prefetch_plan(list[i + j + SOON].event);
        fetch(log.counts_of(list[i + j].event));
        ahead.step();
        Survivor& one = group[j];
        Visit visit{tile, list[i + j].lanes};
        one.start(map, visit, list[i + j].event);
        one.size = plans.gather_tile(map, visit, one.event, one.held);
      }
      for (u32 j = 0; j < some; ++j)
        if (group[j].size) look_at(group[j]);
    }
    while (boxes) hold(tile, boxes < MOST_ROWS ? boxes : MOST_ROWS);
  }

  void look_at(Survivor& one) {
    if (one.size > plans.few[one.event]) return settle(one);
    boxes += list_boxes(map, one, box + boxes);
    if (boxes >= LATER + MOST_ROWS) hold(one.tile, MOST_ROWS);
  }

  // Holds the first boxes of those that wait against their rows.
  void hold(u32 tile, u32 some) {
    u32 kept = keep_by_rows(map, tile, some, box, plans.against(low(0), high(0)));
    log.add_boxes(map, tile, box, kept);
    boxes -= some;
    std::memmove(box, box + some, boxes * sizeof *box);
  }

  void settle(Survivor& one) {
    LogOf mine{map, log, one.event};
    Held against = plans.against(low(0), high(0)).of(one.event);
    find_lists(plans, map, against, one);
    clear_by_lists(map, against, one, Idle{});
    hitbox::settle(map, against, one, mine, Idle{});
  }
};

}  // namespace
}  // namespace hitbox
