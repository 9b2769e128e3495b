"""What explain hands back beyond one predicate's tree: both sides of a symmetric match, and the matches of an event."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from hitbox.boxes import HIGHEST, I64, LOWEST, MISSING, Points
from hitbox.catalog import Catalog, Id
from hitbox.keys import Keys
from hitbox.language import Explanation, Reason
from hitbox.language.explanation import lines_of, reason_dict, short
from hitbox.language.tree import literal, quoted
from hitbox.matchers import Matcher

PIECE = 100_000


@dataclass(frozen=True, slots=True, repr=False)
class BothSides:
    """What the subscription says of the event, and what the event's `where` says of the subscription."""

    subscription: Explanation
    event: Explanation

    @property
    def matched(self) -> bool:
        return self.subscription.matched and self.event.matched

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
                lines.append(f"nearest change of the {who}: {'; '.join(map(str, side.changes))}")
        return "\n".join(lines)

    __repr__ = __str__


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
    """A box as a predicate that says the same; what the subscription says about itself is left out.

    >>> from hitbox.schema import Schema
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


def nearest_misses(matcher: Matcher, catalog: Catalog, points: Points, hit: I64, wanted: int) -> list[int]:
    """The slots that miss the event by the fewest attributes, the most urgent of equals first."""
    slots = np.setdiff1d(catalog.living_slots(), hit)
    best: list[tuple[int, int, int]] = []
    for start in range(0, len(slots), PIECE):
        part = slots[start : start + PIECE]
        numbers = catalog.boxes_of(part)
        boxes = matcher.boxes(numbers)
        fails = (points.low[0][boxes.attribute] > boxes.high) | (points.high[0][boxes.attribute] < boxes.low)
        box = np.repeat(np.arange(len(numbers)), np.diff(boxes.offsets))
        failed = np.bincount(box[fails], minlength=len(numbers))
        rank = np.lexsort((-catalog.priority[catalog.owner[numbers]].astype(int), failed))[: 4 * wanted]
        for at in rank.tolist():
            slot = int(catalog.owner[numbers[at]])
            best.append((int(failed[at]), -int(catalog.priority[slot]), slot))
    ordered = dict.fromkeys(slot for _, _, slot in sorted(best))
    return list(ordered)[:wanted]
