// The least that a matcher with one precomputed bitmap per attribute must do for an event: AND one bitmap per attribute,
// and write the numbers of the bits that are left. A yardstick for benchmarks. Nothing is matched: the bitmaps are given.
// Compiled once per instruction set; HITBOX_FLOOR is the name of the resulting function.
#include "floor.hpp"

#include "match/lines.hpp"

namespace hitbox {
namespace {

// All three were measured: 8 KB keep the run in the L1 cache, and several bitmaps at a time save reading and writing it.
constexpr size_t RUN = 1024;       // words that are ANDed before the next bitmaps' words are
constexpr u32 TOGETHER = 4;        // bitmaps at a time
constexpr size_t RUN_AHEAD = 128;  // words to prefetch ahead

// ANDs COUNT bitmaps' words [from, from + words) into `run`, or writes them there if they are the first.
template <u32 COUNT>
static inline void intersect_run(const u64* const* bitmaps, size_t from, size_t words, bool first, u64* run) {
  for (size_t w = 0; w < words; w += WORDS) {
    Line line = load(bitmaps[0] + from + w);
    prefetch(bitmaps[0] + from + w + RUN_AHEAD);
    for (u32 i = 1; i < COUNT; ++i) {
      line = line & load(bitmaps[i] + from + w);
      prefetch(bitmaps[i] + from + w + RUN_AHEAD);
    }
    store(run + w, first ? line : line & load(run + w));
  }
}

// Writes base + position for each bit that is set and returns the end. May overwrite 15 values after it.
static inline i32* list_run(const u64* run, size_t words, u32 base, i32* out) {
  for (size_t w = 0; w < words; w += WORDS) {
    const u64* line = run + w;
    const u32 first = base + u32(w) * 64;
#if defined(__AVX512F__)
    const __m512i positions = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    if (count(line) > 64) {  // 16 positions at a time, also where none is set
      for (u32 at = 0; at < BLOCK; at += 16) {
        __mmask16 set = __mmask16(line[at / 64] >> (at & 63));
        __m512i all = _mm512_add_epi32(positions, _mm512_set1_epi32(int(first + at)));
        _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(set, all));
        out += __builtin_popcount(set);
      }
      continue;
    }
#endif
    out += list_bits<WORDS>(line, first, reinterpret_cast<u32*>(out));
  }
  return out;
}

}  // namespace

// The AND of an event's bitmaps. Adds the numbers of its bits to `out`, if there is one, and returns how many bits are
// set. The event is one of `events`, for which memory is reserved.
size_t HITBOX_FLOOR(const u64* const* bitmaps, u32 bitmap_count, size_t words, size_t event, size_t events,
                    Result* out) {
  alignas(64) u64 run[RUN];
  size_t found = 0;
  for (size_t from = 0; from < words; from += RUN) {
    const size_t some = words - from < RUN ? words - from : RUN;
    u32 i = 0;
    for (; i + TOGETHER <= bitmap_count; i += TOGETHER) intersect_run<TOGETHER>(bitmaps + i, from, some, !i, run);
    for (; i < bitmap_count; ++i) intersect_run<1>(bitmaps + i, from, some, !i, run);
    size_t set = 0;
    for (size_t w = 0; w < some; w += WORDS) set += count(run + w);
    found += set;
    if (!out || !set) continue;
    if (out->size + set > out->capacity) {
      const double growth = double(events * words) / double(event * words + from + some);  // as found so far
      out->capacity = size_t(double(out->size + set) * growth * 1.25);
      reallocate(out->numbers, out->capacity);
    }
    list_run(run, some, u32(from) * 64, out->numbers + out->size);
    out->size += set;
  }
  return found;
}

}  // namespace hitbox
