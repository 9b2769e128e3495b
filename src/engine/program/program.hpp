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
//   ANY(scores) > 3                   EACH or | TEST_ELEMENT scores, 1 end          a condition on each element of a list
//   name LIKE '%a%b'                  LIKE name, the pattern (patterns.hpp)
//   at < NOW() - INTERVAL '1 day'     SINCE | TEST at, 1 end                        the time from NOW() to a timestamp
//
// These three need more than keys (details.hpp); where that is not given, they are open.
//
// A truth is the set of what may come out: true, false, unknown (SQL's NULL). If only one is left, the program has decided.
// What depends on the length of a list or a text is counted (work.hpp), and may run out.
// hitbox/language/programs.py writes programs.
#pragma once

#include <algorithm>
#include <vector>

#include "base/common.hpp"
#include "base/prefetch.hpp"
#include "format/validate.hpp"
#include "program/details.hpp"
#include "program/patterns.hpp"
#include "program/places.hpp"
#include "program/truth.hpp"
#include "program/work.hpp"

namespace hitbox {

namespace program {

// A word of code. AND, OR and XOR: how many words it is with all of its parts. TEST: `null`, `inside`, `ends`, the
// attribute; the next word is the place of its ends among the literals. OPEN: the truth. PLACE: four flags; the next words
// are the attributes of latitude and longitude, and the place of the circle, or of where the area is, among the literals.
// TEST_ELEMENT: as TEST, inside EACH. MORE: a kind, a flag, the attribute. EACH: the kinds AND and OR, whether the whole is
// negated; the next word is how many words it is with the condition that follows. LIKE: whether it is negated; the next word
// is the place among the literals that says where the pattern is. SINCE: a TEST follows.
enum Op : u32 { AND, OR, XOR, TEST, OPEN, PLACE, TEST_ELEMENT, MORE };
enum Kind : u32 { EACH_AND, EACH_OR, LIKE, SINCE, KINDS };

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
static inline u32 kind_of(u32 word) { return word >> 3 & 7; }
static inline bool is_opposite(u32 word) { return word >> 6 & 1; }  // of MORE
static inline bool is_each(u32 word) { return op_of(word) == MORE && kind_of(word) <= EACH_OR; }
static inline bool is_test(u32 op) { return op == TEST || op == TEST_ELEMENT; }
// Words of an instruction, without the condition that follows EACH, and the test that follows SINCE.
static inline u32 length_of_instruction(u32 word) {
  const u32 op = op_of(word);
  return is_test(op) ? 2 : op == PLACE ? 4 : op == MORE && kind_of(word) != SINCE ? 2 : 1;
}
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
constexpr Truth ALL_OPEN = IS_TRUE | IS_FALSE | IS_UNKNOWN;

static inline Truth opposite(Truth of) {
  return Truth((of & IS_UNKNOWN) | (of & IS_TRUE ? IS_FALSE : 0) | (of & IS_FALSE ? IS_TRUE : 0));
}

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
  return is_negated(*code) ? opposite(found) : found;
}

// The lists that the conditions inside EACH ask for, by attribute. Few conditions ask for more than a few.
struct Lists {
  static constexpr u32 MOST = 4;
  u32 count = 0;
  u32 attribute[MOST];
  Details::Elements of[MOST];

