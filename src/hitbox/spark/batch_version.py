"""Which version of a snapshot a micro-batch is matched against: chosen once, by the first task that asks.

    path/pins/query-{query}-{batch}.json    {"version": 7, "batch": 12, "expires": ...}

Spark tells every task the id of its query and the number of its batch; both stay the same if the batch is repeated, in
this process or after a restart from the checkpoint. The first task pins the current version under that name, and the
others read the pin. So all tasks of a batch agree, all repetitions agree, and the next batch takes the version that is
current by then. A pinned version is not removed (storage/snapshot.py).

Spark starts a batch only after the one before is committed, so the pins of the last two batches of a query are enough:
the first task of a batch removes the others. A query that will never run again cannot remove its own. So a pin expires
after PIN_DAYS. It then keeps no version, and any other query removes the file.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hitbox.errors import HitboxError, SnapshotError
from hitbox.spark import snapshot_files
from hitbox.storage import retention, snapshot
from hitbox.storage.addresses import join

PIN_DAYS = 7
KEPT_BATCHES = 2
REMEMBERED = 16
"""Batches whose version a worker process remembers."""


@dataclass(frozen=True)
class Version:
    """A version, what its manifest says, and when it was published (seconds since 1970)."""

    number: int
    facts: dict[str, Any]
    published: float


_remembered: OrderedDict[tuple[str, str, int, str, int | None], Version] = OrderedDict()


def chosen(path: str) -> Version:
    """The version of the batch that the running task belongs to."""
    return _remembering(path, None)


def held(path: str, version: int) -> Version:
    """A version that the user chose. It is pinned for the batch of the running task, where pins can be written."""
    with contextlib.suppress(HitboxError, OSError):
        return _remembering(path, version)
    return described(path, version)


def _remembering(path: str, version: int | None) -> Version:
    query, batch, run = this_batch()
    key = (path, query, batch, run, version)
    if key not in _remembered:
        pinned = choose(path, query, batch, version)
        _remembered[key] = described(path, pinned if version is None else version)
        while len(_remembered) > REMEMBERED:
            _remembered.popitem(last=False)
    return _remembered[key]


def this_batch() -> tuple[str, int, str]:
    """The query and the batch of the running task; and the run, which is another one after each start of the query."""
    from pyspark import TaskContext  # a Connect client need not have it

    task = TaskContext.get()
    query = task.getLocalProperty("sql.streaming.queryId") if task else None
    batch = task.getLocalProperty("streaming.sql.batchId") if task else None
    if not query or not batch:
        raise HitboxError(
            "match on a stream runs in micro-batches, but Spark did not tell this task the number of its batch: use a "
            "processingTime or availableNow trigger, or give version="
        )
    return query, int(batch), task.getLocalProperty("spark.jobGroup.id") or ""


def choose(path: str, query: str, batch: int, version: int | None = None) -> int:
    """The version of a batch: the one pinned for it, or else the given or the current one, which is pinned now."""
    name = f"query-{query}-{batch}"
    expires = round(time.time()) + PIN_DAYS * 86_400
    facts = {"batch": batch, "expires": expires} | ({} if version is None else {"version": version})
    pin = snapshot_files.pin_once(path, name, **facts)
    if snapshot.expired(pin):  # its version may be gone
        snapshot_files.remove(join(path, "pins", f"{name}.json"))
        pin = snapshot_files.pin_once(path, name, **facts)
    if pin["expires"] == expires:  # most likely this task's own
        _tidy(path, query, batch)
    return int(pin["version"])


def described(path: str, version: int) -> Version:
    facts = snapshot_files.facts(path, version)
    published = retention.time_of(facts)
    return Version(version, facts, published.timestamp() if published else time.time())


def _tidy(path: str, query: str, batch: int) -> None:
    """Remove pins that no batch will read again. A failure is left to the next batch."""
    with contextlib.suppress(SnapshotError, OSError):
        for name in snapshot_files.names(join(path, "pins")):
            with contextlib.suppress(SnapshotError, OSError):
                if name.startswith("query-") and name.endswith(".json") and _over(path, Path(name).stem, query, batch):
                    snapshot_files.remove(join(path, "pins", name))


def _over(path: str, name: str, query: str, batch: int) -> bool:
    mine, _, number = name.removeprefix("query-").rpartition("-")
    if mine == query and number.isdigit():
        return int(number) <= batch - KEPT_BATCHES
    pin = snapshot_files.pinned(path, name)
    return pin is not None and snapshot.expired(pin)
