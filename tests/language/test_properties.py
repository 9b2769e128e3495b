"""Properties of the language on random predicates and events: tree, boxes and explanation tell the same story."""

from __future__ import annotations

import itertools
import json
import re
from datetime import datetime
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hitbox import language
from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Attribute, Schema
from hitbox.errors import HitboxError
from hitbox.language.boxes.sets import complement, intersection, union, within
from hitbox.language.conditions.patterns import Pattern as like
from hitbox.language.conditions.patterns import successor
from hitbox.language.syntax.tree import leaves, without_not
from hitbox.language.truth import key_interval
from support.predicates import POOLS, SCHEMA, random_event, random_interval_event, random_predicate

NAMES = list(SCHEMA)
WORDS = ["AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", "TIMESTAMP"]
PIECES = [
    *WORDS,
    *NAMES,
    '"odd name"',
    "'a%'",
    "'2026-01-31'",
    "'!'",
    "1",
    "-2.5",
    "1e9",
    "(",
    ")",
    ",",
    "=",
    "<",
    ">=",
]


def compiled(predicate: language.Predicate) -> tuple[language.Compiled, Keys]:
    keys = Keys(predicate.schema)
    keys.admit(language.strings(predicate))
    return language.compile(predicate, keys), keys


def by_boxes(predicate: language.Predicate, found: language.Compiled, keys: Keys, event: dict[str, object]) -> bool:
    places = [key_interval(codec, event.get(name)) for name, codec in zip(SCHEMA, keys.codecs, strict=True)]
    for box, exact in zip(found.boxes, found.exact, strict=True):
        meets = all(places[n][0] <= high and low <= places[n][1] for n, (low, high) in box.items())
        if meets and (exact or language.evaluate(predicate, event)):
            return True
    return False


@pytest.mark.parametrize("seed", range(4))
def test_tree_and_boxes_agree(seed: int) -> None:
    rng = Random(seed)
    for _ in range(400):
        names = rng.sample(NAMES, rng.randint(1, 4))
        predicate = language.parse(random_predicate(rng, names), SCHEMA)
        assert language.parse(str(predicate), SCHEMA) == predicate
        found, keys = compiled(predicate)
        assert all(low <= high for box in found.boxes for low, high in box.values())
        positive = language.Predicate(without_not(predicate.root), predicate.text, SCHEMA)
        assert "NOT (" not in str(positive)
        for _ in range(12):
            event = random_event(rng, names)
            truth = language.evaluate(predicate, event)
            assert (truth is True) == by_boxes(predicate, found, keys, event), f"{predicate}\n{event}"
            assert language.evaluate(positive, event) is truth, f"{predicate}\n{event}"


@pytest.mark.parametrize("seed", range(3))
def test_intervals_hold_where_some_point_does(seed: int) -> None:
    rng = Random(seed)
    for _ in range(300):
        names = rng.sample(NAMES, rng.randint(1, 3))
        predicate = language.parse(random_predicate(rng, names, depth=3), SCHEMA)
        found, keys = compiled(predicate)
        event = random_interval_event(rng, names)
        holds = language.evaluate(predicate, event) is True
        assert holds == by_boxes(predicate, found, keys, event), f"{predicate}\n{event}"
        assert language.explain(predicate, event).matched == holds
        for _ in range(20):  # a point inside can only match where the interval does
            inside = {name: rng.choice(points_in(name, value)) for name, value in event.items()}
            assert holds or not language.evaluate(predicate, inside), f"{predicate}\n{event}\n{inside}"


def points_in(name: str, value: object) -> list[object]:
    if not isinstance(value, tuple):
        return [value]
    return [one for one in POOLS[SCHEMA[name].type] if value[0] <= one <= value[1]]  # type: ignore[operator]


def test_attributes_with_a_precision_compare_exactly() -> None:
    """Literals stand on the grid; events may lie between its steps or outside the domain."""
    schema = Schema(
        {
            "f": Attribute("float", domain=(0, 5), precision="0.1"),
            "g": Attribute("int", domain=(-100, 100), precision=10),
        }
    )
    values = {
        "f": [None, 0.0, -0.0, 0.1, 0.3, 0.1 + 0.2, 0.25, 2.7, 4.9, 5, 5.0000001, -1, 7.5, 1e300, float("inf")],
        "g": [None, -100, -20, -11, -10, -9, 0, 1, 10, 100, 101, -101, 2**62],
    }
    literals = {"f": ["0", "0.1", "0.3", "2.7", "4.9", "5"], "g": ["-100", "-10", "0", "10", "100", "1e1"]}
    operators = ["=", "<>", "<", "<=", ">", ">="]
    for name in schema:
        texts = [f"{name} {op} {value}" for op in operators for value in literals[name]]
        texts += [
            f"{name} {op} {a} AND {b}"
            for op in ("BETWEEN", "NOT BETWEEN")
            for a in literals[name]
            for b in literals[name]
        ]
        texts += [f"{name} NOT IN ({', '.join(literals[name])})", f"{name} IS NULL OR {name} < {literals[name][1]}"]
        for text in texts:
            predicate = language.parse(text, schema)
            found, keys = compiled(predicate)
            codec = keys.codecs[schema.number(name)]
            for value in values[name]:
                key = codec.key(value)
                inside = any(low <= key <= high for box in found.boxes for low, high in box.values())
                assert inside == (language.evaluate(predicate, {name: value}) is True), f"{text}: {value}"


