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

DocumentPlan::DocumentPlan(nb::list columns, nb::list free, nb::list points, nb::list details, nb::list sets,
                           nb::list others, nb::object declared, nb::object fold, nb::object allows, nb::object epoch,
                           nb::object plain_epoch)
    : strict_(!declared.is_none()), paths_(random_seed()), fold_(fold), allows_(allows), moments_(epoch, plain_epoch) {
  for (nb::handle column : columns) columns_.emplace_back(column);
  without_.assign(columns_.size(), MISSING);
  auto checked = [&](nb::handle number) {
    const u32 attribute = nb::cast<u32>(number);
    if (attribute >= columns_.size()) throw nb::value_error("there is no such attribute");
    return attribute;
  };
  for (nb::handle attribute : free) free_.push_back(checked(attribute));
  auto reader = [&](KeyReader made) {
    if (made.source.place >= readers_.size()) readers_.resize(made.source.place + 1);
    readers_[made.source.place].push_back(std::move(made));
  };
  for (nb::handle point : points) {
    const u32 attribute = checked(point[0]);
    const std::string what = nb::cast<std::string>(point[1]);
    if (what == "compare") {
      comparisons_.push_back({attribute, source(point[2]), source(point[3])});
    } else if (what == "always") {
      without_[attribute] = nb::cast<i64>(point[2]);
    } else if (what == "absent") {
      reader({attribute, {paths_.add(Paths::EVENT, nb::cast<std::string>(point[2])), Kind::any, ""}, true});
      without_[attribute] = 1;
    } else {
      reader({attribute, source(point[2]), false});
    }
  }
  auto list = [&](nb::handle lists, nb::handle field, nb::handle type) {
    const auto names = nb::cast<std::vector<std::string>>(lists);
    return ListSource{way(Paths::EVENT, "", names, 0, nb::cast<std::string>(field)), kind_of(type)};
  };
  for (nb::handle detail : details) {
    const u32 attribute = checked(detail[0]);
    const std::string what = nb::cast<std::string>(detail[1]);
    Detail made{Detail::What::NOTHING, {}, {}};
    if (what == "text") made = {Detail::What::TEXT, {}, source(detail[2])};
    if (what == "each") made = {Detail::What::LIST, list(detail[2], detail[3], detail[4]), {}};
    details_.emplace(attribute, std::move(made));
  }
  for (nb::handle set : sets) {
    const nb::bytes name = nb::cast<nb::bytes>(set[0]);
    const char kind = nb::cast<std::string>(set[1]).at(0);
    set_names_.push_back({name.c_str(), name.size()});
    if (nb::len(nb::object(set[2]))) {
      sets_.push_back({kind, true, list(set[2], set[3], set[4]), {}});
    } else {
      const u32 place = paths_.add(Paths::EVENT, nb::cast<std::string>(set[3]));
      sets_.push_back({kind, false, {}, {place, kind_of(set[4]), ""}});
    }
  }
  for (nb::handle names : others) {
    std::vector<u32> places;
    for (const std::string& name : nb::cast<std::vector<std::string>>(names))
      places.push_back(paths_.add(Paths::EVENT, name));
    others_.push_back(std::move(places));
  }
  if (strict_)
    for (nb::handle one : declared) add_rule(one);
  readers_.resize(paths_.size());
  rules_.resize(paths_.size());
}

// The place with a name as Paths::name_of gives it.
u32 DocumentPlan::place_of(const std::string& name) {
  u32 scope = Paths::EVENT;
  size_t from = 0;
  for (size_t end; (end = name.find("[]", from)) != std::string::npos; from = end + 2) {
    if (from && name[from] == '.') ++from;
    scope = paths_.add_elements(paths_.add(scope, name.substr(from, end - from)));
  }
  if (from && from < name.size()) ++from;
  return from < name.size() ? paths_.add(scope, name.substr(from)) : scope;
}

// (name of the place, what, type or None, attribute or None)
void DocumentPlan::add_rule(nb::handle declared) {
  using What = Rule::What;
  const u32 place = place_of(nb::cast<std::string>(declared[0]));
  const std::string what = nb::cast<std::string>(declared[1]);
  Rule rule;
  rule.what = what == "value"     ? What::VALUE
              : what == "list"    ? What::LIST
              : what == "objects" ? What::OBJECTS
              : what == "object"  ? What::OBJECT
                                  : What::REFUSED;
  if (!declared[2].is_none()) rule.kind = kind_of(declared[2]);
  if (!declared[3].is_none()) rule.attribute = nb::cast<u32>(declared[3]);
  if (rule.attribute != SELF && rule.attribute >= columns_.size()) throw nb::value_error("there is no such attribute");
  if (rule.what == What::LIST || rule.what == What::OBJECTS) paths_.add_elements(place);
  if (place >= rules_.size()) rules_.resize(place + 1);
  rules_[place] = rule;
}

