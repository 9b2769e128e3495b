// Boxes as rows of exact bounds: scanned linearly in the tail, tested after a filter in postings segments.
//
//   words   | k a a a | a a . . | low high | low high | ...      k and the attributes are 16 bits each
//             ^ start[i]                                          k constraints: (k + 4) / 4 + 2 k words
//
// A row takes about 18 bytes per constraint. It is read front to back, up to the first constraint that fails.
#pragma once

#include "base/common.hpp"

namespace hitbox {

static inline u32 row_size(const u64* row) {
  u16 size;
  std::memcpy(&size, row, 2);
  return size;
}

static inline u32 row_attribute(const u64* row, u32 at) {
  u16 attribute;
  std::memcpy(&attribute, reinterpret_cast<const char*>(row) + 2 * (at + 1), 2);
  return attribute;
}

static inline const u64* row_bounds(const u64* row, u32 size) { return row + (size + 4) / 4; }

static inline size_t row_words(u32 size) { return (size + 4) / 4 + 2 * size_t(size); }

// Whether the row's box overlaps the event [low, high].
static inline bool row_meets(const u64* row, const i64* low, const i64* high) {
  u32 size = row_size(row);
  const u64* bounds = row_bounds(row, size);
  for (u32 at = 0; at < size; ++at) {
    u32 a = row_attribute(row, at);
    if (high[a] < i64(bounds[2 * at]) || low[a] > i64(bounds[2 * at + 1])) return false;
  }
  return true;
}

static inline void write_row(u64* row, const int* attribute, const i64* low, const i64* high, u32 size) {
  u64* bounds = row + (size + 4) / 4;
  std::memset(row, 0, 8 * size_t(bounds - row));
  u16 head = u16(size);
  std::memcpy(row, &head, 2);
  for (u32 at = 0; at < size; ++at) {
    u16 a = u16(attribute[at]);
    std::memcpy(reinterpret_cast<char*>(row) + 2 * (at + 1), &a, 2);
    bounds[2 * at] = u64(low[at]);
    bounds[2 * at + 1] = u64(high[at]);
  }
}

// A view of many rows.
struct Rows {
  u32 count;
  const u64* words;
  const u32* start;
  const u32* numbers;
  const u8* levels;
  const u64* alive;
};

}  // namespace hitbox
