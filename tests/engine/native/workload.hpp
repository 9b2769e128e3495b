// Shared by the native tests: random workloads, segments built from them, and a linear scan as the oracle.
#pragma once

#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <string>

#include "build/build.hpp"
#include "format/decode.hpp"
#include "format/segment_view.hpp"
#include "format/tail.hpp"
#include "match/dispatch.hpp"

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

// A builder's arrays by name, from which views are opened as from a snapshot.
struct NamedArrays {
  struct Entry {
    const void* data;
    size_t size, width;
  };
  std::map<std::string, Entry> entries;

  template <class T>
  size_t operator()(const char* name, Array<T>& array, const Length&) {
    entries[name] = {array.data(), array.size, sizeof(T)};
    return array.size;
  }
  size_t operator()(const char* name, const BitmapSizes& sizes, const Length& length) {
    const size_t size = sizes.compact ? length.most : length.least;
    entries[name] = {&sizes, size, sizeof(u32)};
    return size;
  }
  size_t operator()(const char* name, const DenseSizes& sizes, const Length& length) {
    entries[name] = {&sizes, length.least, sizeof(u32)};
    return length.least;
  }
  size_t operator()(const char* name, const Seed& seed, const Length& length) {
    entries[name] = {&seed, length.least, sizeof(u64)};
    return length.least;
  }

  template <class T>
  ArrayView<T> get(const char* name) const {
    auto found = entries.find(name);
    if (found == entries.end() || found->second.width != sizeof(T)) throw DamagedArray(name, "it is missing");
    return {static_cast<const T*>(found->second.data), found->second.size};
  }
};

Bitmap view(BitmapArrays& arrays, u32 attributes) {
  NamedArrays named;
  each_bitmap_array(arrays, attributes, named);
  Bitmap map = view_bitmap(named, attributes);
  check_tables(map);
  return map;
}

Dense view(DenseArrays& arrays, u32 attributes) {
  NamedArrays named;
  each_dense_array(arrays, attributes, named);
  Dense map = view_dense(named, attributes);
  check_tables(map);
  return map;
}

Postings view(PostingArrays& arrays, u32 attributes) {
  NamedArrays named;
  each_posting_array(arrays, attributes, named);
  Postings postings = view_postings(named, attributes);
  check_tables(postings);
  return postings;
}

struct Sources {
  BitmapArrays bitmap, compact;
  DenseArrays dense;
  PostingArrays postings;
  Tail tail;
  Bitmap bitmap_view, compact_view;
  Dense dense_view;
  Postings posting_view;

  Sources(const Workload& work, const BitmapOptions& options, InterruptCheck& interrupt) {
    constexpr Seed seed{0x9E3779B97F4A7C15ull, 0xBF58476D1CE4E5B9ull};
    u32 m = work.attributes;
    bitmap = build_bitmap(work.boxes(), options, interrupt);
    BitmapOptions smaller = options;
    smaller.compact = true;
    compact = build_bitmap(work.boxes(), smaller, interrupt);
    dense = build_dense(work.boxes(), options, interrupt);
    postings = build_postings(work.boxes(), choose_keys(work.boxes(), m, true, seed, interrupt), m, seed, interrupt);
    const Boxes boxes = work.boxes();
    std::vector<u32> where(boxes.count);
    tail = Tail().with_room(boxes.count, size_t(boxes.offsets[boxes.count]));
    tail.stage(boxes);
    tail.publish(where.data(), where.size());
    bitmap_view = view(bitmap, m);
    compact_view = view(compact, m);
    dense_view = view(dense, m);
    posting_view = view(postings, m);
  }

  std::vector<SegmentSet> sets() const {
    return {SegmentSet{&bitmap_view, 1, nullptr, 0, Rows{}}, SegmentSet{&compact_view, 1, nullptr, 0, Rows{}},
            SegmentSet{nullptr, 0, &posting_view, 1, Rows{}}, SegmentSet{nullptr, 0, nullptr, 0, tail.rows()},
            SegmentSet{nullptr, 0, nullptr, 0, Rows{}, &dense_view, 1}};
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
