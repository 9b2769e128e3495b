// The Python extension module hitbox.engine._kernels. Input arrays are not copied; output arrays own their memory.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/event_plan.hpp"
#include "bindings/owners.hpp"
#include "bindings/read_write_lock.hpp"
#include "bindings/released_gil.hpp"
#include "build/build.hpp"
#include "format/checksum.hpp"
#include "format/decode.hpp"
#include "format/segment_view.hpp"
#include "format/tail.hpp"
#include "match/dispatch.hpp"

namespace nb = nanobind;
using namespace hitbox;
using namespace nb::literals;

void bind_text(nb::module_& m);  // text.cpp
void bind_floor(nb::module_& m);  // floor.cpp

namespace {

// Input arrays. nanobind refuses any other number of dimensions.
template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Runs Python's signal handlers every 50 ms; if one raises, the call is cancelled. Only the main thread runs handlers, so
// calls in other threads stop polling.
struct SignalCheck : InterruptCheck {
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds INTERVAL{50};
  Clock::time_point next = Clock::now() + INTERVAL;

  SignalCheck() : InterruptCheck{poll_signals, 0} {}

  static void poll_signals(InterruptCheck& interrupt) {
    SignalCheck& self = static_cast<SignalCheck&>(interrupt);
    if (Clock::now() < self.next) return;
    nb::gil_scoped_acquire python;
    if (PyErr_CheckSignals()) throw nb::python_error();
    self.next = in_main_thread() ? Clock::now() + INTERVAL : Clock::time_point::max();
  }

  static bool in_main_thread() {
    nb::object threading = nb::module_::import_("threading");
    return threading.attr("main_thread")().is(threading.attr("current_thread")());
  }
};

struct Free {
  void operator()(void* memory) const noexcept { free_memory(memory); }
};
template <class T>
using Memory = std::unique_ptr<T, Free>;

// Transfers memory to a new numpy array.
template <class T, class Owner>
nb::object to_numpy(Owner memory, size_t size, void (*done)(void*) noexcept) {
  nb::capsule owner(memory.get(), done);
  T* data = memory.release();
  return nb::cast(nb::ndarray<nb::numpy, T>(data, {size}, owner));
}

template <class T>
nb::object to_numpy(Memory<T> memory, size_t size) {
  return to_numpy<T>(std::move(memory), size, free_memory);
}

template <class T>
nb::object to_numpy(Array<T>& array) {
  if (!array.memory) array.allocate(0);
  return to_numpy<T>(std::move(array.memory), array.size, [](void* memory) noexcept { std::free(memory); });
}

template <class T>
nb::object to_numpy(const std::vector<T>& values) {
  Memory<T> memory(allocate<T>(values.size()));
  if (!values.empty()) std::memcpy(memory.get(), values.data(), values.size() * sizeof(T));
  return to_numpy(std::move(memory), values.size());
}

Boxes boxes_from(Vector<i64> numbers, Vector<i64> offsets, Vector<int> attribute, Vector<i64> low, Vector<i64> high,
                 Vector<u8> priority) {
  return {numbers.size(), offsets.data(), attribute.data(), low.data(), high.data(), priority.data(), numbers.data()};
}

// Moves a builder's arrays into a dict, by name.
struct DictWriter {
  nb::dict& out;

  template <class T>
  size_t operator()(const char* name, Array<T>& array, const Length&) const {
    size_t size = array.size;
    out[name] = to_numpy(array);
    return size;
  }
  size_t operator()(const char* name, const BitmapSizes& sizes, const Length&) const {
    const u32* first = &sizes.blocks;
    out[name] = to_numpy(std::vector<u32>(first, first + sizeof sizes / sizeof *first));
    return 0;
  }
  size_t operator()(const char* name, const Seed& seed, const Length&) const {
    out[name] = to_numpy(std::vector<u64>{seed.first, seed.second});
    return 0;
  }
};

// Finds the arrays of a segment in a dict. They are never converted: their memory must outlive the call.
struct DictReader {
  const nb::dict& arrays;

  template <class T>
  static ArrayView<T> open(const char* name, nb::handle object) {
    Vector<T> array;
    if (!nb::try_cast(object, array, false)) throw DamagedArray(name, "its type is wrong");
    return {array.data(), array.size()};
  }

  template <class T>
  ArrayView<T> get(const char* name) const {
    if (!arrays.contains(name)) throw DamagedArray(name, "it is missing");
    return open<T>(name, arrays[name]);
  }
};

// A copy of some of the boxes, as contiguous input for a builder.
struct BoxSubset {
  std::vector<i64> offsets{0}, low, high, numbers, key;
  std::vector<int> attribute;
  std::vector<u8> priority;
  std::vector<u32> source;

