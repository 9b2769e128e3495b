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
constexpr i64 EXACT = i64(1) << 53;  // whole numbers up to here are exact as doubles
constexpr u32 LEVELS = 10;
constexpr u32 MAX_ATTRIBUTES = 1024;

// A row-major (count, attributes) matrix of keys. The pointers `high` and `low` are equal if all events are points.
struct Events {
  const i64* low;
  const i64* high;
  u32 attributes;
};

// Box numbers of the matches of one event after another, and priority levels of the last event's.
struct Result {
  i32* numbers = nullptr;
  u8* levels = nullptr;  // of the match at `begin` and those after it
  size_t size = 0;
  size_t capacity = 0;
  size_t begin = 0;       // of the last event's matches
  bool ordered = true;    // its levels have been added in descending order
  bool counting = false;  // only the number of matches is wanted
  size_t counted = 0;     // matches of the last event that were counted and not stored
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

// Makes room for so many matches in all. Pages that are never written cost nothing.
static inline void set_capacity(Result& out, size_t capacity) {
  if (capacity <= out.capacity) return;
  out.capacity = capacity;
  reallocate(out.numbers, capacity);
  reallocate(out.levels, capacity - out.begin);
}

// Makes room for `extra` more matches of an event. `growth` is the expected number of its matches as a multiple of the
// present one.
static inline void reserve(Result& out, size_t extra, double growth = 4) {
  if (out.size + extra <= out.capacity) return;
  const double own = double(out.size - out.begin + extra) * (growth < 2 ? 2 : growth * 1.25);
  set_capacity(out, out.begin + out.begin / 4 + size_t(own));
}

// Appends space for matches of one level, for which there must be room, and returns it.
static inline i32* append_space(Result& out, size_t size, u8 level) {
  assert(out.size + size <= out.capacity && level < LEVELS);
  u8* levels = out.levels + (out.size - out.begin);
  out.ordered &= out.size == out.begin || levels[-1] >= level;
  std::memset(levels, level, size);
  out.size += size;
  return out.numbers + out.size - size;
}

static inline void add(Result& out, u32 number, u8 level) {
  reserve(out, 1);
  out.ordered &= out.size == out.begin || out.levels[out.size - out.begin - 1] >= level;
  out.levels[out.size - out.begin] = level;
  out.numbers[out.size++] = i32(number);
}

static inline void trim(Result& out) {
  if (out.numbers) out.numbers = static_cast<i32*>(trim_memory(out.numbers, out.size * sizeof(i32)));
  if (out.levels) out.levels = static_cast<u8*>(trim_memory(out.levels, out.size - out.begin));
}

static inline void release(Result& out) {
  free_memory(out.numbers);
  free_memory(out.levels);
  out = Result{};
}

static inline bool bit(const u64* bits, size_t at) { return bits[at >> 6] >> (at & 63) & 1; }

}  // namespace hitbox
