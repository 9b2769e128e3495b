#include "bindings/document_plan.hpp"

#include <cmath>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/event_details.hpp"
#include "bindings/event_reader.hpp"
#include "document/moments.hpp"

namespace hitbox {
namespace {

using document::Documents;
using document::NOWHERE_ASKED;
using document::Paths;
using document::Read;
using document::Type;
using document::Value;

constexpr i64 EXACT = i64(1) << 53;  // whole numbers up to here are exact as doubles

std::string joined(const std::string& above, const std::string& below) {
  return above.empty() ? below : above + "." + below;
}

// A number as a text, as Python's repr has it.
std::string shortest(double value) {
  char* text = PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr);
  if (!text) throw nb::python_error();
  std::string found(text);
  PyMem_Free(text);
  return found;
}

}  // namespace

// The sortable bits of a double, as codecs.float_key says; -0.0 is 0.0.
static i64 float_key(double value) {
  i64 bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits >= 0 ? bits : MISSING - bits;
}

DocumentPlan::DocumentPlan(u32 attributes, nb::list points, nb::list details, nb::list sets, nb::list others,
                           nb::dict labels, size_t most, nb::object fold, nb::object epoch, nb::object plain_epoch)
    : attributes_(attributes), paths_(random_seed()), without_(attributes, MISSING), labels_(attributes), fold_(fold),
      epoch_(epoch), plain_epoch_(plain_epoch) {
  auto checked = [&](nb::handle number) {
    const u32 attribute = nb::cast<u32>(number);
    if (attribute >= attributes_) throw nb::value_error("there is no such attribute");
    return attribute;
  };
  for (auto [attribute, current] : labels)
    labels_[checked(attribute)] = std::make_unique<Labels>(nb::cast<nb::list>(current), most);
  auto reader = [&](KeyReader made) {
    if (made.source.place >= readers_.size()) readers_.resize(made.source.place + 1);
    readers_[made.source.place].push_back(std::move(made));
  };
  for (nb::handle point : points) {
    const u32 attribute = checked(point[0]);
    const std::string what = nb::cast<std::string>(point[1]);
    if (what == "compare") {
      comparisons_.push_back({attribute, source(point[2]), source(point[3])});
    } else if (what == "absent") {
      const std::string name = nb::cast<std::string>(point[2]);
      reader({attribute, {paths_.add(Paths::EVENT, name), Kind::any, ""}, true});
      without_[attribute] = 1;
    } else {
      Source from = source(point[2]);
      if (from.kind == Kind::string && !labels_[attribute])
        throw nb::value_error("a string attribute needs a dictionary");
      reader({attribute, std::move(from), false});
    }
  }
  auto list = [&](nb::handle lists, nb::handle field, nb::handle type) {
    const auto names = nb::cast<std::vector<std::string>>(lists);
    return ListSource{way(Paths::EVENT, "", names, 0, nb::cast<std::string>(field)), kind_of(type)};
  };
  for (nb::handle detail : details) {
    const u32 attribute = checked(detail[0]);
    if (nb::cast<std::string>(detail[1]) == "text") {
      details_.emplace(attribute, Detail{false, {}, source(detail[2])});
    } else {
      const ListSource of = list(detail[2], detail[3], detail[4]);
      if (of.kind == Kind::string && !labels_[attribute])
        throw nb::value_error("a string attribute needs a dictionary");
      details_.emplace(attribute, Detail{true, of, {}});
    }
  }
  for (nb::handle set : sets) {
    const nb::bytes name = nb::cast<nb::bytes>(set[0]);
    const char kind = nb::cast<std::string>(set[1]).at(0);
    set_names_.push_back({name.c_str(), name.size()});
    if (nb::len(nb::object(set[2]))) sets_.push_back({kind, true, list(set[2], set[3], set[4]), {}});
    else
      sets_.push_back(
          {kind, false, {}, {paths_.add(Paths::EVENT, nb::cast<std::string>(set[3])), kind_of(set[4]), ""}});
  }
  for (nb::handle names : others) {
    std::vector<u32> places;
    for (const std::string& name : nb::cast<std::vector<std::string>>(names))
      places.push_back(paths_.add(Paths::EVENT, name));
    others_.push_back(std::move(places));
  }
  readers_.resize(paths_.size());
}

DocumentPlan::~DocumentPlan() = default;

DocumentPlan::Reader::Reader(const DocumentPlan& plan) : plan_(plan) {
  if (plan.idle_.empty()) {
    own_ = std::make_unique<EventReader>(plan);
  } else {
    own_ = std::move(plan.idle_.back());
    plan.idle_.pop_back();
  }
}

