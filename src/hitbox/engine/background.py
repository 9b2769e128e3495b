"""Work that nobody waits for: each piece runs in a thread of its own.

The thread is started with `_thread`: if memory is short, `Thread.start` can wait for ever for a thread that died early.
It leaves signals to the main thread. The end of the process cancels native builds, and waits for the work that is under
way. The child of a fork has none.
"""

from __future__ import annotations

import _thread
import atexit
import os
import time
from collections.abc import Callable
from functools import partial

from hitbox.engine import _kernels

START_TIMEOUT = 2.0
"""Seconds that a new thread has to start; after that it counts as failed."""
EXIT_TIMEOUT = 10.0
"""Seconds that the end of the process waits for each piece of work."""

_under_way: set[Background] = set()
ending = False
"""Whether the process is about to end."""


class Background:
    """A piece of work."""

    def __init__(self) -> None:
        self._started, self._begun = time.monotonic(), False
        self._ended = _thread.allocate_lock()

    def start(self, work: Callable[[], None]) -> None:
        """Do the work in a thread. If none can be started, nothing is under way."""
        _under_way.add(self)
        try:
            _kernels.start_in_background(partial(self._run, work))
        except (RuntimeError, MemoryError):
            _under_way.discard(self)

    @property
    def under_way(self) -> bool:
        """Whether a thread works on it."""
        return self in _under_way and (self._begun or time.monotonic() < self._started + START_TIMEOUT)

    def _run(self, work: Callable[[], None]) -> None:
        _kernels.work_in_background()
        with self._ended:
            self._begun = True
            try:
                work()
            finally:
                _under_way.discard(self)


def _wait() -> None:
    """Native code must not run on while the process takes itself apart."""
    global ending
    ending = True
    _kernels.end_background_work()
    for work in list(_under_way):
        work._ended.acquire(timeout=EXIT_TIMEOUT)


atexit.register(_wait)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_under_way.clear)
