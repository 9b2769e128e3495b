// The tail: boxes that came last, unindexed. They are scanned linearly until they are sealed into a segment.
//
// Boxes are added in two steps. `stage` writes them behind the last row, where nobody looks, while others match; it
// does all that may fail. `publish` makes them part of the tail and must be alone.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "build/build.hpp"

namespace hitbox {

constexpr u32 TAIL_LOCATION = u32(1) << 31;  // where the locations of the tail begin
constexpr u32 NOWHERE = ~u32(0);

class Tail {
 public:
  bool has_room(size_t boxes, size_t constraints) const {
    return count_ + boxes <= numbers_.size() && word_count_ + most_words(boxes, constraints) <= words_.size();
  }

  // A copy with room for more boxes, so that appending them cannot fail.
  Tail with_room(size_t boxes, size_t constraints) const {
    size_t rows = count_ + boxes, words = word_count_ + most_words(boxes, constraints);
    if (words > UINT32_MAX)
      throw std::length_error("too many constraints for the tail: make the option `tail` smaller");
    Tail out;
    rows = std::max(rows, 2 * count_);
    copy(words_, word_count_, out.words_, std::max(words, 2 * word_count_));
    copy(alive_, (count_ + 63) / 64, out.alive_, (rows + 63) / 64);
    copy(start_, count_, out.start_, rows);
    copy(numbers_, count_, out.numbers_, rows);
    copy(levels_, count_, out.levels_, rows);
    out.count_ = count_;
    out.word_count_ = word_count_;
    out.live_ = live_;
    return out;
  }

  // Writes boxes behind the last row, in place of what was staged before. There must be room (`with_room`).
  void stage(const Boxes& boxes) {
    size_t row = count_, word = word_count_;
    for (size_t i = 0; i < boxes.count; ++i, ++row) {
      const i64 at = boxes.offsets[i];
      write_row(words_.data() + word, boxes.attribute + at, boxes.low + at, boxes.high + at, boxes.size(i));
      start_[row] = u32(word);
      numbers_[row] = u32(boxes.numbers[i]);
      levels_[row] = boxes.priority[i];
      word += row_words(boxes.size(i));
    }
    staged_ = boxes.count;
    staged_words_ = word - word_count_;
  }

  // Takes what is staged into the tail, and writes where each box is. Cannot fail.
  void publish(u32* where, [[maybe_unused]] size_t size) {
    for (const size_t end = count_ + staged_; count_ < end; ++count_) {
      if (count_ % 64 == 0) alive_[count_ / 64] = 0;
      alive_[count_ / 64] |= 1ull << (count_ & 63);
      assert(numbers_[count_] < size);
      where[numbers_[count_]] = TAIL_LOCATION + u32(count_);
    }
    live_ += staged_;
    word_count_ += staged_words_;
    staged_ = staged_words_ = 0;
  }

  void remove(const u32* positions, size_t count) {
    assert(count <= live_ && std::all_of(positions, positions + count, [this](u32 at) { return at < size(); }));
    for (size_t i = 0; i < count; ++i) alive_[positions[i] / 64] &= ~(1ull << (positions[i] & 63));
    live_ -= count;
    if (!live_) count_ = word_count_ = staged_ = staged_words_ = 0;
  }

  Rows rows() const {
    return {u32(count_), words_.data(), start_.data(), numbers_.data(), levels_.data(), alive_.data()};
  }
  size_t size() const { return count_; }
  size_t live() const { return live_; }
  size_t bytes() const {
    return 8 * words_.size() + 4 * start_.size() + 4 * numbers_.size() + levels_.size() + 8 * alive_.size();
  }

 private:
  static size_t most_words(size_t boxes, size_t constraints) { return boxes + 2 * constraints + constraints / 4; }

  template <class T>
  static void copy(const std::vector<T>& from, size_t count, std::vector<T>& to, size_t room) {
    to.resize(room);
    std::copy_n(from.begin(), count, to.begin());
  }

  std::vector<u64> words_, alive_;  // as long as there is room
  std::vector<u32> start_, numbers_;
  std::vector<u8> levels_;
  size_t count_ = 0, word_count_ = 0, live_ = 0;
  size_t staged_ = 0, staged_words_ = 0;
};

}  // namespace hitbox
