// NumPy arrays that own native memory: the one way in which results go to Python.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "build/build.hpp"

namespace hitbox {

// Memory of allocate(). It belongs to the array from now on, also where this throws.
template <class T>
nanobind::object numpy_array(T* memory, std::initializer_list<size_t> shape) {
  nanobind::capsule owner(memory, [](void* at) noexcept { free_memory(at); });
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(memory, shape, owner));
}

// What a builder made.
template <class T>
nanobind::object numpy_array(Array<T>& array) {
  if (!array.memory) array.allocate(0);
  nanobind::capsule owner(array.data(), [](void* at) noexcept { std::free(at); });
  T* data = array.memory.release();
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(data, {array.size}, owner));
}

template <class T>
nanobind::object numpy_array(std::vector<T> values) {
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  nanobind::capsule owner(kept.get(), [](void* at) noexcept { delete static_cast<std::vector<T>*>(at); });
  std::vector<T>& held = *kept.release();
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(held.data(), {held.size()}, owner));
}

}  // namespace hitbox
