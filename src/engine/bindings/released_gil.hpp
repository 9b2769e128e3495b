// Python's lock, given back while native code works.
#pragma once

#include <unistd.h>

#include <nanobind/nanobind.h>

namespace hitbox {

// Like nb::gil_scoped_release, but safe when the interpreter ends meanwhile. CPython before 3.14 ends a daemon thread
// that asks for the lock then by unwinding its stack, which no destructor may let through: the process would abort. Such
// a thread is parked here instead, as newer versions do.
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
