// Matching one event against a postings segment and against plain rows.
#pragma once

#include "lines.hpp"
#include "postings.hpp"

namespace hitbox {
namespace {

struct Range {
  u32 from, to;
};

// Memory that the look-ups of many events share.
struct Lookup {
  Scratch<u32> low, high;    // coarse codes of the event
  Scratch<u64> hashes;
  Scratch<u32> asked;        // attributes behind the hashes
  Scratch<Range> ranges;
  Scratch<u32> candidates;

  // The postings whose key the event meets.
  void find_ranges(const Postings& part, const i64* event_low, const i64* event_high) {
    ranges.size = hashes.size = asked.size = 0;
    for (u32 a = 0; a < part.attributes; ++a) {
      u32 begin = part.key_begin[a], open = part.key_begin[a + 1] - 1;
      if (event_high[a] == MISSING || part.key_start[begin] == part.key_start[open + 1]) continue;
      if (event_low[a] == event_high[a]) {
        if (open > begin) {
          u64 hash = hash_of(a, event_low[a]);
          fetch(part.slots + (hash & part.slot_mask));
          hashes.push(hash);
        }
      } else {
        u32 first = first_key(part, begin, open, event_low[a], false);
        push(part, first, first_key(part, begin, open, event_high[a], true));
      }
      push(part, open, open + 1);
    }
    for (size_t i = 0; i < hashes.size; ++i) {
      u32 key = slot_key(part, hashes[i]);
      if (key) fetch(part.key_start + key - 1);
      asked.push(key);
    }
    for (size_t i = 0; i < asked.size; ++i)
      if (asked[i]) push(part, asked[i] - 1, asked[i]);
    u32 rest = part.key_begin[part.attributes];
    push(part, rest, rest + 1);
  }

  void push(const Postings& part, u32 key, u32 end) {
    Range range{part.key_start[key], part.key_start[end]};
    if (range.from >= range.to) return;
    fetch(part.filter + range.from);
    ranges.push(range);
  }

  // First of the sorted keys [begin, end) that is not below `value`, or (after) above it.
  static u32 first_key(const Postings& part, u32 begin, u32 end, i64 value, bool after) {
    while (begin < end) {
      u32 middle = begin + (end - begin) / 2;
      bool before = after ? part.key_value[middle] <= value : part.key_value[middle] < value;
      if (before) begin = middle + 1;
      else end = middle;
    }
    return begin;
  }

  static u32 slot_key(const Postings& part, u64 hash) {
    for (u64 at = hash & part.slot_mask;; at = (at + 1) & part.slot_mask) {
      u64 slot = part.slots[at];
      if (!slot || fingerprint(slot) == fingerprint(hash)) return u32(slot);
    }
  }

  void code_event(const Postings& part, const i64* event_low, const i64* event_high) {
    low.need(part.attributes);
    high.need(part.attributes);
    for (u32 a = 0; a < part.attributes; ++a) {
      low[a] = coarse(part.code_base[a], part.code_last[a], part.code_shift[a], event_low[a]);
      high[a] = event_low[a] == event_high[a]
                    ? low[a]
                    : coarse(part.code_base[a], part.code_last[a], part.code_shift[a], event_high[a]);
    }
  }

  void filter(const Postings& part) {
    candidates.size = 0;
    for (size_t r = 0; r < ranges.size; ++r) {
      candidates.need(candidates.size + (ranges[r].to - ranges[r].from));
      for (u32 i = ranges[r].from; i < ranges[r].to; ++i) {
        u64 word = part.filter[i];
        u32 a = u32(word >> 48);
        candidates.data[candidates.size] = i;
        candidates.size += (high.data[a] >= u32(word >> 24 & CODE_TOP)) & (low.data[a] <= u32(word & CODE_TOP));
      }
    }
  }

  template <class Emit>
  void match(const Postings& part, const i64* event_low, const i64* event_high, Emit emit) {
    find_ranges(part, event_low, event_high);
    if (!ranges.size) return;
    code_event(part, event_low, event_high);
    filter(part);
    constexpr size_t AHEAD = 8;
    for (size_t i = 0; i < candidates.size; ++i) {
      if (i + 2 * AHEAD < candidates.size) fetch(part.rows.start + candidates[i + 2 * AHEAD]);
      if (i + AHEAD < candidates.size) fetch(part.rows.words + part.rows.start[candidates[i + AHEAD]]);
      u32 at = candidates[i];
      if (row_meets(part.rows.words + part.rows.start[at], event_low, event_high) && bit(part.rows.alive, at))
        emit(part.rows.numbers[at], part.rows.levels[at]);
    }
  }
};

template <class Emit>
static inline void match_rows(const Rows& rows, const i64* low, const i64* high, Emit emit) {
  for (u32 i = 0; i < rows.count; ++i)
    if (bit(rows.alive, i) && row_meets(rows.words + rows.start[i], low, high)) emit(rows.numbers[i], rows.levels[i]);
}

}  // namespace
}  // namespace hitbox
