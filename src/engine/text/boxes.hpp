// Conditions -> boxes: the intervals of one attribute are intersected, then what is left is multiplied out. If that would
// be too many boxes, fewer cover them, and a program says what they leave open.
//
// The same as hitbox.language does for a conjunction: the same boxes in the same order, and the same program.
#pragma once

#include "program/program.hpp"
#include "text/conditions.hpp"

namespace hitbox::text {

using Set = std::vector<Interval>;  // sorted; its intervals neither overlap nor touch

static inline void unite(Set& set) {
  set.erase(std::remove_if(set.begin(), set.end(), [](const Interval& one) { return one.low > one.high; }), set.end());
  if (set.size() < 2) return;
  std::sort(set.begin(), set.end(), [](const Interval& a, const Interval& b) { return a.low < b.low; });
  size_t last = 0;
  for (size_t i = 1; i < set.size(); ++i) {
    Interval& before = set[last];
    if (before.high == HIGHEST || set[i].low <= before.high + 1) before.high = std::max(before.high, set[i].high);
    else set[++last] = set[i];
  }
  set.resize(last + 1);
}

static inline void complement(Set& set) {  // among the keys of values
  Set found;
  i64 low = LOWEST;
  bool more = true;
  for (const Interval& one : set) {
    if (one.low > low) found.push_back({low, one.low - 1});
    more = one.high != HIGHEST;
    if (more) low = one.high + 1;
  }
  if (more) found.push_back({low, HIGHEST});
  set.swap(found);
}

static inline void intersect(Set& set, const Set& other) {
  Set found;
  for (size_t i = 0, k = 0; i < set.size() && k < other.size();) {
    const i64 low = std::max(set[i].low, other[k].low), high = std::min(set[i].high, other[k].high);
    if (low <= high) found.push_back({low, high});
    set[i].high < other[k].high ? ++i : ++k;
  }
  set.swap(found);
}

// Without odd keys at the ends, for attributes whose values have even keys.
static inline Interval to_even(Interval one) {
  if (one.low != LOWEST) one.low += one.low & 1;
  if (one.high != HIGHEST) one.high -= one.high & 1;
  return one;
}

// What subscriptions say about themselves: one interval of each of these attributes in every row.
struct Told {
  const int* attributes;
  size_t count;
  const i64 *low, *high;  // row by row
};

struct Made {
  std::vector<i64> counts;  // boxes by row; -1: they do not fit, and the row is Python's
  std::vector<u8> exact;    // by box
  std::vector<i64> offsets{0};
  std::vector<i32> attribute;
  std::vector<i64> low, high;
  std::vector<i64> programmed;                           // the rows that have a program
  std::vector<i64> code_offsets{0}, literal_offsets{0};  // where the program of each begins
  std::vector<u32> code;
  std::vector<i64> literals;
};

// How many boxes a row may have: `most` by row, or `few` where a list is left out (NOT IN), and of several lists.
struct BoxLimits {
  const i64* most;
  size_t few;
};

class Maker {
 public:
  // `keys` has the keys of each attribute's strings, or null. `numbers` are the numbers that the reader's attributes have
  // in boxes; what has none (-1) is Python's.
  Maker(const Reader& reader, const std::vector<const i64*>& keys, const std::vector<int>& numbers, Told told,
        BoxLimits limits)
      : reader_(reader), keys_(keys), numbers_(numbers), told_(told), limits_(limits) {}

