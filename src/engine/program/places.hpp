// Tests of places: is a point of latitude and longitude in a circle, or in a polygon? hitbox/language/places.py defines it.
//
// The verdict must be that of the definition to the last bit, also where another library computes sines there. So it is
// given only where rounding cannot matter; otherwise the test is open, and the definition is asked.
//
//   circle  The operations are those of the definition up to the haversine h, which rises with the distance, so h is
//           compared with the h of the radius. The arguments of all sines are the same bits; h itself may differ in its
//           last digits. Closer to the radius than DOUBT, it is open.
//   area    The operations are those of the definition, and need no library. Where they leave doubt about the side of
//           an edge, as on the border, it is open.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/common.hpp"
#include "format/validate.hpp"
#include "program/truth.hpp"

namespace hitbox::places {

constexpr double DOUBT = 1e-12;   // relative; thousands of times what sines and products lose
constexpr double TINY = 1e-280;   // absolute; below, doubles lose digits
constexpr double EDGE = 0x1p-49;  // ERROR in places.py
constexpr double RADIAN = 3.141592653589793 / 180.0;
constexpr u32 CIRCLE_WORDS = 5;   // latitude in radians, longitude, cosine of the latitude, least and most h
constexpr u32 POLYGON_WORDS = 5;  // number of rings, south, north, west, east

static inline double number(i64 word) {
  double found;
  std::memcpy(&found, &word, sizeof found);
  return found;
}

// The value of a key of an int attribute, or of any other number.
static inline double coordinate(i64 key, bool whole) {
  if (whole) return double(key);
  return number(key >= 0 ? key : i64(u64(MISSING) - u64(key)));
}

static inline bool is_place(double latitude, double longitude) {
  return -90 <= latitude && latitude <= 90 && -180 <= longitude && longitude <= 180;
}

static inline Truth in_circle(const i64* words, double latitude, double longitude) {
  const double least = number(words[3]), most = number(words[4]);
  const double near_least = DOUBT * std::fabs(least) + TINY, near_most = DOUBT * std::fabs(most) + TINY;
  const double one = latitude * RADIAN;
  const double along = std::sin((number(words[0]) - one) / 2);
  if (along * along - most > near_most) return IS_FALSE;
  const double apart = std::fabs(number(words[1]) - longitude);
  const double across = std::sin(std::min(apart, 360 - apart) * RADIAN / 2);
  const double h = along * along + std::cos(one) * number(words[2]) * across * across;
  if (least - h > near_least || h - most > near_most) return IS_FALSE;
  return h - least > near_least && most - h > near_most ? IS_TRUE : Truth(IS_TRUE | IS_FALSE);
}

// An area: whether it goes beyond 180 degrees, then its polygons. A polygon: its first words, then its rings, the outer one
// first. A ring: the number of its points, then their longitudes and latitudes.

enum class Place : u8 { OUTSIDE, BORDER, INSIDE, DOUBTFUL };

static inline Place in_ring(const i64* points, i64 count, double x, double y) {
  bool inside = false;
  double ax = count ? number(points[0]) : 0, ay = count ? number(points[1]) : 0;
  for (i64 i = 1; i < count; ++i) {
    const double bx = number(points[2 * i]), by = number(points[2 * i + 1]);
    if ((ay > y) == (by > y)) {
      if (y == ay && y == by && std::min(ax, bx) <= x && x <= std::max(ax, bx)) return Place::BORDER;
      if ((x == ax && y == ay) || (x == bx && y == by)) return Place::BORDER;
    } else {
      const double left = (bx - ax) * (y - ay), right = (by - ay) * (x - ax);
      if (!(std::fabs(left - right) > EDGE * (std::fabs(left) + std::fabs(right)))) return Place::DOUBTFUL;
      inside ^= (left > right) == (by > ay);
    }
    ax = bx;
    ay = by;
  }
  return inside ? Place::INSIDE : Place::OUTSIDE;
}

// Whether a point is in a polygon, whose rings begin at `words`, which is moved behind them.
static inline Truth in_polygon(const i64*& words, i64 rings, bool near, double x, double y) {
  Truth found = near ? IS_TRUE : IS_FALSE;
  bool decided = !near;
  for (i64 ring = 0; ring < rings; ++ring) {
    const i64 count = *words++;
    if (!decided) {
      const Place place = in_ring(words, count, x, y);
      decided = place != (ring ? Place::OUTSIDE : Place::INSIDE);
      if (place == Place::DOUBTFUL) found = IS_TRUE | IS_FALSE;
      else if (decided) found = place == Place::BORDER ? IS_TRUE : IS_FALSE;
    }
    words += 2 * count;
  }
  return found;
}

static inline Truth in_area(const i64* words, size_t size, double latitude, double longitude) {
  static constexpr double SHIFTS[3] = {0, 360, -360};
  Truth found = IS_FALSE;
  for (u32 shift = 0; shift < (words[0] ? 3 : 1); ++shift) {
    const double x = longitude + SHIFTS[shift];
    for (const i64 *at = words + 1, *end = words + size; at < end;) {
      const bool near =
          number(at[3]) <= x && x <= number(at[4]) && number(at[1]) <= latitude && latitude <= number(at[2]);
      const i64 rings = at[0];
      at += POLYGON_WORDS;
      const Truth one = in_polygon(at, rings, near, x, latitude);
      if (one == IS_TRUE) return IS_TRUE;
      found = Truth(found | one);
    }
  }
  return found;
}

// Throws DamagedArray where `in_area` could read outside of its words.
static inline void check_area(const i64* words, size_t size) {
  const char* name = "program_words";
  require(size > 0, name, "an area is empty");
  for (size_t at = 1; at < size;) {
    require(size - at >= POLYGON_WORDS && words[at] > 0 && u64(words[at]) <= size, name, "a polygon is out of range");
    const i64 rings = words[at];
    at += POLYGON_WORDS;
    for (i64 ring = 0; ring < rings; ++ring) {
      require(at < size && words[at] >= 0 && u64(words[at]) <= (size - at - 1) / 2, name, "a ring is out of range");
      at += 1 + 2 * size_t(words[at]);
    }
  }
}

}  // namespace hitbox::places
