"""Events with intervals: a condition that needs something that is missing is true of no value in an interval."""

from __future__ import annotations

import itertools
import random
import warnings
from typing import Any

import pyarrow as pa
import pytest

import hitbox
from hitbox import Index
from hitbox.errors import HitboxError, NeverMatches
from hitbox.language import Schema, evaluate, parse

SCHEMA: dict[str, Any] = {"a": "int", "b": "int", "name": "string", "nums": "int[]", "items": [{"x": "int"}]}
ANY_VALUE = range(-4, 9)
"""Values beyond all that a random predicate compares with."""
WIDE = {"new": {"a": (1, 3)}}
NEEDS_MORE = [
    "a > OLD.a",
    "NEW.a > OLD.a",
    "a <> OLD.b",
    "NOT a = OLD.a",
    "a - OLD.a > 2",
    "ABS(a) + OLD.a < 100",
    "a BETWEEN OLD.a AND 5",
    "a BETWEEN 0 AND OLD.a",
    "OLD.a BETWEEN 0 AND a",
    "a > b",
    "a > INT(name)",
    "a = 2 XOR OLD.a = 2",
    "a = 2 XOR a < OLD.a",
    "(a > 1) = (OLD.a > 1)",
    "a > LENGTH(nums)",
    "ANY(OLD.nums) < a",
    "EXISTS(items WHERE x < a)",
    "EXISTS(items WHERE x < a OR x + 1 < a)",
    "NOT EXISTS(items WHERE x < a)",
    "EXISTS(OLD.items WHERE x < a)",
    "a * OLD.a <> 3",
]
GIVEN: dict[str, Any] = {"new": {"b": 1, "name": "1", "nums": [1], "items": [{"x": 1}]}, "old": {"a": 2, "b": 2}}


def index_of(texts: list[str], matcher: str = "auto") -> Index:
    index = Index(SCHEMA, matcher)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverMatches)
        for number, text in enumerate(texts):
            index.subscribe(number, text)
    return index


def table_of(events: list[Any]) -> pa.Table:
    """The events as a table of two images, in which `a` and `b` are intervals."""
    ends = pa.struct([("low", pa.int64()), ("high", pa.int64())])
    new = {"a": ends, "b": ends, "name": pa.string(), "nums": pa.list_(pa.int64())}
    new["items"] = pa.list_(pa.struct([("x", pa.int64())]))
    old = new | {"a": pa.int64(), "b": pa.int64()}
    rows = []
    for event in events:
        image = dict(event["new"])
        for name in ("a", "b"):
            value = image.get(name)
            if value is not None:
                low, high = value if isinstance(value, tuple) else (value, value)
                image[name] = {"low": low, "high": high}
        rows.append((image, event.get("old")))
    columns = zip(*rows, strict=True)
    kinds = [pa.struct(list(one.items())) for one in (new, old)]
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], ["new", "old"])


def answers(texts: list[str], events: list[Any]) -> list[list[int]]:
    """Which predicates are true of each event, the same through every door."""
    index, oracle = index_of(texts), index_of(texts, "brute")
    found = [sorted(index.match(event)) for event in events]
    assert [sorted(oracle.match(event)) for event in events] == found
    assert [sorted(ids) for ids in map(list, (index.match_batch(events)[n] for n in range(len(events))))] == found
    batch = index.match_batch(table_of(events))
    assert [sorted(batch[n]) for n in range(len(events))] == found
    for event, ids in zip(events, found, strict=True):
        for number, text in list(enumerate(texts))[::4]:
            why = index.explain(event, number)
            assert why.matched == (number in ids), (text, event)  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("text", NEEDS_MORE)
def test_a_comparison_with_what_is_missing(text: str) -> None:
    whole = {"new": WIDE["new"] | GIVEN["new"], "old": GIVEN["old"]}
    if "OLD.nums" in text or "OLD.items" in text:
        whole["old"] = whole["old"] | {"nums": [1], "items": [{"x": 1}]}
    some = [WIDE, WIDE | {"old": None}, WIDE | {"old": {}}, {"new": WIDE["new"] | {"name": "x", "items": [{}]}}]
    assert answers([text], [*some, whole]) == [[], [], [], [], [0]]


