"""Which boxes belong to which slot of the catalog, how urgent each slot is, and which numbers of boxes are free.

The boxes of a slot are numbered consecutively from `first`. Numbers of deleted boxes are used again, run by run.
As in the catalog, a change comes in two steps: what prepares touches nothing that a reader sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.array_checks import bounds, column, require
from hitbox.encoding.arrays import I64, LEVELS
from hitbox.engine import _kernels
from hitbox.errors import MatcherError
from hitbox.index.load.columns import Numbers
from hitbox.language import Program

MOST_SLOTS = 2**31 - 1
Id = int | str
NO_SLOTS: I64 = np.zeros(0, np.int64)


class Row(NamedTuple):
    """One subscription that comes, whose id is not here: as many boxes as `exact` has."""

    id: Id
    where: str | None
    priority: int
    exact: list[bool]
    program: Program | None = None


class Change(NamedTuple):
    """A change that is prepared."""

    gone: I64
    """The numbers of the boxes that go."""
    come: I64
    """The numbers for the boxes that come; some of those that go may be among them."""
    commit: Callable[[], None]


class FreeRuns:
    """Runs of box numbers that are free, by their length. What a change takes and gives back is noted first."""

    def __init__(self) -> None:
        self._first: dict[int, list[int]] = {}

    def unused(self) -> int:
        return sum(length * len(firsts) for length, firsts in self._first.items())

    def all(self) -> dict[int, int]:
        """How many runs there are of each length."""
        return {length: len(firsts) for length, firsts in self._first.items()}

    def add(self, first: int, length: int) -> None:
        self._first.setdefault(length, []).append(first)

    def one(self, length: int, given: dict[int, list[int]], end: int) -> tuple[int, dict[int, int]]:
        """The first number of a run of this length, and what it takes from the free runs. `given`: the runs that the
        change frees, which may be taken, too; fresh numbers begin at `end`."""
        if not length:
            return 0, {}
        if length in given:
            return given.pop(length)[0], {}
        if length in self._first:
            return self._first[length][-1], {length: 1}
        longest = max(self._first, default=0)
        if longest < length:
            return end, {}
        first = self._first[longest][-1]
        given.setdefault(longest - length, []).append(first + length)
        return first, {longest: 1}

    def many(self, count: I64, given: dict[int, list[int]], end: int) -> tuple[I64, dict[int, int]]:
        """The first numbers of runs of these lengths, and how many free runs of each length they take."""
        taken: dict[int, int] = {}
        first = np.zeros(len(count), np.int64)
        fresh = count > 0
        for length in np.unique(count[fresh]).tolist():
            rows = np.flatnonzero(count == length)
            own, free = given.pop(length, []), self._first.get(length, [])
            mine = min(len(own), len(rows))
            other = min(len(free), len(rows) - mine)
            first[rows[:mine]] = own[:mine]
            if mine < len(own):
                given[length] = own[mine:]
            if other:
                first[rows[mine : mine + other]] = free[-other:]
                taken[length] = other
            fresh[rows[: mine + other]] = False
        first[fresh] = end + np.cumsum(count[fresh]) - count[fresh]
        return first, taken

    def commit(self, taken: Mapping[int, int], given: Mapping[int, list[int]]) -> None:
        """Some free runs of each length are used, others become free."""
        for length, count in taken.items():
            del self._first[length][-count:]
            if not self._first[length]:
                del self._first[length]
        for length, firsts in given.items():
            self._first.setdefault(length, []).extend(firsts)


class SlotBoxes:
    def __init__(self) -> None:
        self._priority = Numbers(np.zeros(0, np.uint8))
        self._first = Numbers(np.zeros(0, np.int64))
        self._count = Numbers(np.zeros(0, np.int32))
        self._alive = Numbers(np.zeros(0, bool))
        self._owner = Numbers(np.zeros(0, np.int64))
        self._exact = Numbers(np.zeros(0, bool))
        self._free = FreeRuns()
        self.living = 0
        self.mixed = 0
        """Living subscriptions that are not one exact box."""
        self._direct = True
        """Every living box has the number of its slot."""
        self.owners: _kernels.Owners | None = None
        """What native code needs to know of boxes, once somebody has asked; None after each change."""

    def __len__(self) -> int:
        """How many slots there are, dead ones included."""
        return len(self._alive)

    def of(self, slots: I64) -> I64:
        """The box numbers of some slots, slot after slot."""
        return _spread_out(self._first.array[slots], self._count.array[slots])

    @property
    def priority(self) -> NDArray[np.uint8]:
        return self._priority.array

    @property
    def alive(self) -> NDArray[np.bool_]:
        return self._alive.array

    @property
    def count(self) -> NDArray[np.int32]:
        return self._count.array

    @property
    def owner(self) -> I64:
        return self._owner.array

    @property
    def exact(self) -> NDArray[np.bool_]:
        return self._exact.array

    def native(self, programs: _kernels.Programs | None) -> _kernels.Owners:
        """Made by any reader: all make the same."""
        plain, exact = not self.mixed, self._exact.array.view(np.uint8)
        owners = _kernels.Owners(self._owner.array, exact, self._count.array, plain, self._direct, programs)
        self.owners = owners
        return owners

    def nbytes(self) -> int:
        return sum(values.nbytes() for values in (*self._of_slots(), self._owner, self._exact))

    def _of_slots(self) -> tuple[Numbers, ...]:
        return self._priority, self._first, self._count, self._alive

    # ---- changing

    def first_of(self, gone: I64, boxes: int) -> int | None:
        """The first of `boxes` consecutive numbers for a change in which some slots go; None where too many numbers
        would be left unused. Slots and numbers in one order are found fastest."""
        if len(gone) == self.living:
            return 0
        unused = self._free.unused() + int(self._count.array[gone].sum())
        return len(self._owner) if 4 * unused <= len(self._owner) + boxes else None

    def change(
        self, gone: I64, priority: NDArray[np.uint8], count: I64, exact: NDArray[np.bool_], first_number: int | None
    ) -> Change:
        """Some living slots go, new ones come with `count` boxes each; with `first_number` these are numbered
        consecutively."""
        rows = len(count)
        self._check_room(rows)
        freed, start = self.of(gone), len(self)
        first, taken, given = self._numbered(gone, count, first_number)
        numbers = _spread_out(first, count)
        owner = np.repeat(np.arange(start, start + rows), count)
        top = int(numbers.max()) + 1 if len(numbers) else 0
        for values in self._of_slots():
            values.reserve(start + rows)
        self._owner.reserve(top)
        self._exact.reserve(top)
        mixed = self.mixed + _count_mixed(count, exact) - self._mixed_among(gone)
        direct = self._direct and np.array_equal(numbers, owner)

        def commit() -> None:
            self._alive.put(gone, False)
            for values, new in zip(self._of_slots(), (priority, first, count, np.ones(rows, bool)), strict=True):
                values.append(new)
            self._owner.put(numbers, owner)
            self._exact.put(numbers, exact)
            self._owner.grow(top)
            self._exact.grow(top)
            self._free.commit(taken, given)
            self.living += rows - len(gone)
            self.mixed, self._direct, self.owners = mixed, direct, None

        return Change(freed, numbers, commit)

    def change_one(self, gone: int | None, come: Row | None) -> tuple[I64, I64, Callable[[], None]]:
        """What `change` does for one slot at most on either side, without the arrays that many need."""
        start = len(self._alive)
        self._check_room(1)
        given: dict[int, list[int]] = {}
        taken: dict[int, int] = {}
        freed, numbers, mixed, direct = NO_SLOTS, NO_SLOTS, self.mixed, self._direct
        more = first = count = 0
        if gone is not None:
            old, size = int(self._first[gone]), int(self._count[gone])
            freed = np.arange(old, old + size)
            if size:
                given[size] = [old]
                mixed -= size > 1 or not self._exact[old]
            self._alive.reserve(start)
            more = -1
        if come is not None:
            count = len(come.exact)
            first, taken = self._free.one(count, given, len(self._owner))
            mixed += count > 1 or not all(come.exact)
            numbers = np.arange(first, first + count)
            direct = direct and (not count or (count == 1 and first == start))
            for values in (self._priority, self._first, self._count, self._alive):
                if values.room <= start:
                    values.reserve(start + 1)
            self._owner.reserve(first + count)
            self._exact.reserve(first + count)
            more += 1

        def commit() -> None:
            if gone is not None:
                self._alive.put(gone, False)
            if come is not None:
                self._priority.append_one(come.priority)
                self._first.append_one(first)
                self._count.append_one(count)
                self._alive.append_one(True)
                for number, exact in enumerate(come.exact, first):
                    self._owner.put(number, start)
                    self._exact.put(number, exact)
                self._owner.grow(first + count)
                self._exact.grow(first + count)
            if taken or given:
                self._free.commit(taken, given)
            self.living += more
            self.mixed, self._direct, self.owners = mixed, direct, None

        return freed, numbers, commit

    def _check_room(self, rows: int) -> None:
        if len(self._alive) + rows > MOST_SLOTS:
            raise MatcherError("the catalog is full: more than two thousand million slots, dead ones included")

    def _mixed_among(self, slots: I64) -> int:
        """How many of these slots are not one exact box."""
        if not self.mixed:
            return 0
        count = self._count.array[slots]
        return int(((count > 1) | ((count == 1) & ~self._exact.array[self._first.array[slots]])).sum())

    def _numbered(self, gone: I64, count: I64, first: int | None) -> tuple[I64, dict[int, int], dict[int, list[int]]]:
        """The first numbers of new runs: of a run of that length that goes, of one that is free, or fresh ones. With
        them: how many are taken from the free runs of each length, and which ones are given back to them."""
        given: dict[int, list[int]] = {}
        if first == 0:  # everything that was there goes
            total, end = int(count.sum()), len(self._owner)
            rest = {end - total: [total]} if end > total else {}
            return np.cumsum(count) - count, self._free.all(), rest
        if len(gone):
            firsts, lengths = self._first.array[gone], self._count.array[gone]
            given = {int(size): firsts[lengths == size].tolist() for size in np.unique(lengths)}
        given.pop(0, None)
        if first is not None:
            return first + np.cumsum(count) - count, {}, given
        return *self._free.many(count, given, len(self._owner)), given

    def squeezed(self, slots: I64) -> SlotBoxes:
        """These slots, which are all that live, without the dead ones between them. Box numbers stay."""
        moved = np.full(len(self) + 1, -1, np.int64)  # one more, for numbers without an owner
        moved[slots] = np.arange(len(slots))
        boxes = SlotBoxes()
        boxes._priority, boxes._first, boxes._count, boxes._alive = (
            Numbers(values.array[slots]) for values in self._of_slots()
        )
        boxes._owner, boxes._exact, boxes._free = Numbers(moved[self._owner.array]), self._exact, self._free
        boxes.living, boxes.mixed, boxes._direct = self.living, self.mixed, _is_direct(boxes._owner.array)
        return boxes

    # ---- as flat arrays

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, where all slots are alive."""
        return {
            "priority": self._priority.array,
            "first": self._first.array,
            "count": self._count.array,
            "owner": self._owner.array,
            "exact": self._exact.array,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> SlotBoxes:
        """On memory-mapped arrays, which are checked first."""
        priority = column(arrays, "priority", np.uint8)
        size = len(priority)
        bounds(priority, "priority", 0, LEVELS - 1)
        first = column(arrays, "first", np.int64, size)
        count = column(arrays, "count", np.int32, size)
        owner = column(arrays, "owner", np.int64)
        exact = column(arrays, "exact", np.bool_, len(owner))
        _check_owners(first, count, owner)
        boxes = cls()
        boxes._priority, boxes._first, boxes._count = Numbers(priority), Numbers(first), Numbers(count)
        boxes._owner, boxes._exact = Numbers(owner), Numbers(exact)
        boxes._alive = Numbers(np.ones(size, bool))
        for run in _runs(np.flatnonzero(owner < 0)):
            boxes._free.add(int(run[0]), len(run))
        boxes.living = size
        with_boxes = count > 0
        boxes.mixed = int(((count > 1) | (with_boxes & ~exact[first * with_boxes])).sum()) if len(exact) else 0
        boxes._direct = _is_direct(owner)
        return boxes


def _check_owners(first: I64, count: NDArray[np.int32], owner: I64) -> None:
    """Every box belongs to the slot that has it among its own, and to no other."""
    bounds(owner, "owner", -1, len(count) - 1)
    bounds(count, "count", 0, len(owner))
    counts = count.astype(np.int64)
    total = int(counts.sum())
    require(total == np.count_nonzero(owner >= 0), "count", "slots have more boxes, or fewer, than have an owner")
    with_boxes = counts > 0
    bounds(first[with_boxes], "first", 0, len(owner) - 1)
    require(
        (first[with_boxes] + counts[with_boxes] <= len(owner)).all(), "first", "a slot has boxes beyond the last one"
    )
    slots, numbers = np.arange(len(count)), first
    if total != len(count) or not with_boxes.all():
        slots, numbers = np.repeat(slots, counts), _spread_out(first, counts)
    require((owner[numbers] == slots).all(), "owner", "a box belongs to another slot than the one that has it")


def _count_mixed(count: I64, exact: NDArray[np.bool_]) -> int:
    """How many rows, whose boxes come one after the other, are not one exact box."""
    if (count <= 1).all() and exact.all():
        return 0
    start = np.cumsum(count) - count
    return int(((count > 1) | ((count == 1) & ~np.append(exact, True)[start])).sum())


def _is_direct(owner: I64) -> bool:
    return bool(((owner == np.arange(len(owner))) | (owner < 0)).all())


def _spread_out(first: I64, count: NDArray[Any]) -> I64:
    """All numbers of runs of consecutive ones."""
    if len(first) == 1:
        return np.arange(first[0], first[0] + count[0])
    ends = np.cumsum(count, dtype=np.int64)
    numbers: I64 = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - count), count)
    return numbers


def _runs(numbers: I64) -> list[I64]:
    """Sorted numbers, cut where one is left out."""
    return np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else []
