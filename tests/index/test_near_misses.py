"""The nearest misses of an event, also where conditions are decided outside of boxes."""

from __future__ import annotations

import hitbox


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
