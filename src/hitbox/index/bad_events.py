"""A batch with events that do not fit: those that can be matched, and why the others cannot (encoding/fitting.py).

    events ──> rows of the table that fit  ──> matched as a table ──┐
           ├─> events, one by one          ──> matched as a list ───┴─> in the order of the batch, with `errors`
           └─> left out, with the reason ──────────────────────────────────────────────┘

A row of a table that does not fit becomes an event of its own, so one function says what fits, and why not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64
from hitbox.encoding.events import Columns, from_table, row_event
from hitbox.encoding.fitting import Check, fitted, misfit
from hitbox.encoding.json_events import UNREADABLE, JsonEvents
from hitbox.encoding.keys import Keys
from hitbox.errors import HitboxError
from hitbox.index.matches import Matches

Where = str | Sequence[str | None] | None
Found = tuple[Matches, NDArray[np.uint8]]
"""Matches, and the priority of each."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some events of a batch, which fit, and what each asks of the subscriptions. `numbers`: theirs in the batch."""

    events: Any
    where: Where
    numbers: I64


class Sorter:
    """Sorts the events of a batch. `check` and `asked` raise an error for an event, and for a predicate of an event,
    that do not fit; `asked` is not asked about one predicate for all events."""

    def __init__(self, keys: Keys, check: Check, asked: Callable[[str], object], on_error: str):
        self.keys, self.on_error = keys, on_error
        self._check, self._asked = check, asked
        self._known: dict[Any, str] = {}

    def __call__(self, events: Any, where: Where, first: int) -> tuple[list[Part], dict[int, str]]:
        """The parts to match, and what is wrong by the number of the event; the first one is `first`."""
        errors: dict[int, str] = {}
        whole = np.zeros(len(events), bool)
        if isinstance(events, pa.Table):
            single = self._strange_rows(events, whole)
        elif isinstance(events, JsonEvents):
            single = list(events.each())
        else:
            single = [(number, event, "") for number, event in enumerate(events)]
        kept, numbers = [], []
        for number, event, problem in single:
            problem = problem or misfit(self._check, event)
            if problem:
                errors[number] = problem
                event = event if event is UNREADABLE else fitted(self._check, event)
            if event is not UNREADABLE and (not problem or self.on_error == "null"):
                kept.append(event)
                numbers.append(number)
        unasked = [] if where is None or isinstance(where, str) else self._bad_predicates(where)
        for number, problem in unasked:  # whether its predicate holds is unknown, so it matches nothing
            errors[number] = problem
            whole[number] = False
        gone = {number for number, _ in unasked}
        if gone:
            kept = [event for number, event in zip(numbers, kept, strict=True) if number not in gone]
            numbers = [number for number in numbers if number not in gone]
        parts = []
        if whole.any():
            rows = np.flatnonzero(whole)
            table = events if whole.all() else events.take(pa.array(rows))
            parts.append(Part(table, _of(where, rows), first + rows))
        if kept:
            rows = np.array(numbers, np.int64)
            parts.append(Part(kept, _of(where, rows), first + rows))
        return parts, {first + number: problem for number, problem in errors.items()}

    def _strange_rows(self, table: pa.Table, whole: NDArray[np.bool_]) -> list[tuple[int, Any, str]]:
        """The rows to look at one by one: (number, event, what cannot be read of it). The others are marked."""
        strange = np.full(table.num_rows, self.keys.schema.is_open)  # there a value fits or not by who asks for it
        from_table(self.keys, table, bad=strange)
        whole |= ~strange
        columns = Columns(self.keys, table)
        return [(row, *row_event(columns, self.keys, row)) for row in np.flatnonzero(strange).tolist()]

    def _bad_predicates(self, where: Sequence[Any]) -> list[tuple[int, str]]:
        found = []
        for number, text in enumerate(where):
            if text is not None and (problem := self._problem(text)):
                found.append((number, problem))
        return found

    def _problem(self, text: Any) -> str:
        if not isinstance(text, str):
            return f"`where` of an event is a text or None, not a {type(text).__name__}"
        if text not in self._known:
            try:
                self._asked(text)
                self._known[text] = ""
            except HitboxError as problem:
                self._known[text] = f"its predicate: {problem}"
        return self._known[text]


def _of(where: Where, rows: I64) -> Where:
    return where if where is None or isinstance(where, str) else [where[row] for row in rows.tolist()]


def in_order(parts: Sequence[Found], numbers: I64, count: int, ids: pa.DataType, errors: dict[int, str]) -> Found:
    """The matches of the events with these numbers, of a batch of `count`; the others match nothing."""
    lengths = np.concatenate([np.zeros(0, np.int64), *(matches.counts for matches, _ in parts)])
    starts = np.cumsum(lengths) - lengths
    order = np.argsort(numbers)
    offsets = np.zeros(count + 1, np.int64)
    offsets[1 + numbers] = lengths
    lengths = lengths[order]
    at = np.arange(lengths.sum()) + np.repeat(starts[order] - (np.cumsum(lengths) - lengths), lengths)
    np.cumsum(offsets, out=offsets)
    whole = pa.concat_arrays([pa.array([], ids), *(matches.ids.cast(ids) for matches, _ in parts)])
    priority = np.concatenate([np.zeros(0, np.uint8), *(priority for _, priority in parts)])
    return Matches(offsets, whole.take(pa.array(at)), sorted(errors.items())), priority[at]


def left_out(found: Found, events: Sequence[int]) -> Found:
    """What was found, without the matches of some events."""
    if not events:
        return found
    matches, priority = found
    counts = matches.counts
    kept = np.ones(len(counts), bool)
    kept[list(events)] = False
    stays = np.repeat(kept, counts)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(np.where(kept, counts, 0), out=offsets[1:])
    return Matches(offsets, matches.ids.filter(pa.array(stays)), matches.errors), priority[stays]