  Made make(const Piece& piece) {
    Made made;
    made.counts.reserve(piece.read.size());
    made.attribute.reserve(piece.conditions.size());
    made.low.reserve(piece.conditions.size());
    made.high.reserve(piece.conditions.size());
    size_t condition = 0, interval = 0;
    for (size_t row = 0; row < piece.read.size(); ++row) {
      const size_t end = piece.condition_ends[row];
      if (!piece.read[row]) {
        made.counts.push_back(0);
        continue;
      }
      bool never = false, exact = true, known = true;
      parts_.clear();
      plain_ = true;
      for (; condition < end; ++condition) {
        const Condition& one = piece.conditions[condition];
        const Shape& shape = reader_.shape(one.shape);
        if (shape.meaning == Shape::Meaning::NEVER) never = true;
        else if (numbers_[one.attribute] < 0) known &= cover_pattern(shape), exact = false;
        else add(shape, one.attribute, piece.intervals.data() + interval, one.intervals);
        interval += one.intervals;
      }
      i64 count = known ? 0 : -1;
      if (known && !never && merge()) {
        count = 1;
        if (!fits(size_t(limits_.most[row]))) {
          if (exact) cover(size_t(limits_.most[row]), i64(row), made);
          else count = -1;  // a program would need to know about its LIKE
          exact = false;
        }
        for (size_t i = 0; i < told_.count; ++i) {
          const size_t at = row * told_.count + i;
          parts_.push_back({u32(told_.attributes[i]), {told_.low[at], told_.high[at]}, NO_SET});
        }
        if (told_.count) std::stable_sort(parts_.begin(), parts_.end(), by_attribute);
        if (count > 0) count = multiply(made);
      }
      made.counts.push_back(count);
      made.exact.insert(made.exact.end(), size_t(std::max<i64>(count, 0)), exact);
    }
    return made;
  }

 private:
  static constexpr u32 NO_SET = ~u32(0);
  struct Part {
    u32 attribute;
    Interval one;
    u32 set;  // in sets_, if it is more than an interval
  };
  static bool by_attribute(const Part& a, const Part& b) { return a.attribute < b.attribute; }
  static bool says_nothing(const Part& part) {
    return part.set == NO_SET && part.one.low == MISSING && part.one.high == HIGHEST;
  }

  i64 resolved(const i64* keys, i64 end) const {
    if (!keys || end == LOWEST || end == HIGHEST || end == MISSING) return end;
    return keys[end >> 2] + (end & 3) - 1;
  }

  // A pattern of an attribute that has no number is covered by the strings of the one that it names, if that has one.
  bool cover_pattern(const Shape& shape) {
    const int number = numbers_[shape.attribute];
    if (number >= 0) parts_.push_back({u32(number), {LOWEST, HIGHEST}, NO_SET});
    return number >= 0;
  }

  void add(const Shape& shape, u32 attribute, const Interval* at, size_t count) {
    const Codec& codec = reader_.codec(attribute);
    const i64* keys = keys_[attribute];
    const u32 number = u32(numbers_[attribute]);
    auto end_of = [&](const Interval& one) { return Interval{resolved(keys, one.low), resolved(keys, one.high)}; };
    if (shape.single) {
      Interval one = end_of(*at);
      const Test test = shape.tests[0];
      if (test != Test::IS_NULL && test != Test::IS_NOT_NULL) {
        if (codec.even) one = to_even(one);
        if (codec.type == Type::BOOL) one = {std::max<i64>(one.low, 0), std::min<i64>(one.high, 1)};
      }
      parts_.push_back({number, one, NO_SET});
      return;
    }
    plain_ = false;
    Set all, leaf;
    const Interval* end = at + count;
    bool first = true;
    for (const Test test : shape.tests) {
      size_t size = one_interval(test) ? 1 : 2;
      if (test == Test::IN || test == Test::NOT_IN) size = size_t(at++->low);
      leaf.clear();
      for (size_t i = 0; i < size && at < end; ++i) leaf.push_back(end_of(*at++));
      unite(leaf);
      if (test == Test::NOT_IN) complement(leaf);
      if (test != Test::IS_NULL && test != Test::IS_NOT_NULL) {
        if (codec.even) {
          for (Interval& one : leaf) one = to_even(one);
          leaf.erase(std::remove_if(leaf.begin(), leaf.end(), [](const Interval& one) { return one.low > one.high; }),
                     leaf.end());
        }
        if (codec.type == Type::BOOL) intersect(leaf, BOOLS);
      }
      if (first) all = leaf;
      else if (shape.any) all.insert(all.end(), leaf.begin(), leaf.end());
      else intersect(all, leaf);
      first = false;
    }
    if (shape.any && shape.tests.size() > 1) unite(all);
    if (sets_.size() <= parts_.size()) sets_.resize(parts_.size() + 1);
    const u32 set = u32(parts_.size());
    sets_[set].swap(all);
    parts_.push_back({number, NO_KEYS, set});
  }