def test_intervals_are_not_judged_leaf_by_leaf() -> None:
    def holds(text: str, **event: object) -> bool | None:
        return language.evaluate(language.parse(text, SCHEMA), event)

    assert holds("i > 3 AND i < 9", i=(1, 5))
    assert not holds("i > 3 AND i < 2", i=(1, 5))
    assert holds("NOT i = 3", i=(1, 5))
    assert not holds("NOT i = 3", i=(3, 3))
    assert not holds("i = 1 AND i = 5", i=(1, 5))
    assert holds("i IS NOT NULL AND x IS NULL", i=(1, 5))
    assert holds("s LIKE 'a%z'", s=("aa", "ab"))
    assert not holds("s LIKE 'a%z'", s=("aa", "aa"))
    assert not holds("s LIKE 'a%z'", s=("b", "c"))
    assert holds("i > 1000", i=(3, None))
    assert not holds("i > 1000", i=(None, 3))


@pytest.mark.parametrize("seed", range(3))
def test_explanations(seed: int) -> None:
    rng = Random(seed)
    named = misses = known = 0
    for _ in range(400):
        names = rng.sample(NAMES, 3)
        predicate = language.parse(random_predicate(rng, names, depth=3), SCHEMA)
        event = random_event(rng, names)
        found = language.explain(predicate, event)
        assert found.truth is language.evaluate(predicate, event)
        assert found.matched == (found.truth is True)
        json.dumps(found.to_dict(), allow_nan=False)
        assert str(found).startswith("match" if found.matched else "no match")
        assert found.never == language.never(compiled(predicate)[0])
        assert not found.changes or not (found.matched or found.never)
        misses += not (found.matched or found.never)
        known += bool(found.changes)
        assert all(change.wanted for change in found.changes)
        assert len({change.attribute for change in found.changes}) == len(found.changes)
        if found.changes and all(c.nearest is not None or c.wanted == "missing" for c in found.changes):
            named += 1
            changed = event | {change.attribute: change.nearest for change in found.changes}
            assert language.evaluate(predicate, changed) is True, f"{found}\n{event}"
        if found.changes:
            assert not fewer_changes_match(predicate, event, names, len(found.changes)), f"{found}\n{event}"
    assert named > 50
    assert known > 0.95 * misses


def fewer_changes_match(predicate: language.Predicate, event: dict[str, object], names: list[str], count: int) -> bool:
    """Could a change of fewer than `count` attributes, to any value of the pools, have made a match?"""
    if count > 2:
        count = 2  # pairs of pools are too many to try
    for some in itertools.combinations(names, count - 1):
        for values in itertools.product(*([None, *POOLS[SCHEMA[name].type]] for name in some)):
            if language.evaluate(predicate, event | dict(zip(some, values, strict=True))):
                return True
    return False


def test_explanation_reads_well() -> None:
    schema = Schema({"price": "float", "city": "string", "at": "timestamp", "ok": "bool"})
    text = "price BETWEEN 10 AND 20 AND (city IN ('Paris', 'Rome') OR NOT ok) AND at IS NOT NULL"
    event = {"price": 9.5, "city": "Oslo", "ok": True, "at": datetime(2026, 1, 31)}
    found = language.explain(language.parse(text, schema), event)
    assert str(found).splitlines() == [
        "no match: price BETWEEN 10 AND 20 AND (city IN ('Paris', 'Rome') OR NOT ok = TRUE) AND at…",
        "✗ AND",
        "|- ✗ price BETWEEN 10 AND 20             price is 9.5",
        "|- ✗ OR",
        "|  |- ✗ city IN ('Paris', 'Rome')        city is 'Oslo'",
        "|  `- ✗ NOT",
        "|     `- ✓ ok = TRUE                     ok is TRUE",
        "`- ✓ at IS NOT NULL                      at is TIMESTAMP '2026-01-31 00:00:00'",
        "nearest change: price: 9.5 -> at least 10; city: 'Oslo' -> 'Paris'",
    ]
    tree = found.to_dict()
    assert tree["changes"][0] == {
        "attribute": "price",
        "value": 9.5,
        "wanted": "at least 10",
        "nearest": 10.0,
        "text": "price: 9.5 -> at least 10",
    }
    assert tree["tree"]["children"][0]["truth"] == "false"
    cases = {
        "price > 10": "price: 9.5 -> more than 10",
        "price < 9": "price: 9.5 -> less than 9",
        "price = 7": "price: 9.5 -> 7.0",
        "price IS NULL": "price: 9.5 -> missing",
        "price < 5 OR price > 10": "price: 9.5 -> more than 10",
        "city LIKE 'Pa%'": "city: 'Oslo' -> starting with 'Pa'",
        "city LIKE '%x'": "city: 'Oslo' -> ending with 'x'",
        "city LIKE 'a%x'": "city: 'Oslo' -> starting with 'a' and like 'a%x'",
        "city > 'Paris'": "city: 'Oslo' -> more than 'Paris'",
        "NOT ok": "ok: TRUE -> FALSE",
    }
    for where, change in cases.items():
        assert "; ".join(map(str, language.explain(language.parse(where, schema), event).changes)) == change


