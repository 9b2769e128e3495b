"""Covers that events find by the elements of their lists and the fragments of their texts."""

from __future__ import annotations

import pickle
import random
import warnings
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hitbox
from hitbox import Index, Schema, language
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import OpenSchema
from hitbox.errors import SnapshotError, ValueProblem
from hitbox.index import sharded
from hitbox.index.load.predicate_text import ParsedPredicate
from hitbox.index.sharded import Shards
from hitbox.language.boxes.anchors import LONGEST, required_texts
from hitbox.storage import snapshot
from support.random_documents import SCHEMA, TYPES, Writer, nested, random_image
from support.second_evaluator import like
from support.tiers import only

WORDS = [
    "a",
    "b",
    "ab",
    "ba",
    "aba",
    "bab",
    "abab",
    "äb",
    "Äb",
    "ßa",
    "ſ",
    "İ",
    "i",
    "I",
    "ı",
    "Σ",
    "ς",
    "K",
    "k",
    "_",
    "%",
]
TEXT = {"n": "int", "s": "string", "tags": "string[]", "items": [{"sku": "string", "q": "int", "tags": "string[]"}]}
TEXT |= {"scores": "int[]", "prices": "float[]", "flags": "bool[]", "at": "timestamp[]"}


def compiled(text: str, schema: Schema | None = None) -> tuple[list[tuple[str, bool]], int]:
    """(anchor, exact) of each cover, and how many covers there are."""
    schema = Schema(TEXT) if schema is None else schema
    predicate = language.parse(text, schema)
    keys = Keys(schema)
    keys.admit(language.strings(predicate))
    found = language.compile(predicate, keys, anchored=True)
    pairs = zip(found.anchors or [b""] * len(found.boxes), found.exact, strict=True)
    shown = [(anchor.decode().replace("\x1f", ".").replace("\x00", " "), exact) for anchor, exact in pairs]
    return sorted(shown), len(found.boxes)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s LIKE '%abc%'", [("%s abc", True)]),
        ("s LIKE '%abc%' AND n > 3", [("%s abc", True)]),
        ("s LIKE '%abc%' AND n = 3", [("", False)]),  # a value tells more than a fragment
        ("s LIKE '%a%bcd_%'", [("%s bcd", False)]),
        ("s LIKE '%_%'", [("", False)]),
        ("s LIKE 'abc%'", [("", True)]),
        ("s LIKE '%a!%b%' ESCAPE '!'", [("%s a%b", True)]),
        ("s NOT LIKE '%abc%'", [("", False)]),
        ("NOT (s NOT LIKE '%abc%')", [("%s abc", True)]),
        (f"s LIKE '%{'x' * 100}%'", [(f"%s {'x' * LONGEST}", False)]),
        ("s ILIKE '%ABC%'", [("~s abc", True)]),
        ("s ILIKE 'x%İBC_'", [("~s ibc", False)]),
        ("LOWER(s) LIKE '%Abc%'", [("~s Abc", True)]),
        ("UPPER(s) LIKE '%ABC%'", [("", False)]),
        ("OLD.s LIKE '%abc%'", [("", False)]),
        ("s REGEXP 'ab+cd.*efg$'", [("%s efg", False)]),
        ("s LIKE '%ab%' OR s LIKE '%cd%'", [("%s ab", True), ("%s cd", True)]),
        ("s LIKE '%ab%' OR n > 3", [("", True), ("%s ab", True)]),
        ("s LIKE '%ab%' AND s LIKE '%cdef%'", [("%s cdef", False)]),
        ("ANY(tags) = 'x'", [("=tags x", True)]),
        ("'x' = ANY(tags)", [("=tags x", True)]),
        ("ANY(tags) IN ('x', 'y', 'x')", [("=tags x", True), ("=tags y", True)]),
        ("ANY(tags) = ''", [("=tags ", True)]),
        ("ALL(tags) = 'x'", [("", False)]),
        ("NOT ALL(tags) <> 'x'", [("=tags x", True)]),
        ("ANY(tags) LIKE '%abc%'", [("%tags abc", True)]),
        ("ANY(tags) ILIKE '%Abc'", [("~tags abc", False)]),
        ("ANY(tags) = s", [("", False)]),
        ("ANY(items.sku) = 'A'", [("=items.sku A", True)]),
        ("ANY(items.tags) = 'A'", [("=items.tags A", True)]),
        ("EXISTS(items WHERE sku = 'A')", [("=items.sku A", True)]),
        ("EXISTS(items WHERE sku = 'A' AND q < 3)", [("=items.sku A", False)]),
        ("EXISTS(items WHERE sku = 'A' OR sku = 'B')", [("=items.sku A", True), ("=items.sku B", True)]),
        ("EXISTS(items WHERE NOT sku <> 'A')", [("=items.sku A", True)]),
        ("EXISTS(items WHERE sku = 'A' OR q < 3)", [("", False)]),
        ("EXISTS(items WHERE sku LIKE '%abc%')", [("%items.sku abc", True)]),
        ("EXISTS(items WHERE s LIKE '%abc%')", [("%s abc", False)]),  # and there is an item
        ("EXISTS(items WHERE ANY(tags) = 'x')", [("=items.tags x", True)]),
        ("NOT EXISTS(items WHERE sku = 'A')", [("", False)]),
        ("ANY(scores) = 3", [("=scores 3", True)]),
        ("ANY(scores) = 3.0", [("=scores 3", True)]),
        ("ANY(prices) = 3", [("=prices 3.0", True)]),
        ("ANY(prices) = 9007199254740993", [("", False)]),
        ("ANY(prices) = -0.0", [("=prices 0.0", True)]),
        ("ANY(flags) = TRUE", [("=flags 1", True)]),
        ("s LIKE '%abc%' XOR n > 3", [("", False), ("%s abc", True)]),
    ],
)
def test_covers(text: str, wanted: list[tuple[str, bool]]) -> None:
    assert compiled(text)[0] == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s LIKE '%abc%'", [("%s.string abc", True)]),
        ("a.s ILIKE '%ABC%'", [("~a.s.string abc", True)]),
        ("OLD.s LIKE '%abc%'", [("", False)]),
        ("ANY(tags) = 'x'", [("=tags..string x", True)]),
        ("ANY(a.b) = 3.0", [("=a.b..number 3", True)]),
        ("ANY(a) = 0.5", [("=a..number 0.5", True)]),
        ("ANY(a) = 9007199254740993", [("=a..number 9007199254740993", True)]),
        ("ANY(a) = 1e300", [(f"=a..number {int(1e300)}", True)]),
        ("ANY(a) = TRUE", [("=a..bool 1", True)]),
        ("ANY(a) = s", [("", False)]),
        ("ANY(a) IN (1, 2)", [("=a..number 1", True), ("=a..number 2", True)]),
        ("ANY(a) REGEXP 'abc+'", [("%a..string abc", False)]),
        ("EXISTS(a WHERE b = 'x')", [("=a.b.string x", True)]),
        ("EXISTS(a WHERE b = 'x' AND c > 3)", [("=a.b.string x", False)]),
        ("EXISTS(a WHERE NEW.s LIKE '%abc%')", [("%s.string abc", False)]),
        ("EXISTS(a WHERE ANY(b) = 'x')", [("=a.b..string x", True)]),
        ("EXISTS(a WHERE EXISTS(NEW.b WHERE c = 'x'))", [("=b.c.string x", False)]),
        ("EXISTS(OLD.a WHERE b = 'x')", [("", False)]),
        ("ANY(\"a\x1fb\") = 'x'", [("", False)]),  # the name could be taken for a path
        ("EXISTS(a WHERE \"\" = 'x')", [("", False)]),
    ],
)
def test_covers_without_a_schema(text: str, wanted: list[tuple[str, bool]]) -> None:
    assert compiled(text, OpenSchema())[0] == wanted


