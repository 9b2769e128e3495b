// Python's dicts -> the values that subscriptions ask for (document/document.hpp). Only exact types of Python are read:
// dict, list, str, int, float, bool, None and datetime. For all else Python has to look.
#pragma once

#include <vector>

#include <nanobind/nanobind.h>

#include "bindings/python_values.hpp"
#include "document/document.hpp"

namespace hitbox {

namespace nb = nanobind;

class ObjectReader : document::Reading {
 public:
  ObjectReader(const document::Paths& paths, document::Documents& out, document::Strangers* strangers,
               const Moments& moments, std::vector<nb::object>& kept)
      : Reading(paths, out, strangers), moments_(moments), kept_(kept) {}

  // Reads an event, which becomes the last one of the documents. False if Python has to read it; then it has no fields.
  bool read(PyObject* event, bool images_alone) {
    skipped_ = 0;
    return document([&] { return Py_TYPE(event) == &PyDict_Type && this->event(event, images_alone); });
  }

 private:
  using Type = document::Type;
  static constexpr size_t MOST_SKIPPED = size_t(1) << 20;

  bool event(PyObject* dict, bool images_alone) {
    size_t images = 0;
    const bool good = members(dict, 1, [&](std::string_view name, PyObject* value) {
      const u32 place = paths_.field(document::Paths::EVENT, name);
      if (images_alone || place == document::NOWHERE_ASKED) images += name == "old" || name == "new";
      if (place == document::NOWHERE_ASKED) return allows(document::Paths::EVENT, name) && skip(value, 1);
      return out_.note(place) && kept(value, place, place, 1);
    });
    return good && (!images || (images_alone && Py_ssize_t(images) < PyDict_Size(dict)));
  }

  // Calls use(name, value) for the items of a dict.
  template <class Use>
  bool members(PyObject* dict, u32 depth, Use use) {
    if (depth > MOST_NESTED) return false;
    PyObject *name, *value;
    Py_ssize_t at = 0;
    const nb::object held = nb::borrow(dict);
    const Py_ssize_t size = PyDict_Size(dict);
    while (PyDict_Next(dict, &at, &name, &value)) {
      const nb::object kept = nb::borrow(value);  // Python code may run, and change the dict
      std::string_view text;
      if (!utf8(name, text) || !use(text, value) || PyDict_Size(dict) != size) return false;
    }
    return true;
  }

  bool kept(PyObject* value, u32 place, u32 scope, u32 depth) {
    if (value == Py_None) return out_.add(Type::NOTHING, place) + 1;
    if (value == Py_True || value == Py_False) return out_.add(value == Py_True ? Type::TRUE : Type::FALSE, place) + 1;
    PyTypeObject* type = Py_TYPE(value);
    if (type == &PyUnicode_Type) {
      std::string_view text;
      if (!sound_utf8(value, text) || text.size() > UINT32_MAX) return false;
      out_[out_.add(Type::TEXT, place, u32(text.size()))].bytes = text.data();
      kept_.push_back(nb::borrow(value));
      return true;
    }
    if (type == &PyLong_Type) {
      i64 whole;
      if (!whole_number(value, whole)) return false;
      out_[out_.add(Type::WHOLE, place)].whole = whole;
      return true;
    }
    if (type == &PyFloat_Type) {
      const double real = PyFloat_AsDouble(value);
      if (real != real) return out_.add(Type::NOTHING, place) + 1;
      out_[out_.add(Type::REAL, place)].real = real;
      return true;
    }
    if (type == &PyDict_Type) return object(value, place, scope, depth);
    if (type == &PyList_Type)
      return list(value, place, scope == document::NOWHERE_ASKED ? scope : paths_.element_of(scope), depth);
    i64 micros;
    if (!moments_.read(value, micros)) return false;
    out_[out_.add(Type::MOMENT, place)].whole = micros;
    return true;
  }

  bool object(PyObject* dict, u32 place, u32 scope, u32 depth) {
    const size_t own = out_.add(Type::OBJECT, place);
    const bool asked = scope != document::NOWHERE_ASKED && paths_.has_fields(scope);
    const bool of_event = asked && paths_.is_of_event(scope);
    const bool good = members(dict, depth + 1, [&](std::string_view name, PyObject* value) {
      const u32 field = asked ? paths_.field(scope, name) : document::NOWHERE_ASKED;
      if (field == document::NOWHERE_ASKED) return (!asked || allows(scope, name)) && skip(value, depth + 1);
      if (of_event && !out_.note(field)) return false;
      return kept(value, field, field, depth + 1);
    });
    out_.close(own);
    return good;
  }

  bool list(PyObject* list, u32 place, u32 scope, u32 depth) {
    if (depth + 1 > MOST_NESTED) return false;
    const size_t own = out_.add(Type::LIST, place);
    const nb::object held = nb::borrow(list);
    const Py_ssize_t size = PyList_Size(list);
    if (size > Py_ssize_t(INT32_MAX)) return false;
    for (Py_ssize_t at = 0; at < size; ++at) {
      if (PyList_Size(list) != size) return false;  // Python code ran, and changed it
      const nb::object value = nb::borrow(PyList_GetItem(list, at));
      const bool good = scope == document::NOWHERE_ASKED ? skip(value.ptr(), depth + 1)
                                                         : kept(value.ptr(), document::NOWHERE_ASKED, scope, depth + 1);
      if (!good) return false;
    }
    out_[own].size = u32(size);
    out_.close(own);
    return true;
  }

  // Passes over a value, which must be one that Python would take, too.
  bool skip(PyObject* value, u32 depth) {
    if (++skipped_ > MOST_SKIPPED) return false;  // one object may be in many places: Python notices
    PyTypeObject* type = Py_TYPE(value);
    if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
        value == Py_None)
      return true;
    if (type == &PyDict_Type)
      return members(value, depth + 1, [&](std::string_view, PyObject* one) { return skip(one, depth + 1); });
    if (type != &PyList_Type) return moments_.is_moment(value);
    if (depth + 1 > MOST_NESTED) return false;
    for (Py_ssize_t at = 0; at < PyList_Size(value); ++at)
      if (!skip(PyList_GetItem(value, at), depth + 1)) return false;
    return true;
  }

  const Moments& moments_;
  size_t skipped_ = 0;
  std::vector<nb::object>& kept_;
};

}  // namespace hitbox
