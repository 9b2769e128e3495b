// Prefetching: how far ahead builders and kernels ask for memory, and the two instructions for it.
#pragma once

#include "base/common.hpp"

namespace hitbox {

// All distances were measured. A longer one hides more latency until the caches or the processor's queues overflow.
struct PrefetchDistance {
  // One event over a bitmap segment (pipeline.hpp), in tiles.
  static constexpr u32 DIRECTORY = 6;   // A tile's directory is prefetched this many tiles before its lines are read.
  static constexpr u32 LINES = 3;       // A tile's lines are prefetched this many tiles before they are ANDed.
  static constexpr u32 STAGE = 6;       // A candidate tile waits for this many others before its lists are located,
                                        // and for as many again before they are read.
  static constexpr u32 FINAL_ROWS = 2;  // A tile waits for this many others for the rows of undecided boxes.
  static constexpr u32 NUMBERS = 4;     // So many cache lines of box numbers are prefetched at a time.

  // A batch of events over a bitmap segment (batch.hpp).
  static constexpr u32 PLANS = 4;              // An event's plan is prefetched this many visits ahead.
  static constexpr u32 ROW_QUEUE = 48;         // So many boxes stay queued while their rows arrive.
  static constexpr u32 MIN_TILE_VISITS = 128;  // From this many visits on, the whole next tile is prefetched.

  static constexpr u32 INTERVAL_LINES = 10;  // At most so many lines per block and attribute are prefetched.
  static constexpr u32 POSTING_ROWS = 8;     // A candidate's row is prefetched this many candidates ahead.

  // Builders, in boxes.
  static constexpr u32 GATHER = 16;         // A value at a random place is prefetched this many values ahead.
  static constexpr u32 GATHER_OUTER = 64;   // The same into the outer cache.
  static constexpr u32 BUILD_BOXES = 8;     // A box's constraints are prefetched this many boxes ahead.
  static constexpr u32 CLUSTER_BOXES = 12;  // The same while a cluster is sorted.
};

// Prefetches a cache line. The empty asm keeps compilers from removing functions that do nothing else.
static inline void prefetch(const void* at) {
  __builtin_prefetch(at);
  asm volatile("");
}

// The same into the outer cache only, where more requests can be in flight.
static inline void prefetch_outer(const void* at) {
  __builtin_prefetch(at, 0, 2);
  asm volatile("");
}

}  // namespace hitbox
