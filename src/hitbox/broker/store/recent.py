"""The delivery log: what happened to recent deliveries, one record per commit, and those of them that are pending.

    log:  seq   steps
           17   recorded (subscriber, level, event, ids, sent) ...
           18   recorded ..., removed (subscriber, event) ..., sent (subscriber, event) ...
           19   removed ...

Most deliveries are acknowledged within a moment. Such a delivery is one entry of a record when it is made, one number
in another record when it is acknowledged, and never a row of its own. The pending ones of all records are in memory
too. Records that become old, or too many, are settled: what is still pending of the oldest records becomes rows of the
table `deliveries`, and the records are deleted, in one transaction.

The log is a table of the same database, so a record is durable with the transaction that it describes, or not at all.
After a crash `load` reads the records and has the same deliveries in memory. A step that names a delivery which is not
in memory is of one that was settled before, or is gone: it is ignored. A delivery that fails, becomes a dead letter or
has to be changed in another way is taken out of the log (a step `removed`) and put into its table at the same time.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import msgspec

from hitbox.broker.clock import time
from hitbox.broker.errors import StoreDamaged
from hitbox.broker.store.checked_table import CheckedTable, Number
from hitbox.encoding.arrays import LEVELS

SETTLE_SECONDS = 2.0
SETTLE_ROWS = 5_000
"""Pending deliveries that become rows in one transaction; more if a single record has more."""
MOST_RECENT = 50_000
"""Pending deliveries in memory; beyond it the oldest are settled, however old they are."""
Level = Annotated[int, msgspec.Meta(ge=0, le=LEVELS - 1)]
Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]
RecentDelivery = tuple[Number, Level, Number, str, Flag]
"""(subscriber, level, event, ids, sent)"""
Key = tuple[Number, Number]
"""(subscriber, event)"""


class Recorded(msgspec.Struct, array_like=True, tag="recorded"):
    rows: list[RecentDelivery]


class Sent(msgspec.Struct, array_like=True, tag="sent"):
    keys: list[Key]


class Removed(msgspec.Struct, array_like=True, tag="removed"):
    keys: list[Key]


class Forgotten(msgspec.Struct, array_like=True, tag="forgotten"):
    """All deliveries of a subscriber are gone."""

    subscriber: Number


Step = Recorded | Sent | Removed | Forgotten
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Step]).decode


class Record(NamedTuple):
    number: int
    when: float
    rows: list[RecentDelivery]


def read(number: int, data: bytes) -> list[Step]:
    """The steps of a record."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise StoreDamaged(f"table log: record {number} cannot be read ({problem})") from None


