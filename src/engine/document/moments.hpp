// Timestamps as JSON writes them, in the usual forms of ISO 8601.
#pragma once

#include <string_view>

#include "base/common.hpp"

namespace hitbox::document {

enum class Read : u8 { NOTHING, DONE, UNUSUAL };  // UNUSUAL: Python has to look at it

// Days from the start of 1970 to a day of the Gregorian calendar.
inline i64 days_from_epoch(i64 year, i64 month, i64 day) {
  year -= month <= 2;
  const i64 era = year / 400, of_era = year - era * 400;
  const i64 of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

// The microseconds since 1970, UTC, of "2026-11-19", "2026-11-19T21:00:00", ".. 21:00:00.5Z" or "..+01:00". A text that
// cannot be a timestamp is NOTHING.
inline Read read_moment(std::string_view text, i64& micros) {
  auto number = [&](size_t from, size_t size) {
    i64 found = 0;
    for (size_t i = from; i < from + size; ++i) {
      if (i >= text.size() || u8(text[i] - '0') > 9) return i64(-1);
      found = 10 * found + (text[i] - '0');
    }
    return found;
  };
  auto is = [&](size_t at, char wanted) { return at < text.size() && text[at] == wanted; };
  for (size_t i = 0; i < 4; ++i)
    if (i >= text.size() || u8(text[i] - '0') > 9) return Read::NOTHING;  // every form begins with the year
  const i64 year = number(0, 4), month = number(5, 2), day = number(8, 2);
  if (!is(4, '-') || !is(7, '-') || year < 1 || month < 1 || month > 12 || day < 1) return Read::UNUSUAL;
  static constexpr i64 DAYS[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
  if (day > DAYS[month - 1] + (leap && month == 2)) return Read::UNUSUAL;
  micros = days_from_epoch(year, month, day) * 86'400'000'000;
  if (text.size() == 10) return Read::DONE;
  const i64 hour = number(11, 2), minute = number(14, 2), second = number(17, 2);
  if ((!is(10, 'T') && !is(10, ' ')) || !is(13, ':') || !is(16, ':')) return Read::UNUSUAL;
  if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) return Read::UNUSUAL;
  micros += ((hour * 60 + minute) * 60 + second) * 1'000'000;
  size_t at = 19;
  if (is(at, '.')) {
    i64 unit = 100'000;
    const size_t begin = ++at;
    for (; at < text.size() && u8(text[at] - '0') < 10; ++at, unit /= 10) micros += (text[at] - '0') * unit;
    if (at == begin || at - begin > 6) return Read::UNUSUAL;
  }
  if (at == text.size() || (is(at, 'Z') && at + 1 == text.size())) return Read::DONE;
  const i64 hours = number(at + 1, 2), minutes = number(at + 4, 2);
  if ((!is(at, '+') && !is(at, '-')) || !is(at + 3, ':') || at + 6 != text.size()) return Read::UNUSUAL;
  if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59 || year == 1 || year == 9999) return Read::UNUSUAL;
  const i64 offset = (hours * 60 + minutes) * 60'000'000;
  micros += text[at] == '-' ? offset : -offset;
  return Read::DONE;
}

}  // namespace hitbox::document
