"""Places: what native code decides is what the definition in language/conditions/places.py says, to the last bit."""

from __future__ import annotations

import copy
import math
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hitbox
from hitbox import Index
from hitbox.errors import SnapshotError
from hitbox.language import evaluate
from hitbox.language.conditions.places import EARTH_RADIUS, distance
from support.second_evaluator import great_circle
from support.tiers import only

SCHEMA = {"lat": "float", "lon": "float"}
OPS = ["<", "<=", ">", ">=", "=", "<>"]
CORNERS = [(90, 0), (-90, 180), (90, -180), (0, 180), (0, -180), (0, 0), (45, 179.999), (45, -179.999), (-89.99, 10)]
FAR = "POLYGON ((170 0, 190 0, 190 10, 170 10, 170 0), (175 2, 185 2, 185 8, 175 8, 175 2))"
TWO = "MULTIPOLYGON (((0 0, 4 0, 4 4, 0 4, 0 0), (1 1, 3 1, 3 3, 1 3, 1 1)), ((1.5 1.5, 2 1.5, 2 2.5, 1.5 1.5)))"
CAP = "POLYGON ((-180 80, 180 80, 180 90, -180 90, -180 80))"


def somewhere(rng: random.Random) -> tuple[float, float]:
    if rng.random() < 0.3:
        return rng.choice(CORNERS)
    return rng.uniform(-90, 90), rng.uniform(-180, 180)


def check(of: Index, texts: dict[int, str], events: list[dict[str, Any]]) -> None:
    found = [set(one) for one in of.match_batch(events)]
    for event, ids in zip(events, found, strict=True):
        assert set(of.match(event)) == ids
        assert ids == {id for id, text in texts.items() if evaluate(of.parse(text), event) is True}, event


def loaded(texts: dict[int, str], schema: Any = SCHEMA) -> Index:
    made = Index(schema)
    made.load(pa.table({"id": list(texts), "where": list(texts.values())}), on_error="raise")
    return made


@pytest.mark.filterwarnings("ignore::hitbox.HitboxWarning")
@pytest.mark.parametrize("seed", only([0], range(4)))
def test_random_circles(seed: int) -> None:
    """Also radii that are distances to an event, or the next double: only the definition can decide these."""
    rng = random.Random(seed)
    places = [somewhere(rng) for _ in range(30)]
    texts = {}
    for id in range(400):
        lat, lon = somewhere(rng)
        metres = rng.choice([rng.uniform(0, 2.1e7), 10 ** rng.uniform(-3, 7), 0.0, -1.0, math.pi * EARTH_RADIUS])
        if rng.random() < 0.5:
            far = distance(*rng.choice(places), lat, lon)
            assert far is not None
            metres = rng.choice([far, math.nextafter(far, math.inf), math.nextafter(far, -math.inf), far * (1 + 1e-13)])
        far_text = (
            f"DISTANCE(lat, lon, {lat!r}, {lon!r})" if rng.random() < 0.7 else f"DISTANCE({lat!r}, {lon!r}, lat, lon)"
        )
        texts[id] = f"{far_text} {rng.choice(OPS)} {metres!r}"
        if rng.random() < 0.2:
            texts[id] = (
                f"{far_text} {rng.choice(['', 'NOT '])}BETWEEN {metres!r} AND {rng.choice([metres, metres * 1.5])!r}"
            )
        if rng.random() < 0.2:
            texts[id] = f"NOT ({texts[id]}) {rng.choice(['AND', 'OR', 'XOR'])} lat > {rng.randint(-90, 90)}"
    events = [{"lat": lat, "lon": lon} for lat, lon in places]
    check(loaded(texts), texts, [*events, {"lat": 1.0}, {"lat": 91.0, "lon": 0.0}, {"lat": -0.0, "lon": -0.0}, {}])


