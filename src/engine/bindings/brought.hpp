// What events bring to the sets that covers are found by (sets/anchors.hpp), as Python hands it over.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "sets/anchors.hpp"

namespace hitbox {

namespace nb = nanobind;

using AnchorSegments = std::vector<const sets::AnchorSegment*>;

// The values of each event's sets.
struct Brought {
  struct Value {
    u32 set;
    bool any;  // the event may bring whatever is in the set
    std::string_view text;
  };
  std::vector<std::string_view> names;
  std::vector<Value> values;
  std::vector<size_t> ends{0};  // by event

  explicit Brought(std::vector<std::string_view> set_names) : names(std::move(set_names)) {}

  void add(u32 set, std::string_view text) { values.push_back({set, false, text}); }
  // A text that nobody else holds.
  void keep(u32 set, std::string text) {
    kept_.push_back(std::move(text));
    add(set, kept_.back());
  }
  void end_event() { ends.push_back(values.size()); }

  // What Python says that an event brings, the last one so far: {name: a text, a list of texts, or True}.
  void add_event(const nb::list& given) {
    for (nb::handle one : given) {
      const nb::bytes name = nb::cast<nb::bytes>(one[0]);
      const auto at = std::find(names.begin(), names.end(), std::string_view(name.c_str(), name.size()));
      if (at == names.end()) throw nb::value_error("there is no such set");
      add_values(u32(at - names.begin()), nb::list(one[1])[0].ptr());
    }
    end_event();
  }

  // The sets are (name, [per event None, a text, a list of texts, or True for whatever there is]). Python keeps the texts.
  Brought(const nb::list& given, size_t events) {
    std::vector<PyObject*> columns;
    for (nb::handle one : given) {
      nb::tuple pair = nb::cast<nb::tuple>(one);
      nb::bytes name = nb::cast<nb::bytes>(pair[0]);
      names.push_back({name.c_str(), name.size()});
      if (!PyList_Check(pair[1].ptr()) || size_t(PyList_Size(pair[1].ptr())) != events)
        throw nb::value_error("one value per event");
      columns.push_back(pair[1].ptr());
    }
    for (size_t event = 0; event < events; ++event) {
      for (u32 set = 0; set < columns.size(); ++set) add_values(set, PyList_GetItem(columns[set], Py_ssize_t(event)));
      end_event();
    }
  }

  size_t work() const {
    size_t total = values.size() * 16;
    for (const Value& one : values) total += one.text.size();
    return total;
  }

 private:
  void add_values(u32 set, PyObject* value) {
    if (value == Py_None) return;
    if (value == Py_True) values.push_back({set, true, {}});
    else if (!PyList_Check(value)) add_text(set, value);
    else
      for (Py_ssize_t i = 0; i < PyList_Size(value); ++i) add_text(set, PyList_GetItem(value, i));
  }
  void add_text(u32 set, PyObject* text) {
    Py_ssize_t size;
    const char* data = PyUnicode_AsUTF8AndSize(text, &size);
    if (!data) throw nb::python_error();
    add(set, {data, size_t(size)});
  }

  std::deque<std::string> kept_;
};

// (segment, member): what an event was found to bring.
using Members = std::vector<std::pair<u32, u32>>;

inline void find_members(const AnchorSegments& segments, const Brought& brought, size_t event, sets::Seen& seen,
                         Members& found) {
  found.clear();
  for (u32 at = 0; at < segments.size(); ++at) {
    seen.clear();
    auto add = [&](u32 member) {
      const bool fresh = seen.add(member);
      if (fresh) found.push_back({at, member});
      return fresh;
    };
    for (size_t i = brought.ends[event]; i < brought.ends[event + 1]; ++i) {
      const Brought::Value& one = brought.values[i];
      if (one.any) segments[at]->find_all(brought.names[one.set], add);
      else segments[at]->find(brought.names[one.set], one.text, add);
    }
  }
}

inline void require_attributes(const AnchorSegments& segments, size_t attributes) {
  for (const sets::AnchorSegment* one : segments)
    if (one->attributes() > attributes) throw nb::value_error("the events have fewer attributes than the boxes");
}

// The covers that one event finds by what it brings.
class AnchoredEvent {
 public:
  AnchoredEvent(const AnchorSegments& segments, const Brought& brought) : segments_(segments), brought_(brought) {}

  bool is_long() const { return brought_.work() > SHORT; }

  void find(const i64* low, const i64* high, size_t attributes) {
    require_attributes(segments_, attributes);
    sets::Seen seen;
    Members members;
    find_members(segments_, brought_, 0, seen, members);
    for (auto [at, member] : members)
      segments_[at]->meeting(member, low, high, [&](u32 number, u8 level) { covers_.push_back({number, level}); });
  }

  // Adds what was found to the matches of the event, which stay in descending order of their levels. `cut`: a limit cut
  // these matches off, so what is less urgent than the last of them has to wait.
  void add_to(Result& out, bool cut) const {
    if (covers_.empty()) return;
    const u8 least = cut ? out.levels[out.size - out.begin - 1] : 0;
    reserve(out, covers_.size());
    for (auto [number, level] : covers_)
      if (level >= least) add(out, number, level);
    if (out.ordered) return;
    const size_t count = out.size - out.begin;
    const std::vector<i32> numbers(out.numbers + out.begin, out.numbers + out.size);
    const std::vector<u8> levels(out.levels, out.levels + count);
    size_t place[LEVELS + 1] = {};  // by LEVELS - level
    for (u8 level : levels) ++place[LEVELS - level];
    for (u32 i = 1; i <= LEVELS; ++i) place[i] += place[i - 1];
    for (size_t i = 0; i < count; ++i) {
      const size_t at = place[LEVELS - 1 - levels[i]]++;
      out.numbers[out.begin + at] = numbers[i];
      out.levels[at] = levels[i];
    }
    out.ordered = true;
  }

  static constexpr size_t SHORT = 1 << 14;  // bytes of texts for which Python's lock is kept

 private:
  const AnchorSegments& segments_;
  const Brought& brought_;
  std::vector<std::pair<u32, u8>> covers_;  // numbers and levels
};

}  // namespace hitbox
