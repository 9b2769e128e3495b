// Patterns of LIKE, as hitbox/language/patterns.py defines them, on UTF-8.
//
//   'ab%c_e%f'     bytes  a b ANY c ONE e ANY f        neither ANY nor ONE is a byte of UTF-8
//
// A pattern is cut at its ANY. The first and the last segment are anchored; each other one is searched from left to right,
// and the first place found is taken. ONE stands for one code point. A search that takes long is given up: then the
// definition is asked, which takes a bounded time for every pattern.
#pragma once

#include <cstring>
#include <string_view>

#include "base/common.hpp"
#include "program/truth.hpp"
#include "program/work.hpp"

namespace hitbox::patterns {

constexpr char ANY = char(0xFF), ONE = char(0xFE);
constexpr size_t MOST_STEPS = 1 << 20;  // bytes of segments with ONE that are compared in one search

static inline bool begins(char byte) { return (u8(byte) & 0xC0) != 0x80; }  // a code point

static inline size_t after(std::string_view text, size_t at) {
  do ++at;
  while (at < text.size() && !begins(text[at]));
  return at;
}

// Where a segment ends that begins at `at`, or npos if the text does not go on like this.
static inline size_t past(std::string_view text, size_t at, std::string_view segment) {
  for (char byte : segment) {
    if (at >= text.size()) return std::string_view::npos;
    if (byte == ONE) at = after(text, at);
    else if (text[at++] != byte) return std::string_view::npos;
  }
  return at;
}

static inline size_t code_points(std::string_view text) {
  size_t count = 0;
  for (char byte : text) count += begins(byte);
  return count;
}

// Where a segment begins that ends with the text, or npos.
static inline size_t before_end(std::string_view text, std::string_view segment) {
  size_t left = code_points(segment), at = text.size();
  while (left && at) left -= begins(text[--at]);
  return left || past(text, at, segment) != text.size() ? std::string_view::npos : at;
}

static inline Truth matches(std::string_view pattern, std::string_view text, Work& work) {
  constexpr size_t NOWHERE = std::string_view::npos;
  size_t cut = pattern.find(ANY);
  if (cut == NOWHERE) return past(text, 0, pattern) == text.size() ? IS_TRUE : IS_FALSE;
  size_t at = past(text, 0, pattern.substr(0, cut));
  if (at == NOWHERE) return IS_FALSE;
  const size_t last = pattern.rfind(ANY), end = before_end(text, pattern.substr(last + 1));
  if (end == NOWHERE || end < at) return IS_FALSE;
  text = text.substr(0, end);
  size_t steps = 0;
  while (cut < last) {
    const size_t next = pattern.find(ANY, cut + 1);
    const std::string_view segment = pattern.substr(cut + 1, next - cut - 1);
    cut = next;
    if (segment.empty()) continue;
    if (segment.find(ONE) == NOWHERE) {
      const void* found = memmem(text.data() + at, text.size() - at, segment.data(), segment.size());
      const size_t to = found ? size_t(static_cast<const char*>(found) - text.data()) + segment.size() : text.size();
      if (!work.spend((to - at) / Work::TEXT)) return OUT_OF_STEPS;
      if (!found) return IS_FALSE;
      at = to;
      continue;
    }
    for (;;) {
      if (!work.spend(segment.size() / Work::COMPARED + 1)) return OUT_OF_STEPS;
      const size_t to = past(text, at, segment);
      if (to != NOWHERE) {
        at = to;
        break;
      }
      if (at >= text.size()) return IS_FALSE;
      steps += segment.size();
      if (steps > MOST_STEPS) return IS_TRUE | IS_FALSE;
      at = after(text, at);
    }
  }
  return IS_TRUE;
}

}  // namespace hitbox::patterns
