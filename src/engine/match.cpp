// Matching: one event at a time, or a batch block by block. Compiled once an instruction set (HITBOX_KERNELS names it).
//
// One event: narrow the blocks by the summaries; AND their lines; settle the survivors by their lists; write out
// numbers; all in a pipeline that prefetches. Blocks come most urgent first, so a limit stops early.
//
// A batch: for 64 blocks at a time, list the events that each tile survives for, then go tile by tile while its lines
// stay in cache. Few matches are logged one by one, many as a whole line; the log is dealt out by event and
// level at the end, so that no comparison sort is needed.
#include "match.hpp"

#include "interval.hpp"
#include "lookup.hpp"
#include "point.hpp"

namespace hitbox {
namespace {

constexpr u32 AHEAD = 2;
constexpr u32 FAR = 6;
constexpr u32 TILES = 4;  // whose lines are known at a time, more than AHEAD
constexpr u32 DELAY = 6;
constexpr u32 RING = 16;
constexpr u32 LATER = 2;  // visits of a batch that a survivor waits for its rows
constexpr u32 SOON = 4;  // events of a batch whose plans are fetched early
constexpr u32 WORTH = 128;  // visits of a tile from which all of it is fetched early
constexpr u32 SINGLY = 96;  // events below which a batch is matched one by one
constexpr u32 CHUNK = 4096;
constexpr size_t LOG_BYTES = size_t(32) << 20;
constexpr u32 DENSE = 12;  // matches of a block from which its line is logged, not they

// Calls take(visit) for each tile among the 64 blocks of a word.
template <class Take>
static inline void each_visit(u32 word, u64 blocks, Take take) {
  for (u32 tile = word * 64 / LANES; blocks; blocks >>= LANES, ++tile)
    if (u32 lanes = u32(blocks & ((1u << LANES) - 1))) take(Visit{tile, lanes});
}

// Tiles pass through stages, so that each finds in cache what the one before asked for: what says where lines are is
// fetched FAR tiles early, lines AHEAD tiles early; a surviving tile waits DELAY others for its rows, or for what says
// where its lists are, and DELAY more for the lists.
template <class P>
struct Pipeline {
  const Bitmap& map;
  const i64 *low, *high;
  Result& out;
  P plans;
  Scratch<typename P::Source> sources;  // [TILES][attributes]
  u32 sizes[TILES];
  Survivor ring[RING];
  u32 pushed = 0, looked = 0, settled = 0;

  Pipeline(const Bitmap& m, const i64* l, const i64* h, Result& o)
      : map(m), low(l), high(h), out(o), plans(m.attributes, 1), sources(size_t(TILES) * m.attributes) {}

  typename P::Source* sources_of(u32 i) { return sources.data + size_t(i % TILES) * map.attributes; }

  void prefetch_directory(u32 tile) const {
    const char* at = reinterpret_cast<const char*>(directory_of(map, tile));
    for (u32 byte = 0; byte < map.attributes * sizeof(Directory); byte += 64) fetch(at + byte);
    for (u32 a = 0; a < map.attributes; a += 32) fetch(map.order + size_t(tile) * map.attributes + a);
    fetch(map.alive + size_t(tile) * LANES * WORDS);
  }

  void open(u32 i, Visit visit) {
    u32& size = sizes[i % TILES];
    size = plans.open(map, visit.tile, 0, sources_of(i));
    each_lane(visit, [&](u32 lane) { P::prefetch(sources_of(i), size, lane); });
  }

  void gather(u32 i, Visit visit) {
    Survivor& one = ring[pushed % RING];
    one.tile = visit.tile;
    one.event = 0;
    std::memset(one.held, 0, sizeof one.held);
    const u64* alive = map.alive + size_t(visit.tile) * TILE_WORDS;
    each_lane(visit, [&](u32 lane) {
      Line held = P::gather(sources_of(i), sizes[i % TILES], lane, load(alive + lane * WORDS));
      store(one.held + lane * WORDS, held);
    });
    one.size = count<TILE_WORDS>(one.held);
    if constexpr (P::STAGED)
      if (one.size > P::FEW) gather_rest(i, visit, one);
    if (one.size) push(one);
  }