def test_an_element_meets_a_literal_of_its_type() -> None:
    index = Index()
    texts = {
        "number": "ANY(x) = 1",
        "half": "ANY(x) = 0.5",
        "big": "ANY(x) = 9007199254740993",
        "string": "ANY(x) = '1'",
        "bool": "ANY(x) = TRUE",
        "moment": "ANY(x) = TIMESTAMP '2026-05-01 10:00:00'",
        "part": "ANY(x) LIKE '%05-01%'",
        "folded": "ANY(x) ILIKE '%T10%'",
        "alone": "x LIKE '%05-01%'",
    }
    for id, text in texts.items():
        index.subscribe(id, text)
    assert len(index._state.anchors) == len(texts)
    cases: list[tuple[Any, list[str]]] = [
        (1, ["number"]),
        (1.0, ["number"]),
        (np.float32(1), ["number"]),
        (Decimal("1.00"), ["number"]),
        (0.5, ["half"]),
        (Decimal("0.5"), ["half"]),
        (2**53 + 1, ["big"]),
        (float(2**53), []),
        ("1", ["string"]),
        (np.str_("1"), ["string"]),
        (True, ["bool"]),
        (np.True_, ["bool"]),
        (False, []),
        (datetime(2026, 5, 1, 10, tzinfo=UTC), ["moment"]),
        ("2026-05-01T10:00:00Z", ["folded", "moment", "part"]),
        ("2026-05-01T12:00:00+02:00", ["moment", "part"]),
        (float("inf"), []),
        (float("nan"), []),
        (None, []),
        ([1], ["number"]),  # a list inside a list is part of it
        ({"y": 1}, []),
        (object(), []),
    ]
    for value, right in cases:
        assert sorted(index.match({"x": [None, value, "z"]})) == right, value
        alone = [*right, "alone"] if "part" in right else right
        if not isinstance(value, list):
            assert sorted(index.match({"x": value})) == sorted(alone), value
        if isinstance(value, (str, bool, int, float)):
            table = pa.table({"x": pa.array([None, [value]])})
            assert [sorted(ids) for ids in index.match_batch(table).to_lists()] == [[], right]
    mixed = [value for value, _ in cases]
    assert sorted(index.match({"x": mixed})) == sorted(set(texts) - {"alone"})
    assert sorted(index.match({"x": np.array([0.5, 1])})) == ["half", "number"]
    for bad in ((1, 2), "a\0"):
        with pytest.raises(ValueProblem):
            index.match({"x": [bad]})
        with pytest.raises(ValueProblem):
            index.match_batch([{}, {"x": [bad]}])