def test_the_antimeridian_is_one_line() -> None:
    index = Index(SCHEMA)
    index.subscribe("at", "DISTANCE(lat, lon, 10, 180) <= 0")
    index.subscribe("off", "DISTANCE(lat, lon, 10, 180) > 0")
    for lon in (180.0, -180.0):
        assert index.match({"lat": 10.0, "lon": lon}) == ["at"]
        assert distance(10, lon, 10, 180) == 0
    assert index.match({"lat": 10.0, "lon": -179.999}) == ["off"]


def test_circles_agree_with_the_second_evaluator() -> None:
    rng = random.Random(5)
    centres = [somewhere(rng) for _ in range(200)]
    texts = {id: f"DISTANCE(lat, lon, {lat!r}, {lon!r}) <= {10 ** (id % 8)}" for id, (lat, lon) in enumerate(centres)}
    made = loaded(texts)
    for _ in range(100):
        lat, lon = somewhere(rng)
        found = made.match({"lat": lat, "lon": lon})
        for id, centre in enumerate(centres):
            far = float(great_circle(lat, lon, *centre))
            assert (id in found) == (far <= 10 ** (id % 8)) or abs(far - 10 ** (id % 8)) < 0.2


def test_circles_are_decided_natively(asked: list[str]) -> None:
    rng = random.Random(2)
    texts = {}
    for id in range(500):
        lat, lon, metres = rng.uniform(-9, 9), rng.uniform(-9, 9), rng.randint(1, 10**6)
        texts[id] = f"DISTANCE(lat, lon, {lat:.4f}, {lon:.4f}) {rng.choice('<>')} {metres}"
    texts |= {1000 + id: f"INSIDE(lat, lon, '{area}')" for id, area in enumerate((FAR, TWO, CAP))}
    made = loaded(texts)
    events = [{"lat": rng.uniform(-9, 9), "lon": rng.uniform(-9, 9)} for _ in range(50)]
    assert [list(one) for one in made.match_batch(events)] == [made.match(event) for event in events]
    assert not asked
    assert 1001 in made.match({"lat": 0.5, "lon": 0.0})  # on the border, beside a slope: the definition decides
    assert set(asked) == {texts[1001]}


@pytest.mark.parametrize("seed", range(3))
def test_random_areas(seed: int) -> None:
    """On a coarse grid, so that points often lie on borders and corners; shapely's `covers` has the border inside."""
    shapely = pytest.importorskip("shapely")
    rng = random.Random(seed)
    shapes = []
    while len(shapes) < 40:
        shape = shapely.Polygon([(rng.randint(-8, 8), rng.randint(-8, 8)) for _ in range(rng.randint(3, 9))]).buffer(0)
        shape = shape.difference(shapely.box(-2.5, -2.5, 2.5, rng.randint(-2, 5)).buffer(rng.choice([0, 1.3])))
        if not shape.is_empty and shape.geom_type in ("Polygon", "MultiPolygon"):
            shapes.append(shape)
    texts = {id: f"{rng.choice(['', 'NOT '])}INSIDE(lat, lon, '{shape.wkt}')" for id, shape in enumerate(shapes)}
    made = loaded(texts)
    for _ in range(150):
        x, y = (rng.choice([rng.randint(-9, 9), rng.uniform(-9, 9), rng.randint(-18, 18) / 2]) for _ in range(2))
        found = made.match({"lat": y, "lon": x})
        for id, shape in enumerate(shapes):
            inside = shape.covers(shapely.Point(x, y))
            assert (id in found) == (inside != texts[id].startswith("NOT")), (shape.wkt, x, y)


