// Predicates in bulk: hitbox.engine._kernels.Reader, which hitbox.index.predicate_column drives.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/numpy_memory.hpp"
#include "bindings/released_gil.hpp"
#include "text/boxes.hpp"

namespace nb = nanobind;
using namespace hitbox;
using namespace nb::literals;

namespace {

using text::Piece;
using text::Reader;
using text::Shape;

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// (type, even, over, under, first, last) of an attribute.
using Attribute = std::tuple<u8, bool, i64, i64, i64, i64>;

text::Codec codec_of(const Attribute& attribute) {
  const auto& [type, even, over, under, first, last] = attribute;
  if (type > u8(text::Type::OTHER)) throw nb::value_error("there is no such type");
  return {text::Type(type), even, over, under, first, last};
}

Reader* new_reader(const std::vector<Attribute>& attributes, size_t text, size_t depth, size_t values, u64 first_seed,
                   u64 second_seed) {
  std::vector<text::Codec> codecs;
  for (const Attribute& attribute : attributes) codecs.push_back(codec_of(attribute));
  return new Reader(std::move(codecs), {text, depth, values}, {first_seed, second_seed});
}

size_t read_texts(Reader& self, Vector<i64> offsets, Vector<u8> data, Vector<u8> wanted, size_t from, size_t to,
                  Piece& piece) {
  if (to > wanted.size() || wanted.size() >= offsets.size() || from > to)
    throw nb::value_error("there are not so many rows");
  const i64* ends = offsets.data();
  for (size_t row = from; row < to; ++row)
    if (ends[row] < 0 || ends[row] > ends[row + 1] || size_t(ends[row + 1]) > data.size())
      throw nb::value_error("the offsets of the texts do not ascend");
  ReleasedGil free;
  return self.read(ends, data.data(), wanted.data(), from, to, piece);
}

// None, or (shape, text, places of its literals, which are lists), or (shape, pattern).
nb::object question(const Reader& self) {
  const auto& asked = self.question();
  if (!asked.asked) return nb::none();
  nb::bytes text(asked.text.data(), asked.text.size());
  if (asked.about_pattern) return nb::make_tuple(asked.shape, text);
  nb::list places, lists;
  for (size_t i = 0; i < asked.places.size(); ++i) {
    places.append(asked.places[i]);
    lists.append(bool(asked.lists[i]));
  }
  return nb::make_tuple(asked.shape, text, places, lists);
}

void define(Reader& self, u32 number, u32 attribute, bool any, const std::vector<u8>& tests) {
  Shape& shape = self.define(number);
  if (attribute >= self.attributes() || tests.empty()) throw nb::value_error("a shape tests a known attribute");
  std::vector<u8> lists;
  for (u8 code : tests) {
    if (code >= text::TESTS) throw nb::value_error("there is no such test");
    const text::Test test = text::Test(code);
    const bool like = test == text::Test::LIKE || test == text::Test::NOT_LIKE;
    if (like && tests.size() > 1) throw nb::value_error("LIKE stands alone in its condition");
    lists.insert(lists.end(), text::operands(test), text::takes_list(test));
    shape.like |= like;
    shape.tests.push_back(test);
  }
  if (lists != shape.lists) throw nb::value_error("the tests take other literals than the shape has");
  if (shape.like) shape.patterns = std::make_unique<text::TextTable>(self.new_table());
  shape.attribute = attribute;
  shape.any = any;
  shape.single = tests.size() == 1 && text::one_interval(shape.tests[0]);
  shape.meaning = Shape::Meaning::TESTED;
}

// A pattern that is left without a meaning is refused.
void define_pattern(Reader& self, u32 number, nb::bytes pattern, std::optional<text::Pattern> meaning) {
  Shape& shape = self.define(number);
  if (!shape.patterns || shape.patterns->number({pattern.c_str(), pattern.size()}) != shape.meanings.size())
    throw nb::value_error("this pattern was not asked for");
  if (meaning && (meaning->attribute >= self.attributes() || self.codec(meaning->attribute).type != text::Type::STRING))
    throw nb::value_error("a pattern is about a string attribute");
  shape.meanings.push_back(meaning ? *meaning : text::Pattern{{}, {}, false, true, shape.attribute});
}

// (rows, code offsets, code, literal offsets, literals) of programs.
nb::tuple programs_of(text::Made& made) {
  return nb::make_tuple(numpy_array(std::move(made.programmed)), numpy_array(std::move(made.code_offsets)),
                        numpy_array(std::move(made.code)), numpy_array(std::move(made.literal_offsets)),
                        numpy_array(std::move(made.literals)));
}

nb::tuple make(Reader& self, const Piece& piece, const nb::list& keys, Vector<i32> given_numbers, Vector<i64> most,
               size_t few, Vector<int> information, Vector<i64> low, Vector<i64> high) {
  if (most.size() != piece.read.size()) throw nb::value_error("each row needs a limit");
  if (keys.size() != self.attributes()) throw nb::value_error("one array of keys per attribute, or None");
  const std::vector<int> numbers(given_numbers.data(), given_numbers.data() + given_numbers.size());
  if (numbers.size() != self.attributes()) throw nb::value_error("one number per attribute");
  if (low.size() != information.size() * piece.read.size() || high.size() != low.size())
    throw nb::value_error("one interval per row of what subscriptions say about themselves");
  std::vector<const i64*> found;
  for (size_t i = 0; i < keys.size(); ++i) {
    Vector<i64> array;
    const bool none = keys[i].is_none();
    const bool strings = self.codec(u32(i)).type == text::Type::STRING;
    const bool fits = none || (nb::try_cast(keys[i], array, false) && array.size() == self.strings(u32(i)).size());
    if (none == strings || !fits) throw nb::value_error("each string needs a key");
    found.push_back(none ? nullptr : array.data());
  }
  text::Made made;
  {
    ReleasedGil free;
    const text::Told told{information.data(), information.size(), low.data(), high.data()};
    made = text::Maker(self, found, numbers, told, {most.data(), few}).make(piece);
  }
  return nb::make_tuple(numpy_array(std::move(made.counts)), numpy_array(std::move(made.exact)),
                        numpy_array(std::move(made.offsets)), numpy_array(std::move(made.attribute)),
                        numpy_array(std::move(made.low)), numpy_array(std::move(made.high)), programs_of(made));
}

// How many conditions are about each attribute.
std::vector<i64> uses(const Piece& piece) {
  std::vector<i64> found;
  for (const text::Condition& one : piece.conditions) {
    if (one.attribute == text::NO_ATTRIBUTE) continue;
    if (one.attribute >= found.size()) found.resize(one.attribute + 1);
    ++found[one.attribute];
  }
  return found;
}

// One predicate that was read by itself.
struct ReadText {
  Piece piece;
  nb::object strings;  // {attribute: its strings}, or None
};

// A ReadText; or what `question` says, where something has to be defined first; or None: the text is Python's. It keeps
// Python's lock, so several threads may read.
nb::object read_text(Reader& self, nb::str text) {
  Py_ssize_t size;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (!data) {
    PyErr_Clear();  // it cannot be written as UTF-8
    return nb::none();
  }
  if (std::memchr(data, 0, size_t(size))) return nb::none();
  ReadText read{self.read(reinterpret_cast<const u8*>(data), size_t(size)), nb::none()};
  if (self.question().asked) return question(self);
  if (!read.piece.read[0]) return nb::none();
  nb::dict found;
  for (u32 attribute = 0; attribute < self.attributes(); ++attribute) {
    const text::TextTable& table = self.strings(attribute);
    if (!table.size()) continue;
    nb::list strings;
    for (u32 i = 0; i < table.size(); ++i) strings.append(nb::str(table[i].data(), table[i].size()));
    found[nb::int_(attribute)] = strings;
  }
  if (found.size()) read.strings = found;
  return nb::cast(std::move(read));
}

// (exact, offsets, attribute, low, high, priority) of the boxes of one predicate, and its program, or None: (shape,
// literals). None instead of all of it if the text is Python's. `labels` are the keys of its strings, as `strings` lists them; `about` has (attribute, low, high) of what the
// subscription says about itself.
nb::object make_one(const Reader& self, const ReadText& read, nb::object labels, Vector<i32> given_numbers, i64 most,
                    size_t few, const std::vector<std::tuple<int, i64, i64>>& about, u8 priority) {
  std::vector<int> numbers(given_numbers.data(), given_numbers.data() + given_numbers.size());
  numbers.resize(self.attributes(), -1);  // another thread may have added some
  std::vector<const i64*> keys(self.attributes(), nullptr);
  std::vector<std::vector<i64>> held;
  if (!labels.is_none()) {
    const nb::dict given = nb::cast<nb::dict>(labels), strings = nb::cast<nb::dict>(read.strings);
    held.reserve(given.size());
    for (auto [attribute, some] : given) {
      held.push_back(nb::cast<std::vector<i64>>(some));
      if (!strings.contains(attribute) || nb::len(nb::object(strings[attribute])) != held.back().size())
        throw nb::value_error("each string needs a key");
      keys.at(nb::cast<u32>(attribute)) = held.back().data();
    }
  }
  if (held.size() != (read.strings.is_none() ? 0 : nb::len(read.strings)))
    throw nb::value_error("each string needs a key");
  std::vector<int> attributes;
  std::vector<i64> low, high;
  for (const auto& [attribute, first, last] : about) {
    attributes.push_back(attribute);
    low.push_back(first);
    high.push_back(last);
  }
  const text::Told told{attributes.data(), about.size(), low.data(), high.data()};
  text::Made made = text::Maker(self, keys, numbers, told, {&most, few}).make(read.piece);
  if (made.counts[0] < 0) return nb::none();
  const bool exact = made.exact.empty() || made.exact[0];
  nb::object program = nb::none();
  if (!made.programmed.empty())
    program = nb::make_tuple(nb::bytes(made.code.data(), made.code.size() * sizeof(u32)),
                             nb::bytes(made.literals.data(), made.literals.size() * sizeof(i64)));
  return nb::make_tuple(exact, numpy_array(std::move(made.offsets)), numpy_array(std::move(made.attribute)),
                        numpy_array(std::move(made.low)), numpy_array(std::move(made.high)),
                        numpy_array(std::vector<u8>(size_t(made.counts[0]), priority)), program);
}

// (ends, data) of the distinct strings of an attribute.
nb::tuple strings(Reader& self, u32 attribute) {
  const text::TextTable& table = self.strings(attribute);
  std::vector<i64> offsets(1, 0);
  offsets.insert(offsets.end(), table.ends().begin(), table.ends().end());
  return nb::make_tuple(numpy_array(std::move(offsets)),
                        numpy_array(std::vector<u8>(table.data().begin(), table.data().end())));
}

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<Piece>(m, "Piece")
      .def(nb::init<>())
      .def("read", [](const Piece& self) { return numpy_array(self.read); })
      .def("uses", [](const Piece& self) { return numpy_array(uses(self)); })
      .def("__len__", [](const Piece& self) { return self.read.size(); });
  nb::class_<ReadText>(m, "ReadText").def_ro("strings", &ReadText::strings).def("attributes", [](const ReadText& self) {
    std::vector<u32> found;  // of each condition
    for (const text::Condition& one : self.piece.conditions)
      if (one.attribute != text::NO_ATTRIBUTE) found.push_back(one.attribute);
    return found;
  });
  nb::class_<Reader>(m, "Reader")
      .def(nb::new_(&new_reader), "attributes"_a, "text"_a, "depth"_a, "values"_a, "first_seed"_a, "second_seed"_a)
      .def("read", &read_texts, "offsets"_a, "data"_a, "wanted"_a, "first"_a, "end"_a, "piece"_a)
      .def("question", &question)
      .def("define", &define, "shape"_a, "attribute"_a, "any"_a, "tests"_a)
      .def(
          "define_constant",
          [](Reader& self, u32 shape, bool always) {
            self.define(shape).meaning = always ? Shape::Meaning::ALWAYS : Shape::Meaning::NEVER;
          },
          "shape"_a, "always"_a)
      .def(
          "define_pattern",
          [](Reader& self, u32 shape, nb::bytes pattern, std::optional<std::string> from, std::optional<std::string> to,
             bool plain, u32 attribute) {
            text::Pattern meaning{std::move(from), std::move(to), plain, false, attribute};
            define_pattern(self, shape, pattern, std::move(meaning));
          },
          "shape"_a, "pattern"_a, "low"_a.none(), "above"_a.none(), "plain"_a, "attribute"_a)
      .def(
          "refuse_pattern",
          [](Reader& self, u32 shape, nb::bytes pattern) { define_pattern(self, shape, pattern, std::nullopt); },
          "shape"_a, "pattern"_a)
      .def("read_text", &read_text, "text"_a)
      .def(
          "add_attribute",
          [](Reader& self, const Attribute& attribute) { return self.add_attribute(codec_of(attribute)); },
          "attribute"_a)
      .def("make_one", &make_one, "read"_a, "labels"_a.none(), "numbers"_a, "most"_a, "few"_a, "about"_a, "priority"_a)
      .def("strings", &strings, "attribute"_a)
      .def("make", &make, "piece"_a, "keys"_a, "numbers"_a, "most"_a, "few"_a, "information"_a, "low"_a, "high"_a);
}
