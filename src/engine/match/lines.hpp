// Vector operations on lines (512 bits), lists and box numbers, in AVX-512, AVX2 or portable loops, depending on the
// instruction set that match.cpp is compiled for.
#pragma once

#include "base/prefetch.hpp"
#include "format/row.hpp"

namespace hitbox {
namespace {

#if defined(__AVX512F__)

struct Line {
  __m512i bits;
};
static inline Line load(const u64* at) { return {_mm512_loadu_si512(at)}; }
static inline void store(u64* at, Line x) { _mm512_storeu_si512(at, x.bits); }
static inline Line operator&(Line x, Line y) { return {_mm512_and_si512(x.bits, y.bits)}; }
static inline Line operator|(Line x, Line y) { return {_mm512_or_si512(x.bits, y.bits)}; }
static inline bool empty(Line x) { return _mm512_test_epi64_mask(x.bits, x.bits) == 0; }

#elif defined(__AVX2__)

struct Line {
  __m256i a, b;
};
static inline Line load(const u64* at) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at) + 1)};
}
static inline void store(u64* at, Line x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at) + 1, x.b);
}
static inline Line operator&(Line x, Line y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
static inline Line operator|(Line x, Line y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
static inline bool empty(Line x) {
  __m256i any = _mm256_or_si256(x.a, x.b);
  return _mm256_testz_si256(any, any);
}

#else

struct Line {
  u64 words[WORDS];
};
static inline Line load(const u64* at) {
  Line x;
  std::memcpy(x.words, at, sizeof x.words);
  return x;
}
static inline void store(u64* at, Line x) { std::memcpy(at, x.words, sizeof x.words); }
static inline Line operator&(Line x, const Line& y) {
  for (u32 w = 0; w < WORDS; ++w) x.words[w] &= y.words[w];
  return x;
}
static inline Line operator|(Line x, const Line& y) {
  for (u32 w = 0; w < WORDS; ++w) x.words[w] |= y.words[w];
  return x;
}
static inline bool empty(const Line& x) {
  u64 any = 0;
  for (u32 w = 0; w < WORDS; ++w) any |= x.words[w];
  return !any;
}

#endif

template <u32 SIZE = WORDS>
static inline u32 count(const u64* words) {
#if defined(__AVX512VPOPCNTDQ__)
  __m512i sum = _mm512_popcnt_epi64(_mm512_loadu_si512(words));
  for (u32 w = WORDS; w < SIZE; w += WORDS)
    sum = _mm512_add_epi64(sum, _mm512_popcnt_epi64(_mm512_loadu_si512(words + w)));
  return u32(_mm512_reduce_add_epi64(sum));
#elif defined(__AVX512BW__)
  // Bits of each half byte by table, then sums of eight bytes.
  const __m512i bits = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  const __m512i half = _mm512_set1_epi8(15);
  __m512i sum = _mm512_setzero_si512();
  for (u32 w = 0; w < SIZE; w += WORDS) {
    __m512i line = _mm512_loadu_si512(words + w);
    __m512i lower = _mm512_shuffle_epi8(bits, _mm512_and_si512(line, half));
    __m512i upper = _mm512_shuffle_epi8(bits, _mm512_and_si512(_mm512_srli_epi16(line, 4), half));
    sum = _mm512_add_epi8(sum, _mm512_add_epi8(lower, upper));  // up to 8 per line: 4 lines fit into a byte
  }
  static_assert(SIZE / WORDS <= 31);
  return u32(_mm512_reduce_add_epi64(_mm512_sad_epu8(sum, _mm512_setzero_si512())));
#else
  u32 sum = 0;
  for (u32 w = 0; w < SIZE; ++w) sum += u32(__builtin_popcountll(words[w]));
  return sum;
#endif
}

// One bit per word: it is not 0.
template <u32 SIZE>
static inline u32 nonzero_words(const u64* words) {
  u32 found = 0;
#if defined(__AVX512F__)
  for (u32 w = 0; w < SIZE; w += WORDS) {
    __m512i line = _mm512_loadu_si512(words + w);
    found |= u32(_mm512_test_epi64_mask(line, line)) << w;
  }
#else
  for (u32 w = 0; w < SIZE; ++w) found |= u32(words[w] != 0) << w;
#endif
  return found;
}

// Calls callback(position) for each bit that is set.
template <u32 SIZE = WORDS, class Callback>
static inline void each_bit(const u64* words, Callback callback) {
  for (u32 some = nonzero_words<SIZE>(words); some; some &= some - 1) {
    u32 w = u32(__builtin_ctz(some));
    u64 bits = words[w];
    do {
      callback(w * 64 + u32(__builtin_ctzll(bits)));
      bits &= bits - 1;
    } while (bits);
  }
}

// No-op prefetch callback.
struct NoPrefetch {
  void operator()() const {}
};

#if defined(__AVX512VBMI2__)
alignas(64) static constexpr u8 POSITIONS[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                                 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                                 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

// Writes `first` + position for each bit that is set in a word and returns their number. May overwrite 15 values more.
static inline u32 list_word(u64 bits, u32 first, u32* out) {
  const u32 size = u32(__builtin_popcountll(bits));
  const __m512i all = _mm512_set1_epi32(int(first));
  __m512i at = _mm512_maskz_compress_epi8(bits, _mm512_load_si512(POSITIONS));
  _mm512_storeu_si512(out, _mm512_add_epi32(all, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(at))));
  for (u32 done = 16; done < size; done += 16) {
    at = _mm512_alignr_epi64(at, at, 2);
    _mm512_storeu_si512(out + done, _mm512_add_epi32(all, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(at))));
  }
  return size;
}
#else
// Eight at a time, so that few branches depend on the bits.
static inline u32 list_word(u64 bits, u32 first, u32* out) {
  const u32 size = u32(__builtin_popcountll(bits));
  for (u32 done = 0; done < size; done += 8)
    for (u32 i = 0; i < 8; ++i, bits &= bits - 1) out[done + i] = first + u32(__builtin_ctzll(bits | 1ull << 63));
  return size;
}
#endif

// Writes `base` + position for each bit that is set and returns their number. May overwrite 15 values after them.
template <u32 SIZE>
static inline u32 list_bits(const u64* words, u32 base, u32* out) {
  u32 n = 0;
#if defined(__AVX512VBMI2__)
  const __m512i positions = _mm512_load_si512(POSITIONS);
  for (u32 some = nonzero_words<SIZE>(words); some; some &= some - 1) {
    u32 w = u32(__builtin_ctz(some)), here = u32(__builtin_popcountll(words[w]));
    __m512i at = _mm512_maskz_compress_epi8(words[w], positions), first = _mm512_set1_epi32(int(base + w * 64));
    _mm512_storeu_si512(out + n, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(at))));
    if (here > 16) list_word(words[w], base + w * 64, out + n);  // rare: the boxes of a tile that are left are few
    n += here;
  }
