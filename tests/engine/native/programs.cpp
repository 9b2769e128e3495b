// Runs random programs, and compares them with a plain evaluation of their trees. Then arrays are forged: what passes the
// check must not read outside of them. test_sanitizers.py builds it with sanitizers.
#include <cstdio>
#include <random>
#include <string>

#include "program/program.hpp"

using namespace hitbox;

namespace {

std::mt19937_64 generator(7);
i64 draw(i64 low, i64 high) { return std::uniform_int_distribution<i64>(low, high)(generator); }

constexpr u32 ATTRIBUTES = 5;

// A shape with its literals, and the truths that it may have for an event, found part by part.
struct Tree {
  std::vector<u32> code;
  std::vector<i64> literals;
  std::vector<std::pair<u32, std::vector<i64>>> lists;
  std::vector<i64> keys;
  std::vector<std::vector<i64>> elements;
  std::vector<std::string> texts;
  GivenDetails details;
  bool looks_twice;  // whether details are given
  i64 element = -1;  // the one that is looked at

  explicit Tree(bool second_look = true) : looks_twice(second_look) {
    details.now = draw(-3, 3);
    const size_t count = size_t(draw(0, 4));  // all lists are of one length: they are fields of the same objects
    const Details::Given given = draw(0, 4) ? Details::Given::YES : Details::Given::NOTHING;
    for (u32 i = 0; i < ATTRIBUTES; ++i) {
      keys.push_back(draw(0, 4) ? draw(-8, 8) : MISSING);
      elements.emplace_back();
      for (size_t at = 0; at < count; ++at) elements.back().push_back(draw(0, 4) ? draw(-8, 8) : MISSING);
      texts.push_back(random_text(8));
    }
    for (u32 i = 0; i < ATTRIBUTES; ++i) {
      details.lists.push_back({given, elements[i].data(), count});
      details.texts.push_back({draw(0, 4) ? Details::Given::YES : Details::Given::NOTHING, texts[i]});
    }
  }
  Tree(Tree&&) = default;  // for a vector, which has room: what the details point to stays where it is

  const Details* given() const { return looks_twice ? &details : nullptr; }

  // Letters of one, two and three bytes.
  static std::string random_text(i64 most) {
    static const char* const LETTERS[] = {"a", "b", "\xC3\xA9", "\xE2\x82\xAC"};
    std::string found;
    for (i64 left = draw(0, most); left; --left) found += LETTERS[draw(0, 3)];
    return found;
  }

  Truth grow(u32 depth) {
    if (depth && draw(0, 2)) {
      const u32 op = u32(draw(0, 2));
      const size_t start = code.size();
      code.push_back(0);
      std::vector<Truth> parts;
      for (i64 left = draw(1, 4); left; --left) parts.push_back(grow(depth - 1));
      code[start] = op | u32(code.size() - start) << 3;
      return joined(op, parts, 0, op == program::AND ? IS_TRUE : IS_FALSE);
    }
    if (!draw(0, 3)) {
      const Truth truth = Truth(draw(1, 7));
      code.push_back(program::OPEN | u32(truth) << 3);
      return truth;
    }
    if (draw(0, 3)) return test();
    if (element >= 0) return test(program::TEST_ELEMENT);
    switch (draw(0, 3)) {
      case 0: return each(depth);
      case 1: return like();
      case 2: return since();
      default: return place_test();
    }
  }

  // A condition on all elements; it is written once, and its truth is found again for each of them.
  Truth each(u32 depth) {
    const u32 attribute = u32(draw(0, ATTRIBUTES - 1)), kind = u32(draw(0, 1)), negated = u32(draw(0, 1));
    const size_t start = code.size(), literal = literals.size(), list = lists.size();
    const Details::Elements of = details.lists[attribute];
    code.insert(code.end(), {program::MORE | kind << 3 | negated << 6 | attribute << 8, 0});
    const std::mt19937_64 before = generator;
    std::vector<Truth> parts;
    for (size_t at = 0; at < std::max<size_t>(1, of.count); ++at) {
      generator = before;
      code.resize(start + 2), literals.resize(literal), lists.resize(list);
      element = i64(at);
      parts.push_back(grow(depth ? depth - 1 : 0));
    }
    element = -1;
    code[start + 1] = u32(code.size() - start);
    if (!looks_twice) return 7;
    if (of.given == Details::Given::NOTHING) return IS_UNKNOWN;
    parts.resize(of.count);
    const u32 op = kind == program::EACH_AND ? program::AND : program::OR;
    return turned(joined(op, parts, 0, op == program::AND ? IS_TRUE : IS_FALSE), negated);
  }

