// Chooses kernels by the processor's instruction sets at run time, and runs a batch in several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if HITBOX_X86
#include <cpuid.h>
#endif

#include "match/match.hpp"

namespace hitbox {

#if HITBOX_X86
inline bool has_lzcnt() {  // not every compiler's __builtin_cpu_supports accepts "lzcnt"
  unsigned a, b, c, d;
  return __get_cpuid(0x80000001, &a, &b, &c, &d) && (c >> 5 & 1);
}
#endif

// Checks every instruction set that CMakeLists.txt compiles a level's kernels with. The best level comes last.
inline std::vector<const Kernels*> find_available() {
  std::vector<const Kernels*> found{&kernels_baseline};
#if HITBOX_X86
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
              __builtin_cpu_supports("popcnt") && has_lzcnt();
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  bool vbmi = avx512 && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
              __builtin_cpu_supports("avx512vpopcntdq");
  if (avx2) found.push_back(&kernels_avx2);
  if (avx512) found.push_back(&kernels_avx512);
  if (vbmi) found.push_back(&kernels_avx512vbmi);
#endif
  return found;
}

inline const std::vector<const Kernels*>& available() {
  static const std::vector<const Kernels*> found = find_available();  // CPUID takes microseconds
  return found;
}

inline const Kernels* require_kernels(const std::string& name) {
  for (const Kernels* one : available())
    if (name == one->name) return one;
  throw std::invalid_argument("this processor does not have the instruction set that was asked for");
}

// A result that frees its memory.
struct OwnedResult : Result {
  OwnedResult() = default;
  OwnedResult(const OwnedResult&) = delete;
  ~OwnedResult() { release(*this); }
};

// Thrown in a thread after another thread of the same call has failed or was cancelled.
struct Cancelled {};

// The state that the threads of one call share.
struct TaskGroup {
  std::mutex mutex;
  std::condition_variable ended;
  size_t running = 0;  // threads, without the calling one
  std::exception_ptr failure;
  std::atomic<bool> cancelled{false};

  template <class Task>
  void run(Task task) noexcept {
    try {
      task();
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      if (!failure) failure = std::current_exception();
      cancelled = true;
    }
  }
};

// The interrupt check of a worker thread: it is cancelled when any thread of the group fails.
struct WorkerInterrupt : InterruptCheck {
  TaskGroup& group;

  explicit WorkerInterrupt(TaskGroup& c) : InterruptCheck{check_group, 0}, group(c) {}
  static void check_group(InterruptCheck& interrupt) {
    if (static_cast<WorkerInterrupt&>(interrupt).group.cancelled) throw Cancelled{};
  }
};

// Calls task(t, interrupt) for each t below `count`: the first in the calling thread, each other in a thread of its own,
// or in the calling thread if no thread can be started. If one throws, the others are cancelled; when all have ended,
// the first exception is rethrown.
template <class Task>
void run_parallel(size_t count, InterruptCheck& interrupt, Task task) {
  TaskGroup group;
  std::vector<std::thread> threads;
  threads.reserve(count);
  size_t unstarted = 1;  // tasks from here on have no thread
  for (; unstarted < count; ++unstarted) {
    try {
      {
        std::lock_guard<std::mutex> lock(group.mutex);
        ++group.running;
      }
      threads.emplace_back([&group, &task, t = unstarted] {
        WorkerInterrupt worker(group);
        group.run([&] { task(t, worker); });
        std::lock_guard<std::mutex> lock(group.mutex);
        --group.running;
        group.ended.notify_one();
      });
    } catch (...) {
      std::lock_guard<std::mutex> lock(group.mutex);
      --group.running;
      break;
    }
  }
  group.run([&] {
    if (count) task(0, interrupt);
    for (size_t t = unstarted; t < count; ++t) task(t, interrupt);
  });
  auto all_ended = [&] { return !group.running; };
  std::unique_lock<std::mutex> lock(group.mutex);
  while (!group.ended.wait_for(lock, std::chrono::milliseconds(20), all_ended)) {
    lock.unlock();
    if (interrupt.poll && !group.cancelled) group.run([&] { interrupt.poll(interrupt); });
    lock.lock();
  }
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
  if (group.failure) std::rethrow_exception(group.failure);
}

// Matches events [0, count) in several threads, each with its share of events and its own result. The results are then
// copied to the end of the first one, which has room for all; all threads copy, because many matches take as long to copy
// as to find. If `out` is only counting, `ends` is the result.
inline void match_parallel(const Kernels& kernels, const SegmentSet& set, const Events& events, size_t count,
                           size_t threads, i64* ends, Result& out, InterruptCheck& interrupt) {
  threads = std::max<size_t>(1, std::min(threads, count / 64));
  if (threads == 1) return kernels.match_batch(set, events, 0, count, count, ends, out, interrupt);
  std::vector<OwnedResult> results(threads);
  auto share = [&](size_t t) { return count * t / threads; };
  run_parallel(threads, interrupt, [&](size_t t, InterruptCheck& worker_interrupt) {
    size_t from = share(t), to = share(t + 1);
    results[t].counting = out.counting;
    kernels.match_batch(set, events, from, to, t ? to - from : count, ends, t ? results[t] : out, worker_interrupt);
  });
  struct Piece {
    size_t thread, from, size, to;
  };
  constexpr size_t PIECE_SIZE = 1 << 18;
  std::vector<Piece> pieces;
  size_t total = size_t(ends[share(1) - 1]);
  for (size_t t = 1; t < threads; ++t) {
    for (size_t e = share(t); e < share(t + 1); ++e) ends[e] += i64(total);
    const size_t size = size_t(ends[share(t + 1) - 1]) - total;
    for (size_t at = 0; at < size; at += PIECE_SIZE)
      pieces.push_back({t, at, std::min(PIECE_SIZE, size - at), total + at});
    total += size;
  }
  if (out.counting) return;
  reallocate(out.numbers, total);
  out.size = total;
  std::atomic<size_t> next{0};
  run_parallel(std::min(threads, pieces.size()), interrupt, [&](size_t, InterruptCheck& worker_interrupt) {
    for (size_t i; (i = next++) < pieces.size();) {
      const Piece& one = pieces[i];
      std::memcpy(out.numbers + one.to, results[one.thread].numbers + one.from, one.size * sizeof(i32));
      report_work(worker_interrupt, PIECE_SIZE / 8);
    }
  });
}

}  // namespace hitbox
