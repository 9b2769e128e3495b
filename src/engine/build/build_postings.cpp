// Builds a postings segment (postings.hpp), and chooses which boxes go into one and under which key.
#include <algorithm>
#include <stdexcept>

#include "build/build.hpp"

namespace hitbox {
namespace {

constexpr double MAX_POSTING_SHARE = 1.0 / 48;  // share of events up to which a posting is cheaper than a bit in a line
constexpr double MIN_BITMAP_DENSITY = 1.0 / 24;  // below this share of the attributes in use, lines waste memory

bool is_equality(const Boxes& boxes, size_t at) { return boxes.low[at] == boxes.high[at] && boxes.low[at] != MISSING; }

// Frequencies of (attribute, value) among the equality constraints: a hash table with open addressing.
struct Frequencies {
  struct Slot {
    i64 value;
    u32 attribute_plus_one, count;
  };
  Seed seed;
  Array<Slot> slots;
  std::vector<double> total;

  Frequencies(const Boxes& boxes, u32 attributes, Seed s, InterruptCheck& interrupt)
      : seed(s), total(attributes, 64.0) {
    size_t equalities = 0, end = size_t(boxes.offsets[boxes.count]);
    for (size_t at = size_t(boxes.offsets[0]); at < end; ++at) {
      equalities += is_equality(boxes, at);
      report_work(interrupt, 1);
    }
    size_t size = 16;
    while (size < equalities * 2) size *= 2;
    slots.allocate(size);
    for (size_t at = 0; at < size; ++at) {
      slots[at] = {0, 0, 0};
      report_work(interrupt, 1);
    }
    for (size_t at = size_t(boxes.offsets[0]); at < end; ++at)
      if (is_equality(boxes, at)) {
        report_work(interrupt, 4);
        u32 a = u32(boxes.attribute[at]);
        Slot& slot = find(a, boxes.low[at]);
        slot = {boxes.low[at], a + 1, slot.count + 1};
        total[a] += 1;
      }
  }

  Slot& find(u32 a, i64 value) {
    size_t at = hash_of(seed, a, value) & (slots.size - 1);
    while (slots[at].attribute_plus_one && (slots[at].value != value || slots[at].attribute_plus_one != a + 1))
      at = (at + 1) & (slots.size - 1);
    return slots[at];
  }

  double share(const Boxes& boxes, size_t at) {
    u32 a = u32(boxes.attribute[at]);
    return is_equality(boxes, at) ? find(a, boxes.low[at]).count / total[a] : 1.0;
  }
};

// The narrowest constraint that excludes missing values, other than `excluded`; -1 if there is none.
i64 narrowest(const Boxes& boxes, size_t box, i64 excluded) {
  i64 found = -1;
  u64 least = ~0ull;
  for (i64 at = boxes.offsets[box]; at < boxes.offsets[box + 1]; ++at) {
    u64 width = u64(boxes.high[at]) - u64(boxes.low[at]);
    if (boxes.low[at] == MISSING || at == excluded || (found >= 0 && width >= least)) continue;
    least = width;
    found = at;
  }
  return found;
}

struct Builder {
  const Boxes& boxes;
  const std::vector<i64>& key;
  u32 attributes;
  Seed seed;
  PostingArrays& out;
  InterruptCheck& interrupt;
  std::vector<u32> order;

  u32 attribute_of(u32 box) const { return key[box] < 0 ? attributes : u32(boxes.attribute[key[box]]); }
  bool keyed(u32 box) const { return key[box] >= 0 && is_equality(boxes, size_t(key[box])); }

  // Row offsets have 32 bits.
  void check_size() const {
    size_t words = 0;
    for (size_t box = 0; box < boxes.count; ++box) words += row_words(boxes.size(box));
    if (boxes.count > UINT32_MAX || words > UINT32_MAX)
      throw std::length_error("too many constraints for one segment, more than 32 GiB of them: use several indexes");
  }

