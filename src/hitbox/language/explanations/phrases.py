"""What a value should be, in words: of key intervals, and of conditions that no interval says.

[key of 10, HIGHEST]      at least 10             which literal of the predicate stands at each end,
[key above 10, ...]       more than 10            and on which side of it
[label of 'Pa', ...]      starting with 'Pa'
name LIKE '%Pa%'          containing 'Pa'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING
from hitbox.encoding.codecs import Codec, GridCodec, StringCodec
from hitbox.language.boxes.normal import leaf_set
from hitbox.language.boxes.sets import Interval
from hitbox.language.conditions.patterns import Pattern, successor
from hitbox.language.syntax.expressions import Constant, Field, Literal, literal
from hitbox.language.syntax.tree import Leaf, Test

COMPARED = {"=": "", "<": "less than ", "<=": "at most ", ">": "more than ", ">=": "at least ", "<>": "anything but "}


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


def condition_words(test: Test, texts: Sequence[str]) -> str:
    """What the subject of a test should be; `texts` are those of the other operands."""
    op = test.op
    if op in COMPARED:
        return f"{COMPARED[op] or ('' if isinstance(test.operands[-1], Constant) else 'equal to ')}{texts[0]}"
    if op == "BETWEEN":
        return f"between {texts[0]} and {texts[1]}"
    if op == "NOT BETWEEN":
        return f"less than {texts[0]} or more than {texts[1]}"
    if op.endswith("IN"):
        return f"{'none' if op.startswith('NOT') else 'one'} of {', '.join(texts)}"
    if op.startswith("IS"):
        return {"IS NULL": "NULL", "IS NOT NULL": "any value", "IS MISSING": "missing"}.get(op, "not missing")
    denial, plain = ("not ", op.removeprefix("NOT ")) if op.startswith("NOT") else ("", op)
    if plain == "IN NETWORK":
        return f"an address {'outside' if denial else 'in'} {test.texts[0]}"
    if plain == "REGEXP":
        return f"{denial}matching {literal(test.texts[0])}"
    return denial + pattern_words(test.machine, " ESCAPE ".join(map(literal, test.texts)), plain == "ILIKE")


def leaf_words(leaf: Leaf) -> str:
    """What the attribute of a leaf should be, where no interval of keys says it."""
    if leaf.op.endswith("LIKE"):
        denial = "not " if leaf.op.startswith("NOT") else ""
        return denial + pattern_words(leaf.pattern, " ESCAPE ".join(literal(value) for value in leaf.values))
    test = Test(leaf.op, (Field(leaf.name, 0, leaf.type, 0), *(Constant(value, "", 0) for value in leaf.values)), 0)
    return condition_words(test, list(map(literal, leaf.values)))


def pattern_words(pattern: Pattern, text: str, any_case: bool = False) -> str:
    """
    >>> [pattern_words(Pattern(text), f"'{text}'") for text in ("ab%", "%ab", "%ab%", "a%b", "ab")]
    ["starting with 'ab'", "ending with 'ab'", "containing 'ab'", "like 'a%b'", "'ab'"]
    """
    if not pattern.shape:
        words = literal(pattern.prefix)
    elif pattern.shape == "%" and pattern.prefix:
        words = f"starting with {literal(pattern.prefix)}"
    elif pattern.ends and pattern.suffix:
        words = f"ending with {literal(pattern.suffix)}"
    elif pattern.is_fragment:
        words = f"containing {literal(pattern.fragments()[0])}"
    else:
        words = f"like {text}"
    return f"{words} in any case" if any_case else words


def what_is_absent(pattern: Pattern, text: str) -> str:
    """What a text that is not like a pattern lacks."""
    if not pattern.shape:
        return ""
    if not text.startswith(pattern.prefix):
        return f", which does not start with {literal(pattern.prefix)}"
    if not text.endswith(pattern.suffix):
        return f", which does not end with {literal(pattern.suffix)}"
    lacking = [fragment for fragment in pattern.fragments() if fragment not in text]
    return f", which does not contain {literal(lacking[0])}" if lacking else ""