  Truth like() {
    const u32 attribute = u32(draw(0, ATTRIBUTES - 1)), negated = u32(draw(0, 1));
    std::string pattern;
    for (i64 left = draw(0, 5); left; --left)
      pattern += draw(0, 1) ? random_text(2) : std::string(1, draw(0, 1) ? patterns::ANY : patterns::ONE);
    std::vector<i64> words{i64(pattern.size())};
    words.resize(1 + (pattern.size() + 7) / 8);
    std::memcpy(words.data() + 1, pattern.data(), pattern.size());
    code.insert(code.end(), {program::MORE | program::LIKE << 3 | negated << 6 | attribute << 8, u32(literals.size())});
    lists.push_back({u32(literals.size()), words});
    literals.push_back(0);
    if (!looks_twice) return 7;
    if (details.texts[attribute].given == Details::Given::NOTHING) return IS_UNKNOWN;
    return turned(is_like(pattern, texts[attribute]) ? IS_TRUE : IS_FALSE, negated);
  }
  static bool is_like(std::string_view pattern, std::string_view text) {
    if (pattern.empty()) return text.empty();
    if (pattern[0] == patterns::ANY)
      return is_like(pattern.substr(1), text) || (!text.empty() && is_like(pattern, text.substr(1)));
    if (text.empty()) return false;
    if (pattern[0] != patterns::ONE) return pattern[0] == text[0] && is_like(pattern.substr(1), text.substr(1));
    if (!patterns::begins(text[0])) return false;
    const size_t size = u8(text[0]) < 0x80 ? 1 : u8(text[0]) < 0xE0 ? 2 : 3;
    return is_like(pattern.substr(1), text.substr(size));
  }
  static Truth turned(Truth of, u32 negated) {
    if (!negated) return of;
    return Truth((of & IS_UNKNOWN) | (of & IS_TRUE) << 1 | (of & IS_FALSE) >> 1);
  }

  Truth since() {
    code.push_back(program::MORE | program::SINCE << 3);
    const std::vector<i64> whole = keys;
    for (i64& key : keys)
      if (key != MISSING) key -= details.now;
    const Truth found = test();
    keys = whole;
    return looks_twice ? found : Truth(7);
  }

  // Every combination of what the parts may be.
  static Truth joined(u32 op, const std::vector<Truth>& parts, size_t at, Truth so_far) {
    if (at == parts.size()) return so_far;
    Truth found = 0;
    for (Truth one : {IS_TRUE, IS_FALSE, IS_UNKNOWN})
      if (parts[at] & one) found = Truth(found | joined(op, parts, at + 1, both(op, so_far, one)));
    return found;
  }
  static Truth both(u32 op, Truth a, Truth b) {
    const bool unknown = a == IS_UNKNOWN || b == IS_UNKNOWN;
    if (op == program::XOR) return unknown ? IS_UNKNOWN : a != b ? IS_TRUE : IS_FALSE;
    const Truth strong = op == program::AND ? IS_FALSE : IS_TRUE, weak = op == program::AND ? IS_TRUE : IS_FALSE;
    return a == strong || b == strong ? strong : unknown ? IS_UNKNOWN : weak;
  }

  Truth test(u32 op = program::TEST) {
    const u32 attribute = u32(draw(0, ATTRIBUTES - 1)), null = u32(draw(0, 2)), inside = u32(draw(0, 1));
    std::vector<i64> ends;
    for (i64 next = -9 + draw(0, 9); i64(ends.size()) < draw(0, 8) && next <= 9; next += draw(1, 4))
      ends.push_back(next);
    const u32 size = std::min<u32>(u32(ends.size()), program::LIST);
    code.push_back(op | null << 3 | inside << 5 | size << 6 | attribute << 8);
    code.push_back(u32(literals.size()));
    if (size == program::LIST) {
      lists.push_back({u32(literals.size()), ends});
      literals.push_back(0);
    } else {
      literals.insert(literals.end(), ends.begin(), ends.end());
    }
    i64 key = keys[attribute];
    if (op == program::TEST_ELEMENT)
      key = size_t(element) < elements[attribute].size() ? elements[attribute][size_t(element)] : MISSING;
    if (key == MISSING) return Truth(1u << null);
    bool in = inside;
    for (i64 end : ends)
      if (end <= key) in = !in;
    return in ? IS_TRUE : IS_FALSE;
  }

