// A sealed segment of blocks: bitmaps of cells decide the inside of a box, its ends decide the rest.
//
// Each attribute's key line is cut into 64 cells; cell 0 is {MISSING}. Boxes are ordered so that neighbours look alike
// and cut into blocks of at most 512. LANES blocks are a tile. A priority level with many boxes has blocks of its own,
// others share theirs (a band); most urgent bands come first, and in a block most urgent boxes.
//
//   line  (tile, attribute, cell, lane)  a bit a box of the block: it reaches into the cell
//   list  (tile, attribute, cell)        the box ends that lie in the cell, 16 bits each:
//                                        | top of the code 4 | upper end 1 | position in tile 11 |
//   row   (block, position)              all ends of a box, see row.hpp
//
// A point in a cell: the line says who reaches into the cell; who reaches in and is not cut off by an end in that very
// cell holds the point. So AND the lines; where few boxes are left hold each one's row against the event, where many
// are, clear who fails in the lists, and ask the rows only where a list's few bits do not tell. What remains is exact.
// Blocks of a tile lie side by side, so that an event that visits several reads memory in runs. An attribute that few
// boxes of a tile constrain has no lines there and one list of all ends, with the tops of their cells.
//
// A key is a place of 22 bits, | cell 6 | code 16 |, where the code is how far into the cell it lies: the top bits of
// the distance to the cell's start. Where that loses bits of any end, rows hold whole keys (`keyed`).
//
//   summary (attribute, cell)            one bit a block: the line is not empty
//   bytes a box: 8 an attribute for lines, 4 a constraint for lists, 5.5 a constraint (18 where keyed) and 1/8 an
//   attribute for its row, 1 to 4 for its number
#pragma once

#include "base/common.hpp"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace hitbox {

constexpr u32 CELLS = 64;
constexpr u32 BLOCK = 512;  // boxes of a block, bits of a line
constexpr u32 WORDS = BLOCK / 64;
constexpr u32 LANES = 4;
constexpr u32 TILE = LANES * BLOCK;
constexpr u32 TILE_WORDS = LANES * WORDS;
constexpr u32 UPPER = 1u << 11;
constexpr u32 POSITION = UPPER - 1;
constexpr u32 LEVEL_ENDS = 16;  // LEVELS and padding
constexpr u8 MIXED = 0xFF;      // boxes of a tile differ in level
constexpr u32 TOP_VALUES = 16;  // values of the four bits that an entry has of a code, or of a cell where there are no lines

struct Directory {
  u32 group;  // its lines, from 1; 0 where the tile keeps only a list
  u32 base;   // where its lists begin; the next attribute's (or tile's) base ends them
};

struct BlockRange {
  u32 from, to;
};

// Numbers of boxes, each in as few bytes as the largest one needs: most of what an event with many matches reads.
struct Numbers {
  const u8* first;
  u32 bytes;  // 1 to 4

  Numbers from(size_t position) const { return {first + position * bytes, bytes}; }

  u32 operator[](size_t position) const {
    u32 number;
    std::memcpy(&number, first + position * bytes, 4);
    return number & ~0u >> (32 - 8 * bytes);
  }
};

struct Bitmap {
  u32 attributes;
  u32 blocks;
  u32 summary_words;         // a summary row
  u32 members;               // boxes when it was built
  u32 room;                  // constraints that a row has room for
  u32 keyed;                 // rows hold whole keys
  u32 row_bytes;
  const BlockRange* bands;   // [LEVELS] the blocks where boxes of a level are; none where there are no such boxes
  const u8* tile_level;      // [tiles] of all its boxes, or MIXED
  const u16* level_ends;     // [blocks][LEVEL_ENDS] how many boxes are of level 9, of 8 or more, ..., then 0xFFFF
  const i64* starts;         // [attributes][CELLS] first key of each cell; the last repeats
  const u8* shift;           // [attributes][CELLS] bits of the distance from the cell's start to its last key
  const u32* population;     // [attributes][CELLS] members that reach into the cell
  const u32* edges;          // [attributes][CELLS] ends inside the cell that lines cannot decide
  const u64* bare;           // [tiles][(attributes + 63) / 64] bits: attributes without lines that some box constrains
  const u8* narrowest;       // [attributes] the fewest cells that a box reaches into
  const u64* summary;        // [attributes][CELLS][summary_words]
  const Directory* directory;  // [tiles * attributes + 1]
  const u16* order;          // [tiles][attributes] those with lines, most telling first, then NO_ATTRIBUTE
  const u64* lines;          // [groups][CELLS][LANES][WORDS]
  const u16* entries;        // where an attribute has lines: [CELLS] list ends, then the lists; padded by 32
  Numbers numbers;           // [blocks][BLOCK], padded by 64 bytes
  const u8* rows;            // [blocks][BLOCK][row_bytes], padded by 64
  const u8* more;            // rows of boxes with more constraints than there is room for, padded by 64
  const u64* alive;          // [tiles * LANES][WORDS]
};