class PendingDeliveries:
    """Pending deliveries in memory, by subscriber and event."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, RecentDelivery]] = {}
        self.count = 0
        self._undo: list[tuple[int, int, RecentDelivery | None]] = []

    def apply(self, step: Step) -> None:
        """Do in memory what a step says."""
        match step:
            case Recorded():
                for row in step.rows:
                    self._put(row)
            case Sent():
                for subscriber, seq in step.keys:
                    if (found := self.get(subscriber, seq)) is not None:
                        self._put((*found[:4], 1))
            case Removed():
                for subscriber, seq in step.keys:
                    self._pop(subscriber, seq)
            case Forgotten():
                for seq in list(self._of.get(step.subscriber, ())):
                    self._pop(step.subscriber, seq)

    def _put(self, row: RecentDelivery) -> None:
        subscriber, seq = row[0], row[2]
        mine = self._of.setdefault(subscriber, {})
        before = mine.get(seq)
        self._undo.append((subscriber, seq, before))
        mine[seq] = row
        self.count += before is None

    def _pop(self, subscriber: int, seq: int) -> RecentDelivery | None:
        mine = self._of.get(subscriber)
        row = None if mine is None else mine.pop(seq, None)
        if mine is not None and row is not None:
            self._undo.append((subscriber, seq, row))
            self.count -= 1
            if not mine:
                del self._of[subscriber]
        return row

    def get(self, subscriber: int, seq: int) -> RecentDelivery | None:
        mine = self._of.get(subscriber)
        return None if mine is None else mine.get(seq)

    def of(self, subscriber: int) -> Iterable[RecentDelivery]:
        return self._of.get(subscriber, {}).values()

    def all(self) -> Iterator[RecentDelivery]:
        for mine in self._of.values():
            yield from mine.values()

    def next_of(self, subscriber: int, skip: set[int], first: int, limit: int) -> list[RecentDelivery]:
        """The next deliveries of a subscriber, most urgent first, then by age, of events from number `first` on."""
        wanted = (row for row in self.of(subscriber) if row[2] not in skip and row[2] >= first)
        return heapq.nsmallest(limit, wanted, key=lambda row: (-row[1], row[2]))

    def oldest_event(self, first: int) -> int | None:
        """The oldest event from number `first` on of which a delivery is pending."""
        return min((row[2] for row in self.all() if row[2] >= first), default=None)


class RecentDeliveries(PendingDeliveries):
    """The pending deliveries of the log. Changed by the writer's thread only; other threads may read `count`.

    Steps are collected until `flush`, which writes them as one record. `rollback` undoes what came after the last
    `committed`, in memory too.
    """

    def __init__(self, log: CheckedTable):
        super().__init__()
        self._log = log
        self._records: deque[Record] = deque()
        self._steps: list[Step] = []
        self._flushed: Record | None = None
        self._settled: list[Record] = []

    def load(self) -> None:
        """Read the log after a start."""
        for number, data, _ in self._log.scan("TRUE ORDER BY seq"):
            steps = read(number, data)
            for step in steps:
                self.apply(step)
            self._records.append(Record(number, time.monotonic(), _rows_of(steps)))
        self._undo.clear()

    def crowded(self) -> bool:
        """Whether there are more than may be in memory."""
        return self.count > MOST_RECENT

    def due(self) -> float:
        """Records that were written before this time are to be settled."""
        return time.monotonic() - SETTLE_SECONDS

    def overdue(self) -> bool:
        """Whether there are such records; from any thread."""
        try:
            return self._records[0].when < self.due()
        except IndexError:
            return False

    # ---- changes, in a transaction

    def record(self, rows: list[RecentDelivery]) -> None:
        if rows:
            self._change(Recorded(rows))

    def mark_sent(self, keys: list[Key]) -> None:
        if keys:
            self._change(Sent(keys))

    def remove(self, keys: Iterable[tuple[int, int, int]]) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        """Remove deliveries (subscriber, level, event). Returns how many each subscriber had of them, and the other
        keys, which are not in the log."""
        counts: dict[int, int] = {}
        others, gone = [], []
        for key in keys:
            subscriber, level, seq = key
            mine = self._of.get(subscriber)
            row = None if mine is None else mine.get(seq)
            if row is None or row[1] != level:
                others.append(key)
                continue
            self._pop(subscriber, seq)
            gone.append((subscriber, seq))
            counts[subscriber] = counts.get(subscriber, 0) + 1
        if gone:
            self._add_step(Removed(gone))
        return counts, others

    def take(self, subscriber: int, level: int, seq: int) -> RecentDelivery | None:
        """Remove one delivery and return it: the caller puts it somewhere else."""
        row = self.get(subscriber, seq)
        if row is None or row[1] != level:
            return None
        self._change(Removed([(subscriber, seq)]))
        return row

    def forget(self, subscriber: int) -> None:
        if subscriber in self._of:
            self._change(Forgotten(subscriber))

    def _change(self, step: Step) -> None:
        self.apply(step)
        self._add_step(step)

    def _add_step(self, step: Step) -> None:
        last = self._steps[-1] if self._steps else None
        if isinstance(last, Removed) and isinstance(step, Removed):
            last.keys += step.keys
        else:
            self._steps.append(step)

    def settle(self, limit: int, before: float = math.inf) -> list[RecentDelivery]:
        """Delete the oldest records, those written before the time `before`; returns what was pending of them, about
        `limit` deliveries. With the limit 0 only records are deleted of which nothing is pending."""
        found: list[RecentDelivery] = []
        last = 0
        while self._records and self._records[0].when < before:
            record = self._records[0]
            left = [row for s, _, seq, *_ in record.rows if (row := self.get(s, seq)) is not None]
            if left and (not limit or (found and len(found) + len(left) > limit)):
                break
            found += left
            last = record.number
            for row in left:
                self._pop(row[0], row[2])
            self._settled.append(self._records.popleft())
        if last:
            self._log.delete_through(last)
        return found

    def flush(self) -> None:
        """Write the steps since the last commit as one record."""
        if self._steps:
            number = self._log.next()
            self._log.insert([(number, _encode(self._steps))])
            self._flushed = Record(number, time.monotonic(), _rows_of(self._steps))

    def committed(self) -> None:
        if self._flushed is not None:
            self._records.append(self._flushed)
        self._clear()

    def rollback(self) -> None:
        for subscriber, seq, row in reversed(self._undo):
            mine = self._of.setdefault(subscriber, {})
            self.count -= seq in mine
            if row is None:
                mine.pop(seq, None)
            else:
                mine[seq] = row
                self.count += 1
            if not mine:
                del self._of[subscriber]
        self._records.extendleft(reversed(self._settled))
        self._clear()

    def _clear(self) -> None:
        self._steps, self._flushed, self._undo, self._settled = [], None, [], []


def row_of(delivery: RecentDelivery) -> tuple[Any, ...]:
    """A delivery as a row of table `deliveries`."""
    subscriber, level, seq, ids, sent = delivery
    return (subscriber, LEVELS - 1 - level, seq, ids, sent, 0, None)


def _rows_of(steps: list[Step]) -> list[RecentDelivery]:
    return [row for step in steps if isinstance(step, Recorded) for row in step.rows]
