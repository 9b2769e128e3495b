#include "bindings/document_batch.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "bindings/numpy_memory.hpp"
#include "bindings/owners.hpp"

namespace hitbox {

DocumentBatch::DocumentBatch(nb::object plan, const nb::list& events, bool as_json)
    : held_plan_(plan), plan_(nb::cast<const DocumentPlan&>(plan)), reader_(plan_) {
  read(nb::len(events), [&](size_t at) {
    PyObject* event = PyList_GetItem(events.ptr(), Py_ssize_t(at));
    if (!event) throw nb::python_error();
    const nb::object held = nb::borrow(event);
    return reader_.read(held, as_json);
  });
}

DocumentBatch::DocumentBatch(nb::object plan, nb::object data, nb::object offsets)
    : held_plan_(plan), plan_(nb::cast<const DocumentPlan&>(plan)), reader_(plan_), data_(data) {
  const Frozen<u8> bytes = nb::cast<Frozen<u8>>(data, false);
  const Frozen<i64> ends = nb::cast<Frozen<i64>>(offsets, false);
  if (!ends.size()) throw nb::value_error("the offsets of the texts have no end");
  for (size_t i = 0; i < ends.size(); ++i)
    if (ends.data()[i] < (i ? ends.data()[i - 1] : 0) || u64(ends.data()[i]) > bytes.size())
      throw nb::value_error("the offsets of the texts do not ascend");
  const char* texts = reinterpret_cast<const char*>(bytes.data());
  read(ends.size() - 1, [&](size_t at) {
    const i64 from = ends.data()[at];
    return reader_.read(std::string_view(texts + from, size_t(ends.data()[at + 1] - from)));
  });
}

template <class ReadEvent>
void DocumentBatch::read(size_t count, ReadEvent read_event) {
  const size_t width = plan_.attributes();
  i64* low = allocate<i64>(count * width);
  low_ = numpy_array(low, {count, width});
  left_.assign(count, 0);
  for (size_t at = 0; at < count; ++at) {
    left_[at] = !read_event(at) || !plan_.point(reader_.documents, low + at * width);
    if (left_[at]) std::fill(low + at * width, low + (at + 1) * width, MISSING);
    if (at % 1024 == 1023 && PyErr_CheckSignals()) throw nb::python_error();
  }
}

std::vector<i64> DocumentBatch::left() const {
  std::vector<i64> rows;
  for (size_t at = 0; at < left_.size(); ++at)
    if (left_[at]) rows.push_back(i64(at));
  return rows;
}

Brought DocumentBatch::brought(size_t from, size_t count, const nb::dict& others, std::vector<i64>& unknown) const {
  if (from + count > size()) throw nb::value_error("there are fewer events");
  Brought out(plan_.set_names());
  for (size_t at = from; at < from + count; ++at) {
    const nb::int_ row(at);
    if (others.contains(row)) {
      out.add_event(nb::cast<nb::list>(others[row]));
    } else if (!show(at) || !plan_.bring(reader_.documents, out)) {
      unknown.push_back(i64(at));
      out.end_event();
    }
  }
  return out;
}

void bind_documents(nb::module_& m) {
  nb::class_<DocumentPlan>(m, "DocumentPlan")
      .def(nb::init<nb::list, nb::list, nb::list, nb::list, nb::list, nb::list, nb::object, nb::object, nb::object,
                    nb::object, nb::object>(),
           nb::arg("columns"), nb::arg("free"), nb::arg("points"), nb::arg("details"), nb::arg("sets"),
           nb::arg("others"), nb::arg("declared").none(), nb::arg("fold"), nb::arg("allows").none(), nb::arg("epoch"),
           nb::arg("plain_epoch"));
  nb::class_<DocumentBatch>(m, "DocumentBatch")
      .def(nb::init<nb::object, const nb::list&, bool>(), nb::arg("plan"), nb::arg("events"), nb::arg("as_json"))
      .def(nb::init<nb::object, nb::object, nb::object>(), nb::arg("plan"), nb::arg("data"), nb::arg("offsets"))
      .def_prop_ro("low", &DocumentBatch::low)
      .def_prop_ro("left", [](const DocumentBatch& self) { return numpy_array(self.left()); })
      .def("__len__", &DocumentBatch::size);
}

}  // namespace hitbox