  // Sorts by attribute and value, range-only boxes after the values; within a key by descending level.
  void sort() {
    struct Rank {
      u32 list, urgency;
      i64 value;
      u32 box;
    };
    std::vector<Rank> ranks(boxes.count);
    for (u32 box = 0; box < u32(boxes.count); ++box) {
      bool equality = keyed(box);
      u32 list = attribute_of(box) * 2 + !equality;
      ranks[box] = {list, LEVELS - boxes.priority[box], equality ? boxes.low[key[box]] : 0, box};
    }
    std::sort(ranks.begin(), ranks.end(), [this](const Rank& x, const Rank& y) {
      report_work(interrupt, 1);
      if (x.list != y.list) return x.list < y.list;
      if (x.value != y.value) return x.value < y.value;
      return x.urgency != y.urgency ? x.urgency < y.urgency : x.box < y.box;
    });
    order.resize(boxes.count);
    for (size_t i = 0; i < boxes.count; ++i) order[i] = ranks[i].box;
  }

  void prefetch_box(u32 box) const {
    i64 at = boxes.offsets[box];
    __builtin_prefetch(boxes.low + at);
    __builtin_prefetch(boxes.high + at);
    __builtin_prefetch(boxes.attribute + at);
  }

  void make_keys() {
    std::vector<u32> start;
    std::vector<i64> value;
    out.key_begin.allocate(attributes + 1);
    size_t at = 0;
    for (u32 a = 0; a < attributes; ++a) {
      out.key_begin[a] = u32(start.size());
      for (; at < order.size() && attribute_of(order[at]) == a && keyed(order[at]); ++at) {
        report_work(interrupt, 2);
        i64 current = boxes.low[key[order[at]]];
        if (start.size() > out.key_begin[a] && value.back() == current) continue;
        start.push_back(u32(at));
        value.push_back(current);
      }
      start.push_back(u32(at));
      value.push_back(HIGHEST);
      while (at < order.size() && attribute_of(order[at]) == a) ++at;
    }
    out.key_begin[attributes] = u32(start.size());
    start.push_back(u32(at));
    value.push_back(HIGHEST);
    start.push_back(u32(order.size()));
    out.key_start.allocate(start.size());
    std::copy(start.begin(), start.end(), out.key_start.data());
    out.key_value.allocate(value.size());
    std::copy(value.begin(), value.end(), out.key_value.data());
  }

  // Keys with equal fingerprints have a slot each: see PostingsLookup.
  void make_slots() {
    out.seed = seed;
    size_t size = 16;
    while (size < out.key_value.size * 2) size *= 2;
    out.slots.allocate(size, 0);
    for (u32 a = 0; a < attributes; ++a)
      for (u32 k = out.key_begin[a]; k + 1 < out.key_begin[a + 1]; ++k) {
        report_work(interrupt, 2);
        u64 hash = hash_of(seed, a, out.key_value[k]);
        size_t at = hash & (size - 1);
        while (out.slots[at]) at = (at + 1) & (size - 1);
        out.slots[at] = fingerprint(hash) | (k + 1);
      }
  }

  void make_codes() {
    out.code_base.allocate(attributes, HIGHEST);
    out.code_last.allocate(attributes, LOWEST);
    out.code_shift.allocate(attributes, 0);
    for (size_t at = size_t(boxes.offsets[0]); at < size_t(boxes.offsets[boxes.count]); ++at) {
      report_work(interrupt, 1);
      for (i64 bound : {boxes.low[at], boxes.high[at]})
        if (bound > LOWEST && bound < HIGHEST) {
          i64 &base = out.code_base[size_t(boxes.attribute[at])], &last = out.code_last[size_t(boxes.attribute[at])];
          base = std::min(base, bound);
          last = std::max(last, bound);
        }
    }
    for (u32 a = 0; a < attributes; ++a) {
      if (out.code_base[a] > out.code_last[a]) out.code_base[a] = out.code_last[a] = 0;
      u64 width = u64(out.code_last[a]) - u64(out.code_base[a]);
      while (width >> out.code_shift[a] > CODE_TOP - 4) ++out.code_shift[a];
    }
  }

