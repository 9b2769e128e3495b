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
from hitbox.encoding.arrays import HIGHEST, I64, LEVELS, LOWEST, MISSING, Boxes, Points
from hitbox.encoding.keys import Keys
from hitbox.index.catalog import Catalog, Id
from hitbox.language import Explanation, Predicate, Reason, explain
from hitbox.language.explanation import in_words, lines_of, reason_dict
from hitbox.language.expressions import literal, quoted
from hitbox.language.reasons import short

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
            if side.never:
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
    """The slots that miss an event by the fewest attributes, the most urgent of equals first, found piece by piece.

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
        self._best: list[tuple[int, int, int]] = []

    def done(self, catalog: Catalog) -> bool:
        return self._seen >= len(catalog.alive)

    def look(self, boxes_of: Callable[[I64], Boxes], catalog: Catalog, points: Points) -> bool:
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
        fails = (points.low[0][boxes.attribute] > boxes.high) | (points.high[0][boxes.attribute] < boxes.low)
        failures = np.concatenate([np.zeros(1, np.int64), np.cumsum(fails)])
        failed = failures[boxes.offsets[1:]] - failures[boxes.offsets[:-1]]
        if boxes.anchors is not None:  # most likely the event does not bring the anchor
            failed += pc.greater(pc.binary_length(boxes.anchors), 0).to_numpy(zero_copy_only=False)
        failed = np.maximum(failed, 1)  # the box holds the event, but what it leaves open does not
        order = failed * LEVELS - boxes.priority
        first = np.argpartition(order, self._room)[: self._room] if len(order) > self._room else np.arange(len(order))
        urgency = -boxes.priority[first].astype(np.int64)
        owner = catalog.owner[numbers[first]]
        self._best += zip(failed[first].tolist(), urgency.tolist(), owner.tolist(), strict=True)
        self._best = sorted(self._best)[: self._room]
        return True

    def best(self, catalog: Catalog) -> list[int]:
        """Those that still exist, best first; a few more than are wanted."""
        return [slot for slot in dict.fromkeys(slot for _, _, slot in self._best) if catalog.alive[slot]]