constexpr u16 NO_ATTRIBUTE = 0xFFFF;
static inline u32 tiles_of(u32 blocks) { return (blocks + LANES - 1) / LANES; }

// The cell of a key: the last start that is not above it. Six steps without a branch.
static inline u32 cell_of(const i64* starts, i64 key) {
  u32 at = 0;
  for (u32 step = CELLS / 2; step; step /= 2) at += starts[at + step] <= key ? step : 0;
  return at;
}

// The top 16 of `bits` bits of a distance.
static inline u32 code_of(i64 start, u8 bits, i64 key) {
  u64 distance = u64(key) - u64(start);
  return u32(bits > 16 ? distance >> (bits - 16) : distance << (16 - bits));
}

static inline u32 quantize(const i64* starts, const u8* shift, u32 cell, i64 key) {
  return cell << 16 | code_of(starts[cell], shift[cell], key);
}

static inline u32 cell_at(u32 qkey) { return qkey >> 16; }
static inline int top_at(u32 qkey) { return int(qkey >> 12 & (TOP_VALUES - 1)); }
static inline int bare_top_at(u32 qkey) { return int(qkey >> 18); }  // where there are no lines: of the cell

static inline const Directory* directory_of(const Bitmap& map, u32 tile) {
  return map.directory + size_t(tile) * map.attributes;
}

static inline const u64* line_of(const Bitmap& map, u32 group, u32 cell, u32 lane) {
  return map.lines + ((size_t(group - 1) * CELLS + cell) * LANES + lane) * WORDS;
}

// Entries [from, to) of the ends in a cell; of all ends where the tile has no lines of the attribute.
static inline void list_of(const Bitmap& map, const Directory* entry, u32 cell, u32& from, u32& to) {
  from = entry->base;
  to = entry[1].base;
  if (!entry->group) return;
  const u16* ends = map.entries + from;
  to = from + ends[cell];
  from += cell ? ends[cell - 1] : CELLS;
}

static inline const u16* level_ends_of(const Bitmap& map, size_t block) { return map.level_ends + block * LEVEL_ENDS; }

// The level of the box at a position of a block, whose level ends these are.
static inline u32 level_in(const u16* ends, u32 position) {
#if defined(__AVX512VL__) && defined(__AVX512BW__)
  __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ends));
  u32 later = u32(__builtin_popcount(_mm256_cmple_epu16_mask(all, _mm256_set1_epi16(short(position)))));
#else
  u32 later = 0;
  for (u32 i = 0; i < LEVELS; ++i) later += ends[i] <= position;
#endif
  return LEVELS - 1 - later;
}

static inline u32 level_at(const Bitmap& map, size_t position) {
  return level_in(level_ends_of(map, position / BLOCK), u32(position % BLOCK));
}

// The blocks where boxes of levels [bottom, top] may be.
static inline BlockRange blocks_of(const Bitmap& map, u32 top, u32 bottom) {
  BlockRange all{map.blocks, 0};
  for (u32 level = bottom; level <= top; ++level) {
    BlockRange one = map.bands[level];
    if (one.from == one.to) continue;
    if (one.from < all.from) all.from = one.from;
    if (one.to > all.to) all.to = one.to;
  }
  return all;
}

}  // namespace hitbox
