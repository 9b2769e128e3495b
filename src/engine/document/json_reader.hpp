// JSON -> the values that subscriptions ask for (document.hpp), in one pass. What nobody asks for is checked, and not kept.
//
// The meaning is that of Python's `json.loads` and a match of what it returns. So whatever is unusual is refused, and the
// caller asks Python: what is no JSON, a field that comes twice, a whole number beyond 64 bits, a lone surrogate or NUL in
// a text that is asked for, objects that are nested very deeply, NaN, a mark of the order of bytes.
#pragma once

#include <clocale>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#if defined(__APPLE__)
#include <xlocale.h>
#else
#include <locale.h>
#endif

#include "document/document.hpp"

namespace hitbox::document {

// The double nearest to a number as JSON writes it.
inline double real_number(std::string_view digits) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  const std::string ended(digits);
  return strtod_l(ended.c_str(), nullptr, plain);
}

class JsonReader : Reading {
 public:
  JsonReader(const Paths& paths, Documents& out, Strangers* strangers) : Reading(paths, out, strangers) {}

  // Reads an event, which becomes the last one of the documents. False if Python has to read it; then it has no fields.
  // With `images_alone` old and new make two images of an event only where it has no other fields.
  bool read(std::string_view text, bool images_alone) {
    at_ = text.data();
    end_ = at_ + text.size();
    depth_ = 0;
    return document([&] { return event(images_alone); });
  }

 private:
  static constexpr size_t MOST_DIGITS = 4000;  // of a whole number that nobody asks for: json.loads refuses longer ones

  bool event(bool images_alone) {
    space();
    if (at_ == end_ || *at_ != '{') return false;
    size_t images = 0, names = 0;
    const bool good = members([&](std::string_view name) {
      ++names;
      const u32 place = paths_.field(Paths::EVENT, name);
      if (images_alone || place == NOWHERE_ASKED) images += name == "old" || name == "new";
      if (place == NOWHERE_ASKED) return allows(Paths::EVENT, name) && skip();
      return out_.note(place) && value(place);
    });
    if (!good || (images && (!images_alone || images == names))) return false;
    space();
    return at_ == end_;
  }

  // Calls use(name) at each value of the object that begins here.
  template <class Use>
  bool members(Use use) {
    if (++depth_ > MOST_NESTED) return false;
    ++at_;
    space();
    if (at_ < end_ && *at_ == '}') return leave();
    for (;;) {
      std::string_view name;
      if (at_ == end_ || *at_ != '"' || !string(name, true)) return false;
      space();
      if (at_ == end_ || *at_++ != ':') return false;
      space();
      if (!use(name)) return false;
      space();
      if (at_ == end_) return false;
      if (*at_ == '}') return leave();
      if (*at_++ != ',') return false;
      space();
    }
  }
  // Calls use() at each element of the list that begins here.
  template <class Use>
  bool elements(Use use) {
    if (++depth_ > MOST_NESTED) return false;
    ++at_;
    space();
    if (at_ < end_ && *at_ == ']') return leave();
    for (;;) {
      if (!use()) return false;
      space();
      if (at_ == end_) return false;
      if (*at_ == ']') return leave();
      if (*at_++ != ',') return false;
      space();
    }
  }
  bool leave() {
    --depth_;
    ++at_;
    return true;
  }

  // A value that is kept. `place` is that of a field; elements have none, and then `scope` is that of their fields.
  bool value(u32 place) { return kept(place, place); }
  bool kept(u32 place, u32 scope) {
    if (at_ == end_) return false;
    switch (*at_) {
      case '{': return object(place, scope);
      case '[': return list(place, scope == NOWHERE_ASKED ? scope : paths_.element_of(scope));
      case '"': {
        std::string_view text;
        if (!string(text, true) || text.size() > UINT32_MAX) return false;
        out_[out_.add(Type::TEXT, place, u32(text.size()))].bytes = text.data();
        return true;
      }
      case 't': return word("true") && out_.add(Type::TRUE, place) + 1;
      case 'f': return word("false") && out_.add(Type::FALSE, place) + 1;
      case 'n': return word("null") && out_.add(Type::NOTHING, place) + 1;
      default: return number(place);
    }
  }

