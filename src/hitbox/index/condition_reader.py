"""What the native reader of predicates (src/engine/text) has to know: the meaning of each shape of a condition.

    price BETWEEN ? AND ?    a shape: a condition with its literals replaced

The reader asks what a shape means when it meets one for the first time, and `language.parse` reads every shape once, so
there is one grammar. A text that the reader does not take, because it is rare or in error, is for `language`.
"""

from __future__ import annotations

import os
from typing import Any

from hitbox import language
from hitbox.encoding.codecs import BoolCodec, Codec, FloatCodec, GridCodec, IntCodec, StringCodec, TimestampCodec
from hitbox.encoding.keys import Keys, derived_codec
from hitbox.encoding.schema import Schema
from hitbox.engine import _kernels
from hitbox.errors import HitboxError
from hitbox.language import Leaf, Limits, Pattern
from hitbox.language.derived import DerivedAttribute, condition
from hitbox.language.expressions import Constant
from hitbox.language.patterns import successor
from hitbox.language.tree import Node, Test, without_not

LONGEST_TEXT = 2**21
"""Bytes of the longest text that is read."""
EXACT = 2**53
TYPES: list[type[Codec]] = [IntCodec, FloatCodec, GridCodec, BoolCodec, TimestampCodec, StringCodec]
OTHER = len(TYPES)
TESTS = [
    *("=", "<", "<=", ">", ">=", "BETWEEN", "LIKE", "IS NULL", "IS NOT NULL", "TRUE", "FALSE"),
    *("<>", "NOT BETWEEN", "NOT LIKE", "IN", "NOT IN"),
]
"""The tests that the reader knows, as src/engine/text/conditions.hpp numbers them."""
LISTS = ("IN", "NOT IN")
Meaning = tuple[str | None, str | None, bool, bool, int]
"""Of a pattern: the first string, the one above the last, whether the first is the only one, whether these are more
than the pattern matches, and the attribute whose strings they are."""


class ConditionReader:
    def __init__(self, schema: Schema, limits: Limits):
        self._schema, self._limits = schema, limits
        self._patterns: dict[int, Leaf | Test] = {}
        """Shapes with a pattern or a network: the condition, with another text in place of it."""
        self.declared = len(schema)
        self.derived: list[DerivedAttribute] = []
        """The derived attributes that shapes and patterns are about: the reader numbers them after the schema's."""
        self._numbers: dict[str, int] = {}
        self.defined = 0
        """How many shapes and patterns it knows."""
        self.native = _kernels.Reader(
            [_described(codec) for codec in Keys(schema).codecs],
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
        if isinstance(root, Test):
            self._define_test(shape, root, places, lists)
            return
        if root.op in ("TRUE", "FALSE"):
            if not any(lists) and all(text[place : place + 4].upper() in ("TRUE", "FALS") for place in places):
                self.native.define_constant(shape, root.op == "TRUE")
            return  # a comparison of other literals: its truth is not that of its shape
        if not isinstance(root, Leaf) and root.op not in ("AND", "OR"):
            return
        leaves = [leaf for leaf in root.children or (root,) if isinstance(leaf, Leaf)]
        likes = [leaf for leaf in leaves if leaf.op.endswith("LIKE")]
        tests = [_test(leaf, places) for leaf in leaves]
        if len(leaves) < len(root.children) or len({leaf.number for leaf in leaves}) > 1:
            return  # more than one attribute, or ANDs inside ORs
        if None in tests or (likes and len(leaves) > 1):
            return
        operands = [(place, test in LISTS) for leaf, test in zip(leaves, tests, strict=True) for place in _places(leaf)]
        if [one for one in operands if one[0] in places] != list(zip(places, lists, strict=True)):
            return
        if likes:
            self._patterns[shape] = likes[0]
        self.native.define(shape, leaves[0].number, root.op == "OR", [TESTS.index(test) for test in tests if test])

    def _parsed(self, text: str, places: list[int]) -> Node:
        if len(places) == 1 and text[: places[0]].rstrip().upper().endswith(" NETWORK"):
            text = f"{text[: places[0]]}'::'{text[places[0] + 2 :]}"  # an empty text is no network
        return language.parse(text, self._schema, "criteria", self._limits).root

    def _define_test(self, shape: int, test: Test, places: list[int], lists: list[bool]) -> None:
        """Say what a condition on a function of attributes means, if boxes decide it."""
        if test.texts:
            found = condition(test, self._schema)
            if found is not None and len(places) == 1:
                self._patterns[shape] = test
                like = "NOT LIKE" if test.op.startswith("NOT") else "LIKE"
                self.native.define(shape, self._number(found.of), False, [TESTS.index(like)])
            return
        found = condition(test, self._schema)
        if found is not None and test.op.endswith("MISSING"):
            self.native.define(shape, self._number(found.of), False, [TESTS.index(str(found.values[0]).upper())])
            return
        others = [one.position for one in test.operands[1:] if isinstance(one, Constant)]
        if found is None or not found.exact or found.op not in TESTS or len(others) < len(test.operands) - 1:
            return
        listed = found.op in LISTS
        if others == places and lists == [listed] * len(places):
            self.native.define(shape, self._number(found.of), False, [TESTS.index(found.op)])

    def _number(self, of: DerivedAttribute) -> int:
        number = self._numbers.get(of.text)
        if number is None:
            number = self._numbers[of.text] = self.native.add_attribute(_described(derived_codec(of, None)))
            self.derived.insert(number - len(self._schema), of)
        return number

    def numbers(self, keys: Keys) -> list[int]:
        """The numbers of the reader's attributes in boxes; -1 of those that have no keys."""
        numbers = list(range(self.declared))
        for one in self.derived:
            number = keys.number_of(one)
            numbers.append(-1 if number is None else number)
        return numbers

    def _define_pattern(self, shape: int, raw: bytes) -> None:
        """Say which strings a pattern comes to; see `leaf_set` in language/normal.py."""
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
                return low, successor(low) if low and not plain else None, plain, False, of.number
        else:
            found = condition(Test(of.op, of.operands, of.position, (text, *of.texts[1:])), self._schema)
        if found is None or not found.exact or found.op not in ("=", "<>", "WITHIN", "NOT WITHIN"):
            return None
        low, above = found.ends()
        return low, above, not found.op.endswith("WITHIN"), False, self._number(found.of)


def _places(leaf: Leaf) -> tuple[int, ...]:
    """Where the literals of a leaf stand; the escape character of a LIKE is part of the shape."""
    return leaf.places[:1] if leaf.op.endswith("LIKE") else leaf.places


def _test(leaf: Leaf, places: list[int]) -> str | None:
    """The test of a leaf whose literals stand at `places`; None where the reader has no such test."""
    found = [place in places for place in _places(leaf)]
    if all(found):
        return leaf.op
    if not any(found) and leaf.op in ("=", "<>"):  # a bool attribute alone: no literal stands in the text
        return "TRUE" if leaf.values[0] == (leaf.op == "=") else "FALSE"
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