def test_paths_through_lists_without_a_schema() -> None:
    index = Index()
    index.subscribe("any", "ANY(a.b) = 'x'")
    index.subscribe("exists", "EXISTS(a WHERE b = 'x')")
    index.subscribe("inner", "EXISTS(a WHERE ANY(b) = 'x')")
    index.subscribe("deep", "EXISTS(a.b WHERE c = 'x')")
    index.subscribe("path", "EXISTS(a WHERE b.c = 'x')")
    assert len(index._state.anchors) == len(index)
    cases: list[tuple[Any, list[str]]] = [
        ({"a": {"b": "x"}}, ["any", "exists", "inner"]),
        ({"a": [{"b": "x"}]}, ["any", "exists", "inner"]),
        ({"a": [{"b": ["x"]}]}, ["any", "inner"]),
        ({"a.b": ["x"]}, ["any"]),
        ({"a": {"b": {"c": "x"}}}, ["deep", "path"]),
        ({"a": [{"b": {"c": "x"}}, 3]}, ["deep", "path"]),
        ({"a": [{"b": [{"c": "x"}]}]}, ["deep"]),
        ({"a": [{"b.c": "x"}]}, ["path"]),
        ({"a": [["x"], "x", None]}, []),
        ({"new": {"a": {"b": "x"}}, "old": {}}, ["any", "exists", "inner"]),
        ({"new": {}, "old": {"a": {"b": "x"}}}, []),
    ]
    for event, right in cases:
        found = sorted(index.match(event))
        assert found == right == [id for id in sorted(index) if index.explain(event, id).matched], event