#elif defined(__AVX2__)
  // Four at a time, also where fewer are set: how many it is, is hard to predict.
  for (u32 some = nonzero_words<SIZE>(words); some; some &= some - 1) {
    u32 w = u32(__builtin_ctz(some)), here = u32(__builtin_popcountll(words[w]));
    u64 bits = words[w];
    for (u32 done = 0; done < here; done += 4)
      for (u32 i = 0; i < 4; ++i, bits = _blsr_u64(bits)) out[n + done + i] = base + w * 64 + u32(_tzcnt_u64(bits));
    n += here;
  }
#else
  each_bit<SIZE>(words, [&](u32 position) { out[n++] = base + position; });
#endif
  return n;
}

static inline void clear(u64* words, u32 position) { words[position >> 6] &= ~(1ull << (position & 63)); }

// What the entries of a list are compared with: high bounds whose top bits are below `low` fail, and so do low bounds
// whose top bits are above `high`; if they are equal, the row decides. With low = -1 no high bound fails, with
// high = TOP_VALUES no low bound does.
struct TopBounds {
  int low, high;
};

// A list of a tile that an event must be compared with: entries [from, to).
struct List {
  u32 from, to;
  u32 attribute;
  TopBounds event;
};

// Entries of boxes to be cleared. They are collected and cleared together, so that reading lists is branch-free.
struct FailedEntries {
  static constexpr u32 CAPACITY = 2 * TILE;  // entries in one list
  u16 entry[CAPACITY + 32];
  u32 size = 0;

  void clear_from(u64* remaining) {
    assert(size <= CAPACITY);
    for (u32 i = 0; i < size; ++i) clear(remaining, entry[i] & POSITION);
    size = 0;
  }
};

// Boxes of a tile that the top bits in a list do not decide, each with the list's attribute.
struct Undecided {
  static constexpr u32 CAPACITY = 128;  // more are resolved before the next entries are read
  u32 box[CAPACITY + 32];               // | attribute | position in tile 11 |
  u32 size = 0;
};

