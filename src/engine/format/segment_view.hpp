// The arrays of a sealed segment: each one's name, element type and length, stated once.
//
// each_bitmap_array, each_dense_array and each_posting_array list the arrays of a segment in any of its forms: a view
// (Bitmap), or the arrays that a builder returns (BitmapArrays), whose members have the same names. The element
// type follows from the member. view_bitmap, view_dense and view_postings open named arrays as a segment: they check presence,
// types and lengths. What the arrays contain is checked by validate.hpp.
#pragma once

#include <string>

#include "format/validate.hpp"

namespace hitbox {

// Array lengths that are valid: `least`, plus any multiple of `step`, up to `most`.
struct Length {
  size_t least, step, most;

  Length(size_t exact) : least(exact), step(0), most(exact) {}
  Length(size_t at_least, size_t multiple, size_t at_most = SIZE_MAX)
      : least(at_least), step(multiple), most(at_most) {}

  void check(const char* name, size_t size) const {
    if (size == least || (step && size > least && size <= most && (size - least) % step == 0)) return;
    std::string due = std::to_string(least);
    if (most != SIZE_MAX && step) due += " or " + std::to_string(most);
    else if (step) due += step == 1 ? " or more" : " plus a multiple of " + std::to_string(step);
    throw DamagedArray(name, std::to_string(size) + " values where " + due + " are due");
  }
};

// Lengths that are read from the arrays, not computed.
struct BitmapLengths {
  size_t lines, entries, more;
};
struct PostingLengths {
  size_t boxes, slots, keys, words;
};

// Values of a bitmap segment's "sizes": only a compact segment has the last one.
constexpr size_t MAX_BITMAP_SIZES = sizeof(BitmapSizes) / sizeof(u32);

// Calls size = visit(name, member, length) for each array of a bitmap segment.
template <class Arrays, class Visitor>
BitmapLengths each_bitmap_array(Arrays& a, u32 attributes, Visitor&& visit) {
  BitmapSizes& sizes = a;
  visit("sizes", sizes, Length{MAX_BITMAP_SIZES - 1, 1, MAX_BITMAP_SIZES});
  check_sizes(sizes, attributes);
  const size_t m = attributes, blocks = sizes.blocks, tiles = tiles_of(sizes.blocks), positions = blocks * BLOCK;
  BitmapLengths found;
  visit("bands", a.bands, 2 * LEVELS);
  visit("tile_level", a.tile_level, tiles);
  visit("level_ends", a.level_ends, blocks * LEVEL_ENDS);
  visit("starts", a.starts, m * CELLS);
  visit("shift", a.shift, m * CELLS);
  visit("population", a.population, m * CELLS);
  visit("edges", a.edges, m * CELLS);
  visit("bare", a.bare, tiles * ((m + 63) / 64));
  visit("narrowest", a.narrowest, m);
  visit("summary", a.summary, m * CELLS * sizes.summary_words);
  visit("directory", a.directory, 2 * (tiles * m + 1));
  visit("order", a.order, tiles * m);
  found.lines = visit("lines", a.lines, Length{0, lines_per_group(sizes) * TILE_WORDS});
  found.entries = visit("entries", a.entries, Length{ENTRY_PADDING, 1});
  visit("numbers", a.numbers, number_array_bytes(blocks, sizes.number_bytes) + BYTE_PADDING);
  visit("rows", a.rows, positions * sizes.row_bytes + BYTE_PADDING);
  found.more = visit("more", a.more, Length{BYTE_PADDING, 1});
  visit("alive", a.alive, tiles * TILE_WORDS);
  return found;
}

struct DenseLengths {
  size_t entries, more;
};

// The same for a dense segment.
template <class Arrays, class Visitor>
DenseLengths each_dense_array(Arrays& a, u32 attributes, Visitor&& visit) {
  DenseSizes& sizes = a;
  visit("sizes", sizes, sizeof(DenseSizes) / sizeof(u32));
  check_sizes(sizes, attributes);
  const size_t m = attributes, boxes = sizes.members, words = words_of(sizes),
               lists = size_t(tiles_of(sizes)) * sizes.list_count;
  DenseLengths found;
  visit("level_ends", a.level_ends, LEVELS);
  visit("starts", a.starts, m * CELLS);
  visit("shift", a.shift, m * CELLS);
  visit("edges", a.edges, m * CELLS);
  visit("line_at", a.line_at, m * CELLS);
  visit("list_at", a.list_at, m);
  visit("list_begin", a.list_begin, lists + 1);
  visit("part_starts", a.part_starts, lists * PART_STARTS);
  found.entries = visit("entries", a.entries, Length{0, 1});
  visit("lines", a.lines, words * sizes.line_count);
  visit("numbers", a.numbers, boxes * sizes.number_bytes + BYTE_PADDING);
  visit("rows", a.rows, boxes * sizes.row_bytes + BYTE_PADDING);
  found.more = visit("more", a.more, Length{BYTE_PADDING, 1});
  visit("alive", a.alive, words);
  return found;
}

// The same for a postings segment.
template <class Arrays, class Visitor>
PostingLengths each_posting_array(Arrays& a, u32 attributes, Visitor&& visit) {
  PostingLengths found;
  visit("seed", a.seed, 2);
  found.boxes = visit("numbers", a.rows.numbers, Length{1, 1});
  found.slots = visit("slots", a.slots, Length{1, 1});
  visit("key_begin", a.key_begin, size_t(attributes) + 1);
  found.keys = visit("key_value", a.key_value, Length{1, 1}) - 1;
  visit("key_start", a.key_start, found.keys + 2);
  visit("filter", a.filter, found.boxes);
  visit("code_base", a.code_base, attributes);
  visit("code_last", a.code_last, attributes);
  visit("code_shift", a.code_shift, attributes);
  found.words = visit("words", a.rows.words, Length{1, 1});
  visit("start", a.rows.start, found.boxes);
  visit("levels", a.rows.levels, found.boxes);
  visit("alive", a.rows.alive, (found.boxes + 63) / 64);
  return found;
}

template <class T>
struct ArrayView {
  const T* data;
  size_t size;
};

// Structures that are pairs of 32-bit values in their array.
template <class T>
struct ElementOf {
  using Type = T;
};
template <>
struct ElementOf<BlockRange> {
  using Type = u32;
};
template <>
struct ElementOf<Directory> {
  using Type = u32;
};

// Fills a view from named arrays: `source.get<T>(name)` returns an ArrayView or throws DamagedArray.
template <class Source>
struct ViewReader {
  const Source& source;

