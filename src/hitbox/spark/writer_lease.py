"""One writer at a time on an object store, which has no locks: a small object says who writes, and until when.

    {"token": "5e3a...", "pid": 17, "host": "driver", "since": "...", "expires": 1790000000.0}

A writer that finds no lease, or one that expired, or one of a process of its own host that ended, writes its own. A
thread renews the lease while the holder works. Just before publishing, the holder checks once more that the lease is
its own.

On a store with conditional puts (small_objects.py), only one of several writers can write the lease. The holder also
replaces CURRENT only if it is still the one that it read: a holder that was suspended for long, or whose clock is
wrong, can waste its work, but cannot undo a version that another writer published.

On other stores, a writer waits a moment after writing its lease and reads it again: if several wrote at the same time,
the last one wins and the others see that. A holder that is suspended for longer than LEASE_SECONDS exactly between the
last check and the following write may still overwrite CURRENT. Clocks that differ by more than LEASE_SECONDS between
hosts make a valid lease look expired. If this matters, let one process do the writing.
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
from hitbox.spark import small_objects
from hitbox.spark.small_objects import Overtaken, SmallObjects
from hitbox.storage import addresses, writer_lock

LEASE_SECONDS = 60.0
"""Seconds after which a lease that was not renewed expires."""
SETTLE_SECONDS = 0.5
"""Seconds between writing a lease and relying on it: more than a read and a write take."""
WAIT_SECONDS = 600.0

_mine = threading.local()


class Lease:
    """A lease that this process holds."""

    def __init__(self, address: str, what: str, objects: SmallObjects):
        self.address, self.what, self._objects = address, what, objects
        self._tag = small_objects.ANY
        self.token = uuid.uuid4().hex
        self._facts = writer_lock.owner(what)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="hitbox-lease")

    def read(self) -> dict[str, Any] | None:
        """The lease that is there now, of whomever; None if there is none or it is damaged."""
        text, self._tag = self._objects.read(self.address)
        try:
            found = json.loads(text or "")
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def sign(self) -> None:
        """Write the lease; where the store can tell, only if it is still the one that `read` found."""
        facts = {"token": self.token, **self._facts, "expires": time.time() + LEASE_SECONDS}
        self._tag = self._objects.write(self.address, json.dumps(facts), self._tag)

    def take(self) -> bool:
        """Write the lease after `read` found none that is valid; whether it is ours now."""
        try:
            self.sign()
        except Overtaken:
            return False
        if self._objects.conditional:
            return True
        time.sleep(SETTLE_SECONDS)
        return self.holds()

    def holds(self) -> bool:
        found = self.read()
        return found is not None and found.get("token") == self.token and not void(found)

    def check(self) -> None:
        """Raise an error if another writer took over because this one was suspended for too long."""
        if not self.holds():
            other = writer_lock.describe_writer(self.read())
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
            found = self.read()
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
    address: str, what: str, objects: SmallObjects, remove: Callable[[str], None], wait: float | None = None
) -> Iterator[Lease]:
    """Exclude all other writers; a thread that is inside may enter again."""
    held: dict[str, Lease] = _mine.__dict__.setdefault("held", {})
    if address in held:
        yield held[address]
        return
    lease = Lease(address, what, objects)
    wait = WAIT_SECONDS if wait is None else wait
    until, pause = time.monotonic() + wait, SETTLE_SECONDS
    while True:
        found = lease.read()
        if found is None or void(found):
            if lease.take():
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
