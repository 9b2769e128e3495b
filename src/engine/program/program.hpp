// Programs: what the boxes of a predicate leave open, as tests of an event's keys.
//
//   (a = 1 OR b > 3) AND s <> 'x'     shape     AND | TEST s outside, 2 ends | OR | TEST a inside, 2 ends | TEST b, 1 end
//                                     literals  'x', after 'x', 1, 2, 4
//
// A shape is code in prefix order; all predicates of one shape share it. The literals of a subscription are its own. A
// test says whether a key lies in a set of intervals. The set is given by its ends: the keys at which "inside" and
// "outside" alternate. A place is tested by a circle or a polygon (places.hpp). Whatever else no set of keys can say is
// OPEN: it may come out either way.
//
// A truth is the set of what may come out: true, false, unknown (SQL's NULL). If only one is left, the program has decided.
// hitbox/language/programs.py writes programs.
#pragma once

#include <algorithm>
#include <vector>

#include "base/common.hpp"
#include "base/prefetch.hpp"
#include "format/validate.hpp"
#include "program/places.hpp"
#include "program/truth.hpp"

namespace hitbox {

namespace program {

// A word of code. AND, OR and XOR: how many words it is with all of its parts. TEST: `null`, `inside`, `ends`, the
// attribute; the next word is the place of its ends among the literals. OPEN: the truth. PLACE: four flags; the next words
// are the attributes of latitude and longitude, and the place of the circle, or of where the area is, among the literals.
enum Op : u32 { AND, OR, XOR, TEST, OPEN, PLACE, OPS };

constexpr u32 MAX_DEPTH = 64;
constexpr u32 LIST = 3;  // as `ends`: the literal at that place says where the ends are (low 32 bits) and how many

static inline u32 op_of(u32 word) { return word & 7; }
static inline u32 length_of(u32 word) { return word >> 3; }
static inline Truth truth_of(u32 word) { return Truth(word >> 3); }
static inline Truth null_of(u32 word) { return Truth(1u << (word >> 3 & 3)); }  // of a key that is missing
static inline bool inside_of(u32 word) { return word >> 5 & 1; }                // whether the lowest key is inside
static inline u32 ends_of(u32 word) { return word >> 6 & 3; }
static inline u32 attribute_of(u32 word) { return word >> 8; }
static inline bool is_area(u32 word) { return word >> 3 & 1; }
static inline bool is_negated(u32 word) { return word >> 4 & 1; }
static inline bool is_whole(u32 word, u32 coordinate) { return word >> (5 + coordinate) & 1; }  // of int attributes
static inline u32 length_of_test(u32 op) { return op == TEST ? 2 : op == PLACE ? 4 : 1; }
static inline u32 literals_of(u32 ends) { return ends == LIST ? 1 : ends; }
static inline u32 list_start(i64 literal) { return u32(literal); }
static inline u32 list_size(i64 literal) { return u32(u64(literal) >> 32); }

// COMBINED[op][a][b]: the truths that `a op b` may have.
struct Combined {
  Truth of[3][8][8];
};

constexpr Truth combined_truth(u32 op, Truth a, Truth b) {
  if (op == XOR) return a == IS_UNKNOWN || b == IS_UNKNOWN ? IS_UNKNOWN : a == b ? IS_FALSE : IS_TRUE;
  const Truth decides = op == AND ? IS_FALSE : IS_TRUE;
  if (a == decides || b == decides) return decides;
  return a == IS_UNKNOWN ? a : b;
}

constexpr Combined make_combined() {
  Combined found{};
  for (u32 op = 0; op < 3; ++op)
    for (u32 a = 0; a < 8; ++a)
      for (u32 b = 0; b < 8; ++b)
        for (Truth x : {IS_TRUE, IS_FALSE, IS_UNKNOWN})
          for (Truth y : {IS_TRUE, IS_FALSE, IS_UNKNOWN})
            if ((a & x) && (b & y)) found.of[op][a][b] = Truth(found.of[op][a][b] | combined_truth(op, x, y));
  return found;
}

constexpr Combined COMBINED = make_combined();
constexpr Truth FIRST[3] = {IS_TRUE, IS_FALSE, IS_FALSE};      // of no parts
constexpr Truth DECIDED[3] = {IS_FALSE, IS_TRUE, IS_UNKNOWN};  // whatever the other parts say

static inline Truth test(u32 word, const i64* literals, u32 at, i64 key) {
  if (key == MISSING) return null_of(word);
  bool inside = inside_of(word);
  const i64* ends = literals + at;
  switch (ends_of(word)) {
    case 0: break;
    case 1: inside ^= key >= ends[0]; break;
    case 2: inside ^= (key >= ends[0]) & (key < ends[1]); break;  // no branch: it could not be predicted
    default: {
      const i64* from = literals + list_start(*ends);
      inside ^= (std::upper_bound(from, from + list_size(*ends), key) - from) & 1;
    }
  }
  return inside ? IS_TRUE : IS_FALSE;
}

static inline Truth test_place(const u32* code, const i64* literals, const i64* keys) {
  const i64 first = keys[code[1]], second = keys[code[2]];
  if (first == MISSING || second == MISSING) return IS_UNKNOWN;
  const double latitude = places::coordinate(first, is_whole(*code, 0));
  const double longitude = places::coordinate(second, is_whole(*code, 1));
  if (!places::is_place(latitude, longitude)) return IS_UNKNOWN;
  const i64* at = literals + code[3];
  const Truth found = is_area(*code) ? places::in_area(literals + list_start(*at), list_size(*at), latitude, longitude)
                                     : places::in_circle(at, latitude, longitude);
  if (!is_negated(*code) || found == Truth(IS_TRUE | IS_FALSE)) return found;
  return found == IS_TRUE ? IS_FALSE : IS_TRUE;
}

// What a program may come to.
static inline Truth run(const u32* code, const i64* literals, const i64* keys) {
  struct Frame {
    const u32* end;
    u32 op;
    Truth truth;
  };
  Frame stack[MAX_DEPTH];
  u32 depth = 0;
  for (;;) {
    const u32 word = *code, op = op_of(word);
    Truth truth;
    if (op <= XOR) {
      stack[depth++] = {code + length_of(word), op, FIRST[op]};
      ++code;
      continue;
    }
    if (op == TEST) {
      truth = test(word, literals, code[1], keys[attribute_of(word)]);
    } else {
      truth = op == OPEN ? truth_of(word) : test_place(code, literals, keys);
    }
    code += length_of_test(op);
    for (;;) {
      if (!depth) return truth;
      Frame& branch = stack[depth - 1];
      truth = branch.truth = COMBINED.of[branch.op][branch.truth][truth];
      if (truth != DECIDED[branch.op] && code != branch.end) break;
      code = branch.end;
      --depth;
    }
  }
}

// What a shape needs, if it is sound: one tree that ends where the shape ends. Otherwise DamagedArray.
struct Needs {
  u32 literals = 0;
  std::vector<u32> lists;  // the literals that say where a list is,
  std::vector<u32> areas;  // or an area
};

static inline Needs check_shape(const u32* code, size_t size, u32 attributes) {
  const char* name = "program_code";
  Needs needs;
  std::vector<size_t> ends;  // of the branches around
  size_t at = 0;
  require(size > 0, name, "a shape is empty");
  do {
    require(at < size, name, "a shape ends too early");
    const u32 word = code[at], op = op_of(word);
    if (op <= XOR) {
      const size_t limit = ends.empty() ? size : ends.back();
      require(length_of(word) > 1 && length_of(word) <= limit - at, name, "a branch is empty or too long");
      require(ends.size() < MAX_DEPTH, name, "branches are nested too deeply");
      ends.push_back(at++ + length_of(word));
      continue;
    }
    if (op == TEST) {
      require(at + 1 < size, name, "a shape ends too early");
      require(attribute_of(word) < attributes && (word >> 3 & 3) < 3, name, "a test is out of range");
      const u32 place = code[at + 1], used = literals_of(ends_of(word));
      require(place < 1u << 31, name, "a literal is out of range");
      if (ends_of(word) == LIST) needs.lists.push_back(place);
      needs.literals = std::max(needs.literals, place + used);
    } else if (op == PLACE) {
      require(size - at >= length_of_test(op), name, "a shape ends too early");
      require(code[at + 1] < attributes && code[at + 2] < attributes && word >> 7 == 0, name, "a test is out of range");
      const u32 place = code[at + 3];
      require(place < 1u << 31, name, "a literal is out of range");
      if (is_area(word)) needs.areas.push_back(place);
      needs.literals = std::max(needs.literals, place + (is_area(word) ? 1 : places::CIRCLE_WORDS));
    } else {
      require(op == OPEN && truth_of(word) && word >> 3 < 8, name, "an instruction is unknown");
    }
    at += length_of_test(op);
    while (!ends.empty() && at >= ends.back()) {
      require(at == ends.back(), name, "a branch ends inside an instruction");
      ends.pop_back();
    }
  } while (!ends.empty());
  require(at == size, name, "a shape has more than one tree");
  return needs;
}

}  // namespace program

// The programs of slots, in flat arrays.
struct ProgramView {
  const i64* place;  // by slot: 1 + where its words begin; 0 if it has no program
  size_t slots;
  const i64* words;  // of each program: its shape (low 32 bits) and how many words it is, then its literals
  size_t word_count;
  const u32* code;
  size_t code_size;
  const i64* shapes;  // where the code of each shape begins, and where the last ends
  size_t shape_count;

