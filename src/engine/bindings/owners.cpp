#include "bindings/owners.hpp"

#include <algorithm>

#include "bindings/document_batch.hpp"
#include "bindings/event_details.hpp"
#include "bindings/numpy_memory.hpp"
#include "bindings/released_gil.hpp"

namespace hitbox {
namespace {

constexpr i64 PIECE = 1 << 22;  // ids between two looks for signals
constexpr i64 SHORT = 4096;     // ids for which Python's lock is not given back
constexpr i64 SHORT_TEXT = 32;  // bytes that are copied without looking at the length
constexpr i64 AHEAD = PrefetchDistance::GATHER;
constexpr u64 WORDS_BETWEEN = u64(1) << 24;  // of programs that are run between two looks for signals

// Calls use(i, values[at[i]]) for i in [from, to). The values lie all over the memory, so they are asked for in advance.
template <class T, class Use>
inline void gather(const T* values, const i32* at, size_t from, size_t to, Use use) {
  size_t i = from;
  for (; i + PrefetchDistance::GATHER_OUTER < to; ++i) {
    prefetch_outer(values + at[i + PrefetchDistance::GATHER_OUTER]);
    prefetch(values + at[i + PrefetchDistance::GATHER]);
    use(i, values + at[i]);
  }
  for (; i < to; ++i) use(i, values + at[i]);
}

inline void set_item(PyObject* list, size_t at, PyObject* item) {
#ifdef Py_LIMITED_API
  PyList_SetItem(list, Py_ssize_t(at), item);
#else
  PyList_SET_ITEM(list, Py_ssize_t(at), item);
#endif
}

// [0, count) as items for `in_pieces`.
std::vector<i64> cut(size_t count) {
  std::vector<i64> ends{0};
  while (ends.back() < i64(count)) ends.push_back(std::min(i64(count), ends.back() + PIECE));
  return ends;
}

// Calls work(from, to) for pieces of [0, count), as large as PIECE ids are together, without Python's lock; signal
// handlers run in between. The ids of item i are [ends[i], ends[i + 1]).
template <class Work>
void in_pieces(const i64* ends, size_t count, Work work) {
  if (ends[count] <= SHORT) return work(0, count);
  for (size_t from = 0, to; from < count; from = to) {
    {
      ReleasedGil free;
      to = from + 1;
      while (to < count && ends[to + 1] - ends[from] <= PIECE) ++to;
      work(from, to);
    }
    if (PyErr_CheckSignals()) throw nb::python_error();
  }
}

// Calls use(event, begin, end) for all places of slots [events[from], events[to]), the places of each event in ascending
// order. The slots of many events are visited stretch by stretch, so that what belongs to a stretch of slots stays in
// cache: the slots of an event are a few ascending runs, if the engine chose their order.
template <class Use>
void each_stretch(const i32* slots, const i64* events, size_t from, size_t to, size_t slot_count, Use use) {
  constexpr size_t STRETCH = size_t(1) << 15;
  constexpr i64 MIN_PLACES = 8;  // per event and stretch
  constexpr u32 RUNS = 2;
  std::vector<i64> next(events + from, events + to);
  const i64 stretches = i64(slot_count / STRETCH + 1);
  const bool many = to - from > 1 && events[to] - events[from] >= MIN_PLACES * stretches * i64(to - from);
  for (u32 run = 0; many && run < RUNS; ++run)
    for (size_t end = STRETCH; end < slot_count + STRETCH; end += STRETCH)
      for (size_t e = from; e < to; ++e) {
        i64 begin = next[e - from], at = begin;
        while (at < events[e + 1] && size_t(slots[at]) < end) ++at;
        if (at > begin) use(e, begin, at);
        next[e - from] = at;
      }
  for (size_t e = from; e < to; ++e)
    if (next[e - from] < events[e + 1]) use(e, next[e - from], events[e + 1]);
}

// Places of slots in a result: a few are compared one by one, more are hashed. Open addressing; as large as the slots that
// several boxes may belong to are many.
class Places {
 public:
  // The place that `slot` has already, or `fresh`, which it gets now.
  size_t find(i32 slot, size_t fresh) {
    if (used_ <= FEW) {
      for (size_t at = 0; at < used_; ++at)
        if (few_[at].slot == slot) return few_[at].place;
      if (used_ < FEW) {
        few_[used_++] = {slot, fresh};
        return fresh;
      }
      for (const Entry& one : few_) put(one);
    }
    if (2 * (used_ + 1) > entries_.size()) grow();
    for (size_t at = start(slot);; at = (at + 1) & mask_) {
      if (entries_[at].slot == slot) return entries_[at].place;
      if (entries_[at].slot >= 0) continue;
      entries_[at] = {slot, fresh};
      ++used_;
      return fresh;
    }
  }