  void gather_rest(u32 i, Visit visit, Survivor& one) {
    u32 size = plans.open(map, visit.tile, 0, true, sources_of(i));
    each_lane(visit, [&](u32 lane) { P::prefetch(sources_of(i), size, lane); });
    each_lane(visit, [&](u32 lane) {
      u64* line = one.held + lane * WORDS;
      store(line, P::gather(sources_of(i), size, lane, load(line)));
    });
    one.size = count<TILE_WORDS>(one.held);
  }

  void push(Survivor& one) {
    ++pushed;
    if (one.size <= P::FEW) one.list(map);
    else prefetch_tables(plans, map, one);
    if (pushed - looked > DELAY) look();
    if (looked - settled > DELAY) settle();
  }

  void look() {
    const Survivor& one = ring[looked++ % RING];
    if (one.size > P::FEW) prefetch_lists(plans, map, one);
  }

  void settle() {
    auto emit_few = [&](u32 level, const u32* numbers, const u16* position, u32 size) {
      start(size, level);
      for (u32 i = 0; i < size; ++i) out.numbers[out.size + i] = i32(numbers[position[i]]);
      finish(size, level);
    };
    auto emit_line = [&](u32 level, const u32* numbers, const u64* line) {
      start(BLOCK, level);
      finish(expand(line, numbers, out.numbers + out.size), level);
    };
    hitbox::settle(plans, map, low, high, ring[settled++ % RING], emit_few, emit_line);
  }

  void start(u32 most, u32 level) {
    reserve(out, most);
    out.ordered &= !out.size || out.levels[out.size - 1] >= level;
  }

  void finish(u32 size, u32 level) {
    std::memset(out.levels + out.size, int(level), size);
    out.size += size;
  }

  void run(const Visit* list, u32 size, size_t limit) {
    for (u32 i = 0; i < size && i < FAR; ++i) prefetch_directory(list[i].tile);
    for (u32 i = 0; i < size && i < AHEAD; ++i) open(i, list[i]);
    for (u32 i = 0; i < size && out.size < limit; ++i) {
      if (i + FAR < size) prefetch_directory(list[i + FAR].tile);
      if (i + AHEAD < size) open(i + AHEAD, list[i + AHEAD]);
      gather(i, list[i]);
    }
    while (looked < pushed) look();
    while (settled < looked && out.size < limit) settle();
  }
};

template <class P>
void match_bitmap(const Bitmap& map, const i64* low, const i64* high, const Wanted& wanted, Result& out) {
  Scratch<u64> blocks(map.summary_words);
  start_blocks(map, wanted, blocks.data);
  Pipeline<P> pipeline(map, low, high, out);
  if (!pipeline.plans.make(map, low, high, 0, blocks.data)) return;
  Scratch<Visit> list(tiles_of(map.blocks));
  for (u32 w = 0; w < map.summary_words; ++w)
    each_visit(w, blocks[w], [&](Visit visit) { list.data[list.size++] = visit; });
  pipeline.run(list.data, u32(list.size), wanted.limit > SIZE_MAX - out.size ? SIZE_MAX : out.size + wanted.limit);
}

// Most urgent first, by counting; nothing to do where sources already came in that order.
static void put_in_order(Result& out) {
  if (out.ordered) return;
  size_t start[LEVELS + 1] = {};
  for (size_t i = 0; i < out.size; ++i) ++start[LEVELS - out.levels[i]];
  for (u32 l = 0; l < LEVELS; ++l) start[l + 1] += start[l];
  i32* sorted = allocate<i32>(out.capacity);
  for (size_t i = 0; i < out.size; ++i) sorted[start[LEVELS - 1 - out.levels[i]]++] = out.numbers[i];
  free_memory(out.numbers);
  out.numbers = sorted;
  // Each start has moved to its level's end.
  for (size_t l = 0, from = 0; l < LEVELS; from = start[l++])
    std::memset(out.levels + from, int(LEVELS - 1 - l), start[l] - from);
  out.ordered = true;
}

void match_one(const Set& set, const Events& events, size_t event, const Wanted& wanted, Result& out) {
  const i64* low = events.low + event * events.attributes;
  const i64* high = events.high + event * events.attributes;
  auto emit = [&](u32 number, u8 level) {
    if (level <= wanted.top && level >= wanted.bottom) add(out, number, level);
  };
  for (u32 i = 0; i < set.bitmap_count; ++i)
    if (events.low == events.high) match_bitmap<PointPlans>(set.bitmaps[i], low, high, wanted, out);
    else match_bitmap<IntervalPlans>(set.bitmaps[i], low, high, wanted, out);
  Lookup lookup;
  for (u32 i = 0; i < set.posting_count; ++i) lookup.match(set.postings[i], low, high, emit);
  match_rows(set.tail, low, high, emit);
  put_in_order(out);
  if (out.size > wanted.limit) out.size = wanted.limit;
}

// Matches of a chunk of events, not yet dealt out.
struct Log {
  struct Hit {
    u32 key, number;
  };
  struct Dense {
    u32 key;
    const u32* numbers;  // of its block
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