def test_a_long_list_of_anchors_is_linear_in_the_text() -> None:
    listed = ", ".join(f"'{n}'" for n in range(1000))
    either = " OR ".join(f"(n > {n} AND s > '{n}')" for n in range(12))
    assert compiled(f"ANY(tags) IN ({listed})")[1] == 1000
    assert compiled(f"({either}) AND ANY(tags) IN ({listed})")[1] <= 12 * 1000
    many = " AND ".join(f"n <> {n}" for n in range(100))
    assert compiled(f"{many} AND ANY(tags) IN ({listed})")[1] == 1000


EXPRESSIONS = [
    ("abc", ["abc"]),
    ("ab*c", ["a", "c"]),
    ("ab+c", ["ab", "c"]),
    ("ab?c", ["a", "c"]),
    ("ab{2,3}c", ["a", "c"]),
    ("ab|c", []),
    ("(ab|c)d", ["d"]),
    ("(?i)ab", []),
    (r"\\(?i)ab", []),
    (r"a\.b", ["a.b"]),
    (r"a\db", ["a", "b"]),
    (r"a\Qb*\E", []),
    (r"\x41b", []),
    ("[]a]b", ["b"]),
    ("[^]]b", ["b"]),
    ("[[:alpha:]]b", []),
    ("^ab$", ["ab"]),
    (r"a(\(|[)])b", ["a", "b"]),
    ("äß+", ["äß"]),
    ("a+?b", ["a", "b"]),
    ("", []),
]


@pytest.mark.parametrize(("expression", "wanted"), EXPRESSIONS)
def test_required_texts(expression: str, wanted: list[str]) -> None:
    assert required_texts(expression) == wanted


def test_what_matches_an_expression_contains_its_required_texts() -> None:
    re2 = pytest.importorskip("re2")
    rng = random.Random(1)
    pieces = [
        "a",
        "b",
        "ab",
        "\\.",
        ".",
        "*",
        "+",
        "?",
        "(",
        ")",
        "|",
        "[ab]",
        "[^a]",
        "{1,2}",
        "^",
        "$",
        "\\d",
        "\\\\",
    ]
    pieces += ["(?:", "(?i)", "\\b", "A", "]", "{", "}", "(?P<n>"]
    texts = ["".join(rng.choices("abA.1\\{}]", k=rng.randint(0, 8))) for _ in range(300)]
    options = re2.Options()
    options.log_errors = False
    checked = 0
    for _ in range(4000):
        expression = "".join(rng.choices(pieces, k=rng.randint(1, 6)))
        try:
            machine = re2.compile(expression, options)
        except re2.error:
            continue
        needed = required_texts(expression)
        for text in texts:
            if needed and machine.search(text):
                assert all(one in text for one in needed), (expression, text)
                checked += 1
    assert checked > 10_000


# --- against the evaluator --------------------------------------------------------------------------------------------


def random_text(rng: random.Random, most: int = 6) -> str:
    return "".join(rng.choices(WORDS, k=rng.randint(0, most)))


def random_condition(rng: random.Random) -> str:
    word = random_text(rng, 2).replace("'", "''")
    pattern = rng.choice(["%{}%", "%{}%", "%{}", "{}%", "%{}_%", "%a%{}%", "{}%b"]).format(word)
    of = rng.choice(["s", "s", "LOWER(s)", "ANY(tags)", "ANY(items.sku)"])
    kind = rng.random()
    if kind < 0.5:
        return f"{of} {rng.choice(['LIKE', 'ILIKE', 'NOT LIKE'])} '{pattern}'"
    if kind < 0.7:
        return f"ANY({rng.choice(['tags', 'items.sku', 'items.tags'])}) = '{word}'"
    if kind < 0.85:
        inner = rng.choice(["q > 1", "sku LIKE '%a%'", "s LIKE '%b%'", "ANY(tags) = 'a'", "n = 1"])
        return f"EXISTS(items WHERE sku = '{word}' {rng.choice(['AND', 'OR'])} {inner})"
    return f"{of} REGEXP '{rng.choice(['a+b', 'ab', 'a[b]a', 'ba$', '^ab', '(a|b)ab'])}'"


