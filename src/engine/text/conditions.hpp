// A column of predicates -> conditions: the shape of each, and the key intervals that its literals make.
//
//   "price BETWEEN 10 AND 20 AND city = 'Paris'"
//      price BETWEEN ? AND ?    [key of 10, key of 20]           shape: which attribute, which operators
//      city = ?                 [string 7, string 7]             strings have no keys yet, only numbers
//
// A shape is a condition with its literals replaced. Python parses each shape once and says what it means (define);
// after that only literals are read. A row that does not fit is left to Python as a whole: a disjunction over several
// attributes, a literal that is hard to convert, and everything that is in error.
//
// The reader never asks Python by itself: at a shape or a LIKE pattern that it does not know it stops, and goes on when
// that has been defined.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "text/literals.hpp"
#include "text/text_table.hpp"

namespace hitbox::text {

// What a test of one attribute says; `operands` in the comments are literals.
enum class Test : u8 {
  EQUAL,
  BELOW,
  UP_TO,
  ABOVE,
  FROM,     // one
  BETWEEN,  // two
  LIKE,     // one
  IS_NULL,
  IS_NOT_NULL,
  IS_TRUE,
  IS_FALSE,  // none
  // the tests above make one interval, those below several
  UNEQUAL,      // one
  NOT_BETWEEN,  // two
  NOT_LIKE,     // one
  IN,
  NOT_IN  // a list
};
constexpr u8 TESTS = u8(Test::NOT_IN) + 1;

static inline size_t operands(Test test) {
  if (test >= Test::IS_NULL && test <= Test::IS_FALSE) return 0;
  return test == Test::BETWEEN || test == Test::NOT_BETWEEN ? 2 : 1;
}
static inline bool takes_list(Test test) { return test >= Test::IN; }

static inline bool one_interval(Test test) { return test <= Test::IS_FALSE; }

struct Interval {
  i64 low, high;
};
constexpr Interval NO_KEYS{HIGHEST, MISSING};

// What a LIKE pattern comes to: the strings from `from` to below `to`, or `from` alone if it is `plain`. Without them
// there is no bound. They are strings of `attribute`, which may be another one than the condition names: LIKE '%x' is a
// range of the reversed string.
struct Pattern {
  std::optional<std::string> from, to;
  bool plain;
  bool refused;  // the row is Python's
  u32 attribute;
};

constexpr u32 NO_ATTRIBUTE = ~u32(0);  // of TRUE and FALSE

struct Shape {
  enum class Meaning : u8 { UNKNOWN_TO_US, ALWAYS, NEVER, TESTED };
  Meaning meaning = Meaning::UNKNOWN_TO_US;  // the row is Python's
  bool any = false;                          // the tests are joined by OR, not by AND
  bool like = false;
  bool single = false;  // one interval
  u32 attribute = NO_ATTRIBUTE;
  std::vector<u8> lists;  // of each of its literals: does it stand for a list?
  std::vector<Test> tests;
  std::unique_ptr<TextTable> patterns;
  std::vector<Pattern> meanings;  // of the patterns
};

// Strings are not keys yet. An end of an interval on a string attribute is 4 * number + 1, and one more or one less is
// the key above or below it; LOWEST and HIGHEST stand for themselves.
static inline Cut at_string(u32 number) { return {4 * i64(number), 4 * i64(number) + 1}; }

struct Condition {
  u32 shape;
  u32 attribute;
  u32 intervals;
};

// Some rows as conditions.
struct Piece {
  std::vector<u8> read;             // by row: 1, or 0 if the row is Python's
  std::vector<u64> condition_ends;  // by row
  std::vector<Condition> conditions;
  std::vector<Interval> intervals;  // of a list, first {how many, 0}

  void close(bool good) {
    read.push_back(good);
    condition_ends.push_back(conditions.size());
  }
};

constexpr size_t MOST_SHAPES = 1 << 16, LONGEST_SHAPE = 1 << 10;  // rows with more are Python's

struct Bounds {
  size_t text, depth, values;
};

class Reader {
 public:
  Reader(std::vector<Codec> codecs, Bounds bounds, Seed seed)
      : codecs_(std::move(codecs)), bounds_(bounds), seed_(seed), shape_texts_(seed) {
    strings_.reserve(codecs_.size());
    for (size_t i = 0; i < codecs_.size(); ++i) strings_.emplace_back(seed);
  }

  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // One more attribute, which shapes and patterns may be about; its number.
  u32 add_attribute(const Codec& codec) {
    codecs_.push_back(codec);
    strings_.emplace_back(seed_);
    return u32(codecs_.size() - 1);
  }

