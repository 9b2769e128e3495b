// Distinct texts, numbered in the order in which they came.
//
// The hash is seeded by whoever makes the table, so nobody can choose texts that collide.
#pragma once

#include <string_view>
#include <vector>

#include "base/common.hpp"

namespace hitbox::text {

struct Seed {
  u64 first, second;
};

static inline u64 mix(u64 a, u64 b) {
  __extension__ typedef unsigned __int128 u128;
  const u128 product = u128(a) * b;
  return u64(product) ^ u64(product >> 64);
}

// As wyhash does it: 16 bytes per multiplication, and the last ones in two words that may overlap.
static inline u64 hash_of(std::string_view text, Seed seed) {
  auto eight = [](const char* at) {
    u64 value;
    std::memcpy(&value, at, 8);
    return value;
  };
  auto four = [](const char* at) {
    u32 value;
    std::memcpy(&value, at, 4);
    return u64(value);
  };
  const size_t size = text.size();
  const char *at = text.data(), *end = at + size;
  u64 hash = seed.first ^ size, a = 0, b = 0;
  for (; end - at > 16; at += 16) hash = mix(eight(at) ^ seed.second, eight(at + 8) ^ hash);
  if (size >= 8) {
    a = eight(end - at < 8 ? end - 8 : at);
    b = eight(end - 8);
  } else if (size >= 4) {
    a = four(at);
    b = four(end - 4);
  } else if (size) {
    a = u64(u8(at[0])) << 16 | u64(u8(at[size / 2])) << 8 | u8(end[-1]);
  }
  return mix(mix(a ^ seed.second, b ^ hash), seed.first | 1);
}

class TextTable {
 public:
  static constexpr u32 NONE = ~u32(0);

  explicit TextTable(Seed seed) : seed_(seed), slots_(FEWEST_SLOTS, NONE) {}

  size_t size() const { return ends_.size(); }
  std::string_view operator[](u32 number) const {
    const u64 start = number ? ends_[number - 1] : 0;
    return {data_.data() + start, size_t(ends_[number] - start)};
  }
  const std::vector<char>& data() const { return data_; }
  const std::vector<u64>& ends() const { return ends_; }

  u32 find(std::string_view text) const { return slots_[slot_of(text, hash_of(text, seed_))]; }

  // The number of a text, a new one if it has not come before.
  u32 number(std::string_view text) {
    const u64 hash = hash_of(text, seed_);
    size_t slot = slot_of(text, hash);
    if (slots_[slot] != NONE) return slots_[slot];
    const u32 number = u32(size());
    data_.insert(data_.end(), text.begin(), text.end());
    ends_.push_back(data_.size());
    hashes_.push_back(hash);
    slots_[slot] = number;
    if (2 * size() > slots_.size()) grow();
    return number;
  }

  void clear() {
    slots_.assign(FEWEST_SLOTS, NONE);
    hashes_.clear();
    ends_.clear();
    data_.clear();
  }

 private:
  static constexpr size_t FEWEST_SLOTS = 64;

  size_t slot_of(std::string_view text, u64 hash) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = hash & mask;
    while (slots_[slot] != NONE && (hashes_[slots_[slot]] != hash || (*this)[slots_[slot]] != text))
      slot = (slot + 1) & mask;
    return slot;
  }

  void grow() {
    std::vector<u32> slots(slots_.size() * 4, NONE);
    for (u32 number = 0; number < size(); ++number) {
      size_t slot = hashes_[number] & (slots.size() - 1);
      while (slots[slot] != NONE) slot = (slot + 1) & (slots.size() - 1);
      slots[slot] = number;
    }
    slots_.swap(slots);
  }

  Seed seed_;
  std::vector<u32> slots_;
  std::vector<u64> hashes_, ends_;
  std::vector<char> data_;
};

}  // namespace hitbox::text