  Details::Elements find(u32 wanted, const Details& details) {
    for (u32 at = 0; at < count; ++at)
      if (attribute[at] == wanted) return of[at];
    const Details::Elements list = details.list(wanted);
    if (count < MOST) {
      attribute[count] = wanted;
      of[count++] = list;
    }
    return list;
  }
};

// What an event holds; `details` may be null, and without them there is no `work`. `element` is the one of its `lists` that
// is looked at.
struct Held {
  const i64* keys;
  const Details* details;
  Work* work;
  Lists* lists = nullptr;
  size_t element = 0;
};

// A test of an element; open if the list cannot be told.
static inline Truth test_element(const u32* code, const i64* literals, const Details::Elements& list, size_t at) {
  if (list.given == Details::Given::NO) return ALL_OPEN;
  return test(*code, literals, code[1], at < list.count ? list.keys[at] : MISSING);
}

static inline Truth test_like(const u32* code, const i64* literals, const Held& held) {
  const Details::Text text = held.details->text(attribute_of(*code));
  if (text.given == Details::Given::NO) return ALL_OPEN;
  if (text.given == Details::Given::NOTHING) return IS_UNKNOWN;
  const i64* pattern = literals + list_start(literals[code[1]]);  // its bytes are many, then come these
  const Truth found =
      patterns::matches({reinterpret_cast<const char*>(pattern + 1), size_t(*pattern)}, text.bytes, *held.work);
  return is_opposite(*code) && found != OUT_OF_STEPS ? opposite(found) : found;
}

static inline Truth test_since(const u32* code, const i64* literals, const Held& held) {
  if (held.details->now == MISSING) return ALL_OPEN;
  const i64 key = held.keys[attribute_of(code[1])];
  i64 since;
  if (key == MISSING || __builtin_sub_overflow(key, held.details->now, &since)) since = MISSING;
  return test(code[1], literals, code[2], since);
}

static inline Truth test_each(const u32* code, const i64* literals, const Held& held);

static inline Truth test_more(const u32* code, const i64* literals, const Held& held) {
  if (!held.details) return ALL_OPEN;
  held.work->looked = true;
  switch (kind_of(*code)) {
    case LIKE: return test_like(code, literals, held);
    case SINCE: return test_since(code, literals, held);
    default: return test_each(code, literals, held);
  }
}

static inline u32 length_with_parts(const u32* code) {
  if (op_of(*code) != MORE) return length_of_instruction(*code);
  return is_each(*code) ? code[1] : kind_of(*code) == SINCE ? 3 : 2;
}

// What a program may come to, or OUT_OF_STEPS.
static inline Truth run(const u32* code, const i64* literals, const Held& held) {
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
      truth = test(word, literals, code[1], held.keys[attribute_of(word)]);
      code += 2;
    } else {
      if (op == OPEN) truth = truth_of(word);
      else if (op == PLACE) truth = test_place(code, literals, held.keys);
      else if (op == MORE) {
        truth = test_more(code, literals, held);
        if (truth == OUT_OF_STEPS) return truth;
      } else truth = test_element(code, literals, held.lists->find(attribute_of(word), *held.details), held.element);
      code += length_with_parts(code);
    }
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

static inline Truth test_each(const u32* code, const i64* literals, const Held& held) {
  const Details::Elements list = held.details->list(attribute_of(*code));
  if (list.given == Details::Given::NO) return ALL_OPEN;
  if (list.given == Details::Given::NOTHING) return IS_UNKNOWN;
  const u32 op = kind_of(*code) == EACH_AND ? AND : OR;
  Truth found = FIRST[op];
  Lists lists;
  const bool is_single = op_of(code[2]) == TEST_ELEMENT;  // one test of one list, as most are
  const Details::Elements tested = is_single ? lists.find(attribute_of(code[2]), *held.details) : list;
  for (size_t at = 0; at < list.count && found != DECIDED[op]; ++at) {
    if (!held.work->spend(code[1])) return OUT_OF_STEPS;
    const Truth one = is_single ? test_element(code + 2, literals, tested, at)
                                : run(code + 2, literals, {held.keys, held.details, held.work, &lists, at});
    if (one == OUT_OF_STEPS) return one;
    found = COMBINED.of[op][found][one];
  }
  return is_opposite(*code) ? opposite(found) : found;
}

// What a shape needs, if it is sound: one tree that ends where the shape ends. Otherwise DamagedArray.
struct Needs {
  u32 literals = 0;
  std::vector<u32> lists;     // the literals that say where a list is,
  std::vector<u32> areas;     // or an area,
  std::vector<u32> patterns;  // or a pattern
};

static inline void check_test(const u32* code, u32 attributes, Needs& needs) {
  const char* name = "program_code";
  require(attribute_of(code[0]) < attributes && (code[0] >> 3 & 3) < 3, name, "a test is out of range");
  const u32 place = code[1], used = literals_of(ends_of(code[0]));
  require(place < 1u << 31, name, "a literal is out of range");
  if (ends_of(code[0]) == LIST) needs.lists.push_back(place);
  needs.literals = std::max(needs.literals, place + used);
}

static inline void check_tree(const u32* code, size_t size, u32 attributes, bool inside_each, Needs& needs) {
  const char* name = "program_code";
  std::vector<size_t> ends;  // of the branches around
  size_t at = 0;
  require(size > 0, name, "a shape is empty");
  do {
    require(at < size, name, "a shape ends too early");
    const u32 word = code[at], op = op_of(word);
    const size_t limit = ends.empty() ? size : ends.back();
    if (op <= XOR) {
      require(length_of(word) > 1 && length_of(word) <= limit - at, name, "a branch is empty or too long");
      require(ends.size() < MAX_DEPTH, name, "branches are nested too deeply");
      ends.push_back(at++ + length_of(word));
      continue;
    }
    require(size - at >= length_of_instruction(word), name, "a shape ends too early");
    if (is_test(op)) {
      require(op == TEST || inside_each, name, "a test of an element is outside of a list");
      check_test(code + at, attributes, needs);
    } else if (op == PLACE) {
      require(code[at + 1] < attributes && code[at + 2] < attributes && word >> 7 == 0, name, "a test is out of range");
      const u32 place = code[at + 3];
      require(place < 1u << 31, name, "a literal is out of range");
      if (is_area(word)) needs.areas.push_back(place);
      needs.literals = std::max(needs.literals, place + (is_area(word) ? 1 : places::CIRCLE_WORDS));
    } else if (op == MORE) {
      require(kind_of(word) < KINDS && !(word >> 7 & 1) && attribute_of(word) < attributes, name,
              "an instruction is unknown");
      if (is_each(word)) {
        require(!inside_each, name, "lists are nested");
        require(code[at + 1] > 2 && code[at + 1] <= limit - at, name, "a condition on elements is empty or too long");
        check_tree(code + at + 2, code[at + 1] - 2, attributes, true, needs);
      } else if (kind_of(word) == LIKE) {
        require(code[at + 1] < 1u << 31, name, "a literal is out of range");
        needs.patterns.push_back(code[at + 1]);
        needs.literals = std::max(needs.literals, code[at + 1] + 1);
      } else {
        require(size - at >= length_with_parts(code + at) && op_of(code[at + 1]) == TEST, name,
                "a test of time is none");
        check_test(code + at + 1, attributes, needs);
      }
    } else {
      require(op == OPEN && truth_of(word) && word >> 3 < 8, name, "an instruction is unknown");
    }
    at += length_with_parts(code + at);
    while (!ends.empty() && at >= ends.back()) {
      require(at == ends.back(), name, "a branch ends inside an instruction");
      ends.pop_back();
    }
  } while (!ends.empty());
  require(at == size, name, "a shape has more than one tree");
}

static inline Needs check_shape(const u32* code, size_t size, u32 attributes) {
  Needs needs;
  check_tree(code, size, attributes, false, needs);
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

  // Whether a predicate is true, by keys alone: all three truths are possible if it has no program.
  Truth run(i32 slot, const i64* keys) const {
    const i64 at = slot >= 0 && size_t(slot) < slots ? place[slot] : 0;
    if (!at) return program::ALL_OPEN;
    return program::run(code + shapes[shape_of(words[at - 1])], words + at, {keys, nullptr, nullptr});
  }

  // The same with what the event holds beyond its keys; OUT_OF_STEPS if that takes too much work.
  Truth run(i32 slot, const i64* keys, const Details& details, Work& work) const {
    const i64 at = slot >= 0 && size_t(slot) < slots ? place[slot] : 0;
    if (!at) return program::ALL_OPEN;
    const u32 shape = shape_of(words[at - 1]);
    if (!work.spend(u64(shapes[shape + 1] - shapes[shape]))) return OUT_OF_STEPS;
    return program::run(code + shapes[shape], words + at, {keys, &details, &work});
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
      for (u32 pattern : needs[shape].patterns) {
        const i64 literal = words[at + 1 + pattern];
        const u32 from = program::list_start(literal), length = program::list_size(literal);
        require(length > 0 && u64(from) + length < size, "program_words", "a pattern is out of range");
        require(u64(words[at + 1 + from]) <= u64(length - 1) * sizeof(i64), "program_words", "a pattern is too long");
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
        const u32 word = *next;
        const bool is_test = program::is_test(program::op_of(word));
        const u32 literals = is_test ? next[1] : 0;
        next += program::length_of_instruction(word);
        if (!is_test || program::attribute_of(word) != attribute) continue;
        i64 first = at + literals, size = program::literals_of(program::ends_of(word));
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
