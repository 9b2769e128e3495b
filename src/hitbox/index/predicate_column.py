"""A column of predicates -> boxes, condition by condition.

    "price BETWEEN 10 AND 20 AND city = 'Paris'"    price BETWEEN ? AND ?     10, 20
    "city = 'Rome' AND price BETWEEN 1 AND 5"       city = ?                  'Paris', 'Rome'

Most predicates are conjunctions, and their conditions have few shapes, whatever their literals are. The native reader
(condition_reader.py) cuts texts into conditions and literals. The rows that it does not take go through `language` as a
whole.

Work goes in pieces, so that an interrupt is noticed between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.engine import _kernels
from hitbox.index.condition_reader import LONGEST_TEXT, ConditionReader
from hitbox.language import Limits, most_boxes

MAX_PARSED_ROWS = 8
"""Rows up to which the reader is not worth it."""
MOST_BOXES = 10_000
"""Boxes of one row that are made natively: more are for `language`."""
PIECE_ROWS = 20_000
PIECE_BYTES = LONGEST_TEXT
Mask = NDArray[np.bool_]
Columns = tuple[I64, NDArray[np.uint8], I64, NDArray[np.int32], I64, I64]


class PredicateColumn:
    """Predicates that were read but have no keys yet."""

    def __init__(self, texts: pa.Array, wanted: Mask, schema: Schema, limits: Limits):
        """`texts` are large strings; the rows that are not `wanted` are left out."""
        self._schema, self._limits = schema, limits
        self._pieces: list[_kernels.Piece] = []
        self._longest: list[int] = []
        """Bytes of the longest text of each piece."""
        self.read: Mask = np.zeros(len(texts), bool)
        """Which rows were read; the others are for `language`."""
        self._strings: list[int] = []
        if np.count_nonzero(wanted) > MAX_PARSED_ROWS:
            self._strings = [number for number, of in enumerate(schema.values()) if of.type == "string"]
            self._reader = ConditionReader(schema, limits)
            pieces = list(_pieces(texts, wanted))
            self._longest = [int(np.diff(offsets).max()) for offsets, _, _ in pieces]
            self._pieces = [self._read(*piece) for piece in pieces]
            self.read = np.concatenate([piece.read().view(bool) for piece in self._pieces])

    def strings(self) -> dict[int, pa.Array]:
        """The strings that need labels, by attribute number."""
        found = {number: self._distinct(number) for number in self._strings}
        return {number: texts for number, texts in found.items() if len(texts)}

    def boxes(self, keys: Keys, low: I64, high: I64) -> Iterator[Columns]:
        """(boxes per row, exact, offsets, attribute, low, high), piece by piece. A row that would have more boxes than
        any text of its piece may have has -1 of them. `low` and `high` are what rows say about themselves, a column per
        information attribute."""
        if not self._pieces:
            return
        labels: list[I64 | None] = [None] * len(self._schema)
        for number in self._strings:
            labels[number] = np.ascontiguousarray(keys.codecs[number].column(self._distinct(number)))
        about = np.array(keys.space.information, np.int32)
        start = 0
        for piece, longest in zip(self._pieces, self._longest, strict=True):
            rows = slice(start, start + len(piece))
            start += len(piece)
            yield self._reader.native.make(
                piece,
                labels,
                min(most_boxes(longest, self._limits), max(self._limits.boxes, MOST_BOXES)),
                about,
                np.ascontiguousarray(low[rows]).reshape(-1),
                np.ascontiguousarray(high[rows]).reshape(-1),
            )

    def _distinct(self, number: int) -> pa.Array:
        offsets, data = self._reader.native.strings(number)
        return pa.Array.from_buffers(
            pa.large_string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )

    def _read(self, offsets: I64, data: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> _kernels.Piece:
        piece, row = _kernels.Piece(), 0
        while True:
            row = self._reader.native.read(offsets, data, wanted, row, len(wanted), piece)
            asked = self._reader.native.question()
            if asked is None:
                return piece
            self._reader.answer(asked)


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
