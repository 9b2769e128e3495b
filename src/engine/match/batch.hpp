// Matches a batch of events against one bitmap segment. For 64 blocks at a time, lists the events that must visit each
// tile, then processes tile by tile, while its lines stay in cache. A few matches are logged one by one, many as a whole
// line. At the end the log is scattered by event and level: a counting sort.
#pragma once

#include "base/interrupt.hpp"
#include "match/interval.hpp"
#include "match/point.hpp"

namespace hitbox {
namespace {

constexpr u32 GROUP = 8;  // visits whose lines are ANDed before the first result is used, so no branch waits for lines
constexpr u32 DENSE_BLOCK = 12;  // from this many matches per block, its line is logged instead

// The matches of a chunk of events, in the order in which they were found.
struct MatchLog {
  struct Hit {
    u32 key, number;
  };
  struct Dense {
    u32 key;          // of level 9 if levels differ
    Numbers numbers;  // of the block
    const u16* ends;  // the block's level ends; null if all boxes have one level
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

  // Adds boxes of a tile, each with its event.
  void add_boxes(const Bitmap& map, u32 tile, const u32* row_queue, u32 size) {
    const Numbers numbers = map.numbers.from(size_t(tile) * TILE);
    const u32 level = map.tile_level[tile];
    hits.need(hits.size + size);
    for (u32 i = 0; i < size; ++i) {
      u32 position = row_queue[i] & POSITION, event = row_queue[i] >> 11;
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
    if (some >= DENSE_BLOCK) return add_dense(key, numbers, nullptr, line);
    hits.need(hits.size + some);
    each_bit(line, [&](u32 position) { hits.data[hits.size++] = {key, numbers[position]}; });
  }

  // Adds the line of a block with different levels.
  void add_mixed(size_t event, Numbers numbers, const u16* ends, const u64* line) {
    if (count(line) < DENSE_BLOCK)
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

  // Writes the matches to `out`, sorted by event and level. `growth` is the expected final size of `out` as a multiple of
  // its size after this chunk: memory that moves while it grows loses its huge pages.
  void scatter(size_t events, double growth, i64* ends, Result& out, InterruptCheck& interrupt) {
    Scratch<size_t> next(events * 16);
    size_t sum = out.size;
    for (size_t e = 0; e < events; ++e) {
      for (u32 l = 0; l < 16; ++l) {
        next[e * 16 + l] = sum;
        sum += counts[e * 16 + l];
      }
      ends[e] = i64(sum);
    }
    if (out.counting) {
      out.size = sum;
      return;
    }
    if (sum > out.capacity) {
      out.capacity = sum + size_t(double(sum) * (growth - 1) * 1.1);
      reallocate(out.numbers, out.capacity);
    }
    for (size_t i = 0; i < lines.size; ++i) {
      const Dense& one = lines[i];
      u32 some = count(one.line);
      report_work(interrupt, 4 + some / 8);
      if (!one.ends) {
        expand<WORDS, false>(one.line, some, one.numbers, out.numbers + next[one.key], NoPrefetch{});
        next[one.key] += some;
        continue;
      }
      i32 all[BLOCK + 16];
      expand<WORDS, true>(one.line, some, one.numbers, all, NoPrefetch{});
      each_level(one.ends, one.line, [&](u32 level, u32 from, u32 to) {
        size_t& at = next[one.key + LEVELS - 1 - level];
        std::memcpy(out.numbers + at, all + from, (to - from) * sizeof(i32));
        at += to - from;
      });
    }
    constexpr size_t SCATTER_STEP = 4096;
    for (size_t from = 0; from < hits.size; from += SCATTER_STEP) {
      const size_t to = hits.size - from < SCATTER_STEP ? hits.size : from + SCATTER_STEP;
      for (size_t i = from; i < to; ++i) out.numbers[next[hits[i].key]++] = i32(hits[i].number);
      report_work(interrupt, SCATTER_STEP / 2);
    }
    out.size = sum;
  }
};

// Logs the matches of one event.
struct EventMatchLog {
  const Bitmap& map;
  MatchLog& log;
  size_t event;

  void tile(u32 level, Numbers numbers, const u64* remaining, NoPrefetch) {
    for (u32 lane = 0; lane < LANES; ++lane)
      log.add_line(MatchLog::key_of(event, level), numbers.from(lane * BLOCK), remaining + lane * WORDS);
  }
  void mixed(u32 block, const u64* line) {
    log.add_mixed(event, map.numbers.from(size_t(block) * BLOCK), level_ends_of(map, block), line);
  }
};

// Prefetches the next tile's lines, lists and rows into the outer cache, spread over the visits of the current tile.
struct TilePrefetcher {
  struct Span {
    const char *at, *end;
  };
  Span spans[3];
  u32 first = 0, last = 0;
  size_t step_bytes = 0;

  TilePrefetcher(const Bitmap& map, u32 tile, u32 visits) {
    if (tile >= tiles_of(map.blocks) || visits < PrefetchDistance::MIN_TILE_VISITS) return;
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
      prefetch_outer(span.at);
      span.at += 64;
      first += span.at >= span.end;
    }
  }
};

template <class P>
struct Batch {
  struct PendingVisit {
    u16 event, lanes;
  };
  static constexpr u32 WORD_TILES = 64 / LANES;  // tiles per word of blocks

