// The format of a dense segment, which suits wide ranges: it is chosen if a large share of the boxes matches an event.
//
// Boxes are ordered by descending level, then as they came. About 64 thousand neighbours form a tile; tiles are equally
// large except the last. Cells and quantized keys are those of a bitmap segment (bitmap.hpp).
//
//   line  (tile, attribute, cell)  one bit per box of the tile: the box overlaps the cell
//   list  (tile, attribute, side)  the bounds of one side as 16-bit positions in the tile, ordered by cell and by the top
//                                  4 bits of the code: by part. `part_starts` says where each part begins.
//
// To match an event, AND its lines in each tile. Then clear the boxes that fail in the event's own cell: low bounds in
// parts after the event's and high bounds in parts before it. Both are contiguous, so nothing is compared. Only bounds in
// the event's own part are compared, by the rows of their boxes. A cell that nearly all boxes overlap has no line: the
// bounds outside of it are contiguous in the lists too and are cleared instead.
//
// A line is read as a whole, up to 8 KB in sequence, which costs a third of the same bytes in separate lines. Per event
// a bitmap segment reads less and skips blocks, which pays as long as few boxes match.
//
// Bytes per box: 8 per attribute for lines, 4 per constraint for lists, its row, and 0 to 4 for its number.
#pragma once

#include "format/bitmap.hpp"

namespace hitbox {

constexpr u32 MAX_TILE_WORDS = 1016;  // 65,024 boxes, so 16 bits hold their number
constexpr u32 PARTS = CELLS * TOP_VALUES;
constexpr u32 PART_STARTS = 2 * (PARTS + 1);  // per list: high bounds, then low bounds
constexpr u32 EVERY_BOX = ~0u;                // in `line_at`: every box overlaps the cell
constexpr u32 NO_LINE = ~0u - 1;              // the lists are read instead
constexpr u16 NO_LIST = 0xFFFF;
constexpr u8 INNER_LOW = 1, INNER_HIGH = 2;  // bits of `edges`

// The array "sizes".
struct DenseSizes {
  u32 members;                 // boxes when the segment was built
  u32 tile_words;              // 64-bit words per line, a multiple of WORDS; the lines of the last tile may be shorter
  u32 line_count;              // per tile
  u32 list_count;              // per tile: attributes that some box constrains
  u32 room, keyed, row_bytes;  // as in BitmapSizes
  u32 number_bytes;            // 0: the number of a box is its position plus `first_number`
  u32 first_number;
};

// A view: pointers into arrays that somebody else owns. segment_view.hpp opens and checks them.
struct Dense : DenseSizes {
  u32 attributes;
  const u32* level_ends;  // [LEVELS] boxes of level 9, of level 8 or more, ...
  const i64* starts;      // [attributes][CELLS] as in Bitmap
  const u8* shift;        // [attributes][CELLS]
  const u8* edges;        // [attributes][CELLS] bits: some low or high bound inside the cell, which lines cannot decide
  const u32* line_at;     // [attributes][CELLS] which line of a tile, or EVERY_BOX or NO_LINE
  const u16* list_at;     // [attributes] which list of a tile, or NO_LIST
  const u32* list_begin;  // [tiles * list_count + 1] first entry of each list: its high bounds, then as many low bounds
  const u16* part_starts;  // [tiles][list_count][2][PARTS + 1] relative to the first bound of the side
  const u16* entries;      // positions in the tile
  const u64* lines;        // [tiles][line_count][words]
  Numbers numbers;         // [members], padded
  const u8* rows;          // [members][row_bytes], padded
  const u8* more;          // overflow rows; padded
  const u64* alive;        // [words]
  size_t entry_count;
  size_t more_bytes;
};

static inline u32 words_of(const DenseSizes& sizes) { return (sizes.members + BLOCK - 1) / BLOCK * WORDS; }

static inline u32 tiles_of(const DenseSizes& sizes) {
  return (words_of(sizes) + sizes.tile_words - 1) / sizes.tile_words;
}

// The words of a line in this tile.
static inline u32 words_of(const DenseSizes& sizes, u32 tile) {
  u32 left = words_of(sizes) - tile * sizes.tile_words;
  return left < sizes.tile_words ? left : sizes.tile_words;
}

static inline size_t positions_of(const Dense& map) { return map.members; }

static inline const u64* line_of(const Dense& map, u32 tile, u32 line) {
  assert(tile < tiles_of(map) && line < map.line_count);
  return map.lines + size_t(tile) * map.tile_words * map.line_count + size_t(line) * words_of(map, tile);
}

static inline u32 part_at(u32 qkey) { return qkey >> 12; }

// One list of a tile.
struct DenseList {
  const u16 *highs, *lows;              // entries
  const u16 *high_starts, *low_starts;  // [PARTS + 1]
};

static inline DenseList list_of(const Dense& map, u32 tile, u32 list) {
  assert(tile < tiles_of(map) && list < map.list_count);
  size_t at = size_t(tile) * map.list_count + list;
  u32 begin = map.list_begin[at], end = map.list_begin[at + 1];
  const u16* starts = map.part_starts + at * PART_STARTS;
  return {map.entries + begin, map.entries + (begin + end) / 2, starts, starts + PARTS + 1};
}

static inline u32 number_of(const Dense& map, size_t position) {
  return map.number_bytes ? map.numbers[position] : map.first_number + u32(position);
}

static inline u32 level_at(const Dense& map, size_t position) {
  u32 later = 0;
  for (u32 i = 0; i < LEVELS - 1; ++i) later += map.level_ends[i] <= position;
  return LEVELS - 1 - later;
}

}  // namespace hitbox