  void add(const Boxes& boxes, size_t box, i64 chosen) {
    i64 from = boxes.offsets[box], to = boxes.offsets[box + 1], start = offsets.back();
    attribute.insert(attribute.end(), boxes.attribute + from, boxes.attribute + to);
    low.insert(low.end(), boxes.low + from, boxes.low + to);
    high.insert(high.end(), boxes.high + from, boxes.high + to);
    offsets.push_back(start + to - from);
    numbers.push_back(boxes.numbers[box]);
    priority.push_back(boxes.priority[box]);
    key.push_back(chosen < 0 ? chosen : chosen - from + start);
    source.push_back(u32(box));
  }
  Boxes view() const {
    return {numbers.size(), offsets.data(), attribute.data(), low.data(), high.data(), priority.data(), numbers.data()};
  }
};

// Builds segments of boxes: [(kind, arrays, numbers, positions)].
nb::list build(u32 attributes, Vector<i64> numbers, Vector<i64> offsets, Vector<int> attribute, Vector<i64> low,
               Vector<i64> high, Vector<u8> priority, u32 block, u32 lines, u32 band, const std::string& kind,
               u64 first_seed, u64 second_seed) {
  Boxes boxes = boxes_from(numbers, offsets, attribute, low, high, priority);
  BitmapOptions options{attributes, block, lines, band};
  BoxSubset keyed, ranges;
  BitmapArrays bitmap;
  PostingArrays postings;
  const Boxes* bitmap_boxes = &boxes;
  Boxes subset_view;
  Seed seed{first_seed, second_seed | 1ull << 63};  // never small, as attributes are
  SignalCheck interrupt;
  {
    ReleasedGil released;
    std::vector<i64> key(boxes.count, -2);
    if (kind != "bitmap") key = choose_keys(boxes, attributes, kind == "postings", seed, interrupt);
    size_t bitmap_count = size_t(std::count(key.begin(), key.end(), i64(-2)));
    if (bitmap_count < boxes.count) {
      for (size_t i = 0; i < boxes.count; ++i) {
        (key[i] == -2 ? ranges : keyed).add(boxes, i, key[i]);
        report_work(interrupt, 4);
      }
      subset_view = ranges.view();
      bitmap_boxes = &subset_view;
      postings = build_postings(keyed.view(), keyed.key, attributes, seed, interrupt);
    }
    if (bitmap_boxes->count) bitmap = build_bitmap(*bitmap_boxes, options, interrupt);
  }
  nb::list out;
  if (bitmap_boxes->count) {
    nb::object box_numbers = bitmap_boxes == &boxes ? nb::cast(numbers) : to_numpy(ranges.numbers);
    nb::dict arrays;
    each_bitmap_array(bitmap, attributes, DictWriter{arrays});
    out.append(nb::make_tuple("bitmap", arrays, box_numbers, to_numpy(bitmap.position)));
  }
  if (!keyed.numbers.empty()) {
    nb::dict arrays;
    each_posting_array(postings, attributes, DictWriter{arrays});
    out.append(nb::make_tuple("postings", arrays, to_numpy(keyed.numbers), to_numpy(postings.position)));
  }
  return out;
}

// A sealed segment: a view of numpy arrays.
class Segment {
 public:
  Segment(const std::string& kind, u32 attributes, nb::dict arrays) : is_bitmap(kind == "bitmap"), arrays_(arrays) {
    if (is_bitmap) bitmap = view_bitmap(DictReader{arrays_}, attributes);
    else postings = view_postings(DictReader{arrays_}, attributes);
  }

  // Check what the arrays contain (validate.hpp): first the tables, then the boxes at positions [from, to).
  void check() const {
    if (is_bitmap) check_tables(bitmap);
    else check_tables(postings);
  }
  size_t check_boxes(size_t from, size_t to, const Locations& locations) const {
    to = std::min(to, size());
    return is_bitmap ? hitbox::check_boxes(bitmap, from, to, locations)
                     : hitbox::check_boxes(postings, from, to, locations);
  }

  void set_alive(nb::object alive) {
    ArrayView<u64> bits = DictReader::open<u64>("alive", alive);
    Length(is_bitmap ? alive_words(bitmap) : alive_words(postings)).check("alive", bits.size);
    arrays_["alive"] = alive;
    (is_bitmap ? bitmap.alive : postings.rows.alive) = bits.data;
  }

