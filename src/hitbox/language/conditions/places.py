"""Places on the earth: distances in metres, and polygons of longitude and latitude.

DISTANCE is the great circle on a sphere of the earth's mean radius. A polygon is flat: its edges are straight lines in
degrees, as for shapely, and its border belongs to it. One that crosses the antimeridian goes beyond 180 degrees:
POLYGON ((170 0, 190 0, 190 10, 170 10, 170 0)). Whether a point is inside is decided exactly: where doubles leave doubt
about the side of an edge, fractions decide.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from itertools import pairwise

EARTH_RADIUS = 6_371_008.8
"""Metres: the mean radius of the earth (IUGG)."""
MAX_LONGITUDE = 540.0
ERROR = 2.0**-49  # relative to the products that are subtracted: far more than the rounding of three operations

Point = tuple[float, float]
Ring = tuple[Point, ...]
Polygon = tuple[Ring, ...]
Span = tuple[float, float]


def is_place(latitude: float, longitude: float) -> bool:
    return -90 <= latitude <= 90 and -180 <= longitude <= 180


def distance(lat: float, lon: float, other_lat: float, other_lon: float) -> float | None:
    """Metres along the great circle; None where a coordinate is out of range.

    >>> round(distance(48.8566, 2.3522, 51.5074, -0.1278))
    343557
    """
    if not (is_place(lat, lon) and is_place(other_lat, other_lon)):
        return None
    one, other = math.radians(lat), math.radians(other_lat)
    apart = abs(other_lon - lon)
    across = math.sin(math.radians(min(apart, 360 - apart)) / 2)  # the shorter way: 180 and -180 are one meridian
    along = math.sin((other - one) / 2)
    half = along * along + math.cos(one) * math.cos(other) * across * across
    return 2 * EARTH_RADIUS * math.asin(min(1.0, math.sqrt(half)))


def around(lat: float, lon: float, metres: float) -> list[tuple[Span, Span]]:
    """Boxes of (latitude, longitude) that hold every place up to so many metres away: one, or two beside the
    antimeridian."""
    angle = metres / EARTH_RADIUS * (1 + 1e-9) + 1e-12  # a little more, for the rounding of `distance`
    low, high = lat - math.degrees(angle), lat + math.degrees(angle)
    if angle >= math.pi or low <= -90 or high >= 90:  # a pole is inside: every longitude
        return [((max(low, -90.0), min(high, 90.0)), (-180.0, 180.0))]
    across = math.degrees(math.asin(min(1.0, math.sin(angle) / math.cos(math.radians(lat))))) * (1 + 1e-9) + 1e-9
    west, east = lon - across, lon + across
    if west >= -180 and east <= 180:
        return [((low, high), (west, east))]
    if across >= 180:
        return [((low, high), (-180.0, 180.0))]
    seam = east - 360 if east > 180 else east, west + 360 if west < -180 else west
    return [((low, high), (-180.0, seam[0])), ((low, high), (seam[1], 180.0))]


class Area:
    """A POLYGON or a MULTIPOLYGON."""

    __slots__ = ("bounds", "edges", "polygons", "shifts", "text")

    def __init__(self, text: str):
        """A ValueError where the text is no polygon."""
        self.text = text
        self.polygons = _polygons(text)
        points = [point for polygon in self.polygons for point in polygon[0]]
        longitudes = [x for x, _ in points]
        beyond = bool(points) and (min(longitudes) < -180 or max(longitudes) > 180)
        self.shifts = (0.0, 360.0, -360.0) if beyond else (0.0,)
        self.bounds = [_bounds(polygon[0]) for polygon in self.polygons]
        self.edges = sum(len(ring) for polygon in self.polygons for ring in polygon)

    def holds(self, lat: float, lon: float) -> bool | None:
        """Whether a place is inside or on the border; None where a coordinate is out of range."""
        if not is_place(lat, lon):
            return None
        return any(self._flat(lon + shift, lat) for shift in self.shifts)

    def _flat(self, x: float, y: float) -> bool:
        for polygon, ((south, north), (west, east)) in zip(self.polygons, self.bounds, strict=True):
            if west <= x <= east and south <= y <= north and _inside(polygon, x, y):
                return True
        return False

    def boxes(self) -> list[tuple[Span, Span]]:
        """Boxes of (latitude, longitude), within 180 degrees, that hold the area; at most two."""
        if not self.bounds:
            return []
        south, north = min(s for (s, _), _ in self.bounds), max(n for (_, n), _ in self.bounds)
        spans: list[Span] = []
        for _, (west, east) in self.bounds:
            for shift in self.shifts:
                low, high = max(west - shift, -180.0), min(east - shift, 180.0)
                if low <= high:
                    spans.append((low, high))
        spans.sort()
        gap, after = max(
            ((b[0] - a, n) for n, (a, b) in enumerate(zip(_reach(spans), spans[1:], strict=False), 1)), default=(0.0, 0)
        )
        if gap <= 0:
            return [((south, north), (spans[0][0], max(high for _, high in spans)))]
        halves = spans[:after], spans[after:]
        return [((south, north), (half[0][0], max(high for _, high in half))) for half in halves]


def _reach(spans: list[Span]) -> list[float]:
    """How far east the spans up to each one go."""
    found: list[float] = []
    for _, high in spans:
        found.append(max(high, found[-1]) if found else high)
    return found


def _bounds(ring: Ring) -> tuple[Span, Span]:
    xs, ys = [x for x, _ in ring], [y for _, y in ring]
    return (min(ys), max(ys)), (min(xs), max(xs))


def _inside(polygon: Polygon, x: float, y: float) -> bool:
    """Inside the outer ring and in no hole; the borders belong to the polygon."""
    place = _place(polygon[0], x, y)
    if place <= 0:
        return place == 0
    for hole in polygon[1:]:
        place = _place(hole, x, y)
        if place >= 0:
            return place == 0
    return True


def _place(ring: Ring, x: float, y: float) -> int:
    """1 inside, 0 on the border, -1 outside: a ray to the east crosses the border an odd number of times, or not."""
    inside = False
    for (ax, ay), (bx, by) in pairwise(ring):
        if (ay > y) == (by > y):
            if y == ay and y == by and min(ax, bx) <= x <= max(ax, bx):
                return 0
            if (x == ax and y == ay) or (x == bx and y == by):
                return 0
            continue
        side = _side(ax, ay, bx, by, x, y)
        if side == 0:
            return 0
        inside ^= (side > 0) == (by > ay)
    return 1 if inside else -1


def _side(ax: float, ay: float, bx: float, by: float, x: float, y: float) -> int:
    """On which side of the line from a to b a point lies: 1 left, -1 right, 0 on it; exactly."""
    one, other = (bx - ax) * (y - ay), (by - ay) * (x - ax)
    if abs(one - other) > ERROR * (abs(one) + abs(other)):
        return 1 if one > other else -1
    exact = (Fraction(bx) - Fraction(ax)) * (Fraction(y) - Fraction(ay))
    exact -= (Fraction(by) - Fraction(ay)) * (Fraction(x) - Fraction(ax))
    return (exact > 0) - (exact < 0)


_TOKEN = re.compile(r"\s*([A-Za-z]+|[(),]|[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_SHAPE = "write 'POLYGON ((lon lat, lon lat, ...))' or 'MULTIPOLYGON (((lon lat, ...)), ...)'"


def _polygons(text: str) -> tuple[Polygon, ...]:
    tokens = _tokens(text)
    kind = tokens.pop().upper() if tokens else ""
    if kind not in ("POLYGON", "MULTIPOLYGON"):
        raise ValueError(f"this is no polygon: {_SHAPE}")
    heights = tokens.pop().upper() if tokens[-1:] and tokens[-1].upper() in ("Z", "M", "ZM") else ""
    if tokens[-1:] and tokens[-1].upper() == "EMPTY":
        tokens.pop()
        found: tuple[Polygon, ...] = ()
    elif heights:
        return _polygons(f"{kind} {_without_heights(tokens, len(heights))}")
    elif kind == "POLYGON":
        found = (_polygon(tokens),)
    else:
        found = tuple(_list(tokens, _polygon))
    if tokens:
        raise ValueError(f"{tokens[-1]!r} is left over: {_SHAPE}")
    return found


def _without_heights(tokens: list[str], more: int) -> str:
    """The text of some tokens, the last one first, without the numbers after the first two of each point."""
    found: list[str] = []
    run = 0
    for token in reversed(tokens):
        mark = token in ("(", ")", ",")
        if mark and run and run != 2 + more:
            raise ValueError(f"a point has {2 + more} numbers here, not {run}")
        run = 0 if mark else run + 1
        if run < 3:
            found.append(token)
    return " ".join(found)


def _tokens(text: str) -> list[str]:
    """The tokens, the last one first."""
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"{text[at : at + 20].strip()!r} does not belong here: {_SHAPE}")
        found.append(match[1])
        at = match.end()
    return found[::-1]


def _take(tokens: list[str], wanted: str) -> None:
    if not tokens or tokens.pop() != wanted:
        raise ValueError(f"a {wanted!r} is missing: {_SHAPE}")


def _list(tokens: list[str], read: object) -> list[Polygon]:
    _take(tokens, "(")
    found = [read(tokens)]  # type: ignore[operator]
    while tokens[-1:] == [","]:
        tokens.pop()
        found.append(read(tokens))  # type: ignore[operator]
    _take(tokens, ")")
    return found


def _polygon(tokens: list[str]) -> Polygon:
    return tuple(_list(tokens, _ring))  # type: ignore[arg-type]


def _ring(tokens: list[str]) -> Ring:
    ring: Ring = tuple(_list(tokens, _point))  # type: ignore[arg-type]
    if len(ring) < 4 or ring[0] != ring[-1]:
        raise ValueError("a ring has at least four points, and the last one is the first one again")
    return ring


def _point(tokens: list[str]) -> Point:
    try:
        x, y = float(tokens.pop()), float(tokens.pop())
    except (ValueError, IndexError):
        raise ValueError(f"a point is a longitude and a latitude with a space between: {_SHAPE}") from None
    if not (-90 <= y <= 90 and -MAX_LONGITUDE <= x <= MAX_LONGITUDE):
        raise ValueError(f"the point {x:g} {y:g} is nowhere: the longitude comes first, then a latitude from -90 to 90")
    return x, y
