// Many events as documents: what was read of them, and the keys of their points.
#pragma once

#include <vector>

#include <nanobind/nanobind.h>

#include "bindings/document_plan.hpp"
#include "bindings/event_reader.hpp"

namespace hitbox {

// Events that were read, and their points. Those that Python has to read are `left`.
class DocumentBatch {
 public:
  DocumentBatch(nb::object plan, const nb::list& events, bool as_json);
  // JSON texts one after the other: text i is data[offsets[i], offsets[i + 1]).
  DocumentBatch(nb::object plan, nb::object data, nb::object offsets);

  DocumentBatch(const DocumentBatch&) = delete;
  DocumentBatch& operator=(const DocumentBatch&) = delete;

  const DocumentPlan& plan() const { return plan_; }
  size_t size() const { return left_.size(); }
  // Shows an event in `documents`; false if it is left to Python.
  bool show(size_t event) const {
    if (left_[event]) return false;
    reader_.documents.show(event);
    return true;
  }
  document::Documents& documents() const { return reader_.documents; }
  nb::object low() const { return low_; }
  std::vector<i64> left() const;
  // What events [from, from + count) bring to sets. Python says it of some, {number: [(name, [what it brings])]}, and has
  // to say it of those that are then `unknown`.
  Brought brought(size_t from, size_t count, const nb::dict& others, std::vector<i64>& unknown) const;

 private:
  template <class ReadEvent>
  void read(size_t count, ReadEvent read_event);

  nb::object held_plan_;
  const DocumentPlan& plan_;
  mutable EventReader reader_;
  nb::object data_;  // keeps the memory of the texts
  std::vector<u8> left_;
  nb::object low_;
};

void bind_documents(nb::module_& m);

}  // namespace hitbox
