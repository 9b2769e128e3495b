// Covers that are found by members of sets: hitbox.engine._kernels.AnchorSegment, which hitbox.index.anchors drives.
#include <numeric>
#include <thread>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/brought.hpp"
#include "bindings/document_batch.hpp"
#include "bindings/numpy_memory.hpp"
#include "bindings/released_gil.hpp"

namespace nb = nanobind;
using namespace hitbox;
using namespace nb::literals;

namespace {

using sets::AnchorSegment;
using sets::Cover;
using sets::NONE;

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

bool by_anchor(const Cover& a, const Cover& b) { return a.anchor < b.anchor; }

void require_runs(Vector<i64> offsets, size_t count, size_t end) {
  bool good = offsets.size() == count + 1 && offsets.data()[0] == 0 && size_t(offsets.data()[count]) == end;
  for (size_t i = 0; good && i < count; ++i) good = offsets.data()[i] <= offsets.data()[i + 1];
  if (!good) throw nb::value_error("the offsets do not ascend from 0 to the end");
}

// A segment of new covers and of what lives in older segments, without the numbers `gone`, which ascend.
AnchorSegment* new_segment(Vector<i64> numbers, Vector<i64> offsets, Vector<i32> attribute, Vector<i64> low,
                           Vector<i64> high, Vector<u8> priority, Vector<i64> anchor_offsets, Vector<u8> anchors,
                           const AnchorSegments& older, Vector<i64> gone, u64 first_seed, u64 second_seed) {
  const size_t count = numbers.size();
  require_runs(offsets, count, attribute.size());
  require_runs(anchor_offsets, count, anchors.size());
  if (low.size() != attribute.size() || high.size() != attribute.size() || priority.size() != count)
    throw nb::value_error("the columns of the boxes differ in length");
  std::vector<u16> numbered(attribute.size());
  for (size_t i = 0; i < attribute.size(); ++i) {
    if (attribute.data()[i] < 0 || u32(attribute.data()[i]) >= MAX_ATTRIBUTES)
      throw nb::value_error("there is no such attribute");
    numbered[i] = u16(attribute.data()[i]);
  }
  ReleasedGil released;
  std::vector<Cover> covers;
  size_t total = count;
  for (const AnchorSegment* one : older) total += one->live();
  covers.reserve(total);
  for (size_t i = 0; i < count; ++i) {
    const i64 number = numbers.data()[i], from = offsets.data()[i], start = anchor_offsets.data()[i];
    if (number < 0 || number > INT32_MAX) throw std::invalid_argument("a number of a box is out of range");
    const char* text = reinterpret_cast<const char*>(anchors.data()) + start;
    covers.push_back({{text, size_t(anchor_offsets.data()[i + 1] - start)},
                      number,
                      priority.data()[i],
                      u32(offsets.data()[i + 1] - from),
                      numbered.data() + from,
                      low.data() + from,
                      high.data() + from});
  }
  if (!std::is_sorted(covers.begin(), covers.end(), by_anchor)) std::sort(covers.begin(), covers.end(), by_anchor);
  for (const AnchorSegment* one : older) {
    const size_t before = covers.size();
    for (u32 row = 0; row < one->size(); ++row)
      if (one->alive(row) && !std::binary_search(gone.data(), gone.data() + gone.size(), i64(one->number(row))))
        covers.push_back(one->cover(row));
    std::inplace_merge(covers.begin(), covers.begin() + i64(before), covers.end(), by_anchor);
  }
  return new AnchorSegment(covers, {first_seed, second_seed});
}

// (numbers, offsets, attribute, low, high, priority, where anchors begin, anchors) of some covers.
nb::tuple decode(const AnchorSegment& self, Vector<u32> rows) {
  std::vector<i64> numbers, offsets{0}, low, high, starts{0};
  std::vector<i32> attribute;
  std::vector<u8> priority, anchors;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows.data()[i] >= self.size()) throw nb::index_error("there is no such cover");
    const Cover one = self.cover(rows.data()[i]);
    numbers.push_back(one.number);
    attribute.insert(attribute.end(), one.attribute, one.attribute + one.constraints);
    low.insert(low.end(), one.low, one.low + one.constraints);
    high.insert(high.end(), one.high, one.high + one.constraints);
    priority.push_back(one.priority);
    anchors.insert(anchors.end(), one.anchor.begin(), one.anchor.end());
    offsets.push_back(i64(attribute.size()));
    starts.push_back(i64(anchors.size()));
  }
  return nb::make_tuple(numpy_array(std::move(numbers)), numpy_array(std::move(offsets)),
                        numpy_array(std::move(attribute)), numpy_array(std::move(low)), numpy_array(std::move(high)),
                        numpy_array(std::move(priority)), numpy_array(std::move(starts)),
                        numpy_array(std::move(anchors)));
}

