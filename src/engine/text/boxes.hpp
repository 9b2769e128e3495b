// Conditions -> boxes: the intervals of one attribute are intersected, then what is left is multiplied out.
//
// The same as hitbox.language.normal does for a conjunction: the same boxes in the same order.
#pragma once

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
  std::vector<i64> counts;  // boxes by row; -1: more than the limit, which is Python's to say
  std::vector<u8> exact;    // by box
  std::vector<i64> offsets{0};
  std::vector<i32> attribute;
  std::vector<i64> low, high;
};

class Maker {
 public:
  // `keys` has the keys of each attribute's strings, or null.
  Maker(const Reader& reader, const std::vector<const i64*>& keys, Told told, size_t most)
      : reader_(reader), keys_(keys), told_(told), most_(most) {}

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
      bool never = false, exact = true;
      parts_.clear();
      plain_ = true;
      for (; condition < end; ++condition) {
        const Condition& one = piece.conditions[condition];
        const Shape& shape = reader_.shape(one.shape);
        exact &= !one.wild;
        if (shape.meaning == Shape::Meaning::NEVER) never = true;
        else add(shape, piece.intervals.data() + interval, one.intervals);
        interval += one.intervals;
      }
      for (size_t i = 0; i < told_.count; ++i) {
        const size_t at = row * told_.count + i;
        parts_.push_back({u32(told_.attributes[i]), {told_.low[at], told_.high[at]}, NO_SET});
      }
      const i64 count = never || !merge() ? 0 : multiply(made);
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

  i64 resolved(const i64* keys, i64 end) const {
    if (!keys || end == LOWEST || end == HIGHEST || end == MISSING) return end;
    return keys[end >> 2] + (end & 3) - 1;
  }

  void add(const Shape& shape, const Interval* at, size_t count) {
    const Codec& codec = reader_.codec(shape.attribute);
    const i64* keys = keys_[shape.attribute];
    auto end_of = [&](const Interval& one) { return Interval{resolved(keys, one.low), resolved(keys, one.high)}; };
    if (shape.single) {
      Interval one = end_of(*at);
      const Test test = shape.tests[0];
      if (test != Test::IS_NULL && test != Test::IS_NOT_NULL) {
        if (codec.even) one = to_even(one);
        if (codec.type == Type::BOOL) one = {std::max<i64>(one.low, 0), std::min<i64>(one.high, 1)};
      }
      parts_.push_back({shape.attribute, one, NO_SET});
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
    parts_.push_back({shape.attribute, NO_KEYS, set});
  }

  // One part per attribute, in their order; false if nothing is left.
  bool merge() {
    auto before = [](const Part& a, const Part& b) { return a.attribute < b.attribute; };
    if (!std::is_sorted(parts_.begin(), parts_.end(), before)) std::stable_sort(parts_.begin(), parts_.end(), before);
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
      if (part.set == NO_SET && part.one.low == MISSING && part.one.high == HIGHEST) continue;  // it says nothing
      parts_[kept++] = part;
    }
    parts_.resize(kept);
    return true;
  }

  i64 multiply(Made& made) {
    size_t count = 1;
    if (!plain_)
      for (const Part& part : parts_) {
        if (part.set == NO_SET) continue;
        count *= sets_[part.set].size();
        if (count > most_) return -1;
      }
    if (count > most_) return -1;
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
  Told told_;
  size_t most_;
  bool plain_ = true;
  std::vector<Part> parts_;
  std::vector<Set> sets_;
  std::vector<size_t> turn_;
};

}  // namespace hitbox::text
