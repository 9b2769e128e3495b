// The door to the kernels that are compiled once an instruction set, and the choice among them at run time.
#pragma once

#include "format/bitmap.hpp"
#include "base/common.hpp"
#include "format/postings.hpp"
#include "format/rows.hpp"
#include "base/interrupt.hpp"

namespace hitbox {

// Everything that one call to match looks at.
struct SegmentSet {
  const Bitmap* bitmaps;
  u32 bitmap_count;
  const Postings* postings;
  u32 posting_count;
  Rows tail;
};

struct Kernels {
  const char* name;
  // Matches of one event, most urgent first.
  void (*match_event)(const SegmentSet&, const Events&, size_t event, const MatchLimits&, Result&);
  // Matches of events [from, to): `ends[e]` is where event e's matches end in `out.numbers` (no levels kept), which
  // gets room for `all` events.
  void (*match_batch)(const SegmentSet&, const Events&, size_t from, size_t to, size_t all, i64* ends, Result& out, InterruptCheck&);
};

extern const Kernels kernels_baseline;
#if HITBOX_X86
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx512vbmi;
#endif

}  // namespace hitbox
