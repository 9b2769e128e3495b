// Matches one event against a postings segment, and against the rows of the unindexed tail.
#pragma once

#include "format/postings.hpp"
#include "match/lines.hpp"

namespace hitbox {
namespace {

struct Range {
  u32 from, to;
};

// A value that is looked up: its hash, and key + 1 of its first candidate.
struct Probe {
  u64 hash;
  u32 attribute, key;
};

// Lookups of many events share their buffers.
struct PostingsLookup {
  Scratch<u32> low, high;  // coarse codes of the event
  Scratch<Probe> probes;
  Scratch<Range> ranges;
  Scratch<u32> candidates;
  size_t scanned = 0;  // postings scanned so far

  // Finds the postings whose key matches the event. In three passes, so that cache misses of attributes overlap.
  void find_ranges(const Postings& postings, const i64* event_low, const i64* event_high) {
    ranges.size = probes.size = 0;
    for (u32 a = 0; a < postings.attributes; ++a) {
      u32 begin = postings.key_begin[a], open = postings.key_begin[a + 1] - 1;
      if (event_high[a] == MISSING || postings.key_start[begin] == postings.key_start[open + 1]) continue;
      if (event_low[a] == event_high[a]) {
        if (open > begin) {
          u64 hash = hash_of(postings.seed, a, event_low[a]);
          prefetch(postings.slots + (hash & postings.slot_mask));
          probes.push({hash, a, 0});
        }
      } else {
        u32 first = first_key(postings, begin, open, event_low[a], false);
        push(postings, first, first_key(postings, begin, open, event_high[a], true));
      }
      push(postings, open, open + 1);
    }
    size_t candidate_count = 0;
    for (size_t i = 0; i < probes.size; ++i) {
      u32 key = candidate_key(postings, probes[i].hash);
      if (!key) continue;
      prefetch(postings.key_start + key - 1);
      prefetch(postings.key_value + key - 1);
      probes[candidate_count++] = {probes[i].hash, probes[i].attribute, key};
    }
    for (size_t i = 0; i < candidate_count; ++i) {
      const Probe& one = probes[i];
      i64 value = event_low[one.attribute];
      u32 key = is_key(postings, one.key, one.attribute, value) ? one.key : exact_key(postings, one, value);
      if (key) push(postings, key - 1, key);
    }
    u32 rest = postings.key_begin[postings.attributes];
    push(postings, rest, rest + 1);
  }

  void push(const Postings& postings, u32 key, u32 end) {
    Range range{postings.key_start[key], postings.key_start[end]};
    if (range.from >= range.to) return;
    prefetch(postings.filter + range.from);
    ranges.push(range);
  }

  // The first of the sorted keys [begin, end) that is not below `value`, or if `after`, that is above it.
  static u32 first_key(const Postings& postings, u32 begin, u32 end, i64 value, bool after) {
    while (begin < end) {
      u32 middle = begin + (end - begin) / 2;
      bool before = after ? postings.key_value[middle] <= value : postings.key_value[middle] < value;
      if (before) begin = middle + 1;
      else end = middle;
    }
    return begin;
  }

  // Key + 1 of the first slot with the hash's fingerprint; 0 if there is none.
  static u32 candidate_key(const Postings& postings, u64 hash) {
    for (u64 at = hash & postings.slot_mask;; at = (at + 1) & postings.slot_mask) {
      u64 slot = postings.slots[at];
      if (!slot || fingerprint(slot) == fingerprint(hash)) return u32(slot);
    }
  }

  static bool is_key(const Postings& postings, u32 key, u32 attribute, i64 value) {
    return postings.key_value[key - 1] == value && key > postings.key_begin[attribute] &&
           key < postings.key_begin[attribute + 1];
  }

  // Key + 1 of the value if several keys have its fingerprint; 0 if none is the value's.
  static u32 exact_key(const Postings& postings, const Probe& one, i64 value) {
    for (u64 at = one.hash & postings.slot_mask; postings.slots[at]; at = (at + 1) & postings.slot_mask) {
      u32 key = u32(postings.slots[at]);
      if (key && is_key(postings, key, one.attribute, value)) return key;
    }
    return 0;
  }

  void code_event(const Postings& postings, const i64* event_low, const i64* event_high) {
    low.need(postings.attributes);
    high.need(postings.attributes);
    for (u32 a = 0; a < postings.attributes; ++a) {
      low[a] = coarse(postings.code_base[a], postings.code_last[a], postings.code_shift[a], event_low[a]);
      high[a] = event_low[a] == event_high[a]
                    ? low[a]
                    : coarse(postings.code_base[a], postings.code_last[a], postings.code_shift[a], event_high[a]);
    }
  }

  void filter(const Postings& postings) {
    candidates.size = 0;
    for (size_t r = 0; r < ranges.size; ++r) {
      candidates.need(candidates.size + (ranges[r].to - ranges[r].from));
      scanned += ranges[r].to - ranges[r].from;
      for (u32 i = ranges[r].from; i < ranges[r].to; ++i) {
        u64 word = postings.filter[i];
        u32 a = u32(word >> 48);
        candidates.data[candidates.size] = i;
        candidates.size += (high.data[a] >= u32(word >> 24 & CODE_TOP)) & (low.data[a] <= u32(word & CODE_TOP));
      }
    }
  }

  template <class Emit>
  void match(const Postings& postings, const i64* event_low, const i64* event_high, Emit emit) {
    find_ranges(postings, event_low, event_high);
    if (!ranges.size) return;
    code_event(postings, event_low, event_high);
    filter(postings);
    for (size_t i = 0; i < candidates.size; ++i) {
      if (i + 2 * PrefetchDistance::POSTING_ROWS < candidates.size)
        prefetch(postings.rows.start + candidates[i + 2 * PrefetchDistance::POSTING_ROWS]);
      if (i + PrefetchDistance::POSTING_ROWS < candidates.size)
        prefetch(postings.rows.words + postings.rows.start[candidates[i + PrefetchDistance::POSTING_ROWS]]);
      u32 at = candidates[i];
      if (row_meets(postings.rows.words + postings.rows.start[at], event_low, event_high) &&
          bit(postings.rows.alive, at))
        emit(postings.rows.numbers[at], postings.rows.levels[at]);
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
