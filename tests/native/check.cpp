// The kernels against a plain scan, without Python: built by test_engine_native.py with sanitizers on, or by hand.
#include <cstdio>
#include <random>
#include <set>

#include "../../src/engine/build.hpp"
#include "../../src/engine/decode.hpp"
#include "../../src/engine/dispatch.hpp"
#include "../../src/engine/tail.hpp"

using namespace hitbox;

namespace {

std::mt19937_64 random_engine(7);
size_t rows_elsewhere = 0;  // bytes of rows of large boxes, over all checks

i64 draw(i64 low, i64 high) { return low + i64(random_engine() % u64(high - low + 1)); }

struct Workload {
  u32 attributes;
  std::vector<i64> offsets{0}, low, high, numbers;
  std::vector<int> attribute;
  std::vector<u8> priority;

  Workload(u32 m, size_t count, i64 span) : attributes(m) {
    for (size_t i = 0; i < count; ++i) {
      bool small = draw(0, 9);
      for (u32 a = 0; a < m; ++a) {
        if (draw(0, 2) == 0 || (small && draw(0, 2))) continue;
        i64 x = draw(-span, span), y = draw(0, 3) ? draw(-span, span) : x;
        attribute.push_back(int(a));
        low.push_back(draw(0, 9) ? std::min(x, y) : draw(0, 1) ? LOWEST : MISSING);
        high.push_back(draw(0, 9) ? std::max(x, y) : draw(0, 1) && low.back() == MISSING ? MISSING : HIGHEST);
      }
      offsets.push_back(i64(low.size()));
      numbers.push_back(i64(i));
      priority.push_back(u8(draw(0, 9)));
    }
  }
  Boxes boxes() const {
    return {numbers.size(), offsets.data(), attribute.data(), low.data(), high.data(), priority.data(), numbers.data()};
  }
  bool meets(size_t box, const i64* event_low, const i64* event_high) const {
    for (i64 at = offsets[box]; at < offsets[box + 1]; ++at) {
      size_t i = size_t(at), a = size_t(attribute[i]);
      if (event_high[a] < low[i] || event_low[a] > high[i]) return false;
    }
    return true;
  }
};

Bitmap view(BitmapArrays& a, u32 attributes) {
  return {attributes, a.blocks, a.summary_words, a.members, a.room, a.keyed, a.row_bytes,
          reinterpret_cast<const BlockRange*>(a.bands.data()), a.tile_level.data(), a.level_ends.data(),
          a.grid.starts.data(), a.grid.shift.data(), a.population.data(), a.edges.data(),
          a.bare.data(), a.narrowest.data(), a.summary.data(),
          reinterpret_cast<const Directory*>(a.directory.data()), a.order.data(), a.lines.data(),
          a.entries.data(), {a.numbers.data(), a.number_bytes}, a.rows.data(), a.more.data(), a.alive.data()};
}

Postings view(PostingArrays& a, u32 attributes) {
  Rows rows{u32(a.numbers.size), a.words.data(), a.start.data(), a.numbers.data(), a.levels.data(), a.alive.data()};
  return {attributes, u32(a.slots.size - 1), rows, a.slots.data(), a.key_begin.data(), a.key_value.data(),
          a.key_start.data(), a.filter.data(), a.code_base.data(), a.code_last.data(), a.code_shift.data()};
}

struct Sources {
  BitmapArrays bitmap;
  PostingArrays postings;
  Tail tail;
  Bitmap bitmap_view;
  Postings posting_view;
};

std::vector<i64> events(u32 attributes, size_t count, i64 span) {
  std::vector<i64> keys(attributes * count);
  for (i64& key : keys) key = draw(0, 9) ? draw(-span, span) : MISSING;
  return keys;
}

bool same(const Workload& work, const i64* low, const i64* high, const i32* got, size_t size) {
  std::set<i64> found(got, got + size);
  if (found.size() != size) return false;
  for (size_t box = 0; box < work.numbers.size(); ++box)
    if (work.meets(box, low, high) != bool(found.count(i64(box)))) return false;
  for (size_t i = 1; i < size; ++i)
    if (work.priority[size_t(got[i])] > work.priority[size_t(got[i - 1])]) return false;
  return true;
}

// A limit and a window of levels cut out of the full match what they say.
bool most_urgent(const Workload& work, const Set& set, const Events& all, size_t event, const Kernels& kernels,
                 const Result& full) {
  size_t limit = size_t(draw(0, i64(full.size)));
  u32 bottom = u32(draw(0, 9)), top = u32(draw(bottom, 9));
  Result some, window;
  kernels.one(set, all, event, Wanted{LEVELS - 1, 0, limit}, some);
  kernels.one(set, all, event, Wanted{top, bottom, SIZE_MAX}, window);
  std::set<i32> whole(full.numbers, full.numbers + full.size), got(some.numbers, some.numbers + some.size);
  bool good = some.size == limit && got.size() == limit;
  for (size_t i = 0; good && i < limit; ++i)
    good = whole.count(some.numbers[i]) && work.priority[size_t(some.numbers[i])] == full.levels[i];
  std::multiset<i32> wanted, found(window.numbers, window.numbers + window.size);
  for (size_t i = 0; i < full.size; ++i)
    if (full.levels[i] >= bottom && full.levels[i] <= top) wanted.insert(full.numbers[i]);
  release(some);
  release(window);
  return good && wanted == found;
}

bool check_set(const Workload& work, const Set& set, const Kernels& kernels, i64 span) {
  constexpr size_t COUNT = 90;
  u32 m = work.attributes;
  auto low = events(m, COUNT, span), high = low;
  for (size_t i = 0; i < high.size(); ++i)
    if (low[i] != MISSING && draw(0, 1)) high[i] = std::min(HIGHEST - 1, low[i] + draw(0, span / 4));
  for (const auto& upper : {low, high}) {
    Events all{low.data(), upper == low ? low.data() : upper.data(), m};
    std::vector<i64> ends(COUNT + 1, 0);
    Result many;
    match_threads(kernels, set, all, COUNT, 2, ends.data() + 1, many);
    for (size_t e = 0; e < COUNT; ++e) {
      const i64 *from = all.low + e * m, *to = all.high + e * m;
      Result one;
      if (e % 8 == 0) kernels.one(set, all, e, Wanted{}, one);
      bool good = same(work, from, to, many.numbers + ends[e], size_t(ends[e + 1] - ends[e]));
      good = good && (e % 8 || same(work, from, to, one.numbers, one.size));
      good = good && (e % 8 || most_urgent(work, set, all, e, kernels, one));
      release(one);
      if (!good) return std::printf("%s: event %zu of %u attributes is wrong\n", kernels.name, e, m), false;
    }
    release(many);
  }
  return true;
}

bool check(u32 attributes, size_t count, i64 span, u32 block, u32 band) {
  Workload work(attributes, count, span);
  Sources sources;
  sources.bitmap = build_bitmap(work.boxes(), {attributes, block, 4, band});
  rows_elsewhere += sources.bitmap.more.size - 64;
  sources.postings = build_postings(work.boxes(), choose_keys(work.boxes(), attributes, true), attributes);
  sources.tail.append(work.boxes());
  sources.bitmap_view = view(sources.bitmap, attributes);
  sources.posting_view = view(sources.postings, attributes);
  std::vector<u32> where(sources.bitmap.position.data(), sources.bitmap.position.data() + count);
  Decoded back = decode(sources.bitmap_view, where.data(), count);
  if (back.low != work.low || back.high != work.high || back.offsets != work.offsets) return std::puts("decode"), false;
  for (const Kernels* kernels : available())
    for (const Set& set : {Set{&sources.bitmap_view, 1, nullptr, 0, Rows{}},
                           Set{nullptr, 0, &sources.posting_view, 1, Rows{}},
                           Set{nullptr, 0, nullptr, 0, sources.tail.rows()}})
      if (!check_set(work, set, *kernels, span)) return false;
  return true;
}

}  // namespace

int main() {
  for (i64 span : {i64(4), i64(1000), i64(1) << 61})
    for (u32 band : {1u, 100u, UINT32_MAX})
      if (!check(1, 200, span, 32, band) || !check(5, 1200, span, BLOCK, band) || !check(70, 150, span, 20, band))
        return 1;
  if (!rows_elsewhere) return std::puts("no box was too large for its row"), 1;
  std::puts("exact");
  return 0;
}
