"""Who is behind a box: subscriptions by id, in slots.

A subscription lives in a slot; a slot never changes, an upsert takes a new one. Its boxes are numbered consecutively
from `first`, `count` of them (0 where the predicate can never hold).

    slot    id     priority  first  count  where          box number   owner (slot)   exact
      0     "s1"      7        0      1    "price > 3"         0            0           yes
      1     "s2"      4        1      2    "a = 1 OR ..."      1            1           yes
      2     (gone)    4        -      -                        2            1           no: run its program

Ids and texts stand in frozen Arrow arrays (from a bulk load, or memory-mapped from a snapshot, with the ids' sorted
order for look-ups); the few that came later are in plain lists, with a dict. Numbers of deleted boxes are used
again, run by run; dead slots are squeezed out by `compact` when they are most of the catalog. A bulk load may be
numbered in the order that the engine chooses (`Rows.arranged`), so that neighbours there are neighbours here.

Whatever changes the catalog comes in two steps: a method prepares, which may take long and may fail, and touches
nothing that a reader sees; the `commit` that it returns is short and must be alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.concurrency.interruptible import interruptible
from hitbox.encoding import arrow_compute as pc
from hitbox.encoding.array_checks import bounds, column, require, texts
from hitbox.encoding.arrays import I64, LEVELS
from hitbox.encoding.string_dictionary import Relabel
from hitbox.encoding.values import brief, check_text
from hitbox.engine import _kernels
from hitbox.errors import MatcherError, ValueProblem
from hitbox.index.load.columns import Ids, Numbers, Values
from hitbox.index.program_columns import ProgramColumns
from hitbox.language import NO_PROGRAMS, Program, Programs

Id = int | str
ID_TYPES = {"int": pa.int64(), "string": pa.large_string()}
MIN_ARROW_ROWS = 1000
"""Rows up to which a bulk load joins those that came later, instead of freezing everything again."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Subscriptions that come, none of whose ids is here: `count` boxes each, in order."""

    ids: Sequence[Id] | pa.Array
    where: Sequence[str | None] | pa.Array | None
    priority: NDArray[np.uint8]
    count: I64
    exact: NDArray[np.bool_]
    order: I64 | None = None
    """The order that sorts the ids, if known."""
    programs: Programs = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.count)

    def arranged(self, boxes: I64) -> Rows:
        """These rows, which have one box at most, in the order `boxes` of their boxes; those without one come last."""
        ids = self.ids if isinstance(self.ids, pa.Array) else pa.array(self.ids)
        rows = np.concatenate([np.flatnonzero(self.count)[boxes], np.flatnonzero(self.count == 0)])
        place = np.empty(len(rows), np.int64)
        place[rows] = np.arange(len(rows))
        order = sorted_order(ids)
        return Rows(
            ids.take(pa.array(rows)),
            self.where if self.where is None else pa.array(self.where, pa.large_string()).take(pa.array(rows)),
            self.priority[rows],
            self.count[rows],
            self.exact[boxes],
            place if order is None else place[order],
            {int(place[row]): program for row, program in self.programs.items()},
        )


class Row(NamedTuple):
    """One subscription that comes, whose id is not here: as many boxes as `exact` has."""

    id: Id
    where: str | None
    priority: int
    exact: list[bool]
    program: Program | None = None


MOST_SLOTS = 2**31 - 1
MANY_DEAD = 10_000
"""Dead slots up to which squeezing them out is not worth it."""

NO_ROWS = Rows([], [], np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, bool))
NO_SLOTS: I64 = np.zeros(0, np.int64)


class Change(NamedTuple):
    """A change that is prepared."""

    gone: I64
    """The numbers of the boxes that go."""
    come: I64
    """The numbers for the boxes that come; some of those that go may be among them."""
    commit: Callable[[], None]


