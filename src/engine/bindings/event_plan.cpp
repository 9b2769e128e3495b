#include "bindings/event_plan.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <nanobind/stl/string.h>

#include "bindings/numpy_memory.hpp"

namespace hitbox {
namespace {

constexpr i64 EXACT = i64(1) << 53;  // whole numbers up to here are exact as doubles

// The sortable bits of a double, as codecs.float_key says; NaN is missing, and -0.0 is 0.0.
i64 float_key(double value) {
  if (value != value) return MISSING;
  i64 bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits >= 0 ? bits : MISSING - bits;
}

// An exact int that has 64 bits.
bool whole_number(PyObject* value, i64& number) {
  if (Py_TYPE(value) != &PyLong_Type) return false;
  int overflow;
  number = PyLong_AsLongLongAndOverflow(value, &overflow);
  return !overflow && number != MISSING;
}

// An exact float, or an exact int that is exact as a double.
bool real_number(PyObject* value, double& number) {
  if (Py_TYPE(value) == &PyFloat_Type) {
    number = PyFloat_AsDouble(value);
    return true;
  }
  i64 whole;
  if (!whole_number(value, whole) || whole > EXACT || whole < -EXACT) return false;
  number = double(whole);
  return true;
}

i64 clamp(i64 value, i64 low, i64 high) { return value < low ? low : value > high ? high : value; }

bool has_dot(PyObject* name) { return PyUnicode_FindChar(name, '.', 0, PyUnicode_GetLength(name), 1) >= 0; }

nb::object checked(PyObject* made) {
  if (!made) throw nb::python_error();
  return nb::steal(made);
}

void check_size(PyObject* event, Py_ssize_t size) {
  if (PyDict_Size(event) == size) return;
  PyErr_SetString(PyExc_RuntimeError, "dictionary changed size during iteration");
  throw nb::python_error();
}

}  // namespace

EventPlan::EventPlan(nb::list columns, nb::dict numbers, nb::list free, nb::object other_value, nb::object other_event,
                     nb::object derived, bool ignores)
    : numbers_(numbers), other_value_(other_value), other_event_(other_event), derived_(derived), ignores_(ignores) {
  for (nb::handle native : columns) columns_.push_back(column(native));
  for (auto [name, of] : numbers)
    if (nb::isinstance<nb::int_>(of) && nb::cast<i64>(of) >= 0)
      columns_.at(size_t(nb::cast<i64>(of))).dotted = has_dot(name.ptr());
  for (nb::handle attribute : free) free_.push_back(nb::cast<u32>(attribute));
  old_ = checked(PyUnicode_InternFromString("old"));
  new_ = checked(PyUnicode_InternFromString("new"));
  tzinfo_ = checked(PyUnicode_InternFromString("tzinfo"));
  days_ = checked(PyUnicode_InternFromString("days"));
  seconds_ = checked(PyUnicode_InternFromString("seconds"));
  microseconds_ = checked(PyUnicode_InternFromString("microseconds"));
}

EventPlan::Column EventPlan::column(nb::handle native) {
  Column out;
  std::string type = nb::cast<std::string>(native[0]);
  if (type == "list") {
    const std::string of = nb::cast<std::string>(native[1]);
    out.element = of == "int" ? Type::whole : of == "float" ? Type::real : of == "bool" ? Type::truth : Type::text;
    out.type = Type::list;
  }
  if (type == "int") out.type = Type::whole;
  if (type == "float") out.type = Type::real;
  if (type == "bool") out.type = Type::truth;
  if (type == "timestamp") {
    out.type = Type::moment;
    out.epoch = native[1];
    out.plain_epoch = native[2];
  }
  if (type == "string") {
    out.type = Type::text;
    out.labels = std::make_shared<Labels>(nb::cast<nb::list>(native[1]), nb::cast<size_t>(native[2]));
  }
  if (type == "int grid" || type == "float grid") {
    out.type = type == "int grid" ? Type::whole_grid : Type::real_grid;
    out.over = nb::cast<i64>(native[1]);
    out.under = nb::cast<double>(native[2]);
    out.scale = nb::cast<double>(native[3]);
    out.below = nb::cast<i64>(native[4]);
    out.above = nb::cast<i64>(native[5]);
  }
  return out;
}

// The key of a value that needs no codec.
bool EventPlan::plain_key(const Column& column, PyObject* value, i64& key) const {
  if (value == Py_None) {
    key = MISSING;
    return column.type != Type::other;
  }
  double real;
  i64 whole;
  switch (column.type) {
    case Type::whole: return whole_number(value, key);
    case Type::real:
      if (!real_number(value, real)) return false;
      key = float_key(real);
      return true;
    case Type::truth: key = value == Py_True; return value == Py_True || value == Py_False;
    case Type::moment: return moment_key(column, value, key);
    case Type::text: return text_key(column, value, key);
    case Type::whole_grid: {
      if (!whole_number(value, whole)) return false;
      i64 at = whole / column.over, rest = whole % column.over;
      if (rest < 0) at -= 1;
      at = clamp(at, column.below / 2 - 1, column.above / 2);
      key = clamp(2 * at + (rest != 0), column.below, column.above);
      return true;
    }
    case Type::real_grid: {
      if (!real_number(value, real)) return false;
      if (real != real) {
        key = MISSING;
        return true;
      }
      double scaled = real * column.scale;
      if (!(double(column.below) <= scaled && scaled <= double(column.above))) {
        key = scaled < double(column.below) ? column.below : column.above;
        return true;
      }
      double at = std::nearbyint(scaled), steps = at * double(column.over);
      if (std::fabs(steps) > double(EXACT)) return false;
      double grid = steps / column.under;  // exact integers divided once: the double nearest to the step
      key = clamp(2 * i64(at) + (real > grid) - (real < grid), column.below, column.above);
      return true;
    }
    case Type::list: return list_key(column, value, key);
    case Type::other: break;
  }
  return false;
}

// Whether an element of a list needs no codec.
bool EventPlan::is_plain(Type element, PyObject* value) {
  if (value == Py_None) return true;
  double real;
  i64 whole;
  if (element == Type::whole) return whole_number(value, whole);
  if (element == Type::real) return real_number(value, real);
  if (element == Type::truth) return value == Py_True || value == Py_False;
  if (Py_TYPE(value) != &PyUnicode_Type) return false;
  Py_ssize_t size;
  const char* text = PyUnicode_AsUTF8AndSize(value, &size);
  if (!text) PyErr_Clear();
  return text && !std::memchr(text, 0, size_t(size));
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

// Of an exact string that files and columns can carry.
bool EventPlan::text_key(const Column& column, PyObject* value, i64& key) const {
  if (Py_TYPE(value) != &PyUnicode_Type) return false;
  Py_ssize_t size;
  const char* text = PyUnicode_AsUTF8AndSize(value, &size);
  if (!text) {
    PyErr_Clear();  // a lone surrogate: the codec says so
    return false;
  }
  if (std::memchr(text, 0, size_t(size))) return false;
  key = column.labels->key({text, size_t(size)});
  return true;
}

// Of an exact datetime in UTC or without a zone, which means UTC.
bool EventPlan::moment_key(const Column& column, PyObject* value, i64& key) const {
  if (Py_TYPE(value) != Py_TYPE(column.epoch.ptr())) return false;
  nb::object zone = checked(PyObject_GetAttr(value, tzinfo_.ptr()));
  bool plain = zone.is_none();
  if (!plain && !zone.is(column.epoch.attr("tzinfo"))) return false;
  nb::object since = checked(PyNumber_Subtract(value, (plain ? column.plain_epoch : column.epoch).ptr()));
  i64 days = PyLong_AsLongLong(checked(PyObject_GetAttr(since.ptr(), days_.ptr())).ptr());
  i64 seconds = PyLong_AsLongLong(checked(PyObject_GetAttr(since.ptr(), seconds_.ptr())).ptr());
  i64 micros = PyLong_AsLongLong(checked(PyObject_GetAttr(since.ptr(), microseconds_.ptr())).ptr());
  if (PyErr_Occurred()) throw nb::python_error();
  key = (days * 86400 + seconds) * 1000000 + micros;
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
    ways.dotted |= !inside && columns_[attribute].dotted;
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
      .def(nb::init<nb::list, nb::dict, nb::list, nb::object, nb::object, nb::object, bool>(), nb::arg("columns"),
           nb::arg("numbers"), nb::arg("free"), nb::arg("other_value"), nb::arg("other_event"),
           nb::arg("derived") = nb::none(), nb::arg("ignores") = false)
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
