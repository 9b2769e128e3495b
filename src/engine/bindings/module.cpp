// The Python extension module hitbox.engine._kernels. Input arrays are not copied; output arrays own their memory.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <variant>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/brought.hpp"
#include "bindings/document_batch.hpp"
#include "bindings/event_details.hpp"
#include "bindings/event_plan.hpp"
#include "bindings/numpy_memory.hpp"
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
void bind_sets(nb::module_& m);  // sets.cpp

namespace {

// Input arrays. nanobind refuses any other number of dimensions.
template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using MutableVector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// At the end of the process, calls in threads that work in the background end with an error.
std::atomic<bool> process_ends{false};
#ifdef __linux__  // else each thread allocates it at first use, and the process ends if there is no memory for it
__attribute__((tls_model("initial-exec")))
#endif
thread_local bool in_background = false;

// Calls work() in a new thread. It blocks all signals: Python notices one late if the system gives it to another thread
// than the main thread. `work` is a Python function: the end of the process may unwind the thread's stack, which C++ does
// not bear.
void start_in_background(nb::object work) {
  nb::object start = nb::module_::import_("_thread").attr("start_new_thread");
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  nb::object started = nb::steal(PyObject_CallFunctionObjArgs(start.ptr(), work.ptr(), nb::tuple().ptr(), nullptr));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started.is_valid()) throw nb::python_error();
}

// Runs Python's signal handlers every 50 ms; if one raises, the call is cancelled. Only the main thread runs handlers;
// calls in other threads stop polling for them.
struct SignalCheck : InterruptCheck {
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds INTERVAL{50};
  Clock::time_point next = Clock::now() + INTERVAL;

  SignalCheck() : InterruptCheck{poll_signals, 0} {}