def test_what_is_known_decides() -> None:
    for text, event, wanted in (
        ("a NOT BETWEEN 2 AND OLD.a", {"new": {"a": (0, 1)}}, True),  # below 2 it holds, whatever OLD.a is
        ("a NOT BETWEEN OLD.a AND OLD.b", {"new": {"a": (0, 1)}}, False),
        ("EXISTS(items WHERE x < a)", {"new": {"a": (0, 1), "items": []}}, False),
        ("NOT EXISTS(items WHERE x < a)", {"new": {"a": (0, 1), "items": []}}, True),
        ("ALL(nums) < a", {"new": {"a": (0, 1), "nums": []}}, True),
        ("a > OLD.a OR b = 1", {"new": {"a": (0, 1), "b": 1}}, True),
        ("a > OLD.a AND b = 1", {"new": {"a": (0, 1), "b": 1}}, False),
        ("OLD.a IS NULL AND a > 0", {"new": {"a": (0, 1)}}, True),
        ("(a - OLD.a) IS NULL", {"new": {"a": (0, 1)}}, True),
        ("a > OLD.a", {"new": {"a": (3, 3)}, "old": {"a": 2}}, True),
        ("a > OLD.a", {"new": {"a": (2, 2)}, "old": {"a": 2}}, False),
        ("name LIKE '%x%'", {"new": {"name": ("a", "b")}}, True),
        ("name LIKE '%x%' XOR OLD.a = 1", {"new": {"name": ("a", "b")}}, False),
    ):
        assert bool(index_of([text]).match(event)) is wanted, text
        assert bool(index_of([text], "brute").match(event)) is wanted, text


# ---- random ones