  // What has to be defined before the reader can go on.
  struct Question {
    bool asked = false;
    bool about_pattern = false;
    u32 shape = 0;
    std::string text;
    std::vector<u32> places;  // of a shape: where in the text its literals start
    std::vector<u8> lists;    // and whether each stands for a whole list
  };

  // Reads texts [from, to) until it meets something unknown; the number of the row where it stopped.
  size_t read(const i64* offsets, const u8* data, const u8* wanted, size_t from, size_t to, Piece& piece) {
    question_ = {};
    for (size_t row = from; row < to; ++row) {
      if (!wanted[row]) {
        piece.close(false);
        continue;
      }
      const size_t conditions = piece.conditions.size(), intervals = piece.intervals.size();
      const bool good = read_row(data + offsets[row], size_t(offsets[row + 1] - offsets[row]), piece);
      if (!good) {
        piece.conditions.resize(conditions);
        piece.intervals.resize(intervals);
      }
      if (question_.asked) return row;
      piece.close(good);
    }
    return to;
  }

  // Reads one text by itself. Its strings are numbered from 0; those of texts before it are forgotten.
  Piece read(const u8* text, size_t size) {
    for (TextTable& strings : strings_)
      if (strings.size()) strings.clear();
    const i64 offsets[] = {0, i64(size)};
    const u8 wanted = 1;
    Piece piece;
    read(offsets, text, &wanted, 0, 1, piece);
    return piece;
  }

  const Question& question() const { return question_; }
  const Codec& codec(u32 attribute) const { return codecs_.at(attribute); }
  size_t attributes() const { return codecs_.size(); }
  const Shape& shape(u32 number) const { return shapes_[number]; }
  TextTable& strings(u32 attribute) { return strings_.at(attribute); }

  Shape& define(u32 shape) { return shapes_.at(shape); }
  TextTable new_table() const { return TextTable(seed_); }

 private:
  struct Span {
    u32 first, end;  // tokens of a condition
    u32 shape;
    u32 literal, literals;  // in literals_
  };
  struct Literal {
    u32 token;
    u32 count;  // 0: a single one; otherwise those of a list, every one a token (or two) from `token` on
  };

  bool read_row(const u8* text, size_t size, Piece& piece) {
    if (size > bounds_.text || !tokenize(text, u32(size), tokens_) || !split()) return false;
    text_ = text;
    literals_.clear();
    for (Span& span : spans_) {
      span.shape = shape_of(span);
      if (span.shape == TextTable::NONE) return false;
      if (shapes_[span.shape].meaning == Shape::Meaning::UNKNOWN_TO_US) return false;
    }
    cuts_.clear();
    for (const Span& span : spans_)
      if (!convert(span)) return false;
    for (const Span& span : spans_) add(span, piece);
    return lonely_patterns(piece);
  }

  // Cuts the tokens at the ANDs that join conditions. Parentheses around conjunctions only are looked through.
  bool split() {
    spans_.clear();
    const u32 count = u32(tokens_.size());
    bool either = false;
    size_t deepest = 0, nots = 0;
    groups_.clear();
    group_at_.resize(count);
    open_.clear();
    for (u32 i = 0; i < count; ++i) {
      const Kind kind = tokens_[i].kind;
      if (kind == Kind::OPEN) {
        group_at_[i] = u32(groups_.size());
        open_.push_back(u32(groups_.size()));
        groups_.push_back({0, false});
        deepest = std::max(deepest, open_.size());
      } else if (kind == Kind::CLOSE) {
        if (open_.empty()) return false;
        groups_[open_.back()].close = i;
        open_.pop_back();
      } else if (kind == Kind::OR) {
        if (open_.empty()) either = true;
        else groups_[open_.back()].either = true;
      } else if (kind == Kind::NOT) {
        ++nots;
      }
    }
    if (!open_.empty() || deepest + nots > bounds_.depth || count < 2) return false;
    if (either) {
      spans_.push_back({0, count - 1, 0, 0, 0});
      return true;
    }
    u32 i = 0;
    size_t depth = 0;
    while (true) {
      const u32 start = i;
      while (tokens_[i].kind == Kind::NOT) ++i;
      if (tokens_[i].kind == Kind::OPEN) {
        const Group& group = groups_[group_at_[i]];
        if (i == start && !group.either) {
          ++depth;
          ++i;
          continue;
        }
        i = group.close + 1;
      } else {
        bool between = false;
        for (;; ++i) {
          const Kind kind = tokens_[i].kind;
          if (kind == Kind::CLOSE || kind == Kind::END) break;
          if (kind == Kind::AND && !between) break;
          if (kind == Kind::AND) between = false;
          else if (kind == Kind::BETWEEN) between = true;
          else if (kind == Kind::OPEN) i = groups_[group_at_[i]].close;
        }
        if (i == start) return false;
      }
      spans_.push_back({start, i, 0, 0, 0});
      for (; tokens_[i].kind == Kind::CLOSE; ++i)
        if (!depth--) return false;
      if (tokens_[i].kind == Kind::END) return !depth;
      if (tokens_[i].kind != Kind::AND) return false;
      ++i;
    }
  }

