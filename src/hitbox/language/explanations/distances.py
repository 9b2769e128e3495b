"""How far an event is from what a condition asks for, without words.

The distance of two values is from 0 to 1, so that those of attributes of any type can be added up. A **rank** says how
many values would have to change, and how far. It is found for a condition and for its opposite at once, so the cost is
linear however NOT and XOR nest. Of a list, the element that comes nearest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.documents import ABSENT
from hitbox.language.conditions.places import EARTH_RADIUS, Area, is_place
from hitbox.language.explanations.view import Place, View, is_circle
from hitbox.language.syntax.expressions import Constant, Result, fold
from hitbox.language.syntax.tree import Branch, Leaf, Node, Quantifier, Test
from hitbox.language.truth import truth, value_of

MAX_ELEMENTS = 1000
"""Of a longer list, only the first elements are compared."""
NEAR = 10_000.0
"""Metres that count as half of a wrong attribute."""
DAY = 86400.0
MAX_COMPARED = 200
"""Letters of texts whose difference is measured,"""
LETTERS = 8
"""and pairs of their letters per step."""
Rank = tuple[int, float]
"""How many changes, and how far they are."""
NO_CHANGE: Rank = (0, 0.0)
ONE_CHANGE: Rank = (1, 1.0)
Of = Callable[[list[Result]], Result]
STEPS, CANDIDATES = 33, 8
"""In which an edge of an area is looked at, and the edges that are looked at more closely."""
F64 = NDArray[np.float64]


class Distances:
    def __init__(self, view: View):
        self.view = view
        self._known_ranks: dict[int, tuple[Quantifier, list[tuple[Rank, Rank]]]] = {}
        """Of the elements of the event's lists, by the id of the condition, which is kept."""

    def ranks(self, root: Node) -> tuple[Rank, Rank]:
        """Those of a condition and of its opposite."""

        def visit(node: Node, done: Sequence[tuple[Rank, Rank]]) -> tuple[Rank, Rank]:
            if isinstance(node, Branch):
                return of_branch(node, done, _sum, min, NO_CHANGE, ONE_CHANGE)
            if isinstance(node, Quantifier):
                return self._ranks_of_list(node)
            held = truth(node, (), self.view.scope)
            yes = NO_CHANGE if held is True else (1, self.of_condition(node))
            return yes, NO_CHANGE if held is False else (1, self.of_condition(node.negated()))

        return fold(root, visit)

    def _ranks_of_list(self, node: Quantifier) -> tuple[Rank, Rank]:
        elements = self.view.elements(node.list)
        telling = node.op != "ALL"
        if elements is None or elements is ABSENT or not elements:
            least, most = ONE_CHANGE, NO_CHANGE if elements == [] else ONE_CHANGE
        else:
            ranks = self.ranks_of_elements(node, elements)
            least = min(yes if telling else no for yes, no in ranks)
            most = _sum([no if telling else yes for yes, no in ranks])
        return (least, most) if node.op in ("ANY", "EXISTS") else (most, least)

    def ranks_of_elements(self, node: Quantifier, elements: Sequence[Any]) -> list[tuple[Rank, Rank]]:
        is_whole_event = self.view.is_whole_event
        if is_whole_event and id(node) in self._known_ranks:
            return self._known_ranks[id(node)][1]
        look = partial(self.ranks, node.condition)
        ranks = [self.view.at(node, number, one, look) for number, one in enumerate(elements[:MAX_ELEMENTS])]
        if is_whole_event:
            self._known_ranks[id(node)] = node, ranks
        return ranks

    def nearest_element(self, node: Quantifier, elements: Sequence[Any]) -> int:
        """The element that needs the smallest change."""
        ranks = [yes for yes, _ in self.ranks_of_elements(node, elements)]
        return ranks.index(min(ranks))

    def of_condition(self, node: Leaf | Test) -> float:
        """How far a condition is from what it asks for."""
        if isinstance(node, Leaf):
            known, ends = self.view.scope.attribute(node.name), list(node.values)
            return self._nearest_end(None if known is ABSENT else known, ends)
        test = self.view.turned(node)
        if test.op.endswith("INSIDE"):
            nearest = nearest_place(test.machine, self.view.place(test.operands)[1])
            return 1.0 if nearest is None else nearest[0] / (nearest[0] + NEAR)
        values = [value_of(operand, self.view.scope) for operand in test.operands]
        if is_circle(test):
            return 1.0 if values[0] is None else distance(values[0], float(values[1]))
        pairs = zip(test.operands, values, strict=True)
        known = next((value for operand, value in pairs if not isinstance(operand, Constant)), None)
        return self._nearest_end(known, values[1:])

    def _nearest_end(self, known: Any, ends: Sequence[Any]) -> float:
        return min((1.0 if known is None or end is None else self._gap(known, end) for end in ends), default=1.0)

    def _gap(self, one: Any, other: Any) -> float:
        """How far two values are apart; texts by what they have in common."""
        if isinstance(one, str) and isinstance(other, str):
            if max(len(one), len(other)) > MAX_COMPARED:
                return 1.0
            from difflib import SequenceMatcher  # not for everyone who imports hitbox

            self.view.scope.steps.spend(1 + len(one) * len(other) // LETTERS)
            return 1.0 - SequenceMatcher(None, one, other, autojunk=False).ratio() / 2
        return distance(one, float(other) if isinstance(other, Decimal) else other)


def of_branch(
    node: Branch, done: Sequence[tuple[Result, Result]], add: Of[Result], least: Of[Result], none: Result, never: Result
) -> tuple[Result, Result]:
    """What makes a branch true, and what makes it false: the changes of all parts (`add`), or the `least` ones."""
    yeses, noes = [yes for yes, _ in done], [no for _, no in done]
    if node.op == "NOT":
        return noes[0], yeses[0]
    if node.op == "XOR":  # an odd number of parts is true; all of them must be known
        odd, even = done[0]
        for yes, no in done[1:]:
            odd, even = least([add([odd, no]), add([even, yes])]), least([add([even, no]), add([odd, yes])])
        return odd, even
    if not done:
        return (none, never) if node.op == "TRUE" else (never, none)
    return (add(yeses), least(noes)) if node.op == "AND" else (least(yeses), add(noes))


def _sum(ranks: Sequence[Rank]) -> Rank:
    return sum(count for count, _ in ranks), sum(far for _, far in ranks)


def distance(one: object, other: object) -> float:
    """How far two values are apart, from 0 to 1."""
    if isinstance(one, datetime) and isinstance(other, datetime):
        gap = abs((one - other).total_seconds())
        return gap / (gap + DAY)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)) and not isinstance(one, bool):
        if not (isfinite(one) and isfinite(other)):
            return float(one != other)
        exact = abs(Decimal(one) - Decimal(other))
        return float(exact / (exact + abs(Decimal(one)))) if exact else 0.0
    return 1.0