  Decoded decode(const u32* positions, size_t count, InterruptCheck& interrupt) const {
    return is_bitmap ? hitbox::decode(bitmap, positions, count, interrupt)
                     : hitbox::decode(postings.rows, positions, count, interrupt);
  }
  size_t size() const { return is_bitmap ? size_t(bitmap.blocks) * BLOCK : postings.rows.count; }
  u32 number(u32 position) const { return is_bitmap ? bitmap.numbers[position] : postings.rows.numbers[position]; }
  u8 level(u32 position) const { return is_bitmap ? u8(level_at(bitmap, position)) : postings.rows.levels[position]; }

  const bool is_bitmap;
  Bitmap bitmap{};
  Postings postings{};

 private:
  nb::dict arrays_;  // keeps the memory alive
};

nb::tuple decoded_to_numpy(const Decoded& boxes, const std::vector<u8>& priority) {
  return nb::make_tuple(to_numpy(boxes.offsets), to_numpy(boxes.attribute), to_numpy(boxes.low), to_numpy(boxes.high),
                        to_numpy(priority));
}

// get(position) for each position.
template <class T, class Get>
std::vector<T> map_positions(Vector<u32> positions, Get get) {
  std::vector<T> found;
  for (size_t i = 0; i < positions.size(); ++i) found.push_back(get(positions.data()[i]));
  return found;
}

// Segments and tail as kernels read them.
struct MatchInput {
  std::vector<Bitmap> bitmaps;
  std::vector<Postings> postings;
  SegmentSet set{};

  MatchInput(const std::vector<Segment*>& segments, const Tail& tail) {
    for (Segment* segment : segments)
      if (segment->is_bitmap) bitmaps.push_back(segment->bitmap);
      else postings.push_back(segment->postings);
    set = {bitmaps.data(), u32(bitmaps.size()), postings.data(), u32(postings.size()), tail.rows()};
  }
  MatchInput(const MatchInput&) = delete;  // `set` points into the vectors
};

const Kernels* require_kernels(const std::string& simd) {
  const Kernels* kernels = kernels_named(simd);
  if (!kernels) throw nb::value_error("this processor does not have the instruction set that was asked for");
  return kernels;
}

// Returns (offsets, numbers, levels); levels only for a single event.
nb::tuple match(const std::vector<Segment*>& segments, const Tail& tail, Matrix<i64> low, Matrix<i64> high,
                const std::string& simd, u32 threads, u32 top, u32 bottom, i64 limit) {
  const MatchInput input(segments, tail);
  const SegmentSet& set = input.set;
  const Kernels* kernels = require_kernels(simd);
  size_t count = low.shape(0);
  if (high.shape(0) != count || high.shape(1) != low.shape(1)) throw nb::value_error("low and high differ in shape");
  if (top >= LEVELS || bottom > top) throw nb::value_error("levels are out of range");
  Events events{low.data(), high.data(), u32(low.shape(1))};
  Memory<i64> memory(allocate<i64>(count + 1));
  i64* ends = memory.get();
  OwnedResult result;
  {
    SignalCheck interrupt;
    ReleasedGil released;
    ends[0] = 0;
    MatchLimits limits{top, bottom, limit < 0 ? SIZE_MAX : size_t(limit)};
    if (count == 1) {
      kernels->match_event(set, events, 0, limits, result);
      ends[1] = i64(result.size);
    } else if (count) {
      match_parallel(*kernels, set, events, count, threads, ends + 1, result, interrupt);
    }
    trim(result);
    if (!result.levels) result.levels = allocate<u8>(0);
    if (!result.numbers) result.numbers = allocate<i32>(0);
  }
  Memory<i32> numbers(std::exchange(result.numbers, nullptr));
  Memory<u8> levels(std::exchange(result.levels, nullptr));
  return nb::make_tuple(to_numpy(std::move(memory), count + 1), to_numpy(std::move(numbers), result.size),
                        to_numpy(std::move(levels), count == 1 ? result.size : 0));
}

// Whether an event may take some ten microseconds. A thread that gives Python's lock back for less may wait for
// milliseconds until it gets it again.
bool is_long(const SegmentSet& set) {
  size_t units = set.tail.count / 4;
  for (u32 i = 0; i < set.bitmap_count; ++i) units += set.bitmaps[i].blocks;
  for (u32 i = 0; i < set.posting_count; ++i) units += set.postings[i].rows.count / 256;
  return units > 128;
}

// The steps of match_event, and how long each takes, for profiles.
enum Step { ENCODE, MATCH, OWNERS, IDS, STEPS };
struct StepTimes {
  using Clock = std::chrono::steady_clock;
  i64 nanoseconds[STEPS]{};
  Clock::time_point last = Clock::now();

