// Exact values of Python's plain types -> native ones. False where it is another type, or a value that only Python can
// judge.
#pragma once

#include <string_view>

#include <nanobind/nanobind.h>

#include "base/common.hpp"

namespace hitbox {

namespace nb = nanobind;

inline nb::object checked(PyObject* made) {
  if (!made) throw nb::python_error();
  return nb::steal(made);
}

// An exact int that has 64 bits.
inline bool whole_number(PyObject* value, i64& number) {
  if (Py_TYPE(value) != &PyLong_Type) return false;
  int overflow;
  number = PyLong_AsLongLongAndOverflow(value, &overflow);
  return !overflow && number != MISSING;
}

// The bytes of an exact string without lone surrogates.
inline bool utf8(PyObject* value, std::string_view& out) {
  if (Py_TYPE(value) != &PyUnicode_Type) return false;
  Py_ssize_t size;
  const char* text = PyUnicode_AsUTF8AndSize(value, &size);
  if (!text) {
    PyErr_Clear();
    return false;
  }
  out = {text, size_t(size)};
  return true;
}

// The bytes of an exact string that files and columns can carry.
inline bool sound_utf8(PyObject* value, std::string_view& out) {
  return utf8(value, out) && !std::memchr(out.data(), 0, out.size());
}

// Datetimes as microseconds since 1970.
class Moments {
 public:
  // The start of 1970, with and without a zone.
  Moments(nb::object epoch, nb::object plain_epoch) : epoch_(epoch), plain_epoch_(plain_epoch) {
    tzinfo_ = checked(PyUnicode_InternFromString("tzinfo"));
    days_ = checked(PyUnicode_InternFromString("days"));
    seconds_ = checked(PyUnicode_InternFromString("seconds"));
    microseconds_ = checked(PyUnicode_InternFromString("microseconds"));
  }

  bool is_moment(PyObject* value) const { return Py_TYPE(value) == Py_TYPE(epoch_.ptr()); }
  // An exact datetime in UTC or without a zone, which means UTC.
  bool read(PyObject* value, i64& micros) const {
    if (!is_moment(value)) return false;
    const nb::object zone = checked(PyObject_GetAttr(value, tzinfo_.ptr()));
    const bool plain = zone.is_none();
    if (!plain && !zone.is(epoch_.attr("tzinfo"))) return false;
    const nb::object since = checked(PyNumber_Subtract(value, (plain ? plain_epoch_ : epoch_).ptr()));
    auto part = [&](const nb::object& name) {
      return PyLong_AsLongLong(checked(PyObject_GetAttr(since.ptr(), name.ptr())).ptr());
    };
    micros = (part(days_) * 86400 + part(seconds_)) * 1'000'000 + part(microseconds_);
    if (PyErr_Occurred()) throw nb::python_error();
    return true;
  }

 private:
  nb::object epoch_, plain_epoch_, tzinfo_, days_, seconds_, microseconds_;
};

}  // namespace hitbox
