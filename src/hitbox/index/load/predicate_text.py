"""One predicate -> boxes: natively where its text is plain, through `language` otherwise.

    text -> ReadPredicate     conditions of shapes that are known, literals converted natively (condition_reader.py)
         -> ParsedPredicate   whatever else the language has, and every error

Both give the same boxes. A subscription is made in two steps, because its strings need labels before they have keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from hitbox import language
from hitbox.encoding.arrays import Boxes
from hitbox.encoding.codecs import Codec
from hitbox.encoding.keys import Derived, Keys
from hitbox.encoding.schema import Schema
from hitbox.engine import _kernels
from hitbox.index.anchors import PATTERN, may_have_anchors
from hitbox.index.load.condition_reader import MOST_ASKED, ConditionReader
from hitbox.language import Limits, Predicate, Program

MOST_DEFINED = 4096
"""Shapes and patterns that a reader may know before it is made again: nobody can make it grow for ever."""

MANY_STRINGS = 64
"""Strings that are looked up together."""

Box = dict[int, tuple[int, int]]


class Made(NamedTuple):
    boxes: Boxes
    exact: list[bool]
    """Which boxes are."""
    program: Program | None = None


class ParsedPredicate:
    def __init__(self, predicate: Predicate, limits: Limits):
        self._predicate, self._limits = predicate, limits

    def derived(self) -> Mapping[str, Derived]:
        """The functions of attributes that it would use, by their texts."""
        return language.derived(self._predicate)

    def strings(self, keys: Keys) -> dict[int, set[str]]:
        """The strings that need labels, by attribute number."""
        return language.strings(self._predicate, keys)

    def boxes(self, keys: Keys, about: Box, priority: int) -> Made:
        """`about` is what the subscription says about itself."""
        compiled = language.compile(self._predicate, keys, self._limits, anchored=True)
        boxes = [box | about for box in compiled.boxes]
        made = Boxes.of(boxes, [priority] * len(boxes), compiled.anchors)
        return Made(made, list(compiled.exact), compiled.program)


class ReadPredicate:
    def __init__(self, texts: PredicateTexts, reader: ConditionReader, text: str, read: _kernels.ReadText):
        self._texts, self._reader, self._text, self._read = texts, reader, text, read

    def derived(self) -> Mapping[str, Derived]:
        if not self._reader.derived:
            return {}
        declared, derived = self._reader.declared, self._reader.derived
        found = (derived[number - declared] for number in self._read.attributes() if number >= declared)
        return {one.text: one for one in found}

    def strings(self, keys: Keys) -> dict[int, set[str]]:
        if self._read.strings is None:
            return {}
        numbers = self._reader.numbers(keys).listed
        found = ((numbers[at], some) for at, some in self._read.strings.items())
        return {number: set(some) for number, some in found if number >= 0}

    def boxes(self, keys: Keys, about: Box, priority: int) -> Made:
        labels: dict[int, list[int]] | None = None
        numbers, native_numbers = self._reader.numbers(keys)
        if self._read.strings is not None:
            labels = {}
            for at, some in self._read.strings.items():
                labels[at] = _keys(keys.codecs[numbers[at]], some) if numbers[at] >= 0 else [0] * len(some)
        told = [(number, low, high) for number, (low, high) in sorted(about.items())]
        limits = self._texts.limits
        most = language.most_boxes(len(self._text), limits)
        made = self._reader.native.make_one(self._read, labels, native_numbers, most, limits.boxes, told, int(priority))
        if made is None:  # too many boxes for what it says, or no keys for what is derived
            return self._texts.parse(self._text).boxes(keys, about, priority)
        exact, offsets, attribute, low, high, levels, program = made
        boxes = Boxes(offsets, attribute, low, high, levels)
        if not exact and PATTERN in self._text.lower() and may_have_anchors(boxes, keys).any():
            return self._texts.parse(self._text).boxes(keys, about, priority)
        return Made(boxes, [exact] * len(levels), None if program is None else Program(*program))


def _keys(codec: Codec, strings: list[str]) -> list[int]:
    if len(strings) < MANY_STRINGS:
        return [codec.key(one) for one in strings]
    found: list[int] = codec.column(pa.array(strings, pa.large_string())).tolist()
    return found


class PredicateTexts:
    """Any number of threads may use it."""

    def __init__(self, schema: Schema, limits: Limits):
        self.limits = limits
        self._schema = schema
        self._reader: ConditionReader | None = None

    def read(self, text: str) -> ReadPredicate | ParsedPredicate:
        """An error where the text is no predicate."""
        if type(text) is not str:
            return self.parse(text)
        reader = self._reader
        if reader is None or reader.defined > MOST_DEFINED:
            reader = self._reader = ConditionReader(self._schema, self.limits)
        known = reader.defined
        try:
            while isinstance(found := reader.native.read_text(text), tuple):
                reader.answer(found)
                if reader.defined - known >= MOST_ASKED:
                    return self.parse(text)
        except BaseException:
            self._reader = None  # it may wait for an answer that never comes
            raise
        return self.parse(text) if found is None else ReadPredicate(self, reader, text, found)

    def parse(self, text: str) -> ParsedPredicate:
        return ParsedPredicate(language.parse(text, self._schema, role="criteria", limits=self.limits), self.limits)
