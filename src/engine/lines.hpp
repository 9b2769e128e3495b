// Operations on a line of 512 bits, in AVX-512, AVX2 or plain loops, whichever this file is compiled for.
#pragma once

#include "bitmap.hpp"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

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
static inline Line without(Line x, Line y) { return {_mm512_andnot_si512(y.bits, x.bits)}; }

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
static inline Line without(Line x, Line y) { return {_mm256_andnot_si256(y.a, x.a), _mm256_andnot_si256(y.b, x.b)}; }
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
static inline Line without(Line x, const Line& y) {
  for (u32 w = 0; w < WORDS; ++w) x.words[w] &= ~y.words[w];
  return x;
}
static inline bool empty(const Line& x) {
  u64 any = 0;
  for (u32 w = 0; w < WORDS; ++w) any |= x.words[w];
  return !any;
}

#endif

static inline u32 count(const u64* words) {
  u32 sum = 0;
  for (u32 w = 0; w < WORDS; ++w) sum += u32(__builtin_popcountll(words[w]));
  return sum;
}

// Which words of a line are not 0, a bit each.
static inline u32 words_in_use(const u64* line) {
#if defined(__AVX512F__)
  __m512i words = _mm512_loadu_si512(line);
  return _mm512_test_epi64_mask(words, words);
#else
  u32 found = 0;
  for (u32 w = 0; w < WORDS; ++w) found |= u32(line[w] != 0) << w;
  return found;
#endif
}

template <class Take>
static inline void each_bit(const u64* line, Take take) {
  for (u32 some = words_in_use(line); some; some &= some - 1) {
    u32 w = u32(__builtin_ctz(some));
    u64 bits = line[w];
    do {
      take(w * 64 + u32(__builtin_ctzll(bits)));
      bits &= bits - 1;
    } while (bits);
  }
}

// What the ends of one attribute are held against: the event's places there, and its keys where places may tie.
struct Against {
  u32 low, high;               // 22-bit places
  bool low_lossy, high_lossy;  // whether a tie must be settled by the exact key
  const i64 *low_key, *high_key;
};

static inline bool entry_fails(const Bitmap& map, u32 at, const Against& event) {
  u32 entry = map.entries[at], place = entry >> 10;
  if (entry & UPPER)
    return place < event.low || (place == event.low && event.low_lossy && map.exact[at] < *event.low_key);
  return place > event.high || (place == event.high && event.high_lossy && map.exact[at] > *event.high_key);
}

static inline void clear(u64* line, u32 position) { line[position >> 6] &= ~(1ull << (position & 63)); }

// Boxes found to fail, cleared later all at once: how many a single list has is hard to foretell, of all of them less.
constexpr u32 FAILED = 256;
struct Failed {
  u32 at[FAILED + 16];
};

static inline u32 clear_failed(const Failed& failed, u32 size, u64* line) {
  for (u32 i = 0; i < size; ++i) clear(line, failed.at[i] & (STRIDE - 1));
  return 0;
}

// Notes the boxes whose end among entries [from, to) excludes the event. `members` is the line as it was when its lists
// began to be read; who is not in it need not be noted. Returns how many are noted now.
static inline u32 find_failing(const Bitmap& map, u32 from, u32 to, const Against& event, const Line& members,
                               Failed& failed, u32 size, u64* line) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_set1_epi32(int(event.low)), high = _mm512_set1_epi32(int(event.high));
  for (u32 at = from; at < to; at += 16) {
    __mmask16 inside = to - at >= 16 ? __mmask16(0xFFFF) : __mmask16((1u << (to - at)) - 1);
    __m512i entry = _mm512_loadu_si512(map.entries + at), place = _mm512_srli_epi32(entry, 10);
    __mmask16 upper = _mm512_test_epi32_mask(entry, _mm512_set1_epi32(int(UPPER)));
    __m512i which = _mm512_srli_epi32(_mm512_and_si512(entry, _mm512_set1_epi32(511)), 5);
    __m512i moved = _mm512_srlv_epi32(_mm512_permutexvar_epi32(which, members.bits),
                                      _mm512_and_si512(entry, _mm512_set1_epi32(31)));
    __mmask16 member = _mm512_mask_test_epi32_mask(inside, moved, _mm512_set1_epi32(1));
    __mmask16 above = _mm512_cmpgt_epu32_mask(place, high), below = _mm512_cmplt_epu32_mask(place, low);
    __mmask16 fails = __mmask16(((above & ~upper) | (below & upper)) & member);
    if (event.low_lossy || event.high_lossy) {
      __mmask16 tied = _mm512_cmpeq_epu32_mask(place, high) | _mm512_cmpeq_epu32_mask(place, low);
      for (u32 bits = u32(tied & member); bits; bits &= bits - 1) {
        u32 one = u32(__builtin_ctz(bits));
        if (entry_fails(map, at + one, event)) fails = __mmask16(fails | 1u << one);
      }
    }
    _mm512_storeu_si512(failed.at + size, _mm512_maskz_compress_epi32(fails, entry));
    size += u32(__builtin_popcount(fails));
    if (size > FAILED) size = clear_failed(failed, size, line);
  }
#else
  (void)members, (void)failed;
  for (u32 at = from; at < to; ++at)
    if (entry_fails(map, at, event)) clear(line, map.entries[at] & 511);
#endif
  return size;
}

// Writes the numbers of the boxes of a line.
static inline u32 expand(const u64* line, const u32* numbers, i32* out) {
  i32* from = out;
#if defined(__AVX512F__)
  if (count(line) >= 24) {
    for (u32 at = 0; at < BLOCK; at += 16) {
      __mmask16 chosen = __mmask16(line[at >> 6] >> (at & 63));
      u32 some = u32(__builtin_popcount(chosen));
      _mm512_mask_storeu_epi32(out, __mmask16((1u << some) - 1),
                               _mm512_maskz_compress_epi32(chosen, _mm512_loadu_si512(numbers + at)));
      out += some;
    }
    return u32(out - from);
  }
#endif
  each_bit(line, [&](u32 position) { *out++ = i32(numbers[position]); });
  return u32(out - from);
}

// Memory of one call: grows, never shrinks, freed at the end.
template <class T>
struct Scratch {
  T* data = nullptr;
  size_t size = 0, capacity = 0;

  Scratch() = default;
  explicit Scratch(size_t count) { need(count); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data); }
  void need(size_t count) {
    if (count <= capacity) return;
    capacity = count + count / 2 + 16;
    regrow_large(data, capacity);
  }
  void push(T value) {
    need(size + 1);
    data[size++] = value;
  }
  T& operator[](size_t at) { return data[at]; }
};

}  // namespace
}  // namespace hitbox