class Texts:
    """Random predicates in which each attribute is named once, so that a value for each says all."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.left = ["a", "b", "OLD.a", "OLD.b", "nums", "items"]
        rng.shuffle(self.left)

    def name(self) -> str:
        """One that is left; empty if none is."""
        found = next((name for name in self.left if name not in ("nums", "items")), "")
        if found:
            self.left.remove(found)
        return found

    def number(self) -> str:
        kind = self.rng.randrange(8)
        name = self.name() if kind else ""
        if not name:
            return str(self.rng.randrange(5))
        if kind == 1:
            return f"ABS({name} - {self.rng.randrange(3)})"
        if kind == 2:
            return f"{name} + {self.number()}"
        return f"{name} / {self.rng.randrange(1, 3)}" if kind == 3 else name

    def condition(self) -> str:
        kind = self.rng.randrange(7)
        if kind == 0:
            return f"{self.number()} {self.rng.choice(['', 'NOT '])}BETWEEN {self.number()} AND {self.number()}"
        if kind == 1 and "nums" in self.left:
            self.left.remove("nums")
            return f"{self.rng.choice(['ANY', 'ALL'])}(nums) {self.rng.choice(['<', '=', '>='])} {self.number()}"
        if kind == 2 and "items" in self.left:
            self.left.remove("items")
            sign = self.rng.choice(["<", "<>", ">="])
            return f"{self.rng.choice(['', 'NOT '])}EXISTS(items WHERE x {sign} {self.number()})"
        if kind == 3:  # of a name, because a function of any value may be NULL for some
            return f"({self.name() or '1 + 1'}) IS {self.rng.choice(['', 'NOT '])}NULL"
        return f"{self.number()} {self.rng.choice(['=', '<>', '<', '<=', '>', '>='])} {self.number()}"

    def predicate(self, depth: int = 2) -> str:
        if not depth or self.rng.random() < 0.3:
            text = self.condition()
            return f"NOT ({text})" if self.rng.random() < 0.2 else text
        op = self.rng.choice(["AND", "OR", "XOR"])
        return f"({self.predicate(depth - 1)}) {op} ({self.predicate(depth - 1)})"


def random_event(rng: random.Random) -> dict[str, Any]:
    new: dict[str, Any] = {}
    for name in ("a", "b"):
        low = rng.randrange(5)
        high = low + rng.randrange(3)
        value = rng.choice([..., None, low, (low, high), (low, high), (low, high)])
        if value is not ...:
            new[name] = value
    for name, values in (("nums", [None, [], [1], [None]]), ("items", [None, [], [{"x": 2}], [{}], [None]])):
        value = rng.choice([..., *values])
        if value is not ...:
            new[name] = value
    old = {name: rng.choice([None, 0, 2, 4]) for name in ("a", "b") if rng.random() < 0.5}
    return {"new": new, "old": old if rng.random() < 0.6 else None}


def points_of(event: dict[str, Any], anywhere: bool) -> list[dict[str, Any]]:
    """The event with each value of its intervals, or with any value in their place."""
    new = event["new"]
    wide = {
        n: ANY_VALUE if anywhere and v[0] < v[1] else range(v[0], v[1] + 1)
        for n, v in new.items()
        if isinstance(v, tuple)
    }
    return [
        {"new": new | dict(zip(wide, values, strict=True)), "old": event["old"]}
        for values in itertools.product(*wide.values())
    ]


def is_known(text: str) -> bool:
    try:
        parse(text, Schema(SCHEMA))
    except HitboxError:
        return False
    return True


@pytest.mark.parametrize("seed", range(5))
def test_random_predicates(seed: int) -> None:
    """What is true of a point of an event is true of the event; and what is true of no value at all is not."""
    rng = random.Random(seed)
    texts: list[str] = []
    while len(texts) < 20:
        text = Texts(rng).predicate()
        if is_known(text):
            texts.append(text)
    events = [random_event(rng) for _ in range(20)]
    trees = [parse(text, Schema(SCHEMA)) for text in texts]
    found = answers(texts, events)
    seen = set()
    for event, ids in zip(events, found, strict=True):
        inside, anywhere = points_of(event, False), points_of(event, True)
        for number, tree in enumerate(trees):
            here = any(evaluate(tree, point) is True for point in inside)
            there = here or any(evaluate(tree, point) is True for point in anywhere)
            matched = number in ids
            assert matched or not here, (texts[number], event)
            assert there or not matched, (texts[number], event)
            seen.add((matched, here, there))
    assert len(seen) >= 3


class PlainTexts(Texts):
    """Random predicates of plain conditions, in which an attribute may be named again and again."""

    def condition(self) -> str:
        name, low = self.rng.choice("ab"), self.rng.randrange(5)
        kind = self.rng.randrange(6)
        if kind == 0:
            return f"{name} BETWEEN {low} AND {low + self.rng.randrange(3)}"
        if kind == 1:
            return f"{name} IS {self.rng.choice(['', 'NOT '])}NULL"
        return f"{name} {self.rng.choice(['=', '<>', '<', '>='])} {low}"


@pytest.mark.parametrize("seed", range(5))
def test_plain_conditions_are_true_at_some_point(seed: int) -> None:
    """Also below XOR, where no condition can be judged alone."""
    rng = random.Random(seed)
    texts = ["a > 1 XOR a > 0", "NOT (a > 1 XOR b > 0 XOR a > 2)"]
    texts += [PlainTexts(rng).predicate(3) for _ in range(18)]
    events = [{"new": {"a": (2, 4), "b": 1}, "old": None}] + [random_event(rng) for _ in range(20)]
    trees = [parse(text, Schema(SCHEMA)) for text in texts]
    for event, ids in zip(events, answers(texts, events), strict=True):
        points = points_of(event, False)
        assert ids == [n for n, tree in enumerate(trees) if any(evaluate(tree, point) is True for point in points)]


def test_xor_is_linear_however_deep() -> None:
    """What the parts of an XOR and their negations have in common is looked at once."""
    text = "a = 1"
    for number in range(40):
        text = f"(b = {number} OR ({text}) AND b <> {number}) XOR LENGTH(name) = {number}"
    index = index_of([text, " XOR ".join(f"a <> {number}" for number in range(200))])
    assert index.match({"a": (201, 203), "b": 50, "name": "x"}) == [0]
    assert 1 in index.match({"a": (199, 201), "b": 50, "name": "x"})


@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
@pytest.mark.parametrize("labels", [[], ["s = 'ab'"], ["s = '-'", "s = 'z'"]])
def test_a_function_of_an_interval_between_two_labels(matcher: str, labels: list[str]) -> None:
    """Both ends have the key of one gap. What others subscribe to changes no answer."""
    index = Index({"s": "string", **dict.fromkeys("abcdef", "int")}, matcher)
    texts = {
        "length": "LENGTH(s) = 2 AND a <> 1 AND b <> 2 AND c <> 3 AND d <> 4 AND e <> 5 AND f <> 6",
        "either": "a > 2 XOR LENGTH(s) <= 1",
        "lower": "a > 2 XOR LOWER(s) = 'ab'",
    }
    for id, text in texts.items():
        index.subscribe(id, text)
    for number, text in enumerate(labels):
        index.subscribe(f"label {number}", text)
    event = {"s": ("aa", "ac"), **dict.fromkeys("abcdef", 0)}
    wanted = sorted([*texts, *(f"label {n}" for n, text in enumerate(labels) if "ab" in text)])
    assert sorted(index.match(event)) == wanted
    assert sorted(index.match_array(event).to_pylist()) == wanted
    assert [sorted(ids) for ids in index.match_batch([event, event]).to_lists()] == [wanted, wanted]
    assert all(index.explain(event, id).matched for id in texts)  # type: ignore[union-attr]


def test_both_orders_of_an_exchange_agree_between_two_labels() -> None:
    schema = Schema({"s": "string", "i": "int", "age": hitbox.Attribute("int", role="information")})
    first, second = hitbox.Exchange(schema), hitbox.Exchange(schema)
    values, where = {"i": 1, "s": ("-3", "Ab")}, "i > 2 XOR LENGTH(s) <= 1"
    first.publish("event", values)
    assert first.subscribe("subscription", where, about={"age": 3}) == ["event"]
    second.subscribe("subscription", where, about={"age": 3})
    assert second.publish("event", values) == ["subscription"]