  static void poll_signals(InterruptCheck& interrupt) {
    SignalCheck& self = static_cast<SignalCheck&>(interrupt);
    if (in_background && process_ends) throw std::runtime_error("the process ends");
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

Boxes boxes_from(const i64* numbers, Vector<i64> offsets, Vector<int> attribute, Vector<i64> low, Vector<i64> high,
                 Vector<u8> priority) {
  return {priority.size(), offsets.data(), attribute.data(), low.data(), high.data(), priority.data(), numbers};
}

// Moves a builder's arrays into a dict, by name.
struct DictWriter {
  nb::dict& out;

  template <class T>
  size_t operator()(const char* name, Array<T>& array, const Length&) const {
    size_t size = array.size;
    out[name] = numpy_array(array);
    return size;
  }
  size_t operator()(const char* name, const BitmapSizes& sizes, const Length&) const {
    return write_sizes(name, &sizes.blocks, sizeof sizes - (sizes.compact ? 0 : sizeof sizes.compact));
  }
  size_t operator()(const char* name, const DenseSizes& sizes, const Length&) const {
    return write_sizes(name, &sizes.members, sizeof sizes);
  }
  size_t write_sizes(const char* name, const u32* first, size_t bytes) const {
    out[name] = numpy_array(std::vector<u32>(first, first + bytes / sizeof *first));
    return 0;
  }
  size_t operator()(const char* name, const Seed& seed, const Length&) const {
    out[name] = numpy_array(std::vector<u64>{seed.first, seed.second});
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
    if (boxes.numbers) numbers.push_back(boxes.numbers[box]);
    priority.push_back(boxes.priority[box]);
    key.push_back(chosen < 0 ? chosen : chosen - from + start);
    source.push_back(u32(box));
  }
  Boxes view() const {
    return {source.size(),
            offsets.data(),
            attribute.data(),
            low.data(),
            high.data(),
            priority.data(),
            numbers.empty() ? nullptr : numbers.data()};
  }
};

// The boxes of a segment in the order of their positions, which are sorted too. source[i]: which box of the input the
// segment's i-th one was; empty if they are all of it.
std::vector<i64> in_order(Array<u32>& position, const std::vector<u32>& source) {
  if (!position.size) return {};
  u32 end = *std::max_element(position.data(), position.data() + position.size) + 1;
  std::vector<u32> at(end, UINT32_MAX);
  for (u32 i = 0; i < position.size; ++i) at[position[i]] = i;
  std::vector<i64> order;
  order.reserve(position.size);
  for (u32 place = 0; place < end; ++place)
    if (at[place] != UINT32_MAX) {
      order.push_back(source.empty() ? at[place] : source[at[place]]);
      position[order.size() - 1] = place;
    }
  return order;
}

struct BuildOptions {
  u32 attributes, block, lines, band;
  std::string kind;
  bool compact;         // of bitmap segments; dense segments are too large then
  double bitmap_share;  // from this share of constrained attributes on, all boxes go to bitmaps
  Seed seed;            // never small, as attributes are
};

// Segments of boxes, without Python.
struct BuiltSegments {
  BoxSubset keyed, ranges;
  BitmapArrays bitmap;
  DenseArrays dense;
  PostingArrays postings;
  bool is_dense = false;
  bool whole = true;  // all boxes are in the bitmap or dense segment
  bool numbered;

  BuiltSegments(const Boxes& boxes, const BuildOptions& options, InterruptCheck& interrupt)
      : numbered(boxes.numbers != nullptr) {
    const double share = boxes.count ? double(boxes.offsets[boxes.count]) / double(boxes.count) : 0;
    const bool automatic = options.kind == "auto" && share < options.bitmap_share * options.attributes;
    std::vector<i64> key(boxes.count, -2);
    if (automatic || options.kind == "postings")
      key = choose_keys(boxes, options.attributes, options.kind == "postings", options.seed, interrupt);
    Boxes in_bitmap = boxes;
    whole = size_t(std::count(key.begin(), key.end(), i64(-2))) == boxes.count;
    if (!whole) {
      for (size_t i = 0; i < boxes.count; ++i) {
        (key[i] == -2 ? ranges : keyed).add(boxes, i, key[i]);
        report_work(interrupt, 4);
      }
      in_bitmap = ranges.view();
      postings = build_postings(keyed.view(), keyed.key, options.attributes, options.seed, interrupt);
    }
    const BitmapOptions layout{options.attributes, options.block, options.lines, options.band, options.compact};
    is_dense = options.kind == "dense" ||
               (automatic && !options.compact && prefers_dense(in_bitmap, options.attributes, interrupt));
    if (is_dense) dense = build_dense(in_bitmap, layout, interrupt);
    else if (in_bitmap.count) bitmap = build_bitmap(in_bitmap, layout, interrupt);
  }

  // [(kind, arrays, numbers, positions)]; numbers() gives those of all boxes. Boxes without numbers: their order instead.
  template <class Numbers>
  nb::list to_python(u32 attributes, Numbers numbers) {
    auto names_of = [&](const BoxSubset& some, Array<u32>& position) {
      if (!numbered) return numpy_array(in_order(position, some.source));
      return whole ? numbers() : numpy_array(some.numbers);
    };
    nb::list out;
    Array<u32>& position = is_dense ? dense.position : bitmap.position;
    if (position.size) {
      nb::object names = names_of(ranges, position);
      nb::dict arrays;
      if (is_dense) each_dense_array(dense, attributes, DictWriter{arrays});
      else each_bitmap_array(bitmap, attributes, DictWriter{arrays});
      out.append(nb::make_tuple(is_dense ? "dense" : "bitmap", arrays, names, numpy_array(position)));
    }
    if (!keyed.source.empty()) {
      nb::object names = names_of(keyed, postings.position);
      nb::dict arrays;
      each_posting_array(postings, attributes, DictWriter{arrays});
      out.append(nb::make_tuple("postings", arrays, names, numpy_array(postings.position)));
    }
    return out;
  }
};

// Builds segments of boxes: [(kind, arrays, numbers, positions)]. Without numbers, the boxes of each segment are numbered
// from 0 in its own order, and instead of numbers this order is returned.
nb::list build(std::optional<Vector<i64>> numbers, Vector<i64> offsets, Vector<int> attribute, Vector<i64> low,
               Vector<i64> high, Vector<u8> priority, u32 attributes, u32 block, u32 lines, u32 band,
               const std::string& kind, bool compact, double bitmap_share, u64 first_seed, u64 second_seed) {
  const Boxes boxes = boxes_from(numbers ? numbers->data() : nullptr, offsets, attribute, low, high, priority);
  const BuildOptions options{attributes, block,   lines,        band,
                             kind,       compact, bitmap_share, {first_seed, second_seed | 1ull << 63}};
  SignalCheck interrupt;
  std::optional<BuiltSegments> built;
  {
    std::optional<ReleasedGil> released;
    if (boxes.count > 1024) released.emplace();  // to give it back for less costs more than it gains: see is_long
    built.emplace(boxes, options, interrupt);
  }
  return built->to_python(attributes, [&] { return nb::cast(*numbers); });
}

// A sealed segment: a view of numpy arrays.
class Segment {
 public:
  using View = std::variant<Bitmap, Dense, Postings>;

  Segment(const std::string& kind, u32 attributes, nb::dict arrays) : arrays_(arrays), view_(open(kind, attributes)) {}

  template <class View>
  const View* as() const {
    return std::get_if<View>(&view_);
  }

  // Check what the arrays contain (validate.hpp): first the tables, then the boxes at positions [from, to).
  void check() const {
    std::visit([](const auto& view) { check_tables(view); }, view_);
  }
  size_t check_boxes(size_t from, size_t to, const Locations& locations) const {
    to = std::min(to, size());
    return std::visit([&](const auto& view) { return hitbox::check_boxes(view, from, to, locations); }, view_);
  }

  void set_alive(nb::object alive) {
    ArrayView<u64> bits = DictReader::open<u64>("alive", alive);
    std::visit(
        [&](auto& view) {
          Length(alive_words(view)).check("alive", bits.size);
          alive_of(view) = bits.data;
        },
        view_);
    arrays_["alive"] = alive;
  }

  Decoded decode(const u32* positions, size_t count, InterruptCheck& interrupt) const {
    return std::visit([&](const auto& view) { return hitbox::decode(view, positions, count, interrupt); }, view_);
  }
  size_t size() const {
    return std::visit([](const auto& view) { return positions_of(view); }, view_);
  }
  u32 number(u32 position) const {
    return std::visit([=](const auto& view) { return number_of(view, position); }, view_);
  }
  u8 level(u32 position) const {
    return std::visit([=](const auto& view) { return u8(level_at(view, position)); }, view_);
  }

 private:
  View open(const std::string& kind, u32 attributes) const {
    if (kind == "bitmap") return view_bitmap(DictReader{arrays_}, attributes);
    if (kind == "dense") return view_dense(DictReader{arrays_}, attributes);
    return view_postings(DictReader{arrays_}, attributes);
  }

  nb::dict arrays_;  // keeps the memory alive
  View view_;
};

nb::tuple decoded_arrays(const Decoded& boxes, const std::vector<u8>& priority) {
  return nb::make_tuple(numpy_array(boxes.offsets), numpy_array(boxes.attribute), numpy_array(boxes.low),
                        numpy_array(boxes.high), numpy_array(priority));
}

// get(position) for each position.
template <class T, class Get>
std::vector<T> map_positions(Vector<u32> positions, Get get) {
  std::vector<T> found;
  for (size_t i = 0; i < positions.size(); ++i) found.push_back(get(positions.data()[i]));
  return found;
}

// Builds segments of the living boxes of others, as `build` does; `alive` are their bits.
nb::list merge(const std::vector<Segment*>& segments, const std::vector<Vector<u64>>& alive, u32 attributes, u32 block,
               u32 lines, u32 band, const std::string& kind, bool compact, double bitmap_share, u64 first_seed,
               u64 second_seed) {
  if (alive.size() != segments.size()) throw nb::value_error("each segment needs the bits of its boxes");
  for (size_t i = 0; i < alive.size(); ++i)
    if (alive[i].size() * 64 < segments[i]->size()) throw nb::value_error("a segment has more boxes than bits");
  const BuildOptions options{attributes, block,   lines,        band,
                             kind,       compact, bitmap_share, {first_seed, second_seed | 1ull << 63}};
  SignalCheck interrupt;
  std::vector<i64> numbers;
  std::optional<BuiltSegments> built;
  {
    ReleasedGil released;
    Decoded all;
    std::vector<u8> levels;
    for (size_t i = 0; i < alive.size(); ++i) {
      const Segment& segment = *segments[i];
      std::vector<u32> positions;
      for (u32 at = 0; at < segment.size(); ++at)
        if (bit(alive[i].data(), at)) positions.push_back(at);
      const Decoded some = segment.decode(positions.data(), positions.size(), interrupt);
      const i64 start = all.offsets.back();
      for (size_t box = 1; box < some.offsets.size(); ++box) all.offsets.push_back(start + some.offsets[box]);
      all.attribute.insert(all.attribute.end(), some.attribute.begin(), some.attribute.end());
      all.low.insert(all.low.end(), some.low.begin(), some.low.end());
      all.high.insert(all.high.end(), some.high.begin(), some.high.end());
      for (u32 at : positions) {
        numbers.push_back(segment.number(at));
        levels.push_back(segment.level(at));
      }
    }
    if (!numbers.empty()) {
      const Boxes boxes{numbers.size(),  all.offsets.data(), all.attribute.data(), all.low.data(),
                        all.high.data(), levels.data(),      numbers.data()};
      built.emplace(boxes, options, interrupt);
    }
  }
  return built ? built->to_python(attributes, [&] { return numpy_array(numbers); }) : nb::list();
}

// Stages boxes in a tail that has room for them (tail.hpp). False, and nothing is staged, if kernels must not see them:
// numbers that are in use and not `freed`, or that `where` has no place for; attributes or priorities out of range.
bool stage(Tail& tail, Vector<u32> where, Vector<i64> freed, Vector<i64> numbers, Vector<i64> offsets,
           Vector<int> attribute, Vector<i64> low, Vector<i64> high, Vector<u8> priority, u32 attributes) {
  const size_t count = numbers.size(), constraints = attribute.size();
  if (offsets.size() != count + 1 || priority.size() != count || low.size() != constraints ||
      high.size() != constraints || !tail.has_room(count, constraints))
    throw nb::value_error("the columns of the boxes differ in length, or the tail has no room for them");
  const i64* ends = offsets.data();
  std::vector<i64> gone(freed.data(), freed.data() + freed.size());
  std::sort(gone.begin(), gone.end());
  if (ends[0] != 0 || ends[count] != i64(constraints)) throw nb::value_error("the offsets of the boxes do not fit");
  for (size_t i = 0; i < count; ++i) {
    const i64 number = numbers.data()[i];
    if (ends[i] > ends[i + 1]) throw nb::value_error("the offsets of the boxes do not ascend");
    if (number < 0 || u64(number) >= where.size() || priority.data()[i] >= LEVELS) return false;
    const bool used = where.data()[number] != NOWHERE;
    if (used && !std::binary_search(gone.begin(), gone.end(), number)) return false;
  }
  for (size_t i = 0; i < constraints; ++i)
    if (u32(attribute.data()[i]) >= attributes) return false;
  tail.stage(boxes_from(numbers.data(), offsets, attribute, low, high, priority));
  return true;
}

// Segments and tail as kernels read them.
struct MatchInput {
  std::vector<Bitmap> bitmaps;
  std::vector<Dense> dense;
  std::vector<Postings> postings;
  SegmentSet set{};

  MatchInput(const std::vector<Segment*>& segments, const Tail& tail) {
    for (Segment* segment : segments)
      if (auto* one = segment->as<Bitmap>()) bitmaps.push_back(*one);
      else if (auto* two = segment->as<Dense>()) dense.push_back(*two);
      else postings.push_back(*segment->as<Postings>());
    set = {bitmaps.data(), u32(bitmaps.size()), postings.data(),  u32(postings.size()),
           tail.rows(),    dense.data(),        u32(dense.size())};
  }
  MatchInput(const MatchInput&) = delete;  // `set` points into the vectors
};

Events events_of(const Matrix<i64>& low, const Matrix<i64>& high) {
  if (high.shape(0) != low.shape(0) || high.shape(1) != low.shape(1))
    throw nb::value_error("low and high differ in shape");
  return {low.data(), high.data(), u32(low.shape(1))};
}

// Returns (offsets, numbers, levels); levels only for a single event.
nb::tuple match(const std::vector<Segment*>& segments, const Tail& tail, Matrix<i64> low, Matrix<i64> high,
                const std::string& simd, u32 threads, u32 top, u32 bottom, i64 limit) {
  const MatchInput input(segments, tail);
  const SegmentSet& set = input.set;
  const Kernels* kernels = require_kernels(simd);
  const size_t count = low.shape(0);
  const Events events = events_of(low, high);
  if (top >= LEVELS || bottom > top) throw nb::value_error("levels are out of range");
  i64* ends = allocate<i64>(count + 1);
  nb::object offsets = numpy_array(ends, {count + 1});
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
  return nb::make_tuple(offsets, numpy_array(std::exchange(result.numbers, nullptr), {result.size}),
                        numpy_array(std::exchange(result.levels, nullptr), {count == 1 ? result.size : 0}));
}

// Returns offsets: how many boxes each event and those before it match.
nb::object count(const std::vector<Segment*>& segments, const Tail& tail, Matrix<i64> low, Matrix<i64> high,
                 const std::string& simd, u32 threads) {
  const MatchInput input(segments, tail);
  const Kernels* kernels = require_kernels(simd);
  const size_t size = low.shape(0);
  const Events events = events_of(low, high);
  i64* ends = allocate<i64>(size + 1);
  nb::object offsets = numpy_array(ends, {size + 1});
  {
    SignalCheck interrupt;
    ReleasedGil released;
    OwnedResult result;
    result.counting = true;
    ends[0] = 0;
    if (size) match_parallel(*kernels, input.set, events, size, threads, ends + 1, result, interrupt);
  }
  return offsets;
}

// Whether an event may take some ten microseconds. A thread that gives Python's lock back for less may wait for
// milliseconds until it gets it again.
bool is_long(const SegmentSet& set) { return work_of(set) > 192; }

// Matches one event after the other against what an index holds at one moment, each in one call: from the event to the ids
// of the subscriptions that it matches, most urgent first.
class EventMatcher {
 public:
  // `documents` is a DocumentPlan or None.
  EventMatcher(nb::list segments, nb::object tail, const std::string& simd, nb::object owners, nb::object ids,
               nb::list anchors, nb::object plan, nb::object documents)
      : kernels_(require_kernels(simd)), tail_(nb::cast<const Tail&>(tail)), owners_(nb::cast<const Owners&>(owners)),
        ids_(nb::cast<Ids&>(ids)), plan_(nb::cast<const EventPlan&>(plan)),
        documents_(documents.is_none() ? nullptr : &nb::cast<const DocumentPlan&>(documents)),
        held_(nb::make_tuple(segments, tail, owners, ids, anchors, plan, documents)) {
    for (nb::handle segment : segments) segments_.push_back(nb::cast<Segment*>(segment));
    for (nb::handle segment : anchors) anchors_.push_back(nb::cast<const sets::AnchorSegment*>(segment));
  }

  // The ids, at most `limit` (-1: all), as a list or as what `Ids::columns` says. holds(event, slots, as_json, now, budget)
  // decides where native code cannot. `sets` are what the event brings, if some covers have anchors, or None.
  nb::object mapping(nb::handle event, i64 limit, bool as_list, nb::handle holds, nb::handle sets, nb::handle budget) {
    EventKeys keys;
    plan_.encode(event, keys);  // it refuses texts that cannot be read below
    std::optional<Brought> brought;
    if (!anchors_.empty()) brought.emplace(nb::cast<nb::list>(sets), 1);
    const Events events{keys.low, keys.ends(), plan_.attributes()};
    const EventPoint point{events.low, events.high, events.attributes, plan_.free()};
    return ids(events, limit, as_list, brought, [&](Slots& slots, std::vector<i64>& doubtful) {
      {
        std::optional<ReleasedGil> free;
        if (doubtful.size() > MANY) free.emplace();
        owners_.decide(point, false, slots, doubtful, 0);
      }
      ask(holds, event, false, -1, budget, slots, doubtful);
    });
  }

  // The same of an event that is read as a document: a dict, or JSON. A second look at one subscription may take `each`
  // steps, and all of them `together` (-1: no bound); `spent` is told, unless it is None. None
  // if Python has to read the event.
  nb::object document(nb::handle event, bool as_json, i64 limit, bool as_list, nb::handle holds, i64 each, i64 together,
                      nb::handle budget, const std::optional<MutableVector<i64>>& spent) {
    if (!documents_) return nb::none();
    const DocumentPlan& plan = *documents_;
    const DocumentPlan::Reader reader(plan);
    document::Documents& read = reader->documents;
    std::vector<i64> keys(plan.attributes());
    if (!reader->read(event, as_json) || !plan.point(read, keys.data())) return nb::none();
    std::optional<Brought> brought;
    if (!anchors_.empty() && !plan.bring(read, brought.emplace(plan.set_names()))) return nb::none();
    using namespace std::chrono;
    const i64 now = duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
    const DocumentPlan::EventDetails details(plan, read, now);
    LookBudget look{each, together};
    std::vector<i64> ends;
    if (!plan.free().empty()) ends = keys;
    for (u32 attribute : plan.free()) ends[attribute] = HIGHEST;
    const i64* high = ends.empty() ? keys.data() : ends.data();
    const EventPoint point{keys.data(), high, plan.attributes(), plan.free()};
    return ids({keys.data(), high, plan.attributes()}, limit, as_list, brought,
               [&](Slots& slots, std::vector<i64>& doubtful) {
                 i64 taken;
                 if (!owners_.look(keys.data(), details, look, slots, doubtful, 0, taken))
                   owners_.decide(point, false, slots, doubtful, 0);
                 if (spent) spent->data()[0] += taken;
                 if (look.together > 0) look.together = std::max<i64>(look.together - taken, 0);
                 ask(holds, event, as_json, now, budget, slots, doubtful);
               });
  }

 private:
  static constexpr size_t MANY = 1024;  // programs for which Python's lock is given back

  template <class Decide>
  nb::object ids(const Events& events, i64 limit, bool as_list, const std::optional<Brought>& brought, Decide decide) {
    const MatchInput input(segments_, tail_);
    const size_t wanted = limit < 0 ? SIZE_MAX : size_t(limit);
    std::optional<AnchoredEvent> anchored;
    if (brought) {
      anchored.emplace(anchors_, *brought);
      std::optional<ReleasedGil> free;
      if (anchored->is_long()) free.emplace();
      anchored->find(events.low, events.high, events.attributes);
    }
    for (size_t asked = wanted;;) {
      OwnedResult result;
      Slots slots;
      std::vector<i64> doubtful;
      bool full;
      {
        std::optional<ReleasedGil> free;
        if (is_long(input.set)) free.emplace();
        if (asked) kernels_->match_event(input.set, events, 0, MatchLimits{LEVELS - 1, 0, asked}, result);
        full = result.size == asked;
        if (anchored && asked) anchored->add_to(result, full);
        if (!owners_.plain) {
          owners_.settle(result.numbers, nullptr, result.size, slots, doubtful);
        } else if (!owners_.direct) {
          slots.need(result.size);
          owners_.slots(result.numbers, result.size, slots.data);
        }
      }
      if (!doubtful.empty()) decide(slots, doubtful);
      const i32* found = owners_.plain && owners_.direct ? result.numbers : slots.data;
      size_t size = owners_.plain ? result.size : slots.size;
      // Several boxes of one subscription, or boxes that were not enough, may have used up the limit.
      if (size < wanted && full && asked) {
        asked = asked < SIZE_MAX / 8 ? 8 * asked : SIZE_MAX;
        continue;
      }
      size = std::min(size, wanted);
      return as_list ? ids_.list(found, size) : nb::object(ids_.columns(found, size));
    }
  }

  // Asks Python about the slots that are still in doubt.
  static void ask(nb::handle holds, nb::handle event, bool as_json, i64 now, nb::handle budget, Slots& slots,
                  const std::vector<i64>& doubtful) {
    if (doubtful.empty()) return;
    Owners::drop_denied([&](nb::list asked) { return holds(event, asked, as_json, now, budget); }, doubtful, slots);
  }

  const Kernels* kernels_;
  std::vector<Segment*> segments_;
  const Tail& tail_;
  const Owners& owners_;
  Ids& ids_;
  AnchorSegments anchors_;
  const EventPlan& plan_;
  const DocumentPlan* documents_;
  nb::object held_;  // what the references are to
};

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
            return decoded_arrays(boxes, levels);
          },
          "positions"_a)
      .def(
          "numbers",
          [](const Segment& self, Vector<u32> positions) {
            return numpy_array(map_positions<i64>(positions, [&](u32 at) { return self.number(at); }));
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
      .def("stage", &stage, "where"_a, "freed"_a, "numbers"_a, "offsets"_a, "attribute"_a, "low"_a, "high"_a,
           "priority"_a, "attributes"_a)
      .def(
          "publish", [](Tail& self, MutableVector<u32> where) { self.publish(where.data(), where.size()); },
          "where"_a.noconvert())
      .def(
          "remove", [](Tail& self, Vector<u32> positions) { self.remove(positions.data(), positions.size()); },
          "positions"_a)
      .def(
          "remove_one", [](Tail& self, u32 position) { self.remove(&position, 1); }, "position"_a)
      .def(
          "decode",
          [](const Tail& self, Vector<u32> positions) {
            Rows rows = self.rows();
            SignalCheck interrupt;
            return decoded_arrays(decode(rows, positions.data(), positions.size(), interrupt),
                                  map_positions<u8>(positions, [&](u32 at) { return rows.levels[at]; }));
          },
          "positions"_a)
      .def("living",
           [](const Tail& self) {
             Rows rows = self.rows();
             std::vector<u32> found;
             for (u32 i = 0; i < rows.count; ++i)
               if (bit(rows.alive, i)) found.push_back(i);
             return numpy_array(found);
           })
      .def(
          "numbers",
          [](const Tail& self, Vector<u32> positions) {
            const Rows rows = self.rows();
            return numpy_array(map_positions<i64>(positions, [&](u32 at) { return rows.numbers[at]; }));
          },
          "positions"_a)
      .def_prop_ro("live", &Tail::live)
      .def_prop_ro("nbytes", &Tail::bytes)
      .def("__len__", &Tail::size);

  m.def("build", &build, "numbers"_a.none(), "offsets"_a, "attribute"_a, "low"_a, "high"_a, "priority"_a,
        "attributes"_a, "block"_a, "lines"_a, "band"_a, "kind"_a, "compact"_a, "bitmap_share"_a, "first_seed"_a,
        "second_seed"_a);
  m.def("merge", &merge, "segments"_a, "alive"_a, "attributes"_a, "block"_a, "lines"_a, "band"_a, "kind"_a, "compact"_a,
        "bitmap_share"_a, "first_seed"_a, "second_seed"_a);
  m.def("match", &match, "segments"_a, "tail"_a, "low"_a, "high"_a, "simd"_a, "threads"_a, "top"_a, "bottom"_a,
        "limit"_a);
  m.def("count", &count, "segments"_a, "tail"_a, "low"_a, "high"_a, "simd"_a, "threads"_a);
  nb::class_<EventMatcher>(m, "EventMatcher")
      .def(nb::init<nb::list, nb::object, const std::string&, nb::object, nb::object, nb::list, nb::object,
                    nb::object>(),
           "segments"_a, "tail"_a, "simd"_a, "owners"_a, "ids"_a, "anchors"_a, "plan"_a, "documents"_a.none())
      .def("mapping", &EventMatcher::mapping, "event"_a.none(), "limit"_a, "as_list"_a, "holds"_a,
           "sets"_a.none() = nb::none(), "budget"_a.none() = nb::none())
      .def("document", &EventMatcher::document, "event"_a.none(), "as_json"_a, "limit"_a, "as_list"_a, "holds"_a,
           "each"_a, "together"_a = -1, "budget"_a.none() = nb::none(), "spent"_a.none() = nb::none());
  m.def(
      "clear_bits",
      [](MutableVector<u64> bits, Vector<u32> positions) {
        for (size_t i = 0; i < positions.size(); ++i) {
          u32 at = positions.data()[i];
          assert(at / 64 < bits.size());
          bits.data()[at / 64] &= ~(1ull << (at & 63));
        }
      },
      "bits"_a.noconvert(), "positions"_a);
  m.def(
      "clear_bit",
      [](MutableVector<u64> bits, u32 at) {
        assert(at / 64 < bits.size());
        bits.data()[at / 64] &= ~(1ull << (at & 63));
      },
      "bits"_a.noconvert(), "position"_a);
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
  m.def("start_in_background", &start_in_background, "work"_a);
  m.def("work_in_background", [] { in_background = true; });
  m.def("end_background_work", [] { process_ends = true; });
  m.def("simd_levels", [] {
    std::vector<std::string> names;
    for (const Kernels* one : available()) names.push_back(one->name);
    return names;
  });
  bind_event_plan(m);
  bind_documents(m);
  bind_owners(m);
  bind_locks(m);
  bind_text(m);
  bind_sets(m);
}