  size_t bytes() const { return hits.size * sizeof(Hit) + lines.size * sizeof(Dense); }

  void add(u32 key, u32 number) {
    ++counts[key];
    hits.push({key, number});
  }

  void add_few(u32 key, const u32* numbers, const u16* position, u32 size) {
    counts[key] += size;
    hits.need(hits.size + size);
    for (u32 i = 0; i < size; ++i) hits.data[hits.size + i] = {key, numbers[position[i]]};
    hits.size += size;
  }

  void add_line(u32 key, const u32* numbers, const u64* line) {
    u32 some = count(line);
    counts[key] += some;
    if (some >= DENSE) {
      lines.need(lines.size + 1);
      Dense& one = lines[lines.size++];
      one.key = key;
      one.numbers = numbers;
      std::memcpy(one.line, line, sizeof one.line);
      return;
    }
    hits.need(hits.size + some);
    each_bit(line, [&](u32 position) { hits.data[hits.size++] = {key, numbers[position]}; });
  }

  // `whole` times as much as there is by then is what all events are likely to need: memory that moves while it grows
  // loses its large pages.
  void deal(size_t events, double whole, i64* ends, Result& out) {
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
      next[one.key] += expand(one.line, one.numbers, out.numbers + next[one.key]);
    }
    for (size_t i = 0; i < hits.size; ++i) out.numbers[next[hits[i].key]++] = i32(hits[i].number);
    out.size = sum;
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
  P plans;
  Scratch<u64> blocks;       // [events][summary_words]
  Scratch<Waiting> waiting;  // [WAITING][events]
  Survivor ring[RING];
  u32 pushed = 0, settled = 0;
  u32 waiting_size[WAITING];

  Batch(const Bitmap& m, const Events& e, size_t first, size_t count, Log& l)
      : map(m), events(e), from(first), size(count), log(l), plans(m.attributes, count),
        blocks(count * m.summary_words), waiting(WAITING * count) {}

  const i64* low(size_t e) const { return events.low + (from + e) * events.attributes; }
  const i64* high(size_t e) const { return events.high + (from + e) * events.attributes; }

