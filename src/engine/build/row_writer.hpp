// Writes the rows of boxes (format/row.hpp) into the arrays of a bitmap or dense segment.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "build/build.hpp"
#include "format/row.hpp"

namespace hitbox {

constexpr const char* TOO_MANY_CONSTRAINTS =
    "too many constraints for one segment, more than 2^31: use several indexes";

// The quantized bounds of a constraint.
struct Ends {
  u32 low, high;
};

// `Arrays` has the sizes `room`, `keyed` and `row_bytes` and the arrays `rows` and `more`.
template <class Arrays>
class RowWriter {
 public:
  std::vector<Ends> ends;  // of the box that is written next

  // Chooses the room of a row so that rows and overflow rows together are smallest.
  RowWriter(const Boxes& boxes, u32 attributes, const Grid& grid, const std::vector<Cells>& cells, Arrays& out)
      : boxes_(boxes), attributes_(attributes), cells_(cells), out_(out) {
    std::vector<size_t> sizes;
    for (size_t i = 0; i < boxes.count; ++i) {
      if (boxes.size(i) >= sizes.size()) sizes.resize(boxes.size(i) + 1);
      ++sizes[boxes.size(i)];
    }
    out.keyed = grid.lossy;
    size_t overflow_bytes = 0, least = SIZE_MAX;
    for (u32 room = std::max<u32>(1, u32(sizes.size()) - 1); room; --room) {
      size_t bytes = boxes.count * row_bytes(room) + overflow_bytes;
      if (bytes < least) {
        least = bytes;
        out.room = room;
      }
      if (room < sizes.size()) overflow_bytes += sizes[room] * (row_bytes(room) + 3);
    }
    out.row_bytes = row_bytes(out.room);
    ends.resize(sizes.size());
  }

  void allocate(size_t positions) {
    out_.rows.allocate(positions * out_.row_bytes + BYTE_PADDING);
    std::memset(out_.rows.data() + out_.rows.size - BYTE_PADDING, 0, BYTE_PADDING);
  }

  // Writes the row of a box whose `ends` are known. The memory of the row is zero.
  void write(size_t position, u32 box) {
    u8* row = out_.rows.data() + position * out_.row_bytes;
    u32 size = boxes_.size(box), head = row_head_bytes(attributes_, 0);
    if (size <= out_.room) return write_row(row, out_.room, box);
    if (overflow_.size() / 4 > UINT32_MAX) throw std::length_error(TOO_MANY_CONSTRAINTS);
    u32 offset = u32(overflow_.size() / 4);
    overflow_.resize(overflow_.size() + (row_bytes(size) + 3) / 4 * 4);
    scratch_.assign(row_bytes(size) + 8, 0);
    write_row(scratch_.data(), size, box);
    std::memcpy(overflow_.data() + size_t(offset) * 4, scratch_.data(), row_bytes(size));
    std::memcpy(row, scratch_.data(), head);
    std::memcpy(row + head, &offset, 4);
  }

  void store_overflow_rows() {
    out_.more.allocate(overflow_.size() + BYTE_PADDING);
    std::memset(out_.more.data() + overflow_.size(), 0, BYTE_PADDING);
    if (!overflow_.empty()) std::memcpy(out_.more.data(), overflow_.data(), overflow_.size());
  }

 private:
  u32 row_bytes(u32 room) const { return row_bytes_for(attributes_, room, out_.keyed); }

  void write_row(u8* row, u32 room, u32 box) {
    u32 size = boxes_.size(box);
    size_t from = size_t(boxes_.offsets[box]);
    u8* lows = row + row_head_bytes(attributes_, room);
    if (attributes_ <= MAX_MASKED_ATTRIBUTES) {
      u64 mask = 0;
      for (u32 i = 0; i < size; ++i) mask |= 1ull << cells_[from + i].attribute;
      std::memcpy(row, &mask, row_head_bytes(attributes_, 0));
    } else {
      u16 count = u16(size);
      std::memcpy(row, &count, 2);
      for (u32 i = 0; i < size; ++i) std::memcpy(row + 2 + 2 * i, &cells_[from + i].attribute, 2);
    }
    for (u32 i = 0; i < size; ++i) {
      lows[i] = u8(ends[i].low >> SUFFIX_BITS);
      lows[room + i] = u8(ends[i].high >> SUFFIX_BITS);
    }
    u8* suffixes = lows + 2 * room;
    for (u32 i = 0; i < size; ++i) {
      if (out_.keyed) {
        std::memcpy(suffixes + 16 * i, boxes_.low + from + i, 8);
        std::memcpy(suffixes + 16 * i + 8, boxes_.high + from + i, 8);
        continue;
      }
      constexpr u32 bits = (1u << SUFFIX_BITS) - 1;
      u64 two = (ends[i].low & bits) | u64(ends[i].high & bits)
                                           << SUFFIX_BITS;  // 28 bits: odd ones start in the middle of a byte
      if (i % 2) two = two << 4 | (suffixes[28 * i / 8] & 15);
      std::memcpy(suffixes + 28 * i / 8, &two, 4);
    }
  }

  const Boxes& boxes_;
  const u32 attributes_;
  const std::vector<Cells>& cells_;
  Arrays& out_;
  std::vector<u8> overflow_, scratch_;  // overflow rows, and a buffer for one
};

// The bytes of a box number; 0 if the boxes have none, so that numbers follow their order.
inline u32 number_bytes_for(const Boxes& boxes) {
  if (!boxes.numbers) return 0;
  const i64 most = *std::max_element(boxes.numbers, boxes.numbers + boxes.count);
  return most >> 24 ? 4 : most >> 16 ? 3 : most >> 8 ? 2 : 1;
}

}  // namespace hitbox