@pytest.mark.filterwarnings("ignore::hitbox.HitboxWarning")
@pytest.mark.parametrize(
    "schema",
    [
        {"lat": "float", "lon": "float"},
        {"lat": "int", "lon": "float"},
        {"lat": "int", "lon": "int"},
        {
            "lat": {"type": "int", "domain": [-90, 90]},
            "lon": {"type": "float", "domain": [-180, 180], "precision": 0.25},
        },
        None,
    ],
)
def test_every_kind_of_number(schema: Any, tmp_path: Path) -> None:
    """Also a grid, whose keys are not those of values, and an index without a schema; then copies of the index."""
    rng = random.Random(7)
    texts = {id: f"INSIDE(lat, lon, '{area}')" for id, area in enumerate((FAR, TWO, CAP))}
    texts |= {10 + id: f"NOT {text}" for id, text in texts.items()}
    texts |= {
        20: f"INSIDE(lat, lon, '{FAR}') XOR lon > 0",
        21: f"INSIDE(lon, lat, '{TWO}') OR DISTANCE(lat, lon, 1, 1) < 1e5",
    }
    texts |= {30 + id: f"DISTANCE(lat, lon, {id}, {id * 40 - 179}) <= {id}e5" for id in range(9)}
    made = Index() if schema is None else Index(schema)
    made.load(pa.table({"id": list(texts), "where": list(texts.values())}), on_error="raise")
    places = [
        (y, x) for y in (-90, -1, 0, 1, 2, 3, 4, 5, 8, 90) for x in (-180, -175, -170, 0, 1, 2, 3, 4, 170, 175, 180)
    ]
    events: list[dict[str, Any]] = [{"lat": y, "lon": x} for y, x in rng.sample(places, 60)]
    events += [{"lat": 1}, {"lon": None, "lat": 2}, {}]
    if schema is None or schema["lat"] == "float":
        events += [{"lat": 10**17, "lon": 2.0}, {"lat": 1.25, "lon": 1.75}, {"lat": float("nan"), "lon": 2.0}]
    check(made, texts, events)
    made.save(tmp_path)
    for again in (Index.open(tmp_path), pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        check(again, texts, events)
        again.unsubscribe(0)
        again.subscribe(0, texts[1])
        check(again, texts | {0: texts[1]}, events)


def test_derived_attributes_of_places_stay(tmp_path: Path) -> None:
    """In an index without a schema, coordinates are derived: a program that tests them keeps them in use."""
    made = Index()
    made.subscribe(1, "DISTANCE(lat, lon, 1, 1) > 1000")
    made.subscribe(2, "lat > 0 AND lon > 0")
    made.unsubscribe(2)
    made.subscribe(3, "a = 1 AND b = 2 AND c = 3")
    assert made.match({"lat": 1, "lon": 2, "a": 1, "b": 2, "c": 3}) == [1, 3]
    assert made.match({"lat": 1, "lon": 1}) == []


@pytest.mark.filterwarnings("ignore::hitbox.HitboxWarning")
def test_intervals(asked: list[str]) -> None:
    made = loaded({1: "DISTANCE(lat, lon, 1, 1) < 1000", 2: f"INSIDE(lat, lon, '{TWO}')"})
    assert sorted(made.match({"lat": (0.0, 2.0), "lon": 1.0})) == [1, 2]
    assert made.match({"lat": (50.0, 60.0), "lon": 1.0}) == []


@pytest.mark.parametrize("word", only([-1], [0, 1, -1, 2**31, 2**33, 2**63 - 1, -(2**63)]))
def test_a_forged_area_is_refused_or_harmless(word: int, tmp_path: Path) -> None:
    made = loaded({1: f"INSIDE(lat, lon, '{TWO}')", 2: "DISTANCE(lat, lon, 1, 1) < 1000"})
    contents = made.compacted()
    arrays = contents.arrays() | contents.keys.arrays()
    refused = 0
    for name in [one for one in arrays if one.rpartition(".")[2] in ("program_words", "program_code")]:
        for at in range(len(arrays[name])):
            forged = np.array(arrays[name])
            forged[at] = np.array(word).astype(forged.dtype)
            path = tmp_path / f"{name}-{at}"
            hitbox.storage.snapshot.write(path, contents.facts(), arrays | {name: forged})
            try:
                again = Index.open(path)
            except SnapshotError:
                refused += 1
                continue
            again.match_batch([{"lat": 1.0, "lon": 1.0}, {"lat": 1.6, "lon": 1.7}, {"lat": 80.0, "lon": 0.0}])
    assert refused > 3