class Catalog:
    def __init__(self, kind: str = "int"):
        self.kind = kind
        self.ids = Ids(pa.array([], ID_TYPES[kind]))
        self.where = Values(pa.array([], pa.large_string()))
        self._order: I64 | None = None  # of the frozen ids; None where they are sorted as they stand
        self._late: dict[Id, int] = {}
        self._priority = Numbers(np.zeros(0, np.uint8))
        self._first = Numbers(np.zeros(0, np.int64))
        self._count = Numbers(np.zeros(0, np.int32))
        self._alive = Numbers(np.zeros(0, bool))
        self._owner = Numbers(np.zeros(0, np.int64))
        self._exact = Numbers(np.zeros(0, bool))
        self._programs = ProgramColumns()
        self._free: dict[int, list[int]] = {}  # first numbers of the runs that are free, by length
        self.living = 0
        self.compactions = 0
        """How often slots have moved."""
        self._mixed = 0
        """Living subscriptions that are not one exact box."""
        self._direct = True
        """Every living box has the number of its slot."""
        self._owners: _kernels.Owners | None = None

    # ---- looking up

    def slot(self, id: Id) -> int | None:
        """The living slot of an id."""
        slot = self._late.get(id)
        if slot is None and len(self.ids.base) and kind_of(id) == self.kind:
            slot = self._search(id)
        return slot

    def _search(self, id: Id) -> int | None:
        ids, order = self.ids.base, self._order
        first = self.ids.native.rank(id if isinstance(id, str) else int(id), order)
        for rank in range(first, len(ids)):  # dead slots may hold the same id
            at = rank if order is None else int(order[rank])
            if ids[at].as_py() != id:
                break
            if self._alive[at]:
                return at
        return None

    def slots_of(self, ids: pa.Array) -> I64:
        """Living slots of many ids; -1 where there is none."""
        if len(ids) * 64 < self.living:  # too few to pay for a hash table over all
            known = [self.slot(id) for id in ids.to_pylist()]
            return np.array([-1 if slot is None else slot for slot in known], np.int64)
        found = np.full(len(ids), -1, np.int64)
        slots = self.living_slots()
        if len(slots) and ids.type == self.ids.base.type:
            at = interruptible(len(ids) + len(slots), pc.index_in, ids, value_set=self.ids.take(slots))
            known = at.is_valid().to_numpy(zero_copy_only=False)
            found[known] = slots[at.drop_null().to_numpy(zero_copy_only=False)]
        return found

    def living_slots(self) -> I64:
        return np.flatnonzero(self._alive.array)

    def id_list(self, slots: NDArray[Any]) -> list[Id]:
        return self.ids.list(slots)

    @property
    def owners(self) -> _kernels.Owners:
        """What native code needs to know of boxes: good until the next commit."""
        made = self._owners
        if made is None:  # by any reader: all make the same
            exact = self._exact.array.view(np.uint8)
            programs = None if self.plain else self._programs.native
            made = _kernels.Owners(self._owner.array, exact, self._count.array, self.plain, self._direct, programs)
            self._owners = made
        return made

    @property
    def programs(self) -> _kernels.Programs | None:
        """What native code needs for a second look: good until the next commit."""
        return self._programs.native

    @property
    def plain(self) -> bool:
        """Every subscription is one exact box: no second look at a hit is needed."""
        return not self._mixed

    def boxes_of(self, slots: I64) -> I64:
        """The box numbers of some slots, slot after slot."""
        return _spread_out(self._first.array[slots], self._count.array[slots])

    @property
    def priority(self) -> NDArray[np.uint8]:
        return self._priority.array

    @property
    def alive(self) -> NDArray[np.bool_]:
        return self._alive.array

    @property
    def counts(self) -> I64:
        """How many boxes each slot has."""
        return self._count.array.astype(np.int64)

    @property
    def owner(self) -> I64:
        return self._owner.array

    @property
    def exact(self) -> NDArray[np.bool_]:
        return self._exact.array

    def living_ids(self) -> pa.Array:
        return self.ids.take(self.living_slots())

    def programs_of(self, slots: I64) -> Programs:
        """The programs of some slots, by their row in `slots`."""
        return self._programs.by_row(slots)

    def labels(self, attribute: int) -> I64:
        """The labels of a string attribute that programs use."""
        return self._programs.labels(attribute, self.living_slots())

    def tested(self, slots: I64) -> I64:
        """The attributes that the programs of some slots test, one per test."""
        return self._programs.tested(slots)

    def nbytes(self) -> int:
        numbers = (self._priority, self._first, self._count, self._alive, self._owner, self._exact, self._programs)
        return self.ids.nbytes() + self.where.nbytes() + sum(n.nbytes() for n in numbers)

    # ---- changing

    def check_kind(self, kind: str) -> None:
        if self.living and kind != self.kind:
            raise ValueProblem(f"ids of type {kind} do not go with the {self.kind} ids of this index")

    def settled(self, kind: str) -> Callable[[], None] | None:
        """An empty catalog may change its mind about the type of its ids; None where there is nothing to do."""
        if self.living or kind == self.kind:
            return None
        fresh = vars(Catalog(kind)) | {"compactions": self.compactions + 1}
        return lambda: vars(self).update(fresh)

    def first_of(self, gone: I64, boxes: int) -> int | None:
        """The first of `boxes` consecutive numbers for a change in which some slots go; None where too many numbers
        would be left unused. Slots and numbers in one order are found fastest."""
        if len(gone) == self.living:
            return 0
        unused = sum(size * len(firsts) for size, firsts in self._free.items()) + int(self._count.array[gone].sum())
        return len(self._owner) if 4 * unused <= len(self._owner) + boxes else None

    def change(self, gone: I64, come: Rows = NO_ROWS, first_number: int | None = None) -> Change:
        """Some living slots go, some rows get new ones. With `first_number` of `first_of`, the new boxes are numbered
        consecutively."""
        self._check_room(len(come))
        freed, start, rows = self.boxes_of(gone), len(self._alive), len(come)
        first, taken, given = self._numbered(gone, come.count, first_number)
        numbers = _spread_out(first, come.count)
        owner = np.repeat(np.arange(start, start + rows), come.count)
        top = int(numbers.max()) + 1 if len(numbers) else 0
        for kept in (self._priority, self._first, self._count, self._alive):
            kept.reserve(start + rows)
        self._owner.reserve(top)
        self._exact.reserve(top)
        mixed = self._mixed + _count_mixed(come.count, come.exact) - self._count_mixed(gone)
        direct = self._direct and np.array_equal(numbers, owner)
        name = self._named(gone, come)
        program = self._programs.adding(start, come.programs, gone) if self._programs or come.programs else None

        def commit() -> None:
            name()
            if program is not None:
                program()
            self._alive.put(gone, False)
            self._priority.append(come.priority)
            self._first.append(first)
            self._count.append(come.count)
            self._alive.append(np.ones(rows, bool))
            self._owner.put(numbers, owner)
            self._exact.put(numbers, come.exact)
            self._owner.grow(top)
            self._exact.grow(top)
            self._regroup(taken, given)
            self.living += rows - len(gone)
            self._mixed, self._direct, self._owners = mixed, direct, None

        return Change(freed, numbers, commit)

    def change_one(self, gone: int | None, come: Row | None = None) -> Change:
        """Prepare a change of one subscription at most on either side, without the arrays that many need."""
        self._check_room(1)
        start = len(self._alive)
        given: dict[int, list[int]] = {}
        freed, mixed = NO_SLOTS, self._mixed
        late: Id | None = None
        if gone is not None:
            old, size = int(self._first[gone]), int(self._count[gone])
            freed = np.arange(old, old + size)
            if size:
                given[size] = [old]
                mixed -= size > 1 or not self._exact[old]
            late = self.ids[gone] if gone >= len(self.ids.base) else None
            self._alive.reserve(start)
        numbers, direct = NO_SLOTS, self._direct
        first, count = 0, 0
        taken: dict[int, int] = {}
        if come is not None:
            count = len(come.exact)
            first, taken = self._one_run(count, given)
            mixed += count > 1 or not all(come.exact)
            numbers = np.arange(first, first + count)
            direct = direct and (not count or (count == 1 and first == start))
            for column in (self._priority, self._first, self._count, self._alive):
                if column.room <= start:
                    column.reserve(start + 1)
            self._owner.reserve(first + count)
            self._exact.reserve(first + count)
        program = self._one_program(start, gone, come)

        def commit() -> None:
            if program is not None:
                program()
            if gone is not None:
                self._alive.put(gone, False)
                if late is not None:
                    del self._late[late]
            if come is not None:
                self.ids.append(come.id)
                self.where.append(come.where)
                self._late[come.id] = start
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
                self._regroup(taken, given)
            self.living += (come is not None) - (gone is not None)
            self._mixed, self._direct, self._owners = mixed, direct, None

        return Change(freed, numbers, commit)

    def _one_program(self, start: int, gone: int | None, come: Row | None) -> Callable[[], None] | None:
        made = None if come is None else come.program
        if made is None and not self._programs:
            return None
        old = NO_SLOTS if gone is None else np.array([gone])
        return self._programs.adding(start, NO_PROGRAMS if made is None else {0: made}, old)

    def _check_room(self, rows: int) -> None:
        if len(self._alive) + rows > MOST_SLOTS:
            raise MatcherError("the catalog is full: more than two thousand million slots, dead ones included")

    def _regroup(self, taken: Mapping[int, int], given: Mapping[int, list[int]]) -> None:
        """Some free runs of each length are used, others become free."""
        for size, count in taken.items():
            del self._free[size][-count:]
            if not self._free[size]:
                del self._free[size]
        for size, firsts in given.items():
            self._free.setdefault(size, []).extend(firsts)

    def _count_mixed(self, slots: I64) -> int:
        """How many of these slots are not one exact box."""
        if not self._mixed:
            return 0
        count = self._count.array[slots]
        return int(((count > 1) | ((count == 1) & ~self._exact.array[self._first.array[slots]])).sum())

    def _named(self, gone: I64, come: Rows) -> Callable[[], None]:
        """Prepare what a change does to ids and texts."""
        late, start = [self.ids[slot] for slot in gone[gone >= len(self.ids.base)].tolist()], len(self.ids)
        if isinstance(come.ids, pa.Array) and len(come) > MIN_ARROW_ROWS:
            where = pa.nulls(len(come), pa.large_string()) if come.where is None else come.where
            return self._frozen(come.ids, where, come.order)
        ids = come.ids.to_pylist() if isinstance(come.ids, pa.Array) else come.ids
        texts = come.where.to_pylist() if isinstance(come.where, pa.Array) else come.where or [None] * len(ids)
        slots = dict(zip(ids, range(start, start + len(ids)), strict=True))

        def commit() -> None:
            self.ids.extend(ids)
            self.where.extend(texts)
            for id in late:
                del self._late[id]
            self._late.update(slots)

        return commit

    def _frozen(
        self, ids: pa.Array | None = None, where: pa.Array | None = None, order: I64 | None = None
    ) -> Callable[[], None]:
        """Prepare to fold what came later, and more, into the frozen arrays; `order` sorts `ids`, if known."""
        known = None if len(self.ids) else order
        return self._replaced(Ids(self.ids.frozen(ids)), Values(self.where.frozen(where)), known)

    def _replaced(self, ids: Ids, where: Values, order: I64 | None = None) -> Callable[[], None]:
        if order is None:
            order = sorted_order(ids.base)

        def commit() -> None:
            self.ids, self.where, self._order, self._late = ids, where, order, {}

        return commit

    def _numbered(
        self, gone: I64, count: I64, first: int | None = None
    ) -> tuple[I64, dict[int, int], dict[int, list[int]]]:
        """The first numbers of new runs: of a run of that length that goes, of one that is free, or fresh ones. With
        them: how many are taken from the free runs of each length, and which ones are given back to them."""
        given: dict[int, list[int]] = {}
        if first == 0:  # everything that was there goes
            total, end = int(count.sum()), len(self._owner)
            rest = {end - total: [total]} if end > total else {}
            return np.cumsum(count) - count, {size: len(firsts) for size, firsts in self._free.items()}, rest
        if len(gone):
            firsts, lengths = self._first.array[gone], self._count.array[gone]
            given = {int(size): firsts[lengths == size].tolist() for size in np.unique(lengths)}
        given.pop(0, None)
        if first is not None:
            return first + np.cumsum(count) - count, {}, given
        return *self._many_runs(count, given), given

    def _one_run(self, length: int, given: dict[int, list[int]]) -> tuple[int, dict[int, int]]:
        if not length:
            return 0, {}
        if length in given:
            return given.pop(length)[0], {}
        if length in self._free:
            return self._free[length][-1], {length: 1}
        size = max(self._free, default=0)
        if size < length:
            return len(self._owner), {}
        first = self._free[size][-1]  # a piece of a longer one
        given.setdefault(size - length, []).append(first + length)
        return first, {size: 1}

    def _many_runs(self, count: I64, given: dict[int, list[int]]) -> tuple[I64, dict[int, int]]:
        taken: dict[int, int] = {}
        first = np.zeros(len(count), np.int64)
        fresh = count > 0
        for size in np.unique(count[fresh]).tolist():
            rows = np.flatnonzero(count == size)
            own, free = given.pop(size, []), self._free.get(size, [])
            mine = min(len(own), len(rows))
            other = min(len(free), len(rows) - mine)
            first[rows[:mine]] = own[:mine]
            if mine < len(own):
                given[size] = own[mine:]
            if other:
                first[rows[mine : mine + other]] = free[-other:]
                taken[size] = other
            fresh[rows[: mine + other]] = False
        first[fresh] = len(self._owner) + np.cumsum(count[fresh]) - count[fresh]
        return first, taken

    def prepare(self) -> Callable[[], None] | None:
        """Tidy up where it is worth it."""
        dead = len(self._alive) - self.living
        if dead > MANY_DEAD and dead > self.living:
            return self.compact()
        if self._programs.wasteful():
            return self._reprogrammed(self._programs.of_slots(self.living_slots()))
        return self._frozen() if self.ids.full() else None

    def relabelling(self, relabels: Mapping[int, Relabel]) -> Callable[[], None]:
        """Prepare new labels of strings in programs."""
        return self._reprogrammed(self._programs.relabelled(relabels, self.living_slots()))

    def _reprogrammed(self, programs: ProgramColumns) -> Callable[[], None]:
        def commit() -> None:
            self._programs, self._owners = programs, None

        return commit

    def compact(self) -> Callable[[], None] | None:
        """Squeeze out dead slots and freeze the rest; None where that is done already. Box numbers stay."""
        if self.living == len(self._alive) and not self.ids.late:
            return None
        slots = self.living_slots()
        moved = np.full(len(self._alive) + 1, -1, np.int64)  # one more, for numbers without an owner
        moved[slots] = np.arange(len(slots))
        columns = {
            "_owner": moved[self._owner.array],
            "_priority": self._priority.array[slots],
            "_first": self._first.array[slots],
            "_count": self._count.array[slots],
            "_alive": np.ones(len(slots), bool),
        }
        fresh: dict[str, Any] = {name: Numbers(values) for name, values in columns.items()}
        fresh |= {"_direct": _is_direct(columns["_owner"]), "_owners": None, "_programs": self._programs.taken(slots)}
        rename = self._replaced(Ids(self.ids.take(slots)), Values(self.where.take(slots)))

        def commit() -> None:
            rename()
            vars(self).update(fresh)
            self.compactions += 1

        return commit

    # ---- as flat arrays

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole catalog; `compact` it first, so that all slots are alive."""
        found: dict[str, NDArray[Any]] = {
            "priority": self._priority.array,
            "first": self._first.array,
            "count": self._count.array,
            "owner": self._owner.array,
            "exact": self._exact.array,
        }
        if self._order is not None:
            found["order"] = self._order
        if self.kind == "int":
            found["ids"] = self.ids.base.to_numpy()
        else:
            found |= text_arrays("ids", self.ids.base)
        if self.where.base.null_count < len(self.where.base):
            found |= text_arrays("where", self.where.base)
        return found if self.plain else found | self._programs.arrays()

    @classmethod
    def from_arrays(cls, kind: str, arrays: Mapping[str, NDArray[Any]], attributes: int) -> Catalog:
        """Works on memory-mapped arrays, which are checked first. Programs may test so many attributes."""
        require(kind in ID_TYPES, "ids", f"ids of type {kind!r}")
        catalog = cls(kind)
        priority = column(arrays, "priority", np.uint8)
        size = len(priority)
        bounds(priority, "priority", 0, LEVELS - 1)
        first = column(arrays, "first", np.int64, size)
        count = column(arrays, "count", np.int32, size)
        owner = column(arrays, "owner", np.int64)
        exact = column(arrays, "exact", np.bool_, len(owner))
        _check_owners(first, count, owner)
        ids = pa.array(column(arrays, "ids", np.int64, size)) if kind == "int" else texts(arrays, "ids", size)
        if "order" in arrays:
            catalog._order = column(arrays, "order", np.int64, size)
            bounds(catalog._order, "order", 0, size - 1)
            require((np.bincount(catalog._order, minlength=size) == 1).all(), "order", "a place comes twice")
        where = texts(arrays, "where", size, nulls=True) if "where_data" in arrays else None
        catalog.ids = Ids(ids)
        catalog.where = Values(pa.nulls(size, pa.large_string()) if where is None else where)
        catalog._priority, catalog._first, catalog._count = Numbers(priority), Numbers(first), Numbers(count)
        catalog._owner, catalog._exact = Numbers(owner), Numbers(exact)
        if "programs" in arrays:
            catalog._programs = ProgramColumns.from_arrays(arrays, size, attributes)
        catalog._alive = Numbers(np.ones(size, bool))
        for run in _runs(np.flatnonzero(owner < 0)):
            catalog._free.setdefault(len(run), []).append(int(run[0]))
        catalog.living = size
        some = count > 0
        catalog._mixed = int(((count > 1) | (some & ~exact[first * some])).sum()) if len(exact) else 0
        catalog._direct = _is_direct(owner)
        return catalog


def _check_owners(first: I64, count: NDArray[np.int32], owner: I64) -> None:
    """Every box belongs to the slot that has it among its own, and to no other."""
    bounds(owner, "owner", -1, len(count) - 1)
    bounds(count, "count", 0, len(owner))
    counts = count.astype(np.int64)
    total = int(counts.sum())
    require(total == np.count_nonzero(owner >= 0), "count", "slots have more boxes, or fewer, than have an owner")
    some = counts > 0
    bounds(first[some], "first", 0, len(owner) - 1)
    require((first[some] + counts[some] <= len(owner)).all(), "first", "a slot has boxes beyond the last one")
    slots, numbers = np.arange(len(count)), first
    if total != len(count) or not some.all():
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


def kind_of(id: object) -> str:
    """The kind of an id."""
    if isinstance(id, str):
        return "string"
    if isinstance(id, (int, np.integer)) and not isinstance(id, (bool, np.timedelta64)):
        if not -(2**63) <= int(id) < 2**63:
            raise ValueProblem(f"id {brief(id)} does not fit 64 bits")
        return "int"
    raise ValueProblem(f"an id is an int or a string, not {brief(id)}")


def new_id(id: object) -> Id:
    """An id as it is kept: a plain int or a plain text that files and columns can carry."""
    kind_of(id)
    if not isinstance(id, str):
        return int(id)  # type: ignore[call-overload, no-any-return]
    plain = str.__str__(id)
    check_text(plain, "id ")
    return plain


def sorted_order(ids: pa.Array) -> I64 | None:
    """The order that sorts `ids`, or None where they are sorted already."""
    if len(ids) < 2 or pc.all(pc.less_equal(ids[:-1], ids[1:])).as_py():
        return None
    order: I64 = interruptible(len(ids), pc.sort_indices, ids).to_numpy().astype(np.int64)
    return order


def text_arrays(name: str, texts: pa.Array) -> dict[str, NDArray[Any]]:
    _, raw_offsets, raw = texts.buffers()  # compact: every frozen array came from a take or a concat
    offsets = np.frombuffer(raw_offsets, np.int64)[: len(texts) + 1] if len(texts) else np.zeros(1, np.int64)
    data = np.frombuffer(raw, np.uint8)[: offsets[-1]] if raw is not None else np.zeros(0, np.uint8)
    found: dict[str, NDArray[Any]] = {f"{name}_offsets": offsets, f"{name}_data": data}
    if texts.null_count:
        found[f"{name}_null"] = texts.is_null().to_numpy(zero_copy_only=False)
    return found