  // Circles that hold everything or nothing, and rectangles with a hole, on whose borders no whole number lies.
  Truth place_test() {
    const u32 latitude = u32(draw(0, ATTRIBUTES - 1)), longitude = u32(draw(0, ATTRIBUTES - 1));
    const bool area = draw(0, 1), negated = draw(0, 1);
    code.insert(code.end(), {program::PLACE | u32(area) << 3 | u32(negated) << 4 | 3u << 5, latitude, longitude,
                             u32(literals.size())});
    const double y = double(keys[latitude]), x = double(keys[longitude]);
    bool in;
    if (area) {
      const double reach = double(draw(0, 9)) + 0.5, hole = reach / 2 + 0.2501;
      std::vector<i64> words{draw(0, 1)};
      for (i64 left = draw(0, 2); left; --left) {
        words.insert(words.end(), {2, bits(-reach), bits(reach), bits(-reach), bits(reach)});
        for (double half : {reach, hole}) {
          words.push_back(5);
          for (double corner : {-half, -half, half, -half, half, half, -half, half, -half, -half})
            words.push_back(bits(corner));
        }
      }
      in = words.size() > 1 && std::max(std::fabs(x), std::fabs(y)) < reach &&
           std::max(std::fabs(x), std::fabs(y)) > hole;
      lists.push_back({u32(literals.size()), words});
      literals.push_back(0);
    } else {
      in = draw(0, 1);
      literals.insert(literals.end(), {bits(0.1), bits(20), bits(0.9), bits(-1), bits(in ? 4 : -1)});
    }
    if (keys[latitude] == MISSING || keys[longitude] == MISSING) return IS_UNKNOWN;
    return in != negated ? IS_TRUE : IS_FALSE;
  }
  static i64 bits(double number) {
    i64 found;
    std::memcpy(&found, &number, sizeof found);
    return found;
  }

  void finish() {
    for (const auto& [at, ends] : lists) {
      literals[at] = i64(literals.size()) | i64(ends.size()) << 32;
      literals.insert(literals.end(), ends.begin(), ends.end());
    }
  }
};

// Several programs in flat arrays, which may be forged.
struct Arrays {
  std::vector<i64> place, words, shapes{0};
  std::vector<u32> code;

