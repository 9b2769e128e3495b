// A sealed segment of blocks: cell bitmaps decide the inside of a box, edge lists decide its ends.
//
// Each attribute's key line is cut into 64 cells; cell 0 is {MISSING}. Boxes are ordered so that neighbours look alike
// and cut into blocks of at most 496, each of one priority level, most urgent blocks first.
//
//   line  (block, attribute, cell)   496 bits: the boxes of the block that reach into the cell;
//                                    16 bits: where its list begins (10) and how long it is (6, 63: see the next line)
//   list  (block, attribute, cell)   the box ends that lie in the cell, 32 bits each:
//                                    | cell 6 | code in the cell 16 | upper end 1 | position in block 9 |
//
// A point in a cell: the line says who reaches into the cell; who reaches in and is not cut off by an end in that very
// cell holds the point. So AND the lines, clear who fails in the lists, and what remains is exact: no row is read.
// An attribute that few boxes of a block constrain has no lines there (group 0: all ones), only one list.
// A code is (key - start of cell) >> shift; where that loses bits (`lossy`), equal codes are settled by `exact`.
//
//   summary (attribute, cell)        one bit a block: the line is not empty
//   mask    (block, position)        where boxes constrain few attributes: which, so that few lists are read
//   bytes a box: 8.3 an attribute for lines, 8 a constraint for lists (24 where lossy), 4 for its number
#pragma once

#include "common.hpp"

namespace hitbox {

constexpr u32 CELLS = 64;
constexpr u32 STRIDE = 512;  // bits of a line, positions of a block
constexpr u32 BLOCK = 496;   // of which so many can be boxes
constexpr u32 WORDS = STRIDE / 64;
constexpr u32 LONG_LIST = 63;
constexpr u32 UPPER = 1u << 9;

struct Directory {
  u32 group;  // lines at group * CELLS; 0 where the block keeps only a list
  u32 base;   // first list entry; the next attribute's (or block's) base ends it
};

struct Bitmap {
  u32 attributes;
  u32 blocks;
  u32 summary_words;         // a summary row
  u32 members;               // boxes when it was built
  u32 mask_bytes;            // a mask, 0 where there are none
  const u32* level_end;      // [LEVELS]: blocks of level 9 are [0, level_end[0]), of level 8 up to level_end[1], ...
  const i64* starts;         // [attributes][CELLS] first key of each cell; the last repeats
  const u8* shift;           // [attributes][CELLS]
  const u8* lossy;           // [attributes][CELLS]
  const u32* population;     // [attributes][CELLS] members that reach into the cell
  const u32* edges;          // [attributes][CELLS] ends inside the cell that lines cannot decide
  const u8* listed;          // [attributes] some block keeps only a list
  const u8* narrowest;       // [attributes] the fewest cells that a box reaches into
  const u64* summary;        // [attributes][CELLS][summary_words]
  const Directory* directory;  // [blocks * attributes + 1]
  const u64* lines;          // [groups][CELLS][WORDS]
  const u32* entries;        // padded by 16
  const i64* exact;          // key of each entry, or null where nothing is lossy
  const u32* numbers;        // [blocks][STRIDE]
  const u8* masks;           // [blocks][STRIDE][mask_bytes], padded by 8
  const u64* alive;          // [blocks][WORDS]
};

// The cell of a key: the last start that is not above it. Six steps without a branch.
static inline u32 cell_of(const i64* starts, i64 key) {
  u32 at = 0;
  for (u32 step = CELLS / 2; step; step /= 2) at += starts[at + step] <= key ? step : 0;
  return at;
}

static inline u32 code_of(i64 start, u8 shift, i64 key) { return u32((u64(key) - u64(start)) >> shift); }

// A key as the 22 bits (cell, code) that order the entries of an attribute.
static inline u32 place_of(const Bitmap& map, u32 attribute, u32 cell, i64 key) {
  size_t at = size_t(attribute) * CELLS + cell;
  return cell << 16 | code_of(map.starts[at], map.shift[at], key);
}

static inline const u64* line_of(const Bitmap& map, u32 group, u32 cell) {
  return map.lines + (size_t(group) * CELLS + cell) * WORDS;
}

// Entries of cells [first, last] of an attribute of a block; all of them where it has no lines.
static inline void list_range(const Bitmap& map, const Directory* entry, u32 first, u32 last, u32& from, u32& to) {
  from = entry->base;
  to = entry[1].base;
  if (!entry->group) return;
  const u64* line = line_of(map, entry->group, 0) + WORDS - 1;
  u32 head = u32(line[first * WORDS] >> 48);
  u32 base = entry->base;
  from = base + (head & 1023);
  if (first == last && head >> 10 < LONG_LIST) to = from + (head >> 10);
  else if (last + 1 < CELLS) to = base + (u32(line[(last + 1) * WORDS] >> 48) & 1023);
}

static inline u32 level_of_index(u32 index) { return LEVELS - 1 - index; }

static inline u32 first_block(const Bitmap& map, u32 level) {
  return level == LEVELS - 1 ? 0 : map.level_end[LEVELS - 2 - level];
}

static inline u32 last_block(const Bitmap& map, u32 level) { return map.level_end[LEVELS - 1 - level]; }

}  // namespace hitbox
