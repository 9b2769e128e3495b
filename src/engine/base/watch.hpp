// Long calls say how much they have done; now and then somebody is asked whether they shall stop.
//
// Whoever is asked stops a call by throwing, so everything that a call holds has an owner that frees it.
#pragma once

#include "base/common.hpp"

namespace hitbox {

struct Watch {
  void (*ask)(Watch&) = nullptr;  // null: nobody stops the call
  size_t done = 0;                // since it was asked
};

constexpr size_t ASK_EVERY = 1 << 14;

// A unit is some ten nanoseconds of work: a box built, or a tile visited by an event.
static inline void note_work(Watch& watch, size_t units) {
  watch.done += units;
  if (watch.done < ASK_EVERY) return;
  watch.done = 0;
  if (watch.ask) watch.ask(watch);
}

}  // namespace hitbox
