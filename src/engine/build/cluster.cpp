// Clusters boxes, so that those in a block are similar and an event can skip most blocks. Used by build_bitmap.cpp.
//
// Top-down: at each node a sample of the boxes decides which attribute to split by centre, and into how many parts: the
// split with the best reduction of the share of blocks that an event must visit, relative to its entropy. Boxes that do
// not constrain the attribute form a part of their own. Parts end at block boundaries. Events are assumed to fall into
// all cells of an attribute with equal probability.
#include <algorithm>
#include <cmath>

#include "build/build.hpp"

namespace hitbox {
namespace {

constexpr u32 SAMPLE_SIZE = 256;
constexpr u32 OPEN_BUCKET = 127;  // for boxes that do not constrain the attribute; centres are 0..126
constexpr double MIN_GAIN = 0.004;

struct Interval {
  u8 centre, low, high;
};

struct Split {
  u32 attribute = 0;
  u32 parts = 0;
  double gain = MIN_GAIN;
};

struct Clusterer {
  const Boxes& boxes;
  const std::vector<Cells>& cells;
  u32 attributes, block;
  InterruptCheck& interrupt;
  std::vector<float> mass;  // [attributes][CELLS + 1] cumulative probability of events
  std::vector<std::vector<Interval>> sampled;
  std::vector<u32> spare;
  std::vector<u8> buckets;

  Clusterer(const Boxes& b, const std::vector<Cells>& c, const Grid& grid, u32 m, u32 size, InterruptCheck& w)
      : boxes(b), cells(c), attributes(m), block(size), interrupt(w), mass(size_t(m) * (CELLS + 1)), sampled(m) {
    for (u32 a = 0; a < m; ++a) {
      const i64* starts = grid.starts.memory.get() + size_t(a) * CELLS;
      float* sum = &mass[size_t(a) * (CELLS + 1)];
      sum[0] = 0;
      for (u32 cell = 0; cell < CELLS; ++cell)
        sum[cell + 1] = sum[cell] + float(cell + 1 == CELLS || starts[cell] < starts[cell + 1]);
      for (u32 cell = 0; cell <= CELLS; ++cell) sum[cell] /= sum[CELLS];
    }
  }

  double covered(u32 a, u32 low, u32 high) const {
    const float* sum = &mass[size_t(a) * (CELLS + 1)];
    return double(sum[high + 1]) - double(sum[low]);
  }

  void sample(const u32* order, size_t count) {
    for (auto& one : sampled) one.clear();
    for (u32 i = 0; i < SAMPLE_SIZE; ++i) {
      size_t box = order[stratified_sample(i, count * i / SAMPLE_SIZE, count * (i + 1) / SAMPLE_SIZE)];
      for (i64 at = boxes.offsets[box]; at < boxes.offsets[box + 1]; ++at) {
        Cells c = cells[size_t(at)];
        sampled[c.attribute].push_back({u8((c.low + c.high)), c.low, c.high});
      }
    }
  }

  // Gain of splitting attribute a into `parts`: log2 of the reduction in visits, per bit of entropy.
  double gain_of(u32 a, u32 parts) const {
    const auto& all = sampled[a];
    double open = 1.0 - double(all.size()) / SAMPLE_SIZE, survival = open;
    double bits = open > 0 ? -open * std::log2(open) : 0;
    u32 least = CELLS, most = 0;
    for (u32 part = 0; part < parts; ++part) {
      u32 low = CELLS, high = 0;
      size_t from = all.size() * part / parts, to = all.size() * (part + 1) / parts;
      for (size_t i = from; i < to; ++i) {
        low = std::min<u32>(low, all[i].low);
        high = std::max<u32>(high, all[i].high);
      }
      if (from == to) continue;
      double share = double(to - from) / SAMPLE_SIZE;
      survival += share * covered(a, low, high);
      bits -= share * std::log2(share);
      least = std::min(least, low);
      most = std::max(most, high);
    }
    double before = open > 0 ? 1.0 : covered(a, least, most);
    return bits > 0.01 && survival < before ? std::log2(before / survival) / bits : 0;
  }

  Split best(size_t count) {
    Split found;
    for (u32 a = 0; a < attributes; ++a) {
      auto& all = sampled[a];
      if (all.size() * count < size_t(block) * SAMPLE_SIZE || all.size() < SAMPLE_SIZE / 16) continue;
      std::sort(all.begin(), all.end(), [](Interval x, Interval y) { return x.centre < y.centre; });
      report_work(interrupt, SAMPLE_SIZE);
      for (u32 parts : {1u, 2u, 3u, 4u, 6u, 8u}) {
        if (parts > 1 && all.size() * count < size_t(block) * SAMPLE_SIZE * parts) break;
        double gain = gain_of(a, parts);
        if (gain > found.gain) found = {a, parts, gain};
      }
    }
    return found;
  }

  u8 bucket(size_t box, u32 a) const {
    const Cells* at = cells.data() + boxes.offsets[box];
    const Cells* end = cells.data() + boxes.offsets[box + 1];
    while (at < end && at->attribute < a) ++at;
    return at < end && at->attribute == a ? u8(at->low + at->high) : u8(OPEN_BUCKET);
  }

  // Counting sort of a node by bucket; returns how many boxes constrain the attribute.
  size_t arrange(u32* order, size_t count, u32 a) {
    buckets.resize(count);
    spare.assign(order, order + count);
    size_t start[OPEN_BUCKET + 2] = {};
    for (size_t i = 0; i < count; ++i) {
      if (i + 2 * PrefetchDistance::CLUSTER_BOXES < count)
        __builtin_prefetch(boxes.offsets + spare[i + 2 * PrefetchDistance::CLUSTER_BOXES]);
      if (i + PrefetchDistance::CLUSTER_BOXES < count)
        __builtin_prefetch(cells.data() + boxes.offsets[spare[i + PrefetchDistance::CLUSTER_BOXES]]);
      report_work(interrupt, 2);
      buckets[i] = bucket(spare[i], a);
      ++start[buckets[i] + 1];
    }
    for (u32 b = 0; b <= OPEN_BUCKET; ++b) start[b + 1] += start[b];
    size_t constrained = start[OPEN_BUCKET];
    for (size_t i = 0; i < count; ++i) order[start[buckets[i]]++] = spare[i];
    return constrained;
  }

  void split(u32* order, size_t count) {
    if (count <= block) return;
    sample(order, count);
    Split chosen = best(count);
    if (!chosen.parts) return;
    size_t constrained = arrange(order, count, chosen.attribute);
    if (constrained < count) constrained = constrained / block * block;
    size_t from = 0;
    for (u32 part = 0; part < chosen.parts; ++part) {
      size_t to = constrained * (part + 1) / chosen.parts / block * block;
      if (part + 1 == chosen.parts) to = constrained;
      if (to > from && to - from < count) split(order + from, to - from);
      from = std::max(from, to);
    }
    if (from > 0 && from < count) split(order + from, count - from);
  }
};

}  // namespace

void cluster(const Boxes& boxes, const std::vector<Cells>& cells, const Grid& grid, u32 attributes, u32 block,
             u32* order, size_t count, InterruptCheck& interrupt) {
  Clusterer(boxes, cells, grid, attributes, block, interrupt).split(order, count);
}

}  // namespace hitbox
