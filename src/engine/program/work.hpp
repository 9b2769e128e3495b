// How much work one look at an event may take. hitbox/language/steps.py says what a step is.
#pragma once

#include "base/common.hpp"

namespace hitbox {

// Counts words of code: one per word that is run, one per eight bytes that are searched.
class Work {
 public:
  static constexpr u64 STEP = 128;    // words
  static constexpr u64 TEXT = 8;      // bytes of text per word: they are searched many at a time,
  static constexpr u64 COMPARED = 4;  // or compared one by one

  explicit Work(i64 steps) : most_(steps <= 0 ? 0 : u64(steps) > UINT64_MAX / STEP ? UINT64_MAX : u64(steps) * STEP) {}

  // False if there is no room for so many words more; then there never is again.
  bool spend(u64 words) {
    words_ += words;
    return words_ <= most_;
  }
  u64 words() const { return words_; }
  // Whether anything was looked at beyond keys: that alone is paid for.
  bool looked = false;
  i64 steps() const { return i64((words_ < most_ ? words_ : most_) / STEP); }

 private:
  u64 words_ = 0, most_;
};

}  // namespace hitbox
