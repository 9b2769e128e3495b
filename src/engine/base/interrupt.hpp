// Interrupting long calls: they report their work, and a callback is polled about every 0.2 ms of it.
//
// The callback cancels the call by throwing, so every resource of a call must have an owner that frees it.
#pragma once

#include "base/common.hpp"

namespace hitbox {

struct InterruptCheck {
  void (*poll)(InterruptCheck&) = nullptr;  // null: the call cannot be cancelled
  size_t work = 0;                          // since the last poll
};

constexpr size_t POLL_INTERVAL = 1 << 14;

// One unit is about ten nanoseconds of work, for example one box built or one tile visited by one event.
static inline void report_work(InterruptCheck& interrupt, size_t units) {
  interrupt.work += units;
  if (interrupt.work < POLL_INTERVAL) return;
  interrupt.work = 0;
  if (interrupt.poll) interrupt.poll(interrupt);
}

}  // namespace hitbox
