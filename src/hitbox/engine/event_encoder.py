"""Events -> Points: values of the plain Python types natively, everything else through the codecs (encoding/events.py).

So a value has one meaning, and an error has one message, whichever way it goes. The native part (src/engine/bindings/
event_plan.hpp) takes exact dicts with exact strings as names, and exact values: bool, int, float, str, datetime, None,
lists of these, and dicts for objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from hitbox.encoding import events
from hitbox.encoding.arrays import Points
from hitbox.encoding.derived import Derivation
from hitbox.encoding.documents import Event
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import EPOCH
from hitbox.engine import _kernels
from hitbox.errors import TableError, UnknownAttribute, ValueProblem

PIECE = 4096
"""Events that are encoded while no other thread runs Python code and no signal is handled."""


class EventEncoder:
    """The events of one schema as points. `used` are the derived attributes to compute; it may change meanwhile."""

    def __init__(self, keys: Keys, used: Sequence[int] = ()):
        schema = keys.schema
        columns = [codec.native() for codec in keys.codecs]
        free = list(keys.space.information)
        # functions of the keys, not methods: the collector does not see a cycle through a native object
        others = partial(_other_value, keys), partial(_other_event, keys)
        self._keys, self._derivation = keys, Derivation(keys, used)
        has_keys = any(not attribute.is_detail for attribute in keys.derived)
        derived = partial(_derived, self._derivation) if has_keys else None
        epochs = EPOCH, EPOCH.replace(tzinfo=None)
        ignores = schema.extra == "ignore"
        self.plan = _kernels.EventPlan(columns, _numbers(schema), free, *others, derived, *epochs, ignores)

    def one(self, event: Event) -> Points:
        return Points(*self.plan.encode([event], -1))

    def table(self, table: pa.Table, first_row: int = 0) -> Points:
        """The rows of a table; errors count them from `first_row`."""
        return self._derivation.of_table(table, events.from_table(self._keys, table, first_row), first_row)

    def many(self, batch: list[Event], first_row: int = 0) -> Points:
        """A list of events, which nobody changes meanwhile; an error names the event's number, counted from
        `first_row`."""
        if len(batch) <= PIECE:
            return Points(*self.plan.encode(batch, first_row))
        starts = range(0, len(batch), PIECE)
        parts = [Points(*self.plan.encode(batch[at : at + PIECE], first_row + at)) for at in starts]
        low = np.concatenate([part.low for part in parts])
        return Points(low, np.concatenate([part.high for part in parts]) if any(p.intervals for p in parts) else low)


def _numbers(schema: Schema) -> dict[str, Any]:
    """The numbers of attributes by name, -1 of those that events do not carry; those of an object by field, too."""
    fields: dict[str, dict[str, Any]] = {name: {} for name in schema.objects}
    for name in schema.objects:
        above, _, last = name.rpartition(".")
        if above in fields:
            fields[above][last] = fields[name]
    numbers: dict[str, Any] = dict(fields)
    for name, attribute in schema.items():
        numbers[name] = schema.number(name) if attribute.role == "criteria" else -1
        above, _, last = name.rpartition(".")
        if above in fields:
            fields[above][last] = numbers[name]
    return numbers


def _other_value(keys: Keys, number: int, value: Any, row: int) -> tuple[int, int]:
    """The ends of a value of another type; `row` is its event's number, -1 where there is one event only."""
    try:
        return events.value_keys(keys.codecs[number], keys.schema.names[number], value)
    except (ValueProblem, UnknownAttribute) as problem:
        raise _in_row(problem, row) from None


def _other_event(keys: Keys, event: Event, row: int) -> dict[int, tuple[int, int]]:
    try:
        return events.event_keys(keys, event)
    except (ValueProblem, UnknownAttribute) as problem:
        raise _in_row(problem, row) from None


def _derived(derivation: Derivation, event: Event, row: int) -> dict[int, tuple[int, int]]:
    try:
        return derivation.of_event(event)
    except (ValueProblem, UnknownAttribute) as problem:
        raise _in_row(problem, row) from None


def _in_row(problem: ValueProblem | UnknownAttribute, row: int) -> Exception:
    return problem if row < 0 else TableError(f"event {row}: {problem}", [(row, str(problem))])
