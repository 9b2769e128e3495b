// NumPy arrays that own memory of allocate().
#pragma once

#include <initializer_list>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "base/common.hpp"

namespace hitbox {

// The memory belongs to the array from now on, also where this throws.
template <class T>
nanobind::object numpy_array(T* memory, std::initializer_list<size_t> shape) {
  nanobind::capsule owner(memory, [](void* at) noexcept { free_memory(at); });
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(memory, shape, owner));
}

}  // namespace hitbox
