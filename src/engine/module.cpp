// hitbox._kernels: the native engine's door to Python.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_kernels, m) { m.doc() = "hitbox native kernels"; }