bool DocumentPlan::allows(u32 place, std::string_view name) {
  std::string known(reinterpret_cast<const char*>(&place), sizeof place);
  known += name;
  if (allowed_.count(known)) return true;
  if (++asked_ > MOST_ASKED || name.size() > LONGEST_ALLOWED) return false;
  if (!nb::cast<bool>(allows_(paths_.name_of(place), nb::str(name.data(), name.size())))) return false;
  if (allowed_.size() < MOST_ALLOWED) allowed_.insert(std::move(known));
  return true;
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
  const Kind kind = Column::type_of(nb::cast<std::string>(name));
  if (kind == Kind::other || kind > Kind::any) throw nb::value_error("there is no such type of values");
  return kind;
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
  std::string known = std::to_string(scope) + "\n" + above;
  for (size_t i = at; i < lists.size(); ++i) known += "\n" + lists[i];
  const auto [same, fresh] = known_ways_.try_emplace(known + "\n\n" + field, SELF);
  if (!fresh) return same->second;
  if (known_ways_.size() > MOST_WAYS) throw nb::value_error("there are too many ways through lists");
  const u32 whole = paths_.add(scope, path);
  Way made{whole, {}, {}, {}};
  made.of_element = next(paths_.add_elements(whole), "", lists, at + 1, field);
  made.of_object = next(scope, path, lists, at + 1, field);
  for (size_t dot = path.rfind('.'); !strict_ && dot != std::string::npos && dot > above.size();
       dot = path.rfind('.', dot - 1)) {
    const u32 list = paths_.add(scope, path.substr(0, dot));
    std::vector<std::string> rest(lists.begin() + i64(at), lists.end());
    rest[0] = path.substr(dot + 1);
    made.inner.push_back({list, way(paths_.add_elements(list), "", rest, 0, field)});
    if (!dot) break;
  }
  ways_.push_back(std::move(made));
  return known_ways_[known + "\n\n" + field] = u32(ways_.size() - 1);
}

DocumentPlan::Next DocumentPlan::next(u32 scope, const std::string& above, const std::vector<std::string>& lists,
                                      size_t at, const std::string& field) {
  if (at < lists.size()) return {SELF, way(scope, above, lists, at, field)};
  if (field.empty()) return {};
  return {paths_.add(scope, joined(above, field)), SELF};
}

// What a condition of some kind sees of a value. False if Python has to say. A value of another type is nothing where
// nothing is declared; else it is an error, which Python describes.
bool DocumentPlan::plain(const Value& value, Kind kind, Plain& out) const {
  const bool any = kind == Kind::any;
  out = Plain();
  switch (value.type) {
    case Type::NOTHING: return true;
    case Type::TRUE:
    case Type::FALSE:
      if (any || kind == Kind::truth) return out = Plain::of_truth(value.type == Type::TRUE), true;
      return !strict_;
    case Type::WHOLE:
      if (any || kind == Kind::number || kind == Kind::whole) return out = Plain::of_whole(value.whole), true;
      if (kind == Kind::real && -EXACT <= value.whole && value.whole <= EXACT)
        return out = Plain::of_real(double(value.whole)), true;
      return !strict_;
    case Type::REAL:
      if (any || kind == Kind::number || kind == Kind::real) return out = Plain::of_real(value.real), true;
      if (kind == Kind::whole && std::fabs(value.real) <= double(EXACT) && value.real == std::trunc(value.real))
        return out = Plain::of_whole(i64(value.real)), true;
      return !strict_;
    case Type::MOMENT:
      if (any || kind == Kind::moment) return out = Plain::of_moment(value.whole), true;
      return !strict_;
    case Type::TEXT: {
      if (any || kind == Kind::text) return out = Plain::of_text(value.text()), true;
      if (kind != Kind::moment) return !strict_;
      i64 moment;
      const Read read = document::read_moment(value.text(), moment);
      if (read == Read::DONE) out = Plain::of_moment(moment);
      return read == Read::DONE || (read == Read::NOTHING && !strict_);
    }
    case Type::LIST:
    case Type::OBJECT:
      if (any) out.kind = Plain::Kind::OTHER;
      return any || !strict_;
  }
  return false;
}

bool DocumentPlan::plain(Documents& documents, const Value& value, const Source& source, Plain& out) const {
  if (!plain(value, source.kind, out)) return false;
  if (out.kind == Plain::Kind::TEXT)
    for (char function : source.functions)
      if (!apply(documents, function, out.text)) return false;
  return true;
}

// Whether a value is what a schema says, so that Python would find nothing wrong with it.
bool DocumentPlan::fits(Documents& documents, const Value& value, const Rule& rule) const {
  using What = Rule::What;
  Plain plain_value;
  switch (rule.what) {
    case What::ANYTHING: return true;
    case What::VALUE: return plain(value, rule.kind, plain_value);
    case What::OBJECT: return value.type == Type::OBJECT || value.type == Type::NOTHING;
    case What::REFUSED: return false;
    default: break;
  }
  if (value.type != Type::LIST) return value.type == Type::NOTHING;
  return documents.each_direct(value, [&](const Value& element) {
    if (rule.what == What::LIST) return element.type != Type::LIST && plain(element, rule.kind, plain_value);
    return element.type == Type::NOTHING || (element.type == Type::OBJECT && fits_object(documents, element));
  });
}

