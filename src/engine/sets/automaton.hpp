// Which of many words a text contains: the automaton of Aho and Corasick (1975), one pass over the text.
//
// States are numbered level by level, so the children of a state are neighbours, and its edges take one byte each:
//
//   words  ab abc b        state     0 (root)   1 "a"   2 "b"   3 "ab"   4 "abc"
//                          label     -          a       b       b        c
//                          fail      0          0       0       2        2... the longest suffix that is a state, too
//                          word      -          -       b       ab       abc       the longest word that ends here
//
// A state takes 13 bytes. `next` leads from a word to the longest word that is a suffix of it, so all words that end at a
// place are a chain. If one of them was seen before in this text, so were all that follow it.
#pragma once

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "base/common.hpp"

namespace hitbox::sets {

constexpr u32 NONE = ~u32(0);

class Automaton {
 public:
  // The words ascend, are distinct and are not empty; word i is called i.
  explicit Automaton(const std::vector<std::string_view>& words) : next_(words.size(), NONE) {
    root_.fill(NONE);
    struct Range {
      u32 from, to;
    };
    std::vector<Range> level{{0, u32(words.size())}}, below;
    label_.push_back(0);
    fail_.push_back(0);
    for (u32 depth = 0, state = 0; !level.empty(); ++depth) {
      for (Range range : level) {
        children_.push_back(u32(label_.size()));
        const u32 failed = fail_[state];
        u32 longest = state ? word_[failed] : NONE;
        if (range.from < range.to && words[range.from].size() == depth) {
          next_[range.from] = longest;
          longest = range.from++;
        }
        word_.push_back(longest);
        for (u32 at = range.from; at < range.to;) {
          const u8 byte = u8(words[at][depth]);
          u32 end = at + 1;
          while (end < range.to && u8(words[end][depth]) == byte) ++end;
          if (label_.size() >= NONE) throw std::length_error("too many fragments of text");
          if (!state) root_[byte] = u32(label_.size());
          label_.push_back(byte);
          fail_.push_back(state ? step(failed, byte) : 0);
          below.push_back({at, end});
          at = end;
        }
        ++state;
      }
      level.swap(below);
      below.clear();
    }
    children_.push_back(u32(label_.size()));
  }

  // Calls found(word) for the words in a text until it returns false; at every place the longest word comes first.
  template <class Found>
  void search(std::string_view text, Found found) const {
    u32 state = 0;
    for (char c : text) {
      state = step(state, u8(c));
      for (u32 word = word_[state]; word != NONE && found(word);) word = next_[word];
    }
  }

  size_t bytes() const { return label_.size() * 13 + next_.size() * 4; }

 private:
  static constexpr u32 FEW = 8;  // labels that are compared one by one

  u32 child(u32 state, u8 byte) const {
    if (!state) return root_[byte];
    const u32 from = children_[state], to = children_[state + 1];
    if (to - from <= FEW) {
      for (u32 at = from; at < to; ++at)
        if (label_[at] == byte) return at;
      return NONE;
    }
    const u8 *begin = label_.data() + from, *end = label_.data() + to, *at = std::lower_bound(begin, end, byte);
    return at != end && *at == byte ? from + u32(at - begin) : NONE;
  }

  u32 step(u32 state, u8 byte) const {
    for (;;) {
      const u32 to = child(state, byte);
      if (to != NONE) return to;
      if (!state) return 0;
      state = fail_[state];
    }
  }

  std::array<u32, 256> root_;
  std::vector<u32> children_, fail_, word_;  // by state; its children are [children_[state], children_[state + 1])
  std::vector<u8> label_;
  std::vector<u32> next_;  // by word
};

}  // namespace hitbox::sets
