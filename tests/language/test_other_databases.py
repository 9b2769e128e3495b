"""hitbox against real SQL engines: the same text as `SELECT ... WHERE` must select the same events.

SQLite judges numbers, strings, NULLs and LIKE; DuckDB judges bool and timestamp, which SQLite does not have. hitbox
answers three times: from the tree, from the boxes through the oracle plus the residual check, and as an Index.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable
from random import Random

import duckdb
import numpy as np
import pytest

from hitbox import Index, language
from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.encoding.keys import Keys
from hitbox.errors import HitboxError, NeverMatches
from hitbox.language.syntax.expressions import quoted
from hitbox.matchers import make
from support.predicates import BIG, SCHEMA, random_event, random_predicate
from support.tiers import only

Event = dict[str, object]
SQL = {"int": "BIGINT", "float": "DOUBLE", "string": "VARCHAR", "bool": "BOOLEAN", "timestamp": "TIMESTAMP"}


def by_tree(predicates: list[language.Predicate], events: list[Event]) -> list[set[int]]:
    return [{n for n, event in enumerate(events) if language.evaluate(p, event)} for p in predicates]


def by_boxes(predicates: list[language.Predicate], events: list[Event]) -> list[set[int]]:
    keys = Keys(SCHEMA)
    for predicate in predicates:
        keys.admit(language.strings(predicate))
    compiled = [language.compile(predicate, keys) for predicate in predicates]
    owner = [n for n, one in enumerate(compiled) for _ in one.boxes]
    exact = [flag for one in compiled for flag in one.exact]
    boxes = Boxes.of([box for one in compiled for box in one.boxes])
    oracle = make("brute", Space.of(len(SCHEMA)))
    oracle.insert(np.arange(len(boxes)), boxes)
    codecs = list(zip(SCHEMA, keys.codecs, strict=True))
    hits = oracle.match(Points.of([[codec.key(event.get(name)) for name, codec in codecs] for event in events]))
    found: list[set[int]] = [set() for _ in predicates]
    for number, event in enumerate(events):
        for box in hits[number].tolist():
            if exact[box] or language.evaluate(predicates[owner[box]], event):
                found[owner[box]].add(number)
    return found


def by_index(predicates: list[language.Predicate], events: list[Event]) -> list[set[int]]:
    index = Index(SCHEMA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverMatches)
        for number, predicate in enumerate(predicates):
            index.subscribe(number, predicate.text)
    matches = index.match_batch(events)
    offsets, ids = matches.offsets.tolist(), matches.ids.to_pylist()
    found: list[set[int]] = [set() for _ in predicates]
    for number in range(len(events)):
        for id in ids[offsets[number] : offsets[number + 1]]:
            found[id].add(number)
    return found


def by_sql(execute: Callable[[str], object], texts: list[str]) -> list[set[int]]:
    return [{row[0] for row in execute(f"SELECT n FROM events WHERE {text}").fetchall()} for text in texts]  # type: ignore[attr-defined]


def sqlite(names: list[str], events: list[Event]) -> Callable[[str], object]:
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA case_sensitive_like = ON")
    kinds = {"int": "INTEGER", "float": "REAL", "string": "TEXT"}
    columns = ", ".join(f"{quoted(name)} {kinds[SCHEMA[name].type]}" for name in names)
    connection.execute(f"CREATE TABLE events (n INTEGER, {columns})")
    marks = ", ".join("?" * (len(names) + 1))
    rows = [(n, *(event[name] for name in names)) for n, event in enumerate(events)]
    connection.executemany(f"INSERT INTO events VALUES ({marks})", rows)
    return connection.execute


def duck(names: list[str], events: list[Event]) -> Callable[[str], object]:
    connection = duckdb.connect(":memory:", config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    columns = ", ".join(f"{quoted(name)} {SQL[SCHEMA[name].type]}" for name in names)
    connection.execute(f"CREATE TABLE events (n BIGINT, {columns})")
    marks = ", ".join("?" * (len(names) + 1))
    connection.executemany(
        f"INSERT INTO events VALUES ({marks})",
        [[n, *(event[name] for name in names)] for n, event in enumerate(events)],
    )
    return connection.execute


def assert_agree(texts: list[str], events: list[Event], execute: Callable[[str], object]) -> None:
    predicates = [language.parse(text, SCHEMA) for text in texts]
    again = [language.parse(str(predicate), SCHEMA) for predicate in predicates]
    assert again == predicates
    wanted = by_sql(execute, texts)
    for way in (by_tree, by_boxes, by_index):
        for text, got, want in zip(texts, way(predicates, events), wanted, strict=True):
            assert got == want, f"{way.__name__}: {text}\n{[events[n] for n in sorted(got ^ want)][:3]}"
    assert by_sql(execute, [str(predicate) for predicate in predicates]) == wanted


@pytest.mark.parametrize("seed", only([0, 1], range(10)))
def test_sqlite_selects_the_same_events(seed: int) -> None:
    rng = Random(seed)
    names = ["i", "j", "x", "y", "s", "odd name"]
    if seed % 2:  # few attributes: many leaves on each, so that sets merge
        names = rng.sample(names, 2)
    events = [random_event(rng, names) for _ in range(150)]
    texts = [random_predicate(rng, names, depth=rng.randint(0, 4)) for _ in range(500)]
    assert_agree(texts, events, sqlite(names, events))


@pytest.mark.parametrize("seed", range(3))
def test_duckdb_selects_the_same_events(seed: int) -> None:
    rng = Random(seed)
    names = ["b", "ts", "s"]
    events = [random_event(rng, names) for _ in range(80)]
    texts = [random_predicate(rng, names, depth=rng.randint(0, 3)) for _ in range(250)]
    assert_agree(texts, events, duck(names, events))


def test_sqlite_agrees_above_2_to_the_53() -> None:
    """Integer literals against float values, and integers against integers, without a detour through doubles."""
    ints = [BIG - 1, BIG, BIG + 1, BIG + 2, BIG + 3, 2**63 - 1, -(2**63) + 1]
    floats = [float(BIG - 1), float(BIG), float(BIG + 2), float(BIG + 4), 9.3e18, -9.3e18, 2.0**63, -(2.0**63)]
    events: list[Event] = [{"i": i, "x": x} for i in ints for x in floats]
    literals = [str(value) for value in [*ints, -(2**63)]]
    texts = [f"{n} {op} {value}" for n in "ix" for op in ("=", "<>", "<", "<=", ">", ">=") for value in literals]
    texts += [f"{n} BETWEEN {one} AND {two}" for n in "ix" for one in literals for two in literals]
    assert_agree(texts, events, sqlite(["i", "x"], events))


REFUSED = [
    "i = 9223372036854775808",  # an integer beyond 64 bits: SQLite goes on with a float
    "x > 1e999",  # an infinity
    "i = NULL",  # never true; IS NULL is meant
    "i IN (1, NULL)",
    "i IN ()",
    "i = '1'",  # literals of another type are not converted
    "s = 1",
    "i LIKE '1%'",
    "i",  # only a bool attribute is a condition by itself
    "i == 1",
    "i IS 1",
    "i IS TRUE",
    "s = 'a' || 'b'",
    's = "no such name"',  # SQLite falls back to a string
    "I = 1",  # names are case-sensitive
    "i = 0x10",
    "s LIKE 'a!' ESCAPE '!'",  # nothing to escape
    "i = 1 -- comment",
    "s GLOB 'a*'",
    "s = 'a' COLLATE NOCASE",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_sqlite_takes_and_hitbox_refuses(text: str) -> None:
    event: Event = {"i": 1, "j": 2, "x": 0.5, "s": "a", "odd name": "b"}
    sqlite(list(event), [event])(f"SELECT n FROM events WHERE {text}\n")
    with pytest.raises(HitboxError):
        language.parse(text, SCHEMA)


@pytest.mark.parametrize(
    ("text", "value", "exact"),
    [(f"i < {BIG + 1}.0", BIG, True), (f"i = {BIG + 1}.0", BIG + 1, True), (f"i = {BIG + 1}.0", BIG, False)],
)
def test_decimals_against_integers_are_more_exact_than_in_sqlite(text: str, value: int, exact: bool) -> None:
    """SQLite rounds a decimal literal to a double before it compares."""
    events: list[Event] = [{"i": value}]
    predicates = [language.parse(text, SCHEMA)]
    assert by_tree(predicates, events) == by_boxes(predicates, events) == [{0} if exact else set()]
    assert by_sql(sqlite(["i"], events), [text]) == [set() if exact else {0}]
