"""Explanations in plain English: golden cases over the whole language, and the nearest point of a polygon."""

from __future__ import annotations

import json
import random
import warnings
from datetime import UTC, datetime
from typing import Any

import pytest
import shapely
from shapely.ops import nearest_points

import hitbox
from hitbox import language
from hitbox.encoding.documents import ABSENT, Document, document
from hitbox.encoding.schema import Schema
from hitbox.language.boxes import normal
from hitbox.language.conditions.places import Area, distance
from hitbox.language.explanations.distances import nearest_place
from hitbox.language.explanations.misses import Misses
from hitbox.language.explanations.trials import Trials
from hitbox.language.explanations.view import Place
from hitbox.language.steps import OutOfSteps, Steps
from support import golden_files
from support.random_documents import SCHEMA as RANDOM_SCHEMA
from support.random_documents import Writer, nested, random_image

SCHEMA = Schema(
    {
        "name": "string",
        "a": "int",
        "b": "int",
        "x": "float",
        "lat": "float",
        "lon": "float",
        "ip": "string",
        "at": "timestamp",
        "ok": "bool",
        "order": {"city": "string"},
        "tags": "string[]",
        "scores": "int[]",
        "items": [{"sku": "string", "price": "float", "tags": "string[]"}],
        "none": "int[]",
        "gone": "string[]",
    }
)
EVENT = {
    "name": "Bob Smith",
    "a": 3,
    "b": 5,
    "x": 2.5,
    "lat": 48.8,
    "lon": 2.3,
    "ip": "10.1.2.3",
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "ok": True,
    "order": {"city": None},
    "tags": ["red", "green", None],
    "scores": [1, 5, 3],
    "items": [{"sku": "A", "price": 12.0, "tags": ["p"]}, {"sku": "B", "price": 8.0, "tags": ["q", "r"]}],
    "none": [],
}
OLD = {"a": 4, "name": "Rob"}
NOW = datetime(2026, 2, 1, tzinfo=UTC)


def test_the_whole_language() -> None:
    def answer(text: str) -> str:
        predicate = language.parse(text, SCHEMA)
        found = language.explain(predicate, {"new": EVENT, "old": OLD}, NOW)
        json.dumps(found.to_dict(), allow_nan=False)
        assert found.truth is language.evaluate(predicate, {"new": EVENT, "old": OLD}, NOW)
        return str(found)

    golden_files.check("explanations.txt", answer)


def test_without_a_schema() -> None:
    def answer(text: str) -> str:
        index = hitbox.Index()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hitbox.HitboxWarning)
            index.subscribe("it", text)
        event = {"price": "free", "qty": 3, "paid": True, "tags": ["a", 7], "order": {"city": "Rome"}}
        return str(index.explain(event, "it"))

    golden_files.check("open_explanations.txt", answer)


@pytest.mark.parametrize("seed", range(3))
def test_random_explanations(seed: int) -> None:
    """The truth is right, the whole becomes text and JSON, and most misses say what would have to be different."""
    rng = random.Random(seed)
    schema = Schema(RANDOM_SCHEMA)
    misses = known = 0
    for _ in range(300):
        predicate = language.parse(Writer(rng).predicate(rng.randint(0, 3)), schema)
        new, old = nested(rng, random_image(rng)), nested(rng, random_image(rng))
        event = {"new": new, "old": old} if rng.random() < 0.5 else new
        found = language.explain(predicate, event, NOW)
        assert found.truth is language.evaluate(predicate, event, NOW)
        assert not found.changes or not (found.matched or found.never), f"{found}\n{event}"
        misses += not (found.matched or found.never)
        known += bool(found.changes)
        assert all(change.wanted for change in found.changes)
        assert found.matched or found.distance >= 1
        json.dumps(found.to_dict(), allow_nan=False)
        assert str(found).startswith("match" if found.matched else "no match")
    assert known > 0.6 * misses


