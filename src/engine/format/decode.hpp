// Decodes boxes from a segment, exactly as they were inserted: for compaction and for queries.
#pragma once

#include <vector>

#include "base/interrupt.hpp"
#include "format/postings.hpp"
#include "format/row.hpp"
#include "format/rows.hpp"

namespace hitbox {

struct Decoded {
  std::vector<i64> offsets{0};
  std::vector<int> attribute;
  std::vector<i64> low, high;
};

template <class Segment>  // Bitmap or Dense
Decoded decode(const Segment& map, const u32* positions, size_t count, InterruptCheck& interrupt) {
  Decoded out;
  const RowShape shape = shape_of(map);
  for (size_t at = 0; at < count; ++at) {
    Row row = open_row(shape, row_at(map, positions[at]));
    report_work(interrupt, 4 + row.size);
    each_constraint(shape, row, [&](u32 i, u32 a) {
      out.attribute.push_back(int(a));
      i64 low = row_key(map, row, i, a, false), high = row_key(map, row, i, a, true);
      out.low.push_back(low);
      out.high.push_back(high < low ? low : high);  // high < low only in a forged file; builders rely on the order
    });
    out.offsets.push_back(i64(out.low.size()));
  }
  return out;
}

inline Decoded decode(const Rows& rows, const u32* positions, size_t count, InterruptCheck& interrupt) {
  Decoded out;
  for (size_t i = 0; i < count; ++i) {
    const u64* row = rows.words + rows.start[positions[i]];
    u32 size = row_size(row);
    report_work(interrupt, 4 + size);
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

inline Decoded decode(const Postings& postings, const u32* positions, size_t count, InterruptCheck& interrupt) {
  return decode(postings.rows, positions, count, interrupt);
}

}  // namespace hitbox
