// Matching one event against a postings segment and against plain rows.
#pragma once

#include "match/lines.hpp"
#include "format/postings.hpp"

namespace hitbox {
namespace {

struct Range {
  u32 from, to;
};

// The hash of a value that is looked up, and the key + 1 that it may be.
struct Asked {
  u64 hash;
  u32 attribute, key;
};

// Memory that the look-ups of many events share.
struct Lookup {
  Scratch<u32> low, high;    // coarse codes of the event
  Scratch<Asked> asked;
  Scratch<Range> ranges;
  Scratch<u32> candidates;
  size_t scanned = 0;  // postings that were looked at

  // The postings whose key the event meets.
  void find_ranges(const Postings& part, const i64* event_low, const i64* event_high) {
    ranges.size = asked.size = 0;
    for (u32 a = 0; a < part.attributes; ++a) {
      u32 begin = part.key_begin[a], open = part.key_begin[a + 1] - 1;
      if (event_high[a] == MISSING || part.key_start[begin] == part.key_start[open + 1]) continue;
      if (event_low[a] == event_high[a]) {
        if (open > begin) {
          u64 hash = hash_of(part.seed, a, event_low[a]);
          fetch(part.slots + (hash & part.slot_mask));
          asked.push({hash, a, 0});
        }
      } else {
        u32 first = first_key(part, begin, open, event_low[a], false);
        push(part, first, first_key(part, begin, open, event_high[a], true));
      }
      push(part, open, open + 1);
    }
    size_t likely = 0;
    for (size_t i = 0; i < asked.size; ++i) {
      u32 key = likely_key(part, asked[i].hash);
      if (!key) continue;
      fetch(part.key_start + key - 1);
      fetch(part.key_value + key - 1);
      asked[likely++] = {asked[i].hash, asked[i].attribute, key};
    }
    for (size_t i = 0; i < likely; ++i) {
      const Asked& one = asked[i];
      i64 value = event_low[one.attribute];
      u32 key = is_key(part, one.key, one.attribute, value) ? one.key : exact_key(part, one, value);
      if (key) push(part, key - 1, key);
    }
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

  // The key + 1 of the first slot that has the hash's fingerprint; 0 where none has.
  static u32 likely_key(const Postings& part, u64 hash) {
    for (u64 at = hash & part.slot_mask;; at = (at + 1) & part.slot_mask) {
      u64 slot = part.slots[at];
      if (!slot || fingerprint(slot) == fingerprint(hash)) return u32(slot);
    }
  }

  static bool is_key(const Postings& part, u32 key, u32 attribute, i64 value) {
    return part.key_value[key - 1] == value && key > part.key_begin[attribute] && key < part.key_begin[attribute + 1];
  }

  // The same where several keys have the fingerprint; 0 where none of them is the value's.
  static u32 exact_key(const Postings& part, const Asked& one, i64 value) {
    for (u64 at = one.hash & part.slot_mask; part.slots[at]; at = (at + 1) & part.slot_mask) {
      u32 key = u32(part.slots[at]);
      if (key && is_key(part, key, one.attribute, value)) return key;
    }
    return 0;
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
      scanned += ranges[r].to - ranges[r].from;
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
