// A sealed segment for boxes that an equality tells apart: postings under their rarest (attribute, value).
//
//   slots        hash(attribute, value) -> key           a point asks once an attribute; keys with equal hashes have
//                                                         a slot each, and the key itself says which is meant
//   key_value    sorted within an attribute               an interval asks for a range of keys
//   key_start    key -> its postings                      keys of an attribute, then one list of boxes that have only
//                                                         ranges; last of all the boxes that nothing can be said of
//   filter       | attribute 16 | low 24 | high 24 |      a posting's most telling other constraint, in coarse codes,
//                                                         scanned before a row is touched
//   rows         the whole box, exact
#pragma once

#include "format/rows.hpp"

namespace hitbox {

constexpr u32 CODE_TOP = (1u << 24) - 1;

// What a segment's hash depends on, drawn at random for each: who subscribes must not be able to choose values that all
// fall into one slot.
struct Seed {
  u64 first, second;
};

struct Postings {
  u32 attributes;
  u32 slot_mask;
  Seed seed;
  Rows rows;               // in posting order
  const u64* slots;        // | fingerprint 32 | key + 1 |, 0 where empty
  const u32* key_begin;    // [attributes + 1] first key of an attribute; the last of its keys is the list of ranges
  const i64* key_value;    // [keys]
  const u32* key_start;    // [keys + 2]; the last key holds the boxes that are always candidates
  const u64* filter;       // [count]
  const i64* code_base;    // [attributes]
  const i64* code_last;    // [attributes]
  const u8* code_shift;    // [attributes]
};

// A coarse code that never turns the order of two keys around.
static inline u32 coarse(i64 base, i64 last, u8 shift, i64 key) {
  if (key < base) return key == MISSING ? 0 : 1;
  if (key > last) return CODE_TOP;
  return 2 + u32((u64(key) - u64(base)) >> shift);
}

// Two multiplications to 128 bits, each folded with the seed (as in wyhash): who does not know it can tell nothing of
// the result.
static inline u64 hash_of(Seed seed, u32 attribute, i64 value) {
  __extension__ typedef unsigned __int128 u128;
  u128 product = u128(u64(value) ^ seed.first) * (attribute ^ seed.second);
  product = u128(u64(product) ^ seed.first) * (u64(product >> 64) ^ seed.second);
  return u64(product) ^ u64(product >> 64);
}

static inline u64 fingerprint(u64 hash) { return hash & 0xFFFFFFFF00000000ull; }

}  // namespace hitbox
