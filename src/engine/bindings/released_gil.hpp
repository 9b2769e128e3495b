// Releases Python's GIL while native code works.
#pragma once

#include <unistd.h>

#include <nanobind/nanobind.h>

namespace hitbox {

// Like nb::gil_scoped_release, but safe if the interpreter shuts down in the meantime. CPython before 3.14 then ends a
// daemon thread that takes the GIL by unwinding its stack. An exception must not leave a destructor, or the process
// aborts; so the thread is parked here, as newer versions of CPython do.
struct ReleasedGil {
  PyThreadState* state = PyEval_SaveThread();

  ReleasedGil() = default;
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(state);
    } catch (...) {
      for (;;) pause();
    }
  }
};

}  // namespace hitbox
