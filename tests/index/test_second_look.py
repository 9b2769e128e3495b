"""The second look decides lists, patterns, NOW() and absence as the tree and the second evaluator do."""

from __future__ import annotations

import random
import re
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hitbox
from hitbox import Index
from hitbox.language import evaluate
from hitbox.language.conditions.patterns import Pattern as like
from support.second_evaluator import World, parse, truth
from support.tiers import only

SCHEMA: dict[str, Any] = {
    "a": "int",
    "s": "string",
    "n": "int[]",
    "f": "float[]",
    "t": "string[]",
    "b": "bool[]",
    "items": [{"sku": "string", "price": "float"}],
}
TYPES = SCHEMA | {"items": {"sku": "string", "price": "float"}}
WORDS = ["", "a", "b", "ab", "äb", "abc", "a€c", "xx", "x%y"]
PATTERNS = ["a%b", "%a%", "%ä_", "_b", "%€%", "%a%c", "__", "%b%_", "a_%c%", "%!%%"]
NUMBERS = [-3, 0, 1, 2, 5, 2**53 + 1, 2**63 - 1]
FLOATS = [-1.5, 0.0, -0.0, 0.5, 3.0, float("inf"), float("nan")]


def literal(rng: random.Random, kind: str) -> str:
    if kind == "t":
        return f"'{rng.choice(WORDS)}'"
    return str(rng.choice(NUMBERS)) if kind == "n" else repr(rng.choice(FLOATS[:5]))


def compared(rng: random.Random, of: str, kind: str) -> str:
    one, two, three = sorted(literal(rng, kind) for _ in range(3))
    tests = [f"= {one}", f"<> {one}", f"< {two}", f">= {two}", f"BETWEEN {one} AND {two}", "IS NULL", "IS NOT NULL"]
    tests += [f"NOT BETWEEN {one} AND {two}", f"IN ({one}, {three})", f"NOT IN ({one}, {two}, {three})"]
    tests += ["LIKE 'a%'", "NOT LIKE 'ab'", "LIKE 'x!%%' ESCAPE '!'"] if kind == "t" else []
    return f"{of} {rng.choice(tests)}"


def condition(rng: random.Random) -> str:
    """A condition that needs more than keys."""
    draw = rng.random()
    if draw < 0.45:
        kind = rng.choice("nft")
        return compared(rng, f"{rng.choice(['ANY', 'ALL'])}({kind})", kind)
    if draw < 0.5:
        return f"ALL(b) = {rng.choice(['TRUE', 'FALSE'])}"
    if draw < 0.75:
        parts = [compared(rng, "sku", "t"), compared(rng, "price", "f")]
        inner = rng.choice([" AND ", " OR ", " XOR "]).join(parts)
        return f"{rng.choice(['', 'NOT '])}EXISTS(items WHERE {rng.choice(['', 'NOT '])}({inner}))"
    if draw < 0.9:
        return f"s {rng.choice(['', 'NOT '])}{rng.choice(['I', ''])}LIKE '{rng.choice(PATTERNS)}' ESCAPE '!'"
    return f"{rng.choice(['a', 's', 'n', 'items'])} IS {rng.choice(['', 'NOT '])}MISSING"


def predicate(rng: random.Random) -> str:
    parts = [f"({condition(rng)})" for _ in range(rng.randint(1, 3))]
    found = rng.choice([" AND ", " OR ", " XOR "]).join(parts)
    return found if rng.random() < 0.7 else f"NOT ({found})"


def some(rng: random.Random, values: list[Any]) -> Any:
    """A list with nulls, an empty one, or none."""
    return rng.choice([None, [], [rng.choice([*values, None]) for _ in range(rng.randint(1, 4))]])


def document(rng: random.Random) -> dict[str, Any]:
    items = [{"sku": rng.choice([*WORDS, None]), "price": rng.choice(FLOATS)} for _ in range(3)]
    event = {
        "a": rng.choice([1, None]),
        "s": rng.choice([*WORDS, None]),
        "n": some(rng, NUMBERS),
        "f": some(rng, FLOATS),
        "t": some(rng, WORDS),
        "b": some(rng, [True, False]),
        "items": some(rng, [*items, {}, {"sku": "ab"}]),
    }
    return {name: value for name, value in event.items() if rng.random() < 0.85}


