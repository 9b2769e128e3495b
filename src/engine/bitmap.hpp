// A sealed segment of blocks: cell bitmaps decide the inside of a box, edge lists decide its ends.
//
// Each attribute's key line is cut into 64 cells; cell 0 is {MISSING}. Boxes are ordered so that neighbours look alike
// and cut into blocks of at most 496, each of one priority level, most urgent blocks first. LANES blocks are a tile.
//
//   line  (tile, attribute, cell, lane)  496 bits: the boxes of the block that reach into the cell;
//                                        16 bits: where its list ends (12) and how long it is (4, 15: see list_of)
//   list  (tile, attribute, cell, lane)  the box ends that lie in the cell, 32 bits each:
//                                        | cell 6 | code in the cell 16 | upper end 1 | position in block 9 |
//   row   (block, position)              which attributes the box constrains (a bit each), then the low cells of the
//                                        first row_cells of them and their high cells, 6 bits each
//
// A point in a cell: the line says who reaches into the cell; who reaches in and is not cut off by an end in that very
// cell holds the point. So AND the lines, clear who fails in the lists, and what remains is exact. Where few boxes are
// left their rows tell which lists matter: for most none. Blocks of a tile lie side by side, so that an event that
// visits several reads memory in runs. An attribute that few boxes of a tile constrain has no lines there, only one
// list a lane, by lane behind four 16-bit ends.
// A code is (key - start of cell) >> shift; where that loses bits (`lossy`), equal codes are settled by `exact`.
//
//   summary (attribute, cell)            one bit a block: the line is not empty
//   bytes a box: 8.3 an attribute for lines, 8 a constraint for lists (24 where lossy), 1.5 a constraint and 1/8 an
//   attribute for its row, 4 for its number
#pragma once

#include "common.hpp"

namespace hitbox {

constexpr u32 CELLS = 64;
constexpr u32 STRIDE = 512;  // bits of a line, positions of a block
constexpr u32 BLOCK = 496;   // of which so many can be boxes
constexpr u32 WORDS = STRIDE / 64;
constexpr u32 LANES = 4;
constexpr u32 LONG_LIST = 15;
constexpr u32 UPPER = 1u << 9;
constexpr u32 LANE_ENDS = LANES / 2;  // entries that hold the ends of a tile's lists without lines

struct Directory {
  u32 group;  // its lines, from 1; 0 where the tile keeps only lists
  u32 base;   // first list entry; the next attribute's (or tile's) base ends it
};

struct Bitmap {
  u32 attributes;
  u32 blocks;
  u32 summary_words;         // a summary row
  u32 members;               // boxes when it was built
  u32 row_cells;             // constraints whose cells are in a row; 0 where there are no rows
  u32 largest;               // constraints of the largest box
  const u32* level_end;      // [LEVELS]: blocks of level 9 are [0, level_end[0]), of level 8 up to level_end[1], ...
  const i64* starts;         // [attributes][CELLS] first key of each cell; the last repeats
  const u8* shift;           // [attributes][CELLS]
  const u8* lossy;           // [attributes][CELLS]
  const u32* population;     // [attributes][CELLS] members that reach into the cell
  const u32* edges;          // [attributes][CELLS] ends inside the cell that lines cannot decide
  const u8* listed;          // [attributes] some tile keeps only lists
  const u8* narrowest;       // [attributes] the fewest cells that a box reaches into
  const u64* summary;        // [attributes][CELLS][summary_words]
  const Directory* directory;  // [tiles * attributes + 1]
  const u16* order;          // [tiles][attributes] those with lines, most telling first, then NO_ATTRIBUTE
  const u64* lines;          // [groups][CELLS][LANES][WORDS]
  const u32* entries;        // padded by 16
  const i64* exact;          // key of each entry, or null where nothing is lossy
  const u32* numbers;        // [blocks][STRIDE]
  const u8* rows;            // [blocks][BLOCK][row_bytes], padded by 64
  const u64* alive;          // [tiles * LANES][WORDS]
};

constexpr u16 NO_ATTRIBUTE = 0xFFFF;
constexpr u32 ROW_ATTRIBUTES = 64;  // at most so many where there are rows

static inline u32 row_mask_bytes(u32 attributes) { return (attributes + 7) / 8; }
static inline u32 row_cell_bytes(u32 cells) { return (cells * 6 + 7) / 8; }
static inline u32 row_bytes(u32 attributes, u32 cells) { return row_mask_bytes(attributes) + 2 * row_cell_bytes(cells); }
static inline u32 tiles_of(u32 blocks) { return (blocks + LANES - 1) / LANES; }

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

static inline const Directory* directory_of(const Bitmap& map, u32 tile) {
  return map.directory + size_t(tile) * map.attributes;
}

static inline const u64* line_of(const Bitmap& map, u32 group, u32 cell, u32 lane) {
  return map.lines + ((size_t(group - 1) * CELLS + cell) * LANES + lane) * WORDS;
}

static inline u32 list_end(const u64* line) { return u32(line[WORDS - 1] >> 48) & 4095; }

// Entries [from, to) of a lane's ends in a cell; of all its ends where the tile has no lines of the attribute.
static inline void list_of(const Bitmap& map, const Directory* entry, u32 cell, u32 lane, u32& from, u32& to) {
  u32 base = entry->base;
  if (!entry->group) {
    from = to = base;
    if (base == entry[1].base) return;
    u16 ends[LANES];
    std::memcpy(ends, map.entries + base, sizeof ends);
    from = base + LANE_ENDS + (lane ? ends[lane - 1] : 0);
    to = base + LANE_ENDS + ends[lane];
    return;
  }
  const u64* line = line_of(map, entry->group, cell, lane);
  u32 length = u32(line[WORDS - 1] >> 60);
  to = base + list_end(line);
  if (length < LONG_LIST) from = to - length;
  else from = base + (cell || lane ? list_end(line - WORDS) : 0);
}

static inline u32 level_of_index(u32 index) { return LEVELS - 1 - index; }

static inline u32 first_block(const Bitmap& map, u32 level) {
  return level == LEVELS - 1 ? 0 : map.level_end[LEVELS - 2 - level];
}

static inline u32 last_block(const Bitmap& map, u32 level) { return map.level_end[LEVELS - 1 - level]; }

}  // namespace hitbox
