"""Explanations in plain English: golden cases over the whole language, and the nearest point of a polygon."""

from __future__ import annotations

import json
import random
import warnings
from datetime import UTC, datetime

import pytest
import shapely
from shapely.ops import nearest_points

import hitbox
from hitbox import language
from hitbox.encoding.schema import Schema
from hitbox.language.nearest_place import nearest_place
from hitbox.language.places import Area, distance
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
    """The truth is right, the whole becomes text and JSON, and a miss says what would have to be different."""
    rng = random.Random(seed)
    schema = Schema(RANDOM_SCHEMA)
    for _ in range(300):
        predicate = language.parse(Writer(rng).predicate(rng.randint(0, 3)), schema)
        new, old = nested(rng, random_image(rng)), nested(rng, random_image(rng))
        event = {"new": new, "old": old} if rng.random() < 0.5 else new
        found = language.explain(predicate, event, NOW)
        assert found.truth is language.evaluate(predicate, event, NOW)
        assert bool(found.changes) == (not found.matched and not found.never), f"{found}\n{event}"
        assert all(change.wanted for change in found.changes)
        assert found.matched or found.distance >= 1
        json.dumps(found.to_dict(), allow_nan=False)
        assert str(found).startswith("match" if found.matched else "no match")


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
        found = nearest_place(Area(shape.wkt), lat, lon)
        assert found is not None
        metres, near_lat, near_lon = found
        point, _ = nearest_points(shape.boundary, shapely.Point(lon, lat))
        wanted = distance(lat, lon, point.y, point.x)
        assert wanted is not None
        assert metres == pytest.approx(wanted, rel=1e-4, abs=0.05)
        assert metres == pytest.approx(distance(lat, lon, near_lat, near_lon), rel=1e-6, abs=0.01)


def test_the_nearest_point_beyond_the_antimeridian() -> None:
    area = Area("POLYGON ((170 -10, 190 -10, 190 10, 170 10, 170 -10))")
    metres, lat, lon = nearest_place(area, 0.0, -165.0) or (0, 0, 0)
    assert (round(lat, 3), round(lon, 3)) == (0, -170)
    assert metres == pytest.approx(distance(0, -165, 0, -170))
    assert nearest_place(Area("POLYGON EMPTY"), 0, 0) is None


def test_a_long_list_takes_little_time() -> None:
    schema = Schema({"n": "int[]", "items": [{"n": "int[]"}]})
    found = language.explain(language.parse("ANY(n) > 1000000", schema), {"n": list(range(100_000))})
    assert len(str(found)) < 400
    inner = [{"n": list(range(100))} for _ in range(100)]
    found = language.explain(language.parse("EXISTS(items WHERE ALL(n) > 1000)", schema), {"items": inner})
    assert "and 92 more" in str(found)