DocumentPlan::Reader::~Reader() {
  own_->clear();
  if (!own_->is_large()) plan_.idle_.push_back(std::move(own_));
}

DocumentPlan::Kind DocumentPlan::kind_of(nb::handle name) {
  const std::string kind = nb::cast<std::string>(name);
  if (kind == "number") return Kind::number;
  if (kind == "string") return Kind::string;
  if (kind == "bool") return Kind::truth;
  if (kind == "timestamp") return Kind::moment;
  if (kind == "any") return Kind::any;
  throw nb::value_error("there is no such type of values");
}

// (name, type, functions)
DocumentPlan::Source DocumentPlan::source(nb::handle given) {
  return {paths_.add(Paths::EVENT, nb::cast<std::string>(given[0])), kind_of(given[1]),
          nb::cast<std::string>(given[2])};
}

// The way through lists[at] and those behind it, each in the elements of the one before, to a field; "" means the elements.
u32 DocumentPlan::way(u32 scope, const std::string& above, const std::vector<std::string>& lists, size_t at,
                      const std::string& field) {
  const std::string path = joined(above, lists[at]);
  const u32 whole = paths_.add(scope, path);
  Way made{whole, {}, {}, {}};
  made.of_element = next(paths_.add_elements(whole), "", lists, at + 1, field);
  made.of_object = next(scope, path, lists, at + 1, field);
  for (size_t dot = path.rfind('.'); dot != std::string::npos && dot > above.size(); dot = path.rfind('.', dot - 1)) {
    const u32 list = paths_.add(scope, path.substr(0, dot));
    std::vector<std::string> rest(lists.begin() + i64(at), lists.end());
    rest[0] = path.substr(dot + 1);
    made.inner.push_back({list, way(paths_.add_elements(list), "", rest, 0, field)});
    if (!dot) break;
  }
  ways_.push_back(std::move(made));
  return u32(ways_.size() - 1);
}

DocumentPlan::Next DocumentPlan::next(u32 scope, const std::string& above, const std::vector<std::string>& lists,
                                      size_t at, const std::string& field) {
  if (at < lists.size()) return {SELF, way(scope, above, lists, at, field)};
  if (field.empty()) return {};
  return {paths_.add(scope, joined(above, field)), SELF};
}

// What a condition of some kind sees of a value. False if Python has to say.
bool DocumentPlan::plain(const Value& value, Kind kind, Plain& out) {
  out.kind = Plain::Kind::NOTHING;
  switch (value.type) {
    case Type::NOTHING: break;
    case Type::TRUE:
    case Type::FALSE:
      if (kind != Kind::truth && kind != Kind::any) break;
      out.kind = Plain::Kind::TRUTH;
      out.whole = value.type == Type::TRUE;
      break;
    case Type::WHOLE:
      if (kind != Kind::number && kind != Kind::any) break;
      out.kind = Plain::Kind::WHOLE;
      out.whole = value.whole;
      break;
    case Type::REAL:
      if (kind != Kind::number && kind != Kind::any) break;
      out.kind = Plain::Kind::REAL;
      out.real = value.real;
      break;
    case Type::MOMENT:
      if (kind != Kind::moment && kind != Kind::any) break;
      out.kind = Plain::Kind::MOMENT;
      out.whole = value.whole;
      break;
    case Type::TEXT:
      if (kind == Kind::string || kind == Kind::any) {
        out.kind = Plain::Kind::TEXT;
        out.text = value.text();
      } else if (kind == Kind::moment) {
        const Read read = document::read_moment(value.text(), out.whole);
        if (read == Read::UNUSUAL) return false;
        if (read == Read::DONE) out.kind = Plain::Kind::MOMENT;
      }
      break;
    case Type::LIST:
    case Type::OBJECT:
      if (kind == Kind::any) out.kind = Plain::Kind::OTHER;
  }
  return true;
}

bool DocumentPlan::plain(Documents& documents, const Value& value, const Source& source, Plain& out) const {
  if (!plain(value, source.kind, out)) return false;
  if (out.kind == Plain::Kind::TEXT)
    for (char function : source.functions)
      if (!apply(documents, function, out.text)) return false;
  return true;
}