  // One part per attribute, in their order; false if nothing is left.
  bool merge() {
    if (!std::is_sorted(parts_.begin(), parts_.end(), by_attribute))
      std::stable_sort(parts_.begin(), parts_.end(), by_attribute);
    size_t kept = 0;
    for (size_t i = 0; i < parts_.size();) {
      Part part = parts_[i++];
      for (; i < parts_.size() && parts_[i].attribute == part.attribute; ++i) {
        const Part& other = parts_[i];
        if (part.set == NO_SET && other.set == NO_SET) {
          part.one = {std::max(part.one.low, other.one.low), std::min(part.one.high, other.one.high)};
        } else if (part.set == NO_SET) {
          intersect(sets_[other.set], {part.one});
          part.set = other.set;
        } else {
          intersect(sets_[part.set], other.set == NO_SET ? Set{other.one} : sets_[other.set]);
        }
      }
      if (part.set == NO_SET ? part.one.low > part.one.high : sets_[part.set].empty()) return false;
      if (part.set != NO_SET && sets_[part.set].size() == 1) {
        part.one = sets_[part.set][0];
        part.set = NO_SET;
      }
      if (!says_nothing(part)) parts_[kept++] = part;
    }
    parts_.resize(kept);
    return true;
  }

  // Everything but some keys, as that of a NOT IN.
  static bool leaves_keys_out(const Set& set) { return set[0].low <= LOWEST && set.back().high == HIGHEST; }
  static bool are_points(const Set& set) {
    return std::all_of(set.begin(), set.end(), [](const Interval& one) { return one.low == one.high; });
  }

  // Whether the boxes are few enough to be exact.
  bool fits(size_t most) const {
    size_t count = 1;
    bool left_out = false;
    if (!plain_)
      for (const Part& part : parts_) {
        if (part.set == NO_SET) continue;
        const Set& set = sets_[part.set];
        count *= set.size();
        left_out |= leaves_keys_out(set);
        if (count > most || (count > limits_.few && left_out)) return false;
      }
    return count <= most;
  }

