// The text of a predicate -> tokens, as hitbox.language.lexer cuts them.
//
// Only what a plain predicate needs is understood here. `false` means "ask the parser in Python", which knows the whole
// language and what to say about an error. So this lexer may refuse anything, but must never cut in another way.
#pragma once

#include <array>
#include <vector>

#include "base/common.hpp"

namespace hitbox::text {

enum class Kind : u8 {
  NAME,  // also the keywords that do not shape a conjunction: LIKE, IS, NULL
  QUOTED,
  OP,
  NUMBER,
  STRING,
  OPEN,
  CLOSE,
  COMMA,
  AND,
  OR,
  NOT,
  BETWEEN,
  IN,
  ESCAPE,
  TRUE_WORD,
  FALSE_WORD,  // TRUE and FALSE are macros on some systems
  TIMESTAMP,   // the word in front of a string
  END
};

struct Token {
  Kind kind;
  u32 start, end;
};

enum Class : u8 { BAD, SPACE, LETTER, DIGIT, SIGN, POINT, QUOTE, DOUBLE_QUOTE, LESS, GREATER, EQUAL, BANG, MARK };

// Bytes from 0x80 on are part of a character beyond ASCII. They count as letters: if one is no letter, the text is in
// error, and Python finds that out when it parses the shape of the condition (conditions.hpp). Python also takes a few
// odd spellings for keywords: the capital of U+0131 is I, that of U+017F is S. No letter beyond ASCII has a capital
// that occurs in AND, OR, NOT or BETWEEN, so conditions end where they should.
constexpr std::array<u8, 256> classes() {
  std::array<u8, 256> of{};
  for (size_t c = 0; c < 256; ++c) {
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') of[c] = SPACE;
    else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c >= 0x80) of[c] = LETTER;
    else if (c >= '0' && c <= '9') of[c] = DIGIT;
    else if (c == '+' || c == '-') of[c] = SIGN;
    else if (c == '.') of[c] = POINT;
    else if (c == '\'') of[c] = QUOTE;
    else if (c == '"') of[c] = DOUBLE_QUOTE;
    else if (c == '<') of[c] = LESS;
    else if (c == '>') of[c] = GREATER;
    else if (c == '=') of[c] = EQUAL;
    else if (c == '!') of[c] = BANG;
    else if (c == '(' || c == ')' || c == ',') of[c] = MARK;
  }
  return of;
}
constexpr std::array<u8, 256> CLASS = classes();

static inline bool spells(const u8* word, const char* upper, u32 size) {
  for (u32 i = 0; i < size; ++i)
    if ((word[i] & 0xDF) != u8(upper[i])) return false;
  return true;
}

static inline Kind word_kind(const u8* word, u32 size) {
  switch (size) {
    case 2: return spells(word, "IN", 2) ? Kind::IN : spells(word, "OR", 2) ? Kind::OR : Kind::NAME;
    case 3: return spells(word, "AND", 3) ? Kind::AND : spells(word, "NOT", 3) ? Kind::NOT : Kind::NAME;
    case 4: return spells(word, "TRUE", 4) ? Kind::TRUE_WORD : Kind::NAME;
    case 5: return spells(word, "FALSE", 5) ? Kind::FALSE_WORD : Kind::NAME;
    case 6: return spells(word, "ESCAPE", 6) ? Kind::ESCAPE : Kind::NAME;
    case 7: return spells(word, "BETWEEN", 7) ? Kind::BETWEEN : Kind::NAME;
    case 9: return spells(word, "TIMESTAMP", 9) ? Kind::TIMESTAMP : Kind::NAME;
    default: return Kind::NAME;
  }
}

static inline u32 word_end(const u8* text, u32 at, u32 size) {
  while (at < size && (CLASS[text[at]] == LETTER || CLASS[text[at]] == DIGIT)) ++at;
  return at;
}

