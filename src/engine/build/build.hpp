// Building sealed segments from boxes: arrays that own their memory, and the builders.
#pragma once

#include <memory>
#include <vector>

#include "format/bitmap.hpp"
#include "base/common.hpp"
#include "format/postings.hpp"
#include "base/interrupt.hpp"
#include "base/prefetch.hpp"

namespace hitbox {

// Boxes as they come in: constraint rows by offsets, attributes ascending within a box.
struct Boxes {
  size_t count;
  const i64* offsets;
  const int* attribute;
  const i64* low;
  const i64* high;
  const u8* priority;
  const i64* numbers;

  u32 size(size_t box) const { return u32(offsets[box + 1] - offsets[box]); }
};

// The one of [from, to) that is sampled as the i-th: not the first of each, for boxes often come in turns, and a period
// with a factor in common with a fixed step would leave whole groups of them out.
inline size_t stratified_sample(size_t i, size_t from, size_t to) {
  return to > from ? from + size_t(u64(i) * 0x9E3779B97F4A7C15ull >> 33) % (to - from) : from;
}

// Memory on a cache line's boundary, or a large page's where there is much of it.
inline void* aligned_memory(size_t bytes) {
  size_t unit = bytes >= (size_t(4) << 20) ? size_t(2) << 20 : 64;
  size_t rounded = (bytes + unit) / unit * unit;
  void* memory = std::aligned_alloc(unit, rounded);
  if (!memory) throw std::bad_alloc();
  if (unit > 64) prefer_large_pages(memory, rounded);
  return memory;
}

// A flat array that can be handed over to its last owner.
template <class T>
struct Array {
  std::unique_ptr<T, decltype(&std::free)> memory{nullptr, &std::free};
  size_t size = 0;

  void allocate(size_t count) {
    size = count;
    memory.reset(static_cast<T*>(aligned_memory(count * sizeof(T))));
  }
  void allocate(size_t count, T value) {
    allocate(count);
    for (size_t i = 0; i < count; ++i) memory.get()[i] = value;
  }
  T* data() { return memory.get(); }
  T& operator[](size_t at) { return memory.get()[at]; }
};

struct BitmapOptions {
  u32 attributes;
  u32 block;  // boxes a block, at most BLOCK
  u32 lines;  // constraints a block, over the blocks of a tile, from which an attribute gets lines
  u32 band;   // boxes from which priority levels, one or several together, have blocks of their own
};

// Where each key falls: cell boundaries of every attribute, fitted to the boxes.
struct Grid {
  Array<i64> starts;
  Array<u8> shift;
  bool lossy = false;  // some end's code leaves bits out

  i64 last(size_t at) const;  // last key of the cell (attribute * CELLS + cell)
};

struct BitmapArrays {
  Grid grid;
  Array<u32> bands, population, edges;
  Array<u8> tile_level, narrowest, numbers;
  Array<u64> summary, bare, lines, alive;
  Array<u32> directory;
  Array<u16> level_ends, order, entries;
  Array<u8> rows, more;
  Array<u32> position;  // position[i]: where box i of the input went
  u32 blocks = 0, members = 0, summary_words = 0, room = 0, keyed = 0, row_bytes = 0, number_bytes = 0;
};

struct PostingArrays {
  Array<u64> seed, slots, filter, words, alive;
  Array<u32> key_begin, key_start, start, numbers, position;
  Array<i64> key_value, code_base, code_last;
  Array<u8> code_shift, levels;
};

// A constraint's cells, small enough that a box's are one cache line.
struct Cells {
  u16 attribute;
  u8 low, high;
};

Grid make_grid(const Boxes& boxes, u32 attributes, InterruptCheck& interrupt);
std::vector<Cells> find_cells(const Boxes& boxes, Grid& grid, InterruptCheck& interrupt);
// Orders boxes so that neighbours look alike; each run [from, to) of `order` starts on a block.
void cluster(const Boxes& boxes, const std::vector<Cells>& cells, const Grid& grid, u32 attributes, u32 block,
             u32* order, size_t count, InterruptCheck& interrupt);
// Builders throw length_error where a segment would not hold the boxes.
BitmapArrays build_bitmap(const Boxes& boxes, const BitmapOptions& options, InterruptCheck& interrupt);
PostingArrays build_postings(const Boxes& boxes, const std::vector<i64>& key, u32 attributes, Seed seed, InterruptCheck& interrupt);

// For each box the constraint (its index in the box) that tells it apart, -1: no constraint can, -2: bitmap.
std::vector<i64> choose_keys(const Boxes& boxes, u32 attributes, bool only_postings, Seed seed, InterruptCheck& interrupt);

}  // namespace hitbox
