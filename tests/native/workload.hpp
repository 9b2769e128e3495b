// Workloads, segments of them and a plain scan: what the native checks share.
#pragma once

#include <cstdio>
#include <random>
#include <set>

#include "build/build.hpp"
#include "format/decode.hpp"
#include "match/dispatch.hpp"
#include "format/tail.hpp"

using namespace hitbox;

namespace {

std::mt19937_64 random_engine(7);

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
  return {attributes, u32(a.slots.size - 1), {a.seed[0], a.seed[1]}, rows, a.slots.data(), a.key_begin.data(), a.key_value.data(),
          a.key_start.data(), a.filter.data(), a.code_base.data(), a.code_last.data(), a.code_shift.data()};
}

struct Sources {
  BitmapArrays bitmap;
  PostingArrays postings;
  Tail tail;
  Bitmap bitmap_view;
  Postings posting_view;

  Sources(const Workload& work, const BitmapOptions& options, InterruptCheck& interrupt) {
    constexpr Seed seed{0x9E3779B97F4A7C15ull, 0xBF58476D1CE4E5B9ull};
    u32 m = work.attributes;
    bitmap = build_bitmap(work.boxes(), options, interrupt);
    postings = build_postings(work.boxes(), choose_keys(work.boxes(), m, true, seed, interrupt), m, seed, interrupt);
    tail.append(work.boxes());
    bitmap_view = view(bitmap, m);
    posting_view = view(postings, m);
  }

  std::vector<SegmentSet> sets() const {
    return {SegmentSet{&bitmap_view, 1, nullptr, 0, Rows{}}, SegmentSet{nullptr, 0, &posting_view, 1, Rows{}},
            SegmentSet{nullptr, 0, nullptr, 0, tail.rows()}};
  }
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

}  // namespace
