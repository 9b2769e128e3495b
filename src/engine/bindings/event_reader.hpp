// Events as callers have them -> documents: JSON, or Python's dicts.
#pragma once

#include <vector>

#include <nanobind/nanobind.h>

#include "bindings/document_plan.hpp"
#include "bindings/object_reader.hpp"
#include "document/json_reader.hpp"

namespace hitbox {

// Reads events for a plan. What it reads is valid until the next `clear`, and as long as the events live.
class EventReader {
 public:
  explicit EventReader(const DocumentPlan& plan)
      : documents(plan.documents()), images_alone_(!plan.is_strict()), json_(plan.paths(), documents, plan.strangers()),
        objects_(plan.paths(), documents, plan.strangers(), plan.moments(), kept_) {}
  EventReader(const EventReader&) = delete;
  EventReader& operator=(const EventReader&) = delete;

  // Reads an event, which becomes the last document: JSON in a text, in bytes or in a buffer, or a dict. False if Python
  // has to read it; then the document is empty.
  bool read(nb::handle event, bool as_json) {
    if (!as_json) return objects_.read(event.ptr(), images_alone_);
    std::string_view text;
    if (!json_text(event, text)) {
      documents.begin();
      documents.finish_empty();
      return false;
    }
    return read(text);
  }
  bool read(std::string_view text) { return text.size() <= MOST_BYTES && json_.read(text, images_alone_); }

  void clear() {
    documents.clear();
    kept_.clear();
  }
  // Whether it holds so much memory that it had better be made again.
  bool is_large() const { return documents.capacity() > MOST_KEPT; }

  document::Documents documents;

 private:
  static constexpr size_t MOST_BYTES = size_t(1) << 31;
  static constexpr size_t MOST_KEPT = size_t(1) << 16;  // values

  bool json_text(nb::handle event, std::string_view& text) {
    Py_ssize_t size;
    if (PyUnicode_Check(event.ptr())) {
      const char* bytes = PyUnicode_AsUTF8AndSize(event.ptr(), &size);
      if (!bytes) {
        PyErr_Clear();  // a lone surrogate
        return false;
      }
      text = {bytes, size_t(size)};
    } else if (PyBytes_Check(event.ptr())) {
      char* bytes;
      if (PyBytes_AsStringAndSize(event.ptr(), &bytes, &size)) throw nb::python_error();
      text = {bytes, size_t(size)};
    } else if (PyByteArray_Check(event.ptr()) || PyMemoryView_Check(event.ptr())) {
      Py_buffer view;
      if (PyObject_GetBuffer(event.ptr(), &view, PyBUF_SIMPLE)) {
        PyErr_Clear();  // its bytes do not lie one after the other
        return false;
      }
      PyBuffer_Release(&view);
      const Buffer buffer(event);
      text = documents.texts.copy({buffer.data<char>(), buffer.size<char>()});  // others may write to it
      return true;
    } else {
      return false;
    }
    kept_.push_back(nb::borrow(event));
    return true;
  }

  bool images_alone_;
  std::vector<nb::object> kept_;
  document::JsonReader json_;
  ObjectReader objects_;
};

}  // namespace hitbox
