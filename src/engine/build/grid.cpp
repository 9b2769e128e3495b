// Divides the keys of each attribute into cells. The first step of build_bitmap.cpp.
//
// The set of boxes that contain a key changes only at cuts: low bounds, and keys just after high bounds. If an attribute
// has few cuts, each starts a cell, and lines alone are exact. Otherwise:
// - cuts that many boxes share start cells, because events in the same cell would find all of them in its list;
// - the remaining cells are equi-depth over sampled cuts;
// - wide gaps without cuts get a cell of their own, in which events need neither line nor list;
// - the first and the last cell contain only open bounds, so that codes in the other cells keep more precision.
#include <algorithm>
#include <limits>

#include "build/build.hpp"

namespace hitbox {
namespace {

constexpr size_t MIN_SAMPLED_BOXES = 1024,
                 MAX_SAMPLED_BOXES = 16384;  // a sixteenth of the boxes: sorting cuts is expensive
constexpr u32 INNER_CELLS = CELLS - 4;       // without {MISSING}, the open low end, the first and the last cut
constexpr u32 MAX_GAPS = 4;

struct Gap {
  i64 below, above;     // the sampled cuts on both sides
  i64 lowest, highest;  // narrowed by all cuts
};

bool cut_below(i64 low) { return low > LOWEST; }
bool cut_above(i64 high) { return high < HIGHEST; }

struct Cuts {
  std::vector<i64> sample;
  std::vector<Gap> gaps;
  i64 first = HIGHEST, last = LOWEST;

