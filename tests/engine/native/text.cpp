// Predicates in bulk under the sanitizers: random and broken texts never read outside their memory, and the conditions
// that are read come out as the intervals that they say. Prints "exact".
#include <cstdio>
#include <random>

#include "text/boxes.hpp"

using namespace hitbox;
using namespace hitbox::text;

namespace {

constexpr u32 ABOUT = 7;  // the attribute that subscriptions say about themselves
std::mt19937_64 rng(1);
size_t below(size_t count) { return rng() % count; }

const char* const PIECES[] = {"a",
                              "b",
                              "s",
                              "\"s\"",
                              "t",
                              "f",
                              " ",
                              " ",
                              " ",
                              "\n",
                              "=",
                              "<>",
                              "!=",
                              "<=",
                              ">=",
                              "<",
                              ">",
                              "AND",
                              "and",
                              "OR",
                              "NOT",
                              "IN",
                              "BETWEEN",
                              "LIKE",
                              "ESCAPE",
                              "IS",
                              "NULL",
                              "TRUE",
                              "FALSE",
                              "TIMESTAMP",
                              "(",
                              ")",
                              ",",
                              "'",
                              "''",
                              "\"",
                              "'x'",
                              "'it''s'",
                              "'%x'",
                              "0",
                              "7",
                              "-3",
                              "+ 4",
                              "1.5",
                              ".5",
                              "1.",
                              "1e5",
                              "-1e-7",
                              "1e400",
                              "999999999999999999999",
                              "0.1234567890123456789",
                              "'2026-01-31 12:00:00.5+01:30'",
                              "'2026-01-31'",
                              "'9999-12-31'",
                              "é",
                              "\xff",
                              "\x00",
                              "--",
                              ";",
                              "e",
                              "e+",
                              ".",
                              "(1, 2, 3)",
                              "('x', 'y')",
                              "(TRUE, FALSE)"};

std::string random_text() {
  std::string text;
  for (size_t i = below(14); i-- > 0;) {
    text += PIECES[below(sizeof(PIECES) / sizeof(*PIECES))];
    if (below(3)) text += ' ';
  }
  if (below(8) == 0 && !text.empty()) text.resize(below(text.size()));
  return text;
}

// Any tests that take as many literals as a shape has.
void define_somehow(Reader& reader, const Reader::Question& asked) {
  Shape& shape = reader.define(asked.shape);
  if (asked.about_pattern) {
    shape.patterns->number(asked.text);
    const bool plain = below(2), bound = plain || below(2);
    shape.meanings.push_back({bound ? std::optional<std::string>(asked.text) : std::nullopt,
                              bound && !plain && below(2) ? std::optional<std::string>("above") : std::nullopt, plain,
                              below(10) == 0, below(2) ? shape.attribute : 8});
    return;
  }
  if (below(20) == 0) {
    shape.meaning = below(2) ? Shape::Meaning::ALWAYS : Shape::Meaning::NEVER;
    return;
  }
  shape.attribute = u32(below(ABOUT));
  for (size_t i = 0; i < shape.lists.size(); ++i) {
    if (shape.lists[i]) shape.tests.push_back(below(2) ? Test::IN : Test::NOT_IN);
    else if (i + 1 < shape.lists.size() && !shape.lists[i + 1] && below(2)) {
      shape.tests.push_back(below(2) ? Test::BETWEEN : Test::NOT_BETWEEN);
      ++i;
    } else {
      const Test some[] = {Test::EQUAL, Test::UNEQUAL, Test::BELOW, Test::UP_TO, Test::ABOVE, Test::FROM};
      shape.tests.push_back(some[below(6)]);
    }
  }
  if (shape.tests.empty()) shape.tests.push_back(below(2) ? Test::IS_NULL : Test::IS_NOT_NULL);
  if (shape.lists.size() == 1 && !shape.lists[0] && reader.codec(shape.attribute).type == Type::STRING && below(2)) {
    shape.tests = {below(2) ? Test::LIKE : Test::NOT_LIKE};
    shape.like = true;
    shape.patterns = std::make_unique<TextTable>(reader.new_table());
  }
  shape.any = below(2);
  shape.single = shape.tests.size() == 1 && one_interval(shape.tests[0]);
  shape.meaning = Shape::Meaning::TESTED;
}

// A text of its own in memory, so that a step too far is noticed.
void read_all(Reader& reader, const std::string& text, Piece& piece) {
  std::vector<u8> data(text.begin(), text.end());
  const i64 offsets[] = {0, i64(data.size())};
  const u8 wanted = 1;
  for (size_t row = 0; row < 1;) {
    row = reader.read(offsets, data.data(), &wanted, row, 1, piece);
    if (reader.question().asked) define_somehow(reader, reader.question());
  }
}

bool hostile() {
  for (size_t round = 0; round < 40; ++round) {
    std::vector<Codec> codecs{{Type::INT},
                              {round % 2 ? Type::NUMBER : Type::FLOAT},
                              {Type::GRID, true, 1, 1, -10, 40},
                              {Type::GRID, false, 1, 3, 0, 3},
                              {Type::BOOL},
                              {Type::TIMESTAMP},
                              {Type::STRING},
                              {Type::OTHER}};
    Reader reader(codecs, {400, 5, 3}, {rng(), rng()});
    if (reader.add_attribute({Type::STRING}) != 8) return false;
    Piece piece;
    for (size_t i = 0; i < 2000; ++i) read_all(reader, random_text(), piece);
    std::vector<const i64*> by_attribute(9, nullptr);
    std::vector<i64> keys[2];
    for (u32 i = 0; i < 2; ++i) {
      keys[i].resize(reader.strings(6 + 2 * i).size());
      for (i64& key : keys[i]) key = i64(rng() >> 3) * 2 - (i64(1) << 61);
      by_attribute[6 + 2 * i] = keys[i].data();
    }
    const std::vector<int> numbers{0, 1, 2, 3, 4, 5, 6, 7, round % 3 ? 9 : -1};
    const int about = ABOUT;
    std::vector<i64> low(piece.read.size(), MISSING);
    std::vector<i64> most(piece.read.size());
    for (i64& one : most) one = below(2) ? 50 : 2;
    const Made made =
        Maker(reader, by_attribute, numbers, {&about, 1, low.data(), low.data()}, {most.data(), 3}).make(piece);
    std::vector<i64> key(10);
    for (i64& one : key) one = i64(rng()) >> below(60);
    for (size_t i = 0; i < made.programmed.size(); ++i) {
      const u32* code = made.code.data() + made.code_offsets[i];
      const size_t literals = size_t(made.literal_offsets[i + 1] - made.literal_offsets[i]);
      const auto needs = program::check_shape(code, size_t(made.code_offsets[i + 1] - made.code_offsets[i]), 10);
      if (needs.literals > literals) return false;
      const Truth truth = program::run(code, made.literals.data() + made.literal_offsets[i], {key.data(), nullptr});
      if (truth != IS_TRUE && truth != IS_FALSE) return false;
    }
    size_t boxes = 0;
    for (i64 count : made.counts) boxes += size_t(std::max<i64>(count, 0));
    if (boxes + 1 != made.offsets.size() || boxes != made.exact.size()) return false;
    for (size_t i = 0; i < boxes; ++i)
      for (i64 k = made.offsets[i]; k < made.offsets[i + 1]; ++k) {
        if (made.low[size_t(k)] > made.high[size_t(k)]) return false;
        if (k > made.offsets[i] && made.attribute[size_t(k)] <= made.attribute[size_t(k) - 1]) return false;
      }
  }
  return true;
}

// "a BETWEEN x AND y AND b IN (...)": the boxes are what a plain reading says.
bool plain() {
  Reader reader({{Type::INT}, {Type::INT}}, {10000, 5, 100}, {rng(), rng()});
  for (size_t round = 0; round < 2000; ++round) {
    const i64 low = i64(below(100)) - 50, high = low + i64(below(40)) - 3, one = i64(below(10)), other = i64(below(10));
    const std::string text = "a BETWEEN " + std::to_string(low) + " AND " + std::to_string(high) + " AND b IN (" +
                             std::to_string(one) + ", " + std::to_string(other) + ".0)";
    const i64 offsets[] = {0, i64(text.size())};
    const u8 wanted = 1;
    Piece piece;
    for (size_t row = 0; row < 1;) {
      row = reader.read(offsets, reinterpret_cast<const u8*>(text.data()), &wanted, row, 1, piece);
      if (!reader.question().asked) continue;
      Shape& shape = reader.define(reader.question().shape);
      shape.attribute = reader.question().text[0] == 'b';
      shape.tests = {shape.attribute ? Test::IN : Test::BETWEEN};
      shape.single = !shape.attribute;
      shape.meaning = Shape::Meaning::TESTED;
    }
    const i64 most = 10;
    const Made made =
        Maker(reader, {nullptr, nullptr}, {0, 1}, {nullptr, 0, nullptr, nullptr}, {&most, 16}).make(piece);
    const i64 first = std::min(one, other), last = std::max(one, other);
    const i64 count = low > high ? 0 : last - first > 1 ? 2 : 1;
    if (made.counts[0] != count) return false;
    if (!count) continue;
    if (made.low[0] != low || made.high[0] != high || made.low[1] != first) return false;
    if (made.high[size_t(2 * count - 1)] != last) return false;
  }
  return true;
}

}  // namespace

int main() {
  std::puts(hostile() && plain() ? "exact" : "wrong");
  return 0;
}
