"""Who is behind a box: subscriptions by id, in slots.

A subscription lives in a slot; a slot never changes, an upsert takes a new one. Its boxes are numbered consecutively
from `first`, `count` of them (0 where the predicate can never hold).

    slot    id     priority  first  count  where          box number   owner (slot)   exact
      0     "s1"      7        0      1    "price > 3"         0            0           yes
      1     "s2"      4        1      2    "a = 1 OR ..."      1            1           yes
      2     (gone)    4        -      -                        2            1           no: run its program

Ids and texts stand in frozen Arrow arrays (from a bulk load, or memory-mapped from a snapshot, with the ids' sorted
order for look-ups); the few that came later are in plain lists, with a dict. Boxes and priorities are in
`slot_boxes.py`. Dead slots are squeezed out by `compact` when they are most of the catalog. A bulk load may be
numbered in the order that the engine chooses (`Rows.arranged`), so that neighbours there are neighbours here.

Whatever changes the catalog comes in two steps: a method prepares, which may take long and may fail, and touches
nothing that a reader sees; the `commit` that it returns is short and must be alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.concurrency.interruptible import interruptible
from hitbox.encoding import arrow_compute as pc
from hitbox.encoding.array_checks import bounds, column, require, texts
from hitbox.encoding.arrays import I64
from hitbox.encoding.string_dictionary import Relabel
from hitbox.encoding.values import brief, check_text
from hitbox.engine import _kernels
from hitbox.errors import ValueProblem
from hitbox.index.load.columns import Ids, Values
from hitbox.index.program_columns import ProgramColumns
from hitbox.index.slot_boxes import NO_SLOTS, Change, Id, Row, SlotBoxes
from hitbox.language import NO_PROGRAMS, Programs

__all__ = ["NO_SLOTS", "Catalog", "Change", "Id", "Row", "Rows"]

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


MANY_DEAD = 10_000
"""Dead slots up to which squeezing them out is not worth it."""

NO_ROWS = Rows([], [], np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, bool))


class Names:
    """Ids and texts by slot. They stand in frozen Arrow arrays, those that came later in lists."""

    def __init__(self, ids: pa.Array, where: pa.Array, order: I64 | None = None):
        self.ids = Ids(ids)
        self.where = Values(where)
        self._order = order  # of the frozen ids; None where they are sorted as they stand
        self._late: dict[Id, int] = {}

    def slot(self, id: Id, boxes: SlotBoxes, kind: str) -> int | None:
        """The living slot of an id."""
        slot = self._late.get(id)
        if slot is None and len(self.ids.base) and kind_of(id) == kind:
            return self._search(id, boxes)
        return slot

    def _search(self, id: Id, boxes: SlotBoxes) -> int | None:
        ids, order = self.ids.base, self._order
        first = self.ids.native.rank(id if isinstance(id, str) else int(id), order)
        for rank in range(first, len(ids)):  # dead slots may hold the same id
            at = rank if order is None else int(order[rank])
            if ids[at].as_py() != id:
                break
            if boxes.alive[at]:
                return at
        return None

    def nbytes(self) -> int:
        return self.ids.nbytes() + self.where.nbytes()

    def change(self, gone: I64, come: Rows) -> Callable[[], None]:
        late, start = [self.ids[slot] for slot in gone[gone >= len(self.ids.base)].tolist()], len(self.ids)
        if isinstance(come.ids, pa.Array) and len(come) > MIN_ARROW_ROWS:
            where = pa.nulls(len(come), pa.large_string()) if come.where is None else come.where
            return self.frozen(come.ids, where, come.order)
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

    def add(self, come: Row) -> None:
        self._late[come.id] = len(self.ids)
        self.ids.append(come.id)
        self.where.append(come.where)

    def drop(self, slot: int) -> None:
        """Forget the id of a slot that is about to go; what is frozen stays, without a living slot."""
        if slot >= len(self.ids.base):
            del self._late[self.ids[slot]]

    def frozen(
        self, ids: pa.Array | None = None, where: pa.Array | None = None, order: I64 | None = None
    ) -> Callable[[], None]:
        """Prepare to fold what came later, and more, into the frozen arrays; `order` sorts `ids`, if known."""
        known = None if len(self.ids) else order
        return self.replaced(self.ids.frozen(ids), self.where.frozen(where), known)

    def replaced(self, ids: pa.Array, where: pa.Array, order: I64 | None = None) -> Callable[[], None]:
        if order is None:
            order = sorted_order(ids)
        fresh = Ids(ids), Values(where)

        def commit() -> None:
            self.ids, self.where = fresh
            self._order, self._late = order, {}

        return commit

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, where all is frozen."""
        ids, where = self.ids.base, self.where.base
        arrays: dict[str, NDArray[Any]] = {} if self._order is None else {"order": self._order}
        arrays |= {"ids": ids.to_numpy()} if pa.types.is_integer(ids.type) else text_arrays("ids", ids)
        return arrays | (text_arrays("where", where) if where.null_count < len(where) else {})

    @classmethod
    def from_arrays(cls, kind: str, arrays: Mapping[str, NDArray[Any]], size: int) -> Names:
        ids = pa.array(column(arrays, "ids", np.int64, size)) if kind == "int" else texts(arrays, "ids", size)
        order = None
        if "order" in arrays:
            order = column(arrays, "order", np.int64, size)
            bounds(order, "order", 0, size - 1)
            require((np.bincount(order, minlength=size) == 1).all(), "order", "a place comes twice")
        where = texts(arrays, "where", size, nulls=True) if "where_data" in arrays else None
        return cls(ids, pa.nulls(size, pa.large_string()) if where is None else where, order)


