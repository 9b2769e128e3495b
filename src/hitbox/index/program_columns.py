"""The programs of slots, as columns that native code reads (src/engine/program/program.hpp).

    slot   place            words                                 shape   code
      0      0 (none)         0: shape 0, 3 words | 17 | 18         0     TEST a
      1      1                3: shape 1, 2 words | 40              1     TEST b
      2      4

A slot's place is one more than the number of its first word, so that new room, which is zero, has no programs. Columns
end with the last slot that has one. Where no subscription has a program, nothing is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from sys import byteorder
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hitbox.encoding.array_checks import column, require
from hitbox.encoding.arrays import I64
from hitbox.encoding.string_dictionary import Relabel
from hitbox.engine import _kernels
from hitbox.errors import DamagedArray
from hitbox.index.load.columns import Numbers
from hitbox.language import NO_PROGRAMS, Program, Programs
from hitbox.language.programs.programs import tested_attributes

MANY_WASTED = 2**17
"""Words of dead programs up to which squeezing them out is not worth it."""
SHAPE = (1 << 32) - 1
NO_SLOTS: I64 = np.zeros(0, np.int64)


def tested(programs: Programs) -> I64:
    """The attributes that programs test, one per test."""
    if not programs:
        return NO_SLOTS
    shapes = Counter(program.shape for program in programs.values())
    return _repeated([np.frombuffer(shape, np.uint32) for shape in shapes], list(shapes.values()))


def _repeated(shapes: Sequence[NDArray[np.uint32]], counts: ArrayLike) -> I64:
    """The attributes that each shape tests, as often as it is used."""
    found = [np.array(tested_attributes(shape.tolist()), np.int64) for shape in shapes]
    numbers = np.concatenate([NO_SLOTS, *found])
    return np.repeat(numbers, np.repeat(counts, [len(one) for one in found]))


class ProgramColumns:
    """Changes come in two steps, as those of the catalog."""

    def __init__(
        self,
        place: NDArray[np.int64] | None = None,
        words: NDArray[np.int64] | None = None,
        code: NDArray[np.uint32] | None = None,
        shapes: NDArray[np.int64] | None = None,
    ):
        self._place = Numbers(np.zeros(0, np.int64) if place is None else place)
        self._words = Numbers(np.zeros(0, np.int64) if words is None else words)
        self._code = Numbers(np.zeros(0, np.uint32) if code is None else code)
        self._shapes = Numbers(np.zeros(1, np.int64) if shapes is None else shapes)
        self._known: dict[bytes, int] | None = None
        """The numbers of shapes by their code; made when the first program is added."""
        self._wasted = 0
        """Words of programs whose slots are dead."""

    @classmethod
    def of(cls, programs: Programs) -> ProgramColumns:
        """The programs of some rows, as those of slots."""
        made = cls()
        if programs:
            made.adding(0, programs)()
        return made

    def __bool__(self) -> bool:
        return len(self._place) > 0

    @property
    def native(self) -> _kernels.Programs | None:
        """The programs for native code: good until the next commit."""
        if not self:
            return None
        return _kernels.Programs(self._place.array, self._words.array, self._code.array, self._shapes.array)

    def nbytes(self) -> int:
        return sum(one.nbytes() for one in (self._place, self._words, self._code, self._shapes)) if self else 0

    def wasteful(self) -> bool:
        """Whether dead programs take more room than the others."""
        return self._wasted > MANY_WASTED and 2 * self._wasted > len(self._words)

    # ---- changing

    def adding(self, start: int, programs: Programs, gone: I64 = NO_SLOTS) -> Callable[[], None]:
        """Prepare the programs of new slots, which are numbered from `start`; those of the slots `gone` are wasted."""
        freed = int(self._sizes(self._used(gone)).sum()) if self and len(gone) else 0
        if not programs:
            return lambda: self._waste(freed)
        known = self._known_shapes()
        fresh: dict[bytes, int] = {}
        records: list[bytes] = []
        place, at = [], len(self._words)
        for program in programs.values():
            shape = known.get(program.shape)
            if shape is None:
                shape = fresh.setdefault(program.shape, len(known) + len(fresh))
            size = 1 + len(program.literals) // 8
            records.append((shape | size << 32).to_bytes(8, byteorder))
            records.append(program.literals)
            place.append(at + 1)
            at += size
        words = np.frombuffer(b"".join(records), np.int64)
        code = np.frombuffer(b"".join(fresh), np.uint32)
        ends = len(self._code) + np.cumsum([len(shape) // 4 for shape in fresh], dtype=np.int64)
        slots = start + np.fromiter(programs, np.int64, len(programs))
        top = int(slots.max()) + 1
        self._place.reserve(top)
        self._words.reserve(at)
        self._code.reserve(len(self._code) + len(code))
        self._shapes.reserve(len(self._shapes) + len(ends))

        def commit() -> None:
            self._words.append(words)
            self._code.append(code)
            self._shapes.append(ends)
            known.update(fresh)
            self._place.put(slots, place)
            self._place.grow(top)
            self._waste(freed)

        return commit

    def _waste(self, words: int) -> None:
        self._wasted += words

    def _known_shapes(self) -> dict[bytes, int]:
        if self._known is None:
            code, ends = self._code.array, self._shapes.array.tolist()
            self._known = {code[a:b].tobytes(): n for n, (a, b) in enumerate(pairwise(ends))}
        return self._known

    def of_slots(self, slots: I64) -> ProgramColumns:
        """Columns of some slots only, which keep their numbers."""
        alive = np.zeros(len(self._place), bool)
        alive[slots[slots < len(alive)]] = True
        return self._gathered(*self._rows(np.where(alive, np.arange(len(alive)), len(alive))))

    def taken(self, slots: I64) -> ProgramColumns:
        """Columns of some slots only, in that order, as if they were numbered from 0."""
        return self._gathered(*self._rows(slots))

    def _gathered(self, rows: I64, places: I64) -> ProgramColumns:
        """Columns whose slots `rows` have the programs at `places`."""
        if not len(rows):
            return ProgramColumns()
        sizes = self._sizes(places)
        starts = np.cumsum(sizes) - sizes
        words = self._words.array[np.arange(int(sizes.sum())) + np.repeat(places - 1 - starts, sizes)]
        used, shape = np.unique(words[starts] & SHAPE, return_inverse=True)
        words[starts] = shape | sizes << 32
        place = np.zeros(int(rows[-1]) + 1, np.int64)
        place[rows] = starts + 1
        code, ends = self._code.array, self._shapes.array
        parts = [code[ends[n] : ends[n + 1]] for n in used.tolist()]
        return ProgramColumns(place, words, np.concatenate(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64))

    def relabelled(self, relabels: Mapping[int, Relabel], slots: I64) -> ProgramColumns:
        """These programs, with new labels of strings in those of some slots."""
        native = self.native
        if native is None:
            return self
        words = self._words.array.copy()
        for number, relabel in relabels.items():
            at = native.ends(slots, number)
            words[at] = relabel.lows(words[at])  # an end is a label, or just above it
        made = ProgramColumns(self._place.array, words, self._code.array, self._shapes.array)
        made._known, made._wasted = self._known, self._wasted
        return made

    # ---- looking

    def labels(self, number: int, slots: I64) -> I64:
        """The labels of a string attribute that the programs of some slots use."""
        native = self.native
        if native is None:
            return NO_SLOTS
        ends: I64 = self._words.array[native.ends(slots, number)]
        return ends - (ends & 1)

    def tested(self, slots: I64) -> I64:
        """The attributes that the programs of some slots test, one per test."""
        if not self:
            return NO_SLOTS
        code, ends = self._code.array, self._shapes.array
        used, counts = np.unique(self._words.array[self._used(slots) - 1] & SHAPE, return_counts=True)
        return _repeated([code[ends[n] : ends[n + 1]] for n in used.tolist()], counts)

    def by_row(self, slots: I64) -> Programs:
        """The programs of some slots, by their row in `slots`."""
        if not self:
            return NO_PROGRAMS
        rows, places = self._rows(slots)
        words, code, ends = self._words.array, self._code.array, self._shapes.array.tolist()
        shapes = [code[a:b].tobytes() for a, b in pairwise(ends)]
        found = {}
        for row, at in zip(rows.tolist(), places.tolist(), strict=True):
            header = int(words[at - 1])
            found[row] = Program(shapes[header & SHAPE], words[at : at - 1 + (header >> 32)].tobytes())
        return found

    def _rows(self, slots: I64) -> tuple[I64, I64]:
        """Those of some slots that have a program, by their row, and their places."""
        places = np.zeros(len(slots), np.int64)
        near = slots < len(self._place)
        places[near] = self._place.array[slots[near]]
        rows = np.flatnonzero(places)
        return rows, places[rows]

    def _used(self, slots: I64) -> I64:
        return self._rows(slots)[1]

    def _sizes(self, places: I64) -> I64:
        found: I64 = self._words.array[places - 1] >> 32
        return found

    # ---- as flat arrays

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "programs": self._place.array,
            "program_words": self._words.array,
            "program_code": self._code.array,
            "program_shapes": self._shapes.array,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], slots: int, attributes: int) -> ProgramColumns:
        """On arrays that may be maps of files, which are checked first."""
        place = column(arrays, "programs", np.int64)
        require(len(place) <= slots, "programs", "there are more programs than slots")
        words = column(arrays, "program_words", np.int64)
        code = column(arrays, "program_code", np.uint32)
        shapes = column(arrays, "program_shapes", np.int64)
        require(len(shapes), "program_shapes", "it is empty")
        made = cls(place, words, code, shapes)
        try:
            _kernels.Programs(place, words, code, shapes).check(attributes)
        except ValueError as problem:
            name, _, reason = str(problem).partition(": ")
            raise DamagedArray(name, reason) from None
        return made
