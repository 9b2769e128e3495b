// The tail: boxes that are new, appended as rows and scanned whole until a segment takes them.
#pragma once

#include <vector>

#include "build.hpp"

namespace hitbox {

class Tail {
 public:
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
  std::vector<u64> words_, alive_;
  std::vector<u32> start_, numbers_;
  std::vector<u8> levels_;
  size_t live_ = 0;
};

}  // namespace hitbox
