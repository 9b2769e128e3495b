"""Whole predicates through an index beside other systems: DuckDB on JSON documents, shapely on places."""

from __future__ import annotations

import json
import random
import warnings
from typing import Any

import duckdb
import pytest
import shapely

import hitbox

WORDS = ["", "a", "B", "ab", "Ab", "abc", "xa1", "b%", "äB", "a_c"]
PATTERNS = ["%", "a%", "%B", "%b%", "_b%", "a_c", "%a%1", "ab", "", "%!%%"]
EXPRESSIONS = ["^a", "b$", "a.?b", "[0-9]", "(?i)^ab", "^$", "b|x", "[^a-z]"]
SCHEMA: dict[str, Any] = {
    "o": {"city": "string", "total": {"net": "int"}},
    "s": "string",
    "tags": "string[]",
    "items": [{"sku": "string", "price": "int"}],
}
CITY, NET, S = "(doc->>'$.o.city')", "CAST(doc->>'$.o.total.net' AS BIGINT)", "(doc->>'$.s')"
TAGS = "from_json(doc->'$.tags', '[\"VARCHAR\"]')"
ITEMS = """from_json(doc->'$.items', '[{"sku": "VARCHAR", "price": "BIGINT"}]')"""


def document(rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {
        "o": {"city": rng.choice([*WORDS, None]), "total": {"net": rng.randint(-3, 9)}},
        "s": rng.choice([*WORDS, None]),
        "tags": [rng.choice(WORDS) for _ in range(rng.randint(0, 3))],
        "items": [{"sku": rng.choice(WORDS), "price": rng.randint(0, 9)} for _ in range(rng.randint(0, 3))],
    }
    for name in list(made):
        if rng.random() < 0.1:
            del made[name]
    return made


def condition(rng: random.Random) -> tuple[str, str]:
    """A condition, and the same for DuckDB."""
    word, number, text = rng.choice(WORDS), rng.randint(-3, 9), rng.choice(["o.city", "s"])
    sql = CITY if text == "o.city" else S
    denial = rng.choice(["", "NOT "])
    kind = rng.randrange(8)
    if kind == 0:
        op = rng.choice(["=", "<>", "<", ">="])
        return f"{text} {op} '{word}'", f"{sql} {op} '{word}'"
    if kind == 1:
        op = rng.choice(["=", "<>", "<", ">="])
        return f"o.total.net {op} {number}", f"{NET} {op} {number}"
    if kind == 2:
        like, pattern = rng.choice(["LIKE", "ILIKE"]), rng.choice(PATTERNS)
        return tuple(f"{one} {denial}{like} '{pattern}' ESCAPE '!'" for one in (text, sql))  # type: ignore[return-value]
    if kind == 3:
        expression = rng.choice(EXPRESSIONS)
        return f"{text} {denial}REGEXP '{expression}'", f"{denial}regexp_matches({sql}, '{expression}')"
    if kind == 4:
        return f"{denial}ANY(tags) = '{word}'", f"{denial}list_contains({TAGS}, '{word}')"
    if kind == 5:
        return f"LENGTH(tags) > {number}", f"len({TAGS}) > {number}"
    if kind == 6:
        inner = f"sku = '{word}' AND price < {number}"
        same = f"len([x for x in {ITEMS} if x.sku = '{word}' and x.price < {number}]) > 0"
        return f"{denial}EXISTS(items WHERE {inner})", f"{denial}({same})"
    return f"LOWER({text}) = '{word.lower()}'", f"lower({sql}) = '{word.lower()}'"


def predicate(rng: random.Random, depth: int) -> tuple[str, str]:
    if not depth:
        return condition(rng)
    op = rng.choice(["AND", "OR"])
    parts = [predicate(rng, depth - 1) for _ in range(2)]
    denial = "NOT " if rng.random() < 0.3 else ""
    ours, theirs = (f"{denial}({f' {op} '.join(some)})" for some in zip(*parts, strict=True))
    return ours, theirs


@pytest.mark.parametrize("declared", [True, False])
def test_duckdb_on_json(declared: bool) -> None:
    rng = random.Random(int(declared))
    documents = [document(rng) for _ in range(60)]
    pairs = [predicate(rng, rng.randint(0, 2)) for _ in range(150)]
    index = hitbox.Index(SCHEMA) if declared else hitbox.Index()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        for number, (text, _) in enumerate(pairs):
            index.subscribe(number, text)
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute("CREATE TABLE events (n INTEGER, doc JSON)")
        connection.executemany(
            "INSERT INTO events VALUES (?, ?)", [[n, json.dumps(d)] for n, d in enumerate(documents)]
        )
        batch = index.match_batch(documents)
        single = [index.match(one) for one in documents]
        for number, (text, sql) in enumerate(pairs):
            wanted = {n for (n,) in connection.execute(f"SELECT n FROM events WHERE {sql}").fetchall()}
            assert {n for n, ids in enumerate(single) if number in ids} == wanted, text
            assert {n for n in range(len(documents)) if number in batch[n]} == wanted, text


def test_shapely_on_places() -> None:
    """Many polygons with holes and several parts in one index, changed in between; points often lie on borders."""
    rng = random.Random(2)
    index = hitbox.Index({"lat": "float", "lon": "float", "n": "int"})
    shapes: dict[int, Any] = {}

    def shape() -> Any:
        while True:
            corner = [(rng.randint(-9, 9) * 2.5, rng.randint(-9, 9) * 2.5) for _ in range(2)]
            made = [shapely.box(x, y, x + rng.randint(1, 4) * 2.5, y + rng.randint(1, 4) * 2.5) for x, y in corner]
            found = shapely.union_all(made) if rng.random() < 0.5 else made[0].difference(made[1].buffer(0.5))
            if found.geom_type in ("Polygon", "MultiPolygon") and not found.is_empty:
                return found

    for id in range(120):
        shapes[id] = shape()
        index.subscribe(id, f"INSIDE(lat, lon, '{shapes[id].wkt}')" + (" AND n < 5" if id % 2 else ""))
    for id in rng.sample(range(120), 30):
        if id % 3:
            shapes[id] = shape()
            index.subscribe(id, f"INSIDE(lat, lon, '{shapes[id].wkt}')" + (" AND n < 5" if id % 2 else ""))
        else:
            del shapes[id]
            index.unsubscribe(id)
    events = [
        {"lat": rng.randint(-60, 60) / 2, "lon": rng.randint(-60, 60) / 2, "n": rng.randint(0, 9)} for _ in range(80)
    ]
    batch = index.match_batch(events)
    hits = 0
    for number, event in enumerate(events):
        point = shapely.Point(event["lon"], event["lat"])
        wanted = [id for id, one in shapes.items() if one.covers(point) and (not id % 2 or event["n"] < 5)]
        assert sorted(index.match(event)) == sorted(batch[number]) == sorted(wanted)
        hits += len(wanted)
    assert hits > 50
