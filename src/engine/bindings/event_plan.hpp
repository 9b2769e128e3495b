// Events as Python holds them -> keys. Values of the plain Python types are converted here; everything else (an
// interval, a NumPy scalar, a Decimal, whatever is wrong) goes through the Python codecs, so there is one meaning and one
// set of error messages.
//
//   event {"price": 12.5, "city": "Paris"}      low  | MISSING | 12.5's key | "Paris"'s key |
//                                                high  the same, unless an attribute is an interval
#pragma once

#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "base/common.hpp"
#include "bindings/column.hpp"
#include "bindings/python_values.hpp"

namespace hitbox {

namespace nb = nanobind;

// The keys of events, row by row. `high` is empty where every event is a point.
struct EventKeys {
  i64* low = nullptr;
  i64* high = nullptr;

  EventKeys() = default;
  EventKeys(const EventKeys&) = delete;
  EventKeys& operator=(const EventKeys&) = delete;
  ~EventKeys() {
    free_memory(low);
    free_memory(high);
  }
  const i64* ends() const { return high ? high : low; }
};

class EventPlan {
 public:
  // columns: what `Codec.native` says, one per attribute. numbers: {name: attribute} of those that events carry, -1 of those
  // that they may not; of an object {field: attribute}, and so on. Objects and attributes below them are there by their
  // dotted names, too. ignores: names that are not in `numbers` are passed over.
  // free: the attributes that events do not carry, which meet everything. other_value(attribute, value, row) ->
  // (low, high) and other_event(event, row) -> {attribute: (low, high)} ask the codecs; row is -1 of a single event.
  // derived(event, row) -> {attribute: (low, high)} of the attributes that are functions of others, or None.
  // epoch, plain_epoch: the start of 1970, with and without a zone.
  EventPlan(nb::list columns, nb::dict numbers, nb::list free, nb::object other_value, nb::object other_event,
            nb::object derived, nb::object epoch, nb::object plain_epoch, bool ignores);

  u32 attributes() const { return u32(columns_.size()); }
  const std::vector<u32>& free() const { return free_; }

  // One event.
  void encode(nb::handle event, EventKeys& out) const;
  // A list of events, the first of which is number `row`.
  void encode(nb::handle events, size_t count, i64 row, EventKeys& out) const;

 private:
  // How the fields of one event were named. In both ways, one may be given twice.
  struct Ways {
    bool objects = false, dotted = false;
  };

  // An end of an interval, or of an attribute that is free.
  struct High {
    size_t row;
    u32 attribute;
    i64 key;
  };
  // Names that came one after the other in the last event, so that events alike need no look-up.
  using Names = std::vector<std::pair<nb::object, u32>>;

  bool plain_key(const Column& column, PyObject* value, i64& key) const;
  static bool scalar(PyObject* value, Plain& out);
  static bool is_plain(Column::Type element, PyObject* value);
  bool list_key(const Column& column, PyObject* value, i64& key) const;
  bool encode_fields(PyObject* event, PyObject* fields, i64 number, size_t row, i64* low, std::vector<High>& highs,
                     Names* names, Ways& ways) const;
  bool may_have_images(PyObject* event) const;
  void encode_row(PyObject* event, i64 number, size_t row, i64* low, std::vector<High>& highs, Names* names) const;
  void encode_event(PyObject* event, i64 number, size_t row, i64* low, std::vector<High>& highs, Names* names) const;
  void encode_other(PyObject* event, i64 number, size_t row, i64* low, std::vector<High>& highs) const;
  void put(nb::handle ends, u32 attribute, size_t row, i64* low, std::vector<High>& highs) const;
  void add_highs(size_t rows, const std::vector<High>& highs, EventKeys& out) const;

  std::vector<Column> columns_;
  std::vector<u8> dotted_;  // by attribute: it is below an object
  nb::dict numbers_;
  std::vector<u32> free_;
  nb::object other_value_, other_event_, derived_;
  Moments moments_;
  bool ignores_;
  nb::object old_, new_;
};

void bind_event_plan(nb::module_& m);

}  // namespace hitbox
