// The values of events that subscriptions ask for, in the order in which they stand there.
//
//   {"order": {"city": "Paris", "note": ".."}, "tags": ["a", 1]}        OBJECT order | TEXT order.city | LIST tags, 2 | TEXT | WHOLE
//
// `end` leads behind a value with all that is in it. Texts are views: whoever reads an event keeps it.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/common.hpp"
#include "document/paths.hpp"

namespace hitbox::document {

enum class Type : u8 { NOTHING, FALSE, TRUE, WHOLE, REAL, MOMENT, TEXT, LIST, OBJECT };

struct Value {
  Type type;
  u32 place;  // of a field; else NOWHERE_ASKED
  u32 end;    // where the next value begins
  u32 size;   // bytes of a text, elements of a list
  union {
    i64 whole;  // or a moment, in microseconds
    double real;
    const char* bytes;
  };

  std::string_view text() const { return {bytes, size}; }
};

// Memory that lies still until all of it is given back.
class Arena {
 public:
  char* take(size_t bytes) {
    if (chunks_.empty() || used_ + bytes > room_) {
      room_ = bytes > CHUNK ? bytes : CHUNK;
      chunks_.push_back(std::make_unique<char[]>(room_));
      used_ = 0;
    }
    char* at = chunks_.back().get() + used_;
    used_ += bytes;
    return at;
  }
  std::string_view copy(std::string_view text) {
    char* at = take(text.size());
    if (!text.empty()) std::memcpy(at, text.data(), text.size());
    return {at, text.size()};
  }
  void clear() {
    if (chunks_.size() > 1 || room_ > CHUNK) chunks_.clear();
    used_ = 0;
    if (chunks_.empty()) room_ = 0;
  }

 private:
  static constexpr size_t CHUNK = 4096;
  std::vector<std::unique_ptr<char[]>> chunks_;
  size_t used_ = 0, room_ = 0;
};

// Says whether a field that nobody asks for may stand in an object.
struct Strangers {
  virtual ~Strangers() = default;
  // An event begins.
  virtual void begin() = 0;
  virtual bool allows(u32 place, std::string_view name) = 0;
};

// The values of many events, one after the other.
class Documents {
 public:
  explicit Documents(size_t places) : found_(places, 0) {}

  size_t events() const { return ends_.size() - 1; }
  size_t capacity() const { return values_.capacity(); }
  void clear() {
    forget();
    values_.clear();
    fields_.clear();
    ends_.assign(1, 0);
    starts_.assign(1, 0);
    texts.clear();
  }

  // ---- while an event is read

  void begin() {
    forget();
    strange = false;
  }
  // The event has been read: `field` finds its fields until the next one begins.
  void finish() {
    ends_.push_back(fields_.size());
    starts_.push_back(values_.size());
  }
  // The event that was begun has no fields: it has to be read in another way.
  void finish_empty() {
    forget();
    values_.resize(starts_.back());
    fields_.resize(ends_.back());
    finish();
  }
  // Adds a value, which ends where it begins until it is closed.
  size_t add(Type type, u32 place, u32 size = 0) {
    values_.push_back({type, place, u32(values_.size() + 1), size, {0}});
    return values_.size() - 1;
  }
  Value& operator[](size_t at) { return values_[at]; }
  void close(size_t at) { values_[at].end = u32(values_.size()); }
  // The next value is this field of the event. False if the event has it already.
  bool note(u32 place) {
    if (found_[place]) return false;
    fields_.push_back({place, u32(values_.size())});
    show(fields_.back());
    return true;
  }
  // Whether a field of an object that is not complete has been given before.
  bool has(size_t object, u32 place) const {
    for (size_t at = object + 1; at < values_.size(); at = values_[at].end)
      if (values_[at].place == place) return true;
    return false;
  }

  // ---- afterwards

