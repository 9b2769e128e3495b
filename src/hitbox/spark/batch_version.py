"""Which version of a snapshot a micro-batch is matched against: chosen once, by the first task that asks.

    path/pins/query-{query}-{run}-{batch}.json    {"version": 7, "batch": 12, "expires": ...}

Spark tells every task the id of its query and the number of its batch; both stay the same if the batch is repeated, in
this process or after a restart from the checkpoint, wherever that lies. The first task pins the current version under
that name, and the others read the pin. So all tasks of a batch agree, all repetitions agree, and the next batch takes
the version that is current by then. A pinned version is not removed (storage/snapshot.py).

Each start of a query is a run with pins of its own, because copies of a checkpoint have the same query and may run at
the same time. What another run pinned for a batch counts if that is newer than what this run pinned for the batch
before. So a run that goes on after another takes its last version, and one whose checkpoint was set back does not.

Spark starts a batch only after the one before is committed, so the pins of the last two batches of a query are enough:
the first task of a batch removes the others, those of other runs after OTHER_RUN. A query that will never run again
cannot remove its own. So a pin expires after PIN_DAYS. It then keeps no version, and any other query removes the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hitbox.errors import HitboxError, SnapshotError
from hitbox.spark import snapshot_files
from hitbox.storage import retention, snapshot
from hitbox.storage.addresses import join

PIN_DAYS = 7
OTHER_RUN = 3600
"""Seconds for which a pin of another run stays, which may be at work still."""
KEPT_BATCHES = 2
REMEMBERED = 16
"""Batches whose version a worker process remembers."""


@dataclass(frozen=True)
class Version:
    """A version, what its manifest says, and when it was published (seconds since 1970)."""

    number: int
    facts: dict[str, Any]
    published: float


def chosen(path: str) -> Version:
    """The version of the batch that the running task belongs to."""
    return _version(path, None, *this_batch())


def held(path: str, version: int) -> Version:
    """A version that the user chose. It is pinned for the batch of the running task, where pins can be written."""
    with contextlib.suppress(HitboxError, OSError):
        return _version(path, version, *this_batch())
    return described(path, version)


@lru_cache(REMEMBERED)
def _version(path: str, version: int | None, query: str, batch: int, run: str) -> Version:
    pinned = choose(path, query, batch, version, run)
    return described(path, pinned if version is None else version)


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


def choose(path: str, query: str, batch: int, version: int | None = None, run: str = "") -> int:
    """The version of a batch: the one pinned for it, or else the given or the current one, which is pinned now."""
    mine = f"query-{query}-" + (f"{hashlib.sha256(run.encode()).hexdigest()[:8]}-" if run else "")
    name, expires = f"{mine}{batch}", time.time() + PIN_DAYS * 86_400
    if version is None and snapshot_files.pinned(path, name) is None:
        version = _of_another_run(path, query, batch, snapshot_files.pinned(path, f"{mine}{batch - 1}"))
    facts = {"batch": batch, "expires": expires} | ({} if version is None else {"version": version})
    pin = snapshot_files.pin_once(path, name, **facts)
    again = ""
    while snapshot.expired(pin):  # its version may be gone; it stays, so that all who find it take the next name
        again += "again-"
        pin = snapshot_files.pin_once(path, f"{mine}{again}{batch}", **facts)
    if pin["expires"] == expires:  # most likely this task's own
        _tidy(path, query, mine, batch)
    return int(pin["version"])


def _names(path: str) -> list[str]:
    """The names of all pins of queries."""
    files = snapshot_files.names(join(path, "pins"))
    return [Path(file).stem for file in files if file.startswith("query-") and file.endswith(".json")]


def _of_another_run(path: str, query: str, batch: int, before: dict[str, Any] | None) -> int | None:
    """The version that another run pinned for this batch last, if that is newer than the pin of the batch before."""
    names = [name for name in _names(path) if name.startswith(f"query-{query}-") and name.endswith(f"-{batch}")]
    pins = [pin for name in names if (pin := snapshot_files.pinned(path, name)) and not snapshot.expired(pin)]
    last = max(pins, key=lambda pin: float(pin["expires"]), default=None)
    return int(last["version"]) if last and (before is None or last["expires"] >= before["expires"]) else None


def described(path: str, version: int) -> Version:
    facts = snapshot_files.facts(path, version)
    published = retention.time_of(facts)
    return Version(version, facts, published.timestamp() if published else time.time())


def _tidy(path: str, query: str, mine: str, batch: int) -> None:
    """Remove pins that no batch will read again. A failure is left to the next batch."""
    with contextlib.suppress(SnapshotError, OSError):
        for name in _names(path):
            with contextlib.suppress(SnapshotError, OSError):
                if _over(path, name, query, mine, batch):
                    snapshot_files.remove(join(path, "pins", f"{name}.json"))


def _over(path: str, name: str, query: str, mine: str, batch: int) -> bool:
    number = name.rpartition("-")[2]
    done = name.startswith(f"query-{query}-") and number.isdigit() and int(number) <= batch - KEPT_BATCHES
    if name == f"{mine}{number}":
        return done
    pin = snapshot_files.pinned(path, name)
    spare = PIN_DAYS * 86_400 - OTHER_RUN if done else 0
    return pin is not None and snapshot.expired({"expires": pin["expires"] - spare})