def random_predicate(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return random_condition(rng)
    other = rng.choice([random_condition(rng), "n > 2", "n = 1", "s > 'b'", "s IS NULL"])
    return f"{random_condition(rng)} {rng.choice(['AND', 'OR'])} {other}"


def random_event(rng: random.Random) -> dict[str, Any]:
    def item() -> dict[str, Any] | None:
        if rng.random() < 0.1:
            return None
        return {"sku": random_text(rng, 2), "q": rng.randint(0, 3), "tags": [random_text(rng, 1)]}

    event: dict[str, Any] = {
        "n": rng.randint(0, 4),
        "s": random_text(rng),
        "tags": [rng.choice([random_text(rng, 2), None]) for _ in range(rng.randint(0, 3))],
        "items": [item() for _ in range(rng.randint(0, 2))],
    }
    return {name: value for name, value in event.items() if rng.random() < 0.9}


def mixed_event(rng: random.Random) -> dict[str, Any]:
    """An event whose values may be of any type, as an open index takes them."""
    event = random_event(rng)

    def other(value: Any) -> Any:
        if rng.random() < 0.8:
            return value
        return rng.choice([3, 1.5, True, None, "ab", ["a", 1], {"sku": "a"}, [{"sku": "ab", "tags": "a"}]])

    if "items" in event:
        event["items"] = [
            one if one is None else {key: other(value) for key, value in one.items()} for one in event["items"]
        ]
    return {name: other([other(one) for one in v] if isinstance(v, list) else v) for name, v in event.items()}


def wanted(index: Index, texts: dict[int, str], event: dict[str, Any]) -> list[int]:
    return [id for id, text in texts.items() if language.evaluate(index.parse(text), event) is True]


def filled(rng: random.Random, count: int, matcher: str = "auto", schema: Any = TEXT) -> tuple[Index, dict[int, str]]:
    index = Index(schema, matcher)
    texts = {id: random_predicate(rng) for id in range(count)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        for id, text in texts.items():
            index.subscribe(id, text, priority=id % 10)
    return index, texts


@pytest.mark.parametrize("schema", [TEXT, None])
@pytest.mark.parametrize("matcher", only(["hitbox"], ["hitbox", "brute", "counting"]))
def test_every_way_of_asking(matcher: str, schema: Any, tmp_path: Path) -> None:
    rng = random.Random(matcher)
    index, texts = filled(rng, 200, matcher, schema)
    assert len(index._state.anchors) > 50
    index.save(tmp_path)
    others = [Index.open(tmp_path), pickle.loads(pickle.dumps(index)), Index.open(tmp_path, matcher="brute")]
    loaded = Index(schema, matcher)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        levels = pa.array([id % 10 for id in texts])
        loaded.load(pa.table({"id": list(texts), "where": list(texts.values()), "priority": levels}))
    events = [random_event(rng) for _ in range(40)]
    full = [dict.fromkeys(("n", "s", "tags", "items")) | event for event in events]
    kinds = pa.schema(
        {
            "n": pa.int64(),
            "s": pa.string(),
            "tags": pa.list_(pa.string()),
            "items": pa.list_(pa.struct({"sku": pa.string(), "q": pa.int64(), "tags": pa.list_(pa.string())})),
        }
    )
    batch, threaded = index.match_batch(events), index.match_batch(events * 3, threads=3)
    table = index.match_batch(pa.Table.from_pylist(full, kinds))
    for number, event in enumerate(events):
        right = wanted(index, texts, event)
        ids = index.match(event)
        assert sorted(ids) == right, event
        assert [id % 10 for id in ids] == sorted((id % 10 for id in ids), reverse=True)
        assert sorted(batch[number]) == sorted(threaded[number]) == sorted(table[number]) == right
        assert sorted(index.match_array(event).to_pylist()) == right
        assert sorted(id for _, level in index.match_levels(event) for id in level) == right
        limited = index.match(event, limit=3)
        assert len(limited) == min(3, len(right))
        assert set(limited) <= set(right)
        assert [id % 10 for id in limited] == [id % 10 for id in ids[:3]]
        for other in (*others, loaded):
            assert sorted(other.match(event)) == right
        for id in rng.sample(list(texts), 3):
            assert index.explain(event, id).matched == (id in right)
    assert len(index.explain(events[0], misses=3).misses) == 3


@pytest.mark.parametrize("schema", [TEXT, None])
def test_two_images(schema: Any) -> None:
    index, texts = filled(random.Random(5), 150, schema=schema)
    rng = random.Random(6)
    event = mixed_event if schema is None else random_event
    for _ in range(30):
        old, new = event(rng), event(rng)
        before, after = set(wanted(index, texts, old)), set(wanted(index, texts, new))
        change = index.match_change(old, new)
        assert (set(change.enter), set(change.leave), set(change.stay)) == (
            after - before,
            before - after,
            before & after,
        )
        assert set(index.match({"old": old, "new": new})) == after


@pytest.mark.parametrize("schema", only([None], [TEXT, None]))
def test_a_history_of_changes(schema: Any, tmp_path: Path) -> None:
    """Segments are merged, numbers are used again, labels of strings move, snapshots are saved and opened."""
    rng = random.Random(3)
    index, texts = filled(rng, 30, schema=schema)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        for step in range(400):
            kind = rng.random()
            if kind < 0.55:
                id = rng.randrange(150)
                texts[id] = random_predicate(rng)
                index.subscribe(id, texts[id])
            elif kind < 0.8 and texts:
                id = rng.choice(list(texts))
                del texts[id]
                index.unsubscribe(id)
            elif kind < 0.85:
                some = rng.sample(list(texts), len(texts) // 3)
                for id in some:
                    del texts[id]
                index.unsubscribe_many(some)
            elif kind < 0.95:
                more = {rng.randrange(150): random_predicate(rng) for _ in range(rng.randint(1, 30))}
                texts |= more
                index.load(pa.table({"id": list(more), "where": list(more.values())}))
            else:
                index.save(tmp_path)
                index = Index.open(tmp_path)
            if step % 10 == 0:
                for _ in range(5):
                    event = mixed_event(rng) if schema is None else random_event(rng)
                    assert sorted(index.match(event)) == sorted(wanted(index, texts, event)), event
                anchors = index._state.anchors
                assert len(anchors) == len(anchors.numbers()) == sum(segment.live for segment in anchors._segments)
    assert {id: index.where(id) for id in texts} == texts
    index.unsubscribe_many(list(texts))
    assert not len(index._state.anchors)
    assert not index._state.anchors._segments
    assert index.match({"s": "ab"}) == []


def test_labels_move_under_anchored_boxes() -> None:
    index = Index({"s": "string", "t": "string"})
    index.subscribe("x", "s LIKE '%needle%' AND t >= 'm' AND t < 'n'")
    assert len(index._state.anchors) == 1
    for number in range(3000):  # between 'm' and 'n', until labels have no room left
        index.subscribe(str(number), f"t = 'm{'a' * (number % 50)}{number:05}'")
    assert index.match({"s": "a needle", "t": "mz"}) == ["x"]
    assert index.match({"s": "a needle", "t": "n"}) == index.match({"s": "a needle", "t": "lz"}) == []


def test_symmetric_filters() -> None:
    index = Index({"s": "string", "tags": "string[]", "age": {"type": "int", "role": "information"}})
    for id in range(60):
        index.subscribe(id, f"s LIKE '%w{id % 3}%' OR ANY(tags) = 't{id % 5}'", about={"age": id})
    event = {"s": "a w1 b", "tags": ["t4"]}
    right = [id for id in range(60) if id % 3 == 1 or id % 5 == 4]
    assert sorted(index.match(event)) == right
    young = [id for id in right if id < 20 or id > 50]
    assert sorted(index.match(event, "age < 20 OR age > 50")) == young
    batch = index.match_batch([event, event, {"s": ""}], ["age < 20 OR age > 50", None, None])
    assert [sorted(batch[n]) for n in range(3)] == [young, right, []]
    assert index.about(7) == {"age": 7}


def test_intervals_may_contain_whatever_is_asked_for() -> None:
    index = Index({"s": "string", "n": "int"})
    index.subscribe("fragment", "s LIKE '%abc%'")
    index.subscribe("number", "s LIKE '%abc%' AND n > 3")
    index.subscribe("any case", "s ILIKE '%ABC%'")
    index.subscribe("prefix", "s LIKE 'x%abcdefgh%'")
    assert len(index._state.anchors) == 4
    assert sorted(index.match({"s": ("a", "b")})) == ["any case", "fragment"]
    assert sorted(index.match({"s": ("a", "y"), "n": (0, 9)})) == ["any case", "fragment", "number", "prefix"]
    assert index.match({"s": ("xbc", "xbc"), "n": 9}) == []
    assert sorted(index.match({"s": ("abc", "abc"), "n": 9})) == ["any case", "fragment", "number"]
    table = pa.table({"s_low": ["a", "abc", None], "s_high": ["b", "abc", None]})
    assert [len(ids) for ids in index.match_batch(table).to_lists()] == [2, 2, 0]


@pytest.mark.parametrize("seed", range(3))
def test_random_documents_after_updates(seed: int) -> None:
    """The whole language; what is anchored and what is not give the same."""
    rng = random.Random(seed)
    index, plain = Index(SCHEMA), Index(SCHEMA)
    plain._changing._texts.parse = lambda text: NoAnchors(language.parse(text, plain.schema), plain.limits)  # type: ignore
    plain._changing._texts.read = plain._changing._texts.parse  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        for _step in range(300):
            id, text = rng.randrange(200), Writer(rng).predicate(rng.randint(0, 2))
            for one in (index, plain):
                one.subscribe(id, text, priority=id % 10)
    assert len(index._state.anchors)
    assert not len(plain._state.anchors)
    assert TYPES
    for _ in range(60):
        event = nested(rng, random_image(rng))
        assert sorted(index.match(event)) == sorted(plain.match(event)), event


class NoAnchors(ParsedPredicate):
    def boxes(self, keys: Keys, about: Any, priority: int) -> Any:
        from hitbox.encoding.arrays import Boxes

        found = language.compile(self._predicate, keys, self._limits)
        return Boxes.of(found.boxes, [priority] * len(found.boxes)), found.exact, found.program


# --- hostile ----------------------------------------------------------------------------------------------------------


def test_nested_fragments_in_a_long_text() -> None:
    """Every place of the text ends hundreds of fragments; each is found once."""
    index = Index({"s": "string"})
    for length in range(1, LONGEST + 1):
        index.subscribe(length, f"s LIKE '%{'a' * length}%'")
        index.subscribe(100 + length, f"s LIKE '%{'a' * length}b%'")
    assert sorted(index.match({"s": "a" * 300_000})) == list(range(1, LONGEST + 1))
    assert len(index.match({"s": "a" * 300_000 + "b"})) == 2 * LONGEST
    assert index.match({"s": ""}) == index.match({}) == index.match({"s": None}) == []


def test_odd_texts() -> None:
    index = Index({"s": "string", "tags": "string[]"})
    for number, word in enumerate(WORDS):
        index.subscribe(f"like {number}", f"s LIKE '%!{word}%' ESCAPE '!'" if len(word) == 1 else f"s LIKE '%{word}%'")
        index.subscribe(
            f"ilike {number}", f"s ILIKE '%!{word}%' ESCAPE '!'" if len(word) == 1 else f"s ILIKE '%{word}%'"
        )
        index.subscribe(f"tag {number}", f"ANY(tags) = '{word}'")
    rng = random.Random(9)
    for _ in range(200):
        text = random_text(rng)
        found = set(index.match({"s": text, "tags": [text, text]}))
        for number, word in enumerate(WORDS):
            assert (f"like {number}" in found) == (word in text), (word, text)
            lowered = ["i" if c == "İ" else c.lower() for c in text], ["i" if c == "İ" else c.lower() for c in word]
            assert (f"ilike {number}" in found) == ("".join(lowered[1]) in "".join(lowered[0])), (word, text)
            assert (f"tag {number}" in found) == (word == text)
    for bad in ("a\x00b", "\ud800"):
        for event in ({"s": bad}, {"tags": [bad]}):
            with pytest.raises(hitbox.HitboxError):
                index.match(event)


def test_its_like_agrees_with_the_second_evaluator() -> None:
    rng = random.Random(11)
    index = Index({"s": "string"})
    patterns = {n: "".join(rng.choices(["a", "b", "ab", "%", "_", "%"], k=rng.randint(1, 7))) for n in range(500)}
    index.load(pa.table({"id": list(patterns), "where": [f"s LIKE '{one}'" for one in patterns.values()]}))
    assert len(index._state.anchors) > 50
    for _ in range(100):
        text = "".join(rng.choices("ab_%", k=rng.randint(0, 9)))
        assert sorted(index.match({"s": text})) == [n for n, one in patterns.items() if like(text, one, None)]


# --- snapshots --------------------------------------------------------------------------------------------------------


def test_parts(tmp_path: Path) -> None:
    rng = random.Random(4)
    whole, texts = filled(rng, 120)
    everything = whole._state.everything()
    part = sharded.part_of(everything.ids, 3)
    with snapshot.draft(tmp_path) as folder:
        names, files = [], snapshot.add(folder, whole._state.keys.arrays())
        for number in range(3):
            index = Index.of(hitbox.index.state.IndexState.empty(whole._state.keys, "auto", {}))
            index.put(taken(everything, np.flatnonzero(part == number)))
            names.append(sharded.part_name(number))
            files |= sharded.write_part(folder, index, names[-1])
        facts = whole._state.facts() | {"parts": names}
        snapshot.publish(tmp_path, folder, facts, files)
    shards, joined = Shards.open(tmp_path), Index.open(tmp_path)
    assert len(shards) == len(joined) == 120
    assert len(joined._state.anchors) == len(whole._state.anchors)
    events = [{"s": random_text(rng), "n": n % 4} for n in range(30)]
    found, _ = shards.match_batch(pa.Table.from_pylist(events))
    for number, event in enumerate(events):
        right = wanted(whole, texts, event)
        assert sorted(found[number]) == sorted(joined.match(event)) == right


def taken(encoded: Any, rows: Any) -> Any:
    from hitbox.index.load.bulk_load import Encoded

    first = np.cumsum(encoded.count) - encoded.count
    boxes = np.concatenate([np.arange(first[row], first[row] + encoded.count[row]) for row in rows])
    return Encoded(
        encoded.ids.take(pa.array(rows)),
        encoded.where.take(pa.array(rows)),
        encoded.priority[rows],
        encoded.count[rows],
        encoded.exact[boxes],
        encoded.boxes.take(boxes),
    )


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("anchor_data", lambda array: array * 0),
        ("anchor_data", lambda array: array + 1),
        ("anchor_data", lambda array: np.where(array == ord("s"), ord("q"), array).astype(np.uint8)),
        ("anchor_offsets", lambda array: array[::-1]),
        ("anchor_offsets", lambda array: array[:-1]),
        ("numbers", lambda array: array * 0),
        ("numbers", lambda array: array + 10**6),
        ("attribute", lambda array: array + 5000),
        ("offsets", lambda array: array - 1),
    ],
)
def test_forged_anchors_are_refused(name: str, harm: Any, tmp_path: Path) -> None:
    index = Index({"s": "string", "n": "int"})
    index.subscribe(1, "s LIKE '%abc%' AND n > 3")
    index.subscribe(2, "s LIKE '%def%'")
    facts, arrays = index._state.facts(), index._state.arrays() | index._state.keys.arrays()
    arrays[f"anchors.{name}"] = harm(arrays[f"anchors.{name}"])
    snapshot.write(tmp_path, facts, arrays, None)
    with pytest.raises(SnapshotError, match=r"anchors|catalog"):
        Index.open(tmp_path)
