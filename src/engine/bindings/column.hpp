// One attribute: from a plain value to its key, as its codec in encoding/codecs.py makes it.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/common.hpp"
#include "bindings/labels.hpp"

namespace hitbox {

namespace nb = nanobind;

// A value as a condition sees it. OTHER: all that is known is that it is there.
struct Plain {
  enum class Kind : u8 { NOTHING, WHOLE, REAL, TRUTH, MOMENT, TEXT, OTHER };
  Kind kind = Kind::NOTHING;
  i64 whole = 0;  // or a moment, in microseconds, or 0 and 1
  double real = 0;
  std::string_view text;

  static Plain of_whole(i64 value) { return {Kind::WHOLE, value, 0, {}}; }
  static Plain of_real(double value) { return {value == value ? Kind::REAL : Kind::NOTHING, 0, value, {}}; }
  static Plain of_truth(bool value) { return {Kind::TRUTH, value, 0, {}}; }
  static Plain of_moment(i64 value) { return {Kind::MOMENT, value, 0, {}}; }
  static Plain of_text(std::string_view value) { return {Kind::TEXT, 0, 0, value}; }

  bool is_number() const { return kind == Kind::WHOLE || kind == Kind::REAL; }
};

// The sortable bits of a double, as codecs.float_key says; -0.0 is 0.0.
inline i64 float_key(double value) {
  i64 bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits >= 0 ? bits : MISSING - bits;
}

class Column {
 public:
  enum class Type : u8 { other, whole, real, number, truth, moment, text, any, whole_grid, real_grid, list };

  Type type = Type::other;
  Type element = Type::other;  // of a list

  Column() = default;
  // What `Codec.native` says.
  explicit Column(nb::handle native) {
    const std::string name = nb::cast<std::string>(native[0]);
    type = type_of(name);
    if (type == Type::list) element = type_of(nb::cast<std::string>(native[1]));
    if (type == Type::text)
      labels_ = std::make_shared<Labels>(nb::cast<nb::list>(native[1]), nb::cast<size_t>(native[2]));
    if (type != Type::whole_grid && type != Type::real_grid) return;
    over_ = nb::cast<i64>(native[1]);
    under_ = nb::cast<double>(native[2]);
    scale_ = nb::cast<double>(native[3]);
    below_ = nb::cast<i64>(native[4]);
    above_ = nb::cast<i64>(native[5]);
  }

  static Type type_of(const std::string& name) {
    static constexpr std::pair<const char*, Type> NAMES[] = {
        {"int", Type::whole},  {"float", Type::real},          {"number", Type::number},
        {"bool", Type::truth}, {"timestamp", Type::moment},    {"string", Type::text},
        {"any", Type::any},    {"int grid", Type::whole_grid}, {"float grid", Type::real_grid},
        {"list", Type::list}};
    for (const auto& [known, type] : NAMES)
      if (name == known) return type;
    return Type::other;
  }

  // The key of a value. False if the codec has to say. Python's lock is held.
  bool key(const Plain& value, i64& key) const {
    if (value.kind == Plain::Kind::NOTHING) {
      key = MISSING;
      return type != Type::other;
    }
    double real;
    switch (type) {
      case Type::whole: return value.kind == Plain::Kind::WHOLE && (key = value.whole, true);
      case Type::real: return exact(value, real) && (key = float_key(real), true);
      case Type::number:
        if (!value.is_number()) return false;
        key = float_key(value.kind == Plain::Kind::WHOLE ? double(value.whole) : value.real);
        return true;
      case Type::truth: return value.kind == Plain::Kind::TRUTH && (key = value.whole, true);
      case Type::moment: return value.kind == Plain::Kind::MOMENT && (key = value.whole, true);
      case Type::text: return value.kind == Plain::Kind::TEXT && (key = labels_->key(value.text), true);
      case Type::any: key = 0; return true;
      case Type::whole_grid: return value.kind == Plain::Kind::WHOLE && (key = grid(value.whole), true);
      case Type::real_grid: return exact(value, real) && grid(real, key);
      default: return false;
    }
  }

 private:
  // A number that a double equals.
  static bool exact(const Plain& value, double& real) {
    real = value.kind == Plain::Kind::WHOLE ? double(value.whole) : value.real;
    return value.kind == Plain::Kind::REAL ||
           (value.kind == Plain::Kind::WHOLE && -EXACT <= value.whole && value.whole <= EXACT);
  }

  static i64 clamp(i64 value, i64 low, i64 high) { return value < low ? low : value > high ? high : value; }

  i64 grid(i64 whole) const {
    i64 at = whole / over_, rest = whole % over_;
    if (rest < 0) at -= 1;
    at = clamp(at, below_ / 2 - 1, above_ / 2);
    return clamp(2 * at + (rest != 0), below_, above_);
  }

  bool grid(double real, i64& key) const {
    const double scaled = real * scale_;
    if (!(double(below_) <= scaled && scaled <= double(above_))) {
      key = scaled < double(below_) ? below_ : above_;
      return true;
    }
    const double at = std::nearbyint(scaled), steps = at * double(over_);
    if (std::fabs(steps) > double(EXACT)) return false;
    const double step = steps / under_;  // exact integers divided once: the double nearest to the step
    key = clamp(2 * i64(at) + (real > step) - (real < step), below_, above_);
    return true;
  }

  std::shared_ptr<Labels> labels_;        // of texts
  i64 over_ = 1, below_ = 0, above_ = 0;  // grid: step = over / under; keys outside the domain
  double scale_ = 1, under_ = 1;
};

}  // namespace hitbox
