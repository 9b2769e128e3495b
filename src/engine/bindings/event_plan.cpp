#include "bindings/event_plan.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <nanobind/stl/string.h>

#include "bindings/numpy_memory.hpp"

namespace hitbox {
namespace {

bool has_dot(PyObject* name) { return PyUnicode_FindChar(name, '.', 0, PyUnicode_GetLength(name), 1) >= 0; }

void check_size(PyObject* event, Py_ssize_t size) {
  if (PyDict_Size(event) == size) return;
  PyErr_SetString(PyExc_RuntimeError, "dictionary changed size during iteration");
  throw nb::python_error();
}

}  // namespace

EventPlan::EventPlan(nb::list columns, nb::dict numbers, nb::list free, nb::object other_value, nb::object other_event,
                     nb::object derived, nb::object epoch, nb::object plain_epoch, bool ignores)
    : numbers_(numbers), other_value_(other_value), other_event_(other_event), derived_(derived),
      moments_(epoch, plain_epoch), ignores_(ignores) {
  for (nb::handle native : columns) columns_.emplace_back(native);
  dotted_.resize(columns_.size());
  for (auto [name, of] : numbers)
    if (nb::isinstance<nb::int_>(of) && nb::cast<i64>(of) >= 0)
      dotted_.at(size_t(nb::cast<i64>(of))) = has_dot(name.ptr());
  for (nb::handle attribute : free) free_.push_back(nb::cast<u32>(attribute));
  old_ = checked(PyUnicode_InternFromString("old"));
  new_ = checked(PyUnicode_InternFromString("new"));
}

// The key of a value that needs no codec.
bool EventPlan::plain_key(const Column& column, PyObject* value, i64& key) const {
  using Type = Column::Type;
  if (column.type == Type::list && value != Py_None) return list_key(column, value, key);
  Plain plain;
  if (value == Py_None) return column.key(plain, key);
  if (column.type == Type::moment) {
    i64 micros;
    return moments_.read(value, micros) && column.key(Plain::of_moment(micros), key);
  }
  return scalar(value, plain) && column.key(plain, key);
}

// The plain value of an exact bool, int, float or str.
bool EventPlan::scalar(PyObject* value, Plain& out) {
  PyTypeObject* type = Py_TYPE(value);
  if (type == &PyUnicode_Type) {
    std::string_view text;
    if (!sound_utf8(value, text)) return false;
    out = Plain::of_text(text);
    return true;
  }
  if (type == &PyFloat_Type) {
    out = Plain::of_real(PyFloat_AsDouble(value));
    return true;
  }
  if (value == Py_True || value == Py_False) {
    out = Plain::of_truth(value == Py_True);
    return true;
  }
  i64 whole;
  if (!whole_number(value, whole)) return false;
  out = Plain::of_whole(whole);
  return true;
}

// Whether an element of a list needs no codec.
bool EventPlan::is_plain(Column::Type element, PyObject* value) {
  if (value == Py_None) return true;
  Plain plain;
  if (!scalar(value, plain)) return false;
  switch (element) {
    case Column::Type::whole: return plain.kind == Plain::Kind::WHOLE;
    case Column::Type::real:
      return plain.kind != Plain::Kind::WHOLE ? plain.kind != Plain::Kind::TEXT && plain.kind != Plain::Kind::TRUTH
                                              : -EXACT <= plain.whole && plain.whole <= EXACT;
    case Column::Type::truth: return plain.kind == Plain::Kind::TRUTH;
    default: return plain.kind == Plain::Kind::TEXT;
  }
}

// Of an exact list: its length.
bool EventPlan::list_key(const Column& column, PyObject* value, i64& key) const {
  if (Py_TYPE(value) != &PyList_Type) return false;
  const Py_ssize_t size = PyList_Size(value);
  for (Py_ssize_t at = 0; at < size; ++at)
    if (!is_plain(column.element, PyList_GetItem(value, at))) return false;
  key = i64(size);
  return true;
}

void EventPlan::put(nb::handle ends, u32 attribute, size_t row, i64* low, std::vector<High>& highs) const {
  i64 first = nb::cast<i64>(ends[0]), last = nb::cast<i64>(ends[1]);
  low[attribute] = first;
  if (first != last) highs.push_back({row, attribute, last});
}

// The whole event through Python: another mapping than a dict, another name than a plain string, or a name that no event
// may carry.
void EventPlan::encode_other(PyObject* event, i64 number, size_t row, i64* low, std::vector<High>& highs) const {
  for (u32 a = 0; a < attributes(); ++a) low[a] = MISSING;
  while (!highs.empty() && highs.back().row == row) highs.pop_back();
  nb::object found = other_event_(nb::handle(event), number);
  for (auto [attribute, ends] : nb::cast<nb::dict>(found)) put(ends, nb::cast<u32>(attribute), row, low, highs);
}

// Whether an event may be two images. Then what stands beside them means nothing.
bool EventPlan::may_have_images(PyObject* event) const {
  for (PyObject* name : {old_.ptr(), new_.ptr()})
    if (PyDict_Contains(event, name) == 1 && !PyDict_Contains(numbers_.ptr(), name)) return true;
  return false;
}

// The fields of an event, or of an object in it; false if Python has to look at the event.
bool EventPlan::encode_fields(PyObject* event, PyObject* fields, i64 number, size_t row, i64* low,
                              std::vector<High>& highs, Names* names, Ways& ways) const {
  const bool inside = fields != numbers_.ptr();
  PyObject *name, *value;
  Py_ssize_t at = 0;
  for (size_t nth = 0; PyDict_Next(event, &at, &name, &value); ++nth) {
    u32 attribute;
    if (names && nth < names->size() && (*names)[nth].first.ptr() == name) {
      attribute = (*names)[nth].second;
    } else {
      if (Py_TYPE(name) != &PyUnicode_Type) return false;
      PyObject* known = PyDict_GetItemWithError(fields, name);
      if (!known) {
        PyErr_Clear();
        if (ignores_ && !(inside && has_dot(name))) continue;  // with dots it may lead to an attribute
        return false;
      }
      if (PyDict_Check(known)) {  // an object
        ways.objects = true;
        ways.dotted |= has_dot(name);
        if (value == Py_None) continue;
        if (Py_TYPE(value) != &PyDict_Type) return false;
        nb::object held = nb::borrow(value);
        const Py_ssize_t size = PyDict_Size(event);
        if (!encode_fields(value, known, number, row, low, highs, nullptr, ways)) return false;
        check_size(event, size);
        continue;
      }
      const long of = PyLong_AsLong(known);
      if (of < 0) return false;
      attribute = u32(of);
      if (names) {
        names->resize(nth);
        names->emplace_back(nb::borrow(name), attribute);
      }
    }
    ways.dotted |= !inside && dotted_[attribute];
    if (plain_key(columns_[attribute], value, low[attribute])) continue;
    // Python code runs here, and may change the event.
    nb::object kept = nb::borrow(event), held = nb::borrow(value);
    const Py_ssize_t size = PyDict_Size(event);
    put(other_value_(attribute, held, number), attribute, row, low, highs);
    check_size(event, size);
  }
  return !(ways.objects && ways.dotted);
}

void EventPlan::encode_row(PyObject* event, i64 number, size_t row, i64* low, std::vector<High>& highs,
                           Names* names) const {
  for (u32 a = 0; a < attributes(); ++a) low[a] = MISSING;
  Ways ways;
  if (Py_TYPE(event) != &PyDict_Type || (ignores_ && may_have_images(event)) ||
      !encode_fields(event, numbers_.ptr(), number, row, low, highs, names, ways))
    encode_other(event, number, row, low, highs);
}

// One event, with the attributes that are functions of others.
void EventPlan::encode_event(PyObject* event, i64 number, size_t row, i64* low, std::vector<High>& highs,
                             Names* names) const {
  if (derived_.is_none()) return encode_row(event, number, row, low, highs, names);
  if (PyDict_Size(numbers_.ptr())) encode_row(event, number, row, low, highs, names);
  else std::fill(low, low + attributes(), MISSING);  // nothing is declared: everything is derived
  nb::object found = derived_(nb::handle(event), number);
  for (auto [attribute, ends] : nb::cast<nb::dict>(found)) put(ends, nb::cast<u32>(attribute), row, low, highs);
}

void EventPlan::add_highs(size_t rows, const std::vector<High>& highs, EventKeys& out) const {
  if (highs.empty() && free_.empty()) return;
  size_t m = attributes();
  out.high = allocate<i64>(rows * m);
  std::memcpy(out.high, out.low, rows * m * sizeof(i64));
  for (const High& one : highs) out.high[one.row * m + one.attribute] = one.key;
  for (size_t row = 0; row < rows; ++row)
    for (u32 attribute : free_) out.high[row * m + attribute] = HIGHEST;
}

void EventPlan::encode(nb::handle event, EventKeys& out) const {
  std::vector<High> highs;
  out.low = allocate<i64>(attributes());
  encode_event(event.ptr(), -1, 0, out.low, highs, nullptr);
  add_highs(1, highs, out);
}

void EventPlan::encode(nb::handle events, size_t count, i64 row, EventKeys& out) const {
  std::vector<High> highs;
  Names names;
  out.low = allocate<i64>(count * attributes());
  for (size_t at = 0; at < count; ++at) {
    PyObject* event = PyList_GetItem(events.ptr(), Py_ssize_t(at));
    if (!event) throw nb::python_error();
    nb::object kept = nb::borrow(event);
    encode_event(event, row < 0 ? row : row + i64(at), at, out.low + at * attributes(), highs, &names);
  }
  add_highs(count, highs, out);
}

void bind_event_plan(nb::module_& m) {
  nb::class_<EventPlan>(m, "EventPlan")
      .def(nb::init<nb::list, nb::dict, nb::list, nb::object, nb::object, nb::object, nb::object, nb::object, bool>(),
           nb::arg("columns"), nb::arg("numbers"), nb::arg("free"), nb::arg("other_value"), nb::arg("other_event"),
           nb::arg("derived").none(), nb::arg("epoch"), nb::arg("plain_epoch"), nb::arg("ignores") = false)
      .def(
          "encode",
          [](const EventPlan& self, nb::list events, i64 row) {
            size_t count = nb::len(events);
            EventKeys keys;
            self.encode(events, count, row, keys);
            size_t width = self.attributes();
            nb::object low = numpy_array(std::exchange(keys.low, nullptr), {count, width});
            nb::object high = keys.high ? numpy_array(std::exchange(keys.high, nullptr), {count, width}) : low;
            return nb::make_tuple(low, high);
          },
          nb::arg("events"), nb::arg("row"));
}

}  // namespace hitbox
