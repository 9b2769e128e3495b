"""How many bytes of events the principals with a quota have published today.

    meta:  usage/ann   [day, bytes]

The bytes are stored in the transaction that stores the events, so they are exact after a crash, too. In memory they are
counted when the events are accepted, and taken back if these cannot be stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from hitbox.broker.clock import clock
from hitbox.broker.store.store import Store
from hitbox.protocol.errors import Forbidden

PREFIX = "usage/"
DAY_SECONDS = 86_400


class Charge(NamedTuple):
    """What a publish adds to the usage of a principal."""

    principal: str
    day: int
    bytes: int


class Usage:
    def __init__(self, store: Store):
        self._of: dict[str, tuple[int, int]] = {}  # (day, bytes)
        for key, value, _ in store.meta.table.scan("key >= ? AND key < ?", (PREFIX, PREFIX[:-1] + "0")):
            self._of[key.removeprefix(PREFIX)] = _read(value)

    def today(self, principal: str) -> int:
        """Bytes that it has published today."""
        return self._on(_today(), principal)

    def _on(self, day: int, principal: str) -> int:
        known, used = self._of.get(principal, (0, 0))
        return used if known == day else 0

    def take(self, principal: str, size: int, most: int) -> Charge:
        """Count a publish of this size. Raises Forbidden if that is more than `most` bytes per day."""
        day = _today()
        used = self._on(day, principal)
        if used + size > most:
            raise Forbidden(
                f"{principal!r} has published {used} bytes today and may publish {most} per day (max_day_bytes): "
                f"{size} more are too many. The next day begins at 00:00 UTC"
            )
        self._of[principal] = (day, used + size)
        return Charge(principal, day, size)

    def give_back(self, charge: Charge) -> None:
        """The events could not be stored."""
        day, used = self._of.get(charge.principal, (0, 0))
        if day == charge.day:
            self._of[charge.principal] = (day, max(used - charge.bytes, 0))

    def forget(self, principal: str) -> None:
        self._of.pop(principal, None)


def store_charges(store: Store, charges: Iterable[Charge]) -> None:
    """In the transaction that stores the events."""
    for principal, day, size in charges:
        known, used = _read(msgspec.json.encode(store.meta.get(PREFIX + principal)))
        store.meta.put(PREFIX + principal, [day, (used if known == day else 0) + size])


def _today() -> int:
    return int(clock.seconds() // DAY_SECONDS)


def _read(value: bytes) -> tuple[int, int]:
    """The day and the bytes; nothing if it is no such value."""
    try:
        return msgspec.json.decode(value, type=tuple[int, int])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0, 0
