"""The nearest misses of an event, also where conditions are decided outside of boxes."""

from __future__ import annotations

import random
import threading
from datetime import datetime, timedelta
from typing import Any

import pytest

import hitbox
from hitbox import Index, Limits, language


def test_the_nearest_come_first() -> None:
    index = hitbox.Index(
        {"name": "string", "price": "float", "qty": "int", "tags": "string[]", "lat": "float", "lon": "float"}
    )
    for n in range(40):  # two conditions fail, one of which no box says
        index.subscribe(f"text {n}", f"name LIKE '%fragment{n}%' AND price > 100", priority=9)
        index.subscribe(f"list {n}", f"ANY(tags) = 'tag{n}' AND price > 100", priority=9)
    index.subscribe("near", "price > 12 AND qty = 3")
    index.subscribe("circle", "DISTANCE(lat, lon, 10, 20) < 1000")
    index.subscribe("program", "(qty > 9 OR name LIKE 'a%z') AND price < 20")
    index.subscribe("match", "price < 20")
    event = {"name": "abc", "price": 10.0, "qty": 3, "tags": ["x"], "lat": 10.0, "lon": 20.5}
    found = index.explain(event, misses=3)
    assert isinstance(found, hitbox.index.explain.Explained)
    assert found.matches == ["match"]
    assert set(found.misses) == {"near", "circle", "program"}
    assert "too far" in str(found)
    assert [len(one.changes) for one in found.misses.values()] == [1, 1, 1]  # type: ignore[union-attr]
    distances = [one.distance for one in found.misses.values()]
    assert distances == sorted(distances)


def test_only_those_that_are_asked_for_are_ranked() -> None:
    index = hitbox.Index({"price": "float", "qty": "int"})
    index.load([{"id": f"b/{n}", "where": f"price > {n + 10}"} for n in range(40_000)])
    for n in range(6):
        index.subscribe(f"a/{n}", f"price > {100_000 + n} AND qty = {n}")
    found = index.explain({"price": 5.0, "qty": 2}, misses=3, among=lambda id: str(id).startswith("a/"))
    assert isinstance(found, hitbox.index.explain.Explained)
    assert next(iter(found.misses)) == "a/2"
    assert len(found.misses) == 3
    assert all(str(id).startswith("a/") for id in found.misses)


def test_the_distance_counts_and_not_the_priority() -> None:
    """Many urgent subscriptions are far off; the nearest are found, however many others there are, and come first."""
    rng = random.Random(3)
    attributes: dict[str, Any] = {
        "rent": "float",
        "rooms": "int",
        "grid": {"type": "float", "domain": [0, 2000], "precision": "0.5"},
        "at": "timestamp",
        "city": "string",
    }
    event = {"rent": 1000.0, "rooms": 50, "grid": 1000.0, "at": datetime(2026, 6, 1), "city": "Lyon"}
    for name, text in {
        "rent": "rent <= {}",
        "rooms": "rooms >= {}",
        "grid": "grid < {}",
        "at": "at > TIMESTAMP '{}'",
    }.items():
        index = hitbox.Index(attributes)
        for n in range(400):
            amount = {"rent": n + 1, "rooms": 500 - n, "grid": n + 1, "at": datetime(2030, 1, 1) + n * timedelta(1)}[
                name
            ]
            index.subscribe(f"far {n}", text.format(amount), priority=rng.randrange(5, 10))
            index.subscribe(f"other city {n}", f"city = 'x{n}'", priority=9)
        near = {"rent": 960, "rooms": 52, "grid": 960, "at": datetime(2026, 6, 2)}[name]
        nearest = {"rent": 990, "rooms": 51, "grid": 990, "at": datetime(2026, 6, 1, 1)}[name]
        index.subscribe("near", text.format(near), priority=0)
        index.subscribe("nearest", text.format(nearest), priority=0)
        found: Any = index.explain(event, misses=2)
        assert list(found.misses) == ["nearest", "near"], name


def test_all_distances_are_those_of_the_explanations() -> None:
    rng = random.Random(5)
    index = hitbox.Index({"a": "int", "x": "float", "y": "float", "s": "string"})
    for n in range(300):
        parts = [f"a > {rng.randrange(100)}", f"x BETWEEN {rng.random() * 9:.2f} AND 10", f"s = 'x{n % 7}'"]
        parts += [f"y < {rng.random():.2f} OR y > {rng.random() * 4:.2f}", "y IS NULL", f"x <> {rng.random() * 9:.2f}"]
        index.subscribe(n, " AND ".join(rng.sample(parts, 2)), priority=rng.randrange(10))
    for _ in range(20):
        event = {"a": rng.randrange(100), "x": rng.random() * 10, "y": rng.random(), "s": f"x{rng.randrange(9)}"}
        found: Any = index.explain(event, misses=400)
        distances = [why.distance for why in found.misses.values()]
        assert len(found.misses) + len(found.matches) == 300
        assert distances == sorted(distances)
        first: Any = index.explain(event, misses=5)
        assert [why.distance for why in first.misses.values()] == distances[:5]


def test_infinities_have_a_distance() -> None:
    index = hitbox.Index({"x": "float"})
    index.subscribe("greater", "x > 1e308")
    index.subscribe("less", "x < 5")
    index.subscribe("near", "x > 100")
    for value, first in (
        (float("-inf"), {"greater", "near"}),
        (float("inf"), {"less"}),
        (99.0, {"near"}),
        (-0.0, None),
    ):
        found: Any = index.explain({"x": value}, misses=3)
        assert len(found.misses) + len(found.matches) == 3
        assert first is None or next(iter(found.misses)) in first


@pytest.mark.parametrize("id", ["s", None])
def test_nobody_waits_for_an_explanation(id: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index({"a": "int"})
    index.subscribe("s", "a > 3")
    explain, waited = language.explain, []

    def slow(*of: Any, **options: Any) -> Any:
        writer = threading.Thread(target=index.subscribe, args=("other", "a > 4"))
        writer.start()
        writer.join(60)
        waited.append(writer.is_alive())
        return explain(*of, **options)

    monkeypatch.setattr(language, "explain", slow)
    found = index.explain({"a": 1}, id) if id else index.explain({"a": 1}, misses=1).misses["s"]  # type: ignore[union-attr]
    assert str(found).endswith("nearest change: a: 1 -> more than 3")
    assert waited == [False]


def test_explanations_have_the_limit_of_the_index() -> None:
    index = Index(
        {"a": "int[]", "b": "int[]", "age": {"type": "int", "role": "information"}},
        limits=Limits(match_steps=2000),
    )
    index.subscribe("s", "ANY(a) < 0 AND ANY(b) < 0", about={"age": 30})
    event = {"a": list(range(1000)), "b": list(range(1000))}
    for found in (
        index.explain(event, "s"),
        index.explain(event, misses=1).misses["s"],
        index.explain(event, "s", "age > 3"),
    ):  # type: ignore[union-attr]
        assert "too expensive: more than 2,000 steps" in str(found)
        assert not found.matched  # type: ignore[union-attr]
