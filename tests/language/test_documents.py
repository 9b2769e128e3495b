"""Documents: the whole language on random documents against the second evaluator, DuckDB and shapely."""

from __future__ import annotations

import math
import pickle
import random
import time
import warnings
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import hitbox
from hitbox import language
from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING
from hitbox.encoding.codecs import Codec
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import OpenSchema, Schema
from hitbox.errors import LimitExceeded
from hitbox.language.boxes import normal
from hitbox.language.conditions.places import EARTH_RADIUS, Area, around, distance
from hitbox.language.truth import Facts
from support import golden_files
from support.document_tables import ARROW, flat, strictly_nested
from support.random_documents import SCHEMA, TYPES, Writer, meaning, nested, random_image
from support.second_evaluator import Rejected, Unsure, World, parse, truth
from support.tiers import only


def right(text: str, new: Any, old: Any) -> bool | None:
    """Whether a predicate holds, as the second evaluator sees it; None where it is not sure."""
    try:
        return truth(parse(text, TYPES), TYPES, World(meaning(new) or {}, meaning(old), time.time_ns() // 1000)) is True
    except Unsure:
        return None


@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
@pytest.mark.parametrize("seed", only([0], range(4)))
def test_random_documents(matcher: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    index = hitbox.Index(SCHEMA, matcher)
    texts: dict[int, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        for id in range(120):
            text = Writer(rng).predicate(rng.randint(0, 2))
            texts[id] = text
            index.subscribe(id, text, priority=rng.randint(0, 9))
    images = [(random_image(rng), random_image(rng) if rng.random() < 0.5 else None) for _ in range(25)]
    events = [
        nested(rng, new) if old is None else {"new": nested(rng, new), "old": nested(rng, old)} for new, old in images
    ]
    index.save(tmp_path)
    again = hitbox.Index.open(tmp_path)
    batch, later = index.match_batch(events), again.match_batch(events)
    for number, ((new, old), event) in enumerate(zip(images, events, strict=True)):
        ids = index.match(event)
        assert sorted(batch[number]) == sorted(later[number]) == sorted(ids)
        for id, text in texts.items():
            wanted = right(text, new, old)
            assert wanted is None or (id in ids) == wanted, f"{text!r} of {event!r}: {wanted}"
        some = rng.choice(list(texts))
        assert index.explain(event, some).matched == (some in ids), texts[some]
    for id in rng.sample(list(texts), 30):
        tree = index.parse(texts[id])
        assert index.parse(str(tree)) == tree, texts[id]


@pytest.mark.parametrize("seed", only([0], range(3)))
def test_random_tables(seed: int) -> None:
    """A column is there in every row: nothing in it is missing, unless a struct around it is null."""
    rng = random.Random(100 + seed)
    index = hitbox.Index(SCHEMA)
    texts = {id: Writer(rng, old=False).predicate(rng.randint(0, 2)) for id in range(120)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        index.load(pa.table({"id": list(texts), "where": list(texts.values())}))
    rows = []
    for _ in range(25):
        row = strictly_nested(random_image(rng))
        row["order"] = row.get("order") or None
        rows.append(row)
    table = pa.Table.from_pylist(rows, ARROW)
    matches = index.match_batch(table)
    for number, row in enumerate(table.to_pylist()):
        new = flat(row)
        for id, text in texts.items():
            wanted = right(text, new, None)
            assert wanted is None or (id in matches[number]) == wanted, f"{text!r} of {row!r}: {wanted}"


def test_the_two_parsers_agree_on_random_texts() -> None:
    rng = random.Random(7)
    schema = Schema(SCHEMA)
    for _ in range(1500):
        text = Writer(rng).predicate(1)
        if rng.random() < 0.7:
            pieces = text.replace("(", " ( ").replace(")", " ) ").split(" ")
            at = rng.randrange(len(pieces))
            pieces[at : at + rng.randint(0, 1)] = [
                rng.choice([*pieces, "a", "'x'", "1", "(", ")", ",", ".", "-", "ANY"])
            ]
            text = " ".join(pieces)
        if "REGEXP" in text or "''" in text:
            continue
        refused = []
        for read, of in ((parse, TYPES), (language.parse, schema)):
            try:
                read(text, of)
                refused.append("")
            except (Rejected, hitbox.HitboxError) as error:
                refused.append(f"refused: {error}")
        assert bool(refused[0]) == bool(refused[1]), f"{text}\n{refused}"


def test_an_object_that_lies_in_many_others() -> None:
    """No JSON text has such an event: it has as many names as there are ways to the innermost object."""
    event: dict[str, Any] = {"x": 1}
    for _ in range(100):
        event = {"a": event, "b": event}
    index = hitbox.Index()
    names = [".".join(random.Random(seed).choices("ab", k=100)) + ".x" for seed in range(3)]
    for name in names:
        index.subscribe(name, f"{name} = 1")
    assert set(index.match(event)) == set(names)


def test_golden_documents() -> None:
    schema = Schema(SCHEMA)

    def answer(text: str) -> str:
        predicate = language.parse(text, schema)
        assert language.parse(str(predicate), schema) == predicate
        keys = Keys(schema)
        keys.admit(language.strings(predicate))
        found = language.compile(predicate, keys)
        parse(text, TYPES)
        return "\n".join([str(predicate), *(boxes(keys, found) or ["  nothing"])])

    golden_files.check("documents.txt", answer)


def boxes(keys: Keys, found: language.Compiled) -> list[str]:
    lines = []
    for box, exact in zip(found.boxes, found.exact, strict=True):
        parts = []
        for number, (low, high) in box.items():

            def value(key: int, codec: Codec = keys.codecs[number]) -> object:
                found = codec.value(key)
                return round(found, 6) if isinstance(found, float) else found

            ends = ["lowest" if low == LOWEST else value(low), "highest" if high == HIGHEST else value(high)]
            shown = "missing" if high == MISSING else "present" if ends == ["lowest", "highest"] else f"{ends}"
            parts.append(f"{keys.schema.names[number]} {shown}")
        lines.append(f"  {' AND '.join(parts) or 'everything'}{'' if exact else '   (check)'}")
    return lines


def test_golden_document_errors() -> None:
    schema = Schema(SCHEMA)

    def answer(text: str) -> str:
        if "REGEXP" not in text:
            with pytest.raises(Rejected):
                parse(text, TYPES)
        with pytest.raises(hitbox.HitboxError) as caught:
            language.parse(text, schema)
        assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
        return f"{type(caught.value).__name__}: {caught.value}"

    golden_files.check("document_errors.txt", answer)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a + " * 100_000 + "a > 1", "operators"),
        ("x * " * 101 + "x > 1", "operators"),
        ("a" + ".a" * 50_000 + " = 1", "path"),
        ("ABS(" * 101 + "a" + ")" * 101 + " > 1", "deep"),
        ("(" * 101 + "a" + ")" * 101 + " > 1", "deep"),
        ("(" * 101 + "a > 1" + ") = ok" * 101, "deep"),
        ("s REGEXP '" + "a" * 10_001 + "'", "pattern has"),
    ],
)
def test_hostile_texts(text: str, says: str) -> None:
    with pytest.raises(LimitExceeded, match=says):
        language.parse(text, Schema(SCHEMA))


def test_texts_at_the_limits() -> None:
    schema = Schema(SCHEMA)
    event = {"a": 1, "x": 1.0, "ok": True, "lat": 0.5, "lon": 0.5}
    texts = {
        "a + " * 100 + "a = 101": True,
        "- " * 20_000 + "a = 1": True,
        "ABS(" * 99 + "a" + ")" * 99 + " = 1": True,
        "(" * 100 + "a" + ")" * 100 + " = 1": True,
        "(" * 99 + "a = 1" + ") = ok" * 99: True,
        " XOR ".join(["ok"] * 3001): True,
        " AND ".join(f"(a = {n} OR x = 1)" for n in range(500)): True,
    }
    for text, wanted in texts.items():
        predicate = language.parse(text, schema)
        assert language.parse(str(predicate), schema) == predicate
        assert pickle.loads(pickle.dumps(predicate)) == predicate
        assert language.evaluate(predicate, event) is wanted
        assert language.explain(predicate, event).truth is wanted


def test_places_are_those_of_shapely() -> None:
    """On a coarse grid, so that points often lie on borders and corners; shapely's `covers` has the border inside."""
    shapely = pytest.importorskip("shapely")
    rng = random.Random(3)
    compared = 0
    for _ in range(150):
        shell = [(rng.randint(-8, 8) * 2.5, rng.randint(-8, 8) * 2.5) for _ in range(rng.randint(3, 7))]
        polygon = shapely.Polygon(shell)
        if rng.random() < 0.5:
            polygon = polygon.buffer(0).difference(shapely.box(-2.5, -2.5, 2.5, 5).buffer(rng.choice([0, 1.3])))
        if not polygon.is_valid or polygon.geom_type not in ("Polygon", "MultiPolygon"):
            continue
        area = Area(polygon.wkt)
        for _ in range(80):
            x, y = (rng.randint(-40, 40) / rng.choice([2, 2, 3]) for _ in range(2))
            assert area.holds(y, x) == polygon.covers(shapely.Point(x, y)), (polygon.wkt, x, y)
            compared += 1
            boxes = area.boxes()
            if area.holds(y, x):
                assert any(s <= y <= n and w <= x <= e for (s, n), (w, e) in boxes)
    assert compared > 3000


def test_boxes_of_a_circle_hold_it() -> None:
    rng = random.Random(4)
    for _ in range(4000):
        lat, lon = rng.choice([-90, -89.9, 0, 45, 89.99, 90]) + 0.0, rng.choice([-180, -179.9, 0, 179.99, 180]) + 0.0
        metres = 10 ** rng.uniform(0, 7.4)
        other = rng.uniform(-90, 90), rng.uniform(-180, 180)
        if rng.random() < 0.8:
            angle = math.degrees(metres / EARTH_RADIUS)
            other = lat + rng.uniform(-angle, angle), lon + rng.uniform(-angle, angle) * rng.choice([1, 10])
            other = min(max(other[0], -90.0), 90.0), (other[1] + 180) % 360 - 180
        far = distance(lat, lon, *other)
        if far is not None and far <= metres:
            inside = [s <= other[0] <= n and w <= other[1] <= e for (s, n), (w, e) in around(lat, lon, metres)]
            assert any(inside), (lat, lon, metres, other)


def test_duckdb_agrees_on_paths_lists_and_text() -> None:
    """JSON paths as structs, lists, ILIKE, LOWER and regular expressions."""
    rng = random.Random(5)
    words = ["", "a", "B", "ab", "AB", "abc", "äB", "ÄB", "xa1", "b%"]
    rows = []
    for number in range(300):
        tags = None if rng.random() < 0.1 else [rng.choice([*words, None]) for _ in range(rng.randint(0, 3))]
        city = rng.choice([*words, None])
        items = [{"sku": rng.choice(words), "price": rng.randint(0, 9)} for _ in range(rng.randint(0, 3))]
        rows.append({"n": number, "o": {"city": city}, "tags": tags, "items": items, "a": rng.randint(-5, 5), "b": 2})
    index = hitbox.Index(
        {
            "o": {"city": "string"},
            "tags": "string[]",
            "items": [{"sku": "string", "price": "int"}],
            "a": "int",
            "b": "int",
        }
    )
    texts: dict[str, str] = {}
    for word in words:
        texts[f"ANY(tags) = '{word}'"] = f"list_contains(tags, '{word}')"
        texts[f"o.city = '{word}'"] = f"o.city = '{word}'"
        texts[f"o.city ILIKE '{word}%'"] = f"o.city ILIKE '{word}%'"
        texts[f"o.city ILIKE '%{word}'"] = f"o.city ILIKE '%{word}'"
        texts[f"LOWER(o.city) = LOWER('{word}')"] = f"lower(o.city) = lower('{word}')"
        texts[f"ANY(items.sku) = '{word}'"] = f"list_contains([x.sku for x in items], '{word}')"
        texts[f"EXISTS(items WHERE sku = '{word}' AND price < 5)"] = (
            f"len([x for x in items if x.sku = '{word}' and x.price < 5]) > 0"
        )
        texts[f"ALL(items.sku) <> '{word}'"] = f"len([x for x in items if x.sku = '{word}']) = 0"
    for pattern in ("^a", "b$", "a.?b", "[0-9]", "(?i)^ab", "", "^$", "\\w+"):
        texts[f"o.city REGEXP '{pattern}'"] = f"regexp_matches(o.city, '{pattern}')"
    for text in ("a + b > 3", "a * b = -6", "a % 3 = -1", "ABS(a) <= b", "LENGTH(tags) >= 2", "a - 2 * b < -b"):
        texts[text] = text.replace("LENGTH", "len")
    for number, text in enumerate(texts):
        index.subscribe(number, text)
    table = pa.Table.from_pylist(rows)
    matches = index.match_batch(table.drop_columns(["n"]))
    connection = duckdb.connect()
    connection.register("events", table)
    for number, (text, sql) in enumerate(texts.items()):
        wanted = {row for (row,) in connection.execute(f"SELECT n FROM events WHERE {sql}").fetchall()}
        assert {row for row in range(len(rows)) if number in matches[row]} == wanted, text


def test_lists_that_meet_each_other() -> None:
    """Each list of the event inside EXISTS multiplies the time per event: with a third one, a short text and a small
    event would take minutes."""
    for of in (Schema({"a": [{"x": "int", "t": "int[]"}], "b": [{"y": "int"}], "c": "int[]"}), OpenSchema()):
        language.parse("EXISTS(a WHERE EXISTS(NEW.b WHERE y = 1) AND ANY(NEW.c) = x AND ANY(t) = 3)", of)
        for text in (
            "EXISTS(a WHERE EXISTS(NEW.b WHERE EXISTS(NEW.a WHERE x < 1)))",
            "EXISTS(a WHERE EXISTS(NEW.b WHERE ANY(NEW.c) < y))",
            "EXISTS(a WHERE EXISTS(NEW.b WHERE ALL(NEW.c) < y))",
        ):
            with pytest.raises(LimitExceeded, match=r"the third list .* outside of the EXISTS"):
                language.parse(text, of)


def test_polygons_with_heights() -> None:
    """Shapely writes POLYGON Z where its points have heights."""
    shapely = pytest.importorskip("shapely")
    corners = [(0, 0, 5), (2, 0, 5), (2, 2, 6.5), (0, 2, 1e-7), (0, 0, 5)]
    hole = [(0.5, 0.5, 1), (1, 0.5, 1), (1, 1, 1), (0.5, 0.5, 1)]
    one = shapely.Polygon(corners, [hole])
    for made in (one, shapely.MultiPolygon([one])):
        text = made.wkt
        assert " Z " in text
        assert Area(text).polygons == Area(shapely.force_2d(made).wkt).polygons
    assert Area("POLYGON ZM ((0 0 1 1, 1 0 1 1, 1 1 1 1, 0 0 1 1))").holds(0.2, 0.5)
    assert Area("multipolygon z empty").holds(0, 0) is False
    for wrong in ("POLYGON Z ((0 0, 1 0, 1 1, 0 0))", "POLYGON ((0 0 1, 1 0 1, 1 1 1, 0 0 1))", "POLYGON Z"):
        with pytest.raises(ValueError, match=r"point|missing"):
            Area(wrong)


def test_terms_share_the_checks_of_their_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty (x OR y) are many terms; a condition is evaluated once for an event, or a changed one, not once a term."""
    checked: list[tuple[Facts, int]] = []
    may_hold = Facts._may_hold

    def counted(facts: Facts, node: Any) -> bool:
        checked.append((facts, id(node)))
        return may_hold(facts, node)

    monkeypatch.setattr(Facts, "_may_hold", counted)
    index = hitbox.Index({f"x{n}": "int" for n in range(40)})
    index.subscribe(1, " AND ".join(f"(x{n % 40} = {n} OR x{(n + 7) % 40} < {n})" for n in range(40)))
    assert not index.explain({f"x{n}": n for n in range(40)} | {"x3": -1, "x36": 99}, 1).matched
    assert checked
    assert len(checked) == len({(id(facts), node) for facts, node in checked})


def test_products_of_terms_that_do_not_fit_are_not_tried_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an event with intervals ORs are multiplied out to 10,000 terms; what lies beyond is covered."""
    tried: list[int] = []
    both = normal._both

    def counted(one: Any, other: Any) -> Any:
        tried.append(1)
        return both(one, other)

    monkeypatch.setattr(normal, "_both", counted)
    index = hitbox.Index({f"x{n}": "int" for n in range(40)})
    index.subscribe(1, " AND ".join(f"(x{n % 40} = {n} OR x{(n + 7) % 40} < {n})" for n in range(60)))
    index.match({f"x{n}": n for n in range(40)} | {"x3": (1, 5)})
    assert 10_000 < len(tried) < 150_000


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("ANY(flags) = (ANY(tags) = 'x')", True),
        ("(ANY(tags) = 'x') = ANY(flags)", True),
        ("ANY(flags) = (ANY(tags) LIKE 'y%')", False),
        ("ALL(flags) <> (ALL(tags) IN NETWORK '::/0')", None),
        ("ANY(flags) = EXISTS(items WHERE n = 2)", True),
        ("ANY(flags) = EXISTS(items WHERE ALL(inner.m) = n AND ANY(inner.b) = (ANY(inner.m) = n))", True),
        ("EXISTS(items WHERE ANY(inner.b) = EXISTS(inner WHERE m = 3 AND b) AND n = 2)", False),
        ("ANY(flags) = (ANY(flags) = (ANY(tags) = 'z'))", False),
    ],
)
def test_a_list_is_compared_with_a_condition_on_another(text: str, holds: bool | None, declared: bool) -> None:
    """The elements of the second list are not those of the first."""
    inner = [{"m": "int", "b": "bool"}]
    schema = {"flags": "bool[]", "tags": "string[]", "items": [{"n": "int", "inner": inner}]}
    index = hitbox.Index(schema if declared else None)
    index.subscribe(1, text)
    event = {"flags": [True], "tags": ["x"], "items": [{"n": 1}, {"n": 2, "inner": [{"m": 2, "b": True}]}]}
    assert index.match(event) == ([1] if holds else [])
    explanation = index.explain(event, 1)
    assert explanation.truth is holds
    assert holds or "nearest change" in str(explanation)