  template <class T>
  ArrayView<T> get(const char* name, Length length) const {
    ArrayView<T> array = source.template get<T>(name);
    length.check(name, array.size);
    return array;
  }

  template <class T>
  size_t operator()(const char* name, const T*& member, Length length) const {
    auto array = get<typename ElementOf<T>::Type>(name, length);
    member = reinterpret_cast<const T*>(array.data);
    return array.size;
  }
  size_t operator()(const char* name, Numbers& member, Length length) const {
    return (*this)(name, member.first, length);
  }
  size_t operator()(const char* name, BitmapSizes& member, Length length) const {
    return read_sizes(name, member, length);
  }
  size_t operator()(const char* name, DenseSizes& member, Length length) const {
    return read_sizes(name, member, length);
  }
  size_t operator()(const char* name, Seed& member, Length length) const {
    auto array = get<u64>(name, length);
    member = {array.data[0], array.data[1]};
    return array.size;
  }

 private:
  template <class Sizes>
  size_t read_sizes(const char* name, Sizes& member, Length length) const {
    auto array = get<u32>(name, length);
    std::memcpy(&member, array.data, array.size * sizeof(u32));
    return array.size;
  }
};

template <class Source>
Bitmap view_bitmap(const Source& source, u32 attributes) {
  Bitmap map{};
  map.attributes = attributes;
  BitmapLengths lengths = each_bitmap_array(map, attributes, ViewReader<Source>{source});
  map.numbers.bytes = map.number_bytes;
  map.groups = lengths.lines / (lines_per_group(map) * TILE_WORDS);
  map.entry_count = lengths.entries;
  map.more_bytes = lengths.more;
  return map;
}

template <class Source>
Dense view_dense(const Source& source, u32 attributes) {
  Dense map{};
  map.attributes = attributes;
  DenseLengths lengths = each_dense_array(map, attributes, ViewReader<Source>{source});
  map.numbers.bytes = map.number_bytes;
  map.entry_count = lengths.entries;
  map.more_bytes = lengths.more;
  return map;
}

template <class Source>
Postings view_postings(const Source& source, u32 attributes) {
  Postings postings{};
  postings.attributes = attributes;
  PostingLengths lengths = each_posting_array(postings, attributes, ViewReader<Source>{source});
  require(!(lengths.boxes >> 31), "numbers", "the number of boxes is out of range");
  require(!(lengths.slots & (lengths.slots - 1)) && !(lengths.slots >> 32), "slots", "their number is no power of two");
  require(postings.key_begin[attributes] == lengths.keys, "key_begin", "keys do not end with the values");
  postings.slot_mask = u32(lengths.slots - 1);
  postings.rows.count = u32(lengths.boxes);
  postings.word_count = lengths.words;
  return postings;
}

inline size_t positions_of(const Postings& postings) { return postings.rows.count; }
inline u32 number_of(const Postings& postings, size_t position) { return postings.rows.numbers[position]; }
inline u32 level_at(const Postings& postings, size_t position) { return postings.rows.levels[position]; }

template <class View>
const u64*& alive_of(View& view) {
  return view.alive;
}
inline const u64*& alive_of(Postings& postings) { return postings.rows.alive; }

// Values in the array `alive`, the only one that is replaced while a segment is open.
inline size_t alive_words(const Bitmap& map) { return size_t(tiles_of(map.blocks)) * TILE_WORDS; }
inline size_t alive_words(const Dense& map) { return words_of(map); }
inline size_t alive_words(const Postings& postings) { return (size_t(postings.rows.count) + 63) / 64; }

}  // namespace hitbox
