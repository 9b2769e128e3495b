// Matching: one event at a time, or a batch block by block. Compiled once an instruction set (HITBOX_KERNELS names it).
//
// One event: narrow the blocks by the summaries; AND their lines; settle the survivors by their lists; write out
// numbers; all in a pipeline that prefetches. Blocks come most urgent first, so a limit stops early.
//
// A batch: for 64 blocks at a time, list the events that each block survives for, then go block by block while its
// lines stay in cache. Few matches are logged one by one, many as a whole line; the log is dealt out by event and
// level at the end, so that no comparison sort is needed.
#include "match.hpp"

#include "lookup.hpp"
#include "plan.hpp"

namespace hitbox {
namespace {

constexpr u32 AHEAD = 4;
constexpr u32 DELAY = 4;
constexpr u32 RING = 4 * DELAY;
constexpr u32 CHUNK = 4096;
constexpr size_t LOG_BYTES = size_t(32) << 20;
constexpr u32 DENSE = 12;  // matches of a block from which its line is logged, not they

struct Survivor {
  u64 line[WORDS];
  u64 mask;  // attributes whose lists matter
  u32 block;
};

static u32 level_at(const Bitmap& map, u32 block) {
  u32 index = 0;
  while (map.level_end[index] <= block) ++index;
  return level_of_index(index);
}

static void emit_line(const Bitmap& map, u32 block, const u64* line, u32 level, Result& out) {
  reserve(out, BLOCK);
  out.ordered &= !out.size || out.levels[out.size - 1] >= level;
  u32 some = expand(line, map.numbers + size_t(block) * STRIDE, out.numbers + out.size);
  std::memset(out.levels + out.size, int(level), some);
  out.size += some;
}

// Blocks pass through stages, so that each finds in cache what the one before asked for: lines are fetched AHEAD blocks
// early; a survivor waits DELAY others before its doubtful lists are found and fetched, and DELAY more to be settled.
template <class P>
struct Pipeline {
  const Bitmap& map;
  const i64 *low, *high;
  Result& out;
  P plans;
  Survivor ring[RING];
  u32 pushed = 0, looked = 0, settled = 0;

  Pipeline(const Bitmap& m, const i64* l, const i64* h, Result& o)
      : map(m), low(l), high(h), out(o), plans(m.attributes, 1) {}

  void push(u32 block, Line held) {
    Survivor& one = ring[pushed++ % RING];
    one.block = block;
    store(one.line, held);
    plans.prefetch_doubtful(map, block, 0, one.line);
    if (pushed - looked > DELAY) look();
    if (looked - settled > DELAY) settle();
  }

  void look() {
    Survivor& one = ring[looked++ % RING];
    one.mask = plans.doubtful(map, one.block, 0, one.line, false);
    plans.prefetch_lists(map, one.block, 0, one.mask);
  }

  void settle() {
    Survivor& one = ring[settled++ % RING];
    plans.settle(map, one.block, 0, one.mask, low, high, one.line);
    if (!empty(load(one.line))) emit_line(map, one.block, one.line, level_at(map, one.block), out);
  }

  void run(const u32* list, u32 size, size_t limit) {
    for (u32 i = 0; i < size && i < AHEAD; ++i) plans.prefetch(map, list[i], 0);
    for (u32 i = 0; i < size; ++i) {
      if (i + AHEAD < size) plans.prefetch(map, list[i + AHEAD], 0);
      Line held = plans.gather(map, list[i], 0);
      if (!empty(held)) push(list[i], held);
      if (out.size >= limit) return;
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
  Scratch<u32> list(map.blocks);
  for (u32 w = 0; w < map.summary_words; ++w)
    for (u64 bits = blocks[w]; bits; bits &= bits - 1) list.data[list.size++] = w * 64 + u32(__builtin_ctzll(bits));
  pipeline.run(list.data, u32(list.size), wanted.limit > SIZE_MAX - out.size ? SIZE_MAX : out.size + wanted.limit);
}

// Most urgent first, by counting; nothing to do where sources already came in that order.
static void put_in_order(Result& out) {
  if (out.ordered) return;
  size_t start[LEVELS + 1] = {};
  for (size_t i = 0; i < out.size; ++i) ++start[LEVELS - out.levels[i]];
  for (u32 l = 0; l < LEVELS; ++l) start[l + 1] += start[l];
  i64* sorted = allocate<i64>(out.capacity);
  for (size_t i = 0; i < out.size; ++i) sorted[start[LEVELS - 1 - out.levels[i]]++] = out.numbers[i];
  std::free(out.numbers);
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
    u32 key, block;
    const Bitmap* map;
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

  void add_line(const Bitmap& map, u32 block, u32 key, const u64* line) {
    u32 some = count(line);
    counts[key] += some;
    if (some >= DENSE) {
      lines.need(lines.size + 1);
      Dense& one = lines[lines.size++];
      one.key = key;
      one.block = block;
      one.map = &map;
      std::memcpy(one.line, line, sizeof one.line);
      return;
    }
    hits.need(hits.size + some);
    const u32* numbers = map.numbers + size_t(block) * STRIDE;
    for (u32 w = 0; w < WORDS; ++w)
      for (u64 bits = line[w]; bits; bits &= bits - 1)
        hits.data[hits.size++] = {key, numbers[w * 64 + u32(__builtin_ctzll(bits))]};
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
      regrow_large(out.numbers, out.capacity);
    }
    for (size_t i = 0; i < lines.size; ++i) {
      const Dense& one = lines[i];
      next[one.key] += expand(one.line, one.map->numbers + size_t(one.block) * STRIDE, out.numbers + next[one.key]);
    }
    for (size_t i = 0; i < hits.size; ++i) out.numbers[next[hits[i].key]++] = hits[i].number;
    out.size = sum;
  }
};

// Fetches the next block's lines and lists into the outer cache, spread over the visits of this one.
struct Ahead {
  const char *at, *end, *next, *next_end;
  size_t step_bytes;

