// What an event holds beyond its keys: the elements of its lists, its texts, and the time at which it is matched. Programs
// ask for it in a second look, because most candidates are decided without.
#pragma once

#include <string_view>
#include <vector>

#include "base/common.hpp"

namespace hitbox {

struct Details {
  enum class Given : u8 { NO, NOTHING, YES };  // NOTHING: it is null
  // The keys of the elements of a list, MISSING for null.
  struct Elements {
    Given given = Given::NO;
    const i64* keys = nullptr;
    size_t count = 0;
  };
  struct Text {
    Given given = Given::NO;
    std::string_view bytes;  // in UTF-8
  };
  i64 now = MISSING;  // as a key of a timestamp

  virtual ~Details() = default;
  // By the number of a derived attribute.
  virtual Elements list(u32 attribute) const = 0;
  virtual Text text(u32 attribute) const = 0;
};

// Lists and texts that have all been made before.
struct GivenDetails final : Details {
  std::vector<Elements> lists;
  std::vector<Text> texts;

  Elements list(u32 attribute) const override { return attribute < lists.size() ? lists[attribute] : Elements{}; }
  Text text(u32 attribute) const override { return attribute < texts.size() ? texts[attribute] : Text{}; }
};

}  // namespace hitbox
