// The keys of strings, as encoding/string_dictionary.py gives them.
#pragma once

#include <algorithm>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>

#include "base/common.hpp"
#include "text/text_table.hpp"

namespace hitbox {

namespace nb = nanobind;

// The memory of a Python object.
class Buffer {
 public:
  explicit Buffer(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE)) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <class T>
  const T* data() const {
    return static_cast<const T*>(view_.buf);
  }
  template <class T>
  size_t size() const {
    return size_t(view_.len) / sizeof(T);
  }

 private:
  Py_buffer view_;
};

inline text::Seed random_seed() {
  static std::random_device device;
  auto number = [] { return u64(device()) << 32 | device(); };
  return {number(), number() | 1};
}

// An ordered dictionary with gaps as it is at one moment: a frozen base, and an overlay of strings that came later, sorted,
// with their labels.
class DictionaryParts {
 public:
  explicit DictionaryParts(nb::handle parts)
      : data_(parts[0]), offsets_(parts[1]), labels_(parts[2]), sorted_(parts[3]), overlay_(parts[4]) {}

  // The label of a known string, or the odd key in the gap where it would stand.
  i64 key(std::string_view text) const {
    const size_t at = first_not_below(labels_.size<i64>(), [&](size_t i) { return base(i).compare(text); });
    if (at < labels_.size<i64>() && base(at) == text) return labels_.data<i64>()[at];
    i64 below = at ? labels_.data<i64>()[at - 1] : MISSING;
    const size_t late =
        first_not_below(size_t(PyList_Size(sorted_.ptr())), [&](size_t i) { return later(i).compare(text); });
    if (late < size_t(PyList_Size(sorted_.ptr())) && later(late) == text) return label_at(late);
    if (late) below = std::max(below, label_at(late - 1));
    return below == MISSING ? LOWEST : below + 1;
  }

 private:
  template <class Compare>
  static size_t first_not_below(size_t count, Compare compare) {
    size_t low = 0;
    while (low < count) {
      const size_t middle = low + (count - low) / 2;
      if (compare(middle) < 0) low = middle + 1;
      else count = middle;
    }
    return low;
  }

  // UTF-8 sorts as code points do.
  std::string_view base(size_t at) const {
    const i64* start = offsets_.data<i64>() + at;
    return {data_.data<char>() + start[0], size_t(start[1] - start[0])};
  }
  std::string_view later(size_t at) const {
    PyObject* bytes = PyList_GetItem(sorted_.ptr(), Py_ssize_t(at));
    char* data;
    Py_ssize_t size;
    if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &size)) throw nb::python_error();
    return {data, size_t(size)};
  }
  i64 label_at(size_t at) const {
    const nb::object bytes = nb::borrow(PyList_GetItem(sorted_.ptr(), Py_ssize_t(at)));
    return nb::cast<i64>(overlay_[bytes]);
  }

  Buffer data_, offsets_, labels_;
  nb::object sorted_, overlay_;
};

// The keys of a dictionary that changes: those that were asked for are kept until it does. Used under Python's lock.
class Labels {
 public:
  // `current` is `Dictionary.current`: a list with what the dictionary is made of, which every change replaces.
  Labels(nb::list current, size_t most) : current_(current), most_(most), memo_(random_seed()) {}

  i64 key(std::string_view text) {
    PyObject* now = PyList_GetItem(current_.ptr(), 0);
    if (!now) throw nb::python_error();
    if (now != known_.ptr()) {
      parts_.reset();
      known_ = nb::borrow(now);
      parts_.emplace(known_);
      forget();
    }
    const u32 at = memo_.find(text);
    if (at != text::TextTable::NONE) return keys_[at];
    const i64 key = parts_->key(text);
    if (text.size() > LONGEST) return key;
    if (keys_.size() >= most_) forget();
    memo_.number(text);
    keys_.push_back(key);
    return key;
  }

 private:
  static constexpr size_t LONGEST = 4096;  // bytes of a text that is kept

  void forget() {
    memo_.clear();
    keys_.clear();
  }

  nb::list current_;
  size_t most_;
  nb::object known_;
  std::optional<DictionaryParts> parts_;
  text::TextTable memo_;
  std::vector<i64> keys_;
};

}  // namespace hitbox