@settings(max_examples=8 * settings.default.max_examples, deadline=None)
@given(st.text(st.characters(codec=None), max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    assert_parses_or_is_refused(text)


@settings(max_examples=10 * settings.default.max_examples, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=14), st.sampled_from([" ", "", "\n"]))
def test_any_tokens_parse_or_are_refused(pieces: list[str], between: str) -> None:
    assert_parses_or_is_refused(between.join(pieces))


@settings(max_examples=8 * settings.default.max_examples, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 400), st.text(st.characters(codec=None), max_size=3))
def test_damaged_predicates_parse_or_are_refused(seed: int, place: int, extra: str) -> None:
    text = random_predicate(Random(seed), NAMES)
    assert_parses_or_is_refused(text[:place] + extra + text[place + 1 :])


def assert_parses_or_is_refused(text: str) -> None:
    try:
        predicate = language.parse(text, SCHEMA)
        assert language.parse(str(predicate), SCHEMA) == predicate
        compiled(predicate)
    except HitboxError as problem:
        str(problem).encode()


@settings(max_examples=8 * settings.default.max_examples, deadline=None)
@given(st.text("ab%_!é", max_size=8), st.text("ab!é", max_size=8), st.sampled_from([None, "!", "%", "_", "a"]))
def test_like_equals_a_regular_expression(pattern: str, text: str, escape: str | None) -> None:
    regex, characters = "", iter(pattern)
    for c in characters:
        if c == escape:
            after = next(characters, None)
            if after is None:
                with pytest.raises(HitboxError, match="ends with its escape"):
                    like(pattern, escape)
                return
            regex += re.escape(after)
        else:
            regex += {"%": ".*", "_": "."}.get(c) or re.escape(c)
    matcher = like(pattern, escape)
    matches = re.fullmatch(regex, text, re.DOTALL) is not None
    assert matcher(text) == matches
    assert text.startswith(matcher.prefix) or not matches
    if matcher.shape != "*":
        assert matches == (text.startswith(matcher.prefix) if matcher.shape else text == matcher.prefix)


def test_like_takes_linear_time_where_backtracking_would_not_end() -> None:
    assert not like("%a" * 30 + "%b")("a" * 20_000)
    assert not like("%a_" * 30 + "%b")("a" * 20_000)
    assert like("%" + "_a" * 100 + "%")("ba" * 5_000)


@given(st.text(max_size=5), st.text(max_size=5))
def test_successor_bounds_a_prefix(prefix: str, text: str) -> None:
    above = successor(prefix)
    assert (prefix <= text and (above is None or text < above)) == text.startswith(prefix)


SETS = st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4)), max_size=4).map(
    lambda pairs: union([((low, low + size),) for low, size in pairs])
)


@given(st.lists(SETS, min_size=1, max_size=4))
def test_sets_of_keys(several: list[tuple[tuple[int, int], ...]]) -> None:
    def keys(one: tuple[tuple[int, int], ...]) -> set[int]:
        return {key for key in range(-20, 20) if any(low <= key <= high for low, high in one)}

    assert keys(union(several)) == set.union(*map(keys, several))
    assert keys(intersection(several)) == set.intersection(*map(keys, several))
    assert keys(complement(several[0])) == set(range(-20, 20)) - keys(several[0])
    assert within(several[0], several[-1]) == (keys(several[0]) <= keys(several[-1]))
    assert complement(complement(several[0])) == several[0]
    assert complement((), LOWEST) == ((LOWEST, HIGHEST),)
    assert complement(((MISSING, MISSING),)) == ((LOWEST, HIGHEST),)
    for (_, high), (low, _) in itertools.pairwise(union(several)):
        assert high + 1 < low


def test_event_values_of_other_makes() -> None:
    """NumPy scalars, NaN of any make, naive datetimes and dates mean what they say."""
    predicate = language.parse("x > 1 AND i = 3 AND ts >= TIMESTAMP '2026-01-31' AND b", SCHEMA)
    event = {"x": np.float32(1.5), "i": np.int32(3), "ts": datetime(2026, 1, 31), "b": np.True_}
    assert language.evaluate(predicate, event) is True
    assert language.evaluate(predicate, event | {"x": np.float64("nan")}) is None
    assert language.evaluate(predicate, event | {"x": np.float32("nan")}) is None
    assert language.evaluate(predicate, event | {"ts": np.datetime64("2026-01-30T23:59:59", "us")}) is False
    assert language.evaluate(predicate, event | {"ts": "2026-01-31T00:00:00+00:00"}) is True
    assert len(leaves(predicate.root)) == 4
