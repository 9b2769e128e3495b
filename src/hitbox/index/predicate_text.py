"""One predicate -> boxes: natively where its text is plain, through `language` otherwise.

    text -> ReadPredicate     conditions of shapes that are known, literals converted natively (condition_reader.py)
         -> ParsedPredicate   whatever else the language has, and every error

Both give the same boxes. A subscription is made in two steps, because its strings need labels before they have keys.
"""

from __future__ import annotations

from hitbox import language
from hitbox.encoding.arrays import Boxes
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.engine import _kernels
from hitbox.index.condition_reader import ConditionReader
from hitbox.language import Limits, Predicate

MOST_DEFINED = 4096
"""Shapes and patterns that a reader may know before it is made again: nobody can make it grow for ever."""

Box = dict[int, tuple[int, int]]


class ParsedPredicate:
    def __init__(self, predicate: Predicate, limits: Limits):
        self._predicate, self._limits = predicate, limits

    def strings(self) -> dict[int, set[str]]:
        """The strings that need labels, by attribute number."""
        return language.strings(self._predicate)

    def boxes(self, keys: Keys, about: Box, priority: int) -> tuple[Boxes, list[bool]]:
        """The boxes, and which are exact. `about` is what the subscription says about itself."""
        compiled = language.compile(self._predicate, keys, self._limits)
        boxes = [box | about for box in compiled.boxes]
        return Boxes.of(boxes, [priority] * len(boxes)), list(compiled.exact)


class ReadPredicate:
    def __init__(self, texts: PredicateTexts, native: _kernels.Reader, text: str, read: _kernels.ReadText):
        self._texts, self._native, self._text, self._read = texts, native, text, read

    def strings(self) -> dict[int, set[str]]:
        return {number: set(some) for number, some in (self._read.strings or {}).items()}

    def boxes(self, keys: Keys, about: Box, priority: int) -> tuple[Boxes, list[bool]]:
        labels: dict[int, list[int]] | None = None
        if self._read.strings is not None:
            labels = {at: [keys.codecs[at].key(one) for one in some] for at, some in self._read.strings.items()}
        told = [(number, low, high) for number, (low, high) in sorted(about.items())]
        most = language.most_boxes(len(self._text), self._texts.limits)
        made = self._native.make_one(self._read, labels, most, told, int(priority))
        if made is None:  # too many boxes: `language` covers them
            return self._texts.parse(self._text).boxes(keys, about, priority)
        exact, offsets, attribute, low, high, levels = made
        return Boxes(offsets, attribute, low, high, levels), [exact] * len(levels)


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
        try:
            while isinstance(found := reader.native.read_text(text), tuple):
                reader.answer(found)
        except BaseException:
            self._reader = None  # it may wait for an answer that never comes
            raise
        return self.parse(text) if found is None else ReadPredicate(self, reader.native, text, found)

    def parse(self, text: str) -> ParsedPredicate:
        return ParsedPredicate(language.parse(text, self._schema, role="criteria", limits=self.limits), self.limits)
