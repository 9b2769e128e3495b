"""Columns that grow at their end: plain numbers, and Arrow values on a frozen (perhaps memory-mapped) base."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MAX_LATE = 20_000


class Numbers:
    """A NumPy array that grows at its end. `reserve` does what takes time or memory; after it, the other changes are
    made in place and cannot fail."""

    def __init__(self, values: NDArray[Any]):
        self._values = values
        self._size = len(values)

    def __len__(self) -> int:
        return self._size

    @property
    def array(self) -> NDArray[Any]:
        return self._values[: self._size]

    def nbytes(self) -> int:
        return self._values.nbytes

    def reserve(self, size: int) -> None:
        """Make room for `size` numbers that can be written (those of a snapshot are memory-mapped)."""
        if size > len(self._values):
            room = np.zeros(max(size, self._size * 3 // 2, 64), self._values.dtype)
        elif not self._values.flags.writeable:
            room = np.empty(len(self._values), self._values.dtype)
        else:
            return
        room[: self._size] = self.array
        self._values = room  # one assignment: a reader sees the old array or the new one, with equal content

    def put(self, at: Any, values: Any) -> None:
        self._values[at] = values

    def append(self, values: Any) -> None:
        size = self._size + len(values)
        self._values[self._size : size] = values
        self._size = size

    def grow(self, size: int) -> None:
        """Take what was written beyond the end into the column."""
        self._size = max(self._size, size)


class Values:
    """Ids or texts: a frozen Arrow array, then a list of the values added later."""

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

    def full(self) -> bool:
        """Whether enough values were added later to freeze them."""
        return len(self._late) > max(MAX_LATE, len(self.base) // 8)

    def frozen(self, more: pa.Array | None = None) -> pa.Array:
        """Everything, and then `more`, as one array."""
        parts = [self.base, *([self._tail()] if self._late else []), *([] if more is None else [more])]
        return pa.concat_arrays(parts) if len(parts) > 1 else self.base

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

    def pick(self, at: NDArray[np.int64]) -> list[Any]:
        """The values at some places, without making an Arrow array of those added later."""
        start = len(self.base)
        if len(at) <= 100:
            return [self[place] for place in at.tolist()]
        late = at >= start
        found = np.empty(len(at), object)
        found[~late] = self.base.take(pa.array(at[~late])).to_pylist()
        found[late] = [self._late[place - start] for place in at[late].tolist()]
        picked: list[Any] = found.tolist()
        return picked

    def _tail(self) -> pa.Array:
        tail = self._late_array
        if tail is None:
            tail = self._late_array = pa.array(self._late, self.base.type)  # by any reader: all make the same array
        return tail