  static u32 shape_of(i64 header) { return u32(header); }
  static u32 size_of(i64 header) { return u32(u64(header) >> 32); }

  // Whether a predicate is true: all three truths are possible if it has no program.
  Truth run(i32 slot, const i64* keys) const {
    const i64 at = size_t(slot) < slots ? place[slot] : 0;
    if (!at) return IS_TRUE | IS_FALSE | IS_UNKNOWN;
    return program::run(code + shapes[shape_of(words[at - 1])], words + at, keys);
  }

  // Asks for the memory that `run` reads; first of all `fetch_place`.
  void fetch_place(i32 slot) const {
    if (size_t(slot) < slots) prefetch(place + slot);
  }
  void fetch_words(i32 slot) const {
    const i64 at = size_t(slot) < slots ? place[slot] : 0;
    if (!at) return;
    for (i64 line = 0; line < 32; line += 8) prefetch(words + at - 1 + line);
  }

  // Throws DamagedArray where `run` could read outside of the arrays.
  void check(u32 attributes) const {
    using program::Needs;
    std::vector<Needs> needs;
    require(shape_count < 1ull << 31 && word_count < 1ull << 60, "program_shapes", "there are too many");
    require(shapes[0] == 0 && size_t(shapes[shape_count]) == code_size, "program_shapes",
            "it does not go with the code");
    for (size_t i = 0; i < shape_count; ++i) {
      require(shapes[i] < shapes[i + 1] && size_t(shapes[i + 1]) <= code_size, "program_shapes", "it does not ascend");
      needs.push_back(program::check_shape(code + shapes[i], size_t(shapes[i + 1] - shapes[i]), attributes));
    }
    for (size_t slot = 0; slot < slots; ++slot) {
      if (!place[slot]) continue;
      require(place[slot] > 0 && size_t(place[slot]) <= word_count, "programs", "a program is out of range");
      const size_t at = size_t(place[slot]) - 1;
      const u32 shape = shape_of(words[at]), size = size_of(words[at]);
      require(shape < shape_count, "program_words", "a shape is out of range");
      require(size <= word_count - at && size > needs[shape].literals, "program_words",
              "a program is too short or too long");
      for (u32 list : needs[shape].lists) {
        const i64 literal = words[at + 1 + list];
        require(u64(program::list_start(literal)) + program::list_size(literal) < size, "program_words",
                "a list is out of range");
      }
      for (u32 area : needs[shape].areas) {
        const i64 literal = words[at + 1 + area];
        const u32 from = program::list_start(literal), length = program::list_size(literal);
        require(u64(from) + length < size, "program_words", "an area is out of range");
        places::check_area(words + at + 1 + from, length);
      }
    }
  }

  // The places among the words of all ends of intervals of one attribute, in the programs of some slots.
  std::vector<i64> ends(const i64* some, size_t count, u32 attribute) const {
    std::vector<i64> found;
    for (size_t i = 0; i < count; ++i) {
      const i64 at = some[i] >= 0 && size_t(some[i]) < slots ? place[some[i]] : 0;
      if (!at) continue;
      const u32 shape = shape_of(words[at - 1]);
      for (const u32 *next = code + shapes[shape], *end = code + shapes[shape + 1]; next < end;) {
        const u32 word = *next, op = program::op_of(word), place = op == program::TEST ? next[1] : 0;
        next += program::length_of_test(op);
        if (op != program::TEST || program::attribute_of(word) != attribute) continue;
        i64 first = at + place, size = program::literals_of(program::ends_of(word));
        if (program::ends_of(word) == program::LIST) {
          size = program::list_size(words[first]);
          first = at + program::list_start(words[first]);
        }
        for (i64 one = 0; one < size; ++one) found.push_back(first + one);
      }
    }
    return found;
  }
};

}  // namespace hitbox