  static bool is_literal(Kind kind) {
    return kind == Kind::NUMBER || kind == Kind::STRING || kind == Kind::TRUE_WORD || kind == Kind::FALSE_WORD ||
           kind == Kind::TIMESTAMP;
  }
  // TRUE and FALSE are of one type.
  static Kind type_of(Kind kind) { return kind == Kind::FALSE_WORD ? Kind::TRUE_WORD : kind; }

  // The literals of a list "( literal, literal ... )" whose "(" is at `open`, all of one type; 0 if it is none.
  u32 list_size(u32 open) const {
    u32 i = open + 1, count = 0;
    const Kind type = type_of(tokens_[i].kind);
    while (is_literal(tokens_[i].kind) && type_of(tokens_[i].kind) == type) {
      ++count;
      i += type == Kind::TIMESTAMP ? 2 : 1;
      if (tokens_[i].kind == Kind::CLOSE) return count;
      if (tokens_[i].kind != Kind::COMMA) return 0;
      ++i;
    }
    return 0;
  }

  void write(std::string_view word) {
    if (shape_size_ + word.size() >= LONGEST_SHAPE) {
      too_long_ = true;
      return;
    }
    std::memcpy(shape_ + shape_size_, word.data(), word.size());
    shape_size_ += word.size();
    shape_[shape_size_++] = ' ';
  }

  void write_literal(u32 token, u32 count) {
    if (ask_places_) {
      question_.places.push_back(u32(shape_size_));
      question_.lists.push_back(count > 0);
    } else {
      literals_.push_back({token, count});
    }
    switch (tokens_[token].kind) {
      case Kind::NUMBER: return write("0");
      case Kind::STRING: return write("''");
      case Kind::TIMESTAMP: return write("TIMESTAMP '2000-01-01'");
      case Kind::TRUE_WORD: return write("TRUE");
      default: return write("FALSE");
    }
  }

  // The condition as a text of its own that Python can parse, with its literals replaced by others of their type.
  // A list counts as one literal.
  void write_shape(u32 first, u32 end) {
    shape_size_ = 0;
    too_long_ = false;
    for (u32 i = first; i < end && !too_long_; ++i) {
      const Token& token = tokens_[i];
      if (is_literal(token.kind)) {
        write_literal(i, 0);
        i += token.kind == Kind::TIMESTAMP;
        continue;
      }
      write({reinterpret_cast<const char*>(text_) + token.start, token.end - token.start});
      if (token.kind == Kind::ESCAPE && i + 1 < end && tokens_[i + 1].kind == Kind::STRING) {
        ++i;  // part of the shape
        write({reinterpret_cast<const char*>(text_) + tokens_[i].start, tokens_[i].end - tokens_[i].start});
      } else if (token.kind == Kind::IN && i + 1 < end && tokens_[i + 1].kind == Kind::OPEN) {
        const u32 count = list_size(i + 1);
        if (!count) continue;
        write("(");
        write_literal(i + 2, count);
        write(")");
        i = groups_[group_at_[i + 1]].close;
      }
    }
  }

