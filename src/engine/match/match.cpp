// Matching a set of segments: one event at a time (pipeline.hpp) or a batch (batch.hpp). Compiled once an instruction
// set (HITBOX_KERNELS names it).
#include "match/match.hpp"

#include "match/batch.hpp"
#include "match/lookup.hpp"
#include "match/pipeline.hpp"

namespace hitbox {
namespace {

constexpr u32 SINGLY = 96;  // events below which a batch is matched one by one
constexpr u32 CHUNK = 4096;  // events at a time; their numbers have 16 bits
static_assert(CHUNK <= 1u << 16);
constexpr size_t LOG_BYTES = size_t(32) << 20;

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

void match_chunk(const Set& set, const Events& events, size_t from, size_t size, Log& log, Watch& watch) {
  log.clear(size);
  for (u32 i = 0; i < set.bitmap_count; ++i)
    if (events.low == events.high) Batch<PointPlans>(set.bitmaps[i], events, from, size, log, watch).run();
    else Batch<IntervalPlans>(set.bitmaps[i], events, from, size, log, watch).run();
  Lookup lookup;
  for (size_t e = 0; e < size; ++e) {
    const i64* low = events.low + (from + e) * events.attributes;
    const i64* high = events.high + (from + e) * events.attributes;
    auto emit = [&](u32 number, u8 level) { log.add(Log::key_of(e, level), number); };
    for (u32 i = 0; i < set.posting_count; ++i) lookup.match(set.postings[i], low, high, emit);
    match_rows(set.tail, low, high, emit);
    if (e % 16) continue;
    note_work(watch, 128 + lookup.scanned / 4 + 4 * set.tail.count);
    lookup.scanned = 0;
  }
}

// How much work an event is at most, by and large.
static size_t work_of(const Set& set) {
  size_t units = 64 + set.tail.count / 4;
  for (u32 i = 0; i < set.bitmap_count; ++i) units += set.bitmaps[i].blocks;
  for (u32 i = 0; i < set.posting_count; ++i) units += set.postings[i].rows.count / 256;
  return units;
}

void match_singly(const Set& set, const Events& events, size_t from, size_t to, i64* ends, Result& out, Watch& watch) {
  struct Own : Result {
    ~Own() { release(*this); }
  } one;
  const size_t units = work_of(set);
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
    note_work(watch, units + one.size / 4);
  }
}

// A first small chunk tells how much an event logs, so that dense workloads do not fill the memory.
void match_many(const Set& set, const Events& events, size_t from, size_t to, size_t all, i64* ends, Result& out,
                Watch& watch) {
  if (to - from < SINGLY) return match_singly(set, events, from, to, ends, out, watch);
  size_t most = (size_t(8) << 20) / (size_t(events.attributes) * 8 + 64);
  most = most < 64 ? 64 : most > CHUNK ? CHUNK : most;
  Log log;
  for (size_t at = from, size = to - from > 256 ? 128 : to - from; at < to;) {
    if (size > to - at) size = to - at;
    match_chunk(set, events, at, size, log, watch);
    log.deal(size, double(all) / double(at + size - from), ends + at, out, watch);
    at += size;
    size = LOG_BYTES / (log.bytes() / size + 64);
    size = size < 64 ? 64 : size > most ? most : size;
  }
}

}  // namespace

extern const Kernels HITBOX_KERNELS;
const Kernels HITBOX_KERNELS = {HITBOX_NAME, match_one, match_many};

}  // namespace hitbox
