// The Python extension module research._floor: the floor of matching (floor.cpp), a yardstick for benchmarks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "bindings/numpy_memory.hpp"
#include "bindings/released_gil.hpp"
#include "floor.hpp"
#include "match/dispatch.hpp"

namespace nb = nanobind;
using namespace hitbox;
using namespace nb::literals;

namespace {

using Bitmaps = nb::ndarray<const u64, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Indexes = nb::ndarray<const u32, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

FloorEvent* require_level(const std::string& simd) {
  if (simd == "baseline") return floor_baseline;
#if HITBOX_X86
  if (simd == "avx2") return floor_avx2;
  if (simd == "avx512") return floor_avx512;
  if (simd == "avx512vbmi") return floor_avx512vbmi;
#endif
  throw nb::value_error("there is no such instruction set");
}

// ANDs, for each event e, bitmaps chosen[offsets[e]] to chosen[offsets[e + 1] - 1]. Returns (ends, numbers) of the bits
// that are set; if only counting, no numbers.
nb::tuple run_floor(Bitmaps bitmaps, Indexes offsets, Indexes chosen, const std::string& simd, bool counting) {
  FloorEvent* floor_event = require_level(simd);
  const size_t count = offsets.size() - 1, words = bitmaps.shape(1);
  if (!offsets.size() || words % WORDS) throw nb::value_error("bitmaps have multiples of 512 bits, offsets an end");
  for (size_t i = 0; i < count; ++i)
    if (offsets.data()[i] >= offsets.data()[i + 1] || offsets.data()[i + 1] > chosen.size())
      throw nb::value_error("offsets must ascend");
  for (size_t i = 0; i < chosen.size(); ++i)
    if (chosen.data()[i] >= bitmaps.shape(0)) throw nb::value_error("a bitmap is chosen that is not there");
  i64* ends = allocate<i64>(count + 1);
  nb::object totals = numpy_array(ends, {count + 1});
  OwnedResult result;
  {
    ReleasedGil released;
    std::vector<const u64*> own;
    ends[0] = 0;
    for (size_t e = 0; e < count; ++e) {
      own.clear();
      for (u32 i = offsets.data()[e]; i < offsets.data()[e + 1]; ++i)
        own.push_back(bitmaps.data() + chosen.data()[i] * words);
      Result* out = counting ? nullptr : &result;
      ends[e + 1] = ends[e] + i64(floor_event(own.data(), u32(own.size()), words, e, count, out));
    }
    trim(result);
    if (!result.numbers) result.numbers = allocate<i32>(0);
  }
  return nb::make_tuple(totals, numpy_array(std::exchange(result.numbers, nullptr), {result.size}));
}

}  // namespace

NB_MODULE(_floor, m) { m.def("floor", &run_floor, "bitmaps"_a, "offsets"_a, "chosen"_a, "simd"_a, "counting"_a); }