  Ahead(const Bitmap& map, u32 block, u32 visits) : at(nullptr), end(nullptr), next(nullptr), next_end(nullptr) {
    step_bytes = 0;
    if (block >= map.blocks || visits < 16) return;
    const Directory* directory = map.directory + size_t(block) * map.attributes;
    u32 groups = 0, first = 0;
    for (u32 a = 0; a < map.attributes; ++a)
      if (directory[a].group) {
        if (!groups++) first = directory[a].group;
      }
    at = reinterpret_cast<const char*>(line_of(map, first, 0));
    end = at + size_t(groups) * CELLS * WORDS * 8;
    next = reinterpret_cast<const char*>(map.entries + directory[0].base);
    next_end = reinterpret_cast<const char*>(map.entries + directory[map.attributes].base);
    step_bytes = size_t((end - at) + (next_end - next)) / visits / 64 * 64 + 64;
  }

  void step() {
    for (size_t done = 0; done < step_bytes; done += 64) {
      if (at >= end) {
        if (next >= next_end) return;
        at = next;
        end = next = next_end;
      }
      __builtin_prefetch(at, 0, 2);
      asm volatile("");
      at += 64;
    }
  }
};

template <class P>
struct Batch {
  const Bitmap& map;
  const Events& events;
  size_t from, size;
  Log& log;
  P plans;
  Scratch<u64> blocks;      // [events][summary_words]
  Scratch<u16> waiting;     // [64][events]
  u32 waiting_size[64];

  Batch(const Bitmap& m, const Events& e, size_t first, size_t count, Log& l)
      : map(m), events(e), from(first), size(count), log(l), plans(m.attributes, count),
        blocks(count * m.summary_words), waiting(64 * count) {}

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
      for (u32 b = 0; b < 64; ++b)
        if (waiting_size[b]) visit(w * 64 + b, waiting.data + b * size, waiting_size[b]);
    }
  }

  void enlist(u32 w) {
    std::memset(waiting_size, 0, sizeof waiting_size);
    for (size_t e = 0; e < size; ++e)
      for (u64 bits = blocks[e * map.summary_words + w]; bits; bits &= bits - 1) {
        u32 b = u32(__builtin_ctzll(bits));
        waiting[b * size + waiting_size[b]++] = u16(e);
      }
  }

  void visit(u32 block, const u16* list, u32 waiting_events) {
    u32 level = level_at(map, block);
    Ahead ahead(map, block + 1, waiting_events);
    for (u32 i = 0; i < waiting_events; ++i) {
      size_t e = list[i];
      if (i + AHEAD < waiting_events) plans.prefetch_plan(list[i + AHEAD]);
      ahead.step();
      Line held = plans.gather(map, block, e);
      if (empty(held)) continue;
      alignas(64) u64 line[WORDS];
      store(line, held);
      plans.settle(map, block, e, plans.doubtful(map, block, e, line, true), low(e), high(e), line);
      if (!empty(load(line))) log.add_line(map, block, Log::key_of(e, level), line);
    }
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

// A first small chunk tells how much an event logs, so that dense workloads do not fill the memory.
void match_many(const Set& set, const Events& events, size_t from, size_t to, i64* ends, Result& out) {
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
