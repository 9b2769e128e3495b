// From the numbers of boxes that matched to the ids of their subscriptions.
//
//   numbers  ->  owner[number] = slot  ->  each slot once, in doubt where no exact box of it matched  ->  ids
//                                          programs decide most of these doubts
#pragma once

#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "base/common.hpp"
#include "base/prefetch.hpp"
#include "program/program.hpp"

namespace hitbox {

namespace nb = nanobind;

template <class T>
using Frozen = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Changed = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Slots in memory of allocate().
struct Slots {
  i32* data = nullptr;
  size_t size = 0;

  Slots() = default;
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;
  ~Slots() { free_memory(data); }
  void need(size_t room) { reallocate(data, room); }
};

// The ids of slots: a frozen part, int64 or texts, and a Python list of those that came later.
class Ids {
 public:
  Ids(Frozen<i64> numbers, nb::list late)
      : numbers_(numbers), late_(late), frozen_(numbers.size()), consecutive_(are_consecutive()) {}
  Ids(Frozen<i64> offsets, Frozen<u8> data, nb::list late);
  Ids(const Ids&) = delete;
  Ids& operator=(const Ids&) = delete;
  ~Ids() {
    for (PyObject* one : kept_) Py_XDECREF(one);
  }

  // A Python list of ids. Once many were asked for, their objects are kept: to find one is quicker than to make one.
  nb::object list(const i32* slots, size_t count);
  // (ids, None), or of texts (offsets, bytes): what an Arrow array is made of.
  nb::tuple columns(const i32* slots, size_t count) const;
  // The same for the slots of many events: those of event e are slots [events[e], events[e + 1]).
  nb::tuple columns(const i32* slots, const i64* events, size_t event_count) const;
  // The rank of the first frozen id that is not below `id`; `order` sorts them, or is null where they are sorted.
  size_t rank(nb::handle id, const i64* order) const;
  size_t bytes() const { return lengths_.size() + kept_.size() * sizeof(PyObject*) + kept_count_ * (text_ ? 64 : 32); }

 private:
  static constexpr size_t MOST_KEPT = size_t(1) << 22;
  static constexpr size_t MADE_TOGETHER = 64;  // objects of neighbouring slots, so that they are neighbours in memory
  static constexpr u8 LONG = 255;              // a text of this length or more

  PyObject* made(size_t slot) const;
  bool keep_around(size_t slot);
  i64 length(i32 slot) const {
    u8 short_length = lengths_[size_t(slot)];
    return short_length < LONG ? short_length : numbers_.data()[slot + 1] - numbers_.data()[slot];
  }
  void fetch_ahead(const i32* slots, size_t at, size_t count) const;
  bool are_consecutive() const;
  bool any_late(const i32* slots, size_t count) const;
  i64 late_number(i32 slot) const;
  std::pair<const char*, i64> raw_text(i32 slot) const;

  bool text_ = false;
  Frozen<i64> numbers_;  // of texts: where each begins
  Frozen<u8> data_;
  nb::list late_;
  size_t frozen_;
  bool consecutive_ = false;     // the frozen numbers ascend by one
  std::vector<u8> lengths_;      // of texts, at most LONG: the size of a result needs no more
  std::vector<PyObject*> kept_;  // the objects of frozen slots that were asked for
  size_t kept_count_ = 0, asked_ = 0;
};

// The programs of slots (program/program.hpp).
class Programs {
 public:
  Programs(Frozen<i64> place, Frozen<i64> words, Frozen<u32> code, Frozen<i64> shapes);

  const ProgramView& view() const { return view_; }

 private:
  Frozen<i64> place_, words_;
  Frozen<u32> code_;
  Frozen<i64> shapes_;
  ProgramView view_;
};

// The steps that a look may take, and all looks at one event; no bound on these if it is negative.
struct LookBudget {
  i64 each, together;
};

// The keys of one event. `free` are the attributes that events do not carry: they meet everything.
struct EventPoint {
  const i64 *low, *high;
  u32 attributes;
  const std::vector<u32>& free;

  // Not if an attribute is an interval. (A function of an interval may be anything, and begins at MISSING, too.)
  bool is_point() const;
};

// Which slot a box belongs to.
struct Owners {
  Owners(Frozen<i64> owner_of, Frozen<u8> is_exact, Frozen<i32> box_count, bool is_plain, bool is_direct,
         nb::object slot_programs)
      : owner(owner_of), exact(is_exact), count(box_count), plain(is_plain), direct(is_direct), held(slot_programs),
        programs(slot_programs.is_none() ? nullptr : &nb::cast<const Programs&>(slot_programs).view()) {}

  // The slots of some boxes.
  void slots(const i32* numbers, size_t size, i32* out) const;
  // The same behind what `out` holds, each once, in the order in which they come first. `doubtful` are the places in
  // `out` of those whose predicate has to be evaluated: no exact box of theirs is among the numbers. A box counts as
  // exact only where `sure` says so too, which may be null.
  void settle(const i32* numbers, const u8* sure, size_t size, Slots& out, std::vector<i64>& doubtful) const;

  // Runs the programs of the slots at `doubtful`, from `first` on. Those that are false are taken out of `out`; those that
  // are true are not doubtful any more, unless they are `asked` something else, too.
  void decide(const EventPoint& event, bool asked, Slots& out, std::vector<i64>& doubtful, size_t first) const;

  // Runs the programs of the slots at `doubtful`, from `first` on, with all that the event holds: those that are false are
  // taken out of `out`, and those that are true are not doubtful any more. `taken` are the steps of those that had to look
  // beyond keys. False, and nothing is decided, if all looks together need more than the budget allows. Python's lock is
  // held.
  bool look(const i64* keys, const Details& details, const LookBudget& budget, Slots& out, std::vector<i64>& doubtful,
            size_t first, i64& taken) const;

  // Those of `doubtful` for which `holds`, a function of a list of slots, says False are taken out of `slots`.
  template <class Holds>
  static void drop_denied(Holds holds, const std::vector<i64>& doubtful, Slots& slots) {
    nb::list asked;
    for (i64 place : doubtful) asked.append(slots.data[place]);
    const nb::list answers = nb::cast<nb::list>(holds(asked));
    size_t kept = size_t(doubtful[0]);
    for (size_t at = kept, doubt = 0; at < slots.size; ++at) {
      const bool dropped =
          doubt < doubtful.size() && size_t(doubtful[doubt]) == at && !nb::cast<bool>(answers[doubt++]);
      if (!dropped) slots.data[kept++] = slots.data[at];
    }
    slots.size = kept;
  }

  // Asks for the memory of the programs that come after the one at `doubtful[at]`, the first of which is at `first`.
  void fetch_programs(const Slots& out, const std::vector<i64>& doubtful, size_t first, size_t at) const;

  Frozen<i64> owner;
  Frozen<u8> exact;
  Frozen<i32> count;
  bool plain;   // every subscription is one exact box
  bool direct;  // every box has the number of its slot
  nb::object held;
  const ProgramView* programs;  // null if there are none
};

void bind_owners(nb::module_& m);

}  // namespace hitbox