  void add(i64 cut) {
    first = std::min(first, cut);
    last = std::max(last, cut);
  }
  void tighten(i64 cut) {
    for (Gap& gap : gaps) {
      if (cut <= gap.below || cut >= gap.above) continue;
      if (u64(cut) - u64(gap.below) < u64(gap.above) - u64(cut)) gap.lowest = std::max(gap.lowest, cut);
      else gap.highest = std::min(gap.highest, cut);
    }
  }
};

void find_gaps(Cuts& cuts) {
  const auto& sample = cuts.sample;
  u64 wide = (u64(cuts.last) - u64(cuts.first)) / 12;
  for (size_t i = 1; i < sample.size() && cuts.gaps.size() < MAX_GAPS; ++i)
    if (u64(sample[i]) - u64(sample[i - 1]) > wide)
      cuts.gaps.push_back({sample[i - 1], sample[i], sample[i - 1], sample[i]});
}

// The most common cuts of a sorted sample, at most three quarters of `parts`: those that occur at least four times and
// fill at least an eighth of a cell. If a tie exceeds the limit, all cuts of equal frequency are left out. The other
// cuts go to `rest`.
std::vector<i64> common_cuts(const std::vector<i64>& sample, size_t parts, std::vector<i64>& rest) {
  std::vector<std::pair<size_t, i64>> common;  // frequency, cut
  for (size_t i = 0, end; i < sample.size(); i = end) {
    end = size_t(std::upper_bound(sample.begin() + std::ptrdiff_t(i), sample.end(), sample[i]) - sample.begin());
    if (end - i >= 4 && (end - i) * 8 * parts >= sample.size()) common.emplace_back(end - i, sample[i]);
  }
  std::sort(common.rbegin(), common.rend());
  if (size_t most = parts * 3 / 4; common.size() > most)
    for (size_t often = common[most].first; !common.empty() && common.back().first <= often;) common.pop_back();
  std::vector<i64> found;
  for (const auto& one : common) found.push_back(one.second);
  std::sort(found.begin(), found.end());
  for (i64 cut : sample)
    if (!std::binary_search(found.begin(), found.end(), cut)) rest.push_back(cut);
  return found;
}

// The starts of the inner cells: all distinct cuts, or if they are too many the common ones, the gaps, and equi-depth
// quantiles of the rest.
std::vector<i64> inner_starts(const Cuts& cuts, size_t distinct) {
  std::vector<i64> found;
  if (distinct <= INNER_CELLS) {
    found = cuts.sample;
  } else {
    size_t parts = INNER_CELLS - 2 * cuts.gaps.size();
    std::vector<i64> rest;
    found = common_cuts(cuts.sample, parts, rest);
    parts -= found.size();
    for (const Gap& gap : cuts.gaps) found.insert(found.end(), {gap.lowest, gap.highest});
    for (size_t q = 0; q < parts; ++q) found.push_back(rest[rest.size() * (q + 1) / (parts + 1)]);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void write_starts(i64* starts, const Cuts& cuts, const std::vector<i64>& inner, bool compact) {
  starts[0] = MISSING;
  starts[1] = LOWEST;
  u32 at = 2;
  if (cuts.first <= cuts.last) {
    starts[at++] = cuts.first;
    for (i64 start : inner)
      if (start > cuts.first && start < cuts.last) starts[at++] = start;
    if (cuts.last > cuts.first) starts[at++] = cuts.last;
  }
  if (compact &&
      at <= CELLS / 2)  // few cells need not share lines: each start comes twice, so every other cell is empty
    for (u32 i = (at *= 2); i-- > 0;) starts[i] = starts[i / 2];
  for (; at < CELLS; ++at) starts[at] = starts[at - 1];
}

template <class Callback>
void each_cut(const Boxes& boxes, size_t box, Callback callback) {
  for (i64 at = boxes.offsets[box]; at < boxes.offsets[box + 1]; ++at) {
    u32 a = u32(boxes.attribute[at]);
    if (cut_below(boxes.low[at])) callback(a, boxes.low[at]);
    if (cut_above(boxes.high[at])) callback(a, boxes.high[at] + 1);
  }
}

std::vector<Cuts> collect(const Boxes& boxes, u32 attributes, InterruptCheck& interrupt) {
  std::vector<Cuts> cuts(attributes);
  size_t sampled_boxes = std::clamp(boxes.count / 16, MIN_SAMPLED_BOXES, MAX_SAMPLED_BOXES);
  size_t step = std::max<size_t>(1, boxes.count / sampled_boxes);
  for (size_t box = 0, next = 0; box < boxes.count; ++box) {
    bool sampled = box == next;
    if (sampled) {
      size_t i = box / step + 1;
      next = stratified_sample(i, i * step, (i + 1) * step);
    }
    each_cut(boxes, box, [&](u32 a, i64 cut) {
      cuts[a].add(cut);
      if (sampled) cuts[a].sample.push_back(cut);
    });
    report_work(interrupt, 1 + boxes.size(box) / 2);
  }
  bool gaps = false;
  for (Cuts& one : cuts) {
    std::sort(one.sample.begin(), one.sample.end());
    find_gaps(one);
    report_work(interrupt, one.sample.size());
    gaps |= !one.gaps.empty();
  }
  if (gaps)
    for (size_t box = 0; box < boxes.count; ++box) {
      each_cut(boxes, box, [&](u32 a, i64 cut) { cuts[a].tighten(cut); });
      report_work(interrupt, 1 + boxes.size(box) / 2);
    }
  return cuts;
}

u8 bits_of(u64 width) { return width ? u8(64 - __builtin_clzll(width)) : u8(0); }

// Whether a distance has bits set below the 16 that a code keeps.
bool is_lossy(u64 distance, u8 bits) { return bits > 16 && distance << (80 - bits) != 0; }

}  // namespace

i64 Grid::last(size_t at) const {
  const i64* start = starts.memory.get() + at;
  return at % CELLS == CELLS - 1 || start[1] == start[0] ? HIGHEST : start[1] - 1;
}

Grid make_grid(const Boxes& boxes, u32 attributes, bool compact, InterruptCheck& interrupt) {
  Grid grid;
  grid.starts.allocate(size_t(attributes) * CELLS);
  grid.shift.allocate(size_t(attributes) * CELLS);
  auto all = collect(boxes, attributes, interrupt);
  for (u32 a = 0; a < attributes; ++a) {
    i64* starts = grid.starts.data() + size_t(a) * CELLS;
    auto distinct = all[a].sample;
    report_work(interrupt, distinct.size());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    if (distinct.size() <= INNER_CELLS) all[a].sample = distinct;
    write_starts(starts, all[a], inner_starts(all[a], distinct.size()), compact);
    for (u32 c = 0; c < CELLS; ++c) {
      size_t at = size_t(a) * CELLS + c;
      grid.shift[at] = bits_of(u64(grid.last(at)) - u64(starts[c]));
    }
  }
  return grid;
}

std::vector<Cells> find_cells(const Boxes& boxes, Grid& grid, InterruptCheck& interrupt) {
  std::vector<Cells> cells(size_t(boxes.offsets[boxes.count]));
  for (size_t at = size_t(boxes.offsets[0]); at < cells.size(); ++at) {
    report_work(interrupt, 1);
    u32 a = u32(boxes.attribute[at]);
    const i64* starts = grid.starts.data() + size_t(a) * CELLS;
    u32 low = cell_of(starts, boxes.low[at]), high = cell_of(starts, boxes.high[at]);
    cells[at] = {u16(a), u8(low), u8(high)};
    size_t i = size_t(a) * CELLS + low, j = size_t(a) * CELLS + high;
    u64 next = u64(boxes.high[at]) - u64(starts[high]) + 1;
    grid.lossy |= is_lossy(u64(boxes.low[at]) - u64(starts[low]), grid.shift[i]);
    grid.lossy |= is_lossy(next, grid.shift[j]) && boxes.high[at] != grid.last(j);
  }
  return cells;
}

}  // namespace hitbox