// A function of a text: l, lower case; u, upper case; r, reversed. Letters beyond ASCII are Python's.
bool DocumentPlan::apply(Documents& documents, char function, std::string_view& text) const {
  bool ascii = true;
  for (char c : text) ascii &= u8(c) < 0x80;
  if (function != 'r' && !ascii) {
    const nb::object folded = fold_(nb::str(text.data(), text.size()), function == 'u');
    Py_ssize_t size;
    const char* bytes = PyUnicode_AsUTF8AndSize(folded.ptr(), &size);
    if (!bytes) throw nb::python_error();
    text = documents.texts.copy({bytes, size_t(size)});
    return true;
  }
  char* made = documents.texts.take(text.size());
  if (function == 'r') {
    size_t to = text.size();
    for (size_t from = 0; from < text.size();) {
      size_t size = 1;
      while (from + size < text.size() && (u8(text[from + size]) & 0xC0) == 0x80) ++size;
      to -= size;
      std::memcpy(made + to, text.data() + from, size);
      from += size;
    }
  } else {
    const char first = function == 'l' ? 'A' : 'a';
    for (size_t i = 0; i < text.size(); ++i) made[i] = u8(text[i] - first) < 26 ? char(text[i] ^ 0x20) : text[i];
  }
  text = {made, text.size()};
  return true;
}

i64 DocumentPlan::key(u32 attribute, const Plain& value) const {
  switch (value.kind) {
    case Plain::Kind::NOTHING: return MISSING;
    case Plain::Kind::WHOLE: return float_key(double(value.whole));
    case Plain::Kind::REAL: return float_key(value.real);
    case Plain::Kind::TEXT: return labels_[attribute]->key(value.text);
    case Plain::Kind::TRUTH:
    case Plain::Kind::MOMENT: return value.whole;
    case Plain::Kind::OTHER: break;
  }
  return 0;
}

// -1, 0 or 1, or MISSING if the values are of two types. False if Python has to say.
bool DocumentPlan::compare(const Plain& first, const Plain& second, i64& key) {
  key = MISSING;
  auto is_number = [](const Plain& one) { return one.kind == Plain::Kind::WHOLE || one.kind == Plain::Kind::REAL; };
  auto order = [](auto a, auto b) { return i64(a > b) - i64(a < b); };
  if (is_number(first) && is_number(second)) {
    if (first.kind == second.kind) {
      key = first.kind == Plain::Kind::WHOLE ? order(first.whole, second.whole) : order(first.real, second.real);
      return true;
    }
    const i64 whole = first.kind == Plain::Kind::WHOLE ? first.whole : second.whole;
    if (whole > EXACT || whole < -EXACT) return false;
    auto real = [](const Plain& one) { return one.kind == Plain::Kind::WHOLE ? double(one.whole) : one.real; };
    key = order(real(first), real(second));
    return true;
  }
  if (first.kind != second.kind) return true;
  if (first.kind == Plain::Kind::TEXT) key = order(first.text.compare(second.text), 0);
  else if (first.kind == Plain::Kind::TRUTH || first.kind == Plain::Kind::MOMENT)
    key = order(first.whole, second.whole);
  return true;
}

bool DocumentPlan::point(Documents& documents, i64* keys) const {
  std::copy(without_.begin(), without_.end(), keys);
  Plain value;
  const bool good = documents.each_field([&](u32 place, const Value& given) {
    for (const KeyReader& reader : readers_[place]) {
      if (reader.absence) {
        keys[reader.attribute] = 0;
        continue;
      }
      if (!plain(documents, given, reader.source, value)) return false;
      keys[reader.attribute] =
          reader.source.kind == Kind::any && value.kind != Plain::Kind::NOTHING ? 0 : key(reader.attribute, value);
    }
    return true;
  });
  if (!good) return false;
  for (const Comparison& one : comparisons_) {
    const Value *first = documents.field(one.first.place), *second = documents.field(one.second.place);
    if (!first || !second) continue;
    Plain other;
    if (!plain(documents, *first, one.first, value) || !plain(documents, *second, one.second, other)) return false;
    if (!compare(value, other, keys[one.attribute])) return false;
  }
  for (const std::vector<u32>& places : others_) {
    bool all = true;
    for (u32 place : places) all = all && documents.field(place);
    if (all) return false;
  }
  return true;
}

template <class Use>
bool DocumentPlan::go_on(const Documents& documents, const Next& next, const Value& value, Use& use) const {
  if (next.way != SELF) {
    bool given;
    return value.type != Type::OBJECT || walk(documents, next.way, &value, given, use);
  }
  if (next.field == SELF) return use(&value);
  if (value.type != Type::OBJECT) return use(nullptr);
  bool twice = false;
  const Value* field = documents.field_of(value, next.field, twice);
  return !twice && use(field);
}