  const Bitmap& map;
  const Events& events;
  size_t from, size;
  MatchLog& log;
  InterruptCheck& interrupt;
  P plans;
  Scratch<u64> blocks;            // [events][summary_words]
  Scratch<PendingVisit> pending;  // [WORD_TILES][events]
  u32 pending_count[WORD_TILES];
  TileCandidates group[GROUP];
  // Boxes of the open tile whose rows are being prefetched: fewer than ROW_QUEUE + MAX_ROW_TESTS, to which a visit adds at
  // most MAX_ROW_TESTS, and 15 values that list_boxes may overwrite.
  u32 row_queue[PrefetchDistance::ROW_QUEUE + 2 * MAX_ROW_TESTS + 16];
  u32 queued = 0;

  Batch(const Bitmap& m, const Events& e, size_t first, size_t count, MatchLog& l, InterruptCheck& w)
      : map(m), events(e), from(first), size(count), log(l), interrupt(w), plans(m.attributes, count),
        blocks(count * m.summary_words), pending(WORD_TILES * count) {}

  const i64* low(size_t e) const { return events.low + (from + e) * events.attributes; }
  const i64* high(size_t e) const { return events.high + (from + e) * events.attributes; }

  void run() {
    for (size_t e = 0; e < size; ++e) {
      u64* own = blocks.data + e * map.summary_words;
      init_blocks(map, MatchLimits{}, own);
      if (!plans.make(map, low(e), high(e), e, own)) std::memset(own, 0, map.summary_words * 8);
      report_work(interrupt, map.attributes * (1 + map.summary_words / 64));
    }
    for (u32 w = 0; w * 64 < map.blocks; ++w) {
      list_visits(w);
      size_t visits = 0;
      for (u32 t = 0; t < WORD_TILES; ++t) {
        if (!pending_count[t]) continue;
        visit(w * WORD_TILES + t, pending.data + t * size, pending_count[t]);
        visits += pending_count[t];
      }
      report_work(interrupt, size / 4 + 4 * visits);
    }
  }

  void list_visits(u32 w) {
    std::memset(pending_count, 0, sizeof pending_count);
    for (size_t e = 0; e < size; ++e)
      each_visit(w, blocks[e * map.summary_words + w], [&](Visit visit) {
        u32 t = visit.tile % WORD_TILES;
        pending[t * size + pending_count[t]++] = {u16(e), u16(visit.lanes)};
      });
  }

  void visit(u32 tile, const PendingVisit* list, u32 visit_count) {
    TilePrefetcher prefetcher(map, tile + 1, visit_count);
    plans.open_tile(map, tile);
    for (u32 i = 0; i < visit_count; i += GROUP) {
      u32 some = visit_count - i < GROUP ? visit_count - i : GROUP;
      for (u32 j = 0; j < some; ++j) {
        if (i + j + PrefetchDistance::PLANS < visit_count)
          plans.prefetch_plan(list[i + j + PrefetchDistance::PLANS].event);
        prefetch(log.counts_of(list[i + j].event));
        prefetcher.step();
        TileCandidates& one = group[j];
        Visit visit{tile, list[i + j].lanes};
        one.start(map, visit, list[i + j].event);
        one.size = plans.intersect_tile(map, visit, one.event, one.remaining);
      }
      for (u32 j = 0; j < some; ++j)
        if (group[j].size) process(group[j]);
    }
    while (queued) test_rows(tile, queued < MAX_ROW_TESTS ? queued : MAX_ROW_TESTS);
  }

  void process(TileCandidates& one) {
    if (one.size > plans.row_limit[one.event]) return match_many(one);
    queued += list_boxes(map, one, row_queue + queued);
    assert(queued < PrefetchDistance::ROW_QUEUE + 2 * MAX_ROW_TESTS);
    if (queued >= PrefetchDistance::ROW_QUEUE + MAX_ROW_TESTS) test_rows(one.tile, MAX_ROW_TESTS);
  }

  // Tests the rows of the first boxes in the queue.
  void test_rows(u32 tile, u32 some) {
    u32 kept = filter_by_rows(map, tile, some, row_queue, plans.encoded(low(0), high(0), events.attributes));
    log.add_boxes(map, tile, row_queue, kept);
    queued -= some;
    std::memmove(row_queue, row_queue + some, queued * sizeof *row_queue);
  }

  // Matches a tile with many boxes left.
  void match_many(TileCandidates& one) {
    EventMatchLog own{map, log, one.event};
    const auto all = plans.encoded(low(0), high(0), events.attributes);
    EncodedEvent event = all.of(one.event);
    if (plans.rows_decide(map, one.event)) {
      prefetch_rows(map, one);
      clear_by_rows(map, all, one);
    } else {
      find_lists(plans, map, event, one);
      clear_by_lists(map, event, one, NoPrefetch{});
    }
    emit_matches(map, event, one, own, NoPrefetch{});
  }
};

}  // namespace
}  // namespace hitbox