class Catalog:
    def __init__(self, kind: str = "int"):
        self.kind = kind
        self.names = Names(pa.array([], ID_TYPES[kind]), pa.array([], pa.large_string()))
        self.boxes = SlotBoxes()
        self.programs = ProgramColumns()
        self.compactions = 0
        """How often slots have moved."""

    # ---- looking up

    @property
    def ids(self) -> Ids:
        return self.names.ids

    @property
    def where(self) -> Values:
        return self.names.where

    @property
    def living(self) -> int:
        return self.boxes.living

    def slot(self, id: Id) -> int | None:
        """The living slot of an id."""
        return self.names.slot(id, self.boxes, self.kind)

    def slots_of(self, ids: pa.Array) -> I64:
        """Living slots of many ids; -1 where there is none."""
        if len(ids) * 64 < self.living:  # too few to pay for a hash table over all
            known = [self.slot(id) for id in ids.to_pylist()]
            return np.array([-1 if slot is None else slot for slot in known], np.int64)
        places = np.full(len(ids), -1, np.int64)
        slots = self.living_slots()
        if len(slots) and ids.type == self.ids.base.type:
            at = interruptible(len(ids) + len(slots), pc.index_in, ids, value_set=self.ids.take(slots))
            known = at.is_valid().to_numpy(zero_copy_only=False)
            places[known] = slots[at.drop_null().to_numpy(zero_copy_only=False)]
        return places

    def living_slots(self) -> I64:
        return np.flatnonzero(self.boxes.alive)

    def id_list(self, slots: NDArray[Any]) -> list[Id]:
        return self.names.ids.list(slots)

    def living_ids(self) -> pa.Array:
        return self.ids.take(self.living_slots())

    @property
    def owners(self) -> _kernels.Owners:
        """What native code needs to know of boxes: good until the next commit."""
        boxes = self.boxes
        return boxes.owners or boxes.native(self.programs.native if boxes.mixed else None)

    @property
    def plain(self) -> bool:
        """Every subscription is one exact box: no second look at a hit is needed."""
        return not self.boxes.mixed

    def boxes_of(self, slots: I64) -> I64:
        """The box numbers of some slots, slot after slot."""
        return self.boxes.of(slots)

    @property
    def priority(self) -> NDArray[np.uint8]:
        return self.boxes.priority

    @property
    def alive(self) -> NDArray[np.bool_]:
        return self.boxes.alive

    @property
    def counts(self) -> I64:
        """How many boxes each slot has."""
        return self.boxes.count.astype(np.int64)

    @property
    def owner(self) -> I64:
        return self.boxes.owner

    @property
    def exact(self) -> NDArray[np.bool_]:
        return self.boxes.exact

    def nbytes(self) -> int:
        return self.names.nbytes() + self.boxes.nbytes() + self.programs.nbytes()

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
        would be left unused."""
        return self.boxes.first_of(gone, boxes)

    def change(self, gone: I64, come: Rows = NO_ROWS, first_number: int | None = None) -> Change:
        """Some living slots go, some rows get new ones. With `first_number` of `first_of`, the new boxes are numbered
        consecutively."""
        start = len(self.boxes)
        boxes = self.boxes.change(gone, come.priority, come.count, come.exact, first_number)
        name = self.names.change(gone, come)
        program = self.programs.adding(start, come.programs, gone) if self.programs or come.programs else None

        def commit() -> None:
            name()
            if program is not None:
                program()
            boxes.commit()

        return Change(boxes.gone, boxes.come, commit)

    def change_one(self, gone: int | None, come: Row | None = None) -> Change:
        """Prepare a change of one subscription at most on either side, without the arrays that many need."""
        freed, numbers, switch = self.boxes.change_one(gone, come)
        program = None
        if self.programs or (come is not None and come.program is not None):
            new = NO_PROGRAMS if come is None or come.program is None else {0: come.program}
            program = self.programs.adding(len(self.boxes), new, NO_SLOTS if gone is None else np.array([gone]))
        names = self.names

        def commit() -> None:
            if program is not None:
                program()
            if gone is not None:
                names.drop(gone)
            if come is not None:
                names.add(come)
            switch()

        return Change(freed, numbers, commit)

    def prepare(self) -> Callable[[], None] | None:
        """Tidy up where it is worth it."""
        dead = len(self.boxes) - self.living
        if dead > MANY_DEAD and dead > self.living:
            return self.compact()
        if self.programs.wasteful():
            return self._reprogrammed(self.programs.of_slots(self.living_slots()))
        return self.names.frozen() if self.ids.full() else None

    def relabelling(self, relabels: Mapping[int, Relabel]) -> Callable[[], None]:
        """Prepare new labels of strings in programs."""
        return self._reprogrammed(self.programs.relabelled(relabels, self.living_slots()))

    def _reprogrammed(self, programs: ProgramColumns) -> Callable[[], None]:
        def commit() -> None:
            self.programs, self.boxes.owners = programs, None

        return commit

    def compact(self) -> Callable[[], None] | None:
        """Squeeze out dead slots and freeze the rest; None where that is done already. Box numbers stay."""
        if self.living == len(self.boxes) and not self.ids.late:
            return None
        slots = self.living_slots()
        boxes, programs = self.boxes.squeezed(slots), self.programs.taken(slots)
        rename = self.names.replaced(self.ids.take(slots), self.where.take(slots))

        def commit() -> None:
            rename()
            self.boxes, self.programs = boxes, programs
            self.compactions += 1

        return commit

    # ---- as flat arrays

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole catalog; `compact` it first, so that all slots are alive."""
        arrays = self.boxes.arrays() | self.names.arrays()
        return arrays if self.plain else arrays | self.programs.arrays()

    @classmethod
    def from_arrays(cls, kind: str, arrays: Mapping[str, NDArray[Any]], attributes: int) -> Catalog:
        """Works on memory-mapped arrays, which are checked first. Programs may test so many attributes."""
        require(kind in ID_TYPES, "ids", f"ids of type {kind!r}")
        catalog = cls(kind)
        catalog.boxes = SlotBoxes.from_arrays(arrays)
        size = catalog.living
        catalog.names = Names.from_arrays(kind, arrays, size)
        if "programs" in arrays:
            catalog.programs = ProgramColumns.from_arrays(arrays, size, attributes)
        return catalog


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
    arrays: dict[str, NDArray[Any]] = {f"{name}_offsets": offsets, f"{name}_data": data}
    if texts.null_count:
        arrays[f"{name}_null"] = texts.is_null().to_numpy(zero_copy_only=False)
    return arrays