 private:
  struct Entry {
    i32 slot = -1;
    size_t place = 0;
  };

  size_t start(i32 slot) const { return (u32(slot) * 0x9E3779B1u >> 4) & mask_; }

  void grow() {
    std::vector<Entry> old(std::max<size_t>(8 * FEW, 2 * entries_.size()));
    old.swap(entries_);
    mask_ = entries_.size() - 1;
    for (const Entry& one : old)
      if (one.slot >= 0) put(one);
  }
  void put(const Entry& one) {
    if (entries_.empty()) grow();
    size_t at = start(one.slot);
    while (entries_[at].slot >= 0) at = (at + 1) & mask_;
    entries_[at] = one;
  }

  static constexpr size_t FEW = 16;
  Entry few_[FEW];
  std::vector<Entry> entries_;
  size_t mask_ = 0, used_ = 0;
};

}  // namespace

// ---- ids

Ids::Ids(Frozen<i64> offsets, Frozen<u8> data, nb::list late)
    : text_(true), numbers_(offsets), data_(data), late_(late), frozen_(offsets.size() - 1), lengths_(frozen_) {
  const i64* at = numbers_.data();
  for (size_t slot = 0; slot < frozen_; ++slot) lengths_[slot] = u8(std::min<i64>(LONG, at[slot + 1] - at[slot]));
}

// Ids are often the numbers of rows, which need not be read.
bool Ids::are_consecutive() const {
  for (size_t i = 1; i < frozen_; ++i)
    if (numbers_.data()[i] != numbers_.data()[i - 1] + 1) return false;
  return true;
}

PyObject* Ids::made(size_t slot) const {
  const i64* at = numbers_.data() + slot;
  if (!text_) return PyLong_FromLongLong(at[0]);
  return PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(data_.data()) + at[0], Py_ssize_t(at[1] - at[0]), nullptr);
}

// False if an object cannot be made.
bool Ids::keep_around(size_t slot) {
  size_t from = slot / MADE_TOGETHER * MADE_TOGETHER, to = std::min(frozen_, from + MADE_TOGETHER);
  for (size_t at = from; at < to; ++at) {
    if (kept_[at]) continue;
    kept_[at] = made(at);
    if (!kept_[at]) return false;
    ++kept_count_;
  }
  return true;
}

void Ids::fetch_ahead(const i32* slots, size_t at, size_t count) const {
  if (at + 2 * PrefetchDistance::GATHER >= count) return;
  size_t next = size_t(slots[at + 2 * PrefetchDistance::GATHER]), soon = size_t(slots[at + PrefetchDistance::GATHER]);
  if (kept_.empty()) {
    if (next < frozen_) prefetch(numbers_.data() + next);
    if (text_ && soon < frozen_) prefetch(data_.data() + numbers_.data()[soon]);
  } else {
    if (next < frozen_) prefetch(kept_.data() + next);
    if (soon < frozen_ && kept_[soon]) prefetch(kept_[soon]);
  }
}

