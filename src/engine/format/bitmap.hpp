// The format of a bitmap segment, which suits boxes with range constraints.
//
// The keys of each attribute are divided into 64 cells; cell 0 is {MISSING}. Boxes are clustered, so that similar ones
// are neighbours, and stored in blocks of up to 512; LANES blocks form a tile. A priority level with many boxes has
// blocks of its own; the others share blocks with adjacent levels (a band). Higher levels come first, both among the
// bands of a segment and among the boxes of a block.
//
//   line  (tile, attribute, cell, lane)  one bit per box of a block: the box overlaps the cell
//   list  (tile, attribute, cell)        the bounds that lie in the cell, 16 bits each:
//                                        | top of the code 4 | is a high bound 1 | position in tile 11 |
//   row   (block, position)              all bounds of a box, see row.hpp
//   summary (attribute, cell)            one bit per block: its line is not empty
//
// To match a point, take the line of its cell in every attribute and AND them. What is left are the boxes that overlap
// all of the point's cells; a box fails only if one of its bounds lies in the same cell as the point, on the wrong side.
// If few boxes are left, their rows are tested. If many are left, the lists of the cells clear those that fail, and
// rows are read only where the 4 bits in a list do not decide. The result is exact.
// The blocks of a tile are interleaved, so an event that visits several of them reads memory sequentially. An attribute
// that few boxes of a tile constrain has no lines there, but one list of all bounds, with the top bits of their cells.
//
// A quantized key (qkey) has 22 bits, | cell 6 | code 16 |. The code is the distance from the cell's start, reduced to
// its top 16 bits. If that loses bits of any bound in the segment, rows store whole keys (`keyed`).
//
// A compact segment has half as many lines and hardly any lists: two neighbouring cells share a line of the boxes that
// overlap either, rows decide where lines do not, and only attributes without lines have lists. It is smaller, and slower.
// If an attribute needs at most half of the cells, every other one is empty: then no cells share a line.
//
// Bytes per box: 8 per attribute for lines, 4 per constraint for lists, 5.5 per constraint (18 if keyed) and 1/8 per
// attribute for its row, and 1 to 4 for its number unless numbers follow the order of boxes. Compact: 4 per attribute for
// lines, nearly none for lists.
#pragma once

#include "base/common.hpp"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace hitbox {

constexpr u32 CELLS = 64;
constexpr u32 BLOCK = 512;  // boxes per block, bits per line
constexpr u32 WORDS = BLOCK / 64;
constexpr u32 LANES = 4;
constexpr u32 TILE = LANES * BLOCK;
constexpr u32 TILE_WORDS = LANES * WORDS;
constexpr u32 UPPER = 1u << 11;
constexpr u32 POSITION = UPPER - 1;
constexpr u32 ENTRY_PADDING = 32;  // vectors may read so far beyond the last entry
constexpr u32 BYTE_PADDING = 64;   // the same for arrays of bytes
constexpr u32 LEVEL_ENDS = 16;     // LEVELS plus padding
constexpr u8 MIXED = 0xFF;         // the boxes of a tile have different levels
constexpr u32 TOP_VALUES = 16;  // values of an entry's four top bits: of a code, or of a cell where there are no lines

struct Directory {
  u32 group;  // index of its lines plus 1; 0: the tile has only a list
  u32 base;   // start of its lists; they end at the base of the next directory entry
};

struct BlockRange {
  u32 from, to;
};

// Box numbers, stored in as few bytes as the largest one needs: an event with many matches reads mostly these. If the
// boxes of each block are numbered in their order, only the first number of a block is stored.
struct Numbers {
  const u8* first;
  u32 bytes;   // 1 to 4 per box; 0: 32 bits per block
  u32 at = 0;  // if `bytes` is 0: the position that `operator[]` counts from

  Numbers from(size_t position) const {
    if (!bytes) return {first, 0, at + u32(position)};
    return {first + position * bytes, bytes};
  }

  u32 operator[](size_t position) const {
    u32 number;
    if (!bytes) {
      position += at;
      std::memcpy(&number, first + position / BLOCK * 4, 4);
      return number + u32(position % BLOCK);
    }
    std::memcpy(&number, first + position * bytes, 4);
    return number & ~0u >> (32 - 8 * bytes);
  }
};

// Bytes of the array of numbers, without padding.
static inline size_t number_array_bytes(size_t blocks, u32 bytes) { return blocks * (bytes ? BLOCK * bytes : 4); }

// The array "sizes".
struct BitmapSizes {
  u32 blocks;
  u32 summary_words;  // words per row of `summary`
  u32 members;        // boxes when the segment was built
  u32 room;           // constraints that a row has room for
  u32 keyed;          // 1: rows hold whole keys
  u32 row_bytes;
  u32 number_bytes;
  u32 compact;  // 1: two cells share a line, and attributes with lines have no lists
};

