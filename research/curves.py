"""What an experiment measured, as the checks and the plots read it: each value with its resampled values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from research.errors import BenchError

F64 = NDArray[np.float64]
Where = Callable[[Any], bool]
At = Literal["first", "last"] | float | str

Mark = tuple[str, str, str, float]
"""Matcher, metric, place on the axis, value."""

BESIDE = " beside"
"""Suffix of the labels of matchers on the second workload of an experiment."""


@dataclass(frozen=True)
class Curves:
    """A value for each (matcher, metric, place on the axis).

    Each is an array: the estimate first, then the values of the bootstrap's resamples, in the same order everywhere, so
    that a ratio of two values is a ratio of two arrays.
    """

    xs: list[Any]
    points: list[Mapping[str, Mapping[str, F64]]]
    """At each x: matcher -> metric -> values."""
    skipped: list[Mapping[str, str]]
    """At each x: matcher -> why it was not measured."""
    n: list[int] = field(default_factory=list)
    used: set[tuple[str, Any]] = field(default_factory=set)
    """(matcher, x) that checks have read: what must be measured again to decide a claim."""
    read: dict[str, None] = field(default_factory=dict)
    """Metrics that checks have asked for, in that order: the claim stands beside the figure that shows them."""
    marks: list[Mark] = field(default_factory=list)
    """Numbers of the paper that checks have compared ours with, brought to our axes: they are drawn into the figure."""

    def forget(self) -> None:
        """What checks have read and marked so far: for the next claim."""
        self.used.clear()
        self.read.clear()
        self.marks.clear()

    def mark(self, matcher: str, metric: str, at: At, value: float) -> None:
        """Where the paper's number puts a matcher."""
        self.marks.append((matcher, metric, str(self.xs[self.place(at)]), float(value)))

    def place(self, at: At) -> int:
        if not self.xs:
            raise Missing("nothing was measured")
        if at in ("first", "last"):
            return 0 if at == "first" else len(self.xs) - 1
        if at in self.xs:
            return self.xs.index(at)
        raise Missing(f"no measurement at {at}")

    def value(self, matcher: str, metric: str, at: At) -> F64:
        return self._at(matcher, metric, self.place(at))

    def estimate(self, matcher: str, metric: str, at: At) -> float:
        return float(self.value(matcher, metric, at)[0])

    def has(self, matcher: str, metric: str, at: At) -> bool:
        return metric in self.points[self.place(at)].get(matcher, {})

    def _at(self, matcher: str, metric: str, place: int) -> F64:
        self.read[metric] = None
        found = self.points[place].get(matcher, {}).get(metric)
        if found is None:
            why = self.skipped[place].get(matcher, "not measured")
            raise Missing(f"{matcher} at {self.xs[place]}: {why}")
        self.used.add((matcher, self.xs[place]))
        return found

    def line(self, matcher: str, metric: str, where: Where | None = None) -> tuple[list[Any], list[F64]]:
        """The places where it was measured, and the values there."""
        self.read[metric] = None
        found = [
            (x, self._at(matcher, metric, place))
            for place, x in enumerate(self.xs)
            if (where is None or where(x)) and metric in self.points[place].get(matcher, {})
        ]
        if not found:
            why = next((s[matcher] for s in self.skipped if matcher in s), "no measurement")
            raise Missing(f"{matcher}: {why}")
        return [x for x, _ in found], [value for _, value in found]

    def ends(self, matcher: str, metric: str, where: Where | None = None) -> tuple[F64, F64]:
        """The first and the last value; means of two each where there are five or more."""
        xs, values = self.line(matcher, metric, where)
        if len(xs) < 2:
            raise Missing(f"{matcher}: one measurement only")
        some = 2 if self.ends_are_means(matcher, metric, where) else 1
        return np.mean(values[:some], axis=0), np.mean(values[-some:], axis=0)

    def ends_are_means(self, matcher: str, metric: str, where: Where | None = None) -> bool:
        return len(self.line(matcher, metric, where)[0]) >= 5

    def renamed(self, names: Mapping[str, str]) -> Curves:
        """These measurements with the labels of matchers exchanged."""
        exchange = dict(names) | {name + BESIDE: other + BESIDE for name, other in names.items()}

        def swap(point: Mapping[str, Any]) -> dict[str, Any]:
            return {exchange.get(name, name): what for name, what in point.items()}

        return Curves(self.xs, [swap(p) for p in self.points], [swap(s) for s in self.skipped], self.n)


class Missing(BenchError):
    """A curve has no value where a check needs it."""