  void add(const Tree& tree) {
    place.push_back(draw(0, 5) ? i64(words.size()) + 1 : 0);
    words.push_back(i64(shapes.size() - 1) | i64(tree.literals.size() + 1) << 32);
    words.insert(words.end(), tree.literals.begin(), tree.literals.end());
    code.insert(code.end(), tree.code.begin(), tree.code.end());
    shapes.push_back(i64(code.size()));
  }
  ProgramView view() const {
    return {place.data(), place.size(), words.data(),  words.size(),
            code.data(),  code.size(),  shapes.data(), shapes.size() - 1};
  }
  void forge() {
    for (i64 left = draw(1, 3); left; --left) {
      auto any = [](auto& some) -> auto& { return some[size_t(draw(0, i64(some.size()) - 1))]; };
      const i64 value = draw(0, 1) ? draw(-2, 40) : i64(generator());
      switch (draw(0, 5)) {
        case 0: any(place) = value; break;
        case 1: any(words) = value; break;
        case 2: any(words) ^= i64(1) << draw(0, 63); break;
        case 3: any(code) = u32(value); break;
        case 4: any(code) ^= u32(1) << draw(0, 31); break;
        default: any(shapes) = value;
      }
    }
  }
};

constexpr i64 MANY = i64(1) << 40;  // steps

Truth run(const ProgramView& view, i32 slot, const Tree& tree, const Details* given, Work& work) {
  return given ? view.run(slot, tree.keys.data(), *given, work) : view.run(slot, tree.keys.data());
}

bool check(u32 depth) {
  Arrays arrays;
  std::vector<Tree> trees;
  std::vector<Truth> truths;
  trees.reserve(8);
  for (int i = 0; i < 8; ++i) {
    Tree& tree = trees.emplace_back(draw(0, 3) > 0);
    truths.push_back(tree.grow(depth));
    tree.finish();
    arrays.add(tree);
  }
  const ProgramView view = arrays.view();
  view.check(ATTRIBUTES);
  for (size_t i = 0; i < trees.size(); ++i) {
    const Truth right = arrays.place[i] ? truths[i] : Truth(7);
    Work all(MANY);
    const Truth found = run(view, i32(i), trees[i], trees[i].given(), all);
    if (found != right) return std::printf("%d instead of %d\n", found, right), false;
    for (i64 steps = 0; steps < 4; ++steps) {  // with fewer: the same, or nothing
      Work some(steps);
      const bool enough = all.words() <= u64(steps) * Work::STEP;
      if (run(view, i32(i), trees[i], trees[i].given(), some) != (enough ? right : OUT_OF_STEPS))
        return std::printf("%llu words in %lld steps\n", (unsigned long long)all.words(), (long long)steps), false;
      if (some.steps() > steps) return std::printf("more steps than are allowed\n"), false;
    }
  }
  if (view.run(1000, trees[0].keys.data()) != 7) return std::printf("a slot without a program\n"), false;
  std::vector<i64> slots{0, 1, 2, 3, 4, 5, 6, 7, 8, -1};
  for (u32 attribute = 0; attribute <= ATTRIBUTES; ++attribute)
    for (i64 at : view.ends(slots.data(), slots.size(), attribute))
      if (arrays.words.at(size_t(at)) > 9 + 4) return std::printf("an end that is none\n"), false;
  return true;
}

size_t passed = 0;

void forge(u32 depth) {
  Arrays arrays;
  Tree last;
  for (int i = 0; i < 6; ++i) {
    Tree tree;
    tree.grow(depth);
    tree.finish();
    arrays.add(tree);
  }
  arrays.forge();
  arrays.place.shrink_to_fit(), arrays.words.shrink_to_fit(), arrays.code.shrink_to_fit(),
      arrays.shapes.shrink_to_fit();
  const ProgramView view = arrays.view();
  try {
    view.check(ATTRIBUTES);
  } catch (const DamagedArray&) {
    return;
  }
  ++passed;
  std::vector<i64> slots;
  for (i32 slot = 0; slot < 8; ++slot) {
    slots.push_back(slot);
    view.fetch_place(slot), view.fetch_words(slot);
    Work work(draw(0, 1) ? MANY : draw(0, 2));
    if (run(view, slot, last, draw(0, 1) ? last.given() : nullptr, work) > OUT_OF_STEPS)
      std::printf("a truth that is none\n");
  }
  for (u32 attribute = 0; attribute < ATTRIBUTES; ++attribute)
    for (i64 at : view.ends(slots.data(), slots.size(), attribute)) (void)arrays.words.at(size_t(at));
}

// Nested as deeply as may be, and one level more.
bool check_depth() {
  for (u32 depth : {program::MAX_DEPTH, program::MAX_DEPTH + 1}) {
    Arrays arrays;
    Tree tree;
    for (u32 left = depth; left; --left) tree.code.push_back((left & 1 ? program::OR : program::AND) | (left + 2) << 3);
    tree.test();
    tree.finish();
    arrays.add(tree);
    arrays.place[0] = 1;
    bool refused = false;
    try {
      arrays.view().check(ATTRIBUTES);
      arrays.view().run(0, tree.keys.data());
    } catch (const DamagedArray&) {
      refused = true;
    }
    if (refused != (depth > program::MAX_DEPTH)) return std::printf("depth %u\n", depth), false;
  }
  return true;
}

// A condition on each element of a long list, and patterns on a long text: work stops where it has to.
bool check_work() {
  constexpr size_t LENGTH = 1 << 20;
  const std::vector<i64> elements(LENGTH, 5);
  const std::string text(LENGTH, 'a');
  const std::string plain = std::string(1, patterns::ANY) + "ab" + patterns::ANY;
  const std::string wild = std::string(1, patterns::ANY) + "aa" + patterns::ONE + "b" + patterns::ANY;
  for (const std::string& pattern : {std::string(), plain, wild}) {
    Arrays arrays;
    Tree tree;
    tree.details.lists.assign(1, {Details::Given::YES, elements.data(), elements.size()});
    tree.details.texts.assign(1, {Details::Given::YES, text});
    if (pattern.empty()) {  // ANY(list) < 5
      tree.code = {program::MORE | program::EACH_OR << 3, 4, program::TEST_ELEMENT | 1 << 3 | 1 << 5 | 1 << 6, 0};
      tree.literals = {5};
    } else {
      std::vector<i64> words{i64(pattern.size())};
      words.resize(1 + (pattern.size() + 7) / 8);
      std::memcpy(words.data() + 1, pattern.data(), pattern.size());
      tree.code = {program::MORE | program::LIKE << 3, 0};
      tree.lists = {{0, words}};
      tree.literals = {0};
    }
    tree.finish();
    arrays.add(tree);
    arrays.place[0] = 1;
    const ProgramView view = arrays.view();
    view.check(ATTRIBUTES);
    Work all(MANY), few(100);
    const Truth found = view.run(0, tree.keys.data(), tree.details, all);
    const Truth right = pattern == wild ? IS_TRUE | IS_FALSE : IS_FALSE;  // that search is given up
    if (found != right) return std::printf("%d of a long event\n", found), false;
    if (all.steps() < i64(LENGTH) / 1024) return std::printf("%lld steps\n", (long long)all.steps()), false;
    if (view.run(0, tree.keys.data(), tree.details, few) != OUT_OF_STEPS || few.steps() != 100)
      return std::printf("work goes on\n"), false;
    if (pattern != plain && few.words() > 101 * Work::STEP) return std::printf("work stops late\n"), false;
  }
  return true;
}

}  // namespace

int main() {
  for (int round = 0; round < 4000; ++round)
    if (!check(u32(draw(0, 4)))) return 1;
  if (!check_work()) return 1;
  for (int round = 0; round < 40000; ++round) forge(u32(draw(0, 3)));
  if (!check_depth()) return 1;
  if (passed < 1000) return std::printf("only %zu forged arrays pass\n", passed), 1;
  std::puts("exact");
}
