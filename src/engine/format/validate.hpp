// Validates the contents of a segment's arrays when it is opened, so that no kernel reads or writes out of bounds,
// divides by zero, shifts too far or loops forever, whatever file the arrays came from. segment_view.hpp has checked
// types and lengths before.
//
// Checked is what kernels use as an index, shift, size or step: levels, cells (starts and shift), directory entries,
// list ends, parts of lists, attributes in rows, filters and orders, offsets of rows, keys in slots, strides. Not checked is what they
// only compare or AND (lines, summaries, top bits of entries, bounds in rows): it causes wrong matches at worst. Boxes
// must also be valid input for a builder: attributes ascending, low not above high.
#pragma once

#include <stdexcept>
#include <string>

#include "format/postings.hpp"
#include "format/row.hpp"

namespace hitbox {

// An array has invalid contents. The message is "name: reason"; Python raises its own DamagedArray from it.
struct DamagedArray : std::invalid_argument {
  DamagedArray(const char* name, const std::string& reason) : std::invalid_argument(name + (": " + reason)) {}
};

static inline void require(bool good, const char* name, const char* reason) {
  if (!good) throw DamagedArray(name, reason);
}

// The engine's map from box numbers to locations, and the location at which the segment starts.
struct Locations {
  const u32* where;
  size_t size;
  u32 base;