nb::object Ids::list(const i32* slots, size_t count) {
  asked_ += count;
  if (kept_.empty() && frozen_ <= MOST_KEPT && asked_ > frozen_ / 8) kept_.resize(frozen_, nullptr);
  nb::object out = nb::steal(PyList_New(Py_ssize_t(count)));
  if (!out.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < count; ++i) {
    fetch_ahead(slots, i, count);
    size_t slot = size_t(slots[i]);
    PyObject* id;
    if (slot >= frozen_) {
      id = PyList_GetItem(late_.ptr(), Py_ssize_t(slot - frozen_));
      Py_XINCREF(id);
    } else if (kept_.empty()) {
      id = made(slot);
    } else {
      if (!kept_[slot] && !keep_around(slot)) throw nb::python_error();
      id = kept_[slot];
      Py_INCREF(id);
    }
    if (!id) throw nb::python_error();
    set_item(out.ptr(), i, id);
  }
  return out;
}

bool Ids::any_late(const i32* slots, size_t count) const {
  if (!PyList_Size(late_.ptr())) return false;
  i32 most = -1;
  for (size_t i = 0; i < count; ++i) most = std::max(most, slots[i]);
  return most >= 0 && size_t(most) >= frozen_;
}

i64 Ids::late_number(i32 slot) const {
  PyObject* id = PyList_GetItem(late_.ptr(), Py_ssize_t(size_t(slot) - frozen_));
  i64 number = id ? PyLong_AsLongLong(id) : -1;
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  return number;
}

std::pair<const char*, i64> Ids::raw_text(i32 slot) const {
  if (size_t(slot) < frozen_) {
    const i64* at = numbers_.data() + slot;
    return {reinterpret_cast<const char*>(data_.data()) + at[0], at[1] - at[0]};
  }
  PyObject* id = PyList_GetItem(late_.ptr(), Py_ssize_t(size_t(slot) - frozen_));
  Py_ssize_t size;
  const char* data = id ? PyUnicode_AsUTF8AndSize(id, &size) : nullptr;
  if (!data) throw nb::python_error();
  return {data, i64(size)};
}