  void end(Step step) {
    Clock::time_point now = Clock::now();
    nanoseconds[step] += std::chrono::duration_cast<std::chrono::nanoseconds>(now - last).count();
    last = now;
  }
};
struct NoTimes {
  void end(Step) {}
};

// The ids of the subscriptions that one event matches, most urgent first, at most `limit` (-1: all). holds(event, slots)
// decides on those that boxes leave in doubt. As a list, or as what `Ids::columns` says.
template <class Times>
nb::object match_in_steps(const EventPlan& plan, const std::vector<Segment*>& segments, const Tail& tail,
                          const std::string& simd, const Owners& owners, Ids& ids, nb::handle event, i64 limit,
                          nb::handle holds, bool as_list, Times& times) {
  EventKeys keys;
  plan.encode(event, keys);
  times.end(ENCODE);
  const MatchInput input(segments, tail);
  const SegmentSet& set = input.set;
  const Kernels* kernels = require_kernels(simd);
  Events events{keys.low, keys.ends(), plan.attributes()};
  const size_t wanted = limit < 0 ? SIZE_MAX : size_t(limit);
  for (size_t asked = wanted;;) {
    OwnedResult result;
    Slots slots;
    std::vector<i64> doubtful;
    {
      std::optional<ReleasedGil> free;
      if (is_long(set)) free.emplace();
      if (asked) kernels->match_event(set, events, 0, MatchLimits{LEVELS - 1, 0, asked}, result);
      times.end(MATCH);
      if (!owners.plain) owners.settle(result.numbers, nullptr, result.size, slots, doubtful);
      else if (!owners.direct) slots.need(result.size), owners.slots(result.numbers, result.size, slots.data);
    }
    if (!doubtful.empty()) Owners::drop_denied(holds, event, doubtful, slots);
    const i32* found = owners.plain && owners.direct ? result.numbers : slots.data;
    size_t size = owners.plain ? result.size : slots.size;
    // Several boxes of one subscription, or boxes that were not enough, may have used up the limit.
    if (size < wanted && result.size == asked && asked) {
      asked = asked < SIZE_MAX / 8 ? 8 * asked : SIZE_MAX;
      continue;
    }
    size = std::min(size, wanted);
    times.end(OWNERS);
    nb::object answer = as_list ? ids.list(found, size) : ids.columns(found, size);
    times.end(IDS);
    return answer;
  }
}

nb::object match_event(const EventPlan& plan, const std::vector<Segment*>& segments, const Tail& tail,
                       const std::string& simd, const Owners& owners, Ids& ids, nb::handle event, i64 limit,
                       nb::handle holds, bool as_list) {
  NoTimes times;
  return match_in_steps(plan, segments, tail, simd, owners, ids, event, limit, holds, as_list, times);
}

// The same, and the nanoseconds of each step.
nb::tuple profile_event(const EventPlan& plan, const std::vector<Segment*>& segments, const Tail& tail,
                        const std::string& simd, const Owners& owners, Ids& ids, nb::handle event, i64 limit,
                        nb::handle holds, bool as_list) {
  StepTimes times;
  nb::object answer = match_in_steps(plan, segments, tail, simd, owners, ids, event, limit, holds, as_list, times);
  const i64* taken = times.nanoseconds;
  return nb::make_tuple(answer, nb::make_tuple(taken[ENCODE], taken[MATCH], taken[OWNERS], taken[IDS]));
}

}  // namespace