  bool object(u32 place, u32 scope) {
    const size_t own = out_.add(Type::OBJECT, place);
    const bool asked = scope != NOWHERE_ASKED && paths_.has_fields(scope);
    const bool of_event = asked && paths_.is_of_event(scope);
    const bool good = members([&](std::string_view name) {
      const u32 field = asked ? paths_.field(scope, name) : NOWHERE_ASKED;
      if (field == NOWHERE_ASKED) return (!asked || allows(scope, name)) && skip();
      if (of_event ? !out_.note(field) : out_.has(own, field)) return false;
      return value(field);
    });
    out_.close(own);
    return good;
  }

  bool list(u32 place, u32 scope) {
    const size_t own = out_.add(Type::LIST, place);
    u32 size = 0;
    const bool good = elements([&] {
      ++size;
      return scope == NOWHERE_ASKED ? skip() : kept(NOWHERE_ASKED, scope);
    });
    out_[own].size = size;
    out_.close(own);
    return good;
  }

  // Passes over a value.
  bool skip() {
    if (at_ == end_) return false;
    switch (*at_) {
      case '{': return members([&](std::string_view) { return skip(); });
      case '[': return elements([&] { return skip(); });
      case '"': {
        std::string_view text;
        return string(text, false);
      }
      case 't': return word("true");
      case 'f': return word("false");
      case 'n': return word("null");
      default: return number();
    }
  }

  bool word(std::string_view wanted) {
    if (size_t(end_ - at_) < wanted.size() || std::memcmp(at_, wanted.data(), wanted.size())) return false;
    at_ += wanted.size();
    return true;
  }

