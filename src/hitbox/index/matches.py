"""The result of matching many events: offsets and ids, without a Python object a match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hitbox.encoding.arrays import I64


@dataclass(frozen=True, slots=True)
class Matches:
    """The ids that event i matched are `ids[offsets[i]:offsets[i + 1]]`, most urgent first."""

    offsets: I64
    ids: pa.Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, event: int) -> list[Any]:
        if not -len(self) <= event < len(self):
            raise IndexError(f"event {event} of {len(self)}")
        event %= len(self)
        found: list[Any] = self.ids[int(self.offsets[event]) : int(self.offsets[event + 1])].to_pylist()
        return found

    @property
    def counts(self) -> I64:
        """How many subscriptions each event matched."""
        return np.diff(self.offsets)

    def to_table(self) -> pa.Table:
        """One row a match: the event's number and the subscription's id."""
        events = np.repeat(np.arange(len(self)), self.counts)
        return pa.table({"event": events, "subscription": self.ids})

    def to_lists(self) -> pa.Array:
        """One list of ids an event."""
        return pa.LargeListArray.from_arrays(pa.array(self.offsets), self.ids)


@dataclass(frozen=True, slots=True)
class Transition:
    """What a change of a document means: the ids of those that `enter`, `leave` and `stay`, most urgent first."""

    enter: list[Any]
    leave: list[Any]
    stay: list[Any]
