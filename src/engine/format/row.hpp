// The row of a box in a bitmap or dense segment: all its bounds, each split into an 8-bit prefix and a suffix. The prefixes
// nearly always decide whether an event is inside; the suffix is read only if the prefixes are equal.
//
//   | attributes | prefixes of low bounds | prefixes of high bounds | suffixes: low 0, high 0, low 1, high 1, ... |
//
// Attributes are one bit each. Segments with more than 64 attributes store their count and then each one in 16 bits.
// A suffix is the lower 14 bits of a quantized key (bitmap.hpp), or the whole key if the segment is `keyed`. A box with
// more constraints than rows have room for stores an offset instead of bounds: the position of its full row in the
// array `more`, in 32-bit words.
#pragma once

#include "format/dense.hpp"

namespace hitbox {

constexpr u32 MAX_MASKED_ATTRIBUTES = 64;  // above this, rows list attributes
constexpr u32 SUFFIX_BITS = 14;            // bits of a quantized key below the prefix

struct Row {
  const u8 *head, *lows, *highs, *suffix;
  u32 size;
};

static inline u32 row_head_bytes(u32 attributes, u32 room) {
  return attributes <= MAX_MASKED_ATTRIBUTES ? (attributes + 7) / 8 : 2 + 2 * room;
}

static inline u32 row_bytes_for(u32 attributes, u32 room, bool keyed) {
  return row_head_bytes(attributes, room) + 2 * room + (keyed ? 16 * room : (2 * SUFFIX_BITS * room + 7) / 8);
}

// The layout of a segment's rows. It is a copy, so compilers know that no store changes it.
struct RowShape {
  u32 attributes, room, bytes;
  bool masked;
  u64 mask;  // attribute bits in the first 8 bytes of a row
  const u8* more;
};

template <class Segment>
static inline RowShape shape_of(const Segment& map) {
  bool masked = map.attributes <= MAX_MASKED_ATTRIBUTES;
  u64 mask = masked ? ~0ull >> (64 - 8 * row_head_bytes(map.attributes, 0)) : 0;
  return {map.attributes, map.room, map.row_bytes, masked, mask, map.more};
}

static inline u64 row_mask(const RowShape& shape, const u8* head) {
  u64 bits;
  std::memcpy(&bits, head, 8);
  return bits & shape.mask;
}

static inline u16 two_bytes(const u8* at) {
  u16 value;
  std::memcpy(&value, at, 2);
  return value;
}

static inline u32 row_attribute(const Row& row, u32 i) { return two_bytes(row.head + 2 + 2 * i); }

template <class Segment>
static inline const u8* row_at(const Segment& map, size_t position) {
  assert(position <= positions_of(map));  // equal: the end of all rows
  return map.rows + position * map.row_bytes;
}

static inline Row open_row(const RowShape& shape, const u8* at) {
  u32 size = shape.masked ? u32(__builtin_popcountll(row_mask(shape, at))) : two_bytes(at), room = shape.room;
  assert(size <= shape.attributes);
  if (size > room) {
    u32 offset;
    std::memcpy(&offset, at + row_head_bytes(shape.attributes, 0), 4);
    at = shape.more + size_t(offset) * 4;
    room = size;
  }
  const u8* lows = at + row_head_bytes(shape.attributes, room);
  return {at, lows, lows + room, lows + 2 * room, size};
}

// The quantized low or high bound of a box's i-th constraint, in segments that are not `keyed`.
static inline u32 row_qkey(const Row& row, u32 i, bool upper) {
  u32 word, first = 2 * SUFFIX_BITS * i;
  std::memcpy(&word, row.suffix + first / 8, 4);  // both suffixes, 28 bits; those of odd constraints start at bit 4
  u32 suffix = word >> (first % 8 + (upper ? SUFFIX_BITS : 0)) & ((1u << SUFFIX_BITS) - 1);
  return u32((upper ? row.highs : row.lows)[i]) << SUFFIX_BITS | suffix;
}

// The key of the low or high bound of a box's i-th constraint, which is on this attribute.
template <class Segment>
static inline i64 row_key(const Segment& map, const Row& row, u32 i, u32 attribute, bool upper) {
  if (map.keyed) {
    i64 key;
    std::memcpy(&key, row.suffix + (2 * i + upper) * 8, 8);
    return key;
  }
  u32 qkey = row_qkey(row, i, upper), cell = cell_at(qkey), code = qkey & 0xFFFF;
  size_t at = size_t(attribute) * CELLS + cell;
  u64 start = u64(map.starts[at]), bits = map.shift[at];
  if (bits <= 16) return i64(start + (code >> (16 - bits)));
  if (!upper) return i64(start + (u64(code) << (bits - 16)));
  bool last = cell == CELLS - 1 || map.starts[at + 1] == map.starts[at];
  u64 width = (last ? u64(HIGHEST) : u64(map.starts[at + 1]) - 1) - start, whole = (u64(code + 1) << (bits - 16)) - 1;
  return i64(start + (whole < width ? whole : width));
}

// Calls callback(i, attribute) for each constraint of a box, in ascending order of attributes.
template <class Callback>
static inline void each_constraint(const RowShape& shape, const Row& row, Callback callback) {
  u32 i = 0;
  if (!shape.masked)
    for (; i < row.size; ++i) callback(i, row_attribute(row, i));
  else
    for (u64 bits = row_mask(shape, row.head); bits; bits &= bits - 1) callback(i++, u32(__builtin_ctzll(bits)));
}

}  // namespace hitbox
