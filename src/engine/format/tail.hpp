// The unindexed tail: recent inserts, scanned linearly until they are sealed into a segment.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "build/build.hpp"

namespace hitbox {

class Tail {
 public:
  bool has_room(size_t boxes, size_t constraints) const {
    size_t rows = numbers_.size() + boxes;
    return rows <= numbers_.capacity() && rows <= start_.capacity() && rows <= levels_.capacity() &&
           (rows + 63) / 64 <= alive_.capacity() && words_.size() + most_words(boxes, constraints) <= words_.capacity();
  }

  // A copy with room for more boxes, so that appending them cannot fail.
  Tail with_room(size_t boxes, size_t constraints) const {
    size_t rows = numbers_.size() + boxes, words = words_.size() + most_words(boxes, constraints);
    if (words > UINT32_MAX)
      throw std::length_error("too many constraints for the tail: make the option `tail` smaller");
    Tail out;
    rows = std::max(rows, 2 * numbers_.size());
    copy(words_, out.words_, std::max(words, 2 * words_.size()));
    copy(alive_, out.alive_, (rows + 63) / 64);
    copy(start_, out.start_, rows);
    copy(numbers_, out.numbers_, rows);
    copy(levels_, out.levels_, rows);
    out.live_ = live_;
    return out;
  }

  // Cannot fail if there is room (`with_room`).
  void append(const Boxes& boxes) {
    for (size_t i = 0; i < boxes.count; ++i) {
      size_t from = words_.size(), row = numbers_.size();
      words_.resize(from + row_words(boxes.size(i)));
      i64 at = boxes.offsets[i];
      write_row(words_.data() + from, boxes.attribute + at, boxes.low + at, boxes.high + at, boxes.size(i));
      start_.push_back(u32(from));
      numbers_.push_back(u32(boxes.numbers[i]));
      levels_.push_back(boxes.priority[i]);
      if (row % 64 == 0) alive_.push_back(0);
      alive_[row / 64] |= 1ull << (row & 63);
    }
    live_ += boxes.count;
  }

  void remove(const u32* positions, size_t count) {
    assert(count <= live_ && std::all_of(positions, positions + count, [this](u32 at) { return at < size(); }));
    for (size_t i = 0; i < count; ++i) alive_[positions[i] / 64] &= ~(1ull << (positions[i] & 63));
    live_ -= count;
    if (!live_) clear();
  }

  void clear() { *this = Tail(); }

  Rows rows() const {
    return {u32(numbers_.size()), words_.data(), start_.data(), numbers_.data(), levels_.data(), alive_.data()};
  }
  size_t size() const { return numbers_.size(); }
  size_t live() const { return live_; }
  size_t bytes() const {
    return 8 * words_.capacity() + 4 * start_.capacity() + 4 * numbers_.capacity() + levels_.capacity() +
           8 * alive_.capacity();
  }

 private:
  static size_t most_words(size_t boxes, size_t constraints) { return boxes + 2 * constraints + constraints / 4; }

  template <class T>
  static void copy(const std::vector<T>& from, std::vector<T>& to, size_t room) {
    to.reserve(room);
    to.assign(from.begin(), from.end());
  }

  std::vector<u64> words_, alive_;
  std::vector<u32> start_, numbers_;
  std::vector<u8> levels_;
  size_t live_ = 0;
};

}  // namespace hitbox