  // Makes the fields of an event those that `field` finds.
  void show(size_t event) {
    forget();
    for (size_t at = ends_[event]; at < ends_[event + 1]; ++at) show(fields_[at]);
  }
  // A field of the event that is shown; null if it has none there.
  const Value* field(u32 place) const { return found_[place] ? &values_[found_[place] - 1] : nullptr; }
  // Calls use(place, value) for the fields of the event that is shown, until it returns false.
  template <class Use>
  bool each_field(Use use) const {
    for (u32 place : shown_)
      if (!use(place, values_[found_[place] - 1])) return false;
    return true;
  }
  // Calls use(value) for the fields of an object, and of the objects in it, until it returns false.
  template <class Use>
  bool each_field_of(const Value& object, Use use) const {
    for (size_t at = index_of(object) + 1; at < object.end;
         at = values_[at].type == Type::OBJECT ? at + 1 : values_[at].end)
      if (!use(values_[at])) return false;
    return true;
  }
  // A field of an object that is an element of a list; `twice` if it is given in two ways.
  const Value* field_of(const Value& object, u32 place, bool& twice) const {
    const Value* found = nullptr;
    each_field_of(object, [&](const Value& value) {
      if (value.place != place) return true;
      twice |= found != nullptr;
      found = &value;
      return true;
    });
    return found;
  }
  // Calls use(element) for what is in a list itself, also for lists, until it returns false.
  template <class Use>
  bool each_direct(const Value& list, Use use) const {
    for (size_t at = index_of(list) + 1; at < list.end; at = values_[at].end)
      if (!use(values_[at])) return false;
    return true;
  }
  // Calls use(element) for the elements of a list and of the lists in it, until it returns false.
  template <class Use>
  bool each_element(const Value& list, Use use) const {
    for (size_t at = index_of(list) + 1; at < list.end;) {
      const Value& value = values_[at];
      if (value.type != Type::LIST && !use(value)) return false;
      at = value.type == Type::LIST ? at + 1 : value.end;
    }
    return true;
  }

  // Whether a field of an object comes for the first time since `next_object`.
  void next_object() { ++object_; }
  bool is_first(u32 place) {
    if (last_.size() <= place) last_.resize(found_.size());
    return std::exchange(last_[place], object_) != object_;
  }

  Arena texts;           // those that stand nowhere as they are
  bool strange = false;  // the event that was read last has fields that are not asked for

 private:
  struct Field {
    u32 place, value;
  };

  size_t index_of(const Value& value) const { return size_t(&value - values_.data()); }
  void show(Field field) {
    found_[field.place] = field.value + 1;
    shown_.push_back(field.place);
  }
  void forget() {
    for (u32 place : shown_) found_[place] = 0;
    shown_.clear();
  }

  std::vector<Value> values_;
  std::vector<Field> fields_;                // of the events, one after the other
  std::vector<size_t> ends_{0}, starts_{0};  // by event: of its fields, and of its values
  std::vector<u32> found_;                   // by place: 1 + where its value is, in the event that is shown
  std::vector<u32> shown_;                   // the places of that event
  std::vector<u64> last_;                    // by place: the object that had it last
  u64 object_ = 0;
};

// What the readers of events have in common.
class Reading {
 protected:
  static constexpr u32 MOST_NESTED = 150;  // hitbox.encoding.inputs.MAX_DEPTH is a little more

  // `strangers` is asked about fields that nobody asks for, unless it is null.
  Reading(const Paths& paths, Documents& out, Strangers* strangers) : paths_(paths), out_(out), strangers_(strangers) {}

  // Makes what read() adds the last document; where it returns false, that is empty.
  template <class Read>
  bool document(Read read) {
    out_.begin();
    if (strangers_) strangers_->begin();
    const bool good = read();
    if (good) out_.finish();
    else out_.finish_empty();
    return good;
  }
  // Whether a field that nobody asks for may stand in the object at a place.
  bool allows(u32 place, std::string_view name) {
    out_.strange |= paths_.is_of_event(place);
    return !strangers_ || strangers_->allows(place, name);
  }

  const Paths& paths_;
  Documents& out_;

 private:
  Strangers* strangers_;
};

}  // namespace hitbox::document
