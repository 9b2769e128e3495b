// What subscriptions ask of events: paths to fields. A reader keeps what they lead to, and passes over all else.
//
//   order.city, tags, items[].sku      event -- order -- order.city     event -- tags     event -- items     element -- sku
//
// Places below an object have dotted names, and an event may write them so, too: {"order.city": ..}. So there is an edge
// from a place to every place below it, whose name is the way between them. The elements of a list are a scope of their
// own, and so is the event.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/common.hpp"
#include "text/text_table.hpp"

namespace hitbox::document {

constexpr u32 NOWHERE_ASKED = ~u32(0);

class Paths {
 public:
  static constexpr u32 EVENT = 0;  // the place of the event itself

  explicit Paths(text::Seed seed) : seed_(seed), places_(1), edges_(16) {}

  size_t size() const { return places_.size(); }
  // Whether a place is a field of the event, and not of an element of a list.
  bool is_of_event(u32 place) const { return places_[place].scope == EVENT; }
  bool has_fields(u32 place) const { return places_[place].has_fields; }
  // The scope of the elements of the list at a place, if they are asked for.
  u32 element_of(u32 place) const { return places_[place].element; }

  // The place of a field of an object; NOWHERE_ASKED if nobody asks for it.
  u32 field(u32 place, std::string_view name) const {
    const u64 hash = hash_of(place, name);
    for (size_t at = hash & (edges_.size() - 1);; at = (at + 1) & (edges_.size() - 1)) {
      const Edge& edge = edges_[at];
      if (edge.to == NOWHERE_ASKED) return NOWHERE_ASKED;
      if (edge.hash == hash && edge.from == place && name_of(edge) == name) return edge.to;
    }
  }

  // The place with a dotted path in a scope, which no part of it may be empty of. It is made if need be.
  u32 add(u32 scope, std::string_view path) {
    std::vector<std::pair<size_t, u32>> above{{0, scope}};  // where the rest of the path begins, and the place so far
    for (size_t from = 0;;) {
      const size_t dot = path.find('.', from), end = dot == std::string_view::npos ? path.size() : dot;
      if (end == from) throw std::invalid_argument("a part of a path is empty");
      const auto [known, fresh] = named_.try_emplace({scope, std::string(path.substr(0, end))}, u32(places_.size()));
      const u32 place = known->second;
      if (fresh) {
        places_.push_back({scope, NOWHERE_ASKED, false});
        for (auto [begin, ancestor] : above) add_edge(ancestor, path.substr(begin, end - begin), place);
      }
      if (end == path.size()) return place;
      above.push_back({end + 1, place});
      from = end + 1;
    }
  }

  // What a place is called: "" is the event, "items[]" an element of items, "items[].size" a field of it.
  std::string name_of(u32 place) const {
    const u32 scope = places_[place].scope;
    std::string name;
    if (scope != EVENT)
      for (u32 list = 0; list < places_.size(); ++list)
        if (places_[list].element == scope && list != scope) name = name_of(list) + "[]";
    for (const auto& [known, to] : named_)
      if (to == place) name += (name.empty() ? "" : ".") + known.second;
    return name;
  }

  // The scope of the elements of the list at a place.
  u32 add_elements(u32 place) {
    if (places_[place].element == NOWHERE_ASKED) {
      const u32 scope = u32(places_.size());
      places_.push_back({scope, scope, false});  // a list in the list has the same elements
      places_[place].element = scope;
    }
    return places_[place].element;
  }

 private:
  struct Place {
    u32 scope = EVENT, element = NOWHERE_ASKED;
    bool has_fields = false;
  };
  struct Edge {
    u64 hash = 0;
    u32 from = 0, to = NOWHERE_ASKED;
    size_t name = 0;  // where it begins in `names_`
    u32 size = 0;
  };

  u64 hash_of(u32 place, std::string_view name) const {
    return text::mix(text::hash_of(name, seed_) ^ place, seed_.second | 1);
  }
  std::string_view name_of(const Edge& edge) const { return {names_.data() + edge.name, edge.size}; }

  void add_edge(u32 from, std::string_view name, u32 to) {
    places_[from].has_fields = true;
    if (2 * ++count_ > edges_.size()) {
      std::vector<Edge> old(2 * edges_.size());
      old.swap(edges_);
      for (const Edge& edge : old)
        if (edge.to != NOWHERE_ASKED) put(edge);
    }
    put({hash_of(from, name), from, to, names_.size(), u32(name.size())});
    names_.append(name);
  }
  void put(const Edge& edge) {
    size_t at = edge.hash & (edges_.size() - 1);
    while (edges_[at].to != NOWHERE_ASKED) at = (at + 1) & (edges_.size() - 1);
    edges_[at] = edge;
  }

  text::Seed seed_;
  std::vector<Place> places_;
  std::map<std::pair<u32, std::string>, u32> named_;  // by scope and path
  std::vector<Edge> edges_;                           // open addressing
  std::string names_;
  size_t count_ = 0;
};

}  // namespace hitbox::document
