// Which kernels run: the best that the processor has, unless HITBOX_SIMD or a call says otherwise.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "match.hpp"

namespace hitbox {

inline std::vector<const Kernels*> available() {
  std::vector<const Kernels*> found{&kernels_baseline};
#if HITBOX_X86
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
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

inline const Kernels* kernels_named(const std::string& name) {
  for (const Kernels* one : available())
    if (name == one->name) return one;
  return nullptr;
}

// Events [0, count) over some threads, each with its own share and its own result; the first has room for all.
inline void match_threads(const Kernels& kernels, const Set& set, const Events& events, size_t count, size_t threads,
                          i64* ends, Result& out) {
  threads = std::max<size_t>(1, std::min(threads, count / 64));
  if (threads == 1) return kernels.many(set, events, 0, count, count, ends, out);
  std::vector<Result> results(threads);
  std::vector<std::thread> workers;
  auto share = [&](size_t t) { return count * t / threads; };
  for (size_t t = 1; t < threads; ++t)
    workers.emplace_back([&, t] {
      kernels.many(set, events, share(t), share(t + 1), share(t + 1) - share(t), ends, results[t]);
    });
  kernels.many(set, events, 0, share(1), count, ends, out);
  for (std::thread& worker : workers) worker.join();
  std::vector<size_t> from(threads, 0);
  size_t total = out.size;
  for (size_t t = 1; t < threads; ++t) {
    from[t] = total;
    total += results[t].size;
  }
  regrow(out.numbers, total);
  out.size = total;
  auto append = [&](size_t t) {
    for (size_t e = share(t); e < share(t + 1); ++e) ends[e] += i64(from[t]);
    if (results[t].size) std::memcpy(out.numbers + from[t], results[t].numbers, results[t].size * sizeof(i32));
    release(results[t]);
  };
  workers.clear();
  for (size_t t = 2; t < threads; ++t) workers.emplace_back(append, t);
  append(1);
  for (std::thread& worker : workers) worker.join();
}

}  // namespace hitbox