// The end of a quoted stretch that starts at `at`; 0 if it is not closed. A quote inside is written twice.
static inline u32 quoted_end(const u8* text, u32 at, u32 size, u8 quote) {
  for (u32 i = at + 1; i < size; ++i)
    if (text[i] == quote) {
      if (i + 1 == size || text[i + 1] != quote) return i + 1;
      ++i;
    }
  return 0;
}

static inline bool is_digit(u8 c) { return u8(c - '0') <= 9; }

// Are these eight bytes digits? Each is 0x30 to 0x39, and stays in 0x30 to 0x3F if 6 is added.
static inline bool eight_digits(const u8* at) {
  u64 bytes;
  std::memcpy(&bytes, at, 8);
  constexpr u64 HIGH = 0xF0F0F0F0F0F0F0F0, THREES = 0x3030303030303030;
  return (bytes & HIGH) == THREES && ((bytes + 0x0606060606060606) & HIGH) == THREES;
}

// The end of a number that starts at `at`; 0 if there is none.
static inline u32 number_end(const u8* text, u32 at, u32 size) {
  auto digits_end = [&](u32 i) {
    while (size - i >= 8 && eight_digits(text + i)) i += 8;
    while (i < size && is_digit(text[i])) ++i;
    return i;
  };
  u32 first = at;
  if (CLASS[text[at]] == SIGN)
    for (++first; first < size && CLASS[text[first]] == SPACE;) ++first;
  u32 i = digits_end(first);
  bool some = i > first;
  if (i < size && text[i] == '.') {
    const u32 fraction = ++i;
    i = digits_end(i);
    some |= i > fraction;
  }
  if (!some) return 0;
  if (i < size && (text[i] | 0x20) == 'e') {
    i += 1 + (i + 1 < size && CLASS[text[i + 1]] == SIGN);
    const u32 exponent = i;
    i = digits_end(i);
    if (i == exponent) return 0;
  }
  const u8 next = i < size ? CLASS[text[i]] : u8(SPACE);
  return next == LETTER || next == DIGIT || next == POINT ? 0 : i;
}

// All tokens of a text, the last one END; false if this lexer does not understand it.
static inline bool tokenize(const u8* text, u32 size, std::vector<Token>& tokens) {
  tokens.clear();
  u32 at = 0;
  while (true) {
    while (at < size && CLASS[text[at]] == SPACE) ++at;
    if (at == size) break;
    const u8 first = CLASS[text[at]];
    Kind kind = Kind::OP;
    u32 end = at + 1;
    const u8 next = end < size ? text[end] : 0;
    switch (first) {
      case LETTER:
        end = word_end(text, end, size);
        kind = word_kind(text + at, end - at);
        while (end + 1 < size && CLASS[text[end]] == POINT && CLASS[text[end + 1]] == LETTER) {
          end = word_end(text, end + 1, size);  // a path
          kind = Kind::NAME;
        }
        break;
      case DIGIT:
      case SIGN:
      case POINT:
        kind = Kind::NUMBER;
        end = number_end(text, at, size);
        if (!end) return false;
        break;
      case QUOTE:
      case DOUBLE_QUOTE:
        kind = first == QUOTE ? Kind::STRING : Kind::QUOTED;
        end = quoted_end(text, at, size, text[at]);
        if (!end) return false;
        break;
      case LESS: end += next == '=' || next == '>'; break;
      case GREATER: end += next == '='; break;
      case EQUAL:
        if (next == '=') return false;
        break;
      case BANG:
        if (next != '=') return false;
        ++end;
        break;
      case MARK: kind = text[at] == '(' ? Kind::OPEN : text[at] == ')' ? Kind::CLOSE : Kind::COMMA; break;
      default: return false;
    }
    if (!tokens.empty() && tokens.back().kind == Kind::TIMESTAMP && kind != Kind::STRING)
      tokens.back().kind = Kind::NAME;  // an attribute of that name
    tokens.push_back({kind, at, end});
    at = end;
  }
  if (!tokens.empty() && tokens.back().kind == Kind::TIMESTAMP) tokens.back().kind = Kind::NAME;
  tokens.push_back({Kind::END, size, size});
  return true;
}

}  // namespace hitbox::text
