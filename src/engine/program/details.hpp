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
  std::vector<Elements> lists;  // by the number of a derived attribute
  std::vector<Text> texts;
  i64 now = MISSING;  // as a key of a timestamp

  Elements list(u32 attribute) const { return attribute < lists.size() ? lists[attribute] : Elements{}; }
  Text text(u32 attribute) const { return attribute < texts.size() ? texts[attribute] : Text{}; }
};

}  // namespace hitbox
