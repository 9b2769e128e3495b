// The floor of matching (floor.cpp), for each instruction set.
#pragma once

#include "match/match.hpp"

namespace hitbox {

using FloorEvent = size_t(const u64* const* bitmaps, u32 bitmap_count, size_t words, size_t event, size_t events,
                          Result* out);
FloorEvent floor_baseline;
#if HITBOX_X86
FloorEvent floor_avx2, floor_avx512, floor_avx512vbmi;
#endif

}  // namespace hitbox
