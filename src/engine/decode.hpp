// Boxes back from a segment, exactly as they went in: for compaction and for whoever asks.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "bitmap.hpp"
#include "rows.hpp"

namespace hitbox {

struct Decoded {
  std::vector<i64> offsets{0};
  std::vector<int> attribute;
  std::vector<i64> low, high;
};

inline i64 key_of_entry(const Bitmap& map, u32 attribute, size_t at) {
  if (map.exact) return map.exact[at];
  u32 entry = map.entries[at], cell = entry >> 26, code = entry >> 10 & 0xFFFF;
  size_t where = size_t(attribute) * CELLS + cell;
  u64 start = u64(map.starts[where]), shift = map.shift[where];
  if (!(entry & UPPER)) return i64(start + (u64(code) << shift));
  bool last = cell == CELLS - 1 || map.starts[where + 1] == map.starts[where];
  u64 width = (last ? u64(HIGHEST) : u64(map.starts[where + 1]) - 1) - start;
  return i64(start + std::min(width, (u64(code + 1) << shift) - 1));
}

// Calls take(attribute, entry) for all box ends of a block, attributes ascending.
template <class Take>
inline void each_end(const Bitmap& map, u32 block, Take take) {
  const Directory* directory = directory_of(map, block / LANES);
  for (u32 a = 0; a < map.attributes; ++a)
    for (u32 cell = 0; cell < (directory[a].group ? CELLS : 1); ++cell) {
      u32 from, to;
      list_of(map, directory + a, cell, block % LANES, from, to);
      for (u32 at = from; at < to; ++at) take(a, at);
    }
}

// Reads each block that holds one of the positions once: ten microseconds a block.
inline Decoded decode(const Bitmap& map, const u32* positions, size_t count) {
  Decoded out;
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t(0));
  std::sort(order.begin(), order.end(), [&](size_t x, size_t y) { return positions[x] < positions[y]; });
  out.offsets.assign(count + 1, 0);
  std::vector<i64> next(count);
  for (bool counting : {true, false}) {
    for (size_t from = 0, to; from < count; from = to) {
      u32 block = positions[order[from]] / STRIDE;
      std::vector<i64> asked(STRIDE, -1);
      for (to = from; to < count && positions[order[to]] / STRIDE == block; ++to)
        asked[positions[order[to]] % STRIDE] = i64(order[to]);
      each_end(map, block, [&](u32 a, u32 at) {
        i64 row = asked[map.entries[at] & (STRIDE - 1)];
        if (row < 0) return;
        bool upper = map.entries[at] & UPPER;
        if (counting) {
          out.offsets[size_t(row) + 1] += upper;
          return;
        }
        // Lower and upper end of one attribute come in any order; the second moves on.
        size_t where = size_t(next[size_t(row)]);
        bool second = out.attribute[where] == int(a);
        out.attribute[where] = int(a);
        (upper ? out.high : out.low)[where] = key_of_entry(map, a, at);
        next[size_t(row)] += second;
      });
    }
    if (!counting) break;
    std::partial_sum(out.offsets.begin(), out.offsets.end(), out.offsets.begin());
    std::copy(out.offsets.begin(), out.offsets.end() - 1, next.begin());
    out.attribute.assign(size_t(out.offsets[count]), -1);
    out.low.resize(out.attribute.size());
    out.high.resize(out.attribute.size());
  }
  return out;
}

inline Decoded decode(const Rows& rows, const u32* positions, size_t count) {
  Decoded out;
  for (size_t i = 0; i < count; ++i) {
    const u64* row = rows.words + rows.start[positions[i]];
    u32 size = row_size(row);
    const u64* bounds = row_bounds(row, size);
    for (u32 at = 0; at < size; ++at) {
      out.attribute.push_back(int(row_attribute(row, at)));
      out.low.push_back(i64(bounds[2 * at]));
      out.high.push_back(i64(bounds[2 * at + 1]));
    }
    out.offsets.push_back(i64(out.low.size()));
  }
  return out;
}

}  // namespace hitbox
