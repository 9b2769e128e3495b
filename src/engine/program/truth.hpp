// SQL's three truths. A set of them is what a condition may come to.
#pragma once

#include "base/common.hpp"

namespace hitbox {

using Truth = u8;
constexpr Truth IS_TRUE = 1, IS_FALSE = 2, IS_UNKNOWN = 4;

}  // namespace hitbox
