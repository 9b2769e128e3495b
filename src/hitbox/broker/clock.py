"""The broker's clock: `clock.now()` is the time that the broker goes by, in what it stores and in what it does later.

The system's clock may jump, because it was wrong, or is wrong now. Then events would be removed too early, deliveries
would expire and delayed events would come. So the broker's clock begins with the time of the system, and goes on by the
monotonic clock. It follows the system's clock as long as that is at most `jump_seconds` away. If it is further away,
the broker's clock goes on as if nothing had happened, and follows after `hold_seconds`, or when an operator accepts the
time of the system. If the system's clock comes back before that, nothing has happened.

What is stored is wall time. The monotonic clock begins anew when the machine does, and only then, so a `Mark` in the
store tells a broker that starts how long it was down:

    the machine has not started since     the clock goes on, as if the broker had not been down
    it has, and the system's clock is     nobody knows how long it was off. The clock goes on from the newest time in
    behind the newest time in the store   the store, until the system's clock is set to a later one
    it has, and the system's clock is     it was off for so long, or the system's clock is wrong, as it may be until
    hours ahead of it                     the network sets it. The clock follows it, and for SETTLE_SECONDS nothing is
                                          removed or released because of its age (`in_doubt`)

`from hitbox.broker.clock import time` reads like the module `time`: the clocks of the system. The simulator replaces
its functions, to skip waiting and to test jumps.
"""

from __future__ import annotations

import logging
import time as _time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

SETTLE_SECONDS = 600.0
DOWN_SECONDS = 3600.0
"""A machine that was off for longer is in doubt."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
log = logging.getLogger("hitbox.broker")


def _elapsed_ns() -> int:
    return _time.clock_gettime_ns(getattr(_time, "CLOCK_BOOTTIME", _time.CLOCK_MONOTONIC))


def _boot() -> str:
    with suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""


class SystemClocks:
    """The functions of the module `time` that the broker uses, and two more."""

    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = _time.monotonic
        self.perf_counter_ns: Callable[[], int] = _time.perf_counter_ns
        self.time: Callable[[], float] = _time.time
        self.time_ns: Callable[[], int] = _time.time_ns
        self.elapsed_ns: Callable[[], int] = _elapsed_ns
        """Since the machine started; goes on while it is suspended, where the system has such a clock."""
        self.boot: Callable[[], str] = _boot
        """Which start of the machine that was; empty: the system does not tell."""


time = SystemClocks()


class Mark(NamedTuple):
    """What the clock told at a moment; in microseconds."""

    boot: str
    elapsed: int
    now: int

    def is_near(self, other: Mark) -> bool:
        """Whether both tell the same time, to a second."""
        return self.boot == other.boot and abs((self.now - self.elapsed) - (other.now - other.elapsed)) < 1_000_000


class BrokerClock:
    """There is one in a process. Until a broker starts it, it is the system's clock."""

    _offset: int | None
    _since: int | None
    _doubted_until: int | None

    def __init__(self) -> None:
        self.stop()

    def start(self, newest: int, mark: Mark | None, jump_seconds: float, hold_seconds: float) -> None:
        """Begin. `newest`: the newest time in the store, 0 if there is none. `mark`: the one in the store."""
        self.stop()
        self._jump, self._hold = int(jump_seconds * 1e6), int(hold_seconds * 1e6)
        if mark is not None and mark.boot and mark.boot == time.boot() and mark.elapsed <= _elapsed():
            self._offset = mark.now - mark.elapsed
        else:
            self._newest = max(newest, mark.now if mark is not None else 0)
            self._begin()

    def _begin(self) -> None:
        """Begin when nobody knows how long the machine was off."""
        system, elapsed = _system(), _elapsed()
        self._behind = system < self._newest - self._jump
        self._offset = (self._newest if self._behind else system) - elapsed
        if self._newest and system - self._newest > DOWN_SECONDS * 1e6:
            self._doubted_until = elapsed + int(SETTLE_SECONDS * 1e6)

    def stop(self) -> None:
        """Be the system's clock again."""
        self._offset = None
        self._jump = self._hold = self._newest = 0
        self._since, self._jumped = None, 0  # when the system's clock jumped, and how far
        self._doubted_until = None
        self._behind = False  # the system's clock was behind the newest time in the store, and no better one is known

    def now(self) -> int:
        """Microseconds since 1970."""
        return _system() if self._offset is None else self._offset + _elapsed()

    def seconds(self) -> float:
        """Seconds since 1970."""
        return self.now() / 1e6

    def ahead(self) -> float:
        """By how many seconds the system's clock is ahead of this one."""
        return (_system() - self.now()) / 1e6

    def in_doubt(self) -> bool:
        """Whether nothing is to be removed or released because of its age."""
        return self._doubted_until is not None

    def mark(self) -> Mark:
        return Mark(time.boot(), _elapsed(), self.now())

    def step(self) -> None:
        """Follow the system's clock if it is near, or has been where it is for long; called ten times per second."""
        if self._offset is None:
            return
        system, elapsed = _system(), _elapsed()
        ahead = system - elapsed - self._offset
        if self._behind and ahead > self._jump:  # it was set meanwhile
            self._since = None
            self._begin()
        elif self._doubted_until is not None:
            self._offset += ahead
            if elapsed >= self._doubted_until or system - self._newest <= DOWN_SECONDS * 1e6:
                self._doubted_until = None
        elif abs(ahead) <= self._jump:
            self._offset += ahead
            if self._since is not None:
                self._since = None
                log.warning("the system's clock is right again")
        elif self._since is None or abs(ahead - self._jumped) > self._jump:
            self._since, self._jumped = elapsed, ahead
            log.warning("%s", self.problem())
        elif elapsed - self._since >= self._hold:
            self.accept()

    def accept(self) -> float:
        """The system's clock is right. Returns by how many seconds this one moves."""
        if self._offset is None:
            return 0.0
        moved = self.ahead()
        self._offset, self._since, self._doubted_until, self._behind = _system() - _elapsed(), None, None, False
        log.warning("the broker's clock follows the system's: it moves by %.1f seconds", moved)
        return moved

    def problem(self) -> str:
        """What is wrong; empty if nothing is."""
        if self._doubted_until is not None:
            left, hours = max(self._doubted_until - _elapsed(), 0) / 1e6, (self.now() - self._newest) / 3.6e9
            return (
                f"the newest time in the store is {hours:,.1f} hours ago: the machine was "
                "off for so long, or its clock is wrong. Nothing is removed or released because of its age for "
                f"{left:,.0f} seconds, or until `hitbox admin clock accept`"
            )
        if self._since is not None:
            left = max(self._since + self._hold - _elapsed(), 0) / 1e6
            ahead = self.ahead()
            return (
                f"the system's clock is {abs(ahead):,.0f} seconds {'ahead of' if ahead > 0 else 'behind'} the "
                "broker's, which goes on without it: correct it, or let the broker follow it with `hitbox admin clock "
                f"accept`. It does so in {left:,.0f} seconds"
            )
        return ""


def _system() -> int:
    return time.time_ns() // 1000


def _elapsed() -> int:
    return time.elapsed_ns() // 1000


clock = BrokerClock()
