"""What the native reader of predicates (src/engine/text) has to know: the meaning of each shape of a condition.

    price BETWEEN ? AND ?    a shape: a condition with its literals replaced

The reader asks what a shape means when it meets one for the first time, and `language.parse` reads every shape once, so
there is one grammar. A text that the reader does not take, because it is rare or in error, is for `language`.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitbox import language
from hitbox.encoding.codecs import (
    BoolCodec,
    Codec,
    FloatCodec,
    GridCodec,
    IntCodec,
    NumberCodec,
    StringCodec,
    TimestampCodec,
)
from hitbox.encoding.keys import Keys, derived_codec
from hitbox.encoding.schema import Schema
from hitbox.engine import _kernels
from hitbox.errors import HitboxError
from hitbox.language import Leaf, Limits, Pattern
from hitbox.language.boxes.derived import DerivedAttribute, condition
from hitbox.language.conditions.patterns import successor
from hitbox.language.syntax.expressions import Constant
from hitbox.language.syntax.tree import Branch, Node, Test, without_not

LONGEST_TEXT = 2**21
"""Bytes of the longest text that is read."""
MOST_ASKED = 100
"""Questions about one text: it is read from its start after each, so one with more of them is for `language`."""
EXACT = 2**53
TYPES: list[type[Codec]] = [IntCodec, FloatCodec, GridCodec, BoolCodec, TimestampCodec, StringCodec, NumberCodec]
OTHER = len(TYPES)
TESTS = [
    *("=", "<", "<=", ">", ">=", "BETWEEN", "LIKE", "IS NULL", "IS NOT NULL", "TRUE", "FALSE"),
    *("<>", "NOT BETWEEN", "NOT LIKE", "IN", "NOT IN"),
]
"""The tests that the reader knows, as src/engine/text/conditions.hpp numbers them."""
LISTS = ("IN", "NOT IN")
Meaning = tuple[str | None, str | None, bool, int]
"""Of a pattern: the first string, the one above the last, whether the first is the only one, and the attribute whose
strings they are."""


class Tested(NamedTuple):
    """A condition on one attribute, as the reader tests it."""

    of: int | DerivedAttribute
    test: str
    places: tuple[int, ...]
    """Where its literals stand in the text."""

    @property
    def attribute(self) -> int | str:
        return self.of if isinstance(self.of, int) else self.of.text


class Numbers(NamedTuple):
    """The numbers of the reader's attributes in boxes; -1 of those that have no keys."""

    listed: list[int]
    native: NDArray[np.int32]