// Finds the boxes of a tile whose bound in a list excludes the event, and those that the top bits do not decide. Calls
// full() when `undecided` must be emptied.
template <class Full>
static inline void find_failed(const Bitmap& map, const List& list, const u64* remaining, FailedEntries& failed,
                               Undecided& undecided, Full full) {
  assert(list.from <= list.to && list.to + ENTRY_PADDING <= map.entry_count);
  assert(failed.size + (list.to - list.from) <= FailedEntries::CAPACITY && undecided.size <= Undecided::CAPACITY);
  const u32 whose = list.attribute << 11;
#if defined(__AVX512F__)
  const __m512i low = _mm512_set1_epi16(short(list.event.low)), high = _mm512_set1_epi16(short(list.event.high));
  const __m512i lane0 = _mm512_loadu_si512(remaining), lane1 = _mm512_loadu_si512(remaining + WORDS);
  const __m512i lane2 = _mm512_loadu_si512(remaining + 2 * WORDS), lane3 = _mm512_loadu_si512(remaining + 3 * WORDS);
  for (u32 at = list.from; at < list.to; at += 32) {
    __mmask32 inside = list.to - at >= 32 ? ~__mmask32(0) : (__mmask32(1) << (list.to - at)) - 1;
    __m512i entry = _mm512_loadu_si512(map.entries + at), top = _mm512_srli_epi16(entry, 12);
    __mmask32 upper = _mm512_test_epi16_mask(entry, _mm512_set1_epi16(short(UPPER)));
    __mmask32 late = _mm512_test_epi16_mask(entry, _mm512_set1_epi16(1024));  // in lane 2 or 3
    __m512i word = _mm512_srli_epi16(entry, 4);  // the low 6 bits select 16 bits out of two lanes
    __m512i bits = _mm512_mask_blend_epi16(late, _mm512_permutex2var_epi16(lane0, word, lane1),
                                           _mm512_permutex2var_epi16(lane2, word, lane3));
    __m512i moved = _mm512_srlv_epi16(bits, _mm512_and_si512(entry, _mm512_set1_epi16(15)));
    __mmask32 member = _mm512_mask_test_epi16_mask(inside, moved, _mm512_set1_epi16(1));
    __mmask32 above = _mm512_cmpgt_epi16_mask(top, high), below = _mm512_cmplt_epi16_mask(top, low);
    __mmask32 level = (_mm512_cmpeq_epi16_mask(top, high) & ~upper) | (_mm512_cmpeq_epi16_mask(top, low) & upper);
    __mmask32 fails = ((above & ~upper) | (below & upper)) & member, ties = level & member;
#if defined(__AVX512VBMI2__)
    _mm512_storeu_si512(failed.entry + failed.size, _mm512_maskz_compress_epi16(fails, entry));
    failed.size += u32(__builtin_popcount(fails));
    __m512i tied = _mm512_and_si512(_mm512_maskz_compress_epi16(ties, entry), _mm512_set1_epi16(short(POSITION)));
    const __m512i all = _mm512_set1_epi32(int(whose));
    u32 *to = undecided.box + undecided.size, some = u32(__builtin_popcount(ties));
    _mm512_storeu_si512(to, _mm512_or_si512(all, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(tied))));
    if (some > 16)
      _mm512_storeu_si512(to + 16, _mm512_or_si512(all, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(tied, 1))));
    undecided.size += some;
#else
    const __m512i all = _mm512_set1_epi32(int(whose)), position = _mm512_set1_epi32(int(POSITION));
    for (u32 half = 0; half < 2; ++half) {
      __mmask16 failing = __mmask16(fails >> 16 * half), tying = __mmask16(ties >> 16 * half);
      __m512i wide = _mm512_cvtepu16_epi32(half ? _mm512_extracti64x4_epi64(entry, 1) : _mm512_castsi512_si256(entry));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(failed.entry + failed.size),
                          _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(failing, wide)));
      failed.size += u32(__builtin_popcount(failing));
      __m512i tied = _mm512_and_si512(_mm512_maskz_compress_epi32(tying, wide), position);
      _mm512_storeu_si512(undecided.box + undecided.size, _mm512_or_si512(all, tied));
      undecided.size += u32(__builtin_popcount(tying));
    }
#endif
    if (undecided.size > Undecided::CAPACITY) full();
  }
#else
  for (u32 at = list.from; at < list.to; ++at) {
    u32 entry = map.entries[at], position = entry & POSITION;
    int top = int(entry >> 12), limit = entry & UPPER ? list.event.low : list.event.high;
    if (entry & UPPER ? top < limit : top > limit) failed.entry[failed.size++] = u16(entry);
    else if (top == limit && bit(remaining, position)) undecided.box[undecided.size++] = whose | position;
    if (undecided.size > Undecided::CAPACITY) full();
  }
#endif
}

#if defined(__AVX512F__)
// Widens sixteen numbers of 1 to 4 bytes to 32 bits: moves four at a time into each 128-bit quarter, then shuffles bytes.
struct NumberUnpacker {
  alignas(64) u32 quarters[16]{};
  alignas(64) u8 places[64]{};

