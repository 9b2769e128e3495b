// The format of a postings segment, which suits boxes with a selective equality: an inverted index from each box's
// rarest (attribute, value) to the box.
//
//   slots        hash(attribute, value) -> key           open addressing; a point probes once per attribute. Keys with
//                                                         equal hashes have a slot each; key_value tells them apart.
//   key_value    sorted within an attribute               an interval looks up a range of keys
//   key_start    key -> its postings                      per attribute its keys, then one list of boxes that have only
//                                                         ranges; at the end the boxes that are always candidates
//   filter       | attribute 16 | low 24 | high 24 |      a posting's most selective other constraint, in coarse codes,
//                                                         tested before its row is read
//   rows         the whole box, exact (rows.hpp)
#pragma once

#include "format/rows.hpp"

namespace hitbox {

constexpr u32 CODE_TOP = (1u << 24) - 1;

// The hash seed of a segment, random for each, so that subscribers cannot choose values that collide.
struct Seed {
  u64 first, second;
};

struct Postings {
  u32 attributes;
  u32 slot_mask;
  Seed seed;
  Rows rows;             // in posting order
  const u64* slots;      // | fingerprint 32 | key + 1 |, 0 where empty
  const u32* key_begin;  // [attributes + 1] first key of an attribute; the last of its keys is the list of ranges
  const i64* key_value;  // [keys]
  const u32* key_start;  // [keys + 2]; the last key holds the boxes that are always candidates
  const u64* filter;     // [count]
  const i64* code_base;  // [attributes]
  const i64* code_last;  // [attributes]
  const u8* code_shift;  // [attributes]
  size_t word_count;     // of rows.words
};

// A 24-bit code of a key that preserves order.
static inline u32 coarse(i64 base, i64 last, u8 shift, i64 key) {
  if (key < base) return key == MISSING ? 0 : 1;
  if (key > last) return CODE_TOP;
  return 2 + u32((u64(key) - u64(base)) >> shift);
}

// Two multiplications to 128 bits, folded with the seed as in wyhash: unpredictable without the seed.
static inline u64 hash_of(Seed seed, u32 attribute, i64 value) {
  __extension__ typedef unsigned __int128 u128;
  u128 product = u128(u64(value) ^ seed.first) * (attribute ^ seed.second);
  product = u128(u64(product) ^ seed.first) * (u64(product >> 64) ^ seed.second);
  return u64(product) ^ u64(product >> 64);
}

static inline u64 fingerprint(u64 hash) { return hash & 0xFFFFFFFF00000000ull; }

}  // namespace hitbox
