"""Who is behind a box: subscriptions by id, in slots.

A subscription lives in a slot; a slot never changes, an upsert takes a new one. Its boxes are numbered consecutively
from `first`, `count` of them (0 where the predicate can never hold).

    slot    id     priority  first  count  where          box number   owner (slot)   exact
      0     "s1"      7        0      1    "price > 3"         0            0           yes
      1     "s2"      4        1      2    "a = 1 OR ..."      1            1           yes
      2     (gone)    4        -      -                        2            1           no: check the predicate

Ids and texts stand in frozen Arrow arrays (from a bulk load, or memory-mapped from a snapshot, with the ids' sorted
order for look-ups); the few that came later are in plain lists, with a dict. Numbers of deleted boxes are used
again, run by run; dead slots are squeezed out by `compact` when they are most of the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hitbox.boxes import I64
from hitbox.columns import Numbers, Values
from hitbox.errors import ValueProblem
from hitbox.values import brief, check_text

Id = int | str
ID_TYPES = {"int": pa.int64(), "string": pa.large_string()}


class Catalog:
    def __init__(self, kind: str = "int"):
        self.kind = kind
        self.ids = Values(pa.array([], ID_TYPES[kind]))
        self.where = Values(pa.array([], pa.large_string()))
        self._order: I64 | None = None  # of the frozen ids; None where they are sorted as they stand
        self._late: dict[Id, int] = {}
        self._priority = Numbers(np.zeros(0, np.uint8))
        self._first = Numbers(np.zeros(0, np.int64))
        self._count = Numbers(np.zeros(0, np.int32))
        self._alive = Numbers(np.zeros(0, bool))
        self._owner = Numbers(np.zeros(0, np.int64))
        self._exact = Numbers(np.zeros(0, bool))
        self._free: dict[int, list[int]] = {}  # first numbers of the runs that are free, by length
        self.living = 0
        self.plain = True
        """Every subscription has been one exact box so far: no second look at a hit is needed."""

    # ---- looking up

    def slot(self, id: Id) -> int | None:
        """The living slot of an id."""
        slot = self._late.get(id)
        if slot is None and len(self.ids.base) and kind_of(id) == self.kind:
            slot = self._search(id)
        return slot

    def _search(self, id: Id) -> int | None:
        ids, order = self.ids.base, self._order
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if ids[middle if order is None else int(order[middle])].as_py() < id:
                low = middle + 1
            else:
                high = middle
        for rank in range(low, len(ids)):  # dead slots may hold the same id
            at = rank if order is None else int(order[rank])
            if ids[at].as_py() != id:
                break
            if self._alive.array[at]:
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
            at = pc.index_in(ids, value_set=self.ids.take(slots))
            known = at.is_valid().to_numpy(zero_copy_only=False)
            found[known] = slots[at.drop_null().to_numpy(zero_copy_only=False)]
        return found

    def living_slots(self) -> I64:
        return np.flatnonzero(self._alive.array)

    def id_list(self, slots: I64) -> list[Id]:
        return self.ids.pick(slots)

    def boxes_of(self, slots: I64) -> I64:
        """The box numbers of some slots, slot after slot."""
        count = self._count.array[slots].astype(np.int64)
        starts = np.cumsum(count) - count
        numbers: I64 = np.arange(count.sum()) + np.repeat(self._first.array[slots] - starts, count)
        return numbers

    @property
    def priority(self) -> NDArray[np.uint8]:
        return self._priority.array

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

    def __iter__(self) -> Iterator[Id]:
        return iter(self.ids.take(self.living_slots()).to_pylist())

    def nbytes(self) -> int:
        numbers = (self._priority, self._first, self._count, self._alive, self._owner, self._exact)
        return self.ids.nbytes() + self.where.nbytes() + sum(n.nbytes() for n in numbers)

    # ---- changing

    def check_kind(self, kind: str) -> None:
        if self.living and kind != self.kind:
            raise ValueProblem(f"ids of type {kind} do not go with the {self.kind} ids of this index")

    def add(self, id: Id, where: str | None, priority: int, exact: list[bool]) -> I64:
        """A new slot for `id`, which has none; its box numbers come back."""
        self._settle(kind_of(id))
        if self.ids.full():
            self._freeze()
        slot = len(self.ids)
        self.ids.append(id)
        self.where.append(where)
        self._late[id] = slot
        first = self._run(len(exact))
        numbers = np.arange(first, first + len(exact))
        self._append(np.array([priority]), np.array([first]), np.array([len(exact)]))
        self._own(numbers, np.full(len(numbers), slot), np.array(exact, bool))
        return numbers

    def add_many(
        self, ids: pa.Array, where: pa.Array | None, priority: NDArray[np.uint8], count: I64, exact: NDArray[np.bool_]
    ) -> I64:
        """New slots for `ids`, none of which has one; their box numbers come back."""
        self._settle("int" if pa.types.is_integer(ids.type) else "string")
        start = len(self.ids)
        self._freeze(ids, pa.nulls(len(ids), pa.large_string()) if where is None else where)
        self._append(priority, self._runs(count), count)
        numbers = self.boxes_of(np.arange(start, start + len(ids)))
        self._own(numbers, np.repeat(np.arange(start, start + len(ids)), count), exact)
        return numbers

    def _runs(self, count: I64) -> I64:
        """The first numbers of many: free ones for those that need one, new ones for the rest."""
        first = np.zeros(len(count), np.int64)
        free = self._free.pop(1, [])
        single = np.flatnonzero(count == 1)[: len(free)]
        first[single] = free[len(free) - len(single) :]
        if len(free) > len(single):
            self._free[1] = free[: len(free) - len(single)]
        rest = np.ones(len(count), bool)
        rest[single] = False
        first[rest] = len(self._owner) + np.cumsum(count[rest]) - count[rest]
        return first

    def _run(self, length: int) -> int:
        """The first of `length` free numbers in a row: a run of that length, a piece of a longer one, or new ones."""
        if not length:
            return 0
        if self._free:
            size = length if length in self._free else max(self._free)
            if size >= length:
                first = self._free[size].pop()
                if not self._free[size]:
                    del self._free[size]
                if size > length:
                    self._free.setdefault(size - length, []).append(first + length)
                return first
        return len(self._owner)

    def remove(self, slots: I64) -> I64:
        """Forget some living slots; the box numbers that they give back."""
        numbers = self.boxes_of(slots)
        self._alive.put(slots, False)
        self.living -= len(slots)
        for slot in slots[slots >= len(self.ids.base)].tolist():
            del self._late[self.ids[slot]]
        for first, count in zip(self._first.array[slots].tolist(), self._count.array[slots].tolist(), strict=True):
            if count:
                self._free.setdefault(count, []).append(first)
        return numbers

    def worth_compacting(self) -> bool:
        dead = len(self._alive) - self.living
        return dead > 10_000 and dead > self.living

    def compact(self) -> None:
        """Squeeze out dead slots. Box numbers stay as they are."""
        slots = self.living_slots()
        self.ids, self.where = Values(self.ids.take(slots)), Values(self.where.take(slots))
        self._freeze()
        moved = np.full(len(self._alive) + 1, -1, np.int64)  # one more, for the numbers that nobody owns
        moved[slots] = np.arange(len(slots))
        self._owner = Numbers(moved[self._owner.array])
        self._priority = Numbers(self._priority.array[slots])
        self._first = Numbers(self._first.array[slots])
        self._count = Numbers(self._count.array[slots])
        self._alive = Numbers(np.ones(len(slots), bool))

    def _settle(self, kind: str) -> None:
        if not self.living and kind != self.kind:  # an empty catalog may change its mind
            vars(self).update(vars(Catalog(kind)))

    def _freeze(self, ids: pa.Array | None = None, where: pa.Array | None = None) -> None:
        self.ids.freeze(ids)
        self.where.freeze(where)
        self._order = sorted_order(self.ids.base)
        self._late = {}

    def _append(self, priority: NDArray[Any], first: NDArray[Any], count: NDArray[Any]) -> None:
        self._priority.extend(priority)
        self._first.extend(first)
        self._count.extend(count)
        self._alive.extend(np.ones(len(priority), bool))
        self.living += len(priority)
        self.plain = self.plain and bool((count <= 1).all())

    def _own(self, numbers: I64, slots: I64, exact: NDArray[np.bool_]) -> None:
        if len(numbers):
            self._owner.fill_to(int(numbers.max()) + 1, -1)
            self._exact.fill_to(int(numbers.max()) + 1, True)
            self._owner.put(numbers, slots)
            self._exact.put(numbers, exact)
            self.plain = self.plain and bool(exact.all())

    # ---- as flat arrays

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole catalog; call `compact` first, so that all slots are alive."""
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
        return found

    @classmethod
    def from_arrays(cls, kind: str, arrays: Mapping[str, NDArray[Any]]) -> Catalog:
        """Works on memory-mapped arrays without reading them through."""
        catalog = cls(kind)
        size = len(arrays["priority"])
        ids = pa.array(arrays["ids"]) if kind == "int" else text_values("ids", arrays)
        where = text_values("where", arrays) if "where_data" in arrays else pa.nulls(size, pa.large_string())
        catalog.ids, catalog.where = Values(ids), Values(where)
        catalog._order = arrays.get("order")
        catalog._priority, catalog._first = Numbers(arrays["priority"]), Numbers(arrays["first"])
        catalog._count, catalog._owner = Numbers(arrays["count"]), Numbers(arrays["owner"])
        catalog._exact = Numbers(arrays["exact"])
        catalog._alive = Numbers(np.ones(size, bool))
        for run in _runs(np.flatnonzero(arrays["owner"] < 0)):
            catalog._free.setdefault(len(run), []).append(int(run[0]))
        catalog.living = size
        catalog.plain = bool((arrays["count"] <= 1).all() and arrays["exact"].all())
        return catalog


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
    order: I64 = pc.sort_indices(ids).to_numpy().astype(np.int64)
    return order


def text_arrays(name: str, texts: pa.Array) -> dict[str, NDArray[Any]]:
    _, raw_offsets, raw = texts.buffers()  # compact: every frozen array came from a take or a concat
    offsets = np.frombuffer(raw_offsets, np.int64)[: len(texts) + 1] if len(texts) else np.zeros(1, np.int64)
    data = np.frombuffer(raw, np.uint8)[: offsets[-1]] if raw is not None else np.zeros(0, np.uint8)
    found: dict[str, NDArray[Any]] = {f"{name}_offsets": offsets, f"{name}_data": data}
    if texts.null_count:
        found[f"{name}_null"] = texts.is_null().to_numpy(zero_copy_only=False)
    return found


def text_values(name: str, arrays: Mapping[str, NDArray[Any]]) -> pa.Array:
    offsets, data = arrays[f"{name}_offsets"], arrays[f"{name}_data"]
    null = arrays.get(f"{name}_null")
    valid = None if null is None else pa.array(~null).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)
