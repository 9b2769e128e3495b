"""Key intervals in words: which literal of the predicate stands at each end, and on which side of it.

[key of 10, HIGHEST]      at least 10
[key above 10, ...]       more than 10
[label of 'Pa', ...]      starting with 'Pa'
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING
from hitbox.encoding.codecs import Codec, GridCodec, StringCodec
from hitbox.language.boxes.normal import leaf_set
from hitbox.language.boxes.sets import Interval
from hitbox.language.conditions.patterns import successor
from hitbox.language.syntax.expressions import Literal, literal
from hitbox.language.syntax.tree import Leaf

DAY = 86400.0


class Edges:
    """The ends that the literals of one attribute can give an interval of keys."""

    def __init__(self, codec: Codec):
        self.codec = codec
        self.lows: dict[int, tuple[str, Literal]] = {}
        self.highs: dict[int, tuple[str, Literal]] = {}
        self.prefixes: dict[Interval, str] = {}

    def add(self, leaf: Leaf) -> None:
        if leaf.op.endswith("LIKE"):
            positive = leaf if leaf.op == "LIKE" else leaf.negated()
            self._like(positive)
            return
        for value in leaf.values:
            self._value(value)

    def phrase(self, interval: Interval, low: int, high: int) -> tuple[str, object]:
        """What a value in `interval` is, as seen by an event at keys [low, high]; and the nearest such value."""
        start, end = interval
        if end == MISSING:
            return "missing", None
        if self.codec.is_list:
            return _list_phrase(max(start, 0), end), None
        if interval in self.prefixes:
            return f"starting with {literal(self.prefixes[interval])}", self.prefixes[interval]
        rises = high < start and start > LOWEST
        near = start if rises else end
        nearest = self._nearest(near) if near < HIGHEST or start == end else None
        if start == end and nearest is not None:
            return literal(nearest), nearest
        below, above = self._end(self.lows, start), self._end(self.highs, end)
        if high == MISSING:
            return " and ".join(filter(None, (below, above))) or "any value", nearest
        return (below if rises else above), nearest

    def _like(self, leaf: Leaf) -> None:
        if not leaf.pattern.shape:
            self._value(leaf.pattern.prefix)
        elif leaf.pattern.prefix:
            found, _ = leaf_set(leaf, self.codec)
            for start, end in found:
                self.prefixes[start, end] = leaf.pattern.prefix
                self.lows.setdefault(start, ("at least", leaf.pattern.prefix))
                self.highs.setdefault(start - 1, ("less than", leaf.pattern.prefix))
                after = successor(leaf.pattern.prefix)
                if after is not None:
                    self.lows.setdefault(end + 1, ("at least", after))
                    self.highs.setdefault(end, ("less than", after))

    def _value(self, value: Literal) -> None:
        last, first = self.codec.cut(value)
        if last + 1 < first:  # the literal has a key of its own
            self.lows[last + 1] = ("at least", value)
            self.highs[first - 1] = ("at most", value)
        self.lows.setdefault(first, ("more than", value))
        self.highs.setdefault(last, ("less than", value))

    def _end(self, ends: dict[int, tuple[str, Literal]], key: int) -> str:
        word, value = ends.get(key, ("", None))
        return "" if value is None else f"{word} {literal(value)}"

    def _nearest(self, key: int) -> Any:
        """The value at a key; None where the key stands for a gap and not for one value."""
        gap = isinstance(self.codec, (StringCodec, GridCodec)) and key % 2
        value = None if gap else self.codec.value(key)
        return value if value is not None and self.codec.key(value) == key else None


def _list_phrase(start: int, end: int) -> str:
    """A list whose key, its length, lies in an interval."""
    if start == end:
        return "an empty list" if not start else f"a list of {start}"
    if end < HIGHEST:
        return f"a list of {start} to {end}"
    return f"a list of at least {start}" if start else "a list"


def distance(one: object, other: object) -> float:
    """How far two values are apart, from 0 to 1, so that attributes of any type can be added up."""
    if isinstance(one, datetime) and isinstance(other, datetime):
        gap = abs((one - other).total_seconds())
        return gap / (gap + DAY)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)) and not isinstance(one, bool):
        if not (isfinite(one) and isfinite(other)):
            return float(one != other)
        exact = abs(Decimal(one) - Decimal(other))
        return float(exact / (exact + abs(Decimal(one)))) if exact else 0.0
    return 1.0