  void check(u32 number, u32 position) const {
    require(number < size, "numbers", "a box number is out of range");
    require(where[number] == base + position, "numbers", "a box is not where the array `where` has it");
  }
};

// ---- bitmap segments

template <class Sizes>
static inline void check_row_sizes(const Sizes& sizes, u32 attributes) {
  require(sizes.room && sizes.room <= attributes, "sizes", "the room of a row is out of range");
  require(sizes.keyed <= 1, "sizes", "the kind of rows is unknown");
  require(sizes.row_bytes == row_bytes_for(attributes, sizes.room, sizes.keyed), "sizes",
          "the bytes of a row do not go with its room");
}

static inline void check_sizes(const BitmapSizes& sizes, u32 attributes) {
  const u32 blocks = sizes.blocks;
  require(blocks && blocks <= (1u << 31) / BLOCK, "sizes", "the number of blocks is out of range");
  require(sizes.summary_words == (blocks + 511) / 512 * 8, "sizes", "summaries do not go with the blocks");
  require(sizes.members && sizes.members <= blocks * BLOCK, "sizes", "the number of boxes is out of range");
  check_row_sizes(sizes, attributes);
  require(sizes.number_bytes <= 4, "sizes", "the bytes of a number are out of range");
  require(sizes.compact <= 1, "sizes", "it is unknown how cells share lines");
}

static inline i64 last_key(const i64* starts, u32 cell) {
  return cell + 1 == CELLS || starts[cell + 1] == starts[cell] ? HIGHEST : starts[cell + 1] - 1;
}

static inline void check_cells(const i64* all_starts, const u8* all_shift, u32 attributes) {
  for (u32 a = 0; a < attributes; ++a) {
    const i64* starts = all_starts + size_t(a) * CELLS;
    const u8* shift = all_shift + size_t(a) * CELLS;
    require(starts[0] == MISSING, "starts", "the first cell does not begin at the missing value");
    for (u32 c = 0; c < CELLS; ++c) {
      require(!c || starts[c] >= starts[c - 1], "starts", "cells do not ascend");
      u64 width = u64(last_key(starts, c)) - u64(starts[c]);
      require(shift[c] == (width ? 64 - __builtin_clzll(width) : 0), "shift", "it does not go with the cells");
    }
  }
}

static inline void check_grid(const Bitmap& map) {
  check_cells(map.starts, map.shift, map.attributes);
  for (size_t at = 0; at < size_t(map.attributes) * CELLS; ++at)
    require(map.population[at] <= map.members, "population", "a cell has more boxes than there are");
  for (u32 a = 0; a < map.attributes; ++a)
    require(map.narrowest[a] >= 1 && map.narrowest[a] <= CELLS, "narrowest", "a width is out of range");
}

static inline void check_levels(const Bitmap& map) {
  for (u32 l = 0; l < LEVELS; ++l)
    require(map.bands[l].from <= map.bands[l].to && map.bands[l].to <= map.blocks, "bands", "blocks are out of range");
  for (u32 t = 0; t < tiles_of(map.blocks); ++t)
    require(map.tile_level[t] < LEVELS || map.tile_level[t] == MIXED, "tile_level", "a level is out of range");
  for (u32 b = 0; b < map.blocks; ++b) {
    const u16* ends = level_ends_of(map, b);
    for (u32 l = 0; l < LEVEL_ENDS; ++l) {
      if (l < LEVELS) require(ends[l] <= BLOCK && (!l || ends[l] >= ends[l - 1]), "level_ends", "ends do not ascend");
      else require(ends[l] == 0xFFFF, "level_ends", "the padding is gone");
    }
  }
}

static inline void check_lists(const Bitmap& map) {
  const u32 m = map.attributes, tiles = tiles_of(map.blocks), words = (m + 63) / 64;
  const Directory* directory = map.directory;
  constexpr u32 MAX_LIST = 2 * TILE;  // entries in one list
  require(size_t(directory[size_t(tiles) * m].base) + ENTRY_PADDING == map.entry_count, "directory",
          "lists do not end with the entries");
  for (size_t i = 0; i < size_t(tiles) * m; ++i) {
    require(directory[i].base <= directory[i + 1].base, "directory", "lists do not ascend");
    require(directory[i].group <= map.groups, "directory", "lines are out of range");
  }
  for (u32 t = 0; t < tiles; ++t) {
    const u64* bare = map.bare + size_t(t) * words;
    for (u32 a = 0; a < m; ++a) {
      const Directory* one = directory_of(map, t) + a;
      u32 size = one[1].base - one->base, before = CELLS;
      if (!one->group) {
        require(size <= MAX_LIST, "directory", "a list is too long");
        continue;
      }
      if (map.compact) {
        require(!size && !bit(bare, a), "directory", "an attribute of a compact segment has both lines and a list");
        continue;
      }
      require(size >= CELLS, "directory", "a list is too short");
      for (u32 c = 0; c < CELLS; ++c) {
        u32 end = map.entries[one->base + c];
        require(end >= before && end - before <= MAX_LIST && end <= size, "entries", "list ends are out of range");
        before = end;
      }
    }
    const u16* order = map.order + size_t(t) * m;
    for (u32 i = 0; i < m && order[i] != NO_ATTRIBUTE; ++i) {
      require(order[i] < m, "order", "an attribute is out of range");
      require(directory_of(map, t)[order[i]].group, "order", "an attribute has no lines");
    }
    u64 beyond = m % 64 ? bare[words - 1] >> m % 64 : 0;
    require(!beyond, "bare", "an attribute is out of range");
  }
  const u64* alive = map.alive;
  for (size_t w = size_t(map.blocks) * WORDS; w < size_t(tiles) * TILE_WORDS; ++w)
    require(!alive[w], "alive", "a box is beyond the last block");
}

static inline void check_tables(const Bitmap& map) {
  check_grid(map);
  check_levels(map);
  check_lists(map);
}

// Checks the attributes of rows. Bounds are only compared, and `decode` orders them.
template <class Segment>
struct RowCheck {
  const Segment& map;
  const RowShape shape;
  const size_t more_bytes;  // without padding
  const u32 head;
  const u64 beyond;  // bits of a row's head beyond the last attribute

  explicit RowCheck(const Segment& m)
      : map(m), shape(shape_of(m)), more_bytes(m.more_bytes - BYTE_PADDING), head(row_head_bytes(m.attributes, 0)),
        beyond(m.attributes < 64 ? ~0ull << m.attributes : 0) {}

