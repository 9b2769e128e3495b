// Builders of sealed segments: their input (Boxes), their output (arrays that own their memory) and the functions.
#pragma once

#include <memory>
#include <vector>

#include "base/common.hpp"
#include "base/interrupt.hpp"
#include "base/prefetch.hpp"
#include "format/bitmap.hpp"
#include "format/dense.hpp"
#include "format/postings.hpp"

namespace hitbox {

// Input boxes in columns. Constraints of box i are [offsets[i], offsets[i + 1]), attributes ascending.
struct Boxes {
  size_t count;
  const i64* offsets;
  const int* attribute;
  const i64* low;
  const i64* high;
  const u8* priority;
  const i64* numbers;  // null: the builder numbers the boxes of a segment from 0, in its own order

  u32 size(size_t box) const { return u32(offsets[box + 1] - offsets[box]); }
};

// What builders rely on; asserted in debug builds.
inline bool is_valid(const Boxes& boxes, u32 attributes) {
  for (size_t box = 0; box < boxes.count; ++box) {
    if (boxes.offsets[box] > boxes.offsets[box + 1] || boxes.priority[box] >= LEVELS ||
        (boxes.numbers && boxes.numbers[box] < 0))
      return false;
    for (i64 at = boxes.offsets[box], next = 0; at < boxes.offsets[box + 1]; ++at) {
      if (boxes.attribute[at] < next || boxes.attribute[at] >= i64(attributes) || boxes.low[at] > boxes.high[at])
        return false;
      next = boxes.attribute[at] + 1;
    }
  }
  return attributes >= 1 && attributes <= MAX_ATTRIBUTES;
}

// A pseudo-random index in [from, to), the i-th stratum of a stratified sample. A fixed step would miss whole groups of
// boxes if the input repeats with a period that shares a factor with the step.
inline size_t stratified_sample(size_t i, size_t from, size_t to) {
  return to > from ? from + size_t(u64(i) * 0x9E3779B97F4A7C15ull >> 33) % (to - from) : from;
}

// Memory aligned to a cache line, or to a huge page if it is large.
inline void* aligned_memory(size_t bytes) {
  size_t unit = bytes >= (size_t(4) << 20) ? size_t(2) << 20 : 64;
  size_t rounded = (bytes + unit) / unit * unit;
  void* memory = std::aligned_alloc(unit, rounded);
  if (!memory) throw std::bad_alloc();
  if (unit > 64) prefer_large_pages(memory, rounded);
  return memory;
}

// A flat array whose memory can be handed over to Python.
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
  const T* data() const { return memory.get(); }
  T& operator[](size_t at) {
    assert(at < size);
    return memory.get()[at];
  }
  const T& operator[](size_t at) const {
    assert(at < size);
    return memory.get()[at];
  }
};

struct BitmapOptions {
  u32 attributes;
  u32 block;  // boxes per block, at most BLOCK
  u32 lines;  // an attribute gets lines in a tile from this many constraints per block on average
  u32 band;   // one or several levels get blocks of their own from this many boxes on
  bool compact = false;
};

// The cell boundaries of every attribute, fitted to the boxes.
struct Grid {
  Array<i64> starts;
  Array<u8> shift;
  bool lossy = false;  // some bound's code loses bits

  i64 last(size_t at) const;  // last key of the cell (attribute * CELLS + cell)
};

// What a builder returns: the arrays of a segment, named as in its view (segment_view.hpp), and where each box went.
struct BitmapArrays : BitmapSizes {
  Array<i64> starts;
  Array<u8> shift;
  Array<u32> bands, population, edges;
  Array<u8> tile_level, narrowest, numbers;
  Array<u64> summary, bare, lines, alive;
  Array<u32> directory;
  Array<u16> level_ends, order, entries;
  Array<u8> rows, more;
  Array<u32> position;  // position[i]: where box i of the input went

  BitmapArrays() : BitmapSizes{} {}
};

struct DenseArrays : DenseSizes {
  Array<u32> level_ends, line_at, list_begin;
  Array<i64> starts;
  Array<u8> shift, edges;
  Array<u16> list_at, part_starts, entries;
  Array<u64> lines, alive;
  Array<u8> numbers, rows, more;
  Array<u32> position;

  DenseArrays() : DenseSizes{} {}
};

struct RowArrays {
  Array<u64> words, alive;
  Array<u32> start, numbers;
  Array<u8> levels;
};

struct PostingArrays {
  Seed seed{};
  RowArrays rows;
  Array<u64> slots, filter;
  Array<u32> key_begin, key_start;
  Array<i64> key_value, code_base, code_last;
  Array<u8> code_shift;
  Array<u32> position;
};

// The cells of a constraint's bounds; small, so that those of a box fit into one cache line.
struct Cells {
  u16 attribute;
  u8 low, high;
};

Grid make_grid(const Boxes& boxes, u32 attributes, bool compact, InterruptCheck& interrupt);
std::vector<Cells> find_cells(const Boxes& boxes, Grid& grid, InterruptCheck& interrupt);
// Permutes `order` so that similar boxes are neighbours.
void cluster(const Boxes& boxes, const std::vector<Cells>& cells, const Grid& grid, u32 attributes, u32 block,
             u32* order, size_t count, InterruptCheck& interrupt);
// Builders throw std::length_error if the boxes do not fit into one segment.
BitmapArrays build_bitmap(const Boxes& boxes, const BitmapOptions& options, InterruptCheck& interrupt);
DenseArrays build_dense(const Boxes& boxes, const BitmapOptions& options, InterruptCheck& interrupt);
// Whether so many boxes will match an event that a dense segment is faster than a bitmap segment.
bool prefers_dense(const Boxes& boxes, u32 attributes, InterruptCheck& interrupt);
PostingArrays build_postings(const Boxes& boxes, const std::vector<i64>& key, u32 attributes, Seed seed,
                             InterruptCheck& interrupt);

// Chooses for each box the index of the constraint that is its posting key; -1: no key, always a candidate; -2: the box
// belongs into a bitmap segment.
std::vector<i64> choose_keys(const Boxes& boxes, u32 attributes, bool only_postings, Seed seed,
                             InterruptCheck& interrupt);

}  // namespace hitbox
