// Threads match while another one builds a replacement segment and swaps it in, as compaction does.
// test_engine_native.py builds it with the thread sanitizer.
#include <memory>
#include <mutex>

#include "workload.hpp"

namespace {

constexpr u32 ATTRIBUTES = 5;
constexpr size_t BOXES = 1500, EVENTS = 200;
constexpr BitmapOptions OPTIONS{ATTRIBUTES, BLOCK, 4, 100};

std::mutex lock;
std::shared_ptr<Sources> current;

std::shared_ptr<Sources> now() {
  std::lock_guard<std::mutex> locked(lock);
  return current;
}

bool match_all(const Workload& work, const Events& all, size_t threads) {
  auto sources = now();  // the other thread may replace it in the meantime
  for (const SegmentSet& set : sources->sets()) {
    InterruptCheck interrupt;
    OwnedResult out, one;
    std::vector<i64> ends(EVENTS + 1, 0);
    match_parallel(*available().back(), set, all, EVENTS, threads, ends.data() + 1, out, interrupt);
    for (size_t e = 0; e < EVENTS; e += 37) {
      const i64* keys = all.low + e * ATTRIBUTES;
      if (!same(work, keys, keys, out.numbers + ends[e], size_t(ends[e + 1] - ends[e]))) return false;
    }
    available().back()->match_event(set, all, 0, MatchLimits{}, one);
    if (!same(work, all.low, all.low, one.numbers, one.size)) return false;
  }
  return true;
}

// Compaction: decode the boxes of the old segment, build a new one while others match, swap.
bool rebuild(const Workload& work) {
  InterruptCheck interrupt;
  auto sources = now();
  std::vector<u32> where(sources->bitmap.position.data(), sources->bitmap.position.data() + BOXES);
  Decoded back = decode(sources->bitmap_view, where.data(), BOXES, interrupt);
  auto next = std::make_shared<Sources>(work, OPTIONS, interrupt);
  std::lock_guard<std::mutex> locked(lock);
  current = next;
  return back.low == work.low;
}

}  // namespace

int main() {
  InterruptCheck interrupt;
  Workload work(ATTRIBUTES, BOXES, 1000);
  auto keys = events(ATTRIBUTES, EVENTS, 1000);
  Events all{keys.data(), keys.data(), ATTRIBUTES};
  current = std::make_shared<Sources>(work, OPTIONS, interrupt);
  std::atomic<bool> good{true};
  std::vector<std::thread> readers;
  for (size_t threads : std::initializer_list<size_t>{1, 2, 3})
    readers.emplace_back([&, threads] {
      for (u32 i = 0; i < 4; ++i) good = good && match_all(work, all, threads);
    });
  for (u32 i = 0; i < 4; ++i) good = rebuild(work) && good;
  for (std::thread& reader : readers) reader.join();
  std::puts(good ? "exact" : "wrong");
  return good ? 0 : 1;
}