  constexpr explicit NumberUnpacker(u32 bytes) {
    for (u32 i = 0; i < 16; ++i) quarters[i] = i / 4 * bytes + i % 4;
    for (u32 i = 0; i < 64; ++i) places[i] = i % 4 < bytes ? u8(i / 4 % 4 * bytes + i % 4) : 0x80;
  }

  __m512i operator()(const u8* at) const {
    __m512i all = _mm512_permutexvar_epi32(_mm512_load_si512(quarters), _mm512_loadu_si512(at));
    return _mm512_shuffle_epi8(all, _mm512_load_si512(places));
  }
};
static constexpr NumberUnpacker UNPACKERS[] = {NumberUnpacker(1), NumberUnpacker(2), NumberUnpacker(3),
                                               NumberUnpacker(4)};
#endif

// The numbers of a word's boxes: stored one by one, or following from the first one.
struct StoredNumbers {
  Numbers all;
#if defined(__AVX512F__)
  const NumberUnpacker& unpack;
  explicit StoredNumbers(Numbers numbers) : all(numbers), unpack(UNPACKERS[numbers.bytes - 1]) {}
  __m512i sixteen(u32 from) const { return unpack(all.from(from).first); }
#else
  explicit StoredNumbers(Numbers numbers) : all(numbers) {}
#endif
  u32 operator[](u32 position) const { return all[position]; }
};

struct ConsecutiveNumbers {
  u32 first;
  explicit ConsecutiveNumbers(Numbers numbers) : first(numbers[0]) {}
#if defined(__AVX512F__)
  __m512i sixteen(u32 from) const {
    const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_epi32(_mm512_set1_epi32(int(first + from)), steps);
  }
#endif
  u32 operator[](u32 position) const { return first + position; }
};

template <u32 SIZE, bool PADDED, class WordNumbers, class Prefetch>
static inline void expand_words(const u64* line, u32 size, Numbers numbers, i32* out, Prefetch prefetch_more) {
  assert(numbers.bytes <= 4 && size == count<SIZE>(line));
  u32 words = nonzero_words<SIZE>(line);
#if defined(__AVX512F__)
  const bool dense = size >= 3 * u32(__builtin_popcount(words));
#else
  (void)size;
#endif
  for (; words; words &= words - 1) {
    u32 w = u32(__builtin_ctz(words));
    const WordNumbers here(numbers.from(w * 64));
    prefetch_more();
#if defined(__AVX512F__)
    if (dense) {
      for (u32 at = 0; at < 64; at += 16) {
        __mmask16 chosen = __mmask16(line[w] >> at);
        u32 some = u32(__builtin_popcount(chosen));
        __m512i all = _mm512_maskz_compress_epi32(chosen, here.sixteen(at));
        if constexpr (PADDED) _mm512_storeu_si512(out, all);
        else _mm512_mask_storeu_epi32(out, __mmask16((1u << some) - 1), all);
        out += some;
      }
      continue;
    }
#endif
    for (u64 bits = line[w]; bits; bits &= bits - 1) *out++ = i32(here[u32(__builtin_ctzll(bits))]);
  }
}

// Writes the numbers of the `size` boxes whose bits are set. If PADDED, may overwrite 16 values after them. Calls
// prefetch_more() once per word that is not 0.
template <u32 SIZE, bool PADDED, class Prefetch>
static inline void expand(const u64* line, u32 size, Numbers numbers, i32* out, Prefetch prefetch_more) {
  if (numbers.bytes) expand_words<SIZE, PADDED, StoredNumbers>(line, size, numbers, out, prefetch_more);
  else expand_words<SIZE, PADDED, ConsecutiveNumbers>(line, size, numbers, out, prefetch_more);
}

// Copies numbers. May overwrite 15 values after them.
static inline void copy_padded(i32* to, const i32* from, size_t size) {
  for (size_t at = 0; at < size; at += 16) std::memcpy(to + at, from + at, 64);
}

// A growing buffer for one call, without initialization. (std::vector's functions have external linkage: common.hpp.)
template <class T>
struct Scratch {
  T* data = nullptr;
  size_t size = 0, capacity = 0;

  Scratch() = default;
  explicit Scratch(size_t count) { need(count); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { free_memory(data); }
  void need(size_t count) {
    if (count <= capacity) return;
    capacity = count + count / 2 + 16;
    reallocate(data, capacity);
  }
  void push(T value) {
    need(size + 1);
    data[size++] = value;
  }
  T& operator[](size_t at) {
    assert(at < capacity);
    return data[at];
  }
};

}  // namespace
}  // namespace hitbox