  void check(const u8* at) const {
    u64 mask = shape.masked ? row_mask(shape, at) : 0;
    u32 size = shape.masked ? u32(__builtin_popcountll(mask)) : two_bytes(at);
    require(!(mask & beyond) && size <= map.attributes, "rows", "an attribute is out of range");
    if (size > shape.room) {
      u32 offset;
      std::memcpy(&offset, at + head, 4);
      size_t end = size_t(offset) * 4 + row_bytes_for(map.attributes, size, map.keyed);
      require(end <= more_bytes, "rows", "a row elsewhere is out of range");
      require(!std::memcmp(at, map.more + size_t(offset) * 4, head), "more", "a row has other attributes than its box");
    }
    if (shape.masked) return;
    Row row = open_row(shape, at);
    for (u32 i = 0, next = 0; i < size; ++i) {
      u32 a = row_attribute(row, i);
      require(a >= next && a < map.attributes, "rows", "attributes do not ascend");
      next = a + 1;
    }
  }
};

// Checks the live boxes at positions [from, to), whole blocks; returns their number.
static inline size_t check_boxes(const Bitmap& map, size_t from, size_t to, const Locations& locations) {
  RowCheck<Bitmap> rows(map);
  size_t found = 0;
  for (size_t block = from / BLOCK; block * BLOCK < to; ++block) {
    u32 members = level_ends_of(map, block)[LEVELS - 1];
    for (u32 w = 0; w < WORDS; ++w) {
      u64 bits = map.alive[block * WORDS + w];
      require(members >= w * 64 + 64 || !(bits >> (members > w * 64 ? members - w * 64 : 0)), "alive",
              "a box is beyond the last one of its block");
      for (; bits; bits &= bits - 1, ++found) {
        size_t position = block * BLOCK + w * 64 + u32(__builtin_ctzll(bits));
        locations.check(map.numbers[position], u32(position));
        rows.check(row_at(map, position));
      }
    }
  }
  return found;
}

// ---- dense segments

static inline void check_sizes(const DenseSizes& sizes, u32 attributes) {
  require(sizes.members && sizes.members <= (1u << 31) - BLOCK, "sizes", "the number of boxes is out of range");
  require(sizes.tile_words && sizes.tile_words <= MAX_TILE_WORDS && sizes.tile_words % WORDS == 0, "sizes",
          "the words of a line are out of range");
  require(sizes.line_count <= attributes * CELLS, "sizes", "the number of lines is out of range");
  require(sizes.list_count <= attributes, "sizes", "the number of lists is out of range");
  require(sizes.number_bytes <= 4, "sizes", "the bytes of a number are out of range");
  check_row_sizes(sizes, attributes);
}

// Positions in lists are not checked: any 16 bits are inside a kernel's bitmap, where those beyond the tile are 0.
static inline void check_lists(const Dense& map) {
  const size_t lists = size_t(tiles_of(map)) * map.list_count;
  require(map.list_begin[0] == 0 && map.list_begin[lists] == map.entry_count, "list_begin",
          "lists do not end with the entries");
  for (size_t i = 0; i < lists; ++i) {
    require(map.list_begin[i] <= map.list_begin[i + 1], "list_begin", "lists do not ascend");
    u32 size = map.list_begin[i + 1] - map.list_begin[i];
    require(size % 2 == 0, "list_begin", "a bound has no other side");
    for (u32 side = 0; side < 2; ++side) {
      const u16* starts = map.part_starts + i * PART_STARTS + side * (PARTS + 1);
      bool good = starts[0] == 0 && starts[PARTS] == size / 2;
      for (u32 part = 0; part < PARTS; ++part) good &= starts[part] <= starts[part + 1];
      require(good, "part_starts", "parts do not ascend or do not end with their list");
    }
  }
}

static inline void check_tables(const Dense& map) {
  check_cells(map.starts, map.shift, map.attributes);
  check_lists(map);
  for (u32 l = 0; l < LEVELS; ++l)
    require(l ? map.level_ends[l] >= map.level_ends[l - 1] : true, "level_ends", "ends do not ascend");
  require(map.level_ends[LEVELS - 1] == map.members, "level_ends", "they do not end with the boxes");
  for (size_t at = 0; at < size_t(map.attributes) * CELLS; ++at)
    require(map.line_at[at] < map.line_count || map.line_at[at] >= NO_LINE, "line_at", "a line is out of range");
  for (u32 a = 0; a < map.attributes; ++a)
    require(map.list_at[a] < map.list_count || map.list_at[a] == NO_LIST, "list_at", "a list is out of range");
  for (u32 w = map.members / 64; w < words_of(map); ++w)
    require(!(map.alive[w] >> (w == map.members / 64 ? map.members % 64 : 0)), "alive", "a box is beyond the last one");
}

// Checks the live boxes at positions [from, to); returns their number.
static inline size_t check_boxes(const Dense& map, size_t from, size_t to, const Locations& locations) {
  RowCheck<Dense> rows(map);
  size_t found = 0;
  for (size_t position = from; position < to; ++position) {
    if (!bit(map.alive, position)) continue;
    locations.check(number_of(map, position), u32(position));
    rows.check(row_at(map, position));
    ++found;
  }
  return found;
}

// ---- postings segments

static inline void check_tables(const Postings& postings) {
  const u32 m = postings.attributes, keys = postings.key_begin[m];
  require(postings.key_begin[0] == 0, "key_begin", "keys do not begin at 0");
  for (u32 a = 0; a < m; ++a) {
    require(postings.key_begin[a] < postings.key_begin[a + 1], "key_begin", "keys do not ascend");
    require(postings.code_shift[a] < 64, "code_shift", "a shift is out of range");
  }
  for (u32 k = 0; k <= keys; ++k)
    require(postings.key_start[k] <= postings.key_start[k + 1], "key_start", "postings do not ascend");
  require(postings.key_start[keys + 1] == postings.rows.count, "key_start", "postings do not end with the boxes");
  bool some_empty = false;
  for (size_t at = 0; at <= postings.slot_mask; ++at) {
    require(u32(postings.slots[at]) <= keys, "slots", "a key is out of range");
    some_empty |= !postings.slots[at];
  }
  require(some_empty, "slots", "no slot is empty");
  if (u32 rest = postings.rows.count % 64)
    require(!(postings.rows.alive[postings.rows.count / 64] >> rest), "alive", "a box is beyond the last one");
}

// Checks the boxes at positions [from, to); returns how many are live.
static inline size_t check_boxes(const Postings& postings, size_t from, size_t to, const Locations& locations) {
  const Rows& rows = postings.rows;
  const size_t words = postings.word_count;
  size_t found = 0;
  for (size_t i = from; i < to; ++i) {
    require(u32(postings.filter[i] >> 48) < postings.attributes, "filter", "an attribute is out of range");
    require(rows.levels[i] < LEVELS, "levels", "a level is out of range");
    require(rows.start[i] < words, "start", "a row is out of range");
    const u64* row = rows.words + rows.start[i];
    u32 size = row_size(row), next = 0;
    require(size <= postings.attributes && rows.start[i] + row_words(size) <= words, "words", "a row is out of range");
    const u64* bounds = row_bounds(row, size);
    bool good = true;
    for (u32 at = 0; at < size; ++at) {
      u32 a = row_attribute(row, at);
      good &= a >= next && a < postings.attributes && i64(bounds[2 * at]) <= i64(bounds[2 * at + 1]);
      next = a + 1;
    }
    require(good, "words", "attributes or bounds do not ascend");
    if (!bit(rows.alive, i)) continue;
    locations.check(rows.numbers[i], u32(i));
    ++found;
  }
  return found;
}

}  // namespace hitbox