  void space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }

  // ---- numbers

  struct Digits {
    u64 all = 0;  // of the number without its point, if they are at most 19
    u32 count = 0;
  };
  Digits digits(Digits before) {
    for (; at_ < end_ && u8(*at_ - '0') < 10; ++at_, ++before.count) before.all = 10 * before.all + u64(*at_ - '0');
    return before;
  }

  // What is behind the whole part: where the number ends, and the power of ten that `found` is to be multiplied by.
  bool rest(Digits& found, bool& is_whole, i64& power) {
    is_whole = true;
    power = 0;
    if (at_ < end_ && *at_ == '.') {
      is_whole = false;
      ++at_;
      const u32 before = found.count;
      found = digits(found);
      if (found.count == before) return false;
      power = -i64(found.count - before);
    }
    if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
      is_whole = false;
      ++at_;
      const bool negative = at_ < end_ && *at_ == '-';
      if (at_ < end_ && (*at_ == '-' || *at_ == '+')) ++at_;
      const Digits exponent = digits({});
      if (!exponent.count) return false;
      const i64 size = exponent.count > 6 ? 1'000'000 : i64(exponent.all);
      power += negative ? -size : size;
    }
    return true;
  }

  bool whole_part(Digits& found) {
    const char* begin = at_;
    found = digits({});
    return found.count && (found.count == 1 || *begin != '0');
  }

  bool number() {
    if (*at_ == '-') ++at_;
    Digits found;
    bool is_whole;
    i64 power;
    return whole_part(found) && rest(found, is_whole, power) && (!is_whole || found.count <= MOST_DIGITS);
  }

  bool number(u32 place) {
    const char* begin = at_;
    const bool negative = *at_ == '-';
    if (negative) ++at_;
    Digits found;
    bool is_whole;
    i64 power;
    if (!whole_part(found) || !rest(found, is_whole, power)) return false;
    if (is_whole) {
      if (found.count > 19 || found.all > u64(HIGHEST)) return false;
      out_[out_.add(Type::WHOLE, place)].whole = negative ? -i64(found.all) : i64(found.all);
      return true;
    }
    double real;
    if (found.count <= 19 && found.all <= u64(EXACT) && -22 <= power &&
        power <= 22) {  // two exact doubles, rounded once
      real = power < 0 ? double(found.all) / TENS[-power] : double(found.all) * TENS[power];
      if (negative) real = -real;
    } else {
      real = real_number({begin, size_t(at_ - begin)});
    }
    out_[out_.add(Type::REAL, place)].real = real;
    return true;
  }

  static constexpr double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

  // ---- texts

  // The first byte that is not plain ASCII text, or the end.
  static const char* past_plain(const char* at, const char* end) {
    constexpr u64 ONES = 0x0101010101010101ull, TOPS = 0x8080808080808080ull;
    for (; end - at >= 8; at += 8) {
      u64 eight;
      std::memcpy(&eight, at, 8);
      auto none = [](u64 bytes) { return (bytes - ONES) & ~bytes & TOPS; };  // a zero byte: the lowest mark is right
      const u64 marks = none(eight ^ ONES * '"') | none(eight ^ ONES * '\\') | ((eight - ONES * 0x20) & ~eight & TOPS) |
                        (eight & TOPS);
      if (!marks) continue;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
      return at + (__builtin_ctzll(marks) >> 3);
#else
      break;
#endif
    }
    while (at < end && *at != '"' && *at != '\\' && u8(*at) >= 0x20 && u8(*at) < 0x80) ++at;
    return at;
  }

  // The bytes of the character that begins here in UTF-8; 0 if there is none.
  static size_t character(const char* at, const char* end) {
    const u8 first = u8(*at);
    const size_t size = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (!size || size_t(end - at) < size) return 0;
    const u8 least = first == 0xE0   ? 0xA0
                     : first == 0xF0 ? 0x90
                                     : 0x80,
             most = first == 0xED   ? 0x9F
                    : first == 0xF4 ? 0x8F
                                    : 0xBF;
    if (u8(at[1]) < least || u8(at[1]) > most) return 0;
    for (size_t i = 2; i < size; ++i)
      if ((u8(at[i]) & 0xC0) != 0x80) return 0;
    return size;
  }

  // Moves to the next byte that ends a run of text as it stands: a quote or a backslash. False if the text is none.
  bool past_run() {
    for (;;) {
      at_ = past_plain(at_, end_);
      if (at_ == end_ || u8(*at_) < 0x20) return false;
      if (u8(*at_) < 0x80) return true;
      const size_t size = character(at_, end_);
      if (!size) return false;
      at_ += size;
    }
  }

  // The text that begins here. Only if it is wanted, `out` is set, and what texts of events may not hold is refused.
  bool string(std::string_view& out, bool wanted) {
    const char* begin = ++at_;
    if (!past_run()) return false;
    if (*at_ == '"') {
      out = {begin, size_t(at_++ - begin)};
      return true;
    }
    escaped_.clear();
    for (;;) {
      if (wanted) escaped_.append(begin, size_t(at_ - begin));
      if (*at_ == '"') break;
      if (!escape(wanted)) return false;
      begin = at_;
      if (!past_run()) return false;
    }
    ++at_;
    if (wanted) out = out_.texts.copy(escaped_);
    return true;
  }

  bool four(u32& code) {
    if (end_ - at_ < 4) return false;
    code = 0;
    for (u32 i = 0; i < 4; ++i) {
      const char c = *at_++;
      const u32 digit = c >= '0' && c <= '9'   ? u32(c - '0')
                        : c >= 'a' && c <= 'f' ? u32(c - 'a' + 10)
                        : c >= 'A' && c <= 'F' ? u32(c - 'A' + 10)
                                               : 16;
      if (digit == 16) return false;
      code = 16 * code + digit;
    }
    return true;
  }

  bool escape(bool wanted) {
    if (end_ - at_ < 2) return false;
    const char kind = at_[1];
    at_ += 2;
    static constexpr char KINDS[] = "\"\\/bfnrt", MEANS[] = "\"\\/\b\f\n\r\t";
    if (kind != 'u') {
      const void* found = std::memchr(KINDS, kind, sizeof KINDS - 1);
      if (!found) return false;
      if (wanted) escaped_ += MEANS[static_cast<const char*>(found) - KINDS];
      return true;
    }
    u32 code;
    if (!four(code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && end_ - at_ >= 6 && at_[0] == '\\' && at_[1] == 'u') {
      const char* before = at_;
      at_ += 2;
      u32 low;
      if (!four(low)) return false;
      if (low >= 0xDC00 && low < 0xE000) code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      else at_ = before;
    }
    if (!wanted) return true;
    if (!code || (code >= 0xD800 && code < 0xE000)) return false;
    append(code);
    return true;
  }

  void append(u32 code) {
    auto more = [&](u32 shift) { escaped_ += char(0x80 | (code >> shift & 0x3F)); };
    if (code < 0x80) escaped_ += char(code);
    else if (code < 0x800) {
      escaped_ += char(0xC0 | code >> 6);
      more(0);
    } else if (code < 0x10000) {
      escaped_ += char(0xE0 | code >> 12);
      more(6);
      more(0);
    } else {
      escaped_ += char(0xF0 | code >> 18);
      more(12);
      more(6);
      more(0);
    }
  }

  const char *at_ = nullptr, *end_ = nullptr;
  u32 depth_ = 0;
  std::string escaped_;
};

}  // namespace hitbox::document