  // The number of the shape of a condition; NONE, and perhaps a question, if it is new.
  u32 shape_of(Span& span) {
    span.literal = u32(literals_.size());
    ask_places_ = false;
    write_shape(span.first, span.end);
    span.literals = u32(literals_.size()) - span.literal;
    if (too_long_) return TextTable::NONE;
    const std::string_view text(shape_, shape_size_);
    const u32 found = shape_texts_.find(text);
    if (found != TextTable::NONE || shapes_.size() >= MOST_SHAPES) return found;
    ask_places_ = true;
    write_shape(span.first, span.end);
    question_.asked = true;
    question_.shape = shape_texts_.number(text);
    question_.text = text;
    shapes_.emplace_back();
    shapes_.back().lists = question_.lists;
    return TextTable::NONE;
  }

  std::string_view string_at(u32 token) {
    const u8 *at = text_ + tokens_[token].start + 1, *end = text_ + tokens_[token].end - 1;
    std::string_view inside(reinterpret_cast<const char*>(at), size_t(end - at));
    if (inside.find('\'') == std::string_view::npos) return inside;
    unquoted_.clear();
    for (; at < end; ++at) {
      unquoted_.push_back(char(*at));
      at += *at == '\'';  // it is written twice
    }
    return unquoted_;
  }

  // The cuts of the literals of a condition. Strings get numbers only in `add`, when the row is sure to be good.
  bool convert(const Span& span) {
    Shape& shape = shapes_[span.shape];
    if (shape.meaning != Shape::Meaning::TESTED) return true;
    const Codec& codec = codecs_[shape.attribute];
    if (shape.like) {
      const u32 pattern = known_pattern(span.shape, shape, literals_[span.literal].token);
      if (pattern == TextTable::NONE || shape.meanings[pattern].refused) return false;
      cuts_.push_back({i64(pattern), 0});
      return true;
    }
    for (u32 i = span.literal; i < span.literal + span.literals; ++i) {
      const Literal& literal = literals_[i];
      if (literal.count > bounds_.values) return false;
      const u32 step = tokens_[literal.token].kind == Kind::TIMESTAMP ? 3 : 2;  // with the comma
      for (u32 k = 0; k < std::max(literal.count, u32(1)); ++k) {
        const u32 token = literal.token + k * step;
        if (codec.type == Type::STRING) {
          if (tokens_[token].kind != Kind::STRING) return false;
          cuts_.push_back({i64(token), 0});
          continue;
        }
        const auto cut = cut_at(token, codec);
        if (!cut) return false;
        cuts_.push_back(*cut);
      }
    }
    return true;
  }

  std::optional<Cut> cut_at(u32 token, const Codec& codec) {
    const Token& at = tokens_[token];
    switch (at.kind) {
      case Kind::NUMBER: return cut_number(text_ + at.start, text_ + at.end, codec);
      case Kind::TRUE_WORD: return at_key(1);
      case Kind::FALSE_WORD: return at_key(0);
      case Kind::TIMESTAMP: {
        const Token& quoted = tokens_[token + 1];
        const auto micros = read_timestamp(text_ + quoted.start + 1, text_ + quoted.end - 1);
        if (!micros) return std::nullopt;
        return at_key(*micros);
      }
      default: return std::nullopt;
    }
  }

  // The number of a LIKE pattern; NONE, and a question, if it is new.
  u32 known_pattern(u32 number, Shape& shape, u32 token) {
    if (tokens_[token].kind != Kind::STRING) return TextTable::NONE;
    const std::string_view text = string_at(token);
    const u32 found = shape.patterns->find(text);
    if (found != TextTable::NONE) return found;
    question_.asked = question_.about_pattern = true;
    question_.shape = number;
    question_.text = text;
    return TextTable::NONE;
  }

  Interval range_of(const Pattern& pattern) {
    Interval range{LOWEST, HIGHEST};
    TextTable& strings = strings_[pattern.attribute];
    if (pattern.from) range.low = at_string(strings.number(*pattern.from)).upto;
    if (pattern.plain) range.high = range.low;
    else if (pattern.to) range.high = at_string(strings.number(*pattern.to)).last;
    return range;
  }

