// Shared by all of the engine: integer types, key constants, events, match results and their memory.
//
// match.cpp is compiled once per instruction set. It may use only functions with internal linkage; otherwise the linker
// could pick the AVX-512 copy of an inline function for the baseline. Hence `static inline` and plain structs.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace hitbox {

using i64 = std::int64_t;
using i32 = std::int32_t;
using u64 = std::uint64_t;
using u32 = std::uint32_t;
using u16 = std::uint16_t;
using u8 = std::uint8_t;

constexpr i64 MISSING = INT64_MIN;
constexpr i64 LOWEST = INT64_MIN + 1;
constexpr i64 HIGHEST = INT64_MAX;
constexpr u32 LEVELS = 10;
constexpr u32 MAX_ATTRIBUTES = 1024;

// A row-major (count, attributes) matrix of keys. The pointers `high` and `low` are equal if all events are points.
struct Events {
  const i64* low;
  const i64* high;
  u32 attributes;
};

// Box numbers and priority levels of matches. `ordered` is true while levels have been added in descending order.
struct Result {
  i32* numbers = nullptr;
  u8* levels = nullptr;
  size_t size = 0;
  size_t capacity = 0;
  bool ordered = true;
};

// Which matches are wanted: levels from `bottom` to `top`, and at most `limit` of them.
struct MatchLimits {
  u32 top = LEVELS - 1;
  u32 bottom = 0;
  size_t limit = SIZE_MAX;
};

// Memory for results and scratch buffers. Like realloc and free; see memory.cpp.
void* resize_memory(void* memory, size_t bytes);
void* trim_memory(void* memory, size_t bytes) noexcept;  // only small blocks: unused pages of large ones cost nothing
void free_memory(void* memory) noexcept;

// Allocates 64 bytes more than asked for, which vector stores may overwrite.
template <class T>
static inline void reallocate(T*& memory, size_t count) {
  memory = static_cast<T*>(resize_memory(memory, count * sizeof(T) + 64));
}

template <class T>
static inline T* allocate(size_t count) {
  T* memory = nullptr;
  reallocate(memory, count);
  return memory;
}

// Asks for huge pages. They save TLB misses in random lookups and page faults in large results.
static inline void prefer_large_pages(void* memory, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t page = std::uintptr_t(2) << 20;
  std::uintptr_t from = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
  std::uintptr_t to = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / page * page;
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

// Makes room for `extra` more matches. `growth` is the expected final size as a multiple of the current one; pages that
// are never written cost nothing.
static inline void reserve(Result& out, size_t extra, double growth = 4) {
  if (out.size + extra <= out.capacity) return;
  out.capacity = size_t(double(out.size + extra) * (growth < 2 ? 2 : growth * 1.25));
  reallocate(out.numbers, out.capacity);
  reallocate(out.levels, out.capacity);
}

static inline void add(Result& out, u32 number, u8 level) {
  reserve(out, 1);
  out.ordered &= !out.size || out.levels[out.size - 1] >= level;
  out.numbers[out.size] = i32(number);
  out.levels[out.size++] = level;
}

static inline void trim(Result& out) {
  if (out.numbers) out.numbers = static_cast<i32*>(trim_memory(out.numbers, out.size * sizeof(i32)));
  if (out.levels) out.levels = static_cast<u8*>(trim_memory(out.levels, out.size));
}

static inline void release(Result& out) {
  free_memory(out.numbers);
  free_memory(out.levels);
  out = Result{};
}

static inline bool bit(const u64* bits, size_t at) { return bits[at >> 6] >> (at & 63) & 1; }

}  // namespace hitbox
