"""What explain returns beyond one predicate's tree: both sides of a symmetric match, and the matches of an event."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding import arrow_compute as pc
from hitbox.encoding.arrays import HIGHEST, I64, LOWEST, MISSING, U8, Boxes, Points
from hitbox.encoding.codecs import F64
from hitbox.encoding.keys import Keys
from hitbox.index.catalog import Catalog, Id
from hitbox.language import Explanation, Predicate, Reason, explain
from hitbox.language.explanations.explanation import in_words, lines_of, reason_dict, too_expensive
from hitbox.language.explanations.reasons import short
from hitbox.language.syntax.expressions import literal, quoted

PIECE_SLOTS = 16_384


@dataclass(frozen=True, slots=True, repr=False)
class BothSides:
    """What the subscription says of the event, and what the event's `where` says of the subscription."""

    subscription: Explanation
    event: Explanation

    @property
    def matched(self) -> bool:
        return self.subscription.matched and self.event.matched

    @property
    def distance(self) -> float:
        return self.subscription.distance + self.event.distance

    def to_dict(self) -> dict[str, Any]:
        return {
            "matched": self.matched,
            "subscription": self.subscription.to_dict(),
            "event": self.event.to_dict(),
            "tree": reason_dict(self.root),
        }

    @property
    def root(self) -> Reason:
        """Both sides as one tree."""
        mine, theirs = self.subscription, self.event
        sides = (
            Reason("what the subscription asks of the event", mine.truth, (mine.root,)),
            Reason("what the event asks of the subscription", theirs.truth, (theirs.root,)),
        )
        whole = False if False in (mine.truth, theirs.truth) else True if self.matched else None
        return Reason("AND", whole, sides)

    def __str__(self) -> str:
        lines = ["match" if self.matched else "no match", *lines_of(self.root)]
        for who, side in (("event", self.subscription), ("subscription", self.event)):
            if side.out_of_steps is not None:
                lines.append(f"nearest change of the {who}: {too_expensive(side.out_of_steps)}")
            elif side.never:
                lines.append(f"no {who} can match: {short(side.predicate)}")
            elif side.changes:
                lines.append(f"nearest change of the {who}: {in_words(side.changes)}")
        return "\n".join(lines)

    __repr__ = __str__


def explain_without_values(predicate: Predicate) -> Explanation:
    """The explanation of a predicate if the values that it asks about were not kept: see `Index.about`."""
    whole = explain(predicate, {})
    reason = Reason(f"values not kept (that side can never match): {short(whole.predicate)}", None)
    return Explanation(whole.predicate, None, reason, never=whole.never)


@dataclass(frozen=True, slots=True)
class Explained:
    """The ids that an event matched, most urgent first, and the nearest misses with their reasons."""

    matches: list[Id]
    misses: dict[Id, Explanation | BothSides]

    def to_dict(self) -> dict[str, Any]:
        return {
            "matches": self.matches,
            "misses": [{"id": id, **reason.to_dict()} for id, reason in self.misses.items()],
        }

    def __str__(self) -> str:
        lines = [f"{len(self.matches)} matches" + "".join(f"\n  {id}" for id in self.matches[:50])]
        if len(self.matches) > 50:
            lines.append(f"  and {len(self.matches) - 50} more")
        for id, reason in self.misses.items():
            lines.append(f"near miss {json.dumps(id, ensure_ascii=False)}:\n{reason}")
        return "\n".join(lines)


def describe_box(keys: Keys, box: dict[int, tuple[int, int]]) -> str:
    """A box as an equivalent predicate; what the subscription says about itself is left out.

    >>> from hitbox.encoding.schema import Schema
    >>> describe_box(Keys(Schema({"qty": "int", "ok": "bool"})), {0: (3, HIGHEST), 1: (1, 1)})
    'qty >= 3 AND ok = TRUE'
    """
    parts = []
    for number, (low, high) in box.items():
        if number in keys.space.information:
            continue
        name, value = quoted(keys.schema.names[number]), keys.codecs[number].value
        if high == MISSING:
            parts.append(f"{name} IS NULL")
        elif (low, high) == (LOWEST, HIGHEST):
            parts.append(f"{name} IS NOT NULL")
        elif low == high:
            parts.append(f"{name} = {_literal(value(low))}")
        elif low == LOWEST:
            parts.append(f"{name} <= {_literal(value(high))}")
        elif high == HIGHEST:
            parts.append(f"{name} >= {_literal(value(low))}")
        else:
            parts.append(f"{name} BETWEEN {_literal(value(low))} AND {_literal(value(high))}")
    return " AND ".join(parts) or "TRUE"


def _literal(value: Any) -> str:
    return literal(Decimal(repr(value)) if isinstance(value, float) else value)