nb::object rows_of(const AnchorSegment& self, Vector<i64> numbers) {
  std::vector<u32> rows(numbers.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = self.row_of(numbers.data()[i]);
  return numpy_array(std::move(rows));
}

nb::object living(const AnchorSegment& self) {
  std::vector<u32> rows;
  rows.reserve(self.live());
  for (u32 row = 0; row < self.size(); ++row)
    if (self.alive(row)) rows.push_back(row);
  return numpy_array(std::move(rows));
}

// Matches events [from, to), of which event e is the points [points[e], points[e + 1]).
void find_some(const AnchorSegments& segments, const Brought& brought, const i64* low, const i64* high,
               size_t attributes, const i64* points, size_t from, size_t to, i64* counts, std::vector<i32>& numbers) {
  sets::Seen seen;
  Members found;
  for (size_t event = from; event < to; ++event) {
    find_members(segments, brought, event, seen, found);
    for (size_t point = size_t(points[event]); point < size_t(points[event + 1]); ++point) {
      const size_t before = numbers.size();
      for (auto [at, member] : found)
        segments[at]->meeting(member, low + point * attributes, high + point * attributes,
                              [&](u32 number, u8) { numbers.push_back(i32(number)); });
      counts[point] = i64(numbers.size() - before);
    }
  }
}

// (offsets, numbers): the covers that each point meets.
nb::tuple find_covers(const AnchorSegments& segments, const Brought& brought, Matrix<i64> low, Matrix<i64> high,
                      Vector<i64> points, size_t threads) {
  const size_t count = low.shape(0), attributes = low.shape(1), events = points.size() - 1;
  if (high.shape(0) != count || high.shape(1) != attributes) throw nb::value_error("low and high differ in shape");
  require_runs(points, events, count);
  require_attributes(segments, attributes);
  i64* ends = allocate<i64>(count + 1);
  nb::object offsets = numpy_array(ends, {count + 1});
  std::vector<std::vector<i32>> parts(std::max<size_t>(1, std::min(threads, events / 16)));
  ends[0] = 0;
  auto part = [&](size_t at) {
    find_some(segments, brought, low.data(), high.data(), attributes, points.data(), events * at / parts.size(),
              events * (at + 1) / parts.size(), ends + 1, parts[at]);
  };
  if (brought.work() <= AnchoredEvent::SHORT) {
    for (size_t at = 0; at < parts.size(); ++at) part(at);
  } else {
    ReleasedGil released;
    std::vector<std::exception_ptr> failed(parts.size());
    std::vector<std::thread> others;
    auto guarded = [&](size_t at) {
      try {
        part(at);
      } catch (...) {
        failed[at] = std::current_exception();
      }
    };
    std::vector<size_t> own{0};
    for (size_t at = 1; at < parts.size(); ++at) {
      try {
        others.emplace_back(guarded, at);
      } catch (const std::system_error&) {  // no thread: the caller does its share
        own.push_back(at);
      }
    }
    for (size_t at : own) guarded(at);
    for (std::thread& one : others) one.join();
    for (std::exception_ptr& one : failed)
      if (one) std::rethrow_exception(one);
  }
  std::partial_sum(ends, ends + count + 1, ends);
  i32* numbers = allocate<i32>(size_t(ends[count]));
  nb::object whole = numpy_array(numbers, {size_t(ends[count])});
  for (const auto& one : parts) numbers = std::copy(one.begin(), one.end(), numbers);
  return nb::make_tuple(offsets, whole);
}

nb::tuple find_anchored(const AnchorSegments& segments, const nb::list& sets, Matrix<i64> low, Matrix<i64> high,
                        Vector<i64> points, size_t threads) {
  return find_covers(segments, Brought(sets, points.size() - 1), low, high, points, threads);
}

// The same for documents from number `row` on; or a list of those of which Python has to say what they bring.
nb::object find_in_documents(const AnchorSegments& segments, const DocumentBatch& documents, size_t row,
                             const nb::dict& others, Matrix<i64> low, Matrix<i64> high, Vector<i64> points,
                             size_t threads) {
  std::vector<i64> unknown;
  const Brought brought = documents.brought(row, points.size() - 1, others, unknown);
  if (!unknown.empty()) return nb::cast(unknown);
  return find_covers(segments, brought, low, high, points, threads);
}

}  // namespace

void bind_sets(nb::module_& m) {
  nb::class_<AnchorSegment>(m, "AnchorSegment")
      .def(nb::new_(&new_segment), "numbers"_a, "offsets"_a, "attribute"_a, "low"_a, "high"_a, "priority"_a,
           "anchor_offsets"_a, "anchors"_a, "older"_a, "gone"_a, "first_seed"_a, "second_seed"_a)
      .def("rows", &rows_of, "numbers"_a)
      .def("living", &living)
      .def("decode", &decode, "rows"_a)
      .def(
          "kill",
          [](AnchorSegment& self, Vector<u32> rows) {
            for (size_t i = 0; i < rows.size(); ++i)
              if (rows.data()[i] < self.size()) self.kill(rows.data()[i]);
          },
          "rows"_a)
      .def("sets",
           [](const AnchorSegment& self) {
             nb::list names;
             for (std::string_view one : self.sets()) names.append(nb::bytes(one.data(), one.size()));
             return names;
           })
      .def_prop_ro("live", &AnchorSegment::live)
      .def_prop_ro("nbytes", &AnchorSegment::bytes)
      .def("__len__", &AnchorSegment::size);
  m.def("find_anchored", &find_anchored, "segments"_a, "sets"_a, "low"_a, "high"_a, "points"_a, "threads"_a);
  m.def("find_anchored", &find_in_documents, "segments"_a, "documents"_a, "row"_a, "others"_a, "low"_a, "high"_a,
        "points"_a, "threads"_a);
}
