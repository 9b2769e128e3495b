"""A column of predicates -> boxes, condition by condition.

    "price BETWEEN 10 AND 20 AND city = 'Paris'"    price BETWEEN ? AND ?     10, 20
    "city = 'Rome' AND price BETWEEN 1 AND 5"       city = ?                  'Paris', 'Rome'

Most predicates are conjunctions, and their conditions have few shapes, whatever their literals are. The native reader
(src/engine/text) cuts texts into conditions and literals. It asks here what each shape means, and `language.parse`
reads every shape once, so there is one grammar. The rows that the reader does not take, because they are rare or in
error, go through `language` as a whole.

Work goes in pieces, so that an interrupt is noticed between two of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox import language
from hitbox.encoding.arrays import I64
from hitbox.encoding.codecs import BoolCodec, Codec, FloatCodec, GridCodec, IntCodec, StringCodec, TimestampCodec
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.engine import _kernels
from hitbox.errors import HitboxError
from hitbox.language import Leaf, Limits, Pattern
from hitbox.language.patterns import successor
from hitbox.language.tree import without_not

MAX_PARSED_ROWS = 8
"""Rows up to which the reader is not worth it."""
PIECE_ROWS = 20_000
PIECE_BYTES = 2**21
EXACT = 2**53
TYPES: list[type[Codec]] = [IntCodec, FloatCodec, GridCodec, BoolCodec, TimestampCodec, StringCodec]
OTHER = len(TYPES)
TESTS = [
    *("=", "<", "<=", ">", ">=", "BETWEEN", "LIKE", "IS NULL", "IS NOT NULL", "TRUE", "FALSE"),
    *("<>", "NOT BETWEEN", "NOT LIKE", "IN", "NOT IN"),
]
"""The tests that the reader knows, as src/engine/text/conditions.hpp numbers them."""
LISTS = ("IN", "NOT IN")

Mask = NDArray[np.bool_]
Columns = tuple[I64, NDArray[np.uint8], I64, NDArray[np.int32], I64, I64]


class PredicateColumn:
    """Predicates that were read but have no keys yet."""

    def __init__(self, texts: pa.Array, wanted: Mask, schema: Schema, limits: Limits):
        """`texts` are large strings; the rows that are not `wanted` are left out."""
        self._schema, self._limits = schema, limits
        self._likes: dict[int, str | None] = {}
        """Shapes with LIKE: their escape characters."""
        self._pieces: list[_kernels.Piece] = []
        self.read: Mask = np.zeros(len(texts), bool)
        """Which rows were read; the others are for `language`."""
        self._strings: list[int] = []
        if np.count_nonzero(wanted) > MAX_PARSED_ROWS:
            self._strings = [number for number, of in enumerate(schema.values()) if of.type == "string"]
            self._reader = _kernels.Reader(
                [_described(codec) for codec in Keys(schema).codecs],
                min(limits.text, PIECE_BYTES),
                limits.depth,
                limits.values,
                int.from_bytes(os.urandom(8), "little"),
                int.from_bytes(os.urandom(8), "little"),
            )
            self._pieces = [self._read(*piece) for piece in _pieces(texts, wanted)]
            self.read = np.concatenate([piece.read().view(bool) for piece in self._pieces])

    def strings(self) -> dict[int, pa.Array]:
        """The strings that need labels, by attribute number."""
        found = {number: self._distinct(number) for number in self._strings}
        return {number: texts for number, texts in found.items() if len(texts)}

    def boxes(self, keys: Keys, low: I64, high: I64) -> Iterator[Columns]:
        """(boxes per row, exact, offsets, attribute, low, high), piece by piece. A row that would have more boxes than
        the limit has -1 of them. `low` and `high` are what rows say about themselves, a column per information
        attribute."""
        if not self._pieces:
            return
        labels: list[I64 | None] = [None] * len(self._schema)
        for number in self._strings:
            labels[number] = np.ascontiguousarray(keys.codecs[number].column(self._distinct(number)))
        about = np.array(keys.space.information, np.int32)
        start = 0
        for piece in self._pieces:
            rows = slice(start, start + len(piece))
            start += len(piece)
            yield self._reader.make(
                piece,
                labels,
                self._limits.boxes,
                about,
                np.ascontiguousarray(low[rows]).reshape(-1),
                np.ascontiguousarray(high[rows]).reshape(-1),
            )

    def _distinct(self, number: int) -> pa.Array:
        offsets, data = self._reader.strings(number)
        return pa.Array.from_buffers(
            pa.large_string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )

    def _read(self, offsets: I64, data: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> _kernels.Piece:
        piece, row = _kernels.Piece(), 0
        while True:
            row = self._reader.read(offsets, data, wanted, row, len(wanted), piece)
            asked = self._reader.question()
            if asked is None:
                return piece
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
            root = without_not(language.parse(text, self._schema, "criteria", self._limits).root)
        except HitboxError:
            return
        if root.op in ("TRUE", "FALSE"):
            self._reader.define_constant(shape, root.op == "TRUE")
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
            self._likes[shape] = str(likes[0].values[1]) if likes[0].values[1:] else None
        self._reader.define(shape, leaves[0].number, root.op == "OR", [TESTS.index(test) for test in tests if test])

    def _define_pattern(self, shape: int, raw: bytes) -> None:
        """Say which strings a LIKE pattern comes to; see `leaf_set` in language/normal.py."""
        text, escape = raw.decode(), self._likes[shape]
        if len(text) > self._limits.pattern or (escape and not Pattern.complete(text, escape)):
            self._reader.refuse_pattern(shape, raw)
            return
        pattern = Pattern(text, escape)
        plain = not pattern.shape
        low = pattern.prefix if pattern.prefix or plain else None
        above = successor(low) if low and not plain else None
        self._reader.define_pattern(shape, raw, low, above, plain, pattern.shape == "*")


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
    if not isinstance(codec, GridCodec):
        return TYPES.index(type(codec)), codec.even, 1, 1, 0, 0
    over, under = codec.step.numerator, codec.step.denominator
    if max(over, under) >= EXACT:
        return OTHER, False, 1, 1, 0, 0
    return TYPES.index(GridCodec), codec.even, over, under, codec.first, codec.last


def _pieces(texts: pa.Array, wanted: Mask) -> Iterator[tuple[I64, NDArray[np.uint8], NDArray[np.uint8]]]:
    """(offsets, data, wanted) of a few rows at a time."""
    _, raw_offsets, raw = texts.buffers()
    if not len(texts):
        return
    offsets = np.frombuffer(raw_offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(raw, np.uint8) if raw is not None else np.zeros(0, np.uint8)
    start = 0
    while start < len(texts):
        full = int(np.searchsorted(offsets, offsets[start] + PIECE_BYTES, side="right")) - 1
        end = min(start + PIECE_ROWS, len(texts), max(full, start + 1))
        first = offsets[start]
        rows = wanted[start:end] & (np.diff(offsets[start : end + 1]) <= PIECE_BYTES)
        yield offsets[start : end + 1] - first, data[first : offsets[end]], rows.view(np.uint8)
        start = end