template <class Use>
bool DocumentPlan::walk(const Documents& documents, u32 at, const Value* object, bool& given, Use& use) const {
  const Way& way = ways_[at];
  bool twice = false;
  auto field = [&](u32 place) { return object ? documents.field_of(*object, place, twice) : documents.field(place); };
  given = true;
  if (const Value* whole = field(way.whole)) {
    if (twice) return false;
    if (whole->type == Type::LIST)
      return documents.each_element(
          *whole, [&](const Value& element) { return go_on(documents, way.of_element, element, use); });
    given = whole->type != Type::NOTHING;
    return !given || go_on(documents, way.of_object, *whole, use);
  }
  for (auto [place, rest] : way.inner) {
    const Value* list = field(place);
    if (twice) return false;
    if (!list || list->type != Type::LIST) continue;
    const u32 from_element = rest;
    return documents.each_element(*list, [&](const Value& element) {
      bool there = false;
      if (element.type == Type::OBJECT && !walk(documents, from_element, &element, there, use)) return false;
      return there || use(nullptr);
    });
  }
  given = false;
  return true;
}

bool DocumentPlan::element(const Plain& value, Brought& out, u32 set) const {
  switch (value.kind) {
    case Plain::Kind::NOTHING: return true;
    case Plain::Kind::TEXT: out.add(set, value.text); return true;
    case Plain::Kind::TRUTH: out.add(set, value.whole ? "1" : "0"); return true;
    case Plain::Kind::WHOLE: out.keep(set, std::to_string(value.whole)); return true;
    case Plain::Kind::REAL:
      if (std::isfinite(value.real) && value.real == std::trunc(value.real)) {
        if (std::fabs(value.real) > double(EXACT)) return false;
        out.keep(set, std::to_string(i64(value.real)));
      } else {
        out.keep(set, shortest(value.real));
      }
      return true;
    default: return false;
  }
}

bool DocumentPlan::bring(Documents& documents, Brought& out) const {
  for (u32 at = 0; at < sets_.size(); ++at) {
    const Set& set = sets_[at];
    Plain value;
    auto add = [&](const Value* given) {
      if (!given) return true;
      if (!plain(*given, set.is_list ? set.list.kind : set.field.kind, value)) return false;
      if (set.kind == sets::ELEMENT) return element(value, out, at);
      if (value.kind != Plain::Kind::TEXT) return true;
      if (set.kind == sets::FOLDED && !apply(documents, 'l', value.text)) return false;
      out.add(at, value.text);
      return true;
    };
    bool given;
    if (set.is_list ? !walk(documents, set.list.way, nullptr, given, add) : !add(documents.field(set.field.place)))
      return false;
  }
  out.end_event();
  return true;
}

Details::Elements DocumentPlan::EventDetails::list(u32 attribute) const {
  bool fresh;
  Known& list = known(attribute, fresh);
  if (!fresh) return list.elements();
  const auto detail = plan_.details_.find(attribute);
  if (detail == plan_.details_.end() || !detail->second.is_list) return {};
  const ListSource& from = detail->second.list;
  bool given = false, decided = true;
  Plain value;
  auto add = [&](const Value* one) {
    value.kind = Plain::Kind::NOTHING;
    if (one && !plain(*one, from.kind, value)) return false;
    const bool any = from.kind == Kind::any && value.kind != Plain::Kind::NOTHING;
    list.keys.push_back(any ? 0 : plan_.key(attribute, value));
    return true;
  };
  decided = plan_.walk(documents_, from.way, nullptr, given, add);
  list.given = !decided ? Details::Given::NO : given ? Details::Given::YES : Details::Given::NOTHING;
  return list.elements();
}

Details::Text DocumentPlan::EventDetails::text(u32 attribute) const {
  bool fresh;
  Details::Text& text = known(attribute, fresh).text;
  if (!fresh) return text;
  const auto detail = plan_.details_.find(attribute);
  if (detail == plan_.details_.end() || detail->second.is_list) return text;
  const Source& from = detail->second.text;
  const Value* field = documents_.field(from.place);
  Plain value;
  if (field && !plan_.plain(documents_, *field, from, value)) return text;
  text.given = value.kind == Plain::Kind::TEXT ? Details::Given::YES : Details::Given::NOTHING;
  text.bytes = value.text;
  return text;
}

}  // namespace hitbox
