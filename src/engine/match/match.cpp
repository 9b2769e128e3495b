// Matches events against a set of segments: single events (pipeline.hpp) or batches (batch.hpp). Compiled once per
// instruction set; HITBOX_KERNELS is the name of the resulting table of functions.
#include "match/match.hpp"

#include "match/batch.hpp"
#include "match/dense.hpp"
#include "match/lookup.hpp"
#include "match/pipeline.hpp"

namespace hitbox {
namespace {

constexpr u32 MIN_BATCH = 96;    // smaller batches are matched event by event
constexpr u32 MAX_CHUNK = 4096;  // events at a time; their indexes have 16 bits
static_assert(MAX_CHUNK <= 1u << 16);
constexpr size_t LOG_BYTES = size_t(32) << 20;
constexpr size_t SAMPLE = 8;  // events whose matches tell how much a chunk will log

// Whether events have the attributes of the segments, and perhaps more; asserted in debug builds. What came after a
// segment was built constrains none of its boxes.
[[maybe_unused]] static bool fits(const SegmentSet& set, const Events& events) {
  for (u32 i = 0; i < set.bitmap_count; ++i)
    if (set.bitmaps[i].attributes > events.attributes) return false;
  for (u32 i = 0; i < set.dense_count; ++i)
    if (set.dense[i].attributes > events.attributes) return false;
  for (u32 i = 0; i < set.posting_count; ++i)
    if (set.postings[i].attributes > events.attributes) return false;
  return true;
}

// Counting sort of an event's matches by descending level, unless they are in that order already.
static void sort_by_level(Result& out) {
  if (out.ordered) return;
  const size_t size = out.size - out.begin;
  size_t start[LEVELS + 1] = {};
  for (size_t i = 0; i < size; ++i) ++start[LEVELS - out.levels[i]];
  for (u32 l = 0; l < LEVELS; ++l) start[l + 1] += start[l];
  Scratch<i32> copy(size);
  std::memcpy(copy.data, out.numbers + out.begin, size * sizeof(i32));
  for (size_t i = 0; i < size; ++i) out.numbers[out.begin + start[LEVELS - 1 - out.levels[i]]++] = copy[i];
  // start[l] is now the end of its level.
  for (size_t l = 0, from = 0; l < LEVELS; from = start[l++])
    std::memset(out.levels + from, int(LEVELS - 1 - l), start[l] - from);
  out.ordered = true;
}

// Appends the event's matches to the result.
void match_event(const SegmentSet& set, const Events& events, size_t event, const MatchLimits& limits, Result& out) {
  out.begin = out.size;
  out.ordered = true;
  const i64* low = events.low + event * events.attributes;
  const i64* high = events.high + event * events.attributes;
  auto emit = [&](u32 number, u8 level) {
    if (level <= limits.top && level >= limits.bottom) add(out, number, level);
  };
  assert(fits(set, events) && limits.bottom <= limits.top && limits.top < LEVELS);
  for (u32 i = 0; i < set.bitmap_count; ++i)
    if (events.low == events.high) match_bitmap<PointPlans>(set.bitmaps[i], low, high, limits, out);
    else match_bitmap<IntervalPlans>(set.bitmaps[i], low, high, limits, out);
  for (u32 i = 0; i < set.dense_count; ++i) match_dense(set.dense[i], low, high, limits, out);
  PostingsLookup lookup;
  for (u32 i = 0; i < set.posting_count; ++i) lookup.match(set.postings[i], low, high, emit);
  match_rows(set.tail, low, high, emit);
  sort_by_level(out);
  if (out.size - out.begin > limits.limit) out.size = out.begin + limits.limit;
}

void match_chunk(const SegmentSet& set, const Events& events, size_t from, size_t size, MatchLog& log,
                 InterruptCheck& interrupt) {
  assert(fits(set, events) && size <= MAX_CHUNK);
  log.clear(size);
  for (u32 i = 0; i < set.bitmap_count; ++i)
    if (events.low == events.high) Batch<PointPlans>(set.bitmaps[i], events, from, size, log, interrupt).run();
    else Batch<IntervalPlans>(set.bitmaps[i], events, from, size, log, interrupt).run();
  PostingsLookup lookup;
  for (size_t e = 0; e < size; ++e) {
    const i64* low = events.low + (from + e) * events.attributes;
    const i64* high = events.high + (from + e) * events.attributes;
    auto emit = [&](u32 number, u8 level) { log.add(MatchLog::key_of(e, level), number); };
    for (u32 i = 0; i < set.posting_count; ++i) lookup.match(set.postings[i], low, high, emit);
    match_rows(set.tail, low, high, emit);
    if (e % 16) continue;
    report_work(interrupt, 128 + lookup.scanned / 4 + 4 * set.tail.count);
    lookup.scanned = 0;
  }
}

void match_one_by_one(const SegmentSet& set, const Events& events, size_t from, size_t to, size_t all, i64* ends,
                      Result& out, InterruptCheck& interrupt) {
  const size_t units = work_of(set);
  size_t counted = 0;
  for (size_t e = from; e < to; ++e) {
    // Room for about all events: memory that moves while it grows loses its huge pages.
    const size_t done = e - from, mean = done ? out.size / done : 0;
    if (out.size + 2 * mean > out.capacity) set_capacity(out, out.size + 2 * mean + mean * (all - done) * 11 / 10);
    match_event(set, events, e, MatchLimits{}, out);
    const size_t found = out.size - out.begin + out.counted;
    if (out.counting) {
      counted += found;
      out.size = out.counted = 0;
    }
    ends[e] = i64(out.counting ? counted : out.size);
    report_work(interrupt, units + found / 4);
  }
}

// About how many bytes the log needs per event of [from, to): by the matches of a few events, spread over all. They are
// matched one by one, because a small chunk would read nearly as much of the segments as a large one.
static size_t estimate_log(const SegmentSet& set, const Events& events, size_t from, size_t to) {
  struct Own : Result {  // OwnedResult's destructor has external linkage: common.hpp
    ~Own() { release(*this); }
  } one;
  size_t blocks = 0, found = 0;
  for (u32 i = 0; i < set.bitmap_count; ++i) blocks += set.bitmaps[i].blocks;
  for (size_t i = 0; i < SAMPLE; ++i) {
    one.size = 0;
    match_event(set, events, from + (to - from) * i / SAMPLE, MatchLimits{}, one);
    found += one.size;
  }
  const size_t single = found / SAMPLE * sizeof(MatchLog::Hit), whole = blocks * sizeof(MatchLog::Dense);
  return set.posting_count || single < whole ? single : whole;
}

// The bytes logged per event limit the size of chunks and so the memory.
void match_batch(const SegmentSet& set, const Events& events, size_t from, size_t to, size_t all, i64* ends,
                 Result& out, InterruptCheck& interrupt) {
  if (to - from < MIN_BATCH || set.dense_count)
    return match_one_by_one(set, events, from, to, all, ends, out, interrupt);
  size_t most = (size_t(8) << 20) / (size_t(events.attributes) * 8 + 64);
  most = most < 64 ? 64 : most > MAX_CHUNK ? MAX_CHUNK : most;
  MatchLog log;
  size_t logged = to - from > 256 ? estimate_log(set, events, from, to) : 0;
  for (size_t at = from; at < to;) {
    size_t size = LOG_BYTES / (logged + 64);
    size = size < 64 ? 64 : size > most ? most : size;
    if (size > to - at) size = to - at;
    match_chunk(set, events, at, size, log, interrupt);
    log.scatter(size, double(all) / double(at + size - from), ends + at, out, interrupt);
    at += size;
    logged = log.bytes() / size;
  }
}

}  // namespace

extern const Kernels HITBOX_KERNELS;
const Kernels HITBOX_KERNELS = {HITBOX_NAME, match_event, match_batch};

}  // namespace hitbox
