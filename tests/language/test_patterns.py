"""LIKE by its several ways of finding a segment: all mean the same, and none can be made slow."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from hitbox.language.conditions import patterns
from hitbox.language.conditions.letters import lower, upper
from hitbox.language.conditions.patterns import Pattern as like


def _like_by_definition(pattern: str, text: str) -> bool:
    """Straight from the meaning: % is any text, _ any one character."""
    reached = {0}
    for c in pattern:
        if c == "%":
            reached = set(range(min(reached, default=len(text) + 1), len(text) + 1))
        else:
            reached = {i + 1 for i in reached if i < len(text) and c in ("_", text[i])}
    return len(text) in reached


def test_like_means_the_same_whatever_way_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few characters and many wildcards: the quick tries fail, and the automaton and the sieve have to find it."""
    rng = random.Random(3)
    for short in (512, 0):
        monkeypatch.setattr(patterns, "AUTOMATON_LENGTH", short)
        for _ in range(3000):
            characters = rng.choice(["ab", "a", "aé\U0001f600"])
            pattern = "".join(rng.choices(characters + "%__", k=rng.randrange(20)))
            text = "".join(rng.choices(characters, k=rng.choice([rng.randrange(10), rng.randrange(90)])))
            assert like(pattern)(text) == _like_by_definition(pattern, text), (short, pattern, text)


def test_long_segments_with_wildcards_cost_less_than_the_automaton() -> None:
    text, segment = "ab" * 10_000, "ab_b" * 1000 + "_a_"
    finder = like(f"%{segment}%")._segments[1]
    assert finder.find(text, 0, len(text), {}) == -1

    def best(call: Callable[[], int]) -> float:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            assert call() == -1
            times.append(time.perf_counter() - started)
        return min(times)

    assert best(lambda: finder.find(text, 0, len(text), {})) * 2 < best(lambda: finder._automaton(text, 0, len(text)))


@pytest.mark.exhaustive  # `make test` compares patterns with regular expressions
def test_letters_change_one_by_one() -> None:
    """Whatever stands beside them, and however long the text is."""
    everything = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    assert lower(everything) == "".join(map(lower, everything))
    assert upper(everything) == "".join(map(upper, everything))
    assert lower("AΣ. ΑΣ İ\u0307") == "aσ. ασ i\u0307"
    assert upper("ß\u0345\u1f80ŉa") == "ß\u0399\u1f88ŉA"
    assert len(lower(everything)) == len(upper(everything)) == len(everything)
