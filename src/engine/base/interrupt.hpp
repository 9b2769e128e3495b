// Long calls say how much they have done; now and then somebody is asked whether they shall stop.
//
// Whoever is asked stops a call by throwing, so everything that a call holds has an owner that frees it.
#pragma once

#include "base/common.hpp"

namespace hitbox {

struct InterruptCheck {
  void (*poll)(InterruptCheck&) = nullptr;  // null: nobody stops the call
  size_t work = 0;                // since it was asked
};

constexpr size_t POLL_INTERVAL = 1 << 14;

// A unit is some ten nanoseconds of work: a box built, or a tile visited by an event.
static inline void report_work(InterruptCheck& interrupt, size_t units) {
  interrupt.work += units;
  if (interrupt.work < POLL_INTERVAL) return;
  interrupt.work = 0;
  if (interrupt.poll) interrupt.poll(interrupt);
}

}  // namespace hitbox
