"""The delivery log: what happened to recent deliveries, one record per commit, and those of them that are pending.

    log:  seq   steps
           17   recorded (subscriber, level, event, ids, sent) ...
           18   recorded ..., removed (subscriber, event) ..., sent (subscriber, event) ...
           19   removed ...

Most deliveries are acknowledged within a moment. Such a delivery is one entry of a record when it is made, one number
in another record when it is acknowledged, and never a row of its own. The pending ones of all records are in memory
too. Records that become old, or too many, are settled: what is still pending of the oldest records becomes rows of the
table `deliveries`, and the records are deleted, in one transaction. When such a row is sent, it returns to the log.

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
from itertools import chain, islice
from typing import Annotated, Any, NamedTuple

import msgspec

from hitbox.broker.clock import time
from hitbox.broker.store.checked_table import CheckedTable, Number
from hitbox.encoding.arrays import LEVELS
from hitbox.protocol.errors import StoreDamaged

SETTLE_SECONDS = 2.0
SETTLE_ROWS = 5_000
"""Pending deliveries that become rows in one transaction; more if a single record has more."""
COMPACT_BYTES = 64 * 1024
"""About so much is put into a new record when old ones are put together."""
RECORD_BYTES = 16 * 2**20
"""Size of a record, unless a single delivery, or a step that names no subscriptions, is larger. SQLite takes 1 GB."""
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


def _encoded(step: Step) -> Iterator[tuple[Step, bytes]]:
    """A step and its encoding; if it is large and can be divided, several steps."""
    data = _encode(step)
    if len(data) <= RECORD_BYTES or not isinstance(step, Recorded) or len(step.rows) == 1:
        yield step, data
    else:
        half = len(step.rows) // 2
        yield from _encoded(Recorded(step.rows[:half]))
        yield from _encoded(Recorded(step.rows[half:]))


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
    """Pending deliveries in memory, by subscriber and event. Those that were never sent are kept by level and in the
    order of their events: there may be many, and the next ones are wanted often. Those that were sent are few."""

    def __init__(self) -> None:
        self._sent: dict[int, dict[int, RecentDelivery]] = {}
        self._waiting: dict[int, dict[int, dict[int, RecentDelivery]]] = {}  # by subscriber, level and event
        self._unordered: set[tuple[int, int]] = set()  # (subscriber, level) of waiting ones that came out of order
        self.count = 0
        self._undo: list[tuple[list[RecentDelivery], list[RecentDelivery]]] = []  # what was put, what was removed

    def apply(self, step: Step) -> None:
        """Do in memory what a step says."""
        match step:
            case Recorded():
                self._put(step.rows)
            case Sent():
                found = [row for key in step.keys if (row := self.get(*key)) is not None]
                self._put([(*row[:4], 1) for row in found])
            case Removed():
                self._remove([row for key in step.keys if (row := self.get(*key)) is not None])
            case Forgotten():
                self._remove(list(self.of(step.subscriber)))

    def _put(self, rows: list[RecentDelivery]) -> None:
        replaced: list[RecentDelivery] = []
        self._undo.append((rows, replaced))
        for row in rows:
            if (old := self.get(row[0], row[2])) is not None:
                replaced.append(old)
                self._take_out(old)
            self._add(row)

    def _remove(self, rows: list[RecentDelivery]) -> None:
        """Remove deliveries that are there. One may be named twice."""
        self._undo.append(([], rows))
        for row in rows:
            self._take_out(row)

    def _add(self, row: RecentDelivery) -> None:
        subscriber, level, seq, _, sent = row
        if sent:
            mine = self._sent.get(subscriber)
            if mine is None:
                mine = self._sent[subscriber] = {}
        else:
            mine = self._waiting.setdefault(subscriber, {}).setdefault(level, {})
            if mine and next(reversed(mine)) > seq:
                self._unordered.add((subscriber, level))
        self.count += seq not in mine
        mine[seq] = row

    def _take_out(self, row: RecentDelivery) -> None:
        subscriber, level, seq, _, sent = row
        mine = self._sent.get(subscriber) if sent else self._waiting.get(subscriber, {}).get(level)
        if mine is None or mine.pop(seq, None) is None:
            return
        self.count -= 1
        if mine:
            return
        if sent:
            del self._sent[subscriber]
        else:
            levels = self._waiting[subscriber]
            del levels[level]
            self._unordered.discard((subscriber, level))
            if not levels:
                del self._waiting[subscriber]

    def get(self, subscriber: int, seq: int) -> RecentDelivery | None:
        if (mine := self._sent.get(subscriber)) is not None and (row := mine.get(seq)) is not None:
            return row
        if (levels := self._waiting.get(subscriber)) is not None:
            for waiting in levels.values():
                if (row := waiting.get(seq)) is not None:
                    return row
        return None

    def of(self, subscriber: int) -> Iterator[RecentDelivery]:
        yield from self._sent.get(subscriber, {}).values()
        for waiting in self._waiting.get(subscriber, {}).values():
            yield from waiting.values()

    def count_of(self, subscriber: int) -> int:
        return len(self._sent.get(subscriber, ())) + sum(map(len, self._waiting.get(subscriber, {}).values()))

    def all(self) -> Iterator[RecentDelivery]:
        """All deliveries, those of one subscriber together."""
        for subscriber in self._sent.keys() | self._waiting.keys():
            yield from self.of(subscriber)

    def next_of(self, subscriber: int, skip: set[int], first: int, limit: int) -> list[RecentDelivery]:
        """The next deliveries of a subscriber, most urgent first, then by age, of events from number `first` on."""

        def wanted(rows: Iterable[RecentDelivery]) -> Iterator[RecentDelivery]:
            return (row for row in rows if row[2] not in skip and row[2] >= first)

        found: list[RecentDelivery] = []
        levels = self._waiting.get(subscriber, {})
        for level in sorted(levels, reverse=True):
            if (subscriber, level) in self._unordered:
                levels[level] = dict(sorted(levels[level].items()))
                self._unordered.remove((subscriber, level))
            found += islice(wanted(levels[level].values()), limit - len(found))
        again = list(wanted(self._sent.get(subscriber, {}).values()))
        return heapq.nsmallest(limit, found + again, key=lambda row: (-row[1], row[2])) if again else found


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
        self._flushed: list[Record] = []
        self._settled: list[Record] = []

    def load(self) -> None:
        """Read the log after a start."""
        for number, data, _ in self._log.scan("TRUE ORDER BY seq"):
            steps = read(number, data)
            for step in steps:
                self.apply(step)
            rows = [row for step in steps if isinstance(step, Recorded) for row in step.rows]
            self._records.append(Record(number, time.monotonic(), rows))
        self._undo.clear()

    def crowded(self, more: int = 0) -> bool:
        """Whether there are, or would be with so many more, more than may be in memory."""
        return self.count + more > MOST_RECENT

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

    def remove(self, keys: Iterable[tuple[int, int, int]]) -> tuple[list[RecentDelivery], list[tuple[int, int, int]]]:
        """Remove deliveries (subscriber, level, event). Returns those that were there, and the other keys, which are
        not in the log."""
        others: list[tuple[int, int, int]] = []
        gone: dict[Key, RecentDelivery] = {}
        for key in keys:
            subscriber, level, seq = key
            row = self.get(subscriber, seq)
            if row is None or row[1] != level:
                others.append(key)
            else:
                gone[subscriber, seq] = row
        if gone:
            self._remove(list(gone.values()))
            self._add_step(Removed(list(gone)))
        return list(gone.values()), others

    def take(self, subscriber: int, level: int, seq: int) -> RecentDelivery | None:
        """Remove one delivery and return it: the caller puts it somewhere else."""
        row = self.get(subscriber, seq)
        if row is None or row[1] != level:
            return None
        self._change(Removed([(subscriber, seq)]))
        return row

    def forget(self, subscriber: int) -> None:
        if subscriber in self._sent or subscriber in self._waiting:
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
        `limit` deliveries."""
        found: list[RecentDelivery] = []
        last = 0
        while self._records and self._records[0].when < before:
            record = self._records[0]
            left = self._pending_of(record)
            if found and len(found) + len(left) > limit:
                break
            found += left.values()
            last = record.number
            self._remove(list(left.values()))
            self._settled.append(self._records.popleft())
        if found and (self._records or self._steps):  # a later one may contain some too: settled before, and fetched
            self._add_step(Removed([(row[0], row[2]) for row in found]))
        if last:
            self._log.delete_through(last)
        return found

    def compact(self) -> None:
        """Delete the oldest records of which nothing is pending. If most of the log is about deliveries that are gone,
        also the next ones: a new record gets what is pending of them. That needs little space, unlike `settle`: on a
        full disk this is how acknowledgements make room."""
        mostly_gone = sum(1 + len(record.rows) for record in self._records) > 2 * self.count
        kept: dict[Key, RecentDelivery] = {}
        size = 0
        while self._records:
            left = self._pending_of(self._records[0])
            if left and (not mostly_gone or size > COMPACT_BYTES):
                break
            kept |= left
            size += sum(len(row[3]) + 32 for row in left.values())
            self._settled.append(self._records.popleft())
        if self._settled:
            self._log.delete_through(self._settled[-1].number)
        if kept:
            self._add_step(Recorded(list(kept.values())))

    def _pending_of(self, record: Record) -> dict[Key, RecentDelivery]:
        return {(row[0], row[2]): row for one in record.rows if (row := self.get(one[0], one[2])) is not None}

    def flush(self) -> None:
        """Write the steps since the last commit as one record, or as several if they are large."""
        part: list[msgspec.Raw] = []
        rows: list[RecentDelivery] = []
        size = 0
        for step, data in chain.from_iterable(map(_encoded, self._steps)):
            if part and size + len(data) > RECORD_BYTES:
                self._write(part, rows)
                part, rows, size = [], [], 0
            part.append(msgspec.Raw(data))
            rows += step.rows if isinstance(step, Recorded) else ()
            size += len(data)
        if part:
            self._write(part, rows)

    def _write(self, steps: list[msgspec.Raw], rows: list[RecentDelivery]) -> None:
        number = self._log.next()
        self._log.insert([(number, _encode(steps))])
        self._flushed.append(Record(number, time.monotonic(), rows))

    def committed(self) -> None:
        self._records.extend(self._flushed)
        self._clear()

    def rollback(self) -> None:
        for put, removed in reversed(self._undo):
            for row in put:
                self._take_out(row)
            for row in removed:
                self._add(row)
        self._records.extendleft(reversed(self._settled))
        self._clear()

    def _clear(self) -> None:
        self._steps, self._flushed, self._undo, self._settled = [], [], [], []


def row_of(delivery: RecentDelivery, kept: int = 0) -> tuple[Any, ...]:
    """A delivery as a row of table `deliveries`. `kept`: its event is in table `kept`."""
    subscriber, level, seq, ids, sent = delivery
    return (subscriber, LEVELS - 1 - level, seq, ids, sent, 0, kept)
