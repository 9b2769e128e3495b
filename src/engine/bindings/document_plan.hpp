// What subscriptions ask of events as documents: from the values of an event to the keys of its point, to what it brings to
// the sets of anchors, and to the lists and texts of a second look.
//
//   {"price": 12.5, "tags": ["a"]}    point   NUMBER(price) = 12.5's key
//                                     set     elements of tags: "a"
//                                     detail  the keys of the elements of tags
//
// Events come as JSON or as Python's dicts; both become the same values (document/document.hpp). What is unusual is left
// to Python, which does the same in encoding/derived.py, index/anchors.py and language/boxes/derived.py.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <nanobind/nanobind.h>

#include "bindings/brought.hpp"
#include "bindings/column.hpp"
#include "bindings/python_values.hpp"
#include "document/document.hpp"
#include "program/details.hpp"

namespace hitbox {

class EventReader;

class DocumentPlan final : public document::Strangers {
 public:
  // Made of what engine/document_plan.py describes:
  //   columns     by attribute, what `Codec.native` says
  //   free        the attributes that events do not carry, which meet everything
  //   points      keys, details: lists and texts of a second look, sets: what anchors ask for
  //   others      groups of names: an event that has all of a group is for Python
  //   declared    what fields must be, if there is a schema: (name of the place, what, ...); then values are `strict`
  //   fold        fold(text, upper) changes the case of letters
  //   allows      allows(name of a place, name of a field): whether a field that nobody asks for may stand there, or None
  //   epoch       the start of 1970, with and without a zone
  DocumentPlan(nb::list columns, nb::list free, nb::list points, nb::list details, nb::list sets, nb::list others,
               nb::object declared, nb::object fold, nb::object allows, nb::object epoch, nb::object plain_epoch);
  ~DocumentPlan() override;
  DocumentPlan(const DocumentPlan&) = delete;
  DocumentPlan& operator=(const DocumentPlan&) = delete;

  u32 attributes() const { return u32(columns_.size()); }
  const std::vector<u32>& free() const { return free_; }
  bool is_strict() const { return strict_; }
  // Itself, if there are fields that may not stand everywhere.
  document::Strangers* strangers() const { return allows_.is_none() ? nullptr : const_cast<DocumentPlan*>(this); }
  // Whether a field that nobody asks for may stand at a place. Python's lock is held.
  bool allows(u32 place, std::string_view name) override;
  void begin() override { asked_ = 0; }
  const document::Paths& paths() const { return paths_; }
  std::vector<std::string_view> set_names() const { return {set_names_.begin(), set_names_.end()}; }
  const Moments& moments() const { return moments_; }
  document::Documents documents() const { return document::Documents(paths_.size()); }

  // A reader of one event, which goes back to the plan afterwards.
  class Reader;

  // Python's lock is held for all that follows.
  // The keys of the event that `documents` shows. False if Python has to make them.
  bool point(document::Documents& documents, i64* keys) const;
  // What it brings to sets. False if Python has to say.
  bool bring(document::Documents& documents, Brought& out) const;
  // The lists and texts of an event that is shown, made when a program asks for them.
  class EventDetails;

 private:
  static constexpr u32 SELF = ~u32(0);
  static constexpr size_t MOST_ALLOWED = 100'000, LONGEST_ALLOWED = 200;  // names that are remembered, and their length
  static constexpr u32 MOST_ASKED = 16;     // names of one event that nobody has seen before
  static constexpr size_t MOST_WAYS = 256;  // through lists
  using Kind = Column::Type;
  struct Source {
    u32 place;
    Kind kind;
    std::string functions;  // of texts: l, u or r, the first one first
  };
  struct KeyReader {
    u32 attribute;
    Source source;
    bool absence;
  };
  // What the value at a place must be, where there is a schema.
  struct Rule {
    enum class What : u8 { ANYTHING, VALUE, LIST, OBJECTS, OBJECT, REFUSED } what = What::ANYTHING;
    Kind kind = Kind::other;  // of a value, or of the elements of a list
    u32 attribute = SELF;     // of a list of the event: its key is its length
  };
  struct Comparison {
    u32 attribute;
    Source first, second;
  };
  // How to go on from an object: to a field, to a list in it, or not at all.
  struct Next {
    u32 field = SELF, way = SELF;
  };
  // A list: where it is, or which lists lead to it.
  struct Way {
    u32 whole;
    std::vector<std::pair<u32, u32>> inner;  // (a list above it, the way from its elements)
    Next of_element, of_object;              // from its elements, and from what is no list but an object
  };
  struct ListSource {
    u32 way;
    Kind kind;
  };
  struct Detail {
    enum class What : u8 { LIST, TEXT, NOTHING } what;
    ListSource list;
    Source text;
  };
  struct Set {
    char kind;
    bool is_list;
    ListSource list;
    Source field;
  };

  static Kind kind_of(nb::handle name);
  Source source(nb::handle given);
  u32 way(u32 scope, const std::string& above, const std::vector<std::string>& lists, size_t at,
          const std::string& field);
  Next next(u32 scope, const std::string& above, const std::vector<std::string>& lists, size_t at,
            const std::string& field);

  void add_rule(nb::handle declared);
  u32 place_of(const std::string& name);
  bool plain(document::Documents& documents, const document::Value& value, const Source& source, Plain& out) const;
  bool plain(const document::Value& value, Kind kind, Plain& out) const;
  bool fits(document::Documents& documents, const document::Value& value, const Rule& rule) const;
  bool fits_object(document::Documents& documents, const document::Value& object) const;
  bool apply(document::Documents& documents, char function, std::string_view& text) const;
  static bool compare(const Plain& first, const Plain& second, i64& key);
  // Calls use(value), null for nothing, for what a list leads to, until it returns false. `given`: whether there is a list.
  template <class Use>
  bool walk(const document::Documents& documents, u32 way, const document::Value* object, bool& given, Use& use) const;
  template <class Use>
  bool go_on(const document::Documents& documents, const Next& next, const document::Value& value, Use& use) const;
  bool element(const Plain& value, Kind kind, Brought& out, u32 set) const;

  std::vector<Column> columns_;
  std::vector<u32> free_;
  bool strict_;
  document::Paths paths_;
  std::vector<Rule> rules_;                      // by place
  std::vector<std::vector<KeyReader>> readers_;  // by place
  std::vector<Comparison> comparisons_;
  std::vector<i64> without_;  // the keys of an event that has nothing
  std::vector<std::vector<u32>> others_;
  std::vector<Way> ways_;
  std::map<std::string, u32> known_ways_;    // by scope, path and what follows
  std::unordered_map<u32, Detail> details_;  // by attribute
  std::vector<Set> sets_;
  std::vector<std::string> set_names_;
  nb::object fold_, allows_;
  Moments moments_;
  std::unordered_set<std::string> allowed_;  // places and names
  u32 asked_ = 0;                            // names of this event
  mutable std::vector<std::unique_ptr<EventReader>> idle_;
};

class DocumentPlan::Reader {
 public:
  explicit Reader(const DocumentPlan& plan);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  EventReader* operator->() const { return own_.get(); }

 private:
  const DocumentPlan& plan_;
  std::unique_ptr<EventReader> own_;
};

}  // namespace hitbox