// A view: pointers into arrays that somebody else owns. segment_view.hpp opens and checks them.
struct Bitmap : BitmapSizes {
  u32 attributes;
  const BlockRange* bands;     // [LEVELS] blocks that contain boxes of a level; empty if there are none
  const u8* tile_level;        // [tiles] the level of all its boxes, or MIXED
  const u16* level_ends;       // [blocks][LEVEL_ENDS] boxes of level 9, of level 8 or more, ..., then 0xFFFF
  const i64* starts;           // [attributes][CELLS] first key of each cell; empty cells begin where the next one does,
                               // or, after the last one, where that does
  const u8* shift;             // [attributes][CELLS] bit width of the distance from a cell's first key to its last
  const u32* population;       // [attributes][CELLS] boxes that overlap the cell
  const u32* edges;            // [attributes][CELLS] bounds inside the cell, which lines cannot decide
  const u64* bare;             // [tiles][(attributes + 63) / 64] bits: constrained attributes without lines
  const u8* narrowest;         // [attributes] the fewest cells that a box overlaps
  const u64* summary;          // [attributes][CELLS][summary_words]
  const Directory* directory;  // [tiles * attributes + 1]
  const u16* order;            // [tiles][attributes] those with lines, most selective first, then NO_ATTRIBUTE
  const u64* lines;            // [groups][lines_per_group][LANES][WORDS]
  const u16* entries;          // per attribute with lines: [CELLS] list ends, then the lists, nothing if compact;
                               // per attribute without lines: one list; padded
  Numbers numbers;             // [blocks][BLOCK], or [blocks], padded
  const u8* rows;              // [blocks][BLOCK][row_bytes], padded
  const u8* more;              // overflow rows: boxes with more constraints than `room`; padded
  const u64* alive;            // [tiles * LANES][WORDS]
  size_t groups;               // of lines, one per tile and attribute that has them
  size_t entry_count;
  size_t more_bytes;
};

constexpr u16 NO_ATTRIBUTE = 0xFFFF;
static inline u32 tiles_of(u32 blocks) { return (blocks + LANES - 1) / LANES; }
static inline size_t positions_of(const Bitmap& map) { return size_t(map.blocks) * BLOCK; }
static inline u32 number_of(const Bitmap& map, size_t position) { return map.numbers[position]; }

static inline u32 lines_per_group(const BitmapSizes& sizes) { return CELLS >> sizes.compact; }

// The cell of a key: the last one whose start is not above it. Branch-free, six steps.
static inline u32 cell_of(const i64* starts, i64 key) {
  u32 at = 0;
  for (u32 step = CELLS / 2; step; step /= 2) at += starts[at + step] <= key ? step : 0;
  return at;
}

// The distance of a key from its cell's start, reduced to the top 16 of `bits` bits.
static inline u32 code_of(i64 start, u8 bits, i64 key) {
  assert(bits <= 64 && key >= start);
  u64 distance = u64(key) - u64(start);
  return u32(bits > 16 ? distance >> (bits - 16) : distance << (16 - bits));
}

static inline u32 quantize(const i64* starts, const u8* shift, u32 cell, i64 key) {
  return cell << 16 | code_of(starts[cell], shift[cell], key);
}

static inline u32 cell_at(u32 qkey) { return qkey >> 16; }
static inline int top_at(u32 qkey) { return int(qkey >> 12 & (TOP_VALUES - 1)); }
static inline int bare_top_at(u32 qkey) { return int(qkey >> 18); }  // for attributes without lines

// Whether a cell has a line of its own; in a compact segment, if the cell that it shares the line with is empty.
static inline bool has_own_line(const Bitmap& map, const i64* starts, u32 cell) {
  return !map.compact || starts[cell ^ 1] == starts[cell];
}

static inline const Directory* directory_of(const Bitmap& map, u32 tile) {
  assert(tile < tiles_of(map.blocks));
  return map.directory + size_t(tile) * map.attributes;
}

static inline const u64* line_of(const Bitmap& map, u32 group, u32 cell, u32 lane) {
  assert(group >= 1 && group <= map.groups + 1 && cell < CELLS && lane < LANES);  // + 1: the end of all lines
  return map.lines + ((size_t(group - 1) * lines_per_group(map) + (cell >> map.compact)) * LANES + lane) * WORDS;
}

// The same for lane 0 of a segment that is known to be compact, or not to be: without shifts that compilers do not know.
template <bool COMPACT>
static inline const u64* line_of(const Bitmap& map, u32 group, u32 cell) {
  assert(group >= 1 && group <= map.groups && cell < CELLS && map.compact == COMPACT);
  return map.lines + (size_t(group - 1) * (CELLS >> COMPACT) + (cell >> COMPACT)) * TILE_WORDS;
}

// Entries [from, to) of the bounds in a cell, or of all bounds if the tile has no lines for the attribute.
static inline void list_of(const Bitmap& map, const Directory* entry, u32 cell, u32& from, u32& to) {
  from = entry->base;
  to = entry[1].base;
  if (!entry->group) return;
  assert(!map.compact);
  const u16* ends = map.entries + from;
  to = from + ends[cell];
  from += cell ? ends[cell - 1] : CELLS;
  assert(from <= to && to + ENTRY_PADDING <= map.entry_count);
}

static inline const u16* level_ends_of(const Bitmap& map, size_t block) { return map.level_ends + block * LEVEL_ENDS; }

// The level of the box at a position, given its block's level ends.
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

// The blocks that may contain boxes of levels [bottom, top].
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
