// hitbox.engine._kernels: the native engine's door to Python. Arrays come in without a copy and go out with their
// memory.
#include <algorithm>
#include <chrono>
#include <memory>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "build/build.hpp"
#include "format/checksum.hpp"
#include "format/decode.hpp"
#include "match/dispatch.hpp"
#include "bindings/read_write_lock.hpp"
#include "bindings/released_gil.hpp"
#include "format/tail.hpp"
#include "format/validate.hpp"

namespace nb = nanobind;
using namespace hitbox;
using namespace nb::literals;

void bind_text(nb::module_& m);  // text.cpp

namespace {

template <class T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;

// Asks Python, every 50 ms, whether a signal's handler ends the call by an exception. Only the main thread handles
// signals, so the calls of others go on without.
struct Signals : Watch {
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds BETWEEN{50};
  Clock::time_point next = Clock::now() + BETWEEN;

  Signals() : Watch{handle, 0} {}

  static void handle(Watch& watch) {
    Signals& self = static_cast<Signals&>(watch);
    if (Clock::now() < self.next) return;
    nb::gil_scoped_acquire python;
    if (PyErr_CheckSignals()) throw nb::python_error();
    self.next = in_main_thread() ? Clock::now() + BETWEEN : Clock::time_point::max();
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

// A numpy array that owns the memory from now on.
template <class T, class Owner>
nb::object give(Owner memory, size_t size, void (*done)(void*) noexcept) {
  nb::capsule owner(memory.get(), done);
  T* data = memory.release();
  return nb::cast(nb::ndarray<nb::numpy, T>(data, {size}, owner));
}

template <class T>
nb::object give(Memory<T> memory, size_t size) {
  return give<T>(std::move(memory), size, free_memory);
}

template <class T>
nb::object give(Array<T>& array) {
  if (!array.memory) array.make(0);
  return give<T>(std::move(array.memory), array.size, [](void* memory) noexcept { std::free(memory); });
}

template <class T>
nb::object give(const std::vector<T>& values) {
  Memory<T> memory(allocate<T>(values.size()));
  if (!values.empty()) std::memcpy(memory.get(), values.data(), values.size() * sizeof(T));
  return give(std::move(memory), values.size());
}

Boxes boxes_from(In<i64> numbers, In<i64> offsets, In<int> attribute, In<i64> low, In<i64> high, In<u8> priority) {
  return {numbers.size(), offsets.data(), attribute.data(), low.data(), high.data(), priority.data(), numbers.data()};
}

nb::dict to_dict(BitmapArrays& arrays) {
  nb::dict out;
  out["sizes"] = give(std::vector<u32>{arrays.blocks, arrays.summary_words, arrays.members, arrays.room, arrays.keyed,
                                       arrays.row_bytes, arrays.number_bytes});
  out["bands"] = give(arrays.bands);
  out["tile_level"] = give(arrays.tile_level);
  out["level_ends"] = give(arrays.level_ends);
  out["starts"] = give(arrays.grid.starts);
  out["shift"] = give(arrays.grid.shift);
  out["population"] = give(arrays.population);
  out["edges"] = give(arrays.edges);
  out["bare"] = give(arrays.bare);
  out["narrowest"] = give(arrays.narrowest);
  out["summary"] = give(arrays.summary);
  out["directory"] = give(arrays.directory);
  out["order"] = give(arrays.order);
  out["lines"] = give(arrays.lines);
  out["entries"] = give(arrays.entries);
  out["numbers"] = give(arrays.numbers);
  out["rows"] = give(arrays.rows);
  out["more"] = give(arrays.more);
  out["alive"] = give(arrays.alive);
  return out;
}

nb::dict to_dict(PostingArrays& arrays) {
  nb::dict out;
  out["seed"] = give(arrays.seed);
  out["slots"] = give(arrays.slots);
  out["key_begin"] = give(arrays.key_begin);
  out["key_value"] = give(arrays.key_value);
  out["key_start"] = give(arrays.key_start);
  out["filter"] = give(arrays.filter);
  out["code_base"] = give(arrays.code_base);
  out["code_last"] = give(arrays.code_last);
  out["code_shift"] = give(arrays.code_shift);
  out["words"] = give(arrays.words);
  out["start"] = give(arrays.start);
  out["numbers"] = give(arrays.numbers);
  out["levels"] = give(arrays.levels);
  out["alive"] = give(arrays.alive);
  return out;
}

// Chosen boxes as arrays of their own, so that a builder sees them numbered from 0.
struct Part {
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

// Seals boxes into segments: [(kind, arrays, numbers, positions)].
nb::list build(u32 attributes, In<i64> numbers, In<i64> offsets, In<int> attribute, In<i64> low, In<i64> high,
               In<u8> priority, u32 block, u32 lines, u32 band, const std::string& kind, u64 first_seed,
               u64 second_seed) {
  Boxes boxes = boxes_from(numbers, offsets, attribute, low, high, priority);
  Options options{attributes, block, lines, band};
  Part keyed, ranges;
  BitmapArrays bitmap;
  PostingArrays postings;
  const Boxes* mapped = &boxes;
  Boxes some;
  Seed seed{first_seed, second_seed | 1ull << 63};  // never near an attribute's number
  Signals signals;
  {
    ReleasedGil free;
    std::vector<i64> key(boxes.count, -2);
    if (kind != "bitmap") key = choose_keys(boxes, attributes, kind == "postings", seed, signals);
    size_t maps = size_t(std::count(key.begin(), key.end(), i64(-2)));
    if (maps < boxes.count) {
      for (size_t i = 0; i < boxes.count; ++i) {
        (key[i] == -2 ? ranges : keyed).add(boxes, i, key[i]);
        note_work(signals, 4);
      }
      some = ranges.view();
      mapped = &some;
      postings = build_postings(keyed.view(), keyed.key, attributes, seed, signals);
    }
    if (mapped->count) bitmap = build_bitmap(*mapped, options, signals);
  }
  nb::list out;
  if (mapped->count) {
    nb::object who = mapped == &boxes ? nb::cast(numbers) : give(ranges.numbers);
    out.append(nb::make_tuple("bitmap", to_dict(bitmap), who, give(bitmap.position)));
  }
  if (!keyed.numbers.empty())
    out.append(nb::make_tuple("postings", to_dict(postings), give(keyed.numbers), give(postings.position)));
  return out;
}

// A sealed segment: pointers into arrays that Python keeps alive.
class Segment {
 public:
  Segment(const std::string& kind, u32 attributes, nb::dict arrays) : is_bitmap(kind == "bitmap"), arrays_(arrays) {
    if (is_bitmap) open_bitmap(attributes);
    else open_postings(attributes);
  }

  // An array of exactly this type, which is never converted: its memory must outlive the call.
  template <class T>
  const T* at(const char* name, size_t* size = nullptr) {
    In<T> array;
    if (!arrays_.contains(name)) throw Damage(name, "it is missing");
    if (!nb::try_cast(arrays_[name], array, false) || array.ndim() != 1) throw Damage(name, "its type is wrong");
    if (size) *size = array.size();
    return array.size() ? array.data() : nullptr;
  }

  // The same of a length that is known.
  template <class T>
  const T* at(const char* name, size_t due) {
    size_t size;
    const T* data = at<T>(name, &size);
    if (size != due) throw Damage(name, std::to_string(size) + " values where " + std::to_string(due) + " are due");
    return data;
  }

  // Whether kernels may use what the arrays hold (validate.hpp): first the tables, then the boxes at [from, to).
  void check() const {
    if (is_bitmap) check_tables(bitmap, groups_, entries_);
    else check_tables(postings, words_);
  }
  size_t check_boxes(size_t from, size_t to, const Locations& locations) const {
    to = std::min(to, size());
    return is_bitmap ? hitbox::check_boxes(bitmap, more_, from, to, locations)
                     : hitbox::check_boxes(postings, words_, from, to, locations);
  }

  void set_alive(nb::object alive) {
    arrays_["alive"] = alive;
    (is_bitmap ? bitmap.alive : postings.rows.alive) = at<u64>("alive", alive_);
  }

  Decoded decode(const u32* positions, size_t count, Watch& watch) const {
    return is_bitmap ? hitbox::decode(bitmap, positions, count, watch)
                     : hitbox::decode(postings.rows, positions, count, watch);
  }
  size_t size() const { return is_bitmap ? size_t(bitmap.blocks) * BLOCK : postings.rows.count; }

  u32 number(u32 position) const { return is_bitmap ? bitmap.numbers[position] : postings.rows.numbers[position]; }

  u8 level(u32 position) const {
    if (!is_bitmap) return postings.rows.levels[position];
    return u8(level_at(bitmap, position));
  }

  const bool is_bitmap;
  Bitmap bitmap{};
  Postings postings{};

 private:
  void open_bitmap(u32 attributes) {
    const u32* sizes = at<u32>("sizes", BITMAP_SIZES);
    check_sizes(sizes, attributes);
    const size_t m = attributes, blocks = sizes[BLOCKS], tiles = tiles_of(sizes[BLOCKS]), positions = blocks * BLOCK;
    alive_ = tiles * TILE_WORDS;
    bitmap = {attributes, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5],
              reinterpret_cast<const BlockRange*>(at<u32>("bands", 2 * LEVELS)), at<u8>("tile_level", tiles),
              at<u16>("level_ends", blocks * LEVEL_ENDS), at<i64>("starts", m * CELLS), at<u8>("shift", m * CELLS),
              at<u32>("population", m * CELLS), at<u32>("edges", m * CELLS), at<u64>("bare", tiles * ((m + 63) / 64)),
              at<u8>("narrowest", m), at<u64>("summary", m * CELLS * sizes[SUMMARY_WORDS]),
              reinterpret_cast<const Directory*>(at<u32>("directory", (tiles * m + 1) * 2)),
              at<u16>("order", tiles * m), at<u64>("lines", &groups_), at<u16>("entries", &entries_),
              {at<u8>("numbers", positions * sizes[NUMBER_BYTES] + 64), sizes[NUMBER_BYTES]},
              at<u8>("rows", positions * sizes[ROW_BYTES] + 64), at<u8>("more", &more_), at<u64>("alive", alive_)};
    if (groups_ % (CELLS * TILE_WORDS)) throw Damage("lines", "a group is cut short");
    if (entries_ < 32) throw Damage("entries", "the padding is gone");
    if (more_ < 64) throw Damage("more", "the padding is gone");
    groups_ /= CELLS * TILE_WORDS;
  }

  void open_postings(u32 attributes) {
    size_t count, slots;
    const u64* seed = at<u64>("seed", 2);
    const u32* numbers = at<u32>("numbers", &count);
    if (!count || count >> 31) throw Damage("numbers", "the number of boxes is out of range");
    const u64* table = at<u64>("slots", &slots);
    if (!slots || slots & (slots - 1) || slots >> 32) throw Damage("slots", "their number is no power of two");
    alive_ = (count + 63) / 64;
    Rows rows{u32(count), at<u64>("words", &words_), at<u32>("start", count), numbers, at<u8>("levels", count),
              at<u64>("alive", alive_)};
    const u32* key_begin = at<u32>("key_begin", size_t(attributes) + 1);
    const size_t keys = key_begin[attributes];
    postings = {attributes, u32(slots - 1), {seed[0], seed[1]}, rows, table, key_begin, at<i64>("key_value", keys + 1),
                at<u32>("key_start", keys + 2), at<u64>("filter", count), at<i64>("code_base", attributes),
                at<i64>("code_last", attributes), at<u8>("code_shift", attributes)};
  }

  size_t groups_ = 0, entries_ = 0, more_ = 0, words_ = 0, alive_ = 0;
  nb::dict arrays_;
};

nb::tuple give_decoded(const Decoded& boxes, const std::vector<u8>& priority) {
  return nb::make_tuple(give(boxes.offsets), give(boxes.attribute), give(boxes.low), give(boxes.high), give(priority));
}

// What get(position) tells of each.
template <class T, class Get>
std::vector<T> ask_each(In<u32> positions, Get get) {
  std::vector<T> found;
  for (size_t i = 0; i < positions.size(); ++i) found.push_back(get(positions.data()[i]));
  return found;
}

// (offsets, numbers, levels); levels only of a single event.
nb::tuple match(const std::vector<Segment*>& segments, const Tail& tail, In<i64> low, In<i64> high,
                const std::string& simd, u32 threads, u32 top, u32 bottom, i64 limit) {
  std::vector<Bitmap> bitmaps;
  std::vector<Postings> postings;
  for (Segment* segment : segments)
    if (segment->is_bitmap) bitmaps.push_back(segment->bitmap);
    else postings.push_back(segment->postings);
  Set set{bitmaps.data(), u32(bitmaps.size()), postings.data(), u32(postings.size()), tail.rows()};
  const Kernels* kernels = kernels_named(simd);
  if (!kernels) throw nb::value_error("this processor does not have the instruction set that was asked for");
  size_t count = low.shape(0);
  Events events{low.data(), high.data(), u32(low.shape(1))};
  Memory<i64> memory(allocate<i64>(count + 1));
  i64* ends = memory.get();
  OwnResult result;
  {
    Signals signals;
    ReleasedGil free;
    ends[0] = 0;
    Wanted wanted{top, bottom, limit < 0 ? SIZE_MAX : size_t(limit)};
    if (count == 1) {
      kernels->one(set, events, 0, wanted, result);
      ends[1] = i64(result.size);
    } else if (count) {
      match_threads(*kernels, set, events, count, threads, ends + 1, result, signals);
    }
    trim(result);
    if (!result.levels) result.levels = allocate<u8>(0);
    if (!result.numbers) result.numbers = allocate<i32>(0);
  }
  Memory<i32> numbers(std::exchange(result.numbers, nullptr));
  Memory<u8> levels(std::exchange(result.levels, nullptr));
  return nb::make_tuple(give(std::move(memory), count + 1), give(std::move(numbers), result.size),
                        give(std::move(levels), count == 1 ? result.size : 0));
}

}  // namespace

NB_MODULE(_kernels, m) {
  nb::set_leak_warnings(false);  // engines in module globals outlive the interpreter; that is no leak
  m.doc() = "hitbox native kernels";
  m.attr("MAX_ATTRIBUTES") = MAX_ATTRIBUTES;
  m.attr("BLOCK") = BLOCK;

  nb::class_<Segment>(m, "Segment")
      .def(nb::init<const std::string&, u32, nb::dict>(), "kind"_a, "attributes"_a, "arrays"_a)
      .def("set_alive", &Segment::set_alive, "alive"_a)
      .def("check", &Segment::check, nb::call_guard<ReleasedGil>())
      .def("check_boxes", [](const Segment& self, size_t from, size_t to, In<u32> where, u32 base) {
        Locations locations{where.data(), where.size(), base};
        ReleasedGil free;
        return self.check_boxes(from, to, locations);
      }, "first"_a, "end"_a, "where"_a, "base"_a)
      .def("decode", [](const Segment& self, In<u32> positions) {
        Decoded boxes;
        std::vector<u8> levels;
        Signals signals;
        {
          ReleasedGil free;
          boxes = self.decode(positions.data(), positions.size(), signals);
          levels = ask_each<u8>(positions, [&](u32 at) { return self.level(at); });
        }
        return give_decoded(boxes, levels);
      }, "positions"_a)
      .def("numbers", [](const Segment& self, In<u32> positions) {
        return give(ask_each<i64>(positions, [&](u32 at) { return self.number(at); }));
      }, "positions"_a)
      .def("__len__", &Segment::size);

  nb::class_<Tail>(m, "Tail")
      .def(nb::init<>())
      .def("with_room", [](nb::handle_t<Tail> self, size_t boxes, size_t constraints) {
        const Tail& tail = nb::cast<const Tail&>(self);
        return tail.has_room(boxes, constraints) ? nb::borrow(self) : nb::cast(tail.with_room(boxes, constraints));
      }, "boxes"_a, "constraints"_a)
      .def("append", [](Tail& self, In<i64> numbers, In<i64> offsets, In<int> attribute, In<i64> low, In<i64> high,
                        In<u8> priority) { self.append(boxes_from(numbers, offsets, attribute, low, high, priority)); },
           "numbers"_a, "offsets"_a, "attribute"_a, "low"_a, "high"_a, "priority"_a)
      .def("remove", [](Tail& self, In<u32> positions) { self.remove(positions.data(), positions.size()); },
           "positions"_a)
      .def("decode", [](const Tail& self, In<u32> positions) {
        Rows rows = self.rows();
        Signals signals;
        return give_decoded(decode(rows, positions.data(), positions.size(), signals),
                            ask_each<u8>(positions, [&](u32 at) { return rows.levels[at]; }));
      }, "positions"_a)
      .def("living", [](const Tail& self) {
        Rows rows = self.rows();
        std::vector<u32> found;
        for (u32 i = 0; i < rows.count; ++i)
          if (bit(rows.alive, i)) found.push_back(i);
        return give(found);
      })
      .def("numbers", [](const Tail& self, In<u32> positions) {
        const Rows rows = self.rows();
        return give(ask_each<i64>(positions, [&](u32 at) { return rows.numbers[at]; }));
      }, "positions"_a)
      .def("clear", &Tail::clear)
      .def_prop_ro("live", &Tail::live)
      .def_prop_ro("nbytes", &Tail::bytes)
      .def("__len__", &Tail::size);

  m.def("build", &build, "attributes"_a, "numbers"_a, "offsets"_a, "attribute"_a, "low"_a, "high"_a, "priority"_a,
        "block"_a, "lines"_a, "band"_a, "kind"_a, "first_seed"_a, "second_seed"_a);
  m.def("match", &match, "segments"_a, "tail"_a, "low"_a, "high"_a, "simd"_a, "threads"_a, "top"_a,
        "bottom"_a, "limit"_a);
  m.def("clear_bits", [](nb::ndarray<u64, nb::c_contig, nb::device::cpu> bits, In<u32> positions) {
    for (size_t i = 0; i < positions.size(); ++i) {
      u32 at = positions.data()[i];
      bits.data()[at / 64] &= ~(1ull << (at & 63));
    }
  }, "bits"_a, "positions"_a);
  m.def("crc32c", [](In<u8> data, u32 before, bool plainly) {
    const u8* at = data.data();
    size_t size = data.size();
    ReleasedGil free;
    return checksum::crc32c(at, size, before, plainly);
  }, "data"_a, "before"_a = 0, "plainly"_a = false);
  m.def("join_crc32c", &checksum::join, "first"_a, "second"_a, "second_size"_a);
  m.def("simd_levels", [] {
    std::vector<std::string> names;
    for (const Kernels* one : available()) names.push_back(one->name);
    return names;
  });
  bind_locks(m);
  bind_text(m);
}
