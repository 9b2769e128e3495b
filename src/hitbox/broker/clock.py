"""The broker's clock: `from hitbox.broker.clock import time` reads like the module `time`.

The simulator replaces its functions, to skip waiting and to test jumps of the wall clock.
"""

from __future__ import annotations

import time as _time
from collections.abc import Callable


class Clock:
    """The functions of the module `time` that the broker uses."""

    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = _time.monotonic
        self.perf_counter_ns: Callable[[], int] = _time.perf_counter_ns
        self.time: Callable[[], float] = _time.time
        self.time_ns: Callable[[], int] = _time.time_ns


time = Clock()