NB_MODULE(_kernels, m) {
  nb::set_leak_warnings(false);  // engines in module globals may outlive the interpreter
  m.doc() = "hitbox native kernels";
  m.attr("MAX_ATTRIBUTES") = MAX_ATTRIBUTES;
  m.attr("BLOCK") = BLOCK;

  nb::class_<Segment>(m, "Segment")
      .def(nb::init<const std::string&, u32, nb::dict>(), "kind"_a, "attributes"_a, "arrays"_a)
      .def("set_alive", &Segment::set_alive, "alive"_a)
      .def("check", &Segment::check, nb::call_guard<ReleasedGil>())
      .def(
          "check_boxes",
          [](const Segment& self, size_t from, size_t to, Vector<u32> where, u32 base) {
            Locations locations{where.data(), where.size(), base};
            ReleasedGil released;
            return self.check_boxes(from, to, locations);
          },
          "first"_a, "end"_a, "where"_a, "base"_a)
      .def(
          "decode",
          [](const Segment& self, Vector<u32> positions) {
            Decoded boxes;
            std::vector<u8> levels;
            SignalCheck interrupt;
            {
              ReleasedGil released;
              boxes = self.decode(positions.data(), positions.size(), interrupt);
              levels = map_positions<u8>(positions, [&](u32 at) { return self.level(at); });
            }
            return decoded_to_numpy(boxes, levels);
          },
          "positions"_a)
      .def(
          "numbers",
          [](const Segment& self, Vector<u32> positions) {
            return to_numpy(map_positions<i64>(positions, [&](u32 at) { return self.number(at); }));
          },
          "positions"_a)
      .def("__len__", &Segment::size);

  nb::class_<Tail>(m, "Tail")
      .def(nb::init<>())
      .def(
          "with_room",
          [](nb::handle_t<Tail> self, size_t boxes, size_t constraints) {
            const Tail& tail = nb::cast<const Tail&>(self);
            return tail.has_room(boxes, constraints) ? nb::borrow(self) : nb::cast(tail.with_room(boxes, constraints));
          },
          "boxes"_a, "constraints"_a)
      .def(
          "append",
          [](Tail& self, Vector<i64> numbers, Vector<i64> offsets, Vector<int> attribute, Vector<i64> low,
             Vector<i64> high,
             Vector<u8> priority) { self.append(boxes_from(numbers, offsets, attribute, low, high, priority)); },
          "numbers"_a, "offsets"_a, "attribute"_a, "low"_a, "high"_a, "priority"_a)
      .def(
          "remove", [](Tail& self, Vector<u32> positions) { self.remove(positions.data(), positions.size()); },
          "positions"_a)
      .def(
          "decode",
          [](const Tail& self, Vector<u32> positions) {
            Rows rows = self.rows();
            SignalCheck interrupt;
            return decoded_to_numpy(decode(rows, positions.data(), positions.size(), interrupt),
                                    map_positions<u8>(positions, [&](u32 at) { return rows.levels[at]; }));
          },
          "positions"_a)
      .def("living",
           [](const Tail& self) {
             Rows rows = self.rows();
             std::vector<u32> found;
             for (u32 i = 0; i < rows.count; ++i)
               if (bit(rows.alive, i)) found.push_back(i);
             return to_numpy(found);
           })
      .def(
          "numbers",
          [](const Tail& self, Vector<u32> positions) {
            const Rows rows = self.rows();
            return to_numpy(map_positions<i64>(positions, [&](u32 at) { return rows.numbers[at]; }));
          },
          "positions"_a)
      .def("clear", &Tail::clear)
      .def_prop_ro("live", &Tail::live)
      .def_prop_ro("nbytes", &Tail::bytes)
      .def("__len__", &Tail::size);

  m.def("build", &build, "attributes"_a, "numbers"_a, "offsets"_a, "attribute"_a, "low"_a, "high"_a, "priority"_a,
        "block"_a, "lines"_a, "band"_a, "kind"_a, "first_seed"_a, "second_seed"_a);
  m.def("match", &match, "segments"_a, "tail"_a, "low"_a, "high"_a, "simd"_a, "threads"_a, "top"_a, "bottom"_a,
        "limit"_a);
  m.def("match_event", &match_event, "plan"_a, "segments"_a, "tail"_a, "simd"_a, "owners"_a, "ids"_a, "event"_a.none(),
        "limit"_a, "holds"_a, "as_list"_a);
  m.def("profile_event", &profile_event, "plan"_a, "segments"_a, "tail"_a, "simd"_a, "owners"_a, "ids"_a,
        "event"_a.none(), "limit"_a, "holds"_a, "as_list"_a);
  m.def(
      "clear_bits",
      [](nb::ndarray<u64, nb::ndim<1>, nb::c_contig, nb::device::cpu> bits, Vector<u32> positions) {
        for (size_t i = 0; i < positions.size(); ++i) {
          u32 at = positions.data()[i];
          assert(at / 64 < bits.size());
          bits.data()[at / 64] &= ~(1ull << (at & 63));
        }
      },
      "bits"_a.noconvert(), "positions"_a);
  m.def(
      "crc32c",
      [](Vector<u8> data, u32 before, bool portable) {
        const u8* at = data.data();
        size_t size = data.size();
        ReleasedGil released;
        return checksum::crc32c(at, size, before, portable);
      },
      "data"_a, "before"_a = 0, "portable"_a = false);
  m.def("join_crc32c", &checksum::join, "first"_a, "second"_a, "second_size"_a);
  m.def("simd_levels", [] {
    std::vector<std::string> names;
    for (const Kernels* one : available()) names.push_back(one->name);
    return names;
  });
  bind_event_plan(m);
  bind_owners(m);
  bind_locks(m);
  bind_text(m);
  bind_floor(m);
}