class ConditionReader:
    def __init__(self, schema: Schema, limits: Limits):
        self._schema, self._limits = schema, limits
        self._patterns: dict[int, Leaf | Test] = {}
        """Shapes with a pattern or a network: the condition, with another text in place of it."""
        self.declared = len(schema)
        self.derived: list[DerivedAttribute] = []
        """The derived attributes that shapes and patterns are about: the reader numbers them after the schema's."""
        self._numbers: dict[str, int] = {}
        self._known: tuple[Keys, Numbers] | None = None
        """What `numbers` returned last, and of which keys."""
        self.defined = 0
        """How many shapes and patterns it knows."""
        self.native = _kernels.Reader(
            [_described(codec) for codec in Keys(schema).codecs[: self.declared]],
            min(limits.text, LONGEST_TEXT),
            limits.depth,
            limits.values,
            int.from_bytes(os.urandom(8), "little"),
            int.from_bytes(os.urandom(8), "little"),
        )

    def answer(self, asked: _kernels.Question) -> None:
        """Define what the native reader asks for."""
        self.defined += 1
        if len(asked) == 2:
            self._define_pattern(*asked)
        else:
            self._define(*asked)

    def _define(self, shape: int, raw: bytes, places: list[int], lists: list[bool]) -> None:
        """Say what a shape means; one that is left undefined is for `language`."""
        text = raw.decode()
        if not text.isascii():
            places = [len(raw[:place].decode()) for place in places]
        try:
            root = without_not(self._parsed(text, places))
        except HitboxError:
            return
        if isinstance(root, Test) and root.texts:
            self._define_text_test(shape, root, places)
            return
        if root.op in ("TRUE", "FALSE"):
            if not any(lists) and all(text[place : place + 4].upper() in ("TRUE", "FALS") for place in places):
                self.native.define_constant(shape, root.op == "TRUE")
            return  # a comparison of other literals: its truth is not that of its shape
        if isinstance(root, Branch) and root.op not in ("AND", "OR"):
            return
        nodes = root.children if isinstance(root, Branch) else (root,)
        several = [found for node in nodes if (found := self._tested(node, places)) is not None]
        if len(several) < len(nodes) or len({one.attribute for one in several}) > 1:
            return  # more than one attribute, or ANDs inside ORs
        likes = [node for node in nodes if isinstance(node, Leaf) and node.op.endswith("LIKE")]
        if likes and len(nodes) > 1:
            return
        operands = [(place, one.test in LISTS) for one in several for place in one.places]
        if [one for one in operands if one[0] in places] != list(zip(places, lists, strict=True)):
            return
        if likes:
            self._patterns[shape] = likes[0]
        number = self._number(several[0].of)
        self.native.define(shape, number, root.op == "OR", [TESTS.index(one.test) for one in several])

    def _parsed(self, text: str, places: list[int]) -> Node:
        if len(places) == 1 and text[: places[0]].rstrip().upper().endswith(" NETWORK"):
            text = f"{text[: places[0]]}'::'{text[places[0] + 2 :]}"  # an empty text is no network
        return language.parse(text, self._schema, "criteria", self._limits).root

    def _tested(self, node: Node, places: list[int]) -> Tested | None:
        """What a condition tests, if boxes decide it; None where the reader has no such test."""
        if isinstance(node, Leaf):
            test = _test(node.op, node.values, _places(node), places)
            return None if test is None else Tested(node.number, test, _places(node))
        found = condition(node, self._schema) if isinstance(node, Test) and not node.texts else None
        if found is None or not isinstance(node, Test):
            return None
        if node.op.endswith("MISSING"):
            return Tested(found.of, str(found.values[0]).upper(), ())
        others = tuple(one.position for one in node.operands[1:] if isinstance(one, Constant))
        if not found.exact or found.op not in TESTS or len(others) < len(node.operands) - 1:
            return None
        test = _test(found.op, found.values, others, places)
        return None if test is None else Tested(found.of, test, others)

    def _define_text_test(self, shape: int, test: Test, places: list[int]) -> None:
        """Say what a condition with a pattern or a network means, if boxes decide it."""
        found = condition(test, self._schema)
        if found is not None and len(places) == 1:
            self._patterns[shape] = test
            like = "NOT LIKE" if test.op.startswith("NOT") else "LIKE"
            self.native.define(shape, self._number(found.of), False, [TESTS.index(like)])

    def _number(self, of: int | DerivedAttribute) -> int:
        if isinstance(of, int):
            return of
        number = self._numbers.get(of.text)
        if number is None:
            number = self._numbers[of.text] = self.native.add_attribute(_described(derived_codec(of, None)))
            self.derived.insert(number - self.declared, of)
        return number

    def numbers(self, keys: Keys) -> Numbers:
        known = self._known
        if known is None or known[0] is not keys or len(known[1].listed) < self.declared + len(self.derived):
            listed = list(range(self.declared))
            for one in self.derived:
                number = keys.number_of(one)
                listed.append(-1 if number is None else number)
            known = self._known = keys, Numbers(listed, np.array(listed, np.int32))
        return known[1]

    def _define_pattern(self, shape: int, raw: bytes) -> None:
        """Say which strings a pattern comes to; see `leaf_set` in language/boxes/normal.py."""
        text, of = raw.decode(), self._patterns[shape]
        try:
            meaning = self._meaning(of, text)
        except ValueError:  # it is no network
            meaning = None
        if meaning is None:
            self.native.refuse_pattern(shape, raw)
        else:
            self.native.define_pattern(shape, raw, *meaning)

    def _meaning(self, of: Leaf | Test, text: str) -> Meaning | None:
        escapes = of.texts[1:] if isinstance(of, Test) else of.values[1:]
        escape = str(escapes[0]) if escapes else None
        if len(text) > self._limits.pattern or (escape and not Pattern.complete(text, escape)):
            return None
        if isinstance(of, Leaf):
            values: tuple[Any, ...] = (text, *escapes)
            leaf = Leaf(of.name, of.number, of.type, of.op, values, of.position, of.places)
            found, pattern = condition(leaf, self._schema), leaf.pattern
            if found is None and pattern.shape == "*":
                return None  # an anchor, or a test of the text, tells more than its prefix
            if found is None:
                plain = not pattern.shape
                low = pattern.prefix if pattern.prefix or plain else None
                return low, successor(low) if low and not plain else None, plain, of.number
        else:
            found = condition(Test(of.op, of.operands, of.position, (text, *of.texts[1:])), self._schema)
        if found is None or not found.exact or found.op not in ("=", "<>", "WITHIN", "NOT WITHIN"):
            return None
        low, above = found.ends()
        return low, above, not found.op.endswith("WITHIN"), self._number(found.of)


def _places(leaf: Leaf) -> tuple[int, ...]:
    """Where the literals of a leaf stand; the escape character of a LIKE is part of the shape."""
    return leaf.places[:1] if leaf.op.endswith("LIKE") else leaf.places


def _test(op: str, values: tuple[Any, ...], stand: tuple[int, ...], places: list[int]) -> str | None:
    """The test of a condition whose literals stand at `stand`; None where the reader has no such test."""
    found = [place in places for place in stand]
    if all(found):
        return op
    if not any(found) and op in ("=", "<>") and isinstance(values[0], bool):  # an attribute alone, without a literal
        return "TRUE" if values[0] == (op == "=") else "FALSE"
    return None


def _described(codec: Codec) -> tuple[int, bool, int, int, int, int]:
    """(type, even, over, under, first, last): what the reader has to know of a codec."""
    if codec.is_list or (not isinstance(codec, GridCodec) and type(codec) not in TYPES):
        return OTHER, False, 1, 1, 0, 0
    if not isinstance(codec, GridCodec):
        return TYPES.index(type(codec)), codec.even, 1, 1, 0, 0
    over, under = codec.step.numerator, codec.step.denominator
    if max(over, under) >= EXACT:
        return OTHER, False, 1, 1, 0, 0
    return TYPES.index(GridCodec), codec.even, over, under, codec.first, codec.last