  // Writes the program of the parts, then widens their sets to one interval each, as `_widened` in language/boxes/normal.py.
  void cover(size_t most, i64 row, Made& made) {
    write_program(row, made);
    std::vector<u32> order;
    for (u32 i = 0; i < parts_.size(); ++i)
      if (parts_[i].set != NO_SET) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](u32 a, u32 b) {
      const Set &one = sets_[parts_[a].set], &other = sets_[parts_[b].set];
      const bool points = are_points(one);
      return points != are_points(other) ? points : one.size() < other.size();
    });
    size_t count = 1;
    for (u32 i : order) {
      Part& part = parts_[i];
      const Set& set = sets_[part.set];
      const size_t room = count == 1 ? most : std::min(most, limits_.few);
      if (count * set.size() > room || leaves_keys_out(set)) {
        part.one = {set[0].low, set.back().high};
        part.set = NO_SET;
      } else {
        count *= set.size();
      }
    }
    parts_.erase(std::remove_if(parts_.begin(), parts_.end(), [](const Part& part) { return says_nothing(part); }),
                 parts_.end());
  }

  // The tests of all parts: those of few intervals first (program/program.hpp).
  void write_program(i64 row, Made& made) {
    std::vector<u32> order(parts_.size());
    for (u32 i = 0; i < parts_.size(); ++i) order[i] = i;
    auto size_of = [&](u32 i) { return parts_[i].set == NO_SET ? size_t(1) : sets_[parts_[i].set].size(); };
    std::stable_sort(order.begin(), order.end(), [&](u32 a, u32 b) { return size_of(a) < size_of(b); });
    const size_t first = made.literals.size();
    if (parts_.size() > 1) made.code.push_back(program::AND | u32(1 + 2 * parts_.size()) << 3);
    std::vector<std::pair<size_t, u32>> lists;
    for (u32 i : order) {
      const Part& part = parts_[i];
      const Interval* intervals = part.set == NO_SET ? &part.one : sets_[part.set].data();
      bool inside;
      const size_t ends = each_end(intervals, size_of(i), inside, [](i64) {});
      const u32 kind = u32(std::min<size_t>(ends, program::LIST));
      const u32 null = intervals[0].low == MISSING ? 0 : 1;
      made.code.push_back(program::TEST | null << 3 | u32(inside) << 5 | kind << 6 | part.attribute << 8);
      made.code.push_back(u32(made.literals.size() - first));
      if (kind == program::LIST) {
        lists.push_back({made.literals.size(), i});
        made.literals.push_back(i64(ends) << 32);
      } else {
        each_end(intervals, size_of(i), inside, [&](i64 end) { made.literals.push_back(end); });
      }
    }
    for (const auto& [place, i] : lists) {
      bool inside;
      made.literals[place] |= i64(made.literals.size() - first);
      each_end(sets_[parts_[i].set].data(), size_of(i), inside, [&](i64 end) { made.literals.push_back(end); });
    }
    made.programmed.push_back(row);
    made.code_offsets.push_back(i64(made.code.size()));
    made.literal_offsets.push_back(i64(made.literals.size()));
  }

  // Calls use(key) for the keys at which a set begins or ends, and returns how many they are. `inside`: whether the lowest
  // key of a value is in it.
  template <class Use>
  static size_t each_end(const Interval* intervals, size_t size, bool& inside, Use use) {
    size_t count = 0;
    inside = false;
    for (size_t i = 0; i < size; ++i) {
      const Interval one = intervals[i];
      if (one.high < LOWEST) continue;  // only what is missing
      if (one.low <= LOWEST) inside = true;
      else use(one.low), ++count;
      if (one.high < HIGHEST) use(one.high + 1), ++count;
    }
    return count;
  }

  i64 multiply(Made& made) {
    size_t count = 1;
    for (const Part& part : parts_)
      if (part.set != NO_SET) count *= sets_[part.set].size();
    turn_.assign(parts_.size(), 0);
    for (size_t box = 0; box < count; ++box) {
      for (size_t i = 0; i < parts_.size(); ++i) {
        const Part& part = parts_[i];
        const Interval& one = part.set == NO_SET ? part.one : sets_[part.set][turn_[i]];
        made.attribute.push_back(i32(part.attribute));
        made.low.push_back(one.low);
        made.high.push_back(one.high);
      }
      made.offsets.push_back(i64(made.attribute.size()));
      for (size_t i = parts_.size(); i-- > 0;) {  // the last attribute turns fastest
        if (parts_[i].set == NO_SET) continue;
        if (++turn_[i] < sets_[parts_[i].set].size()) break;
        turn_[i] = 0;
      }
    }
    return i64(count);
  }

  inline static const Set BOOLS{{0, 1}};
  const Reader& reader_;
  const std::vector<const i64*>& keys_;
  const std::vector<int>& numbers_;
  Told told_;
  BoxLimits limits_;
  bool plain_ = true;
  std::vector<Part> parts_;
  std::vector<Set> sets_;
  std::vector<size_t> turn_;
};

}  // namespace hitbox::text
