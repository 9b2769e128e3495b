"""What an experiment measured, as the checks and the plots read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hitbox.errors import BenchError

Where = Callable[[Any], bool]
At = Literal["first", "last"] | float | str

FINE_TIMES = ("preparing", "gap", "interval", "ending", "determining", "waiting", "last", "level_")
TIMES = ("match", "insert_", "delete_", *FINE_TIMES)
"""Prefixes of the metrics that are times and are scaled by the yardstick."""
UNITLESS = {"match_range", "level_vs_determining"}
"""Metrics whose names look like times but that are pure numbers."""
BESIDE = " beside"
"""Suffix of the labels of matchers on the second workload of an experiment."""


@dataclass(frozen=True)
class Curves:
    """What an experiment measured: a value for each (matcher, metric, place on the axis)."""

    xs: list[Any]
    points: list[Mapping[str, Mapping[str, float]]]
    """At each x: matcher -> metric -> value."""
    skipped: list[Mapping[str, str]]
    n: list[int] = field(default_factory=list)

    def place(self, at: At) -> int:
        if at in ("first", "last"):
            return 0 if at == "first" else len(self.xs) - 1
        if at in self.xs:
            return self.xs.index(at)
        raise Missing(f"no measurement at {at}")

    def value(self, matcher: str, metric: str, at: At) -> float:
        return self._at(matcher, metric, self.place(at))

    def _at(self, matcher: str, metric: str, place: int) -> float:
        found = self.points[place].get(matcher, {}).get(metric)
        if found is None:
            why = self.skipped[place].get(matcher, "not measured")
            raise Missing(f"{matcher} at {self.xs[place]}: {why}")
        return found

    def line(self, matcher: str, metric: str, where: Where | None = None) -> tuple[list[Any], list[float]]:
        """The places where it was measured, and the values there."""
        found = [
            (x, self._at(matcher, metric, place))
            for place, x in enumerate(self.xs)
            if (where is None or where(x)) and metric in self.points[place].get(matcher, {})
        ]
        if not found:
            why = next((s[matcher] for s in self.skipped if matcher in s), "no measurement")
            raise Missing(f"{matcher}: {why}")
        return [x for x, _ in found], [value for _, value in found]

    def ends(self, matcher: str, metric: str, where: Where | None = None) -> tuple[float, float]:
        """Mean of the two first and of the two last values: one place alone is too noisy."""
        xs, values = self.line(matcher, metric, where)
        if len(xs) < 2:
            raise Missing(f"{matcher}: one measurement only")
        some = 2 if len(xs) >= 5 else 1
        return float(np.mean(values[:some])), float(np.mean(values[-some:]))


def at_one_pace(point: Mapping[str, Mapping[str, float]], factor: float) -> dict[str, dict[str, float]]:
    """The figures of a point with the TIMES multiplied by `factor`: what they would be on the machine at its fastest.

    Times of a point are those of the quickest yardstick that was seen there; elsewhere it may have been quicker.
    """
    return {
        lane: {
            name: value * factor if name.startswith(TIMES) and name not in UNITLESS else value
            for name, value in m.items()
        }
        for lane, m in point.items()
    }


class Missing(BenchError):
    """A curve has no value where a check needs it."""