  // Appends what a condition says; `cuts_` are read from the front.
  void add(const Span& span, Piece& piece) {
    if (&span == spans_.data()) next_cut_ = 0;
    const Shape& shape = shapes_[span.shape];
    if (shape.meaning == Shape::Meaning::ALWAYS) return;
    const size_t before = piece.intervals.size();
    u32 attribute = shape.attribute;
    const bool strings = shape.meaning == Shape::Meaning::TESTED && codecs_[shape.attribute].type == Type::STRING;
    u32 literal = span.literal;
    auto next = [&]() -> Cut {
      const Cut cut = cuts_[next_cut_++];
      return strings ? at_string(strings_[shape.attribute].number(string_at(u32(cut.last)))) : cut;
    };
    auto push = [&](i64 low, i64 high) { piece.intervals.push_back({low, high}); };
    auto below = [&](i64 last) { push(LOWEST, last); };
    auto above = [&](i64 upto) { upto == HIGHEST ? piece.intervals.push_back(NO_KEYS) : push(upto + 1, HIGHEST); };
    for (const Test test : shape.tests) {
      switch (test) {
        case Test::EQUAL: {
          const Cut c = next();
          ++literal;
          push(c.last + 1, c.upto);
          break;
        }
        case Test::BELOW: {
          const Cut c = next();
          ++literal;
          below(c.last);
          break;
        }
        case Test::UP_TO: {
          const Cut c = next();
          ++literal;
          below(c.upto);
          break;
        }
        case Test::ABOVE: {
          const Cut c = next();
          ++literal;
          above(c.upto);
          break;
        }
        case Test::FROM: {
          const Cut c = next();
          ++literal;
          push(c.last + 1, HIGHEST);
          break;
        }
        case Test::UNEQUAL: {
          const Cut c = next();
          ++literal;
          below(c.last);
          above(c.upto);
          break;
        }
        case Test::BETWEEN: {
          const Cut a = next(), b = next();
          literal += 2;
          push(a.last + 1, b.upto);
          break;
        }
        case Test::NOT_BETWEEN: {
          const Cut a = next(), b = next();
          literal += 2;
          below(a.last);
          above(b.upto);
          break;
        }
        case Test::IN:
        case Test::NOT_IN: {
          const u32 count = literals_[literal++].count;
          push(count, 0);
          for (u32 i = 0; i < count; ++i) {
            const Cut c = next();
            push(c.last + 1, c.upto);
          }
          break;
        }
        case Test::LIKE:
        case Test::NOT_LIKE: {
          const Pattern& pattern = shape.meanings[size_t(cuts_[next_cut_++].last)];
          ++literal;
          attribute = pattern.attribute;
          const Interval range = range_of(pattern);
          if (test == Test::LIKE) {
            piece.intervals.push_back(range);
          } else {
            below(range.low - 1);
            above(range.high);
          }
          break;
        }
        case Test::IS_NULL: push(MISSING, MISSING); break;
        case Test::IS_NOT_NULL: push(LOWEST, HIGHEST); break;
        case Test::IS_TRUE: push(1, 1); break;
        case Test::IS_FALSE: push(0, 0); break;
      }
    }
    piece.conditions.push_back({span.shape, attribute, u32(piece.intervals.size() - before)});
  }

  // A pattern that no interval of its attribute can say may be settled by another condition on it: that is Python's.
  bool lonely_patterns(const Piece& piece) const {
    const size_t before = piece.condition_ends.empty() ? 0 : piece.condition_ends.back();
    for (size_t i = before; i < piece.conditions.size(); ++i) {
      const u32 attribute = shapes_[piece.conditions[i].shape].attribute;
      if (piece.conditions[i].attribute == attribute) continue;
      for (size_t k = before; k < piece.conditions.size(); ++k) {
        const Shape& other = shapes_[piece.conditions[k].shape];
        const bool never = other.meaning == Shape::Meaning::NEVER;
        if (k != i && (never || other.attribute == attribute)) return false;
      }
    }
    return true;
  }

  struct Group {
    u32 close;
    bool either;
  };

  std::vector<Codec> codecs_;
  Bounds bounds_;
  Seed seed_;
  TextTable shape_texts_;
  std::vector<Shape> shapes_;
  std::vector<TextTable> strings_;
  Question question_;

  // of the row at hand
  const u8* text_ = nullptr;
  std::vector<Token> tokens_;
  std::vector<Span> spans_;
  std::vector<Group> groups_;
  std::vector<u32> group_at_, open_;
  std::vector<Literal> literals_;
  std::vector<Cut> cuts_;
  size_t next_cut_ = 0;
  char shape_[LONGEST_SHAPE];
  size_t shape_size_ = 0;
  bool too_long_ = false;
  std::string unquoted_;
  bool ask_places_ = false;
};

}  // namespace hitbox::text
