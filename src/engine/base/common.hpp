// Words that every kernel shares: key constants, plain views of flat arrays, and the growing result.
//
// Files that are compiled once an instruction set (match.cpp) may only use what has internal linkage, so that the
// linker never picks an AVX-512 copy of an inline function for the baseline. Hence `static inline` and plain structs.
#pragma once

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

// Events: (count, attributes) keys, row by row; `high == low` where all are points.
struct Events {
  const i64* low;
  const i64* high;
  u32 attributes;
};

// The matches of one event and how urgent each is; `ordered` while they have come most urgent first.
struct Result {
  i32* numbers = nullptr;
  u8* levels = nullptr;
  size_t size = 0;
  size_t capacity = 0;
  bool ordered = true;
};

// A level window and a number of matches that is enough.
struct MatchLimits {
  u32 top = LEVELS - 1;
  u32 bottom = 0;
  size_t limit = SIZE_MAX;
};

// Memory of results and of scratch: like realloc and free, see memory.cpp.
void* resize_memory(void* memory, size_t bytes);
void* trim_memory(void* memory, size_t bytes) noexcept;  // small memory only: of large, what is not used costs nothing
void free_memory(void* memory) noexcept;

// With room for 64 bytes more, over which vectors may write anything.
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

// Large pages where there is much memory: look-ups jump all over it, and results fault in page by page.
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

// `whole` times as much as by now is likely to come. Pages that are never written cost nothing.
static inline void reserve(Result& out, size_t extra, double whole = 4) {
  if (out.size + extra <= out.capacity) return;
  out.capacity = size_t(double(out.size + extra) * (whole < 2 ? 2 : whole * 1.25));
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
