// Literals -> the keys that they cut off: what Codec.cut says, natively, of the literals that are common.
//
// A cut is a pair of keys: `last`, the greatest one below the literal, and `upto`, the greatest one that is not above
// it. (The codec's pair is (last, upto + 1), which need not fit 64 bits.) Whatever is not sure to be right is refused,
// and Python decides.
#pragma once

#include <charconv>
#include <cmath>
#include <optional>

#include "text/tokens.hpp"

namespace hitbox::text {

struct Cut {
  i64 last, upto;
};

enum class Type : u8 { INT, FLOAT, GRID, BOOL, TIMESTAMP, STRING, NUMBER, OTHER };

// How values of one attribute become keys. A grid has steps of over / under, from `first` to `last`.
struct Codec {
  Type type = Type::OTHER;
  bool even = false;
  i64 over = 1, under = 1, first = 0, last = 0;
};

constexpr int MOST_DIGITS = 18;  // that surely fit 64 bits
__extension__ typedef __int128 i128;

constexpr std::array<i64, MOST_DIGITS + 1> powers() {
  std::array<i64, MOST_DIGITS + 1> of{};
  of[0] = 1;
  for (size_t i = 1; i <= MOST_DIGITS; ++i) of[i] = of[i - 1] * 10;
  return of;
}
constexpr std::array<i64, MOST_DIGITS + 1> POWER = powers();
constexpr double DOUBLE_POWER[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                   1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// mantissa * 10^exponent; `mantissa` holds only if `small` (at most 18 digits).
struct Number {
  bool negative = false, decimal = false, small = true, zero = false;
  i64 mantissa = 0;
  int exponent = 0;       // of the mantissa
  const u8 *begin, *end;  // without the sign
};

// Appends digits to a value, which may overflow.
static inline const u8* append_digits(const u8* at, const u8* end, u64& value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  for (; end - at >= 8 && eight_digits(at); at += 8) {  // pairs, then fours, then all eight at once
    u64 bytes;
    std::memcpy(&bytes, at, 8);
    bytes -= 0x3030303030303030;
    bytes = bytes * 10 + (bytes >> 8);
    constexpr u64 PAIRS = 0x000000FF000000FF;
    bytes = (bytes & PAIRS) * 0x000F424000000064 + ((bytes >> 16) & PAIRS) * 0x0000271000000001;
    value = value * 100000000 + (bytes >> 32);
  }
#endif
  while (at < end && is_digit(*at)) value = value * 10 + (*at++ - '0');
  return at;
}

// The digits before and after the point; those that do not fit are counted only.
static inline const u8* read_digits(const u8* at, const u8* end, Number& number) {
  u64 value = 0;
  const u8* first = at;
  at = append_digits(at, end, value);
  i64 digits = at - first;
  if (at < end && *at == '.') {
    number.decimal = true;
    const u8* fraction = ++at;
    at = append_digits(at, end, value);
    digits += at - fraction;
    number.exponent = -int(at - fraction);
  }
  while (digits > MOST_DIGITS && (*first == '0' || *first == '.')) digits -= *first++ == '0';
  number.small = digits <= MOST_DIGITS;
  number.mantissa = number.small ? i64(value) : 0;  // leading zeros have changed nothing
  number.zero = number.small && !value;
  return at;
}

static inline bool read_number(const u8* at, const u8* end, Number& number) {
  if (*at == '+' || *at == '-') {
    number.negative = *at == '-';
    for (++at; CLASS[*at] == SPACE;) ++at;
  }
  number.begin = at;
  number.end = end;
  if (end - at > 300) return false;
  at = read_digits(at, end, number);
  if (at < end) {
    number.decimal = true;
    const bool minus = *++at == '-';
    at += *at == '-' || *at == '+';
    int exponent = 0;
    for (; at < end; ++at) {
      exponent = exponent * 10 + (*at - '0');
      if (exponent > 1000) return false;
    }
    number.exponent += minus ? -exponent : exponent;
  }
  if (number.negative) number.mantissa = -number.mantissa;
  return true;
}

static inline i64 float_key(double value) {
  i64 bits;
  std::memcpy(&bits, &value, 8);
  return bits >= 0 ? bits : MISSING - bits;
}

static inline Cut at_key(i64 key) { return {key - 1, key}; }

// The double nearest to a decimal.
static inline std::optional<double> nearest(const Number& number) {
  if (number.zero) return 0.0;
  if (number.small && std::abs(number.mantissa) <= EXACT && number.exponent >= -22 && number.exponent <= 22) {
    // two exact doubles, multiplied or divided once
    const double mantissa = double(number.mantissa);
    return number.exponent < 0 ? mantissa / DOUBLE_POWER[-number.exponent] : mantissa * DOUBLE_POWER[number.exponent];
  }
#if defined(__cpp_lib_to_chars)
  double value;
  const char *begin = reinterpret_cast<const char*>(number.begin), *end = reinterpret_cast<const char*>(number.end);
  const auto read = std::from_chars(begin, end, value);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  if (!(value > 1e-300 && value < 1e300)) return std::nullopt;  // what is too small or too large is an error
  return number.negative ? -value : value;
#else
  return std::nullopt;
#endif
}

static inline std::optional<Cut> cut_float(const Number& number) {
  if (number.decimal) {
    const auto value = nearest(number);
    if (!value) return std::nullopt;
    return at_key(float_key(*value));
  }
  if (!number.small) return std::nullopt;
  const double near = double(number.mantissa);  // at most 18 digits, so far from 2^63
  const i64 key = float_key(near), back = i64(near);
  if (back == number.mantissa) return at_key(key);
  return back < number.mantissa ? Cut{key, key} : Cut{key - 1, key - 1};  // between two floats
}

// Of numbers that are whole or not. Keys decide only against literals below 2^53.
static inline std::optional<Cut> cut_any_number(const Number& number) {
  std::optional<double> value;
  if (number.decimal) value = nearest(number);
  else if (number.small) value = double(number.mantissa);
  if (!value || std::abs(*value) >= double(EXACT)) return std::nullopt;
  return at_key(float_key(*value));
}

// mantissa * 10^exponent, if it has at most 18 digits; the exponent is not negative.
static inline std::optional<i64> times_power(const Number& number) {
  if (number.exponent > MOST_DIGITS) return std::nullopt;
  const i128 whole = i128(number.mantissa) * POWER[size_t(number.exponent)];
  if (whole > POWER[MOST_DIGITS] || whole < -POWER[MOST_DIGITS]) return std::nullopt;
  return i64(whole);
}

static inline std::optional<Cut> cut_int(const Number& number) {
  if (!number.small) return std::nullopt;
  if (number.exponent >= 0) {
    const auto whole = times_power(number);
    if (!whole) return std::nullopt;
    return at_key(*whole);
  }
  if (number.exponent < -MOST_DIGITS) return std::nullopt;
  const i64 under = POWER[size_t(-number.exponent)];
  const i64 rest = number.mantissa % under;
  const i64 floor = number.mantissa / under - (rest < 0);
  return rest ? Cut{floor, floor} : at_key(floor);
}

static inline std::optional<Cut> cut_grid(const Number& number, const Codec& codec) {
  if (!number.small || number.exponent < -MOST_DIGITS) return std::nullopt;
  i128 above = number.mantissa, below = codec.over;
  if (number.exponent > 0) {
    const auto whole = times_power(number);
    if (!whole) return std::nullopt;
    above = *whole;
  } else {
    below *= POWER[size_t(-number.exponent)];
  }
  above *= codec.under;  // over and under are below 2^53
  if (above % below) return std::nullopt;
  const i128 step = above / below;
  if (step < codec.first || step > codec.last) return std::nullopt;
  return at_key(2 * i64(step));
}

// Days from 1970-01-01 to a date (Howard Hinnant's days_from_civil).
static inline i64 days_to(int year, int month, int day) {
  year -= month <= 2;
  const int era = year / 400, of_era = year - era * 400;
  const int of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return i64(era) * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

// YYYY-MM-DD[( |T)hh:mm[:ss[.ffffff]][[ ](Z|+hh:mm)]] in microseconds; the first and the last year are left to Python,
// because a zone may lead out of them.
static inline std::optional<i64> read_timestamp(const u8* at, const u8* end) {
  auto number = [&](int digits, int most) {
    int value = 0;
    for (; digits; --digits, ++at) {
      if (at == end || CLASS[*at] != DIGIT) return -1;
      value = value * 10 + (*at - '0');
    }
    return value <= most ? value : -1;
  };
  auto take = [&](u8 mark) { return at < end && *at == mark ? (++at, true) : false; };
  const int year = number(4, 9998);
  if (year < 2 || !take('-')) return std::nullopt;
  const int month = number(2, 12);
  if (month < 1 || !take('-')) return std::nullopt;
  const int day = number(2, 31);
  const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
  constexpr int LENGTH[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (day < 1 || day > LENGTH[month - 1] + (month == 2 && leap)) return std::nullopt;
  i64 seconds = days_to(year, month, day) * 86400, micros = 0;
  if (at == end) return seconds * 1000000;
  if (!take(' ') && !take('T')) return std::nullopt;
  const int hour = number(2, 23);
  if (hour < 0 || !take(':')) return std::nullopt;
  const int minute = number(2, 59);
  if (minute < 0) return std::nullopt;
  seconds += hour * 3600 + minute * 60;
  if (take(':')) {
    const int second = number(2, 59);
    if (second < 0) return std::nullopt;
    seconds += second;
    if (take('.')) {
      int digits = 0;
      for (; digits < 6 && at < end && CLASS[*at] == DIGIT; ++digits, ++at) micros = micros * 10 + (*at - '0');
      if (!digits) return std::nullopt;
      for (; digits < 6; ++digits) micros *= 10;
    }
  }
  if (at < end) {
    take(' ');
    if (take('Z')) {
    } else if (at < end && CLASS[*at] == SIGN) {
      const int sign = *at++ == '-' ? -1 : 1;
      const int hours = number(2, 23);
      if (hours < 0 || !take(':')) return std::nullopt;
      const int minutes = number(2, 59);
      if (minutes < 0) return std::nullopt;
      seconds -= sign * (hours * 3600 + minutes * 60);
    } else {
      return std::nullopt;
    }
  }
  if (at != end) return std::nullopt;
  return seconds * 1000000 + micros;
}

static inline std::optional<Cut> cut_number(const u8* begin, const u8* end, const Codec& codec) {
  Number number;
  if (!read_number(begin, end, number)) return std::nullopt;
  switch (codec.type) {
    case Type::INT: return cut_int(number);
    case Type::FLOAT: return cut_float(number);
    case Type::GRID: return cut_grid(number, codec);
    case Type::NUMBER: return cut_any_number(number);
    default: return std::nullopt;
  }
}

}  // namespace hitbox::text