size_t Ids::rank(nb::handle id, const i64* order) const {
  i64 number = 0;
  Py_ssize_t size = 0;
  const char* text = nullptr;
  if (text_) {
    text = PyUnicode_AsUTF8AndSize(id.ptr(), &size);
    if (!text) {
      PyErr_Clear();  // a lone surrogate, which no id has
      return frozen_;
    }
  } else {
    number = nb::cast<i64>(id);
  }
  auto below = [&](size_t slot) {
    if (!text_) return numbers_.data()[slot] < number;
    auto [known, length] = raw_text(i32(slot));
    int sign = std::memcmp(known, text, size_t(std::min<i64>(length, size)));  // UTF-8 sorts as code points do
    return sign ? sign < 0 : length < i64(size);
  };
  size_t low = 0, high = frozen_;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (below(order ? size_t(order[middle]) : middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

nb::tuple Ids::columns(const i32* slots, size_t count) const {
  const std::vector<i64> pieces = cut(count);
  return columns(slots, pieces.data(), pieces.size() - 1);
}

nb::tuple Ids::columns(const i32* slots, const i64* events, size_t event_count) const {
  const size_t count = size_t(events[event_count]);
  const bool late = any_late(slots, count);
  const i64* known = numbers_.data();
  if (!text_) {
    i64* ids = allocate<i64>(count);
    nb::object out = numpy_array(ids, {count});
    if (late) {
      for (size_t i = 0; i < count; ++i) ids[i] = size_t(slots[i]) < frozen_ ? known[slots[i]] : late_number(slots[i]);
    } else if (consecutive_) {
      const i64 first = frozen_ ? known[0] : 0;
      in_pieces(events, event_count, [=](size_t from, size_t to) {
        for (i64 i = events[from]; i < events[to]; ++i) ids[i] = first + slots[i];
      });
    } else {
      in_pieces(events, event_count, [=](size_t from, size_t to) {
        each_stretch(slots, events, from, to, frozen_, [=](size_t, i64 begin, i64 end) {
          gather(known, slots, size_t(begin), size_t(end), [=](size_t i, const i64* id) { ids[i] = *id; });
        });
      });
    }
    return nb::make_tuple(out, nb::none());
  }
  i64* ends = allocate<i64>(count + 1);
  nb::object offsets = numpy_array(ends, {count + 1});
  ends[0] = 0;
  if (late) {
    for (size_t i = 0; i < count; ++i) ends[i + 1] = ends[i] + raw_text(slots[i]).second;
    u8* bytes = allocate<u8>(size_t(ends[count]));
    nb::object data = numpy_array(bytes, {size_t(ends[count])});
    for (size_t i = 0; i < count; ++i) {
      auto [text, size] = raw_text(slots[i]);
      if (size) std::memcpy(bytes + ends[i], text, size_t(size));
    }
    return nb::make_tuple(offsets, data);
  }
  struct Region {
    i64 next, end;
  };
  std::vector<Region> regions(event_count);  // of the bytes: where the texts of each event go
  i64 total = 0;
  in_pieces(events, event_count, [&](size_t from, size_t to) {
    for (size_t e = from; e < to; ++e) {
      i64 size = 0;
      for (i64 i = events[e]; i < events[e + 1]; ++i) size += length(slots[i]);
      regions[e] = {total, total + size};
      total += size;
    }
  });
  u8* bytes = allocate<u8>(size_t(total));
  nb::object data = numpy_array(bytes, {size_t(total)});
  const u8* texts = data_.data();
  const i64 last_short = i64(data_.size()) - SHORT_TEXT;
  // Captured by value: compilers cannot know that what is written to bytes and ends changes no reference.
  in_pieces(events, event_count, [=, frozen = frozen_, regions = regions.data()](size_t from, size_t to) {
    each_stretch(slots, events, from, to, frozen, [=](size_t e, i64 begin, i64 end) {
      const i64 last_room = regions[e].end - SHORT_TEXT;
      i64 at = regions[e].next;
      for (i64 i = begin; i < end; ++i) {
        if (i + 4 * AHEAD < end) {
          prefetch(known + slots[i + 4 * AHEAD]);
          prefetch(texts + known[slots[i + 2 * AHEAD]]);
        }
        const i64 start = known[slots[i]], size = known[slots[i] + 1] - start;
        if (size <= SHORT_TEXT && start <= last_short && at <= last_room)
          std::memcpy(bytes + at, texts + start, size_t(SHORT_TEXT));
        else if (size) std::memcpy(bytes + at, texts + start, size_t(size));
        at += size;
        ends[i + 1] = at;
      }
      regions[e].next = at;
    });
  });
  return nb::make_tuple(offsets, data);
}

// ---- slots

void Owners::slots(const i32* numbers, size_t size, i32* out) const {
  gather(owner.data(), numbers, 0, size, [=](size_t i, const i64* slot) { out[i] = i32(*slot); });
}

void Owners::settle(const i32* numbers, const u8* sure, size_t size, Slots& out, std::vector<i64>& doubtful) const {
  const i64* of = owner.data();
  out.need(out.size + size);
  Places places;
  const size_t first = doubtful.size();
  std::vector<i64> settled;  // places of doubtful slots of which an exact box came later
  for (size_t i = 0; i < std::min<size_t>(size, 2 * PrefetchDistance::GATHER); ++i) prefetch(of + numbers[i]);
  for (size_t i = 0; i < size; ++i) {
    if (i + 2 * PrefetchDistance::GATHER < size) prefetch(of + numbers[i + 2 * PrefetchDistance::GATHER]);
    const i32 slot = i32(of[numbers[i]]);
    const bool certain = exact.data()[numbers[i]] && (!sure || sure[i]);
    // An event with a predicate of its own is several points, so a box may come several times.
    const size_t place = !sure && count.data()[slot] == 1 ? out.size : places.find(slot, out.size);
    if (place == out.size) {
      out.data[out.size++] = slot;
      if (!certain) doubtful.push_back(i64(place));
    } else if (certain && std::binary_search(doubtful.begin() + i64(first), doubtful.end(), i64(place))) {
      settled.push_back(i64(place));
    }
  }
  if (settled.empty()) return;
  std::sort(settled.begin(), settled.end());
  auto gone = [&](i64 place) { return std::binary_search(settled.begin(), settled.end(), place); };
  doubtful.erase(std::remove_if(doubtful.begin() + i64(first), doubtful.end(), gone), doubtful.end());
}

Programs::Programs(Frozen<i64> place, Frozen<i64> words, Frozen<u32> code, Frozen<i64> shapes)
    : place_(place), words_(words), code_(code), shapes_(shapes) {
  if (!shapes.size()) throw nb::value_error("shapes begin with 0");
  view_ = {place.data(), place.size(), words.data(),  words.size(),
           code.data(),  code.size(),  shapes.data(), shapes.size() - 1};
}

bool EventPoint::is_point() const {
  if (low == high) return true;
  for (u32 at = 0; at < attributes; ++at)
    if (low[at] != high[at] && std::find(free.begin(), free.end(), at) == free.end()) return false;
  return true;
}

namespace {

// Takes the slots at `doubtful`, from `first` on, out of `out` where truth_of(i, slot) says that they cannot be true; those
// that are true are not doubtful any more, unless they are `asked` something else, too.
template <class TruthOf>
void sieve(Slots& out, std::vector<i64>& doubtful, size_t first, bool asked, TruthOf truth_of) {
  const size_t doubts = doubtful.size();
  i32* slots = out.data;
  size_t from = size_t(doubtful[first]), kept = from, left = first;
  for (size_t i = first; i < doubts; ++i) {
    const size_t place = size_t(doubtful[i]), between = place - from;
    const i32 slot = slots[place];
    if (between) std::memmove(slots + kept, slots + from, between * sizeof *slots);
    kept += between;
    from = place + 1;
    const Truth truth = truth_of(i, slot);
    if (!(truth & (IS_TRUE | OUT_OF_STEPS))) continue;
    if (asked || truth != IS_TRUE) doubtful[left++] = i64(kept);
    slots[kept++] = slot;
  }
  std::memmove(slots + kept, slots + from, (out.size - from) * sizeof *slots);
  out.size = kept + out.size - from;
  doubtful.resize(left);
}

}  // namespace

void Owners::fetch_programs(const Slots& out, const std::vector<i64>& doubtful, size_t first, size_t at) const {
  constexpr size_t SOON = PrefetchDistance::GATHER;
  const size_t end = doubtful.size();
  if (at == first) {
    for (size_t i = at; i < end && i < at + 2 * SOON; ++i) programs->fetch_place(out.data[doubtful[i]]);
    for (size_t i = at; i < end && i < at + SOON; ++i) programs->fetch_words(out.data[doubtful[i]]);
  }
  if (at + 2 * SOON < end) programs->fetch_place(out.data[doubtful[at + 2 * SOON]]);
  if (at + SOON < end) programs->fetch_words(out.data[doubtful[at + SOON]]);
}

void Owners::decide(const EventPoint& event, bool asked, Slots& out, std::vector<i64>& doubtful, size_t first) const {
  if (!programs || doubtful.size() == first || !event.is_point()) return;
  sieve(out, doubtful, first, asked, [&](size_t i, i32 slot) {
    fetch_programs(out, doubtful, first, i);
    return programs->run(slot, event.low);
  });
}

bool Owners::look(const i64* keys, const Details& details, const LookBudget& budget, Slots& out,
                  std::vector<i64>& doubtful, size_t first, i64& taken) const {
  taken = 0;
  if (!programs || !budget.together) return false;
  const size_t doubts = doubtful.size();
  std::vector<Truth> truths;
  truths.reserve(doubts - first);
  u64 words = 0;
  for (size_t i = first; i < doubts; ++i) {
    fetch_programs(out, doubtful, first, i);
    Work work(budget.together < 0 ? budget.each : std::min(budget.each, budget.together - taken));
    truths.push_back(programs->run(out.data[doubtful[i]], keys, details, work));
    if (work.looked) taken += work.steps();
    if (budget.together >= 0 && taken >= budget.together) return false;
    words += work.words();
    if (words < WORDS_BETWEEN) continue;
    words = 0;
    if (PyErr_CheckSignals()) throw nb::python_error();
  }
  sieve(out, doubtful, first, false, [&](size_t i, i32) { return truths[i - first]; });
  return true;
}

namespace {

using Keys = nb::ndarray<const i64, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// (offsets, slots, doubtful) of many events, whose keys lie between `low` and `high`.
// With `later` programs are not run: `look` does it.
nb::tuple settle_all(const Owners& owners, Frozen<i64> offsets, Frozen<i32> numbers, nb::object sure, Keys low,
                     Keys high, nb::sequence free_attributes, bool later) {
  std::vector<u32> unused;
  for (nb::handle attribute : free_attributes) unused.push_back(nb::cast<u32>(attribute));
  Frozen<u8> certain;
  if (!sure.is_none()) certain = nb::cast<Frozen<u8>>(sure);
  const size_t events = offsets.size() - 1, attributes = low.shape(1);
  if (low.shape(0) != events || high.shape(0) != events || high.shape(1) != attributes)
    throw nb::value_error("each event needs a low and a high key per attribute");
  i64* ends = allocate<i64>(events + 1);
  nb::object starts = numpy_array(ends, {events + 1});
  Slots slots;
  slots.need(numbers.size());
  std::vector<i64> doubtful;
  ends[0] = 0;
  size_t done = 0;
  for (size_t e = 0; e < events;) {
    {
      ReleasedGil free;
      for (size_t until = done + size_t(PIECE); e < events && done < until; ++e) {
        const i64 from = offsets.data()[e], size = offsets.data()[e + 1] - from;
        const size_t before = doubtful.size();
        owners.settle(numbers.data() + from, certain.is_valid() ? certain.data() + from : nullptr, size_t(size), slots,
                      doubtful);
        done += size_t(size) + 16 * (1 + doubtful.size() - before);
        const EventPoint event{low.data() + e * attributes, high.data() + e * attributes, u32(attributes), unused};
        if (!later) owners.decide(event, certain.is_valid(), slots, doubtful, before);
        ends[e + 1] = i64(slots.size);
      }
    }
    if (PyErr_CheckSignals()) throw nb::python_error();
  }
  i64* places = allocate<i64>(doubtful.size());
  nb::object doubts = numpy_array(places, {doubtful.size()});
  std::copy(doubtful.begin(), doubtful.end(), places);
  size_t size = slots.size;
  return nb::make_tuple(starts, numpy_array(std::exchange(slots.data, nullptr), {size}), doubts);
}

// The looks at the slots that `settle` left in doubt, of many events that `documents` holds from number `row` on: (offsets,
// slots, doubtful, steps taken). After `in_all` steps (no bound if it is negative) nothing more is looked at.
nb::tuple look_all(const Owners& owners, Frozen<i64> offsets, Frozen<i32> slots, Frozen<i64> doubtful, Keys low,
                   Keys high, const DocumentBatch& documents, size_t row, i64 each, i64 together, i64 in_all, i64 now) {
  const size_t events = offsets.size() - 1, attributes = low.shape(1);
  if (low.shape(0) != events || row + events > documents.size() || attributes != documents.plan().attributes() ||
      high.shape(0) != events || high.shape(1) != attributes)
    throw nb::value_error("each event needs its keys, and a document");
  i64* ends = allocate<i64>(events + 1);
  nb::object starts = numpy_array(ends, {events + 1});
  Slots kept;
  kept.need(slots.size());
  std::vector<i64> doubts;
  const LookBudget budget{each, together};
  i64 taken = 0;
  ends[0] = 0;
  size_t next = 0;
  for (size_t e = 0; e < events; ++e) {
    const i64 from = offsets.data()[e], to = offsets.data()[e + 1];
    const size_t before = doubts.size();
    const i64 shift = i64(kept.size) - from;
    std::copy(slots.data() + from, slots.data() + to, kept.data + kept.size);
    kept.size += size_t(to - from);
    for (; next < doubtful.size() && doubtful.data()[next] < to; ++next)
      doubts.push_back(doubtful.data()[next] + shift);
    if (doubts.size() > before) {
      const i64* keys = low.data() + e * attributes;
      bool decided = false;
      if ((in_all < 0 || taken < in_all) && documents.show(row + e)) {
        const DocumentPlan::EventDetails details(documents.plan(), documents.documents(), now);
        i64 steps;
        decided = owners.look(keys, details, budget, kept, doubts, before, steps);
        taken += steps;
      }
      if (!decided)
        owners.decide({keys, high.data() + e * attributes, u32(attributes), documents.plan().free()}, false, kept,
                      doubts, before);
    }
    ends[e + 1] = i64(kept.size);
    if (e % 256 == 255 && PyErr_CheckSignals()) throw nb::python_error();
  }
  nb::object left = numpy_array(std::move(doubts));
  const size_t size = kept.size;
  return nb::make_tuple(starts, numpy_array(std::exchange(kept.data, nullptr), {size}), left, taken);
}

template <class T>
T& at_number(std::vector<T>& some, nb::handle number) {
  const u32 at = nb::cast<u32>(number);
  if (at >= MAX_ATTRIBUTES) throw nb::value_error("there is no such attribute");
  if (at >= some.size()) some.resize(at + 1);
  return some[at];
}

// What the programs of some slots may come to for one event, by its keys and what it holds beyond them: the keys of elements
// and the texts, by attribute, None for null; and the time. And the steps that each has taken, of those it was allowed and
// of those that are left in its account, if it has one (-1: none). They leave the account.
nb::tuple decide(const Programs& programs, Frozen<i32> slots, Frozen<i64> keys, nb::dict lists, nb::dict texts, i64 now,
                 Frozen<i64> allowed, Frozen<i32> accounts, Changed<i64> left) {
  if (allowed.size() != slots.size() || accounts.size() != slots.size())
    throw nb::value_error("each slot needs the steps that it may take, and an account");
  for (size_t i = 0; i < accounts.size(); ++i)
    if (accounts.data()[i] < -1 || accounts.data()[i] >= i64(left.size())) throw nb::value_error("no such account");
  GivenDetails details;
  details.now = now;
  for (auto [number, given] : lists) {  // the caller holds the arrays, and the texts
    Details::Elements& list = at_number(details.lists, number);
    list.given = given.is_none() ? Details::Given::NOTHING : Details::Given::YES;
    if (given.is_none()) continue;
    const Frozen<i64> elements = nb::cast<Frozen<i64>>(given, false);
    list.keys = elements.data();
    list.count = elements.size();
  }
  for (auto [number, given] : texts) {
    Details::Text& text = at_number(details.texts, number);
    text.given = given.is_none() ? Details::Given::NOTHING : Details::Given::YES;
    if (given.is_none()) continue;
    const nb::bytes bytes = nb::cast<nb::bytes>(given);
    text.bytes = {bytes.c_str(), bytes.size()};
  }
  Truth* found = allocate<Truth>(slots.size());
  nb::object truths = numpy_array(found, {slots.size()});
  i64* taken = allocate<i64>(slots.size());
  nb::object steps = numpy_array(taken, {slots.size()});
  const ProgramView& view = programs.view();
  for (size_t i = 0; i < slots.size();) {
    {
      ReleasedGil free;
      for (u64 done = 0; i < slots.size() && done < WORDS_BETWEEN; ++i) {
        const i32 account = accounts.data()[i];
        i64 most = allowed.data()[i];
        if (account >= 0) most = std::min(most, left.data()[account]);
        Work work(most);
        found[i] = view.run(slots.data()[i], keys.data(), details, work);
        taken[i] = work.steps();
        if (account >= 0) left.data()[account] -= taken[i];
        done += 16 + work.words();
      }
    }
    if (PyErr_CheckSignals()) throw nb::python_error();
  }
  return nb::make_tuple(truths, steps);
}

}  // namespace

void bind_owners(nb::module_& m) {
  nb::class_<Ids>(m, "Ids")
      .def(nb::init<Frozen<i64>, nb::list>(), nb::arg("numbers"), nb::arg("late"))
      .def(nb::init<Frozen<i64>, Frozen<u8>, nb::list>(), nb::arg("offsets"), nb::arg("data"), nb::arg("late"))
      .def(
          "list", [](Ids& self, Frozen<i32> slots) { return self.list(slots.data(), slots.size()); }, nb::arg("slots"))
      .def(
          "columns",
          [](const Ids& self, Frozen<i32> slots, nb::object events) {
            if (events.is_none()) return self.columns(slots.data(), slots.size());
            Frozen<i64> ends = nb::cast<Frozen<i64>>(events);
            return self.columns(slots.data(), ends.data(), ends.size() - 1);
          },
          nb::arg("slots"), nb::arg("events").none() = nb::none())
      .def(
          "rank",
          [](const Ids& self, nb::handle id, nb::object order) {
            if (order.is_none()) return self.rank(id, nullptr);
            Frozen<i64> places = nb::cast<Frozen<i64>>(order);
            return self.rank(id, places.data());
          },
          nb::arg("id"), nb::arg("order").none())
      .def_prop_ro("nbytes", &Ids::bytes);

  nb::class_<Programs>(m, "Programs")
      .def(nb::init<Frozen<i64>, Frozen<i64>, Frozen<u32>, Frozen<i64>>(), nb::arg("place"), nb::arg("words"),
           nb::arg("code"), nb::arg("shapes"))
      .def(
          "check",
          [](const Programs& self, u32 attributes) {
            ReleasedGil free;
            self.view().check(attributes);
          },
          nb::arg("attributes"))
      .def("decide", &decide, nb::arg("slots"), nb::arg("keys"), nb::arg("lists"), nb::arg("texts"), nb::arg("now"),
           nb::arg("allowed"), nb::arg("accounts"), nb::arg("left"))
      .def(
          "ends",
          [](const Programs& self, Frozen<i64> slots, u32 attribute) {
            return numpy_array(self.view().ends(slots.data(), slots.size(), attribute));
          },
          nb::arg("slots"), nb::arg("attribute"));

  nb::class_<Owners>(m, "Owners")
      .def(nb::init<Frozen<i64>, Frozen<u8>, Frozen<i32>, bool, bool, nb::object>(), nb::arg("owner"), nb::arg("exact"),
           nb::arg("count"), nb::arg("plain"), nb::arg("direct"), nb::arg("programs").none())
      .def(
          "slots",
          [](const Owners& self, Frozen<i32> numbers) {
            if (self.direct) return nb::cast(numbers);
            const size_t size = numbers.size();
            Slots slots;
            slots.need(size);
            const std::vector<i64> ends = cut(size);
            in_pieces(ends.data(), ends.size() - 1, [&](size_t from, size_t to) {
              self.slots(numbers.data() + ends[from], size_t(ends[to] - ends[from]), slots.data + ends[from]);
            });
            return numpy_array(std::exchange(slots.data, nullptr), {size});
          },
          nb::arg("numbers"))
      .def("look", &look_all, nb::arg("offsets"), nb::arg("slots"), nb::arg("doubtful"), nb::arg("low"),
           nb::arg("high"), nb::arg("documents"), nb::arg("row"), nb::arg("each"), nb::arg("together"),
           nb::arg("in_all"), nb::arg("now"))
      .def("settle", &settle_all, nb::arg("offsets"), nb::arg("numbers"), nb::arg("sure").none(), nb::arg("low"),
           nb::arg("high"), nb::arg("free"), nb::arg("later") = false);
}

}  // namespace hitbox
