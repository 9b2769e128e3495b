"""Conditions on places: the boxes that cover them, and the tests that native code runs on the candidates.

    DISTANCE(lat, lon, 48.85, 2.35) <= 5000     covered by a box of lat and lon     a circle
    INSIDE(lat, lon, 'POLYGON (...)')           covered by its bounds               an area

A native test says true, false, unknown, or that rounding may matter; then the tree is asked (truth.py, places.py).
src/engine/program/places.hpp describes what it computes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hitbox.encoding.codecs import Codec, FloatCodec, IntCodec, NumberCodec
from hitbox.language.conditions.places import EARTH_RADIUS, Area, Span, around, is_place
from hitbox.language.programs.programs import PlaceTest
from hitbox.language.syntax.expressions import Call, Constant, Expression
from hitbox.language.syntax.tree import Node, Test

COVERED = ("<", "<=", "=", "BETWEEN")
NEGATED = dict.fromkeys(COVERED, False) | dict.fromkeys((">", ">=", "<>", "NOT BETWEEN"), True)
"""Tests of a distance: whether each says that it does not lie between two others."""
TWO_ENDS = ("=", "<>", "BETWEEN", "NOT BETWEEN")
BELOW_ALL, ABOVE_ALL = -1.0, 4.0
"""Haversines lie between 0 and 1."""


class Circle(NamedTuple):
    place: Sequence[Expression]
    """The latitude and the longitude that are asked for,"""
    centre: tuple[float, float]
    """and those that are given."""


def circle(test: Test) -> Circle | None:
    """What a test of a distance to a given place is about; None of any other test."""
    far = test.operands[0]
    if not (isinstance(far, Call) and far.name == "DISTANCE" and test.op in NEGATED):
        return None
    if not all(isinstance(one, Constant) for one in test.operands[1:]):
        return None
    ends = far.children[:2], far.children[2:]
    place, given = ends if all(isinstance(one, Constant) for one in ends[1]) else ends[::-1]
    centre = [float(one.plain) for one in given if isinstance(one, Constant)]
    return Circle(place, (centre[0], centre[1])) if len(centre) == 2 else None


def areas(test: Test) -> tuple[Sequence[Expression], list[tuple[Span, Span]]] | None:
    """If a test can hold in some boxes of latitude and longitude only: which attributes these are, and the boxes."""
    if test.op == "INSIDE":
        return test.operands, test.machine.boxes()
    found = circle(test) if test.op in COVERED else None
    if found is None:
        return None
    metres = _metres(test)[-1]
    return found.place, around(*found.centre, metres) if metres >= 0 else []


def place_test(node: Node, number_of: Callable[[Expression], int], codecs: Sequence[Codec]) -> PlaceTest | None:
    """The native test of a condition; None if it is none of a place whose coordinates are numbers with keys."""
    if not isinstance(node, Test):
        return None
    if node.op.endswith("INSIDE"):
        coordinates, negated = _coordinates(node.operands, number_of, codecs), node.op != "INSIDE"
        return None if coordinates is None else PlaceTest(*coordinates, area_words(node.machine), True, negated)
    found = circle(node)
    coordinates = None if found is None else _coordinates(found.place, number_of, codecs)
    if found is None or coordinates is None or not is_place(*found.centre):
        return None
    ends = [haversine(one) for one in _metres(node)]
    words = circle_words(*found.centre, ends[0] if node.op in TWO_ENDS else BELOW_ALL, ends[-1])
    return PlaceTest(*coordinates, words, False, NEGATED[node.op])


def _metres(test: Test) -> list[float]:
    return [float(one.plain) for one in test.operands[1:] if isinstance(one, Constant)]


def _coordinates(
    place: Sequence[Expression], number_of: Callable[[Expression], int], codecs: Sequence[Codec]
) -> tuple[int, int, bool, bool] | None:
    """The numbers of latitude and longitude, and whether these are whole numbers. Keys on a grid are none of values."""
    latitude, longitude = (number_of(one) for one in place)
    if latitude < 0 or longitude < 0:
        return None
    kinds = codecs[latitude], codecs[longitude]
    if not all(type(codec) in (FloatCodec, IntCodec, NumberCodec) for codec in kinds):
        return None
    return latitude, longitude, kinds[0].type == "int", kinds[1].type == "int"


def haversine(metres: float) -> float:
    """That of a distance: what rises with it, and takes no inverse function to compute."""
    half = metres / (2 * EARTH_RADIUS)
    if half < 0:
        return BELOW_ALL
    if half > math.pi / 2 * (1 + 1e-9):
        return ABOVE_ALL
    return math.sin(min(half, math.pi / 2)) ** 2


def circle_words(latitude: float, longitude: float, least: float, most: float) -> bytes:
    radians = math.radians(latitude)
    return array("d", (radians, longitude, math.cos(radians), least, most)).tobytes()


def area_words(area: Area) -> bytes:
    """Whether it goes beyond 180 degrees, then its polygons: the number of rings, the bounds, and the rings."""
    parts = [_whole(len(area.shifts) > 1)]
    for polygon, ((south, north), (west, east)) in zip(area.polygons, area.bounds, strict=True):
        parts += [_whole(len(polygon)), array("d", (south, north, west, east)).tobytes()]
        for ring in polygon:
            parts += [_whole(len(ring)), array("d", [one for point in ring for one in point]).tobytes()]
    return b"".join(parts)


def _whole(number: int) -> bytes:
    return array("q", (number,)).tobytes()