bool DocumentPlan::fits_object(Documents& documents, const Value& object) const {
  documents.next_object();
  return documents.each_field_of(object, [&](const Value& value) { return documents.is_first(value.place); }) &&
         documents.each_field_of(object,
                                 [&](const Value& value) { return fits(documents, value, rules_[value.place]); });
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

// -1, 0 or 1, or MISSING if the values are of two types. False if Python has to say.
bool DocumentPlan::compare(const Plain& first, const Plain& second, i64& key) {
  key = MISSING;
  auto order = [](auto a, auto b) { return i64(a > b) - i64(a < b); };
  if (first.is_number() && second.is_number()) {
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
  bool declared = false;
  const bool good = documents.each_field([&](u32 place, const Value& given) {
    const Rule& rule = rules_[place];
    if (rule.what != Rule::What::ANYTHING) {
      if (!fits(documents, given, rule)) return false;
      declared |= rule.what != Rule::What::OBJECT;
      if (rule.attribute != SELF && given.type == Type::LIST) keys[rule.attribute] = given.size;
    }
    declared |= !readers_[place].empty();
    for (const KeyReader& reader : readers_[place]) {
      if (reader.absence) keys[reader.attribute] = 0;
      else if (!plain(documents, given, reader.source, value) ||
               !columns_[reader.attribute].key(value, keys[reader.attribute]))
        return false;
    }
    return true;
  });
  // An event that has nothing but fields that nobody declared is an error.
  if (!good || (strict_ && documents.strange && !declared && !allows_.is_none())) return false;
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
    bool given = false;
    if (value.type == Type::OBJECT && !walk(documents, next.way, &value, given, use)) return false;
    return given || !strict_ || use(nullptr);
  }
  if (next.field == SELF) return use(&value);
  if (value.type != Type::OBJECT) return use(nullptr);
  bool twice = false;
  const Value* field = documents.field_of(value, next.field, twice);
  if (twice) return false;
  if (!strict_ || !field || field->type != Type::LIST) return use(field);
  return documents.each_element(*field, [&](const Value& element) { return use(&element); });  // one of a declared list
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

// The text that stands for an element of a list, as anchors.element_key gives it. False if Python has to say.
bool DocumentPlan::element(const Plain& value, Kind kind, Brought& out, u32 set) const {
  const bool is_whole = kind != Kind::real && std::isfinite(value.real) && value.real == std::trunc(value.real);
  switch (value.kind) {
    case Plain::Kind::NOTHING: break;
    case Plain::Kind::TEXT: out.add(set, value.text); break;
    case Plain::Kind::TRUTH: out.add(set, value.whole ? "1" : "0"); break;
    case Plain::Kind::WHOLE: out.keep(set, std::to_string(value.whole)); break;
    case Plain::Kind::REAL:
      if (is_whole && std::fabs(value.real) > double(EXACT)) return false;
      out.keep(set, is_whole ? std::to_string(i64(value.real)) : shortest(value.real + 0.0));  // -0.0 equals 0.0
      break;
    default: return false;
  }
  return true;
}

bool DocumentPlan::bring(Documents& documents, Brought& out) const {
  for (u32 at = 0; at < sets_.size(); ++at) {
    const Set& set = sets_[at];
    Plain value;
    auto add = [&](const Value* given) {
      if (!given) return true;
      const Kind kind = set.is_list ? set.list.kind : set.field.kind;
      if (!plain(*given, kind, value)) return false;
      if (set.kind == sets::ELEMENT) return element(value, kind, out, at);
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
  if (detail == plan_.details_.end() || detail->second.what == Detail::What::TEXT) return {};
  if (detail->second.what == Detail::What::NOTHING) {
    list.given = Given::NOTHING;
    return list.elements();
  }
  const ListSource& from = detail->second.list;
  bool given = false, decided = true;
  Plain value;
  auto add = [&](const Value* one) {
    value = Plain();
    if (one && !plan_.plain(*one, from.kind, value)) return false;
    list.keys.push_back(MISSING);
    return plan_.columns_[attribute].key(value, list.keys.back());
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
  if (detail == plan_.details_.end() || detail->second.what == Detail::What::LIST) return text;
  text.given = Given::NOTHING;
  if (detail->second.what == Detail::What::NOTHING) return text;
  const Source& from = detail->second.text;
  const Value* field = documents_.field(from.place);
  Plain value;
  if (field && !plan_.plain(documents_, *field, from, value)) text.given = Given::NO;
  else if (value.kind == Plain::Kind::TEXT) text = {Given::YES, value.text};
  return text;
}

}  // namespace hitbox