def nearest_place(area: Area, place: Place | None) -> tuple[float, Place] | None:
    """The nearest point of an area's border, and how many metres away it is; None if there is no place, or no border.

    Edges are straight in degrees, so they are no great circles, and there is no closed form. Each edge is looked at in
    steps; around the best ones the steps are made smaller.
    """
    if place is None or not is_place(place.lat, place.lon):
        return None
    rings = [np.array(ring, np.float64) for polygon in area.polygons for ring in polygon]
    if not rings:
        return None
    start, end = (np.concatenate([ring[part] for ring in rings]) for part in (slice(-1), slice(1, None)))
    along = np.broadcast_to(np.linspace(0, 1, STEPS), (len(start), STEPS))
    width = 1 / (STEPS - 1)
    while True:
        points = start[:, None] + (end - start)[:, None] * along[:, :, None]
        metres = _metres(place.lat, place.lon, points[:, :, 1], points[:, :, 0])
        if width < (STEPS - 1) ** -4:
            break
        best = np.argsort(metres.min(axis=1), kind="stable")[:CANDIDATES]
        middle = along[best, metres[best].argmin(axis=1)]
        start, end = start[best], end[best]
        along = np.clip(middle[:, None] + np.linspace(-width, width, STEPS), 0, 1)
        width *= 2 / (STEPS - 1)
    edge, step = np.unravel_index(metres.argmin(), metres.shape)
    x, y = points[edge, step].tolist()
    return float(metres[edge, step]), Place(y, (x + 180) % 360 - 180 if abs(x) > 180 else x)


def _metres(lat: float, lon: float, lats: F64, lons: F64) -> Any:
    one, other = np.radians(lat), np.radians(lats)
    apart = np.abs(lons - lon)
    across = np.sin(np.radians(np.minimum(apart, 360 - apart)) / 2)
    along = np.sin((other - one) / 2)
    half = along * along + np.cos(one) * np.cos(other) * across * across
    return 2 * EARTH_RADIUS * np.arcsin(np.minimum(1.0, np.sqrt(half)))
