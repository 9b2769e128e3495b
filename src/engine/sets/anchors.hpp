// Covers that are found by a member of a set, not by their boxes: `ANY(tags) = 'x'`, `name LIKE '%abc%'`.
//
//   anchor   kind  name of the set  NUL  member        "=tags\0x"   "%name\0abc"
//
// An event brings sets: the elements of a list, or the fragments that a text contains. The anchor of a cover is one
// member. Covers are sorted by anchor, so those of one member are neighbours, and a member is found in a hash table
// (kind =) or by the automaton over all members of its set (kinds % and ~). A cover that is found is compared with the
// event by its box, which may say more: `price > 3 AND name LIKE '%abc%'`.
//
// A segment never changes, but its covers die. Whoever changes covers makes a new segment from some old ones and what
// comes. Automata are built when a text is searched for the first time.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.hpp"
#include "sets/automaton.hpp"
#include "text/text_table.hpp"

namespace hitbox::sets {

constexpr char ELEMENT = '=', FRAGMENT = '%', FOLDED = '~';

// A cover as it comes: its number, its box, its anchor.
struct Cover {
  std::string_view anchor;
  i64 number;
  u8 priority;
  u32 constraints;
  const u16* attribute;
  const i64 *low, *high;
};

// The anchor's set, with the NUL behind it.
inline std::string_view set_of(std::string_view anchor) {
  const size_t end = anchor.find('\0');
  const bool known = !anchor.empty() && (anchor[0] == ELEMENT || anchor[0] == FRAGMENT || anchor[0] == FOLDED);
  if (!known || end == std::string_view::npos || (anchor[0] != ELEMENT && end + 1 == anchor.size()))
    throw std::invalid_argument("an anchor names a set and a member of it");
  return anchor.substr(0, end + 1);
}

// Members of one segment that an event was found to have. Open addressing.
class Seen {
 public:
  // Whether a member comes for the first time.
  bool add(u32 member) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    size_t at = place(member);
    while (slots_[at] != NONE) {
      if (slots_[at] == member) return false;
      at = (at + 1) & (slots_.size() - 1);
    }
    slots_[at] = member;
    ++size_;
    return true;
  }
  void clear() {
    if (!size_) return;
    if (slots_.size() > 16 * size_) slots_.resize(FEWEST);
    std::fill(slots_.begin(), slots_.end(), NONE);
    size_ = 0;
  }

 private:
  static constexpr size_t FEWEST = 64;

  size_t place(u32 member) const { return (member * 0x9E3779B1u >> 3) & (slots_.size() - 1); }
  void grow() {
    std::vector<u32> old(std::max(FEWEST, 2 * slots_.size()), NONE);
    old.swap(slots_);
    for (u32 member : old)
      if (member != NONE) {
        size_t at = place(member);
        while (slots_[at] != NONE) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = member;
      }
  }

  std::vector<u32> slots_;
  size_t size_ = 0;
};

class AnchorSegment {
 public:
  // Covers that are sorted by anchor.
  AnchorSegment(const std::vector<Cover>& covers, text::Seed seed) : seed_(seed) {
    const size_t count = covers.size();
    if (count >= NONE) throw std::length_error("too many covers");
    size_t constraints = 0, bytes = 0;
    for (size_t at = 0; at < count; ++at) {
      constraints += covers[at].constraints;
      if (!at || covers[at].anchor != covers[at - 1].anchor) bytes += covers[at].anchor.size();
    }
    numbers_.reserve(count);
    priority_.reserve(count);
    ends_.reserve(count + 1);
    attribute_.reserve(constraints);
    low_.reserve(constraints);
    high_.reserve(constraints);
    data_.reserve(bytes);
    ends_.push_back(0);
    std::string_view set;
    for (size_t at = 0; at < count; ++at) {
      const Cover& cover = covers[at];
      if (!at || cover.anchor != covers[at - 1].anchor) {
        const std::string_view of = set_of(cover.anchor);
        if (sets_.empty() || of != set) {
          sets_.push_back(std::make_unique<Set>());
          sets_.back()->name = std::string(of);
          sets_.back()->first = u32(first_.size());
          set = of;
        }
        first_.push_back(u32(at));
        data_.insert(data_.end(), cover.anchor.begin(), cover.anchor.end());
        member_ends_.push_back(data_.size());
        sets_.back()->end = u32(first_.size());
      }
      numbers_.push_back(u32(cover.number));
      priority_.push_back(cover.priority);
      attribute_.insert(attribute_.end(), cover.attribute, cover.attribute + cover.constraints);
      for (u32 i = 0; i < cover.constraints; ++i) attributes_ = std::max(attributes_, u32(cover.attribute[i]) + 1);
      low_.insert(low_.end(), cover.low, cover.low + cover.constraints);
      high_.insert(high_.end(), cover.high, cover.high + cover.constraints);
      ends_.push_back(attribute_.size());
    }
    first_.push_back(u32(count));
    alive_.assign(count / 64 + 1, ~u64(0));
    live_ = count;
    by_number_.resize(count);
    for (u32 row = 0; row < count; ++row) by_number_[row] = row;
    std::sort(by_number_.begin(), by_number_.end(), [&](u32 a, u32 b) { return numbers_[a] < numbers_[b]; });
    for (auto& one : sets_)
      if (one->name[0] == ELEMENT) hash_members(*one);
  }
  AnchorSegment(const AnchorSegment&) = delete;
  AnchorSegment& operator=(const AnchorSegment&) = delete;