class NearMisses:
    """The slots that an event misses by the smallest distance, the most urgent of equals first, found piece by piece.

    The distance is that of an explanation, as far as keys tell it: how many attributes are wrong, then how far they are
    off. Where a box holds the event, or needs an anchor, keys tell nothing of what else is wrong; such boxes are ranked
    by themselves. All that are found are explained afterwards, which gives the exact order.

    Between two pieces the catalog may change: removed slots are left out in the end, and new ones are at its end, still
    to be visited. If slots moved (`Catalog.compactions`), the search starts again.
    """

    def __init__(self, wanted: int, hit: NDArray[Any], compactions: int, among: Callable[[Id], bool] | None = None):
        """`hit`: the slots that match; `among`: says of an id whether it is looked at. The others have no influence on
        what is found."""
        self.compactions = compactions
        self._among = among
        self._hit = hit
        self._room = 4 * wanted  # a slot may have several boxes, and some slots are removed before the end
        self._seen = 0
        self._best: tuple[list[tuple[float, int, int]], ...] = ([], [])

    def done(self, catalog: Catalog) -> bool:
        return self._seen >= len(catalog.alive)

    def look(self, boxes_of: Callable[[I64], Boxes], catalog: Catalog, points: Points, keys: Keys) -> bool:
        """Go through one more piece; False if there is none. `boxes_of` gives the boxes under some numbers."""
        if self.done(catalog):
            return False
        here = catalog.alive[self._seen : self._seen + PIECE_SLOTS].copy()
        here[self._hit[(self._hit >= self._seen) & (self._hit < self._seen + len(here))] - self._seen] = False
        slots = self._seen + np.flatnonzero(here)
        if self._among is not None:
            slots = slots[np.fromiter(map(self._among, catalog.id_list(slots)), bool, len(slots))]
        self._seen += PIECE_SLOTS
        numbers = catalog.boxes_of(slots)
        if not len(numbers):
            return True
        boxes = boxes_of(numbers)
        failed, far, is_open = _failures(boxes, points, keys)
        if boxes.anchors is not None:  # most likely the event does not bring the anchor
            anchored = pc.greater(pc.binary_length(boxes.anchors), 0).to_numpy(zero_copy_only=False)
            failed += anchored
            is_open |= anchored
        distance = np.maximum(failed, 1) + far / (failed + far + 1)
        for best, which in zip(self._best, (~is_open, is_open), strict=True):
            self._keep(best, distance, boxes.priority, catalog.owner[numbers], np.flatnonzero(which))
        return True

    def _keep(self, best: list[tuple[float, int, int]], distance: F64, priority: U8, owner: I64, rows: I64) -> None:
        """Add the best of some boxes."""
        order = np.lexsort((-priority[rows].astype(np.int64), distance[rows]))
        rows = rows[order[: self._room]]
        urgency = -priority[rows].astype(np.int64)
        best += zip(distance[rows].tolist(), urgency.tolist(), owner[rows].tolist(), strict=True)
        best.sort()
        del best[self._room :]

    def best(self, catalog: Catalog) -> list[int]:
        """Those that still exist; several times as many as are wanted, in no order."""
        found = [slot for best in self._best for _, _, slot in best]
        return [slot for slot in dict.fromkeys(found) if catalog.alive[slot]]


def _failures(boxes: Boxes, points: Points, keys: Keys) -> tuple[I64, F64, NDArray[np.bool_]]:
    """How many constraints of each box an event fails; how far off it is (each counts from 0 to 1); and which boxes do
    not tell that: those that hold the event, and those that fail in a function of its attributes."""
    low, high = points.low[0][boxes.attribute], points.high[0][boxes.attribute]
    below, above = high < boxes.low, low > boxes.high
    fails = np.flatnonzero(below | above)
    attribute = boxes.attribute[fails]
    mine = np.where(below[fails], high[fails], low[fails])
    wanted = np.where(below[fails], boxes.low[fails], boxes.high[fails])
    off, tells = np.ones(len(fails)), np.ones(len(fails), bool)
    for number in np.unique(attribute).tolist():
        rows, derived = attribute == number, number - len(keys.schema)
        if derived >= 0 and not keys.derived[derived].is_attribute:
            tells[rows], off[rows] = False, 0
        else:
            off[rows] = keys.codecs[number].distances(mine[rows], wanted[rows])
            off[rows & ((mine == MISSING) | (wanted == MISSING))] = 1
    row = np.repeat(np.arange(len(boxes)), np.diff(boxes.offsets))[fails]
    failed = np.bincount(row, minlength=len(boxes)).astype(np.int64)
    far = np.bincount(row, off, minlength=len(boxes)).astype(np.float64)
    return failed, far, (failed == 0) | (np.bincount(row, ~tells, minlength=len(boxes)) > 0)
