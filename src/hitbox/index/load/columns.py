"""Columns that grow at their end: plain numbers, and Arrow values on a frozen (perhaps memory-mapped) base."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.engine import _kernels

MAX_LATE = 20_000


class Numbers:
    """A NumPy array that grows at its end. `reserve` does what takes time or memory; after it, the other changes are
    made in place and cannot fail."""

    def __init__(self, values: NDArray[Any]):
        self._values = values
        self._size = len(values)
        self.room = len(values) if values.flags.writeable else 0
        """How many numbers can be written without `reserve`."""

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: int) -> Any:
        return self._values[at]

    @property
    def array(self) -> NDArray[Any]:
        return self._values[: self._size]

    def nbytes(self) -> int:
        return self._values.nbytes

    def reserve(self, size: int) -> None:
        """Make room for `size` numbers that can be written (those of a snapshot are memory-mapped)."""
        if 0 < size <= self.room:
            return
        if size > len(self._values):
            room = np.zeros(max(size, self._size * 3 // 2, 64), self._values.dtype)
        elif not self._values.flags.writeable:
            room = np.empty(len(self._values), self._values.dtype)
        else:
            return
        room[: self._size] = self.array
        self._values = room  # one assignment: a reader sees the old array or the new one, with equal content
        self.room = len(room)

    def put(self, at: Any, values: Any) -> None:
        self._values[at] = values

    def append(self, values: Any) -> None:
        size = self._size + len(values)
        self._values[self._size : size] = values
        self._size = size

    def append_one(self, value: Any) -> None:
        self._values[self._size] = value
        self._size += 1

    def grow(self, size: int) -> None:
        """Take what was written beyond the end into the column."""
        self._size = max(self._size, size)


class Values:
    """Ids or texts: a frozen Arrow array without nulls in ids, then a list of what came later."""

    def __init__(self, base: pa.Array):
        self.base = base
        self._late: list[Any] = []
        self._late_array: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.base) + len(self._late)

    def __getitem__(self, at: int) -> Any:
        return self.base[at].as_py() if at < len(self.base) else self._late[at - len(self.base)]

    @property
    def late(self) -> int:
        """How many values were added later."""
        return len(self._late)

    def nbytes(self) -> int:
        return int(self.base.nbytes) + 60 * len(self._late)

    def extend(self, values: Sequence[Any]) -> None:
        self._late.extend(values)
        self._late_array = None

    def append(self, value: Any) -> None:
        self._late.append(value)
        self._late_array = None

    def full(self) -> bool:
        """Whether enough values were added later to freeze them."""
        return len(self._late) > max(MAX_LATE, len(self.base) // 8)

    def frozen(self, more: pa.Array | None = None) -> pa.Array:
        """Everything, and then `more`, as one array."""
        parts = [self.base, *([self._tail()] if self._late else []), *([] if more is None else [more])]
        some = [part for part in parts if len(part)]
        return pa.concat_arrays(some) if len(some) > 1 else some[0] if some else self.base

    def take(self, at: NDArray[np.int64]) -> pa.Array:
        if not self._late:
            return self.base.take(pa.array(at))
        if len(at) and at.max() < len(self.base):
            return self.base.take(pa.array(at))
        late = at >= len(self.base)
        if late.all():
            return self._tail().take(pa.array(at - len(self.base)))
        place = np.empty(len(at), np.int64)
        place[~late] = np.arange(len(at) - late.sum())
        place[late] = np.arange(late.sum()) + len(at) - late.sum()
        parts = [self.base.take(pa.array(at[~late])), self._tail().take(pa.array(at[late] - len(self.base)))]
        return pa.concat_arrays(parts).take(pa.array(place))

    def _tail(self) -> pa.Array:
        tail = self._late_array
        if tail is None:
            tail = self._late_array = pa.array(self._late, self.base.type)  # by any reader: all make the same array
        return tail


class Ids(Values):
    """Ids of slots, int64 or texts; what matching asks for is made natively."""

    @cached_property
    def native(self) -> _kernels.Ids:
        """The ids for native code. They include what comes later, and are replaced together with the frozen part."""
        base, late = self.base, self._late
        if pa.types.is_integer(base.type):
            return _kernels.Ids(base.to_numpy(), late)
        _, starts, raw = base.buffers()
        if not len(base):
            return _kernels.Ids(np.zeros(1, np.int64), np.zeros(0, np.uint8), late)
        offsets = np.frombuffer(starts, np.int64)[base.offset : base.offset + len(base) + 1]
        return _kernels.Ids(offsets, np.frombuffer(raw or b"", np.uint8), late)

    def nbytes(self) -> int:
        return super().nbytes() + (self.native.nbytes if "native" in vars(self) else 0)

    def list(self, slots: NDArray[Any]) -> builtins.list[Any]:
        return self.native.list(np.ascontiguousarray(slots, np.int32))

    def take(self, at: NDArray[Any], events: NDArray[np.int64] | None = None) -> pa.Array:
        """The ids of some slots; `events` says where the slots of each of many events begin, and where the last end."""
        return self.array(*self.native.columns(np.ascontiguousarray(at, np.int32), events))

    @staticmethod
    def array(ids: NDArray[Any], data: NDArray[np.uint8] | None) -> pa.Array:
        """The Arrow array of what native code found: ids, or where texts begin and their bytes."""
        if data is None:
            return pa.array(ids)
        return pa.Array.from_buffers(pa.large_string(), len(ids) - 1, [None, pa.py_buffer(ids), pa.py_buffer(data)])