  size_t size() const { return numbers_.size(); }
  size_t live() const { return live_; }
  u32 attributes() const { return attributes_; }
  bool alive(u32 row) const { return bit(alive_.data(), row); }
  u32 number(u32 row) const { return numbers_[row]; }
  std::vector<std::string_view> sets() const {
    std::vector<std::string_view> found;
    for (const auto& one : sets_) found.push_back(one->name);
    return found;
  }

  // The living cover with this number, or NONE.
  u32 row_of(i64 number) const {
    auto at = std::lower_bound(by_number_.begin(), by_number_.end(), number,
                               [&](u32 row, i64 wanted) { return i64(numbers_[row]) < wanted; });
    return at != by_number_.end() && i64(numbers_[*at]) == number && alive(*at) ? *at : NONE;
  }

  void kill(u32 row) {
    live_ -= alive(row);
    alive_[row / 64] &= ~(u64(1) << (row & 63));
  }

  Cover cover(u32 row) const {
    const size_t from = ends_[row];
    return {
        anchor(row),        i64(numbers_[row]), priority_[row], u32(ends_[row + 1] - from), attribute_.data() + from,
        low_.data() + from, high_.data() + from};
  }

  // Calls found(member) for the members of a set that a value brings: itself, or the fragments in it.
  template <class Found>
  void find(std::string_view set, std::string_view value, Found found) const {
    const Set* of = find_set(set);
    if (!of) return;
    if (set[0] == ELEMENT) {
      const size_t mask = of->slots.size() - 1;
      for (size_t at = text::hash_of(value, seed_) & mask; of->slots[at] != NONE; at = (at + 1) & mask)
        if (member(of->slots[at]).substr(of->name.size()) == value) {
          found(of->slots[at]);
          return;
        }
    } else {
      automaton(*of).search(value, [&](u32 word) { return found(of->first + word); });
    }
  }
  // The same for all members of a set.
  template <class Found>
  void find_all(std::string_view set, Found found) const {
    if (const Set* of = find_set(set))
      for (u32 one = of->first; one < of->end; ++one) found(one);
  }

  // Calls use(number, priority) for the living covers with this anchor whose box meets a point.
  template <class Use>
  void meeting(u32 member, const i64* low, const i64* high, Use use) const {
    for (u32 row = first_[member]; row < first_[member + 1]; ++row) {
      if (!alive(row)) continue;
      size_t at = ends_[row];
      const size_t end = ends_[row + 1];
      while (at < end && low[attribute_[at]] <= high_[at] && high[attribute_[at]] >= low_[at]) ++at;
      if (at == end) use(numbers_[row], priority_[row]);
    }
  }

  size_t bytes() const {
    size_t total = size() * (4 + 1 + 8 + 4) + attribute_.size() * 18 + first_.size() * 12 + data_.size();
    for (const auto& one : sets_) {
      total += one->slots.size() * 4;
      if (const Automaton* made = one->automaton.load()) total += made->bytes();
    }
    return total;
  }

 private:
  struct Set {
    std::string name;
    u32 first = 0, end = 0;  // of its members
    std::vector<u32> slots;  // of kind =: members by hash
    mutable std::mutex lock;
    mutable std::atomic<const Automaton*> automaton{nullptr};  // of the other kinds

    ~Set() { delete automaton.load(); }
  };

  std::string_view member(u32 one) const {
    const size_t from = one ? member_ends_[one - 1] : 0;
    return {data_.data() + from, member_ends_[one] - from};
  }
  std::string_view anchor(u32 row) const {
    return member(u32(std::upper_bound(first_.begin(), first_.end() - 1, row) - first_.begin()) - 1);
  }

  const Set* find_set(std::string_view name) const {
    auto at = std::lower_bound(sets_.begin(), sets_.end(), name,
                               [](const auto& one, std::string_view wanted) { return one->name < wanted; });
    return at != sets_.end() && (*at)->name == name ? at->get() : nullptr;
  }

  void hash_members(Set& of) {
    size_t room = 16;
    while (room < 2 * size_t(of.end - of.first)) room *= 2;
    of.slots.assign(room, NONE);
    for (u32 one = of.first; one < of.end; ++one) {
      size_t at = text::hash_of(member(one).substr(of.name.size()), seed_) & (room - 1);
      while (of.slots[at] != NONE) at = (at + 1) & (room - 1);
      of.slots[at] = one;
    }
  }

  const Automaton& automaton(const Set& of) const {
    if (const Automaton* made = of.automaton.load(std::memory_order_acquire)) return *made;
    std::lock_guard<std::mutex> guard(of.lock);
    if (!of.automaton.load()) {
      std::vector<std::string_view> words;
      words.reserve(of.end - of.first);
      for (u32 one = of.first; one < of.end; ++one) words.push_back(member(one).substr(of.name.size()));
      of.automaton.store(new Automaton(words), std::memory_order_release);
    }
    return *of.automaton.load();
  }

  text::Seed seed_;
  std::vector<std::unique_ptr<Set>> sets_;
  std::vector<char> data_;  // the anchors, one after the other
  std::vector<size_t> member_ends_;
  std::vector<u32> first_;  // by member: the first of its covers
  std::vector<u32> numbers_, by_number_;
  std::vector<u8> priority_;
  std::vector<size_t> ends_;  // by cover: where its constraints begin
  std::vector<u16> attribute_;
  std::vector<i64> low_, high_;
  std::vector<u64> alive_;
  size_t live_ = 0;
  u32 attributes_ = 0;
};

}  // namespace hitbox::sets