@pytest.mark.parametrize("seed", range(3))
def test_changes_lead_to_a_match(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values with which a change was tried make the predicate true, says the evaluator of the language."""
    rng = random.Random(seed)
    schema = Schema(RANDOM_SCHEMA)
    tried: list[Any] = []
    succeed = Trials.succeed

    def recorded(trials: Trials, root: Any, scope: Any, several: Any) -> Any:
        found = succeed(trials, root, scope, several)
        tried.append((root, found if all(one for one, _ in several) else None))
        return found

    monkeypatch.setattr(Trials, "succeed", recorded)
    made = 0
    for _ in range(300):
        predicate = language.parse(Writer(rng).predicate(rng.randint(0, 3)), schema)
        event = nested(rng, random_image(rng))
        tried.clear()
        if language.explain(predicate, event, NOW).changes:
            root, trial = tried[-1]
            assert root is predicate.root
            if trial:
                made += 1
                values = document(schema, event)
                assert language.evaluate(predicate, with_new(values, trial), NOW) is True, f"{predicate}: {trial}"
    assert made > 20


def with_new(values: Document, trial: Any) -> Document:
    kept = {name: value for name, value in values.items() if trial.get((0, name)) is not ABSENT}
    return Document(kept | {name: value for (_, name), value in trial.items() if value is not ABSENT}, values.old)


CHANGES = {
    ("price >= 10 AND price <= budget", 5, 7): "price: 5 -> at least 10; budget: 7.0 -> at least price (10.0)",
    ("price >= 10 AND price <= budget", 12, 11): "price: 12.0 -> at most budget (11.0)",
    ("price >= 10 AND price <= budget", 12, 7): "budget: 7.0 -> at least price (12.0)",
    ("price > 10 XOR price > 5", 3, 7): "price: 3 -> more than 5",
    ("price > 10 XOR budget > 5", 11, 7): "price: 11 -> at most 10",
    ("price >= 10 AND price > budget", 5, 20): "price: 5 -> at least 10 and more than budget (20.0)",
    ("price < budget AND budget < price", 5, 7): "",
    ("ABS(price) > 10 AND price < 100", 5, 7): "ABS(price): 5.0 -> more than 10",
    ("LENGTH(name) > 20 AND name LIKE 'a%'", 5, 7): "LENGTH(name): 4 -> more than 20",
    ("name REGEXP '^b' AND price > 3", 5, 7): "name: 'abcd' -> matching '^b'",
    ("name REGEXP '^b' AND name LIKE 'a%'", 5, 7): "",
    ("EXISTS(items WHERE p >= 10 AND p <= q)", 5, 7): "",
    ("EXISTS(items WHERE p > 1 AND p <= q)", 5, 7): "p of element 1 of items: 1.0 -> more than 1",
    ("ALL(scores) > 2 AND LENGTH(scores) < 2", 5, 7): "",
}


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("not today")


@pytest.mark.parametrize("value", [Unshown(), [Unshown()], {"x": Unshown()}])
def test_a_value_that_cannot_be_shown(value: object) -> None:
    index = hitbox.Index()
    index.subscribe("s", "a > 3 OR ANY(a) = 'x' OR a.x = 5")
    found = str(index.explain({"a": value}, "s"))
    assert "this Unshown" in found


@pytest.mark.parametrize(("where", "price", "budget"), CHANGES)
def test_a_change_that_is_named_leads_to_a_match(where: str, price: float, budget: float) -> None:
    schema = Schema(
        {
            "price": "float",
            "budget": "float",
            "name": "string",
            "scores": "int[]",
            "items": [{"p": "float", "q": "float"}],
        }
    )
    event = {"price": price, "budget": budget, "name": "abcd", "scores": [1, 3], "items": [{"p": 1, "q": 5}]}
    found = language.explain(language.parse(where, schema), event)
    wanted = CHANGES[where, price, budget]
    assert "; ".join(map(str, found.changes)) == wanted
    assert str(found).splitlines()[-1] == f"nearest change: {wanted or 'none is known that leads to a match'}"


@pytest.mark.parametrize("where", ["a > 7", "a > b", "ANY(tags) = 'x'", "tags IS NOT NULL"])
def test_the_value_of_a_change_is_one_of_the_event(where: str) -> None:
    """None for null and for missing, and a text that tells them apart."""
    for schema in (SCHEMA, None):
        index = hitbox.Index(schema)
        index.subscribe(1, where)
        for event, missing in (({"a": None, "tags": None}, False), ({}, True)):
            (change,) = index.explain(event, 1).changes  # type: ignore[union-attr]
            assert change.value is None
            assert change.missing is missing
            assert str(change).partition(": ")[2].startswith("missing -> " if missing else "NULL -> ")


def test_infinities() -> None:
    schema = Schema({"f": "float", "g": "float"})
    inf = float("inf")
    for f, g in ((inf, inf), (-inf, -inf), (inf, -inf), (inf, 1.0), (1.0, -inf), (None, inf)):
        for where in ("f < g", "f = g + 1", "f BETWEEN 3 AND 4", "f < 3 AND g > 4", "f + g > 7", "ABS(f) < 2"):
            predicate = language.parse(where, schema)
            found = language.explain(predicate, {"f": f, "g": g})
            assert found.truth is language.evaluate(predicate, {"f": f, "g": g})
            json.dumps(found.to_dict(), allow_nan=False)


def test_the_work_is_linear_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    both = normal._both
    monkeypatch.setattr(normal, "_both", lambda *of: made.append(1) or both(*of))
    counts = []
    for size in (200, 400):
        made.clear()
        text = " AND ".join(f"(a <> {n} OR b = {n})" for n in range(size))
        found = language.explain(language.parse(text, SCHEMA), {"a": 3, "b": 5})
        assert str(found).endswith("nearest change: b: 5 -> 3")
        counts.append(len(made))
    assert counts[1] < 3 * counts[0]


def test_only_the_nearest_elements_are_put_into_words(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    of_test = Misses._of_test
    monkeypatch.setattr(Misses, "_of_test", lambda *of: told.append(1) or of_test(*of))
    text = " OR ".join(f"a = {n} AND b = {n}" for n in range(1, 31))
    schema = Schema({"l": [{"a": "int", "b": "int"}]})
    elements = [{"a": 0, "b": n} for n in range(100, 0, -1)]
    found = language.explain(language.parse(f"EXISTS(l WHERE {text})", schema), {"l": elements})
    assert str(found).endswith("nearest change: a of element 71 of l: 0 -> 30")
    assert len(told) < 1000


def test_what_is_too_expensive_is_not_explained() -> None:
    schema = Schema({"a": [{"x": "int"}], "b": [{"y": "int"}], "n": "int"})
    event = {"a": [{"x": n} for n in range(100)], "b": [{"y": n} for n in range(100)], "n": 1}
    hard = language.parse("EXISTS(a WHERE EXISTS(b WHERE y * x = -1))", schema)
    found = language.explain(hard, event, steps=5000)
    assert (found.truth, found.matched, found.out_of_steps, found.changes) == (None, False, 5000, ())
    assert str(found).splitlines() == [
        "no match (unknown): EXISTS(a WHERE EXISTS(b WHERE y * x = -1))",
        "? EXISTS(a WHERE EXISTS(b WHERE y * x = -1))        too expensive: more than 5,000 steps",
        "nearest change: too expensive: more than 5,000 steps",
    ]
    assert found.to_dict()["out_of_steps"] == 5000
    assert language.explain(hard, event).out_of_steps is None
    wide = language.parse(" AND ".join(f"n <> {n} AND n * {n} = -1" for n in range(1, 100)), schema)
    some = language.explain(wide, event, steps=1500)  # enough to say why, and not what would have to change
    assert some.truth is False
    assert some.root.children
    assert str(some).endswith("nearest change: too expensive: more than 1,500 steps")


PAIRS = " AND ".join(f"(a <> {n} OR b = {n})" for n in range(60))
"""Multiplied out, it has many terms, each with many intervals of keys."""
IN_SIXTY = {"a": (1, 3), "b": 99}


@pytest.mark.parametrize("steps", [1000, 10_000])
def test_the_terms_of_a_predicate_are_counted(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """An event with intervals needs the exact normal form, whoever asks."""
    schema, joined = language.Schema({"a": "int", "b": "int"}), []
    both = normal._both
    monkeypatch.setattr(normal, "_both", lambda one, other: joined.append(1) or both(one, other))
    found = language.explain(language.parse(PAIRS, schema), IN_SIXTY, steps=steps)
    assert (found.out_of_steps, found.truth) == (steps, None)
    with pytest.raises(OutOfSteps):
        language.evaluate(language.parse(PAIRS, schema), IN_SIXTY, None, Steps(steps))
    assert 0 < len(joined) <= steps


def test_the_steps_are_the_same_whoever_asked_before() -> None:
    tree, taken = language.parse(PAIRS, language.Schema({"a": "int", "b": "int"})), []
    for _ in range(3):
        steps = Steps()
        assert language.evaluate(tree, IN_SIXTY, None, steps) is False
        taken.append(steps.taken)
    assert taken[0] == taken[1] == taken[2] > 10_000
    with pytest.raises(OutOfSteps):
        language.evaluate(tree, IN_SIXTY, None, Steps(taken[0] - 1))
    found = language.explain(tree, IN_SIXTY, steps=4 * taken[0])
    assert (found.out_of_steps, found.truth, len(found.root.children)) == (None, False, 60)


def test_nodes_are_multiplied_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the truth of each, not once more for each node around it."""
    calls = []
    conjunction = normal._conjunction
    monkeypatch.setattr(normal, "_conjunction", lambda *given: calls.append(1) or conjunction(*given))
    text = "a > 0 AND b > 0"
    for n in range(20):
        text = f"b > {n} AND (a = {n} OR ({text}))"
    found = language.explain(language.parse(text, language.Schema({"a": "int", "b": "int"})), {"a": (1, 3), "b": 0})
    assert found.truth is False
    assert len(calls) == 2 * 21


@pytest.mark.parametrize("seed", range(3))
def test_the_nearest_point_of_a_polygon(seed: int) -> None:
    """Near the equator, degrees are a plane: shapely's nearest point, and the distance to it."""
    rng = random.Random(seed)
    for _ in range(30):
        x, y = rng.uniform(-2, 2), rng.uniform(-0.02, 0.02)
        corners = [(x + rng.uniform(-0.02, 0.02), y + rng.uniform(-0.02, 0.02)) for _ in range(rng.randint(3, 9))]
        shape = shapely.Polygon(corners).buffer(0)
        if shape.is_empty:
            continue
        lon, lat = x + rng.uniform(-0.05, 0.05), y + rng.uniform(-0.05, 0.05)
        found = nearest_place(Area(shape.wkt), Place(lat, lon))
        assert found is not None
        metres, near = found
        point, _ = nearest_points(shape.boundary, shapely.Point(lon, lat))
        wanted = distance(lat, lon, point.y, point.x)
        assert wanted is not None
        assert metres == pytest.approx(wanted, rel=1e-4, abs=0.05)
        assert metres == pytest.approx(distance(lat, lon, near.lat, near.lon), rel=1e-6, abs=0.01)


def test_the_nearest_point_beyond_the_antimeridian() -> None:
    area = Area("POLYGON ((170 -10, 190 -10, 190 10, 170 10, 170 -10))")
    metres, near = nearest_place(area, Place(0.0, -165.0)) or (0, Place(0, 0))
    assert (round(near.lat, 3), round(near.lon, 3)) == (0, -170)
    assert metres == pytest.approx(distance(0, -165, 0, -170))
    assert nearest_place(Area("POLYGON EMPTY"), Place(0, 0)) is None


def test_a_long_list_takes_little_time() -> None:
    schema = Schema({"n": "int[]", "items": [{"n": "int[]"}]})
    found = language.explain(language.parse("ANY(n) > 1000000", schema), {"n": list(range(100_000))})
    assert len(str(found)) < 400
    found = language.explain(language.parse("LENGTH(n) = 1000000000000000", schema), {"n": [1]})
    assert len(str(found)) < 400
    inner = [{"n": list(range(100))} for _ in range(100)]
    found = language.explain(language.parse("EXISTS(items WHERE ALL(n) > 1000)", schema), {"items": inner})
    assert "and 92 more" in str(found)


def test_texts_that_are_compared_letter_by_letter_are_counted() -> None:
    """It takes milliseconds for two texts of 200 letters."""
    rng = random.Random(1)
    words = ["".join(rng.choices("ab", k=190)) for _ in range(5)]
    text = f"EXISTS(items WHERE s IN ({', '.join(repr(word) for word in words)}))"
    event = {"items": [{"s": "".join(rng.choices("ab", k=190))} for _ in range(2)]}
    for steps, out in ((5_000_000, None), (20_000, 20_000)):
        index = hitbox.Index({"items": [{"s": "string"}]}, limits=hitbox.Limits(match_steps=steps))
        index.subscribe(1, text)
        assert index.match(event) == []
        found = index.explain(event, 1)
        assert isinstance(found, language.Explanation)
        assert found.out_of_steps == out
        assert bool(found.changes) == (out is None)
