// The kernels against a plain scan, without Python: built by test_engine_native.py with sanitizers on, or by hand.
#include <stdexcept>

#include "workload.hpp"

namespace {

size_t rows_elsewhere = 0;  // bytes of rows of large boxes, over all checks

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
    Watch watch;
    match_threads(kernels, set, all, COUNT, 2, ends.data() + 1, many, watch);
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
  Watch watch;
  Workload work(attributes, count, span);
  Sources sources(work, {attributes, block, 4, band}, watch);
  rows_elsewhere += sources.bitmap.more.size - 64;
  std::vector<u32> where(sources.bitmap.position.data(), sources.bitmap.position.data() + count);
  Decoded back = decode(sources.bitmap_view, where.data(), count, watch);
  if (back.low != work.low || back.high != work.high || back.offsets != work.offsets) return std::puts("decode"), false;
  for (const Kernels* kernels : available())
    for (const Set& set : sources.sets())
      if (!check_set(work, set, *kernels, span)) return false;
  return true;
}

// A watch that stops the call when it is asked for the n-th time.
struct Limited : Watch {
  size_t left;

  explicit Limited(size_t n) : Watch{count_down, 0}, left(n) {}
  static void count_down(Watch& watch) {
    if (!static_cast<Limited&>(watch).left--) throw Stopped{};
  }
};

// Stops a call at many points where it asks; the sanitizer finds what is not freed. Returns how often it asks at least.
template <class Call>
size_t stop_everywhere(Call call) {
  for (size_t n = 0;; n += 1 + n / 4) {
    Limited watch(n);
    try {
      call(watch);
      return n;
    } catch (const Stopped&) {
    }
  }
}

bool check_stops() {
  Watch none;
  Workload work(6, 6000, 1000);
  Options options{6, BLOCK, 4, 1};
  if (stop_everywhere([&](Watch& watch) { Sources(work, options, watch); }) < 10) return std::puts("build asks"), false;
  Sources sources(work, options, none);
  auto keys = events(6, 1000, 1000);
  Events all{keys.data(), keys.data(), 6};
  std::vector<i64> ends(1000);
  for (const Set& set : sources.sets())
    for (size_t threads : {1, 3}) {
      size_t asked = stop_everywhere([&](Watch& watch) {
        OwnResult out;
        match_threads(kernels_baseline, set, all, 1000, threads, ends.data(), out, watch);
      });
      if (asked < 2) return std::printf("matching asks %zu times\n", asked), false;
    }
  std::vector<u32> where(sources.bitmap.position.data(), sources.bitmap.position.data() + 6000);
  auto decoded = [&](Watch& watch) { decode(sources.bitmap_view, where.data(), where.size(), watch); };
  if (stop_everywhere(decoded) < 2) return std::puts("decoding asks"), false;
  return true;
}

// Kernels that fail in the share that starts at `failing`, after they have taken memory.
size_t failing;
void fail_in_share(const Set&, const Events&, size_t from, size_t to, size_t, i64* ends, Result& out, Watch& watch) {
  reserve(out, to - from);
  for (size_t e = from; e < to; ++e) {
    out.numbers[out.size++] = i32(e);
    ends[e] = i64(out.size);
    note_work(watch, ASK_EVERY);
  }
  if (from == failing) throw std::bad_alloc();
}

bool check_failures() {
  const Kernels kernels{"failing", nullptr, fail_in_share};
  const Set set{nullptr, 0, nullptr, 0, Rows{}};
  for (size_t threads : {1, 2, 5})
    for (size_t t = 0; t <= threads; ++t) {
      failing = t < threads ? 1000 * t / threads : SIZE_MAX;
      Watch watch;
      OwnResult out;
      std::vector<i64> ends(1000);
      bool failed = false;
      try {
        match_threads(kernels, set, Events{}, 1000, threads, ends.data(), out, watch);
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      if (failed != (t < threads)) return std::puts("a failure was lost"), false;
      for (i64 e = 0; !failed && e < 1000; ++e)
        if (ends[size_t(e)] != e + 1 || out.numbers[e] != i32(e)) return std::puts("a share was lost"), false;
    }
  return true;
}

// Rows start at words whose numbers have 32 bits: more of them are refused before one is looked at.
bool check_sizes() {
  std::vector<i64> offsets{0, i64(1) << 31, i64(1) << 32}, key(2, -1);
  Boxes boxes{2, offsets.data(), nullptr, nullptr, nullptr, nullptr, nullptr};
  Watch watch;
  try {
    build_postings(boxes, key, 1, Seed{1, 2}, watch);
  } catch (const std::length_error&) {
    return true;
  }
  return std::puts("too many constraints went in"), false;
}

}  // namespace

int main() {
  if (!check_stops() || !check_failures() || !check_sizes()) return 1;
  for (i64 span : {i64(4), i64(1000), i64(1) << 61})
    for (u32 band : {1u, 100u, UINT32_MAX})
      if (!check(1, 200, span, 32, band) || !check(5, 1200, span, BLOCK, band) || !check(70, 150, span, 20, band))
        return 1;
  if (!rows_elsewhere) return std::puts("no box was too large for its row"), 1;
  std::puts("exact");
  return 0;
}
