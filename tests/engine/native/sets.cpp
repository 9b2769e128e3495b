// Covers with anchors under the sanitizers, against a linear scan. Prints "exact".
#include "sets/anchors.hpp"

#include <cstdio>
#include <random>
#include <set>

using namespace hitbox;
using namespace hitbox::sets;

namespace {

std::mt19937_64 rng(1);
size_t below(size_t count) { return rng() % count; }

std::string random_text(size_t most) {
  std::string text;
  for (size_t left = below(most + 1); left; --left) text += "abc\xc3"[below(4)];
  return text;
}

bool check_automaton() {
  std::set<std::string> distinct;
  for (size_t left = below(60); left; --left) distinct.insert(random_text(8) + "ab"[below(2)]);
  std::vector<std::string_view> words(distinct.begin(), distinct.end());
  const Automaton automaton(words);
  for (int round = 0; round < 20; ++round) {
    const std::string text = random_text(40);
    std::set<u32> wanted, found;
    for (u32 word = 0; word < words.size(); ++word)
      if (text.find(words[word]) != std::string::npos) wanted.insert(word);
    automaton.search(text, [&](u32 word) { return found.insert(word).second; });
    if (wanted != found) return false;
  }
  return true;
}

bool check_segment() {
  struct Own {
    std::string anchor;
    std::vector<u16> attribute;
    std::vector<i64> low, high;
  };
  std::vector<Own> own(below(80));
  for (Own& one : own) {
    const char* const names[] = {"=tags", "%text", "~text", "=other"};
    one.anchor = names[below(4)] + std::string(1, '\0') + random_text(3) + "a";
    for (u16 attribute = 0; attribute < 3; ++attribute)
      if (below(2)) {
        one.attribute.push_back(attribute);
        one.low.push_back(i64(below(10)));
        one.high.push_back(one.low.back() + i64(below(10)));
      }
  }
  std::sort(own.begin(), own.end(), [](const Own& a, const Own& b) { return a.anchor < b.anchor; });
  std::vector<Cover> covers;
  for (const Own& one : own)
    covers.push_back({one.anchor, i64(7 * covers.size() % 1000), u8(below(10)), u32(one.attribute.size()),
                      one.attribute.data(), one.low.data(), one.high.data()});
  AnchorSegment segment(covers, {rng(), rng()});
  std::set<i64> dead;
  for (size_t i = 0; i < covers.size(); ++i)
    if (!below(3)) {
      segment.kill(segment.row_of(covers[i].number));
      dead.insert(covers[i].number);
    }
  if (segment.live() != covers.size() - dead.size()) return false;
  for (int round = 0; round < 30; ++round) {
    const std::string text = random_text(12) + "a";
    const i64 low[3] = {i64(below(20)), i64(below(20)), i64(below(20))};
    for (std::string name : {"=tags", "%text", "~text", "=other", "%none"}) {
      name += '\0';
      std::set<u32> wanted, found;
      Seen seen;
      segment.find(name, text, [&](u32 member) {
        if (!seen.add(member)) return false;
        segment.meeting(member, low, low, [&](u32 number, u8) { found.insert(number); });
        return true;
      });
      for (size_t i = 0; i < covers.size(); ++i) {
        const std::string_view member = std::string_view(own[i].anchor).substr(6 + (own[i].anchor[1] == 'o'));
        bool holds = set_of(own[i].anchor) == name && !dead.count(covers[i].number) &&
                     (name[0] == ELEMENT ? member == text : text.find(member) != std::string::npos);
        for (size_t c = 0; c < own[i].attribute.size(); ++c)
          holds &= own[i].low[c] <= low[own[i].attribute[c]] && low[own[i].attribute[c]] <= own[i].high[c];
        if (holds) wanted.insert(u32(covers[i].number));
      }
      if (wanted != found) return false;
    }
  }
  return true;
}

}  // namespace

int main() {
  for (int round = 0; round < 500; ++round)
    if (!check_automaton() || !check_segment()) {
      std::printf("round %d differs\n", round);
      return 1;
    }
  std::puts("exact");
}
