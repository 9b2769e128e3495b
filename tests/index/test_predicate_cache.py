"""Residual predicates are kept parsed, and a little more of them than fit cost a little more time."""

from __future__ import annotations

from hitbox import language
from hitbox.encoding.schema import Schema
from hitbox.index.load.predicate_cache import PredicateCache

SCHEMA = Schema({"s": "string"})


def parses_per_round(predicates: int, room: int) -> float:
    """How often a cache parses when the same predicates are asked for again and again."""
    parsed = []

    def parse(text: str) -> language.Predicate:
        parsed.append(text)
        return language.parse(text, SCHEMA)

    cache = PredicateCache(parse, room)
    texts = [f"s LIKE '%{i:04}'" for i in range(predicates)]
    for text in texts:
        assert cache(text).text == text
    first = len(parsed)
    for _ in range(5):
        for text in texts:
            assert cache(text).text == text
    return (len(parsed) - first) / 5


def test_what_fits_is_parsed_once() -> None:
    assert parses_per_round(100, 10**6) == 0


def test_one_too_many_does_not_cost_all_of_them() -> None:
    size = 600 + 30 * len("s LIKE '%0000'")
    assert 0 < parses_per_round(220, 200 * size) < 180
    assert parses_per_round(1000, 200 * size) < 1000
