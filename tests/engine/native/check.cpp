// Compares the kernels with a linear scan, without Python. test_engine_native.py builds it with sanitizers.
#include <stdexcept>

#include "workload.hpp"

namespace {

size_t overflow_bytes = 0;  // bytes of overflow rows, over all checks

// Whether matching with a limit, or with a range of levels, returns the right part of the full match.
bool most_urgent(const Workload& work, const SegmentSet& set, const Events& all, size_t event, const Kernels& kernels,
                 const Result& full) {
  size_t limit = size_t(draw(0, i64(full.size)));
  u32 bottom = u32(draw(0, 9)), top = u32(draw(bottom, 9));
  Result some, window;
  kernels.match_event(set, all, event, MatchLimits{LEVELS - 1, 0, limit}, some);
  kernels.match_event(set, all, event, MatchLimits{top, bottom, SIZE_MAX}, window);
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

bool check_set(const Workload& work, const SegmentSet& set, const Kernels& kernels, i64 span) {
  constexpr size_t COUNT = 90;
  u32 m = work.attributes;
  auto low = events(m, COUNT, span), high = low;
  for (size_t i = 0; i < high.size(); ++i)
    if (low[i] != MISSING && draw(0, 1)) high[i] = std::min(HIGHEST - 1, low[i] + draw(0, span / 4));
  for (const auto& upper : {low, high}) {
    Events all{low.data(), upper == low ? low.data() : upper.data(), m};
    std::vector<i64> ends(COUNT + 1, 0);
    Result many;
    InterruptCheck interrupt;
    match_parallel(kernels, set, all, COUNT, 2, ends.data() + 1, many, interrupt);
    for (size_t e = 0; e < COUNT; ++e) {
      const i64 *from = all.low + e * m, *to = all.high + e * m;
      Result one;
      if (e % 8 == 0) kernels.match_event(set, all, e, MatchLimits{}, one);
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
  InterruptCheck interrupt;
  Workload work(attributes, count, span);
  Sources sources(work, {attributes, block, 4, band}, interrupt);
  overflow_bytes += sources.bitmap.more.size - 64;
  std::vector<u32> where(sources.bitmap.position.data(), sources.bitmap.position.data() + count);
  Decoded back = decode(sources.bitmap_view, where.data(), count, interrupt);
  if (back.low != work.low || back.high != work.high || back.offsets != work.offsets) return std::puts("decode"), false;
  where.assign(sources.compact.position.data(), sources.compact.position.data() + count);
  back = decode(sources.compact_view, where.data(), count, interrupt);
  if (back.low != work.low || back.high != work.high || back.offsets != work.offsets) return std::puts("decode"), false;
  where.assign(sources.dense.position.data(), sources.dense.position.data() + count);
  back = decode(sources.dense_view, where.data(), count, interrupt);
  if (back.low != work.low || back.high != work.high || back.offsets != work.offsets) return std::puts("decode"), false;
  for (const Kernels* kernels : available())
    for (const SegmentSet& set : sources.sets())
      if (!check_set(work, set, *kernels, span)) return false;
  return true;
}

// Cancels the call at the n-th poll.
struct CountedInterrupt : InterruptCheck {
  size_t left;

  explicit CountedInterrupt(size_t n) : InterruptCheck{count_down, 0}, left(n) {}
  static void count_down(InterruptCheck& interrupt) {
    if (!static_cast<CountedInterrupt&>(interrupt).left--) throw Cancelled{};
  }
};

// Cancels a call at many of its polls; the sanitizer finds leaks. Returns a lower bound of the number of polls.
template <class Call>
size_t cancel_everywhere(Call call) {
  for (size_t n = 0;; n += 1 + n / 4) {
    CountedInterrupt interrupt(n);
    try {
      call(interrupt);
      return n;
    } catch (const Cancelled&) {
    }
  }
}

bool check_cancelling() {
  InterruptCheck none;
  Workload work(6, 6000, 1000);
  BitmapOptions options{6, BLOCK, 4, 1};
  if (cancel_everywhere([&](InterruptCheck& interrupt) { Sources(work, options, interrupt); }) < 10)
    return std::puts("build asks"), false;
  Sources sources(work, options, none);
  auto keys = events(6, 1000, 1000);
  Events all{keys.data(), keys.data(), 6};
  std::vector<i64> ends(1000);
  for (const SegmentSet& set : sources.sets())
    for (size_t threads : std::initializer_list<size_t>{1, 3}) {
      size_t asked = cancel_everywhere([&](InterruptCheck& interrupt) {
        OwnedResult out;
        match_parallel(kernels_baseline, set, all, 1000, threads, ends.data(), out, interrupt);
      });
      if (asked < 2) return std::printf("matching asks %zu times\n", asked), false;
    }
  std::vector<u32> where(sources.bitmap.position.data(), sources.bitmap.position.data() + 6000);
  auto decoded = [&](InterruptCheck& interrupt) { decode(sources.bitmap_view, where.data(), where.size(), interrupt); };
  if (cancel_everywhere(decoded) < 2) return std::puts("decoding asks"), false;
  return true;
}

// A kernel that fails in the share of events that starts at `failing`, after it has allocated memory.
size_t failing;
void fail_in_share(const SegmentSet&, const Events&, size_t from, size_t to, size_t, i64* ends, Result& out,
                   InterruptCheck& interrupt) {
  reserve(out, to - from);
  for (size_t e = from; e < to; ++e) {
    out.numbers[out.size++] = i32(e);
    ends[e] = i64(out.size);
    report_work(interrupt, POLL_INTERVAL);
  }
  if (from == failing) throw std::bad_alloc();
}

bool check_failures() {
  const Kernels kernels{"failing", nullptr, fail_in_share};
  const SegmentSet set{nullptr, 0, nullptr, 0, Rows{}};
  for (size_t threads : std::initializer_list<size_t>{1, 2, 5})
    for (size_t t = 0; t <= threads; ++t) {
      failing = t < threads ? 1000 * t / threads : SIZE_MAX;
      InterruptCheck interrupt;
      OwnedResult out;
      std::vector<i64> ends(1000);
      bool failed = false;
      try {
        match_parallel(kernels, set, Events{}, 1000, threads, ends.data(), out, interrupt);
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      if (failed != (t < threads)) return std::puts("a failure was lost"), false;
      for (i64 e = 0; !failed && e < 1000; ++e)
        if (ends[size_t(e)] != e + 1 || out.numbers[e] != i32(e)) return std::puts("a share was lost"), false;
    }
  return true;
}

// Row offsets have 32 bits: too many constraints are refused before any is read.
bool check_sizes() {
  std::vector<i64> offsets{0, i64(1) << 31, i64(1) << 32}, key(2, -1);
  Boxes boxes{2, offsets.data(), nullptr, nullptr, nullptr, nullptr, nullptr};
  InterruptCheck interrupt;
  try {
    build_postings(boxes, key, 1, Seed{1, 2}, interrupt);
  } catch (const std::length_error&) {
    return true;
  }
  return std::puts("too many constraints went in"), false;
}

}  // namespace

int main() {
  if (!check_cancelling() || !check_failures() || !check_sizes()) return 1;
  for (i64 span : {i64(4), i64(1000), i64(1) << 61})
    for (u32 band : {1u, 100u, UINT32_MAX})
      if (!check(1, 200, span, 32, band) || !check(5, 1200, span, BLOCK, band) || !check(70, 150, span, 20, band))
        return 1;
  if (!overflow_bytes) return std::puts("no box was too large for its row"), 1;
  std::puts("exact");
  return 0;
}
