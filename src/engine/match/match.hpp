// The interface of the matching kernels, which are compiled once per instruction set (match.cpp).
#pragma once

#include "base/common.hpp"
#include "base/interrupt.hpp"
#include "format/bitmap.hpp"
#include "format/dense.hpp"
#include "format/postings.hpp"
#include "format/rows.hpp"

namespace hitbox {

// The segments and the tail that a call matches against.
struct SegmentSet {
  const Bitmap* bitmaps;
  u32 bitmap_count;
  const Postings* postings;
  u32 posting_count;
  Rows tail;
  const Dense* dense = nullptr;
  u32 dense_count = 0;
};

// A rough upper bound of the work per event, in units of report_work.
static inline size_t work_of(const SegmentSet& set) {
  size_t units = 64 + set.tail.count / 4;
  for (u32 i = 0; i < set.bitmap_count; ++i) units += set.bitmaps[i].blocks;
  for (u32 i = 0; i < set.dense_count; ++i) units += set.dense[i].members / 64;
  for (u32 i = 0; i < set.posting_count; ++i) units += set.postings[i].rows.count / 256;
  return units;
}

struct Kernels {
  const char* name;
  // Matches one event; higher levels first.
  void (*match_event)(const SegmentSet&, const Events&, size_t event, const MatchLimits&, Result&);
  // Matches events [from, to). `ends[e]` is the end of event e's matches in `out.numbers`; levels are not stored. Reserves
  // memory for the expected matches of `all` events.
  void (*match_batch)(const SegmentSet&, const Events&, size_t from, size_t to, size_t all, i64* ends, Result& out,
                      InterruptCheck&);
};

extern const Kernels kernels_baseline;
#if HITBOX_X86
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx512vbmi;
#endif

}  // namespace hitbox
