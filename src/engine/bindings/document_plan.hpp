// What subscriptions ask of events as documents, where nothing is declared: from the values of an event to the keys of its
// point, to what it brings to the sets of anchors, and to the lists and texts of a second look.
//
//   {"price": 12.5, "tags": ["a"]}    point   NUMBER(price) = 12.5's key
//                                     set     elements of tags: "a"
//                                     detail  the keys of the elements of tags
//
// Events come as JSON or as Python's dicts; both become the same values (document/document.hpp). What is unusual is left
// to Python, which does the same in encoding/derived.py, index/anchors.py and language/boxes/derived.py.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <nanobind/nanobind.h>

#include "bindings/brought.hpp"
#include "bindings/labels.hpp"
#include "document/document.hpp"
#include "program/details.hpp"

namespace hitbox {

// A value as a condition sees it.
struct Plain {
  enum class Kind : u8 { NOTHING, WHOLE, REAL, TRUTH, MOMENT, TEXT, OTHER };
  Kind kind = Kind::NOTHING;
  i64 whole = 0;
  double real = 0;
  std::string_view text;
};

class EventReader;

class DocumentPlan {
 public:
  // attributes: how many there are. points, details, sets: what is computed of an event, as engine/document_plan.py
  // describes it. others: groups of names; an event that has all of a group is for Python. labels: {attribute: a list with
  // what its dictionary is made of}, with at most `most` keys kept. fold(text, upper) changes the case of letters. epoch, plain_epoch: the start of
  // 1970, with and without a zone.
  DocumentPlan(u32 attributes, nb::list points, nb::list details, nb::list sets, nb::list others, nb::dict labels,
               size_t most, nb::object fold, nb::object epoch, nb::object plain_epoch);
  ~DocumentPlan();
  DocumentPlan(const DocumentPlan&) = delete;
  DocumentPlan& operator=(const DocumentPlan&) = delete;

  u32 attributes() const { return attributes_; }
  const document::Paths& paths() const { return paths_; }
  std::vector<std::string_view> set_names() const { return {set_names_.begin(), set_names_.end()}; }
  nb::handle epoch() const { return epoch_; }
  nb::handle plain_epoch() const { return plain_epoch_; }
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
  enum class Kind : u8 { number, string, truth, moment, any };
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
  struct Comparison {
    u32 attribute;
    Source first, second;
  };
  static constexpr u32 SELF = ~u32(0);
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
    bool is_list;
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

  bool plain(document::Documents& documents, const document::Value& value, const Source& source, Plain& out) const;
  static bool plain(const document::Value& value, Kind kind, Plain& out);
  bool apply(document::Documents& documents, char function, std::string_view& text) const;
  i64 key(u32 attribute, const Plain& value) const;
  static bool compare(const Plain& first, const Plain& second, i64& key);
  // Calls use(value), null for nothing, for what a list leads to, until it returns false. `given`: whether there is a list.
  template <class Use>
  bool walk(const document::Documents& documents, u32 way, const document::Value* object, bool& given, Use& use) const;
  template <class Use>
  bool go_on(const document::Documents& documents, const Next& next, const document::Value& value, Use& use) const;
  bool element(const Plain& value, Brought& out, u32 set) const;

  u32 attributes_;
  document::Paths paths_;
  std::vector<std::vector<KeyReader>> readers_;  // by place
  std::vector<Comparison> comparisons_;
  std::vector<i64> without_;  // the keys of an event that has nothing
  std::vector<std::vector<u32>> others_;
  std::vector<Way> ways_;
  std::unordered_map<u32, Detail> details_;  // by attribute
  std::vector<Set> sets_;
  std::vector<std::string> set_names_;
  std::vector<std::unique_ptr<Labels>> labels_;  // by attribute
  nb::object fold_, epoch_, plain_epoch_;
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
