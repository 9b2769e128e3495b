"""The result of matching many events: offsets and ids, without a Python object a match."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa

from hitbox.encoding.arrays import I64
from hitbox.errors import MissingExtra

ERROR = "error"
"""The column with what is wrong with an event, if on_error is "return"."""
RESULTS = {"arrays": "subscriptions", "pairs": "subscription", "counts": "matches"}
"""What the column with the matches is called in a table: one list per event, one row per match, or their number."""


@dataclass(frozen=True, slots=True)
class Matches:
    """The ids that event i matched are `ids[offsets[i]:offsets[i + 1]]`, most urgent first. `errors`: (number, reason)
    of the events that did not fit, unless `on_error` is "raise"."""

    offsets: I64
    ids: pa.Array
    errors: list[tuple[int, str]] = field(default_factory=list)

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

    def to_lists(self) -> list[list[Any]]:
        """One list of ids per event."""
        ids = self.ids.to_pylist()
        return [ids[start:end] for start, end in itertools.pairwise(self.offsets.tolist())]

    def to_list_array(self) -> pa.Array:
        """One list of ids per event, as an Arrow array."""
        return pa.LargeListArray.from_arrays(pa.array(self.offsets), self.ids)

    def to_pandas(self) -> Any:
        """The rows of `to_table` as a pandas.DataFrame; needs pandas."""
        _require("to_pandas", "pandas")
        return self.to_table().to_pandas()

    def to_polars(self) -> Any:
        """The rows of `to_table` as a polars.DataFrame; needs polars."""
        _require("to_polars", "polars")
        return import_module("polars").from_arrow(self.to_table())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows of `to_table` for any library that reads Arrow's streams."""
        return self.to_table().__arrow_c_stream__(requested_schema)


def _require(method: str, package: str) -> None:
    if find_spec(package) is None:
        raise MissingExtra(f"Matches.{method} needs {package}: pip install {package}", name=package)


@dataclass(frozen=True, slots=True)
class Transition:
    """What a change of a document means: the ids of those that `enter`, `leave` and `stay`, most urgent first."""

    enter: list[Any]
    leave: list[Any]
    stay: list[Any]