def subscribed(texts: dict[int, str], schema: dict[str, Any] | None = SCHEMA) -> Index:
    made = Index(schema) if schema else Index()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        made.load(pa.table({"id": list(texts), "where": list(texts.values())}))
    return made


def without_nan(event: dict[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(one) for one in value]
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return None if isinstance(value, float) and value != value else value

    return {name: plain(value) for name, value in event.items()}


@pytest.mark.parametrize("seed", only([0], range(2)))
def test_declared_attributes(seed: int, asked: list[str], tmp_path: Path) -> None:
    rng = random.Random(seed)
    texts = {id: predicate(rng) for id in range(200)}
    made = subscribed(texts)
    made.save(tmp_path)
    again = Index.open(tmp_path)
    events = [document(rng) for _ in range(25)]
    batch = made.match_batch(events)
    for number, event in enumerate(events):
        found = set(made.match(event))
        assert found == set(batch[number]) == set(again.match(event))
        assert not asked
        for id, text in texts.items():
            right = evaluate(made.parse(text), event) is True
            assert (id in found) == right, f"{text} of {event}"
            if number < 5:
                assert right == (truth(parse(text, TYPES), TYPES, World(without_nan(event), None, 0)) is True), text


def test_open_attributes(asked: list[str], tmp_path: Path) -> None:
    rng = random.Random(5)
    texts = {id: predicate(rng) for id in range(150)}
    made = subscribed(texts, None)
    made.save(tmp_path)
    again = Index.open(tmp_path)
    events = [document(rng) for _ in range(20)]
    events += [
        {"n": 2, "t": "ab", "items": {"sku": "a"}},
        {"n": ["a", 2, True, 2**70], "t": [1, "a"], "items": [1, "x"]},
    ]
    for event in events:
        found = set(made.match(event))
        assert found == set(again.match(event)) == set(made.match_batch([event])[0])
        for id, text in texts.items():
            assert (id in found) == (evaluate(made.parse(text), event) is True), f"{text} of {event}"
    unusual = re.compile(r" IS |[0-9]{16}")  # NULL has no type; keys of large numbers are not exact
    assert asked
    assert not [text for text in asked if not unusual.search(text)]


def test_tables_and_strings_that_move(asked: list[str]) -> None:
    rng = random.Random(7)
    texts = {id: f"ANY(t) > 'w{rng.randint(0, 999)}' AND s NOT LIKE '%{id}%'" for id in range(100)}
    made = Index(SCHEMA)
    for id, text in texts.items():  # one by one: labels move
        made.subscribe(id, text)
    table = pa.table({"s": ["7", "", None, "1 2 3"], "t": [["w5", None], ["w999"], ["x"], []]})
    batch = made.match_batch(table)
    assert not asked
    for number, event in enumerate(table.to_pylist()):
        assert set(batch[number]) == {id for id, text in texts.items() if evaluate(made.parse(text), event) is True}


def test_time(asked: list[str]) -> None:
    made = Index({"at": "timestamp"})
    texts = {
        "past": "at < NOW()",
        "old": "at < NOW() - INTERVAL '1 day'",
        "mirrored": "NOW() + INTERVAL '1 day' > at",
        "age": "NOW() - at BETWEEN INTERVAL '1 hour' AND INTERVAL '3 days'",
        "ahead": "at - NOW() > INTERVAL '-2 hours'",
        "near": "at BETWEEN NOW() - INTERVAL '2 days' AND NOW() + INTERVAL '2 days'",
        "far": "NOT (at NOT BETWEEN NOW() - INTERVAL '2 days' AND NOW())",
        "one now": "at < NOW() XOR at < NOW()",
    }
    for id, text in texts.items():
        made.subscribe(id, text)
    now = datetime.now(UTC)
    for hours in (-100, -40, -1.5, 10, 40, 24 * 365 * 7000):
        event = {"at": now + timedelta(hours=hours)}
        right = {id for id, text in texts.items() if evaluate(made.parse(text), event) is True}
        assert set(made.match(event)) == set(made.match_batch([event])[0]) == right
    assert made.match({"at": None}) == made.match({}) == []
    assert len(asked) == 0
    made.subscribe("no year", "at > NOW() - INTERVAL '1000000 days'")  # before the year 1: NULL
    assert "no year" not in made.match({"at": now})
    assert asked == ["at > NOW() - INTERVAL '1000000 days'"]


def test_absence(asked: list[str]) -> None:
    made = Index({"a": "int", "o.x": "int"})
    made.subscribe("missing", "a IS MISSING")
    made.subscribe("there", "a IS NOT MISSING")
    made.subscribe("inner", "o.x IS MISSING AND a IS NULL")
    assert set(made.match({"a": None})) == {"there", "inner"}
    assert set(made.match({"o": {"x": 1}})) == {"missing"}
    assert set(made.match({"a": 1, "o": {}})) == {"there"}
    tables = [pa.table({"a": [None, 1]}, pa.schema({"a": pa.int64()})), pa.table({"o.x": [1, None]})]
    assert [set(one) for one in made.match_batch(tables[0])] == [{"there", "inner"}, {"there"}]
    assert [set(one) for one in made.match_batch(tables[1])] == [{"missing"}, {"missing"}]
    assert not asked


def test_patterns_are_those_of_the_language(asked: list[str]) -> None:
    rng = random.Random(11)
    letters = ["a", "b", "ä", "€", "𝄞", "%", "_"]
    texts = {id: "".join(rng.choice([*letters, "%", "_"]) for _ in range(rng.randint(2, 7))) for id in range(200)}
    made = subscribed({id: f"NOT s LIKE '{text}'" for id, text in texts.items()}, {"s": "string"})
    for _ in range(60):
        word = "".join(rng.choice(letters[:5]) for _ in range(rng.randint(0, 9)))
        assert set(made.match({"s": word})) == {id for id, text in texts.items() if not like(text)(word)}
    assert not asked


@pytest.mark.parametrize("schema", [{"s": "string"}, None])
def test_fragments_that_no_anchor_decides(schema: dict[str, Any] | None, asked: list[str]) -> None:
    long = "abcdefghij" * 3
    made = Index(schema) if schema else Index()
    made.subscribe("anchor", "s LIKE '%abc%'")
    assert not any(one.is_detail for one in made._state.keys.derived)
    made.subscribe("long", f"s LIKE '%{long}%'")
    made.subscribe("old", "OLD.s LIKE '%abc%'")
    assert set(made.match({"s": f"x{long}x"})) == {"anchor", "long"}
    assert made.match({"s": f"x{long[:-1]}x"}) == ["anchor"]
    assert made.match({"new": {"s": "ab"}, "old": {"s": "xabc"}}) == ["old"]
    assert made.match({"new": {"s": "ab"}, "old": {"s": "ab"}}) == []
    assert not asked


def test_a_search_that_would_take_long_is_left_to_the_tree(asked: list[str]) -> None:
    made = Index({"s": "string"})
    made.subscribe(1, f"NOT s LIKE '%{'a' * 300}_b{'a' * 300}%'")
    assert made.match({"s": "a" * 20_000}) == [1]
    assert len(asked) == 1


def test_where_and_intervals(asked: list[str]) -> None:
    made = Index({"a": "int", "n": "int[]", "kind": hitbox.Attribute("string", role="information")})
    made.subscribe(1, "ANY(n) > 3", about={"kind": "x"})
    made.subscribe(2, "ANY(n) > 3", about={"kind": "y"})
    assert made.match({"n": [4]}, where="kind = 'x'") == [1]
    assert made.match({"n": [3]}, where="kind = 'x'") == []
    made.subscribe(3, "ANY(n) > 3 AND a > 2")
    del asked[:]
    assert set(made.match({"n": [5], "a": (1, 3)})) == {1, 2, 3}
    assert len(asked) == 3


def test_long_lists_and_many_candidates() -> None:
    made = subscribed({id: f"ALL(n) <> {id}" for id in range(50)})
    assert made.match({"n": list(range(0, 50, 2)) * 100}) == list(range(1, 50, 2))
    offsets = made.match_batch([{"n": [1]}, {"n": None}, {"n": []}]).offsets
    assert np.diff(offsets).tolist() == [49, 0, 50]


JOINED: dict[str, Any] = {
    "x": "int",
    "text": "string",
    "at": "timestamp",
    "tags": "string[]",
    "scores": "int[]",
    "items": [{"sku": "string", "price": "float"}],
}
JOINED_TYPES = JOINED | {"items": {"sku": "string", "price": "float"}}


def joined(rng: random.Random) -> str:
    """What anchors, boxes and a second look decide, in one predicate."""

    def one() -> str:
        word, number, negated = rng.choice(WORDS[1:]), rng.randint(-1, 5), rng.choice(["", "NOT "])
        of = rng.choice(["ANY", "ALL"])
        return rng.choice(
            [
                f"ANY(tags) = '{word}'",
                f"{of}(tags) {negated}IN ('{word}', 'xx')",
                f"{of}(tags) LIKE '{word[0]}%'",
                f"{of}(scores) {rng.choice(['=', '<>', '<', '>='])} {number}",
                f"x {rng.choice(['<', '=', '>'])} {number}",
                f"{rng.choice(['x', 'text', 'tags', 'at', 'items'])} IS {negated}{rng.choice(['MISSING', 'NULL'])}",
                f"text {negated}LIKE '%{word}%'",
                f"text {negated}ILIKE '{rng.choice(['_', '%', 'A%'])}{word[-1].upper()}%'",
                f"at {rng.choice(['<', '>='])} NOW() {rng.choice('+-')} INTERVAL '{rng.randint(0, 4)} days'",
                f"{negated}EXISTS(items WHERE sku = '{word}' {rng.choice(['AND', 'OR'])} price > {number})",
            ]
        )

    parts = [one() if rng.random() < 0.7 else f"NOT ({one()} {rng.choice(['AND', 'OR'])} {one()})" for _ in range(3)]
    return rng.choice([" AND ", " AND ", " OR ", " XOR "]).join(f"({part})" for part in parts[: rng.randint(1, 3)])


def joined_event(rng: random.Random, now: datetime) -> dict[str, Any]:
    items = [{"sku": rng.choice([*WORDS, None]), "price": rng.choice([-1.5, 0.5, 3.0])}, {"sku": "ab"}, {}]
    event = {
        "x": rng.choice([-1, 0, 2, 5, None]),
        "text": rng.choice([*WORDS, "xAbcx", None]),
        "at": rng.choice([None, now + timedelta(hours=24 * rng.randint(-5, 5) + 12)]),
        "tags": some(rng, WORDS),
        "scores": some(rng, list(range(-1, 6))),
        "items": some(rng, items),
    }
    return {name: value for name, value in event.items() if rng.random() < 0.8}


@pytest.mark.filterwarnings("ignore::hitbox.HitboxWarning")
@pytest.mark.parametrize("seed", range(4))
def test_with_and_without_a_schema(seed: int, asked: list[str], tmp_path: Path) -> None:
    """Loaded, subscribed, saved and opened: as the second evaluator says, and natively."""
    rng = random.Random(100 + seed)
    texts = {id: joined(rng) for id in range(120)}
    texts[0] = "ANY(tags) = 'ab' AND ALL(scores) > 3 AND x IS MISSING AND text NOT LIKE '%y%' AND at < NOW()"
    now = datetime.now(UTC)
    events = [joined_event(rng, now) for _ in range(14)]
    events.append({"tags": ["ab", None], "scores": [4, 5], "text": "abc", "at": now - timedelta(days=9)})
    micros = timedelta(microseconds=1)
    wanted = []
    for event in events:
        means: dict[str, Any] = dict(event)
        if event.get("at"):
            means["at"] = (event["at"] - datetime(1970, 1, 1, tzinfo=UTC)) // micros
        world = World(means, None, (now - datetime(1970, 1, 1, tzinfo=UTC)) // micros)
        wanted.append({id for id, text in texts.items() if truth(parse(text, JOINED_TYPES), JOINED_TYPES, world)})
    assert 0 in wanted[-1]
    for name, schema in (("declared", JOINED), ("open", None)):
        made = subscribed({id: text for id, text in texts.items() if id % 3}, schema)
        for id in range(0, 120, 3):
            made.subscribe(id, texts[id])
        made.save(tmp_path / name)
        for index in (made, Index.open(tmp_path / name)):
            batch = index.match_batch(events)
            for number, event in enumerate(events):
                found = set(index.match(event))
                assert found == wanted[number], [(texts[id], event) for id in found ^ wanted[number]]
                assert set(batch[number]) == found
        assert not asked, name
