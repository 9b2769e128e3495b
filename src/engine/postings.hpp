// A sealed segment for boxes that an equality tells apart: postings under their rarest (attribute, value).
//
//   slots        hash(attribute, value) -> key           a point asks once an attribute
//   key_value    sorted within an attribute               an interval asks for a range of keys
//   key_start    key -> its postings                      keys of an attribute, then one list of boxes that have only
//                                                         ranges; last of all the boxes that nothing can be said of
//   filter       | attribute 16 | low 24 | high 24 |      a posting's most telling other constraint, in coarse codes,
//                                                         scanned before a row is touched
//   rows         the whole box, exact
#pragma once

#include "rows.hpp"

namespace hitbox {

constexpr u32 CODE_TOP = (1u << 24) - 1;

struct Postings {
  u32 attributes;
  u32 slot_mask;
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

static inline u64 hash_of(u32 attribute, i64 value) {
  u64 hash = (u64(value) ^ u64(attribute) * 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
  hash ^= hash >> 29;
  hash *= 0x94D049BB133111EBull;
  return hash ^ hash >> 32;
}

static inline u64 fingerprint(u64 hash) { return hash & 0xFFFFFFFF00000000ull; }

}  // namespace hitbox