  u64 filter_of(i64 at) {
    if (at < 0) return CODE_TOP;
    u32 a = u32(boxes.attribute[at]);
    u64 low = coarse(out.code_base[a], out.code_last[a], out.code_shift[a], boxes.low[at]);
    u64 high = coarse(out.code_base[a], out.code_last[a], out.code_shift[a], boxes.high[at]);
    return u64(a) << 48 | low << 24 | high;
  }

  void make_rows() {
    size_t n = boxes.count, words = 0;
    out.rows.start.allocate(n);
    for (size_t i = 0; i < n; ++i) {
      out.rows.start[i] = u32(words);
      words += row_words(boxes.size(order[i]));
    }
    out.rows.words.allocate(words);
    out.rows.numbers.allocate(n);
    out.rows.levels.allocate(n);
    out.filter.allocate(n);
    out.position.allocate(n);
    out.rows.alive.allocate((n + 63) / 64, 0);
    for (size_t i = 0; i < n; ++i) {
      if (i + 2 * PrefetchDistance::BUILD_BOXES < n)
        __builtin_prefetch(boxes.offsets + order[i + 2 * PrefetchDistance::BUILD_BOXES]);
      if (i + PrefetchDistance::BUILD_BOXES < n) prefetch_box(order[i + PrefetchDistance::BUILD_BOXES]);
      u32 box = order[i];
      report_work(interrupt, 4 + boxes.size(box));
      i64 from = boxes.offsets[box];
      write_row(out.rows.words.data() + out.rows.start[i], boxes.attribute + from, boxes.low + from, boxes.high + from,
                boxes.size(box));
      out.rows.numbers[i] = boxes.numbers ? u32(boxes.numbers[box]) : u32(i);
      out.rows.levels[i] = boxes.priority[box];
      out.position[box] = u32(i);
      out.rows.alive[i / 64] |= 1ull << (i & 63);
      i64 other = narrowest(boxes, box, keyed(box) ? key[box] : -1);
      out.filter[i] = filter_of(other < 0 ? key[box] : other);
    }
  }
};

}  // namespace

std::vector<i64> choose_keys(const Boxes& boxes, u32 attributes, bool only_postings, Seed seed,
                             InterruptCheck& interrupt) {
  Frequencies frequencies(boxes, attributes, seed, interrupt);
  std::vector<i64> key(boxes.count, -2);
  std::vector<size_t> undecided;
  std::vector<bool> used(attributes);  // what nobody constrains has no lines
  double constraints = 0;
  for (size_t box = 0; box < boxes.count; ++box) {
    double least = only_postings ? 1.0 : MAX_POSTING_SHARE;
    report_work(interrupt, 1 + 4 * boxes.size(box));
    for (i64 at = boxes.offsets[box]; at < boxes.offsets[box + 1]; ++at) {
      double share = frequencies.share(boxes, size_t(at));
      if (share >= least) continue;
      least = share;
      key[box] = at;
    }
    if (key[box] != -2) continue;
    undecided.push_back(box);
    constraints += boxes.size(box);
    for (i64 at = boxes.offsets[box]; at < boxes.offsets[box + 1]; ++at) used[size_t(boxes.attribute[at])] = true;
  }
  const double most = double(undecided.size()) * double(std::count(used.begin(), used.end(), true));
  if (only_postings || constraints < MIN_BITMAP_DENSITY * most)
    for (size_t box : undecided) key[box] = narrowest(boxes, box, -1);
  return key;
}

PostingArrays build_postings(const Boxes& boxes, const std::vector<i64>& key, u32 attributes, Seed seed,
                             InterruptCheck& interrupt) {
  PostingArrays out;
  Builder builder{boxes, key, attributes, seed, out, interrupt, {}};
  builder.check_size();
  assert(boxes.count && key.size() == boxes.count && is_valid(boxes, attributes));
  builder.sort();
  builder.make_keys();
  builder.make_slots();
  builder.make_codes();
  builder.make_rows();
  return out;
}

}  // namespace hitbox