  void run() {
    for (size_t e = 0; e < size; ++e) {
      u64* mine = blocks.data + e * map.summary_words;
      start_blocks(map, Wanted{}, mine);
      if (!plans.make(map, low(e), high(e), e, mine)) std::memset(mine, 0, map.summary_words * 8);
    }
    for (u32 w = 0; w * 64 < map.blocks; ++w) {
      enlist(w);
      for (u32 t = 0; t < WAITING; ++t)
        if (waiting_size[t]) visit(w * WAITING + t, waiting.data + t * size, waiting_size[t]);
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
    for (u32 i = 0; i < waiting_events; ++i) {
      if (i + SOON < waiting_events) plans.prefetch_plan(list[i + SOON].event);
      ahead.step();
      gather(Visit{tile, list[i].lanes}, list[i].event);
    }
    while (settled < pushed) settle();
  }

  void gather(Visit visit, u32 e) {
    Survivor& one = ring[pushed % RING];
    one.tile = visit.tile;
    one.event = e;
    std::memset(one.held, 0, sizeof one.held);
    const u64* alive = map.alive + size_t(visit.tile) * TILE_WORDS;
    each_lane(visit, [&](u32 lane) { store(one.held + lane * WORDS, load(alive + lane * WORDS)); });
    one.size = plans.gather_tile(map, visit, e, one.held);
    if (!one.size) return;
    ++pushed;
    if (one.size <= P::FEW) one.list(map);
    if (pushed - settled > LATER) settle();
  }

  void settle() {
    Survivor& one = ring[settled++ % RING];
    auto key_of = [&](u32 level) { return Log::key_of(one.event, level); };
    hitbox::settle(
        plans, map, low(one.event), high(one.event), one,
        [&](u32 level, const u32* numbers, const u16* position, u32 kept) {
          log.add_few(key_of(level), numbers, position, kept);
        },
        [&](u32 level, const u32* numbers, const u64* line) { log.add_line(key_of(level), numbers, line); });
  }
};

void match_chunk(const Set& set, const Events& events, size_t from, size_t size, Log& log) {
  log.clear(size);
  for (u32 i = 0; i < set.bitmap_count; ++i)
    if (events.low == events.high) Batch<PointPlans>(set.bitmaps[i], events, from, size, log).run();
    else Batch<IntervalPlans>(set.bitmaps[i], events, from, size, log).run();
  Lookup lookup;
  for (size_t e = 0; e < size; ++e) {
    const i64* low = events.low + (from + e) * events.attributes;
    const i64* high = events.high + (from + e) * events.attributes;
    auto emit = [&](u32 number, u8 level) { log.add(Log::key_of(e, level), number); };
    for (u32 i = 0; i < set.posting_count; ++i) lookup.match(set.postings[i], low, high, emit);
    match_rows(set.tail, low, high, emit);
  }
}

void match_singly(const Set& set, const Events& events, size_t from, size_t to, i64* ends, Result& out) {
  Result one;
  for (size_t e = from; e < to; ++e) {
    one.size = 0;
    one.ordered = true;
    match_one(set, events, e, Wanted{}, one);
    if (out.size + one.size > out.capacity) {
      out.capacity = (out.size + one.size) * 2;
      regrow(out.numbers, out.capacity);
    }
    if (one.size) std::memcpy(out.numbers + out.size, one.numbers, one.size * sizeof(i32));
    out.size += one.size;
    ends[e] = i64(out.size);
  }
  release(one);
}

// A first small chunk tells how much an event logs, so that dense workloads do not fill the memory.
void match_many(const Set& set, const Events& events, size_t from, size_t to, i64* ends, Result& out) {
  if (to - from < SINGLY) return match_singly(set, events, from, to, ends, out);
  size_t most = (size_t(8) << 20) / (size_t(events.attributes) * 8 + 64);
  most = most < 64 ? 64 : most > CHUNK ? CHUNK : most;
  Log log;
  for (size_t at = from, size = to - from > 256 ? 128 : to - from; at < to;) {
    if (size > to - at) size = to - at;
    match_chunk(set, events, at, size, log);
    log.deal(size, double(to - from) / double(at + size - from), ends + at, out);
    at += size;
    size = LOG_BYTES / (log.bytes() / size + 64);
    size = size < 64 ? 64 : size > most ? most : size;
  }
}

}  // namespace

extern const Kernels HITBOX_KERNELS;
const Kernels HITBOX_KERNELS = {HITBOX_NAME, match_one, match_many};

}  // namespace hitbox
