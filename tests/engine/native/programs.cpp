// Runs random programs, and compares them with a plain evaluation of their trees. Then arrays are forged: what passes the
// check must not read outside of them. test_sanitizers.py builds it with sanitizers.
#include <cstdio>
#include <random>

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

  Tree() {
    for (u32 i = 0; i < ATTRIBUTES; ++i) keys.push_back(draw(0, 4) ? draw(-8, 8) : MISSING);
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
    return draw(0, 3) ? test() : place_test();
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

  Truth test() {
    const u32 attribute = u32(draw(0, ATTRIBUTES - 1)), null = u32(draw(0, 2)), inside = u32(draw(0, 1));
    std::vector<i64> ends;
    for (i64 next = -9 + draw(0, 9); i64(ends.size()) < draw(0, 8) && next <= 9; next += draw(1, 4))
      ends.push_back(next);
    const u32 size = std::min<u32>(u32(ends.size()), program::LIST);
    code.push_back(program::TEST | null << 3 | inside << 5 | size << 6 | attribute << 8);
    code.push_back(u32(literals.size()));
    if (size == program::LIST) {
      lists.push_back({u32(literals.size()), ends});
      literals.push_back(0);
    } else {
      literals.insert(literals.end(), ends.begin(), ends.end());
    }
    const i64 key = keys[attribute];
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

bool check(u32 depth) {
  Arrays arrays;
  std::vector<Tree> trees;
  std::vector<Truth> truths;
  for (int i = 0; i < 8; ++i) {
    Tree tree;
    truths.push_back(tree.grow(depth));
    tree.finish();
    arrays.add(tree);
    trees.push_back(tree);
  }
  const ProgramView view = arrays.view();
  view.check(ATTRIBUTES);
  for (size_t i = 0; i < trees.size(); ++i) {
    const Truth right = arrays.place[i] ? truths[i] : Truth(7), found = view.run(i32(i), trees[i].keys.data());
    if (found != right) return std::printf("%d instead of %d\n", found, right), false;
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
  std::vector<i64> keys;
  for (int i = 0; i < 6; ++i) {
    Tree tree;
    tree.grow(depth);
    tree.finish();
    arrays.add(tree);
    keys = tree.keys;
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
    if (view.run(slot, keys.data()) > 7) std::printf("a truth that is none\n");
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

}  // namespace

int main() {
  for (int round = 0; round < 4000; ++round)
    if (!check(u32(draw(0, 4)))) return 1;
  for (int round = 0; round < 40000; ++round) forge(u32(draw(0, 3)));
  if (!check_depth()) return 1;
  if (passed < 1000) return std::printf("only %zu forged arrays pass\n", passed), 1;
  std::puts("exact");
}
