"""The point of a polygon's border that is nearest to a place, for explanations.

Edges are straight in degrees, so they are no great circles, and there is no closed form. Each edge is looked at in
steps; around the best ones the steps are made smaller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.language.conditions.places import EARTH_RADIUS, Area

STEPS = 33
CANDIDATES = 8

F64 = NDArray[np.float64]


def nearest_place(area: Area, lat: float, lon: float) -> tuple[float, float, float] | None:
    """(metres, latitude, longitude) of the nearest point of the border; None if the area is empty."""
    rings = [np.array(ring, np.float64) for polygon in area.polygons for ring in polygon]
    if not rings:
        return None
    start, end = (np.concatenate([ring[part] for ring in rings]) for part in (slice(-1), slice(1, None)))
    along = np.broadcast_to(np.linspace(0, 1, STEPS), (len(start), STEPS))
    width = 1 / (STEPS - 1)
    while True:
        points = start[:, None] + (end - start)[:, None] * along[:, :, None]
        metres = _metres(lat, lon, points[:, :, 1], points[:, :, 0])
        if width < (STEPS - 1) ** -4:
            break
        best = np.argsort(metres.min(axis=1), kind="stable")[:CANDIDATES]
        middle = along[best, metres[best].argmin(axis=1)]
        start, end = start[best], end[best]
        along = np.clip(middle[:, None] + np.linspace(-width, width, STEPS), 0, 1)
        width *= 2 / (STEPS - 1)
    edge, step = np.unravel_index(metres.argmin(), metres.shape)
    x, y = points[edge, step].tolist()
    return float(metres[edge, step]), y, (x + 180) % 360 - 180 if abs(x) > 180 else x


def _metres(lat: float, lon: float, lats: F64, lons: F64) -> Any:
    one, other = np.radians(lat), np.radians(lats)
    apart = np.abs(lons - lon)
    across = np.sin(np.radians(np.minimum(apart, 360 - apart)) / 2)
    along = np.sin((other - one) / 2)
    half = along * along + np.cos(one) * np.cos(other) * across * across
    return 2 * EARTH_RADIUS * np.arcsin(np.minimum(1.0, np.sqrt(half)))
