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
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding import arrow_compute as pc
from hitbox.encoding.arrays import I64
from hitbox.encoding.keys import Derived, Keys
from hitbox.encoding.schema import Schema
from hitbox.engine import _kernels
from hitbox.index.load.condition_reader import LONGEST_TEXT, MOST_ASKED, ConditionReader
from hitbox.language import Limits, Program, Programs
from hitbox.language.boxes.normal import LITERAL_LENGTH

MAX_PARSED_ROWS = 8
"""Rows up to which the reader is not worth it."""
PIECE_ROWS = 20_000
PIECE_BYTES = LONGEST_TEXT
Mask = NDArray[np.bool_]
Columns = tuple[I64, NDArray[np.uint8], I64, NDArray[np.int32], I64, I64, Programs]


class PredicateColumn:
    """Predicates that were read but have no keys yet."""

    def __init__(self, texts: pa.Array, wanted: Mask, schema: Schema, limits: Limits):
        """`texts` are large strings; the rows that are not `wanted` are left out."""
        self._schema, self._limits = schema, limits
        self._pieces: list[_kernels.Piece] = []
        self._texts = texts
        self.read: Mask = np.zeros(len(texts), bool)
        """Which rows were read; the others are for `language`."""
        self._strings: list[int] = []
        if np.count_nonzero(wanted) > MAX_PARSED_ROWS:
            self._reader = ConditionReader(schema, limits)
            self._pieces = [self._read(*piece) for piece in _pieces(texts, wanted)]
            self.read = np.concatenate([piece.read().view(bool) for piece in self._pieces])
            types = [*(of.type for of in schema.values()), *(of.type for of in self._reader.derived)]
            self._strings = [at for at, type_ in enumerate(types) if type_ == "string"]

    def derived(self) -> dict[str, tuple[Derived, int]]:
        """The functions of attributes that the rows would use, by their texts, and how often."""
        if not self._pieces or not self._reader.derived:
            return {}
        uses = np.zeros(self._reader.declared + len(self._reader.derived), np.int64)
        for piece in self._pieces:
            some = piece.uses()
            uses[: len(some)] += some
        counts = uses[self._reader.declared :].tolist()
        return {one.text: (one, count) for one, count in zip(self._reader.derived, counts, strict=True) if count}

    def strings(self, keys: Keys) -> dict[int, pa.Array]:
        """The strings that need labels, by attribute number."""
        if not self._pieces:
            return {}
        numbers = self._reader.numbers(keys).listed
        found = {numbers[at]: self._distinct(at) for at in self._strings if numbers[at] >= 0}
        return {number: texts for number, texts in found.items() if len(texts)}

    def boxes(self, keys: Keys, low: I64, high: I64) -> Iterator[Columns]:
        """(boxes per row, exact, offsets, attribute, low, high, programs by row), piece by piece. A row that is for
        `language` after all has -1 boxes. `low` and `high` are what rows say about themselves, a column per information
        attribute."""
        if not self._pieces:
            return
        numbers, native_numbers = self._reader.numbers(keys)
        labels: list[I64 | None] = [None] * len(numbers)
        for at in self._strings:
            texts = self._distinct(at)
            known = numbers[at] >= 0
            found = keys.codecs[numbers[at]].column(texts) if known else np.zeros(len(texts), np.int64)
            labels[at] = np.ascontiguousarray(found)
        about = np.array(keys.space.information, np.int32)
        start = 0
        for piece in self._pieces:
            rows = slice(start, start + len(piece))
            start += len(piece)
            lengths = pc.utf8_length(self._texts.slice(rows.start, len(piece))).fill_null(0).to_numpy()
            *boxes, programs = self._reader.native.make(
                piece,
                labels,
                native_numbers,
                np.maximum(self._limits.boxes, lengths.astype(np.int64) // LITERAL_LENGTH),
                self._limits.boxes,
                about,
                np.ascontiguousarray(low[rows]).reshape(-1),
                np.ascontiguousarray(high[rows]).reshape(-1),
            )
            yield (*boxes, _programs(programs, rows.start))  # type: ignore[misc]

    def _distinct(self, number: int) -> pa.Array:
        offsets, data = self._reader.native.strings(number)
        return pa.Array.from_buffers(
            pa.large_string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )

    def _read(self, offsets: I64, data: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> _kernels.Piece:
        piece, row, known = _kernels.Piece(), 0, self._reader.defined
        while True:
            before, row = row, self._reader.native.read(offsets, data, wanted, row, len(wanted), piece)
            asked = self._reader.native.question()
            if asked is None:
                return piece
            if row > before:
                known = self._reader.defined
            self._reader.answer(asked)
            if self._reader.defined - known >= MOST_ASKED:
                wanted[row] = 0


def _programs(made: tuple[I64, I64, NDArray[np.uint32], I64, I64], start: int) -> Programs:
    """Programs by row, from their columns."""
    rows, code_offsets, code, literal_offsets, literals = made
    shapes, keys = memoryview(code.tobytes()), memoryview(literals.tobytes())
    ends = zip(pairwise((4 * code_offsets).tolist()), pairwise((8 * literal_offsets).tolist()), strict=True)
    found = (Program(bytes(shapes[a:b]), bytes(keys[c:d])) for (a, b), (c, d) in ends)
    return dict(zip((start + rows).tolist(), found, strict=True))


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
