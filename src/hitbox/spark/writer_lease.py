"""One writer at a time on an object store, which has no locks: a small object says who writes, and until when.

    {"token": "5e3a...", "pid": 17, "host": "driver", "since": "...", "expires": 1790000000.0}

A writer that finds no lease, or one that expired, or one of a process of its own host that ended, writes its own, waits
a moment and reads it again: if several wrote at the same time, the last one wins and the others see that. A thread
renews the lease while the holder works. Just before publishing, the holder checks once more that the lease is its own.

What it cannot do: pyarrow has no conditional put. A holder that is suspended for longer than LEASE_SECONDS exactly
between that last check and the following write may still overwrite CURRENT. Clocks that differ by more than
LEASE_SECONDS between hosts make a valid lease look expired. If this matters, let one process do the writing.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from hitbox.errors import SnapshotError, WriterConflict
from hitbox.storage import addresses, writer_lock

LEASE_SECONDS = 60.0
"""Seconds after which a lease that was not renewed expires."""
SETTLE_SECONDS = 0.5
"""Seconds between writing a lease and relying on it: more than a read and a write take."""
WAIT_SECONDS = 600.0

Read = Callable[[str], dict[str, Any] | None]
Write = Callable[[str, str], None]

_mine = threading.local()


class Lease:
    """A lease that this process holds."""

    def __init__(self, address: str, what: str, read: Read, write: Write):
        self.address, self.what, self._read, self._write = address, what, read, write
        self.token = uuid.uuid4().hex
        self._facts = writer_lock.owner(what)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="hitbox-lease")

    def sign(self) -> None:
        facts = {"token": self.token, **self._facts, "expires": time.time() + LEASE_SECONDS}
        self._write(self.address, json.dumps(facts))

    def holds(self) -> bool:
        found = self._read(self.address)
        return found is not None and found.get("token") == self.token and not void(found)

    def check(self) -> None:
        """Raise an error if another writer took over because this one was suspended for too long."""
        if not self.holds():
            other = writer_lock.describe_writer(self._read(self.address))
            raise WriterConflict(
                f"cannot {self.what}: this process lost its lease on {addresses.without_passwords(self.address)} to "
                f"{other} because it was suspended for over {LEASE_SECONDS:g} seconds; "
                "nothing was published, do it again"
            )

    def renew(self) -> None:
        self._thread.start()

    def _keep(self) -> None:
        while not self._over.wait(LEASE_SECONDS / 4):
            with contextlib.suppress(Exception):  # tried again at the next turn; `check` fails if none succeeds
                if self.holds():
                    self.sign()

    def end(self, remove: Callable[[str], None]) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        with contextlib.suppress(SnapshotError, OSError):
            found = self._read(self.address)
            if found is not None and found.get("token") == self.token:
                remove(self.address)


def void(facts: dict[str, Any]) -> bool:
    """Whether a lease has expired, or its process has ended."""
    try:
        return float(facts["expires"]) < time.time() or writer_lock.ended(facts)
    except (KeyError, TypeError, ValueError):
        return True


@contextlib.contextmanager
def alone(
    address: str, what: str, read: Read, write: Write, remove: Callable[[str], None], wait: float | None = None
) -> Iterator[Lease]:
    """Exclude all other writers; a thread that is inside may enter again."""
    held: dict[str, Lease] = _mine.__dict__.setdefault("held", {})
    if address in held:
        yield held[address]
        return
    lease = Lease(address, what, read, write)
    wait = WAIT_SECONDS if wait is None else wait
    until, pause = time.monotonic() + wait, SETTLE_SECONDS
    while True:
        found = read(address)
        if found is None or void(found):
            lease.sign()
            time.sleep(SETTLE_SECONDS)
            if lease.holds():
                break
        elif time.monotonic() >= until:
            place, other = addresses.without_passwords(address), writer_lock.describe_writer(found)
            raise WriterConflict(
                f"cannot {what}: {other} holds {place} and has not ended in {wait:g} seconds; "
                f"try again, or, if that process is dead, remove {place} "
                f"(it expires {LEASE_SECONDS:g} seconds after its last renewal)"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 5.0)
    held[address] = lease
    lease.renew()
    try:
        yield lease
    finally:
        held.pop(address, None)
        lease.end(remove)
