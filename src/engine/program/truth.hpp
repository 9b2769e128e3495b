// SQL's three truths. A set of them is what a condition may come to.
#pragma once

#include "base/common.hpp"

namespace hitbox {

using Truth = u8;
constexpr Truth IS_TRUE = 1, IS_FALSE = 2, IS_UNKNOWN = 4;
constexpr Truth OUT_OF_STEPS = 8;  // none of them: finding out takes more work than is allowed

}  // namespace hitbox
